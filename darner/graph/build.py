"""From a call to a node: bind the arguments, find common types, run the shape rule, append.

Whatever goes wrong, the error names the op, the label, the operands and the user's line, and the
graph is as it was before the call.
"""

from __future__ import annotations

import inspect
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dtypes
from .arrays import as_array
from .attributes import Operand
from .check import canonical, check_kind, check_tuple, settle_axes
from .data import as_data
from .dims import Shape, as_shape, format_shape
from .dtypes import DType
from .errors import (
    ArgumentError,
    Calling,
    DarnerError,
    DTypeError,
    ShapeError,
    Source,
    caller,
)
from .habits import hints
from .habits.hints import renamed
from .habits.table import ALIASES
from .ids import from_ids
from .node import Node
from .op import REQUIRED, Builder, Op, Param, Rule, get_op, op_or_builder
from .types import TensorType, TupleType, Type

if TYPE_CHECKING:
    from .graph import Graph

# Kinds of arguments. As tuples: a union written where it is used would be made anew at each call.
_NUMBERS = (bool, int, float, complex)
_ARRAYS = (np.ndarray, np.generic)
_LISTS = (list, tuple)


def call(op: Op, graph: Graph | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Add ``op`` to a graph (found from the operands when None); returns its node or nodes."""
    label = kwargs.pop("label", None)
    operands: list[tuple[str, Any]] = []
    try:
        graph = _graph_of(graph, args, kwargs)
        full_label = graph.labelled(label)
    except DarnerError as error:
        raise error.located(op.name, label, "", caller()) from error.__cause__
    before = len(graph)
    source = graph.source_of_call()
    with Located(graph, op.name, full_label, source, operands, op.builtin):
        if not ALIASES.keys().isdisjoint(kwargs):
            kwargs = renamed(kwargs, op.by_name)
        given = None if "shape" in op.by_name else kwargs.pop("shape", None)
        if op.rules.spelling is not None:
            answer = _spelled(op.rules.spelling, op, graph, args, kwargs)
            if not _is_call(answer):
                return _finished(answer, graph, before, full_label, given)
            args, kwargs = answer
        bound, extra = _bind(op, args, kwargs)
        operands.extend(_operands(op, graph, bound))
        attrs = _attributes(op, bound)
        nodes = _promote(op, graph, operands, source)
        slots = tuple([slot for slot, _ in operands])
        operands[:] = zip(slots, nodes, strict=True)
        if op.axis_params:
            attrs = settle_axes(op, attrs, [node.type for node in nodes])
        result = graph.insert(op, nodes, slots, attrs, label=full_label, source=source)
        for wanted in (given, extra):
            if wanted is not None:
                check_given(result, wanted)
        if isinstance(result.type, TupleType):
            project = get_op("project")
            return tuple(
                graph.insert(project, [result], ("source",), {"index": i}, source=source)
                for i in range(len(result.type.items))
            )
        return result


def call_builder(
    item: Builder, graph: Graph | None, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Run a builder; its nodes all carry the user's line, and none stay if it fails."""
    label = kwargs.pop("label", None)
    try:
        graph = _graph_of(graph, args, kwargs)
        full_label = graph.labelled(label)
    except DarnerError as error:
        raise error.located(item.name, label, "", caller()) from error.__cause__
    given = [*zip(item.parameters, args, strict=False), *kwargs.items()]
    nodes = [(name, value) for name, value in given if isinstance(value, Node)]
    before = len(graph)
    source = graph.source_of_call()
    stated = None if "shape" in item.parameters else kwargs.pop("shape", None)
    with Located(graph, item.name, full_label, source, nodes, item.builtin):
        if not ALIASES.keys().isdisjoint(kwargs):
            kwargs = renamed(kwargs, item.parameters)
        args, kwargs = with_constants(graph, item, args, kwargs)
        try:
            result = _spelled(item.function, item, graph, args, kwargs)
        except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
            # A builder may pass an argument on to an op, or compute with it.
            wrong = None if isinstance(error, DarnerError) else _misfit(item, given)
            if wrong is None:
                raise
            raise ArgumentError(wrong, hint=f"the call is {item.signature}") from error
        return _finished(result, graph, before, full_label, stated)


def _misfit(item: Builder, given: Iterable[tuple[str, Any]]) -> str | None:
    """What the first argument that is not of its declared kind should be."""
    for name, value in given:
        if value is None:
            continue
        if name in item.operands and not isinstance(value, (Node, *_ARRAYS)):
            return f"'{name}' must be a node or an array, got {_typename(value)}"
        kinds, text = _KINDS.get(item.annotations.get(name, ""), ((), ""))
        if text and (not isinstance(value, kinds) or isinstance(value, bool)):
            return f"'{name}' is {text}, got {value!r}"
        if text == "a whole number" and value < 0:
            return f"'{name}' is a whole number from 0, got {value!r}"
    return None


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int, np.integer), "a whole number"),
    "int | None": ((int, np.integer), "a whole number"),
    "float": ((int, float, np.number), "a number"),
    "float | None": ((int, float, np.number), "a number"),
}


