"""Products that share an operand, as one product.

Such a rule has many roots at once and any number of them, so it is not a row of the table: it looks at the whole e-graph, and makes every group
once, of all its members, in the order in which their weights are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.op import OPS
from .match import Value, add_call
from .saturate import EGraph

JOINT = "matmuls of one operand"
LABEL = "MatMul(x,…)→MatMul(x,concat)"


def join_products(egraph: EGraph) -> None:
    """``x @ a``, ``x @ b``, ... with parameters stored side by side: slices of ``x @ concat(a, b, ...)``."""
    for name, axis in (("matmul", 1), ("matmul_bt", 0)):
        groups: dict[tuple[int, int], dict[int, int]] = {}
        for index, node in enumerate(egraph.nodes):
            if node.op is None or node.op.name != name:
                continue
            weight = egraph.value(node.children[1])
            if weight.layout is None or weight.rank != 2:
                continue
            block, place = weight.layout
            shared = egraph.classes[node.children[0]]
            groups.setdefault((shared, block), {}).setdefault(place, index)
        for (shared, block), found in sorted(groups.items()):
            places = sorted(found)
            whole = places == list(range(places[0], places[0] + len(places)))
            if len(found) > 1 and whole and (name, shared, block) not in egraph.joined:
                egraph.joined.add((name, shared, block))
                _join(egraph, name, axis, shared, [found[place] for place in places])


def _join(egraph: EGraph, name: str, axis: int, shared: int, products: Sequence[int]) -> None:
    x = egraph.value(shared)
    weights = [egraph.value(egraph.nodes[index].children[1]) for index in products]
    sizes = [weight.shape[axis] for weight in weights]
    if any(not isinstance(size, int) for size in sizes):
        return

    def product() -> Value:
        slots = ("inputs",) * len(weights)
        joined = add_call(OPS["concat"], slots, {"axis": axis}, weights, egraph.add)
        return add_call(OPS[name], ("a", "b"), {}, [x, joined], egraph.add)

    start = 0
    for index, size in zip(products, sizes, strict=True):
        egraph.apply(
            JOINT,
            index,
            lambda s=start, n=size: _part(egraph, product(), s, n),  # type: ignore[misc]
            LABEL,
        )
        start += int(size)
    egraph.count(JOINT)


def _part(egraph: EGraph, whole: Value, start: int, size: int) -> Value:
    """Columns of a matrix, or of the last axis of anything."""
    starts = [0] * (whole.rank - 1) + [start]
    stops = [*whole.shape[:-1], start + size]
    attrs = {"starts": starts, "stops": stops, "steps": None}
    return add_call(OPS["slice"], ("x",), attrs, [whole], egraph.add)
