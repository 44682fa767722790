"""Convolutions by ``wgmma``: patches are brought by tensor maps that know about them (im2col), weights by tiled ones (sm_90a).

A box of patches is 64 channels of neighbouring pixels, all of one tap: the map goes on from row to row and from image to image, and has zeros outside. It is a tile of rows of 128 bytes as products want it, along K where rows are
pixels, along columns where terms are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Value
from ....codegen.simt.contract.product import part_bytes
from ....codegen.simt.dispatch import Binding, Dispatch, Stage, Written, operand_number
from ..contract.operands import Layout, lying_layout
from ..contract.store import result_map
from ..contract.tiles import WgmmaCut
from ..contract.wgmma import Box, MappedSource, WgmmaKernel
from ..machine import Machine
from ..stage import TensorMap
from .problem import Conv, Part, Window, Windows, parts_of
from .sinks import sink_of, with_parts_added

CHUNK = 64
"""Channels of a box: 128 bytes of 16-bit floats."""
MOST_CORNER = {1: 32767, 2: 127, 3: 15}
"""How far from the image's ends the first and the last pixel may be, by the number of axes."""
MOST_TAP = {1: 65535, 2: 255, 3: 31}
"""How far a tap may be from its pixel."""
MOST_STEP = 8


def lower_corner(axis: Window) -> int:
    """Where the tap that reads first meets the first pixel."""
    return axis.offset + min(0, (axis.taps - 1) * axis.delta)


def upper_corner(axis: Window) -> int:
    """How far behind the image's last element that tap meets the last pixel."""
    return lower_corner(axis) + (axis.pixels - 1) * axis.step - (axis.size - 1)


def is_mapped(conv: Conv) -> bool:
    """Whether tensor maps can say what a convolution reads."""
    if conv.kind not in ("bf16", "f16") or any(conv.packs) or conv.channels % CHUNK:
        return False
    if any(seen.offset for seen in conv.seen):
        return False
    return all(_is_mapped(part.windows) for part in parts_of(conv))


def _is_mapped(windows: Windows) -> bool:
    count = len(windows.axes)
    for axis in windows.axes:
        corners = abs(lower_corner(axis)), abs(upper_corner(axis))
        far = (axis.taps - 1) * abs(axis.delta)
        if axis.never or max(corners) > MOST_CORNER[count] or far > MOST_TAP[count]:
            return False
        if axis.step > MOST_STEP:
            return False
    return True


@dataclass(frozen=True)
class PatchMap(MappedSource):
    """An operand of patches."""

    windows: Windows

    def described(self, rows: int, kind: str) -> TensorMap:
        """The tensor map; where terms are pixels, a box has 64 of them."""
        windows = self.windows
        axes = windows.axes[::-1]
        pixels = rows if self.layout.along == "summed" else CHUNK
        strides = (*(axis.stride for axis in axes), windows.image)
        return TensorMap(
            self.binding,
            0,
            kind,
            (windows.channels, *(axis.size for axis in axes), windows.batch),
            tuple(2 * stride for stride in strides),
            (CHUNK, pixels),
            swizzle=128,
            lower=tuple(lower_corner(axis) for axis in axes),
            upper=tuple(upper_corner(axis) for axis in axes),
            steps=tuple(axis.step for axis in axes),
        )

    def box(self, kernel: WgmmaKernel, term: Value, first: Value) -> Box:
        """The box of rows (or columns) from the first on, of a block of terms."""
        if self.layout.along == "summed":
            return self._box(kernel, term, first)
        return self._box(kernel, first, term)

    def _box(self, kernel: WgmmaKernel, number: Value, pixel: Value) -> Box:
        """The patches of pixels from one on: 64 channels from a number on that counts taps and channels."""
        places, windows = kernel.places, self.windows
        shape = [*(axis.taps for axis in windows.axes), windows.channels]
        _, *taps, channel = places.split(number, [1 << 24, *shape])
        image, *pixels = places.split(pixel, [1 << 24, *(axis.pixels for axis in windows.axes)])
        at: list[Number] = [channel]
        moved = []
        for axis, own, tap in reversed(list(zip(windows.axes, pixels, taps, strict=True))):
            at.append(places.add(places.mul(own, axis.step), lower_corner(axis)))
            # Taps of a gradient go backwards.
            forward = tap if axis.delta > 0 else places.sub(axis.taps - 1, tap)
            moved.append(places.mul(forward, abs(axis.delta)))
        values = [places.value(x) for x in (*at, image)]
        return Box(values, [places.value(x) for x in moved])


