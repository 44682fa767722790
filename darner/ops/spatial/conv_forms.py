"""How users write convolutions: by rank, transposed, and in the words of other systems.

Every form here adds ``conv``, ``conv_input_grad`` or ``conv_weight_grad``. Meganeura's tensors are
flat (NCHW order, one axis) and their geometry is a row of integers; RLX gives a list for every
spatial attribute, by position; PyTorch puts the bias third. Which one is meant is clear from the
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.attributes import PAIRS
from ...graph.dims import Dim, format_shape
from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Builder, builder
from ..linalg.contract import windows
from ..shapes.primitives import certainly_less
from .conv import FAMILY, conv, conv_input_grad
from .conv_flat import flat_conv2d
from .windows import (
    PairsOf,
    fixed_sizes,
    is_size,
    numbers,
    padded,
    pairs_per_axis,
    reach,
    require_axes,
    spatial_axes,
    window_counts,
)

CONV_WEIGHT = "out channels, in channels / groups"
_TRANSPOSE_WEIGHT = "in channels, out channels / groups"
_DEFAULTS = {
    "bias": None,
    "stride": 1,
    "padding": 0,
    "output_padding": 0,
    "dilation": 1,
    "groups": 1,
}


def _named_padding(name: str, w: Node, stride: Any, dilation: Any) -> PairsOf:
    """Padding by name: "valid" is none, "same" keeps the sizes (an odd rest goes high)."""
    kernel = fixed_sizes(w.shape[2:], "the kernel")
    if name == "valid":
        return ((0, 0),) * len(kernel)
    if name != "same":
        raise ArgumentError(f"padding '{name}' is not known", hint="use numbers, 'same' or 'valid'")
    if set(numbers(stride, len(kernel), "stride", 1)) != {1}:
        raise ArgumentError(
            f"padding 'same' needs stride 1, not {stride}", hint="give the padding in numbers"
        )
    steps = numbers(dilation, len(kernel), "dilation", 1)
    totals = [reach(size, step) - 1 for size, step in zip(kernel, steps, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


def check_kernel(kernel_size: Any, kernel: Sequence[Dim]) -> None:
    """Compare a stated kernel size with the weight's own."""
    stated = numbers(kernel_size, len(kernel), "kernel_size", 1)
    if tuple(kernel) != stated:
        raise ShapeError(
            f"kernel_size is {format_shape(stated)}, but the weight has {format_shape(kernel)}"
        )


def _settings(
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    w: Node,
    *forms: tuple[str, ...],
) -> dict[str, Any]:
    """Attributes by name, from what follows the weight in RLX's or PyTorch's order and keywords."""
    rlx, torch = forms
    named: dict[str, Any] = {}
    if positional:
        has_bias = positional[0] is None or isinstance(positional[0], Node)
        names = torch if has_bias else rlx
        # RLX's form is complete and starts with a list; PyTorch's may stop anywhere.
        complete = len(positional) == len(rlx) and not is_size(positional[0])
        if len(positional) > len(names) or not (has_bias or complete):
            count = f"{len(positional)} argument{'s' * (len(positional) > 1)}"
            raise ArgumentError(
                f"{count} after w: expected ({', '.join(rlx)}) or ({', '.join(torch)})",
                hint="or give them by name: stride=1, padding=0",
            )
        named = dict(zip(names, positional, strict=False))
        if "kernel_size" in named:
            check_kernel(named.pop("kernel_size"), w.shape[2:])
    for name in named:
        given, default = keywords[name], _DEFAULTS[name]
        unused = given is None if default is None else is_size(given) and int(given) == default
        if not unused:
            raise ArgumentError(f"argument '{name}' is given twice")
    return {**keywords, **named}


def _with_bias(y: Node, bias: Any) -> Node:
    """``y`` with one number added to each channel."""
    if bias is None:
        return y
    if not isinstance(bias, Node):
        bias = y.graph.literal(bias, y.dtype)
    if bias.shape != (y.shape[1],):
        raise ShapeError(
            f"bias is {format_shape(bias.shape)}, but there are {y.shape[1]} output channels"
        )
    return y + bias.reshape((y.shape[1], *(1,) * (y.rank - 2)))


# --------------------------------------------------------------------------- convolution

_CONV_DOC = {
    1: """Convolution of [batch, in, length] with [out, in / groups, kernel]; see ``conv2d``.""",
    2: """Convolution of [batch, in, height, width] with [out, in / groups, *kernel].

    ``stride``, ``padding`` and ``dilation`` take one number or one for each axis; padding also
    (low, high) pairs, "valid" (none) or "same" (stride 1 only). ``groups`` splits the channels;
    ``bias`` [out] is added.

    Other forms: ``conv2d(x, w, kernel_size, stride, padding, dilation, groups)``, ``conv2d(x, w,
    bias, stride, padding, dilation, groups)``, and flat: ``conv2d(x, kernel, batch, in_channels,
    in_h, in_w, out_channels, kernel_h, kernel_w, stride, padding)``, whose result is flat.
    """,
    3: """Convolution of [batch, in, depth, height, width]; see ``conv2d``.""",
}


