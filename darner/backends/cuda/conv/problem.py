"""The products of matrices that a convolution consists of: of patches, which are gathered where an image lies, and of weights, or of gradients.

The convolution and its gradient towards the input have a row for each pixel and sums over taps and channels; the gradient towards the input of a strided convolution is a product
for each phase of the stride. The gradient towards the weight has a column for each tap and channel, and sums over pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, prod

from ....codegen.problems.conv import CONVOLUTIONS_LAST, Patches, Phase, Taps, patches_of
from ....codegen.simt.contract.product import Axis, Operand, Product, bytes_beside, long
from ....codegen.simt.main_node import main_of
from ....graph.integers import round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import Strided, is_tf32, is_view, row_major, strided
from ..contract.operands import PIECE

MOST_TAPS = 32
"""Of all axes together: whether each is inside of the image is a bit of a word."""
MOST_RANK = 5
"""Images of up to three axes."""


@dataclass(frozen=True)
class Window:
    """What patches read along one axis: pixel ``i`` and tap ``t`` the element ``i * step + offset + t * delta``.

    Attributes:
        size: of the image.
        pixels: how many there are.
        taps: how many meet each.
        stride: between elements of the image in memory.
        never: whether no tap meets a pixel; one stands for it that is outside of every image.
    """

    size: int
    pixels: int
    taps: int
    step: int
    offset: int
    delta: int
    stride: int
    never: bool = False

    @property
    def guarded(self) -> bool:
        """Whether some tap of some pixel lies outside of the image."""
        ends = (0, (self.taps - 1) * self.delta)
        last = self.offset + (self.pixels - 1) * self.step
        return self.never or self.offset + min(ends) < 0 or last + max(ends) >= self.size


@dataclass(frozen=True)
class Windows:
    """The patches of an image: how many images, what is read along each axis, channels as they lie, and elements from image to image."""

    batch: int
    axes: tuple[Window, ...]
    channels: int
    image: int


@dataclass(frozen=True)
class Part:
    """A product of a convolution, and which of its operands are patches."""

    product: Product
    side: int
    windows: Windows


@dataclass(frozen=True)
class Conv:
    """A convolution with channels last, or a gradient of one.

    Attributes:
        spec: the kernel.
        main: its node.
        kind: what is multiplied: ``bf16``, ``f16``, ``tf32`` or ``f32``.
        seen: the operands as they lie: images (or gradients), then weights (or gradients).
        patches: what is read of the first.
        as_it_is: whether operands are read where they lie, whatever that is.
    """

    spec: Spec
    main: Node
    kind: str
    seen: tuple[Strided, Strided]
    patches: Patches
    as_it_is: bool = False

    @property
    def piece(self) -> int:
        """Elements of 16 bytes."""
        return PIECE // self.seen[0].base.dtype.itemsize

    @property
    def to_weight(self) -> bool:
        """Whether it is the gradient towards the weight."""
        return "kernel" in self.main.attrs

    @property
    def to_input(self) -> bool:
        """Whether it is the gradient towards the input."""
        return "sizes" in self.main.attrs

    @property
    def folds(self) -> bool:
        """Whether the taps of the last axis are copied beside each other first, and are channels from then on: of images with few channels, which would be filled up for every tap."""
        channels, taps = self.patches.channels, self.patches.kernel[-1]
        filled = taps * round_up(channels, self.piece)
        return not self.to_input and not self.as_it_is and self._folded < filled

    @property
    def _folded(self) -> int:
        """Channels of an image whose last axis is folded; of all taps, and for sums over pixels of whole ones."""
        channels = self.patches.channels
        unit = lcm(self.piece, channels) if self.to_weight else self.piece
        return round_up(self.patches.kernel[-1] * channels, unit)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps along each axis."""
        kernel = self.patches.kernel
        return (*kernel[:-1], 1) if self.folds else kernel

    @property
    def taps(self) -> int:
        """Of all axes."""
        return prod(self.kernel)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the images as they lie where tiles are copied from."""
        patches = self.patches
        return (*patches.sizes[:-1], patches.result[-1]) if self.folds else patches.sizes

    @property
    def others(self) -> int:
        """Channels of the second operand that are not those of the first: of the result, or of gradients."""
        second = sizes(self.main.operands[1])
        return second[-1] if self.to_input or self.to_weight else second[0]

    @property
    def channels(self) -> int:
        """Channels of the first operand as they lie where tiles are copied from: whole pieces."""
        return self._folded if self.folds else round_up(self.patches.channels, self.piece)

    @property
    def packs(self) -> tuple[bool, bool]:
        """Which operands are copied first, into rows of whole pieces."""
        if self.as_it_is:
            return False, False
        offsets = [seen.offset % self.piece != 0 for seen in self.seen]
        odd = self.channels != self.patches.channels
        own = self.others % self.piece != 0
        if self.to_weight:
            return odd or offsets[0], own or offsets[1]
        if self.to_input:
            return odd or offsets[0], odd or own or offsets[1]
        return odd or offsets[0], odd or offsets[1]


def conv_of(spec: Spec) -> Conv | None:
    """The convolution of a spec, if it is one without groups whose operands lie as they are in memory."""
    main = main_of(spec, CONVOLUTIONS_LAST)
    if main is None or not 3 <= main.rank <= MOST_RANK or int(main.attrs["groups"]) != 1:
        return None
    if main.dtype.name not in ("f32", "bf16", "f16") or not all(
        prod(sizes(x)) for x in (main, *main.operands)
    ):
        return None
    kind, found = kind_of(main), []
    for operand in main.operands:
        seen = strided(operand, widened=True, tf32=kind == "tf32")
        if (
            seen is None
            or seen.base.op.name != "input"
            or seen.strides != row_major(sizes(operand))
        ):
            return None
        found.append(seen)
    patches = patches_of(main, merged=False)
    if kind is None or sum(patches.kernel) > MOST_TAPS:
        return None
    return Conv(spec, main, kind, (found[0], found[1]), patches)


def kind_of(main: Node) -> str | None:
    """What a convolution multiplies, or None where its operands are of two kinds or not floats of at most 32 bits."""
    kinds = {_kind(operand) for operand in main.operands}
    kind = kinds.pop()
    return kind if not kinds and kind in ("bf16", "f16", "tf32", "f32") else None


def _kind(operand: Node) -> str:
    while is_view(operand):
        (operand,) = operand.operands
    if is_tf32(operand):
        return "tf32"
    if (
        operand.op.name == "cast"
        and operand.dtype.name == "f32"
        and operand.operands[0].dtype.is_half
    ):
        return str(operand.operands[0].dtype.name)
    return str(operand.dtype.name)


def parts_of(conv: Conv) -> list[Part]:
    """The products of a convolution, one after another."""
    if conv.to_weight:
        return [_weight_gradient(conv)]
    return [_images(conv, phase) for phase in conv.patches.phases]


def _windows(conv: Conv, axes: Sequence[Taps]) -> Windows:
    patches = conv.patches
    strides = [stride * conv.channels for stride in row_major(conv.sizes)]
    found = [
        Window(
            size, taps.pixels, max(taps.count, 1), step, taps.offset, delta, stride, not taps.count
        )
        for size, taps, step, delta, stride in zip(
            conv.sizes, axes, patches.steps, patches.deltas, strides, strict=True
        )
    ]
    if conv.folds:
        found[-1] = Window(conv.sizes[-1], conv.sizes[-1], 1, 1, 0, 1, strides[-1])
    return Windows(patches.batch, tuple(found), conv.channels, prod(conv.sizes) * conv.channels)


def _offset(conv: Conv, side: int) -> int:
    return 0 if conv.packs[side] else conv.seen[side].offset


def _first(conv: Conv, windows: Windows) -> int:
    """Where the first tap of the first pixel lies; before the image, perhaps."""
    moved = sum(axis.offset * axis.stride for axis in windows.axes if not axis.never)
    return _offset(conv, 0) + moved


def _made(conv: Conv, offsets: Sequence[int], axes: Sequence[Sequence[Axis]]) -> Product:
    rows, columns, summed = (long(group) for group in axes)
    left, right = (
        Operand(seen.base, offset) for seen, offset in zip(conv.seen, offsets, strict=True)
    )
    factors = [seen.base for seen in conv.seen]
    beside = bytes_beside(conv.spec, conv.main, factors)
    operands = (right, left) if conv.to_weight else (left, right)
    return Product(conv.main, operands, (), rows, columns, summed, beside)


def _images(conv: Conv, phase: Phase) -> Part:
    """A product of the convolution, or of its gradient towards the input."""
    windows, patches = _windows(conv, phase.axes), conv.patches
    apart = row_major(sizes(conv.main))
    wide = prod(patches.result) * conv.others
    rows = [Axis(patches.batch, (windows.image, 0), 0, wide)]
    kernel = row_major(conv.kernel)
    if conv.to_input and not conv.packs[1]:
        # As they lie: [channels of the gradient, taps, channels of the input].
        tap, channel, own = conv.others, conv.taps * conv.others, 1
    else:
        tap, channel, own = conv.channels, 1, conv.taps * conv.channels
    summed, first = [], 0
    for place, (axis, taps, stride) in enumerate(
        zip(windows.axes, phase.axes, patches.strides, strict=True)
    ):
        steps = axis.step * axis.stride, 0
        far = stride * apart[place + 1]
        rows.append(Axis(axis.pixels, steps, place + 1, far, taps.start, stride))
        spaced = patches.spacing[place] * kernel[place] * tap
        summed.append(Axis(axis.taps, (axis.delta * axis.stride, spaced)))
        first += taps.kernel * kernel[place] * tap
    summed.append(Axis(conv.channels, (1, channel)))
    columns = [Axis(conv.others, (0, own), conv.main.rank - 1, 1)]
    offsets = _first(conv, windows), _offset(conv, 1) + first
    return Part(_made(conv, offsets, (rows, columns, summed)), 0, windows)


def _weight_gradient(conv: Conv) -> Part:
    windows, patches = _windows(conv, conv.patches.phases[0].axes), conv.patches
    apart = row_major(sizes(conv.main))
    pitch = round_up(conv.others, conv.piece) if conv.packs[1] else conv.others
    pixels = [stride * pitch for stride in row_major(patches.result)]
    rows = [Axis(conv.others, (1, 0), 0, apart[0])]
    summed = [Axis(patches.batch, (prod(patches.result) * pitch, windows.image))]
    columns = []
    for place, (axis, pixel) in enumerate(zip(windows.axes, pixels, strict=True)):
        summed.append(Axis(axis.pixels, (pixel, axis.step * axis.stride)))
        columns.append(Axis(axis.taps, (0, axis.delta * axis.stride), place + 2, apart[place + 2]))
    channels = patches.channels
    if conv.folds:
        taps = conv.channels // channels
        columns[-1] = Axis(
            taps, (0, channels), apart=1, place=conv.main.rank - 1, real=patches.kernel[-1]
        )
        columns.append(Axis(channels, (0, 1), 1, apart[1]))
    else:
        real = channels if conv.channels != channels else -1
        columns.append(Axis(conv.channels, (0, 1), 1, apart[1], real=real))
    offsets = _first(conv, windows), _offset(conv, 1)
    return Part(_made(conv, offsets, (rows, columns, summed)), 1, windows)
