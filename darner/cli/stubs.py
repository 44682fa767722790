"""``graph/methods.pyi``: the methods of graphs and nodes, for editors and type checkers.

The methods themselves come from the registry when they are asked for, so nothing in the source spells
them out. An op that can be spelled in other ways gets a second, untyped overload.
"""

from __future__ import annotations

import ast
import inspect
import math
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..graph.attributes import Attribute
from ..graph.methods import takes_node_first
from ..graph.op import REQUIRED, Op, Param
from .facts import Item, builtin_items, has_several_results, summary

HEADER = '''\
"""Every op and builder of darner as a method of graphs and nodes.

Generated from the registry; do not edit. To bring it up to date: python -m darner.cli.generate
"""

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from .dims import SymbolicDim
from .dtypes import DType
from .graph import Graph
from .node import Node
from .op import Builder, Op
from .types import TensorType

NodeLike: TypeAlias = Node | int | float | bool | complex | npt.NDArray[Any] | np.generic | Sequence[Any]
DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]
DimLike: TypeAlias = int | str | SymbolicDim
ShapeLike: TypeAlias = DimLike | Sequence[DimLike] | TensorType

def takes_node_first(item: Op | Builder) -> bool: ...
'''

_ATTRIBUTES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "text": "str",
    "scheme": "str",
    "name": "str",
    "integers": "int | Sequence[int]",
    "numbers": "float | Sequence[float]",
    "(low, high) pairs": "int | Sequence[int | Sequence[int]]",
    "element type": "DTypeLike",
    "size": "DimLike",
    "sizes": "ShapeLike",
    "shape": "ShapeLike",
    "axis": "int",
    "axes": "int | Sequence[int]",
    "values": "Any",
    "graph": "Graph",
}

