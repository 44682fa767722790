"""Convolution and its two derivatives, over any number of spatial axes.

The three ops are closed under differentiation: each one is linear in both operands, and each
derivative of one of them is another of them with the same attributes. ``conv_input_grad`` is the
transposed convolution too. The spellings of users (``conv2d``, ``conv_transpose2d`` ...) are in
``conv_forms``.
"""

from __future__ import annotations

from typing import Any

from ...graph import dtypes
from ...graph.attributes import Ints, Number, Pairs, Sizes
from ...graph.dims import Dim, Shape, product
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Op, Resolved, composite, resolved
from ...graph.types import TensorType
from ..linalg.contract import dot_general, fold, windows
from ..samples import ints, sample, spec
from .windows import (
    PairsOf,
    cropped,
    fixed_sizes,
    merge_batch,
    padded,
    padded_sizes,
    settle,
    spatial_axes,
    split_batch,
    window_counts,
)

FAMILY = "convolution"


def _check_groups(groups: int, out_channels: Dim) -> None:
    if groups < 1:
        raise ArgumentError(f"groups={groups} must be at least 1")
    if out_channels % groups:
        raise ShapeError(f"{out_channels} output channels do not divide into {groups} groups")


def _check_input_channels(x: TensorType, taken: Dim, groups: int) -> None:
    if x.shape[1] != taken * groups:
        hint = None
        if groups == 1 and taken == 1:
            hint = f"groups={x.shape[1]} makes it depthwise"
        grouped = "" if groups == 1 else f" ({taken} in each of {groups} groups)"
        raise ShapeError(
            f"x has {x.shape[1]} channels, but w takes {taken * groups}{grouped}", hint=hint
        )


def _check_windows(dy: TensorType, counts: Shape, sizes: Shape) -> None:
    for axis, (found, wanted) in enumerate(zip(dy.shape[2:], counts, strict=True)):
        if found != wanted:
            raise ShapeError(
                f"dy has size {found} on spatial axis {axis}, "
                f"but the kernel has {wanted} places in size {sizes[axis]}"
            )


# --------------------------------------------------------------------------- forward

_CONV = [
    sample(spec(2, 3, 7), spec(4, 3, 3)),
    sample(spec(2, 3, 6, 5), spec(4, 3, 3, 2), stride=(2, 1), padding=1),
    sample(spec(1, 4, 5, 7), spec(6, 2, 2, 3), padding=((0, 2), (1, 0)), dilation=2, groups=2),
    sample(spec(2, 3, 5, 5), spec(6, 1, 3, 3), stride=2, padding=(1, 0), groups=3),
    sample(spec(2, 4, 3, 3), spec(2, 4, 1, 1)),
    sample(spec(1, 2, 3, 4), spec(3, 2, 3, 4)),
    sample(
        spec(1, 2, 4, 3, 5), spec(2, 2, 2, 3, 2), stride=(1, 1, 2), padding=((1, 0), (1, 1), (0, 1))
    ),
    sample(spec(0, 3, 5), spec(2, 3, 2)),
    sample(
        ints(1, 2, 6, low=-9, high=9, dtype="i8"),
        ints(2, 2, 3, low=-9, high=9, dtype="i8"),
        padding=1,
    ),
]


