"""Products of matrices on tensor cores: ``dot_general`` of views of bf16 or f16, with the element-wise nodes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import cast

from ....codegen.elements.elements import can_emit
from ....codegen.simt.contract.epilogue import Parts, Results, sum_of_parts
from ....codegen.simt.contract.product import Product, part_bytes, product_of
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Binding, Dispatch, Stage, Written, operand_number
from ....codegen.simt.machine import GRANULE
from ....codegen.simt.machine import Machine as AnyMachine
from ....codegen.simt.template import Template, Variants
from ....graph import dtypes
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import is_tf32, is_view
from ..instructions.warp import Cores, cores_of
from ..machine import TENSOR_CORES, Machine
from ..printer import Printer
from .ahead import bring_operand
from .fma import FmaCut, write_fma
from .loaders import Source
from .mma import MmaCut, write_mma
from .operands import PIECE, Layout, layout_of, loose_layout, packed_elements, packed_layout
from .pack import pack_stage
from .plan import FEW, LEAST_PLAIN, SHORT, Cut, ranked, ranked_plain
from .store import result_map
from .tiles import WgmmaCut
from .wgmma import MappedSource, WgmmaKernel


def tensor_product(spec: Spec, machine: Machine) -> Product | None:
    """The product of a spec, if a machine's tensor cores multiply its operands: both of bf16, both of f16, or both rounded to tf32."""
    product = memory_product(spec, machine, tf32=True, halves=True)
    kind = None if product is None else product.operands[0].leaf.dtype.name
    if product is None or kind not in ("bf16", "f16", "f32"):
        return None
    if kind == "f32":
        # Nothing else rounds to tf32: all sizes are taken.
        return product if _is_rounded(product) else None
    # Of few rows, the common template reads a matrix as fast.
    small = min(product.m, product.n) <= FEW or product.k < SHORT
    return None if small else product


def plain_product(spec: Spec, machine: Machine) -> Product | None:
    """The product of a spec, if its operands are f32 and it is large enough to be worth tiles that copies bring."""
    product = memory_product(spec, machine)
    if product is None or product.operands[0].leaf.dtype is not dtypes.f32:
        return None
    return product if min(product.m, product.n, product.k) >= LEAST_PLAIN else None


def memory_product(
    spec: Spec, machine: Machine, *, tf32: bool = False, halves: bool = False
) -> Product | None:
    """The product of a spec whose sums are f32, and whose operands are floats of one type that lie in memory; with columns beside each other in the result."""
    if machine.capability < TENSOR_CORES or spec.kind != "contract" or not can_emit(spec.body):
        return None
    product = product_of(spec, tf32=tf32, halves=halves)
    if product is None or product.node.dtype.name not in ("f32", "bf16", "f16"):
        return None
    leaves = [operand.leaf for operand in product.operands]
    alike = leaves[0].dtype is leaves[1].dtype
    if not alike or any(leaf.op.facts.decodes for leaf in leaves):
        return None
    if not product.count * product.m * product.n * product.k:
        return None
    rows, columns = product.rows, product.columns
    along_rows = rows and rows[-1].apart == 1 and not (columns and columns[-1].apart == 1)
    return product.turned() if along_rows else product


def _is_rounded(product: Product) -> bool:
    """Whether both operands are rounded to tf32."""
    found = []
    for node in product.node.operands:
        while is_view(node):
            (node,) = node.operands
        found.append(is_tf32(node))
    return all(found)


@dataclass(frozen=True)
class Given:
    """An operand as the product's kernel reads it: how it lies, and where in scratch memory if it is packed there first."""

    layout: Layout
    start: int = -1

    @property
    def packed(self) -> bool:
        """Whether a launch of its own packs it."""
        return self.start >= 0


def givens_of(
    product: Product, begin: int, *, transposed: bool | None = None, loose: bool = False
) -> tuple[list[Given], int]:
    """Both operands, packed ones from byte ``begin`` of scratch memory on; and the bytes of scratch memory.

    ``transposed`` says whether operands may be contiguous along rows or columns: for tensor cores those of 16 bits may. With ``loose`` those are not packed that can be read word by word.
    """
    found = []
    for side in range(2):
        dtype = product.operands[side].leaf.dtype
        free = dtype.itemsize == 2 if transposed is None else transposed
        layout = layout_of(product, side, transposed=free)
        if layout is None and loose:
            layout = loose_layout(product, side, transposed=free)
        if layout is not None:
            found.append(Given(layout))
            continue
        layout = packed_layout(product, side, dtype, transposed=free)
        start = ceil_div(begin, GRANULE) * GRANULE
        found.append(Given(layout, start))
        begin = start + packed_elements(layout) * layout.dtype.itemsize
    return found, begin


def sink_of(dispatch: Dispatch, product: Product, parts: int) -> SinkOf:
    """What takes the sums of a part: the results, where there is one."""
    if parts == 1:
        return lambda part: Results(dispatch, product)
    return lambda part: Parts(dispatch, product, part, parts)


def _packs(spec: Spec, machine: Machine, product: Product, givens: Sequence[Given]) -> list[Stage]:
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

    def write(dispatch: Dispatch, cores: Cores, sources: Sequence[Source], sink: SinkOf) -> None:
        write_mma(dispatch, cores, product, cut, sources, sink)

    return _write_ring(spec, machine, product, cut, write)


def write_by_fma(spec: Spec, machine: Machine, product: Product, cut: FmaCut) -> Written:
    """The launches of a product of f32 without tensor cores."""

    def write(dispatch: Dispatch, cores: Cores, sources: Sequence[Source], sink: SinkOf) -> None:
        write_fma(dispatch, cores, product, cut, sources, sink)

    return _write_ring(spec, machine, product, cut, write)


