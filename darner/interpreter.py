"""The oracle: any graph, in NumPy, one node after another. Slow on purpose, short on purpose."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from .graph import dtypes
from .graph.arrays import as_array
from .graph.build import describe
from .graph.data import Array, as_data
from .graph.dims import Dim, bind_dim, format_shape
from .graph.dtypes import DType
from .graph.errors import (
    LESS_MEMORY,
    DarnerError,
    InternalError,
    OutOfMemoryError,
    RunError,
    caller,
    did_you_mean,
    listed,
)
from .graph.graph import LEAVES, Graph
from .graph.habits.table import INPUTS
from .graph.node import Node
from .graph.types import TensorType, TupleType
from .ops.loops.loop import loop
from .ops.quantised.stored import stored_value
from .transforms.expand import expansion, in_float64

Values = Mapping[str, Any]


def run(
    graph: Graph,
    inputs: Values | None = None,
    params: Values | None = None,
    *,
    state: MutableMapping[str, Any] | None = None,
    float64: bool = False,
) -> list[Array]:
    """Run a graph once and return its outputs, in order.

    Args:
        graph: what to run.
        inputs: a value for every input, by name. They also settle symbolic sizes.
        params: a value for every parameter, by name.
        state: values of state leaves, by name; absent ones start at their ``init``. After the run it holds
            the updated values. Updated parameters are written back to it too.
        float64: compute every float in f64, whatever the graph says.

    >>> import darner, numpy as np
    >>> g = darner.Graph()
    >>> g.set_outputs([g.input("x", (3,)) * 2.0])
    >>> darner.run(g, {"x": np.array([1, 2, 3], np.float32)})
    [array([2., 4., 6.], dtype=float32)]
    """
    try:
        given = {
            **_checked(graph, "input", inputs or {}),
            **_checked(graph, "parameter", params or {}),
        }
        given.update(_checked(graph, "state", state or {}, partial=True))
        graph = _bind_sizes(graph, given)
        if float64:
            graph = in_float64(graph)
        leaves = {name: _leaf(graph.nodes[i], given) for name, i in graph._names.items()}
        results = evaluate(graph, leaves)
    except DarnerError as error:
        raise error.located("run", None, "", caller()) from error.__cause__
    if state is not None:
        for leaf in graph.states.values():
            state[str(leaf.name)] = leaves[str(leaf.name)]
        for leaf, value in graph.updates.items():
            state[str(leaf.name)] = results[value.id]
    return [np.array(results[node.id]) for node in graph.outputs]  # the caller's own


def _checked(graph: Graph, kind: str, given: Values, partial: bool = False) -> dict[str, Any]:
    """Every name must be a leaf of the graph, and every leaf must be there."""
    leaves = graph._leaves(kind)
    if not isinstance(given, Mapping):
        raise RunError(f"{kind}s are values by name, got {type(given).__name__}")
    if kind == "input":
        given = {INPUTS.get(n, n) if n not in leaves else n: value for n, value in given.items()}
    for name in given:
        if name not in leaves and not (partial and name in graph.parameters):
            hint = did_you_mean(str(name), leaves) or (
                f"it has {listed(leaves)}" if leaves else f"it has no {kind}"
            )
            if kind == "input" and name in graph.parameters:
                hint = f"'{name}' is a parameter: run(graph, inputs, params)"
            raise RunError(f"graph '{graph.name}' has no {kind} '{name}'", hint=hint)
    missing = [name for name in leaves if name not in given]
    if missing and not partial:
        raise RunError(f"no value was given for {kind} {listed(map(repr, missing))}")
    return dict(given)


def _bind_sizes(graph: Graph, given: dict[str, Any]) -> Graph:
    """Settle symbolic sizes from the shapes of the values."""
    symbols = graph.dynamic_symbols()
    if not symbols:
        return graph
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for name, index in graph._names.items():
        declared = graph.nodes[index].shape
        found = _as_array(graph.nodes[index], given[name]).shape if name in given else ()
        for size, actual in zip(declared, found, strict=False):
            for symbol, value in solve_size(size, actual).items():
                if sizes.setdefault(symbol, value) != value:
                    raise RunError(
                        f"'{symbol}' is {sizes[symbol]} in '{origin[symbol]}' but {value} in '{name}'"
                    )
                origin.setdefault(symbol, name)
    unknown = [symbol for symbol in symbols if symbol not in sizes]
    if unknown:
        raise RunError(f"no input settles the size {', '.join(unknown)}", hint="bind it first")
    return graph.bind(sizes)


def solve_size(size: Dim, actual: int) -> dict[str, int]:
    """The symbol that an actual size settles: ``2*seq+1`` is 7 for a seq of 3."""
    if isinstance(size, int):
        return {}
    factors = dict(size.terms)
    rest = actual - factors.pop((), 0)
    (names, factor), *others = factors.items()
    if others or len(names) > 1 or rest % factor or rest // factor < 0:
        return {}
    return {names[0]: rest // factor}


def _as_array(node: Node, value: Any) -> Array:
    return as_array(value, f"{node.op.name} '{node.name}'")[0]


def _leaf(node: Node, given: dict[str, Any]) -> Array:
    """A leaf's value, checked against its type."""
    shape = tuple(int(size) for size in node.shape)
    if node.name not in given:  # only states may be absent
        return np.full(shape, as_data(node.attrs["init"], node.dtype).array)
    array = _as_array(node, given[str(node.name)])
    if array.shape != shape:
        raise RunError(
            f"{node.op.name} '{node.name}' is {format_shape(node.shape)}, "
            f"but the value is {format_shape(array.shape)}"
        )
    try:
        found = dtypes.dtype(array.dtype)
    except DarnerError:
        raise RunError(
            f"{node.op.name} '{node.name}' cannot take values of {array.dtype}"
        ) from None
    same_kind = found.kind == node.dtype.kind or (found.kind, node.dtype.kind) in _WIDENS
    if not same_kind:
        raise RunError(f"{node.op.name} '{node.name}' is {node.dtype}, but the value is {found}")
    if node.dtype.is_int and found.is_int and array.size:
        low, high = node.dtype.limits
        if array.min() < low or array.max() > high:
            raise RunError(f"{node.op.name} '{node.name}' is {node.dtype}: some values do not fit")
    with np.errstate(over="ignore"):  # what is too large for the type is infinite in it
        typed = array.astype(node.dtype.numpy)
    return stored_value(typed, node.attrs.get("storage", "dense"))