@composite(
    family=FAMILY,
    samples=_CONV,
    facts=Facts(
        role="contract",
        whole=True,
        full_rate=True,
        multiplies=("x", "w"),
        channels_last="conv_last",
    ),
)
def conv(
    x: Number,
    w: Number,
    *,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Resolved:
    """Convolution of ``x`` [batch, in, *spatial] with ``w`` [out, in / groups, *kernel].

    The kernel is not mirrored (it is cross-correlation, as everywhere). ``stride``, ``padding`` and
    ``dilation`` are one number for all spatial axes or one for each; padding may be (low, high)
    pairs. A size becomes ``(size + low + high - dilation * (kernel - 1) - 1) // stride + 1``, never
    0.
    """
    count = spatial_axes(x)
    if w.rank != x.rank:
        raise ShapeError(
            f"w has rank {w.rank}, x has rank {x.rank}",
            hint="w is [out channels, in channels / groups, kernel...]",
        )
    settled = settle(count, stride, padding, dilation)
    _check_groups(groups, w.shape[0])
    _check_input_channels(x, w.shape[1], groups)
    kernel = fixed_sizes(w.shape[2:], "the kernel")
    counts = window_counts(x.shape[2:], kernel, **settled, what="kernel")
    shape = (x.shape[0], w.shape[0], *counts)
    return resolved(TensorType(shape, dtypes.accumulator(x.dtype)), **settled)


def _grouped(x: Node, axis: int, groups: int) -> Node:
    """An axis split into groups and what each has; unchanged for a single group."""
    if groups == 1:
        return x
    each = x.shape[axis] // groups
    result: Node = x.reshape((*x.shape[:axis], groups, each, *x.shape[axis + 1 :]))
    return result


def _span(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


@conv.expand
def _(x: Node, w: Node, stride: Any, padding: PairsOf, dilation: Any, groups: int) -> Node:
    count = x.rank - 2
    kernel = w.shape[2:]
    patches = windows(padded(x, padding), kernel, stride, dilation)
    counts = patches.shape[2 : 2 + count]
    # The axes: w is [g, out, in, *kernel], patches are [batch, g, in, *counts, *kernel], without
    # their g if there is one group.
    g = int(groups > 1)
    product_ = dot_general(
        _grouped(w, 0, groups),
        _grouped(patches, 1, groups),
        (1 + g, *_span(2 + g, count)),
        (1 + g, *_span(2 + g + count, count)),
        _span(0, g),
        _span(1, g),
    )
    ordered = product_.transpose((1 + g, *_span(0, 1 + g), *_span(2 + g, count)))
    return ordered if groups == 1 else ordered.reshape((x.shape[0], w.shape[0], *counts))


@conv.cost
def _(x: TensorType, w: TensorType, stride: Any, padding: Any, dilation: Any, groups: int) -> Dim:
    kernel = fixed_sizes(w.shape[2:], "the kernel")
    counts = window_counts(x.shape[2:], kernel, stride, padding, dilation, "kernel")
    return 2 * x.shape[0] * product(counts) * w.size


@conv.vjp
def _(g: Node, out: Node, x: Node, w: Node, **attrs: Any) -> Any:
    return {
        "x": lambda: conv_input_grad(g, w, sizes=x.shape[2:], **attrs),
        "w": lambda: conv_weight_grad(x, g, kernel=w.shape[2:], **attrs),
    }


def _as_groups(
    op: Op,
    size: Dim,
    operands: dict[str, Node],
    axes: tuple[int, int],
    attrs: dict[str, Any],
    result: tuple[Dim, int],
) -> Any:
    """``op`` over two batched operands: each of the batch is a group, or a row of groups, of its own.

    ``axes`` are those of the operands that consist of groups; ``result`` is the size and the number of the result's.
    """
    if not isinstance(size, int) or size < 1:
        return NotImplemented
    first, second = map(merge_batch, operands.values(), axes)
    whole = op(first, second, **{**attrs, "groups": size * attrs["groups"]})
    return split_batch(whole, size, *result)


@conv.vmap
def _(size: Dim, batched: Any, x: Node, w: Node, **attrs: Any) -> Node:
    if batched["x"] and batched["w"]:
        return _as_groups(conv, size, {"x": x, "w": w}, (1, 0), attrs, (w.shape[1], 1))
    if batched["x"]:
        return split_batch(conv(merge_batch(x), w, **attrs), size, x.shape[1])
    groups = attrs["groups"]
    return split_batch(conv(x, merge_batch(w, 0, groups), **attrs), size, w.shape[1], 1, groups)


# --------------------------------------------------------------------------- derivatives


@composite(
    family=FAMILY,
    facts=Facts(
        role="contract",
        whole=True,
        full_rate=True,
        multiplies=("dy", "w"),
        channels_last="conv_last_input_grad",
    ),
    samples=[
        sample(spec(2, 4, 5), spec(4, 3, 3), sizes=(7,)),
        sample(spec(2, 4, 3, 6), spec(4, 3, 3, 2), sizes=(6, 5), stride=(2, 1), padding=1),
        sample(
            spec(1, 6, 5, 4),
            spec(6, 2, 2, 3),
            sizes=(5, 7),
            padding=((0, 2), (1, 0)),
            dilation=2,
            groups=2,
        ),
        sample(
            spec(2, 6, 3, 2), spec(6, 1, 3, 3), sizes=(5, 5), stride=2, padding=(1, 0), groups=3
        ),
        sample(
            spec(2, 6, 3, 2), spec(6, 1, 3, 3), sizes=(6, 6), stride=2, padding=(1, 0), groups=3
        ),
        sample(spec(2, 2, 3, 3), spec(2, 4, 1, 1), sizes=(3, 3)),
        sample(
            spec(1, 2, 4, 3, 3),
            spec(2, 1, 2, 3, 2),
            sizes=(4, 3, 5),
            stride=(1, 1, 2),
            padding=((1, 0), (1, 1), (0, 1)),
        ),
        sample(spec(0, 2, 4), spec(2, 3, 2), sizes=5),
    ],
)
def conv_input_grad(
    dy: Number,
    w: Number,
    *,
    sizes: Sizes,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Resolved:
    """The transpose of ``conv`` in its first operand: the gradient towards ``x``.

    ``sizes`` are the spatial sizes of ``x`` (several fit one ``dy`` when the stride is above 1);
    the rest is as in ``conv``. With the roles of the channels exchanged this is the transposed
    convolution.
    """
    count = spatial_axes(dy, "dy")
    if w.rank != dy.rank:
        raise ShapeError(
            f"w has rank {w.rank}, dy has rank {dy.rank}",
            hint="w is [out channels, in channels / groups, kernel...]",
        )
    if len(sizes) != count:
        raise ArgumentError(f"{len(sizes)} sizes for {count} spatial axes")
    settled = settle(count, stride, padding, dilation)
    _check_groups(groups, w.shape[0])
    if dy.shape[1] != w.shape[0]:
        raise ShapeError(f"dy has {dy.shape[1]} channels, but w gives {w.shape[0]}")
    kernel = fixed_sizes(w.shape[2:], "the kernel")
    counts = window_counts(sizes, kernel, **settled, what="kernel")
    _check_windows(dy, counts, sizes)
    shape = (dy.shape[0], w.shape[1] * groups, *sizes)
    return resolved(TensorType(shape, dtypes.accumulator(dy.dtype)), **settled)


@conv_input_grad.expand
def _(
    dy: Node,
    w: Node,
    sizes: Shape,
    stride: Any,
    padding: PairsOf,
    dilation: Any,
    groups: int,
) -> Node:
    count = dy.rank - 2
    g = int(groups > 1)
    product_ = dot_general(
        _grouped(w, 0, groups), _grouped(dy, 1, groups), (g,), (1 + g,), _span(0, g), _span(1, g)
    )
    # From [g, in, *kernel, batch, *counts] to [batch, in, *counts, *kernel], as windows lie.
    batch = 1 + g + count
    ordered = product_.transpose(
        (batch, *_span(0, 1 + g), *_span(batch + 1, count), *_span(1 + g, count))
    )
    if groups > 1:
        channels = w.shape[1] * groups
        ordered = ordered.reshape((dy.shape[0], channels, *dy.shape[2:], *w.shape[2:]))
    return cropped(fold(ordered, padded_sizes(sizes, padding), stride, dilation), padding)


@conv_input_grad.cost
def _(dy: TensorType, w: TensorType, **attrs: Any) -> Dim:
    return 2 * dy.shape[0] * product(dy.shape[2:]) * w.size


@conv_input_grad.vjp
def _(g: Node, out: Node, dy: Node, w: Node, sizes: Shape, **attrs: Any) -> Any:
    return {
        "dy": lambda: conv(g, w, **attrs),
        "w": lambda: conv_weight_grad(g, dy, kernel=w.shape[2:], **attrs),
    }


@conv_input_grad.vmap
def _(size: Dim, batched: Any, dy: Node, w: Node, **attrs: Any) -> Node:
    groups = attrs["groups"]
    if batched["dy"] and batched["w"]:
        result = (w.shape[2] * groups, 1)
        return _as_groups(conv_input_grad, size, {"dy": dy, "w": w}, (1, 0), attrs, result)
    if batched["dy"]:
        return split_batch(conv_input_grad(merge_batch(dy), w, **attrs), size, dy.shape[1])
    whole = conv_input_grad(dy, merge_batch(w, 1), **attrs)
    return split_batch(whole, size, w.shape[2] * groups, 1, groups)


@composite(
    family=FAMILY,
    facts=Facts(
        role="contract",
        whole=True,
        full_rate=True,
        multiplies=("x", "dy"),
        of_channels_last="conv_last_weight_grad",
    ),
    samples=[
        sample(spec(2, 3, 7), spec(2, 4, 5), kernel=3),
        sample(spec(2, 3, 6, 5), spec(2, 4, 3, 6), kernel=(3, 2), stride=(2, 1), padding=1),
        sample(
            spec(1, 4, 5, 7),
            spec(1, 6, 5, 4),
            kernel=(2, 3),
            padding=((0, 2), (1, 0)),
            dilation=2,
            groups=2,
        ),
        sample(spec(2, 3, 6, 6), spec(2, 6, 3, 2), kernel=3, stride=2, padding=(1, 0), groups=3),
        sample(spec(2, 4, 3, 3), spec(2, 2, 3, 3), kernel=1),
        sample(spec(1, 2, 3, 4), spec(1, 3, 1, 1), kernel=(3, 4)),
        sample(
            spec(1, 1, 4, 3, 5),
            spec(1, 2, 4, 3, 3),
            kernel=(2, 3, 2),
            stride=(1, 1, 2),
            padding=((1, 0), (1, 1), (0, 1)),
        ),
        sample(spec(0, 3, 5), spec(0, 2, 4), kernel=2),
    ],
)
def conv_weight_grad(
    x: Number,
    dy: Number,
    *,
    kernel: Ints,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Resolved:
    """The transpose of ``conv`` in its second operand: the gradient towards ``w``.

    ``kernel`` are the spatial sizes of the weight; the rest is as in ``conv``.
    """
    count = spatial_axes(x)
    if dy.rank != x.rank:
        raise ShapeError(f"dy has rank {dy.rank}, x has rank {x.rank}")
    settled = settle(count, stride, padding, dilation)
    kernel = fixed_sizes(kernel * count if len(kernel) == 1 else kernel, "the kernel")
    if len(kernel) != count:
        raise ArgumentError(f"kernel has {len(kernel)} entries for {count} spatial axes")
    _check_groups(groups, dy.shape[1])
    if x.shape[1] % groups:
        raise ShapeError(f"{x.shape[1]} input channels do not divide into {groups} groups")
    if dy.shape[0] != x.shape[0]:
        raise ShapeError(f"batch sizes {x.shape[0]} and {dy.shape[0]} differ")
    counts = window_counts(x.shape[2:], kernel, **settled, what="kernel")
    _check_windows(dy, counts, x.shape[2:])
    shape = (dy.shape[1], x.shape[1] // groups, *kernel)
    return resolved(TensorType(shape, dtypes.accumulator(x.dtype)), kernel=kernel, **settled)


@conv_weight_grad.expand
def _(
    x: Node,
    dy: Node,
    kernel: Any,
    stride: Any,
    padding: PairsOf,
    dilation: Any,
    groups: int,
) -> Node:
    count = x.rank - 2
    patches = windows(padded(x, padding), kernel, stride, dilation)
    g = int(groups > 1)
    summed = (0, *_span(2 + g, count))
    product_ = dot_general(
        _grouped(dy, 1, groups),
        _grouped(patches, 1, groups),
        summed,
        summed,
        _span(1, g),
        _span(1, g),
    )
    if groups == 1:
        return product_
    return product_.reshape((dy.shape[1], x.shape[1] // groups, *kernel))


@conv_weight_grad.cost
def _(x: TensorType, dy: TensorType, kernel: Any, groups: int, **attrs: Any) -> Dim:
    return 2 * dy.size * (x.shape[1] // groups) * product(kernel)


@conv_weight_grad.vjp
def _(g: Node, out: Node, x: Node, dy: Node, kernel: Any, **attrs: Any) -> Any:
    return {
        "x": lambda: conv_input_grad(dy, g, sizes=x.shape[2:], **attrs),
        "dy": lambda: conv(x, g, **attrs),
    }


@conv_weight_grad.vmap
def _(size: Dim, batched: Any, x: Node, dy: Node, **attrs: Any) -> Node:
    groups = attrs["groups"]
    if batched["x"] and batched["dy"]:
        result = (dy.shape[2], 0)
        return _as_groups(conv_weight_grad, size, {"x": x, "dy": dy}, (1, 1), attrs, result)
    if batched["x"]:
        whole = conv_weight_grad(merge_batch(x, 1, groups), dy, **attrs)
        return split_batch(whole, size, x.shape[2] // groups, 1)
    whole = conv_weight_grad(x, merge_batch(dy, 1, groups), **attrs)
    return split_batch(whole, size, dy.shape[2], 0, groups)
