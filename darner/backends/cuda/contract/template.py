"""Products of matrices on tensor cores: ``dot_general`` of views of bf16 or f16, with the element-wise nodes after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.elements.elements import can_emit
from ....codegen.simt.contract.epilogue import Parts, Results, sum_of_parts
from ....codegen.simt.contract.product import Product, part_bytes, product_of
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Binding, Dispatch, Stage, Written, operand_number
from ....codegen.simt.machine import GRANULE
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ..instructions.warp import cores_of
from ..machine import Machine
from .mma import MmaCut, Source, write_mma
from .operands import Layout, layout_of, packed_elements, packed_layout
from .pack import pack_stage
from .store import result_map
from .wgmma import MappedSource, WgmmaCut, WgmmaKernel


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


def _sink(dispatch: Dispatch, product: Product, parts: int) -> SinkOf:
    """What takes the sums of a part: the results, where there is one."""
    if parts == 1:
        return lambda part: Results(dispatch, product)
    return lambda part: Parts(dispatch, product, part, parts)


def _packs(
    spec: Spec, machine: Machine, product: Product, givens: Sequence[Given]
) -> list[Stage]:
    """The launches that pack operands."""
    return [
        pack_stage(spec, machine, product, side, given.layout, given.start)
        for side, given in enumerate(givens)
        if given.packed
    ]


def _written(
    spec: Spec, machine: Machine, product: Product, parts: int, stages: list[Stage], scratch: int
) -> Written:
    """A kernel whose sums are all computed."""
    if parts > 1:
        second = Dispatch(spec, machine, threads=64, whole=product.in_fours)
        stages = [*stages, sum_of_parts(second, product, parts)]
    return Written(tuple(stages), scratch)


def write_by_mma(spec: Spec, machine: Machine, product: Product, cut: MmaCut) -> Written:
    """The launches of a product by ``mma.sync``."""
    tile, parts = cut.tile, cut.parts
    givens, scratch = givens_of(product, parts * part_bytes(product) if parts > 1 else 0)
    stages = _packs(spec, machine, product, givens)
    dispatch = Dispatch(spec, machine, threads=tile.threads, whole=product.in_fours)
    cores = cores_of(dispatch.builder, machine, tile.shared_bytes)
    sink = _sink(dispatch, product, parts)
    sources = []
    for side, given in enumerate(givens):
        layout = given.layout
        if given.packed:
            count = packed_elements(layout)
            memory = dispatch.scratch(given.start, count, layout.dtype, vector=layout.piece)
        else:
            leaf = product.operands[side].leaf
            memory = dispatch.as_vectors(dispatch.operand(leaf), layout.piece)
        sources.append(Source(layout, memory, product.n if side else product.m, product.k))
    write_mma(dispatch, cores, product, cut, sources, sink)
    stages.append(dispatch.finish(cut.raster(product).tiles))
    return _written(spec, machine, product, parts, stages, scratch)


def write_by_wgmma(spec: Spec, machine: Machine, product: Product, cut: WgmmaCut) -> Written:
    """The launches of a product by ``wgmma``."""
    parts = cut.parts
    givens, scratch = givens_of(product, parts * part_bytes(product) if parts > 1 else 0)
    stages = _packs(spec, machine, product, givens)
    dispatch = Dispatch(spec, machine, threads=cut.tile.threads, whole=product.in_fours)
    sources = []
    for side, given in enumerate(givens):
        layout = given.layout
        binding = Binding("operand", operand_number(product.operands[side].leaf))
        if given.packed:
            nbytes = packed_elements(layout) * layout.dtype.itemsize
            binding = Binding("scratch", given.start, nbytes)
        sources.append(MappedSource(layout, binding))
    result = result_map(product, spec.body) if parts == 1 else None
    sink = _sink(dispatch, product, parts)
    WgmmaKernel(dispatch, product, cut, sources, result, sink).write()
    stages.append(dispatch.finish(cut.blocks))
    return _written(spec, machine, product, parts, stages, scratch)
