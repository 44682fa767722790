"""Tiles of patches on their way to shared memory: pieces of 16 bytes from where an image has them, zeros where a tap lies outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Value
from ....codegen.simt.dispatch import Dispatch
from ....graph.integers import ceil_div
from ..contract.loaders import ROW, Block, Loader, PieceLoader, Shifts, Source, nothing
from ..contract.operands import PIECE
from ..instructions.warp import Cores
from .problem import Windows


@dataclass(frozen=True)
class PatchSource(Source):
    """An operand of patches."""

    windows: Windows

    @property
    def loader(self) -> type[Loader]:
        """What brings its tiles."""
        return RowLoader if self.layout.along == "summed" else ColumnLoader


class RowLoader(PieceLoader):
    """Brings patches whose rows are pixels: terms are taps and channels.

    Which taps of a row lie inside of the image is a word: a bit for each tap of each axis.
    """

    def __init__(
        self, dispatch: Dispatch, cores: Cores, source: PatchSource, block: Block, shifts: Shifts
    ) -> None:
        super().__init__(dispatch, cores, source, block, shifts)
        self.windows = source.windows
        b = self.builder
        axes = self.windows.axes
        self.firsts: list[int | None] = []
        bits = 0
        for axis in axes:
            self.firsts.append(bits if axis.guarded else None)
            bits += axis.taps if axis.guarded else 0
        self.masks: list[Value | None] = []
        for i in range(self.lines // self.apart):
            row = b.let(b.min(block.first + (self.line + i * self.apart), source.extent - 1))
            self.masks.append(self._mask(row) if bits else None)

    def _mask(self, row: Value) -> Value:
        """Which taps of a row are inside."""
        b, places, windows = self.builder, self.elements.places, self.windows
        shape = [windows.batch, *(axis.pixels for axis in windows.axes)]
        _, *pixel = places.split(row, shape)
        mask: Value | None = None
        for axis, i, first in zip(windows.axes, pixel, self.firsts, strict=True):
            if first is None:
                continue
            corner = places.add(places.mul(i, axis.step), axis.offset)
            for tap in range(axis.taps):
                if axis.never:
                    continue
                own = places.value(places.add(corner, tap * axis.delta))
                bit = b.bits(b.let(own < axis.size)) << (first + tap)
                mask = b.let(bit if mask is None else mask | bit)
        return b.index(0) if mask is None else mask

    def start(self, block: Value, stage: Value) -> Callable[[], None]:
        """See ``Loader``."""
        b, source, windows = self.builder, self.source, self.windows
        places, piece_size = self.elements.places, self.source.layout.piece
        piece = b.let(block * self.across + self.piece)
        count = source.terms // piece_size
        whole = count % self.across == 0
        # Blocks behind the last are copied too: they are not multiplied, but lie somewhere.
        inside = b.let(b.min(piece, count - 1))
        shape = [*(axis.taps for axis in windows.axes), windows.channels // piece_size]
        *taps, channel = places.split(inside, shape)
        moved: Number = channel
        shifts: list[Value] = []
        for axis, tap, first in zip(windows.axes, taps, self.firsts, strict=True):
            far = axis.delta * axis.stride // piece_size
            moved = places.add(moved, places.mul(tap, far))
            if first is not None:
                shifts.append(b.let(places.value(places.add(tap, first))))
        moved = self._kept(moved)
        exists = None if whole else b.let(b.choose(piece < count, b.index(1), 0))
        for base, to, mask in zip(self.bases, self.tos, self.masks, strict=True):
            hit = exists
            if mask is not None:
                for shift in shifts:
                    own = mask >> shift
                    hit = own if hit is None else hit & own
            item = places.value(places.add(base, moved))
            if hit is None:
                self.cores.copy_async(b.let(stage + to), source.memory, b.let(item), PIECE)
                continue
            hit = b.let(hit & 1)
            at = b.let(b.choose(hit != 0, item, 0))
            self.cores.copy_async(b.let(stage + to), source.memory, at, b.let(hit << 4))
        return nothing


class ColumnLoader(PieceLoader):
    """Brings patches whose columns are taps and channels: terms are pixels. A thread has one tap, and the pixels of its lines."""

    def __init__(
        self, dispatch: Dispatch, cores: Cores, source: PatchSource, block: Block, shifts: Shifts
    ) -> None:
        super().__init__(dispatch, cores, source, block, shifts)
        self.windows = windows = source.windows
        b, places, piece = self.builder, self.elements.places, source.layout.piece
        last = ceil_div(source.extent, piece) - 1
        own = b.let(b.min(b.let(block.first // piece + self.piece), last))
        shape = [*(axis.taps for axis in windows.axes), windows.channels // piece]
        *taps, _ = places.split(own, shape)
        self.corners = [
            self._kept(places.add(places.mul(tap, axis.delta), axis.offset))
            for axis, tap in zip(windows.axes, taps, strict=True)
        ]

    def start(self, block: Value, stage: Value) -> Callable[[], None]:
        """See ``Loader``."""
        b, source, windows = self.builder, self.source, self.windows
        places, layout = self.elements.places, self.source.layout
        terms = ROW // layout.dtype.itemsize
        shape = [windows.batch, *(axis.pixels for axis in windows.axes)]
        for i, to in enumerate(self.tos):
            term = b.let(block * terms + (self.line + i * self.apart))
            exists = b.let(term < source.terms)
            image, *pixel = places.split(b.let(b.min(term, source.terms - 1)), shape)
            item = places.add(self.bases[0], places.mul(image, windows.image // layout.piece))
            for axis, own, corner in zip(windows.axes, pixel, self.corners, strict=True):
                far = axis.step * axis.stride // layout.piece
                item = places.add(item, places.mul(own, far))
                if axis.guarded:
                    at = places.value(places.add(places.mul(own, axis.step), corner))
                    exists = b.let(exists & (at < axis.size))
            nbytes = b.let(b.choose(exists, self.width, 0))
            item = b.let(b.choose(exists, places.value(item), 0))
            self.cores.copy_async(b.let(stage + to), source.memory, item, nbytes)
        return nothing