_WIDENS = {("int", "float"), ("bool", "int"), ("bool", "float"), ("float", "complex")}


def evaluate(graph: Graph, leaves: Mapping[str, Array]) -> dict[int, Any]:
    """The value of every node that an output or an update needs."""
    needed = [False] * len(graph)
    for node in (*graph.outputs, *graph.updates.values()):
        needed[node.id] = True
    for node in graph.reverse_topo():
        if needed[node.id]:
            for i in node.inputs:
                needed[i] = True
    values: dict[int, Any] = {}
    last_use = {i: node.id for node in graph.nodes if needed[node.id] for i in node.inputs}
    kept = {node.id for node in (*graph.outputs, *graph.updates.values())}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if needed[node.id]:
                values[node.id] = _value(node, [values[i] for i in node.inputs], leaves)
                for i in set(node.inputs):
                    if last_use[i] == node.id and i not in kept:
                        del values[i]
    return values


def _value(node: Node, operands: list[Any], leaves: Mapping[str, Array]) -> Any:
    if node.op.name in LEAVES:
        return leaves[str(node.name)]
    try:
        return compute(node, operands)
    except Exception as error:
        fault = error if isinstance(error, DarnerError) else _fault(error)
        context = (node.op.name, node.label, describe(zip(node.slots, node.operands, strict=True)))
        place = fault.in_expansion_of if node.op.is_composite else fault.located
        cause = error.__cause__ if fault is error else error
        raise place(*context, node.source) from cause


