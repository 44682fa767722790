"""Barriers in shared memory, and tensor maps."""

from dataclasses import dataclass

import numpy as np

REMOTE = 24
"""Shared addresses of another block of a cluster have its number, plus 1, from this bit on."""


def swizzled(addresses):
    """Where bytes of rows of 128 bytes are, swizzled by 128."""
    return addresses ^ (((addresses >> 7) & 7) << 4)


class Barrier:
    """An mbarrier."""

    def __init__(self, count):
        self.count, self.left, self.bytes, self.phase = count, count, 0, 0

    def change(self, arrivals=0, nbytes=0):
        self.left -= arrivals
        self.bytes += nbytes
        assert self.left >= 0, "more arrive at an mbarrier than it waits for"
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.count, self.phase ^ 1


@dataclass
class Map:
    """A tensor map."""

    address: int
    sizes: tuple
    strides: tuple
    box: tuple
    size: int
    swizzle: int
    lower: tuple = ()
    upper: tuple = ()
    steps: tuple = ()

    def __post_init__(self):
        assert self.address % 16 == 0
        assert all(s % 16 == 0 and s > 0 for s in self.strides)
        assert self.swizzle == 128
        assert self.box[0] * self.size == 128

    def _rows(self, at):
        """Rows of the box in order: their places in the box, and their first byte in memory, None outside."""
        outer = [range(n) for n in self.box[:0:-1]]
        for number, index in enumerate(np.ndindex(*[len(r) for r in outer])):
            where = [a + i for a, i in zip(at[1:], index[::-1], strict=True)]
            inside = all(0 <= w < n for w, n in zip(where, self.sizes[1:], strict=True))
            begin = self.address + sum(w * s for w, s in zip(where, self.strides, strict=True))
            yield number, begin + at[0] * self.size if inside else None

    def load(self, block, to, at):
        assert to % 128 == 0
        count = max(0, min(self.box[0], self.sizes[0] - at[0])) * self.size
        nbytes = 0
        for number, begin in self._rows(at):
            row = np.zeros(128, np.uint8)
            if begin is not None and count:
                row[:count] = block.bytes("global", begin, count)
            places = swizzled(to + number * 128 + np.arange(128))
            block.shared[places] = row
            nbytes += 128
        return nbytes

    def load_patches(self, block, to, at, taps):
        """Channels of pixels one after another, from row to row and from image to image."""
        assert to % 1024 == 0
        channel, *pixel, image = at
        ends = [n - 1 + u for n, u in zip(self.sizes[1:-1], self.upper, strict=True)]
        assert all(x >= low for x, low in zip(pixel, self.lower, strict=True))
        for number in range(self.box[1]):
            where = [*(x + tap for x, tap in zip(pixel, taps, strict=True)), image]
            row = np.zeros(128, np.uint8)
            if all(0 <= w < n for w, n in zip(where, self.sizes[1:], strict=True)):
                begin = self.address + sum(w * s for w, s in zip(where, self.strides, strict=True))
                row[:] = block.bytes("global", begin + channel * self.size, 128)
            block.shared[swizzled(to + number * 128 + np.arange(128))] = row
            for axis, end in enumerate(ends):
                pixel[axis] += self.steps[axis]
                if pixel[axis] <= end:
                    break
                pixel[axis] = self.lower[axis]
            else:
                image += 1
        return 128 * self.box[1]

    def store(self, block, source, at):
        count = max(0, min(self.box[0], self.sizes[0] - at[0])) * self.size
        for number, begin in self._rows(at):
            if begin is not None and count:
                places = swizzled(source + number * 128 + np.arange(128))
                block.bytes("global", begin, count)[:] = block.shared[places][:count]