def _write_ring(
    spec: Spec,
    machine: Machine,
    product: Product,
    cut: MmaCut | FmaCut,
    write: Callable[[Dispatch, Cores, Sequence[Source], SinkOf], None],
) -> Written:
    """The launches of a product whose tiles ``cp.async`` brings."""
    tile, parts = cut.tile, cut.parts
    begin = parts * part_bytes(product) if parts > 1 else 0
    transposed = True if isinstance(cut, FmaCut) else None
    lying = product
    if isinstance(cut, MmaCut) and product.halves:
        # A warp has as many columns of either half.
        lying = product.interleaved(cut.tile.wn // 2)
    givens, scratch = givens_of(lying, begin, transposed=transposed, loose=cut.loose)
    stages = _packs(spec, machine, lying, givens)
    dispatch = Dispatch(spec, machine, threads=tile.threads, whole=product.taken.in_fours)
    bring_operand(dispatch, product, cut.raster(product).tiles)
    cast(Printer, dispatch.builder).blocks_together(tile.blocks)
    cores = cores_of(dispatch.builder, machine, tile.shared_bytes)
    sink = sink_of(dispatch, product, parts)
    sources = []
    for side, given in enumerate(givens):
        layout = given.layout
        leaf = product.operands[side].leaf
        count = packed_elements(layout) if given.packed else prod(sizes(leaf))
        if given.packed:
            memory = dispatch.scratch(given.start, count, layout.dtype, vector=layout.piece)
        else:
            item = PIECE if layout.whole else 4
            memory = dispatch.as_vectors(dispatch.operand(leaf), item // layout.dtype.itemsize)
        extent = product.n if side else product.m
        sources.append(Source(layout, memory, extent, product.k, count))
    write(dispatch, cores, sources, sink)
    stages.append(dispatch.finish(cut.raster(product).tiles))
    return _written(spec, machine, product, parts, stages, scratch)


def write_by_wgmma(spec: Spec, machine: Machine, product: Product, cut: WgmmaCut) -> Written:
    """The launches of a product by ``wgmma``."""
    parts = cut.parts
    givens, scratch = givens_of(product, parts * part_bytes(product) if parts > 1 else 0)
    stages = _packs(spec, machine, product, givens)
    dispatch = Dispatch(spec, machine, threads=cut.tile.threads, whole=product.taken.in_fours)
    bring_operand(dispatch, product, cut.blocks)
    sources = []
    for side, given in enumerate(givens):
        layout = given.layout
        binding = Binding("operand", operand_number(product.operands[side].leaf))
        if given.packed:
            nbytes = packed_elements(layout) * layout.dtype.itemsize
            binding = Binding("scratch", given.start, nbytes)
        sources.append(MappedSource(layout, binding))
    whole = parts == 1 and cut.sharing == 1
    result = result_map(product, spec.body) if whole else None
    sink = sink_of(dispatch, product, parts)
    WgmmaKernel(dispatch, product, cut, sources, result, sink).write()
    stages.append(dispatch.finish(cut.blocks))
    return _written(spec, machine, product, parts, stages, scratch)


def _fits(spec: Spec, machine: AnyMachine) -> bool:
    return isinstance(machine, Machine) and tensor_product(spec, machine) is not None


def _write(spec: Spec, machine: AnyMachine) -> Written:
    return next(iter(_variants(spec, machine).values()))()


def _variants(spec: Spec, machine: AnyMachine) -> Variants:
    """The ways to write a product, by their names: what is expected to be best first."""
    product = tensor_product(spec, machine) if isinstance(machine, Machine) else None
    if product is None or not isinstance(machine, Machine):
        raise InternalError("a kernel that tensor cores cannot multiply came to their template")
    return product_variants(spec, machine, product, "")


def product_variants(spec: Spec, machine: Machine, product: Product, kind: str) -> Variants:
    """The ways to write a product of a kernel; of ``f32`` as it is without tensor cores."""
    if kind == "f32":
        return {
            cut.name: partial(write_by_fma, spec, machine, product, cut)
            for cut in ranked_plain(product, machine)
        }
    givens, _ = givens_of(product, 0)
    layouts = givens[0].layout, givens[1].layout
    return {
        cut.name: partial(_write_cut, spec, machine, product, cut)
        for cut in ranked(product, layouts, machine)
    }


def _write_cut(spec: Spec, machine: Machine, product: Product, cut: Cut) -> Written:
    if isinstance(cut, WgmmaCut):
        return write_by_wgmma(spec, machine, product, cut)
    return write_by_mma(spec, machine, product, cut)


TENSOR_CONTRACT = Template("tensor contract", _fits, _write, _variants)


# --------------------------------------------------------------------------- f32 as it is


def _fits_plain(spec: Spec, machine: AnyMachine) -> bool:
    return isinstance(machine, Machine) and plain_product(spec, machine) is not None


def _write_plain(spec: Spec, machine: AnyMachine) -> Written:
    return next(iter(_plain_variants(spec, machine).values()))()


def _plain_variants(spec: Spec, machine: AnyMachine) -> Variants:
    """The ways to write a product of f32, by their names: what is expected to be best first."""
    product = plain_product(spec, machine) if isinstance(machine, Machine) else None
    if product is None or not isinstance(machine, Machine):
        raise InternalError("a kernel that is no product of f32 came to their template")
    return product_variants(spec, machine, product, "f32")


PLAIN_CONTRACT = Template("f32 contract", _fits_plain, _write_plain, _plain_variants)