@loop.reference
def _(  # many parameters: the op's operands and attributes
    init: list[Array],
    constants: list[Array],
    xs: list[Array],
    body: Graph,
    length: int,
    reverse: bool,
    recompute: bool,
) -> list[Array]:
    """The body, step after step."""
    leaves = body.inputs
    carries, written = init, []
    for t in reversed(range(length)) if reverse else range(length):
        given = zip(leaves.items(), [*carries, *constants, *(x[t] for x in xs)], strict=True)
        # 16-bit floats came as f32: a body reads its own types.
        typed = {name: np.asarray(value, leaf.dtype.numpy) for (name, leaf), value in given}
        values = evaluate(body, typed)
        found = [values[node.id] for node in body.outputs]
        carries = found[: len(init)]
        written.append(found[len(init) :])
    if reverse:
        written.reverse()
    kinds = [node._tensor for node in body.outputs[len(init) :]]
    stacked = [
        np.array([step[i] for step in written], kind.dtype.numpy).reshape(length, *kind.shape)
        for i, kind in enumerate(kinds)
    ]
    return [*carries, *stacked]


def _fault(error: Exception) -> DarnerError:
    if isinstance(error, MemoryError):
        return OutOfMemoryError(str(error) or "there is no memory left", hint=LESS_MEMORY)
    return RunError(f"cannot compute: {error}")


def compute(node: Node, operands: list[Any]) -> Any:
    """One node from the values of its operands."""
    if node.op.rules.expand is not None:
        body = expansion(node)
        inner = evaluate(body, {str(i): value for i, value in enumerate(operands)})
        results = [inner[output.id] for output in body.outputs]
        return tuple(results) if isinstance(node.type, TupleType) else results[0]
    reference = node.op.rules.reference
    if reference is None:
        raise InternalError(f"op '{node.op.name}' has no reference")
    widened = [_wide(value) for value in operands]
    answer = reference(**node.op.arguments(widened, node.slots), **node.attrs)
    if isinstance(node.type, TupleType):
        if len(answer) != len(node.type.items):
            raise _wrong(node, f"gave {len(answer)} results, not {len(node.type.items)}")
        return tuple(_typed(node, a, t) for a, t in zip(answer, node.type.items, strict=True))
    return _typed(node, answer, node.type)


def _wide(value: Any) -> Any:
    """16-bit floats are stored narrow and computed in f32."""
    if isinstance(value, np.ndarray) and value.dtype.itemsize == 2 and value.dtype.kind not in "iu":
        return value.astype(np.float32)
    return value


def _wrong(node: Node, what: str) -> DarnerError:
    """The fault of a reference: darner's own, or the author's of an op."""
    if node.op.builtin:
        return InternalError(f"the reference of '{node.op.name}' {what}")
    return RunError(f"its function {what}")


_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
"""How much NumPy's kinds of types can hold."""


def _widens(found: np.dtype[np.generic], wanted: DType) -> bool:
    """Whether values of a type can stand for another: widths may differ, and integers may be floats, but no float an integer."""
    if found == dtypes.bf16.numpy:
        return wanted.is_float or wanted.kind == "complex"
    rank = 2 if wanted.is_float else _RANKS[np.dtype(wanted.numpy).kind]
    return _RANKS.get(found.kind, rank + 1) <= rank


def _typed(node: Node, answer: Any, type_: TensorType) -> Array:
    """Round to the node's element type; a wrong shape is a fault of the op."""
    array = np.asarray(answer)
    shape = tuple(int(bind_dim(size, {})) for size in type_.shape)
    if array.shape != shape:
        raise _wrong(node, f"gave {array.shape}, not {shape}")
    if not _widens(array.dtype, type_.dtype):
        raise _wrong(node, f"gave {array.dtype}, not {type_.dtype}")
    return array.astype(type_.dtype.numpy, copy=False)