# What a builder's own annotation may mention; anything else is written as Any.
_BUILTINS = ("bool", "bytes", "complex", "dict", "float", "int", "list", "object", "str", "tuple")
_IMPORTED = (
    *("Any", "Callable", "Iterable", "Mapping", "Sequence", "Literal", "Graph", "Node"),
    *("DType", "SymbolicDim", "TensorType"),
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a stub; ``default`` is its text, or None."""

    name: str
    annotation: str
    default: str | None = None
    star: str = ""
    keyword_only: bool = False

    def __str__(self) -> str:
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.star}{self.name}: {self.annotation}{default}"


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a stub."""

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    result: str
    spelled_otherwise: bool


def stub_text() -> str:
    """The whole of ``methods.pyi``."""
    items = builtin_items()
    lines = [HEADER]
    on_graph = [method_of(item) for item in items]
    on_node = [_without_first(method_of(item)) for item in items if takes_node_first(item)]
    for name, methods in (("GraphMethods", on_graph), ("NodeMethods", on_node)):
        lines.append(f"class {name}:")
        lines.extend(_class_body(methods))
        lines.append("")
    return "\n".join(lines)


def _class_body(methods: Iterable[Method]) -> Iterator[str]:
    named = {method.name: method for method in methods}
    yield "    # Ops declared elsewhere are found at run time."
    yield "    def __getattr__(self, name: str) -> Callable[..., Any]: ..."
    for method in named.values():
        yield from _method_lines(method, frozenset(named))


def _without_first(method: Method) -> Method:
    return replace(method, parameters=method.parameters[1:])


def _method_lines(method: Method, shadowed: frozenset[str]) -> Iterator[str]:
    def written(annotation: str) -> str:
        return _qualified(annotation, shadowed)

    shown = ["self"]
    starred = False
    for parameter in method.parameters:
        if parameter.keyword_only and not starred:
            shown.append("*")
        starred = starred or parameter.keyword_only or parameter.star == "*"
        shown.append(str(replace(parameter, annotation=written(parameter.annotation))))
    result = written(method.result)
    head = f"    def {method.name}({', '.join(shown)}) -> {result}:"
    if method.spelled_otherwise:
        yield "    @overload"
    yield head
    yield f"        {_docstring(method.doc)}"
    if method.spelled_otherwise:
        yield "    @overload"
        yield f"    def {method.name}(self, *args: Any, **kwargs: Any) -> {result}: ..."


def _docstring(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    return f'"""{escaped}{" " if escaped.endswith(chr(34)) else ""}"""'


def _qualified(annotation: str, shadowed: frozenset[str]) -> str:
    """The annotation, with ``builtins.`` before the names that a method of the class hides."""
    tree = ast.parse(annotation, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _BUILTINS and node.id in shadowed:
            node.id = f"builtins.{node.id}"
    return ast.unparse(tree)


# --------------------------------------------------------------------------- from records to methods


def method_of(item: Item) -> Method:
    """The stub of an op or builder as a method of a graph."""
    return _op_method(item) if isinstance(item, Op) else _builder_method(item)


def _op_method(op: Op) -> Method:
    hints = typing.get_type_hints(op.infer, include_extras=True)
    positional = [_op_parameter(p, hints[p.name]) for p in op.params if not p.keyword_only]
    keywords = [_op_parameter(p, hints[p.name]) for p in op.params if p.keyword_only]
    if "shape" not in op.by_name:
        # The stated shape is accepted by name and as one more argument at the end.
        positional.append(Parameter("shape", "Any", "None"))
    result = "tuple[Node, ...]" if has_several_results(op) else "Node"
    return Method(
        op.name,
        summary(op),
        (*positional, *keywords, _LABEL),
        result,
        op.rules.spelling is not None,
    )


_LABEL = Parameter("label", "str | None", "None", keyword_only=True)


def _op_parameter(param: Param, hint: Any) -> Parameter:
    if param.is_operand:
        annotation = "Sequence[NodeLike]" if param.variadic else "NodeLike"
    elif isinstance(param.kind, Attribute) and param.kind.name in _ATTRIBUTES:
        annotation = _ATTRIBUTES[param.kind.name]
    else:
        annotation = _choices(hint)
    if param.optional or param.default is None:
        annotation += " | None"
    default = None if param.default is REQUIRED else _default(param.default)
    return Parameter(param.name, annotation, default, keyword_only=param.keyword_only)


def _choices(hint: Any) -> str:
    """``Literal[...]`` of an annotation that has one; Any for the rest."""
    for part in (hint, *typing.get_args(hint)):
        if typing.get_origin(part) is Literal:
            return f"Literal[{', '.join(map(repr, typing.get_args(part)))}]"
    return "Any"


def _default(value: Any) -> str:
    """The default as source where it is simple, else ``...``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "..."
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return repr(value)
    return "..."


_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


def _builder_method(item: Any) -> Method:
    signature = inspect.signature(item.function)
    parameters = []
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.name == "label":
            continue
        star = _STARS.get(parameter.kind.name, "")
        annotation = _builder_annotation(parameter.annotation, node="NodeLike")
        default = None if parameter.default is REQUIRED else _default(parameter.default)
        keyword_only = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
        parameters.append(Parameter(parameter.name, annotation, default, star, keyword_only))
    result = _builder_annotation(signature.return_annotation)
    rest = [p for p in parameters if p.star == "**"]
    named = [p for p in parameters if p.star != "**"]
    return Method(item.name, summary(item), (*named, _LABEL, *rest), result, False)


def _builder_annotation(annotation: Any, node: str = "Node") -> str:
    """A builder's own annotation where the stub can name everything in it, else Any."""
    if not isinstance(annotation, str):
        return "Any"
    tree = ast.parse(annotation, mode="eval")
    for part in ast.walk(tree):
        if isinstance(part, ast.Attribute):
            return "Any"
        if isinstance(part, ast.Name):
            if part.id not in _BUILTINS and part.id not in _IMPORTED:
                return "Any"
            part.id = node if part.id == "Node" else part.id
    return ast.unparse(tree)