@dataclass(frozen=True)
class WeightMap(MappedSource):
    """The weights of a gradient towards the input: columns lie beside each other, terms are taps and channels.

    Attributes:
        offset: of the first tap.
        taps: sizes and strides of the taps' axes.
        channels: those that are summed.
        apart: elements from one to the next.
        columns: how many there are.
    """

    offset: int
    taps: Sequence[tuple[int, int]]
    channels: int
    apart: int
    columns: int

    def described(self, rows: int, kind: str) -> TensorMap:
        """The tensor map: boxes of 64 columns by 64 channels of one tap."""
        taps = self.taps[::-1]
        return TensorMap(
            self.binding,
            2 * self.offset,
            kind,
            (self.columns, self.channels, *(size for size, _ in taps)),
            tuple(2 * stride for stride in (self.apart, *(stride for _, stride in taps))),
            (CHUNK, CHUNK, *(1 for _ in taps)),
            swizzle=128,
        )

    def box(self, kernel: WgmmaKernel, term: Value, first: Value) -> Box:
        """The box of columns from the first on, of a block of terms."""
        places = kernel.places
        _, *taps, channel = places.split(term, [1 << 24, *(n for n, _ in self.taps), self.channels])
        return Box((first, *(places.value(x) for x in (channel, *reversed(taps)))))


def layouts_of(part: Part) -> tuple[Layout, Layout] | None:
    """How both operands lie, in whole pieces."""
    found = [lying_layout(part.product, side) for side in range(2)]
    if found[0] is None or found[1] is None:
        return None
    return found[0], found[1]


def _source(conv: Conv, part: Part, side: int, layout: Layout) -> MappedSource:
    given = 1 - side if conv.to_weight else side
    binding = Binding("operand", operand_number(conv.seen[given].base))
    if side == part.side:
        return PatchMap(layout, binding, part.windows)
    if not conv.to_input:
        return MappedSource(layout, binding)
    # [channels of the gradient, taps, channels of the input]
    own = conv.others
    strides = [stride * own for stride in _strides(conv.kernel)]
    patches = conv.patches
    phase = part.windows.axes
    spaced = [
        (axis.taps, stride * spacing)
        for axis, stride, spacing in zip(phase, strides, patches.spacing, strict=True)
    ]
    first = part.product.operands[1].offset
    return WeightMap(layout, binding, first, spaced, conv.channels, conv.taps * own, own)


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def write_mapped(conv: Conv, machine: Machine, cut: WgmmaCut) -> Written:
    """The launches of a convolution by ``wgmma``."""
    stages: list[Stage] = []
    scratch = 0
    for part in parts_of(conv):
        product, layouts = part.product, layouts_of(part)
        if layouts is None:
            continue
        dispatch = Dispatch(conv.spec, machine, threads=cut.tile.threads, whole=product.in_fours)
        sources = [_source(conv, part, side, layouts[side]) for side in range(2)]
        result = result_map(product, conv.spec.body) if cut.parts == 1 else None
        own = cut.of(product, machine.processors)
        WgmmaKernel(
            dispatch, product, own, sources, result, sink_of(dispatch, product, cut.parts)
        ).write()
        stages.append(dispatch.finish(own.blocks))
        stages += with_parts_added(conv.spec, machine, product, cut.parts)
        scratch = max(scratch, cut.parts * part_bytes(product) if cut.parts > 1 else 0)
    return Written(tuple(stages), scratch)
