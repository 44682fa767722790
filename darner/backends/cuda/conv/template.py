"""Convolutions with channels last: which specs there is code for, and how one is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import cast

from ....codegen.simt.contract.product import Product, View, part_bytes
from ....codegen.simt.dispatch import Dispatch, Stage, Written
from ....codegen.simt.machine import GRANULE
from ....codegen.simt.machine import Machine as AnyMachine
from ....codegen.simt.template import Template, Variants
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..contract.fma import FmaCut, write_fma
from ..contract.loaders import Source
from ..contract.mma import MmaCut, write_mma
from ..contract.operands import Layout, lying_layout, packed_elements
from ..contract.pack import pack_view
from ..contract.plan import ranked_gathered, ranked_mapped, ranked_plain
from ..contract.template import product_variants
from ..instructions.warp import cores_of
from ..machine import TENSOR_CORES, Machine
from ..printer import Printer
from .fold import fold_stage
from .hopper import is_mapped, layouts_of, write_mapped
from .patches import PatchSource
from .problem import MOST_RANK, MOST_TAPS, Conv, Part, conv_of, kind_of, parts_of
from .sinks import sink_of, with_parts_added

MOST_VARIANTS = 8
"""Ways to cut a product that are worth a try."""
MOST_ELEMENTS = 1 << 31
"""Of an operand or result: places are numbers of 32 bits."""


def wanted(node: Node, machine: Machine) -> bool:
    """Whether a convolution is computed better with channels last: one without groups, of what tensor cores or FMA units multiply."""
    if machine.capability < TENSOR_CORES or int(node.attrs["groups"]) != 1:
        return False
    kind = kind_of(node)
    if kind is None or node.dtype.name not in ("f32", "bf16", "f16"):
        return False
    if not 3 <= node.rank <= MOST_RANK or not all(prod(sizes(x)) for x in (node, *node.operands)):
        return False
    kernel = node.attrs["kernel"] if "kernel" in node.attrs else sizes(node.operands[1])[2:]
    return sum(kernel) <= MOST_TAPS and max(prod(sizes(x)) for x in node.operands) < MOST_ELEMENTS


def _fits(spec: Spec, machine: AnyMachine) -> bool:
    if not isinstance(machine, Machine) or machine.capability < TENSOR_CORES:
        return False
    return conv_of(spec) is not None


def _write(spec: Spec, machine: AnyMachine) -> Written:
    return next(iter(_variants(spec, machine).values()))()


def _variants(spec: Spec, machine: AnyMachine) -> Variants:
    """The ways to write a convolution, by their names: what is expected to be best first."""
    conv = conv_of(spec)
    if conv is None or not isinstance(machine, Machine):
        raise InternalError("a kernel without a convolution came to their template")
    if is_product(conv):
        (part,) = parts_of(replace(conv, as_it_is=True))
        return product_variants(spec, machine, part.product, conv.kind)
    parts = parts_of(conv)
    largest = max(parts, key=lambda part: part.product.m * part.product.k).product
    cuts = cuts_of(conv, largest, machine)[:MOST_VARIANTS]
    gathered = {cut.name: partial(write_conv, conv, machine, cut) for cut in cuts}
    if machine.arch != "sm_90a" or machine.emulated or not is_mapped(conv):
        return gathered
    layouts = [layouts_of(part) for part in parts]
    if layouts[0] is None or None in layouts:
        return gathered
    best = ranked_mapped(largest, layouts[0], machine, bytes_read(conv))[:MOST_VARIANTS]
    return {cut.name: partial(write_mapped, conv, machine, cut) for cut in best} | gathered


def is_product(conv: Conv) -> bool:
    """Whether every pixel meets one tap, which lies inside: a product of matrices that lie in memory."""
    parts = parts_of(conv)
    odd = conv.channels != conv.patches.channels
    guarded = any(axis.guarded for part in parts for axis in part.windows.axes)
    # What would be transposed first, as no instruction of a warpgroup multiplies tf32 along rows, is read where it lies.
    transposed = conv.kind == "tf32" and conv.to_weight
    return conv.taps == 1 and len(parts) == 1 and not (odd or guarded or transposed)


def cuts_of(conv: Conv, product: Product, machine: Machine) -> Sequence[MmaCut | FmaCut]:
    """The ways to cut a product with patches: what is expected to be best first."""
    itemsize, read = conv.seen[0].base.dtype.itemsize, bytes_read(conv)
    if conv.kind == "f32":
        # Two blocks of the largest tile leave no registers for where patches lie.
        found = ranked_plain(product, machine, read)
        return [cut for cut in found if cut.tile.blocks != 2]
    return ranked_gathered(product, itemsize, machine, read)


def bytes_read(conv: Conv) -> int:
    """Bytes of both operands: patches lie over each other, so an image is read once, and what is read again is in a cache."""
    elements = sum(prod(sizes(operand)) for operand in conv.main.operands)
    return elements * conv.seen[0].base.dtype.itemsize


# --------------------------------------------------------------------------- operands


def _pack(conv: Conv, machine: Machine, side: int, start: int) -> tuple[Stage, int]:
    """The launch that copies an operand into rows of whole pieces, and the elements that it writes."""
    if side == 0 and conv.folds:
        return fold_stage(conv, machine, start)
    seen, kernel = conv.seen[side], conv.taps
    shape = sizes(conv.main.operands[side])
    if side == 1 and conv.folds and not conv.to_weight:
        shape = [*shape[:-2], shape[-2] * shape[-1]]
    lines: tuple[tuple[int, int], ...] = ((prod(shape[:-1]), shape[-1]),)
    size, apart = shape[-1], 1
    if side == 1 and conv.to_input:
        # A line for each channel of the input and tap.
        lines, (size, apart) = ((shape[-1], 1), (kernel, shape[-1])), (shape[0], prod(shape[1:]))
    pitch = round_up(size, conv.piece)
    view = View(seen.base, "summed", 1, seen.offset, (), lines, ((size, apart),))
    count = prod(n for n, _ in lines)
    layout = Layout(seen.base.dtype, "summed", 0, (), ((count, pitch),), ((size, 1),))
    return pack_view(conv.spec, machine, view, layout, start), packed_elements(layout)


class _Packed:
    """The operands of a convolution that are copied first: their launches, and where they lie."""

    def __init__(self, conv: Conv, machine: Machine, begin: int) -> None:
        self.conv = conv
        self.stages: list[Stage] = []
        self.places: dict[int, tuple[int, int]] = {}
        for side, packs in enumerate(conv.packs):
            if packs:
                start = ceil_div(begin, GRANULE) * GRANULE
                stage, count = _pack(conv, machine, side, start)
                self.stages.append(stage)
                self.places[side] = start, count
                begin = start + count * self._dtype(side).itemsize
        self.scratch = begin

    def _dtype(self, side: int) -> DType:
        return self.conv.seen[side].base.dtype

    def source(self, dispatch: Dispatch, part: Part, side: int) -> Source:
        """An operand of a product."""
        conv, product = self.conv, part.product
        given = 1 - side if conv.to_weight else side
        layout = lying_layout(product, side)
        if layout is None:
            raise InternalError(f"operand {side} of a convolution lies in no whole pieces")
        if given in self.places:
            start, count = self.places[given]
            memory = dispatch.scratch(start, count, self._dtype(given), vector=layout.piece)
        else:
            memory = dispatch.as_vectors(dispatch.operand(conv.seen[given].base), layout.piece)
        extent = product.n if side else product.m
        whole = layout, memory, extent, product.k, memory.vector
        if side != part.side:
            return Source(*whole)
        return PatchSource(*whole, part.windows)


def write_conv(conv: Conv, machine: Machine, cut: MmaCut | FmaCut) -> Written:
    """The launches of a convolution whose products are cut in one way."""
    parts = parts_of(conv)
    begin = max(part_bytes(part.product) for part in parts) * cut.parts if cut.parts > 1 else 0
    packed = _Packed(conv, machine, begin)
    stages = list(packed.stages)
    for part in parts:
        product = part.product
        dispatch = Dispatch(conv.spec, machine, threads=cut.tile.threads, whole=product.in_fours)
        cast(Printer, dispatch.builder).blocks_together(cut.tile.blocks)
        cores = cores_of(dispatch.builder, machine, cut.tile.shared_bytes)
        sink = sink_of(dispatch, product, cut.parts)
        sources = [packed.source(dispatch, part, side) for side in range(2)]
        if isinstance(cut, FmaCut):
            write_fma(dispatch, cores, product, cut, sources, sink)
        else:
            write_mma(dispatch, cores, product, cut, sources, sink)
        stages.append(dispatch.finish(cut.raster(product).tiles))
        stages += with_parts_added(conv.spec, machine, product, cut.parts)
    return Written(tuple(stages), packed.scratch)


TENSOR_CONV = Template("tensor conv", _fits, _write, _variants)
