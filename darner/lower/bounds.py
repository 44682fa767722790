"""Inputs that are indices, and what they must lie below: known before a step runs."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.node import Node
from .plan import Kernel, Plan, Spec
from .strided import VIEWS


def index_bounds(plan: Plan) -> dict[str, int]:
    """The inputs of a plan that are indices as they are given, with the size of the smallest axis they index.

    >>> import darner
    >>> from darner.lower.lower import lower
    >>> g = darner.Graph()
    >>> tokens = g.input("tokens", (4,), "i32")
    >>> g.set_outputs([g.embedding(tokens, g.parameter("table", (50, 8)))])
    >>> index_bounds(lower(g))
    {'tokens': 50}
    """
    found: dict[str, int] = {}
    for kernel in plan.kernels:
        for place, size in _indexed(plan.spec(kernel)):
            buffer = plan.buffers[kernel.operands[place]]
            if buffer.place == "input":
                name = str(buffer.name)
                found[name] = min(size, found.get(name, size))
    return found


def _indexed(spec: Spec) -> Iterator[tuple[int, int]]:
    """Operands of a kernel that are indices, by position, and the size of the axis."""
    for node in spec.body.nodes:
        if "indices" not in node.slots or "axis" not in node.attrs:
            continue
        axis = int(node.attrs["axis"])
        through = node.operands[0] if node.op.name in ("gather", "take_along_axis") else node
        leaf = _leaf(node.operands[node.slots.index("indices")])
        if leaf is not None:
            yield int(str(leaf.name)), int(through.shape[axis])


def index_inputs(plan: Plan, kernel: Kernel) -> list[str]:
    """The inputs that the indices of a kernel are made of, in this kernel or in those before it."""
    writers = {buffer: item for item in plan.kernels for buffer in item.results}
    waiting = [kernel.operands[place] for place in _index_operands(plan.spec(kernel))]
    found: list[str] = []
    seen: set[int] = set()
    while waiting:
        place = waiting.pop()
        buffer = plan.buffers[place]
        if place in seen or buffer.type.dtype.kind not in ("int", "bool"):
            continue
        seen.add(place)
        if buffer.place == "input":
            found.append(str(buffer.name))
        elif place in writers:
            waiting.extend(writers[place].operands)
    return found


def _index_operands(spec: Spec) -> set[int]:
    """Operands of a kernel that its indices are computed from, by position."""
    found: set[int] = set()
    for node in spec.body.nodes:
        if "indices" in node.slots:
            waiting = [node.operands[node.slots.index("indices")]]
            while waiting:
                item = waiting.pop()
                if item.op.name == "input":
                    found.add(int(str(item.name)))
                waiting.extend(item.operands)
    return found


def _leaf(node: Node) -> Node | None:
    """The input that a node is, but for its order and integer type; None where something is computed."""
    while node.op.name in VIEWS or node.op.name in ("cast", "stop_gradient"):
        (node,) = node.operands
    return node if node.op.name == "input" and node.dtype.is_int else None