def with_constants(
    graph: Graph, item: Builder, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """A builder's arguments with constants in place of arrays, where it takes nodes."""
    if all(isinstance(value, (Node, *_NUMBERS, *_LISTS)) for value in (*args, *kwargs.values())):
        return args, kwargs
    named = dict(zip(item.parameters, args, strict=False))

    def settled(name: str, value: Any) -> Any:
        if isinstance(value, Node) or name not in item.operands or not _speaks_arrays(value):
            return value
        return graph.literal(as_array(value, f"'{name}'", ArgumentError)[0], None)

    new = [settled(name, value) for name, value in named.items()]
    return [*new, *args[len(new) :]], {name: settled(name, v) for name, v in kwargs.items()}


def _spelled(
    function: Rule, item: Op | Builder, graph: Graph, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Run a builder or a spelling; arguments it cannot take are the caller's error."""
    try:
        return function(graph, *args, **kwargs)
    except TypeError as error:
        own = f"{function.__qualname__}() "  # not one from a call further in
        if not str(error).startswith(own):
            raise
        text = str(error).removeprefix(own)
        if text.startswith("takes"):  # Python would count the graph too
            text = f"takes {_count(_by_position(function))} by position, got {len(args)}"
        found = hints.hint("call", item.name) if text.startswith("takes") else None
        if (unknown := _UNEXPECTED.fullmatch(text)) is not None:
            text = f"has no argument '{unknown[1]}'"
            found = hints.hint("argument", unknown[1], _parameters(item))
        raise ArgumentError(text, hint=found or f"the call is {item.signature}") from None


_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'.*")


def _parameters(item: Op | Builder) -> Iterable[str]:
    return item.by_name if isinstance(item, Op) else item.parameters


def _by_position(function: Rule) -> int:
    """How many arguments a builder or a spelling takes by position, the graph left out."""
    kinds = [param.kind for param in inspect.signature(function).parameters.values()]
    return kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) - 1


def _finished(result: Any, graph: Graph, before: int, label: str | None, given: Any) -> Any:
    """A node made through other calls takes the label and must have the stated shape."""
    if isinstance(result, Node):
        if given is not None:
            check_given(result, given)
        if label is not None and result.id >= before:
            graph.relabel(result, label)
    return result


class Located:
    """Adds context to errors, and undoes what the failed call had appended."""

    __slots__ = ("_builtin", "_context", "_graph", "_mark", "_operands")

    def __init__(
        self,
        graph: Graph,
        op: str,
        label: str | None,
        source: Source | None,
        operands: list[tuple[str, Any]],
        builtin: bool = True,
    ) -> None:
        self._builtin = builtin
        self._graph = graph
        self._context = (op, label, source)
        self._operands = operands

    def __enter__(self) -> None:
        self._mark = self._graph.mark()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        self._graph.rollback(self._mark)
        if isinstance(error, DarnerError):
            op, label, source = self._context
            if error.op is not None and error.op != op:
                error.called(op, describe(self._operands), builtin=self._builtin)
            error.located(op, label, describe(self._operands), source)


def describe(operands: Iterable[tuple[str, Any]]) -> str:
    """Operands as an error shows them: ``x is f32[32, 784] but w is f32[512, 128]``."""
    return describe_types(
        [(slot, value.type) for slot, value in operands if isinstance(value, Node)]
    )


def describe_types(operands: Sequence[tuple[str, Type]]) -> str:
    """The same, for operands whose types alone are at hand."""
    repeated = {slot for slot, _ in operands if sum(slot == other for other, _ in operands) > 1}
    counts: dict[str, int] = {}
    texts = []
    for slot, type_ in operands:
        index = counts[slot] = counts.get(slot, -1) + 1
        name = f"{slot}[{index}]" if slot in repeated else slot
        texts.append(f"{name} is {type_}")
    if len(texts) == 2:
        return " but ".join(texts)
    if len(texts) > 8:
        texts = [*texts[:7], f"{len(texts) - 7} more"]
    return ", ".join(texts)


def _is_call(answer: Any) -> bool:
    return (
        isinstance(answer, tuple)
        and len(answer) == 2
        and isinstance(answer[0], tuple | list)
        and isinstance(answer[1], dict)
    )


def _graph_of(graph: Graph | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Graph:
    """The graph that a call adds to: that of its nodes, or the innermost where they are read inside a body."""
    for value in (*args, *kwargs.values()) if kwargs else args:
        for item in value if isinstance(value, _LISTS) else (value,):
            if not isinstance(item, Node) or item.graph is graph:
                continue
            if graph is None or item.graph.is_inside(graph):
                graph = item.graph
    if graph is None:
        raise ArgumentError("no argument is a node", hint="call it as a method of a Graph")
    return graph


def _bind(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Arguments by parameter name, and a trailing shape if the caller gave one."""
    positional = op.positional
    extra = None
    if len(args) == len(positional) + 1 and _looks_like_shape(args[-1]):
        *args, extra = args
    if len(args) > len(positional):
        raise ArgumentError(
            f"takes {_count(len(positional))}, got {len(args)}",
            hint=hints.hint("call", op.name) or f"the call is {op.signature}",
        )
    bound = {param.name: value for param, value in zip(positional, args, strict=False)}
    for name, value in kwargs.items():
        if name not in op.by_name:
            found = hints.hint("argument", name, op.by_name)
            raise ArgumentError(
                f"has no argument '{name}'", hint=found or f"the call is {op.signature}"
            )
        if name in bound:
            raise ArgumentError(f"argument '{name}' is given twice")
        bound[name] = value
    for param in op.params:
        if param.name not in bound:
            if param.default is REQUIRED:
                raise ArgumentError(
                    f"argument '{param.name}' is missing", hint=f"the call is {op.signature}"
                )
            bound[param.name] = param.default
    return bound, extra


def _count(n: int) -> str:
    return "no arguments" if n == 0 else "1 argument" if n == 1 else f"{n} arguments"


def _looks_like_shape(value: object) -> bool:
    if isinstance(value, TensorType):
        return True
    return isinstance(value, _LISTS) and not any(isinstance(item, Node) for item in value)


def _operands(op: Op, graph: Graph, bound: dict[str, Any]) -> list[tuple[str, Any]]:
    operands: list[tuple[str, Any]] = []
    for param in op.operands:
        value = bound[param.name]
        if value is None:
            if not param.optional:
                raise ArgumentError(f"argument '{param.name}' is missing")
            continue
        if param.variadic:
            if isinstance(value, Node) or not isinstance(value, _LISTS):
                raise ArgumentError(
                    f"'{param.name}' must be a list of nodes, got {_typename(value)}"
                )
            operands.extend((param.name, _operand(graph, param, item)) for item in value)
        else:
            operands.append((param.name, _operand(graph, param, value)))
    return operands


def _typename(value: object) -> str:
    return "one node" if isinstance(value, Node) else type(value).__name__


def _operand(graph: Graph, param: Param, value: Any) -> Any:
    """A node of this graph, or a number or array to become a constant."""
    if isinstance(value, Node):
        if value.graph is not graph:
            if not graph.is_inside(value.graph):
                raise ArgumentError(
                    f"'{param.name}' is a node of graph '{value.graph.name}', not of '{graph.name}'"
                )
            value = graph.adopt(value)
        if isinstance(param.kind, Operand):
            check_tuple(param.name, param.kind, value.type)
        return value
    if isinstance(value, _NUMBERS):
        return value
    if isinstance(value, _ARRAYS) or _speaks_arrays(value):
        return as_array(value, f"'{param.name}'", ArgumentError)[0]
    if isinstance(value, _LISTS) and not any(isinstance(item, Node) for item in value):
        return as_data(value).array if param.kind.name == "integer" else list(value)
    raise ArgumentError(
        f"'{param.name}' must be a node, a number or an array, got {_typename(value)}"
    )


def _speaks_arrays(value: object) -> bool:
    """Whether a value is an array of another library."""
    return (
        hasattr(value, "__dlpack__")
        or hasattr(value, "__array__")
        or isinstance(value, memoryview | array)
    )


def _attributes(op: Op, bound: dict[str, Any]) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for param in op.attributes:
        value = bound[param.name]
        if isinstance(value, Node):
            raise ArgumentError(
                f"'{param.name}' must be a fixed value ({param.kind.name}), not a node"
            )
        attrs[param.name] = canonical(param, value)
    return attrs


def _promote(
    op: Op, graph: Graph, operands: list[tuple[str, Any]], source: Source | None
) -> list[Node]:
    """Each operand as a node, cast where the op's operands share a type."""
    kinds: list[Any] = [op.by_name[slot].kind for slot, _ in operands]
    common = _common_type(kinds, operands)
    nodes: list[Node] = []
    for (slot, value), kind in zip(operands, kinds, strict=True):
        target = common if kind.promotes else None
        if not isinstance(value, Node):
            value = graph.literal(value, _literal_type(value, target, kind), source)
        if target is not None and value.dtype is not target:
            check_kind(slot, kind, target)
            value = graph.insert("cast", [value], ("x",), {"to": target}, source=source)
        nodes.append(value)
    return nodes


def _common_type(kinds: Sequence[Operand], operands: list[tuple[str, Any]]) -> DType | None:
    """The promotion of all operands that take part; bare numbers only follow."""
    common: DType | None = None
    floats = False
    weak: list[Any] = []
    for (_, value), kind in zip(operands, kinds, strict=True):
        if not kind.promotes:
            continue
        floats = floats or kind.lowest == "float"
        if isinstance(value, Node):
            own = value.dtype
        elif isinstance(value, _ARRAYS):
            own = dtypes.dtype(value.dtype)
        else:
            weak.append(value)
            continue
        common = own if common is None or common is own else dtypes.promote(common, own)
    for value in weak:
        common = _weak_type(value, common)
    return dtypes.at_least_float(common) if floats and common is not None else common


def _weak_type(value: Any, beside: DType | None) -> DType:
    if isinstance(value, list):
        return dtypes.beside_or_own(as_data(value).type.dtype, beside)
    return dtypes.of_python(value, beside)


def _literal_type(value: Any, target: DType | None, kind: Operand) -> DType | None:
    if target is not None:
        return target
    if isinstance(value, _ARRAYS):
        return None
    return dtypes.bool_ if kind.exact == "bool" else None


def check_given(node: Node, wanted: Any) -> None:
    """Compare an inferred type with the shape (and element type) that the caller stated."""
    shape: Shape = wanted.shape if isinstance(wanted, TensorType) else as_shape(wanted)
    if isinstance(node.type, TupleType) or node.shape != shape:
        found = str(node.type) if isinstance(node.type, TupleType) else format_shape(node.shape)
        raise ShapeError(f"the result is {found}, but {format_shape(shape)} was stated")
    if isinstance(wanted, TensorType) and wanted.dtype is not node.dtype:
        raise DTypeError(f"the result is {node.dtype}, but {wanted.dtype} was stated")


def _filled(item: Builder, nodes: list[Node], attrs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a builder by name: its parameters that have no attribute take the nodes in order."""
    free = [name for name in item.parameters if name not in attrs]
    if free and item.annotations.get(free[0], "").startswith("list[Node"):
        return {**attrs, free[0]: nodes}
    if len(nodes) > len(free):
        raise ArgumentError(
            f"{item.name} takes {len(free)} nodes beside these attributes, got {len(nodes)}",
            hint=f"the call is {item.signature}",
        )
    return {**attrs, **dict(zip(free, nodes, strict=False))}


def call_by_name(  # many parameters: a call as its user wrote it
    graph: Graph,
    method: str,
    op: Op | str,
    inputs: Any,
    shape: Any,
    attrs: dict[str, Any],
    name: str | None = None,
) -> Any:
    """A call of any op by its record or name, on a list of nodes; ``method`` is what the user called."""
    with Calling(method):
        record = op if isinstance(op, Op) else op_or_builder(op)
        if name is not None:
            named = record.parameters if isinstance(record, Builder) else record.by_name
            attrs = {"name" if "name" in named else "label": name, **attrs}
        if not isinstance(inputs, Iterable):
            raise ArgumentError(f"inputs must be a list of nodes, got {inputs!r}")
        given = list(inputs)
        nodes = from_ids(graph, given)
        if isinstance(record, Builder):
            stated = {} if shape is None else {"shape": shape}
            return call_builder(record, graph, [], {**_filled(record, nodes, attrs), **stated})
        first = record.operands[0] if record.operands else None
        args = [nodes] if first is not None and first.variadic else nodes
        if shape is not None:
            attrs = {"shape": shape, **attrs}
    return call(record, graph, args, attrs)
