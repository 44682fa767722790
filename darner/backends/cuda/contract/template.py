"""Products of matrices on tensor cores: ``dot_general`` of views of bf16 or f16, with the element-wise nodes after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ....codegen.elements.elements import can_emit
from ....codegen.simt.builder import Memory
from ....codegen.simt.contract.epilogue import Parts, Results, sum_of_parts
from ....codegen.simt.contract.product import Product, part_bytes, product_of
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Dispatch, Stage, Written
from ....codegen.simt.machine import GRANULE
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from .mma import MmaTile, Source, block_count, write_mma
from .operands import Layout, layout_of, packed_elements, packed_layout
from .pack import pack_stage


def tensor_product(spec: Spec) -> Product | None:
    """The product of a spec, if tensor cores can multiply its operands: both of bf16 or both of f16."""
    if spec.kind != "contract" or not can_emit(spec.body):
        return None
    product = product_of(spec)
    if product is None or 0 in (product.count, product.m, product.n, product.k):
        return None
    kinds = {operand.leaf.dtype.name for operand in product.operands}
    if len(kinds) != 1 or not kinds <= {"bf16", "f16"}:
        return None
    if any(operand.leaf.op.facts.decodes for operand in product.operands):
        return None
    if product.node.dtype.name not in ("f32", "bf16", "f16"):
        return None
    return product


@dataclass(frozen=True)
class Given:
    """An operand as the product's kernel reads it: how it lies, and where in scratch memory if it is packed there first."""

    layout: Layout
    start: int = -1

    @property
    def packed(self) -> bool:
        """Whether a launch of its own packs it."""
        return self.start >= 0


def givens_of(product: Product, begin: int) -> tuple[list[Given], int]:
    """Both operands, packed ones from byte ``begin`` of scratch memory on; and the bytes of scratch memory."""
    found = []
    for side in range(2):
        layout = layout_of(product, side)
        if layout is not None:
            found.append(Given(layout))
            continue
        layout = packed_layout(product, side, product.operands[side].leaf.dtype)
        start = ceil_div(begin, GRANULE) * GRANULE
        found.append(Given(layout, start))
        begin = start + packed_elements(layout) * layout.dtype.itemsize
    return found, begin


def write_by_mma(spec: Spec, machine, product: Product, tile: MmaTile, parts: int) -> Written:
    """The launches of a product by ``mma.sync``."""
    from ..instructions.warp import cores_of
    begin = parts * part_bytes(product) if parts > 1 else 0
    givens, scratch = givens_of(product, begin)
    stages = [
        pack_stage(spec, machine, product, side, given.layout, given.start)
        for side, given in enumerate(givens)
        if given.packed
    ]
    dispatch = Dispatch(spec, machine, threads=tile.threads, whole=product.in_fours)
    cores = cores_of(dispatch.builder, machine, tile.shared_bytes)
    sources = []
    for side, given in enumerate(givens):
        layout = given.layout
        if given.packed:
            memory = dispatch.scratch(
                given.start, packed_elements(layout), layout.dtype, vector=layout.piece
            )
        else:
            leaf = product.operands[side].leaf
            memory = dispatch.as_vectors(dispatch.operand(leaf), layout.piece)
        extent = product.n if side else product.m
        sources.append(Source(layout, memory, extent, product.k))
    if parts == 1:
        sink = lambda part: Results(dispatch, product)
    else:
        sink = lambda part: Parts(dispatch, product, part, parts)
    write_mma(dispatch, cores, product, tile, parts, sources, sink)
    stages.append(dispatch.finish(block_count(product, tile.bm, tile.bn, parts)))
    if parts > 1:
        second = Dispatch(spec, machine, threads=64, whole=product.in_fours)
        stages.append(sum_of_parts(second, product, parts))
    return Written(tuple(stages), scratch)
