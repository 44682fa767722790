"""What can be said of an op without running it, for the command line and the generated pages."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..graph.attributes import Operand
from ..graph.graph import LEAVES
from ..graph.op import BUILDERS, OPS, REQUIRED, Builder, Op, Resolved
from ..graph.types import TupleType

Item: TypeAlias = Op | Builder

RULES = ("reference", "vjp", "jvp", "vmap")


def builtin_items() -> list[Item]:
    """The ops and builders that come with darner, by name."""
    own: list[Item] = [op for op in OPS.values() if op.builtin]
    own += [item for item in BUILDERS.values() if item.builtin]
    return sorted(own, key=lambda item: item.name)


def by_family(items: Iterable[Item]) -> dict[str, list[Item]]:
    """The items grouped by family, both in alphabetical order."""
    groups: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: (item.family, item.name)):
        groups.setdefault(item.family, []).append(item)
    return groups


def kind_of(item: Item) -> str:
    """``primitive``, ``composite`` (made of other ops) or ``builder`` (only adds other ops)."""
    if isinstance(item, Builder):
        return "builder"
    return "composite" if item.is_composite else "primitive"


def supports(item: Item) -> tuple[str, ...]:
    """What an op can be asked for. A builder has nothing of its own: its nodes are other ops."""
    if isinstance(item, Builder):
        return ()
    # A composite runs by its expansion, and a run hands the leaves their values.
    has_reference = item.is_composite or item.name in LEAVES
    found = [
        rule
        for rule in RULES
        if getattr(item.rules, rule) is not None or (rule == "reference" and has_reference)
    ]
    if item.is_composite:
        found.insert(1, "expansion")
    return tuple(found)


def summary(item: Item) -> str:
    """The first sentence of the documentation, on one line."""
    paragraph = " ".join(item.doc.split("\n\n")[0].split())
    match = re.match(r".+?(?<!e\.g)(?<!i\.e)(?<!\.)[.!?](?=\s|$)", paragraph)
    return match.group() if match else paragraph


def arguments_text(item: Item) -> str:
    """The signature without the name: ``(x, axis=-1)``."""
    return item.signature[len(item.name) :]


@dataclass(frozen=True, slots=True)
class Argument:
    """One row of an op's table of arguments.

    Attributes:
        kind: what it is: an operand, or the form of an attribute.
        accepts: for an operand, the element types it takes.
        default: the default as Python writes it, or None when the argument is required.
    """

    name: str
    kind: str
    accepts: str
    default: str | None


def arguments(op: Op) -> list[Argument]:
    """The arguments of an op, in order."""
    rows = []
    for param in op.params:
        accepts = ""
        if isinstance(param.kind, Operand):
            kind = "nodes" if param.variadic else "node"
            accepts = element_types(param.kind)
        else:
            kind = param.kind.name
        if param.optional:
            kind += " or None"
        default = None if param.default is REQUIRED else repr(param.default)
        rows.append(Argument(param.name, kind, accepts, default))
    return rows


def element_types(operand: Operand) -> str:
    """The element types an operand takes, in words."""
    if operand.exact is not None:
        exact = {"int": "integers", "bool": "bool", "tuple": "a node with several results"}
        return exact.get(operand.exact, operand.exact)
    complex_too = operand.allows_complex
    if operand.lowest == "float":
        own = "floats and complex" if complex_too else "floats"
        text = f"{own}; integers and bool become f32"
    elif operand.lowest == "int":
        text = "numbers" if complex_too else "integers and floats"
    else:
        text = "any" if complex_too else "any but complex"
    return text if operand.promotes else f"{text}, kept as it is"


def has_several_results(op: Op) -> bool:
    """Whether a call gives a tuple of nodes.

    The annotation of the shape rule says it, unless it is ``Resolved``; then the op's first sample does.
    """
    result = typing.get_type_hints(op.infer).get("return")
    members = _members(result)
    if any(_is_tuple(part) for part in members):
        return True
    if Resolved in members and op.samples:
        from ..testing import make_case

        nodes = make_case(op, 0).graph.nodes
        return any(node.op is op and isinstance(node.type, TupleType) for node in nodes)
    return False


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; anything else stands alone."""
    if typing.get_origin(hint) is tuple or not typing.get_args(hint):
        return (hint,)
    return typing.get_args(hint)


def _is_tuple(hint: Any) -> bool:
    return hint is tuple or typing.get_origin(hint) is tuple