def _convolution(count: int) -> Builder:
    def build(  # many parameters: they are the user's options, by name
        graph: Graph,
        x: Node,
        w: Node,
        *geometry: Any,
        bias: Node | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Node:
        if count == 2 and len(geometry) == 9 and all(map(is_size, geometry)):
            return flat_conv2d(x, w, geometry)
        require_axes(x, count)
        require_axes(w, count, "w", CONV_WEIGHT)
        settings = _settings(
            geometry,
            {
                "bias": bias,
                "stride": stride,
                "padding": padding,
                "dilation": dilation,
                "groups": groups,
            },
            w,
            ("kernel_size", "stride", "padding", "dilation", "groups"),
            ("bias", "stride", "padding", "dilation", "groups"),
        )
        bias = settings.pop("bias")
        if isinstance(settings["padding"], str):
            settings["padding"] = _named_padding(
                settings["padding"], w, settings["stride"], settings["dilation"]
            )
        return _with_bias(conv(x, w, **settings), bias)

    build.__name__ = build.__qualname__ = f"conv{count}d"
    build.__doc__ = _CONV_DOC[count]
    return builder(family=FAMILY)(build)


conv1d, conv2d, conv3d = _convolution(1), _convolution(2), _convolution(3)


@builder(family=FAMILY)
def unfold(
    graph: Graph,
    x: Node,
    kernel: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
) -> Node:
    """The patches a kernel sees, as columns (im2col): [batch, channels * kernel, places]."""
    count = spatial_axes(x)
    sizes = numbers(kernel, count, "kernel", 1)
    pairs = pairs_per_axis(PAIRS.coerce(padding), count)
    stride = numbers(stride, count, "stride", 1)
    dilation = numbers(dilation, count, "dilation", 1)
    window_counts(x.shape[2:], sizes, stride, pairs, dilation, "kernel")
    patches = windows(padded(x, pairs), sizes, stride, dilation)
    places, inner = range(2, 2 + count), range(2 + count, 2 + 2 * count)
    rows = x.shape[1]
    for size in sizes:
        rows = rows * size
    result: Node = patches.transpose((0, 1, *inner, *places)).reshape((x.shape[0], rows, -1))
    return result


# --------------------------------------------------------------------------- transposed

_TRANSPOSE_DOC = {
    1: """Transposed convolution of [batch, in, length]; see ``conv_transpose2d``.""",
    2: """Transposed convolution of [batch, in, height, width] with [in, out / groups, *kernel].

    A size becomes ``(size - 1) * stride + dilation * (kernel - 1) + 1 + output_padding - low -
    high``. Arguments are as in ``conv2d``; ``output_padding`` must be below the stride.

    Other forms: ``conv_transpose2d(x, w, kernel_size, stride, padding, dilation, output_padding,
    groups)`` and ``conv_transpose2d(x, w, bias, stride, padding, output_padding, groups,
    dilation)``.
    """,
    3: """Transposed convolution of [batch, in, depth, height, width]; see ``conv_transpose2d``.""",
}


def _transposed_sizes(
    x: Node,
    kernel: tuple[int, ...],
    output_padding: tuple[int, ...],
    stride: tuple[int, ...],
    padding: PairsOf,
    dilation: tuple[int, ...],
) -> tuple[Dim, ...]:
    sizes = []
    for axis, extra in enumerate(output_padding):
        if extra >= stride[axis]:
            raise ArgumentError(
                f"output_padding {extra} must be below the stride, {stride[axis]}",
                hint="pad the result",
            )
        whole = (x.shape[2 + axis] - 1) * stride[axis] + reach(kernel[axis], dilation[axis])
        size = whole + extra - sum(padding[axis])
        if certainly_less(size, 1):
            raise ShapeError(
                f"padding {padding[axis]} leaves nothing of size {whole} on spatial axis {axis}"
            )
        sizes.append(size)
    return tuple(sizes)


def _transposed_convolution(count: int) -> Builder:
    def build(  # many parameters: they are the user's options, by name
        graph: Graph,
        x: Node,
        w: Node,
        *geometry: Any,
        bias: Node | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Node:
        require_axes(x, count)
        require_axes(w, count, "w", _TRANSPOSE_WEIGHT)
        settings = _settings(
            geometry,
            {
                "bias": bias,
                "stride": stride,
                "padding": padding,
                "output_padding": output_padding,
                "dilation": dilation,
                "groups": groups,
            },
            w,
            ("kernel_size", "stride", "padding", "dilation", "output_padding", "groups"),
            ("bias", "stride", "padding", "output_padding", "groups", "dilation"),
        )
        if x.shape[1] != w.shape[0]:
            raise ShapeError(
                f"x has {x.shape[1]} channels, but w takes {w.shape[0]}",
                hint=f"w is [{_TRANSPOSE_WEIGHT}, kernel...]",
            )
        kernel = fixed_sizes(w.shape[2:], "the kernel")
        attrs: dict[str, Any] = {
            "stride": numbers(settings["stride"], count, "stride", 1),
            "padding": pairs_per_axis(PAIRS.coerce(settings["padding"]), count),
            "dilation": numbers(settings["dilation"], count, "dilation", 1),
        }
        extra = numbers(settings["output_padding"], count, "output_padding", 0)
        sizes = _transposed_sizes(x, kernel, extra, **attrs)
        y = conv_input_grad(x, w, sizes=sizes, groups=settings["groups"], **attrs)
        return _with_bias(y, settings["bias"])

    build.__name__ = build.__qualname__ = f"conv_transpose{count}d"
    build.__doc__ = _TRANSPOSE_DOC[count]
    return builder(family=FAMILY)(build)


conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed_convolution, (1, 2, 3))


# --------------------------------------------------------------------------- RLX's gradients
