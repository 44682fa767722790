"""Rotary position embedding: pairs of elements turned by an angle that grows with the position.

Position ``p`` turns pair ``i`` of the ``n_rot`` elements that take part by ``p * theta ** (-2 * i / n_rot)``. Elements
beyond ``n_rot`` stay as they are. By default pair ``i`` is element ``i`` of the first half with element ``i`` of the
second; ``interleaved`` pairs neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float, Free, Index
from ...graph.dims import Dim, Shape, divide, format_shape
from ...graph.dtypes import DType
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType, broadcast
from ..axes import align, spread, sum_to
from ..samples import ints, sample, spec
from ..shapes.primitives import concat, pad, slice_

FAMILY = "position"

Layout = Literal["flat", "shd", "hsd"]


# --------------------------------------------------------------------------- types


def _check_theta(theta: float) -> None:
    if not (theta > 0 and math.isfinite(theta)):
        raise ArgumentError(f"theta {theta} must be above 0")


def _check_turned(n_rot: int) -> None:
    if n_rot < 2 or n_rot % 2:
        raise ArgumentError(f"n_rot {n_rot} must be even and above 0: elements turn in pairs")


def _settled_sizes(
    x: TensorType, head_dim: int | None, n_rot: int | None, layout: str
) -> tuple[int, int]:
    """The width of a head, and how much of it takes part."""
    least = 3 if layout == "shd" else 2
    if x.rank < least:
        raise ShapeError(f"x has rank {x.rank}, and layout {layout!r} has at least {least} axes")
    width = x.shape[-1]
    if head_dim is None:
        if layout == "flat":
            raise ArgumentError(
                "head_dim is missing: heads lie side by side in the last axis",
                hint="give it, or say layout='shd' or 'hsd' for heads on an axis of their own",
            )
        head_dim = int(width)
    if head_dim < 1:
        raise ArgumentError(f"head_dim must be at least 1, not {head_dim}")
    if layout == "flat" and divide(width, head_dim) is None:
        raise ShapeError(f"the last axis of x, {width}, is not heads of {head_dim}")
    if layout != "flat" and width != head_dim:
        raise ShapeError(f"the last axis of x is {width} in layout {layout!r}, not {head_dim}")
    if n_rot is None:
        if head_dim % 2:
            raise ArgumentError(f"head_dim {head_dim} is odd: elements turn in pairs")
        return head_dim, head_dim
    _check_turned(n_rot)
    if n_rot > head_dim:
        raise ArgumentError(f"n_rot {n_rot} is more than head_dim {head_dim}")
    return head_dim, n_rot


def _places(shape: Shape, layout: str) -> Shape:
    """The axes of ``x`` up to its sequence: what positions and tables broadcast to."""
    return shape[:-2] if layout == "shd" else shape[:-1]


def _check_places(name: str, found: Shape, places: Shape) -> None:
    """``found`` must have an entry for each row of the sequence, and broadcast to the rest."""
    try:
        fits = bool(found) and found[-1] == places[-1] and broadcast(found, places) == places
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name} for {format_shape(found)} rows do not fit a sequence in {format_shape(places)}",
            hint=f"x needs {places[-1]} of them, one for each row",
        )


# --------------------------------------------------------------------------- tables


@composite(
    family=FAMILY,
    samples=[
        sample(ints(5, high=40), 8),
        sample(ints(2, 3, high=9, dtype="u32"), 6, 100.0),
        sample(ints(4, low=-9, high=9, dtype="i64"), 2, 5e5),
        sample(ints(high=9), 4, 0.5),
        sample(ints(0, high=9), 4),
        sample(ints(3, high=9), 4, dtype="f16"),
    ],
)
def rope_tables(
    positions: Index, n_rot: int, theta: float = 10000.0, *, dtype: DType = dtypes.f32
) -> tuple[TensorType, TensorType]:
    """The cosines and the sines by which each position turns each of the ``n_rot / 2`` pairs.

    They are exact to rounding at any position: whole turns are taken off in integers.
    """
    _check_turned(n_rot)
    _check_theta(theta)
    if not dtype.is_float:
        raise DTypeError(f"a table of {dtype} cannot hold cosines")
    table = TensorType((*positions.shape, n_rot // 2), dtype)
    return table, table


@rope_tables.expand
def _(positions: Node, n_rot: int, theta: float, dtype: DType) -> tuple[Node, Node]:
    frequencies = theta ** (-2 * np.arange(n_rot // 2) / n_rot)
    columns = positions.reshape((*positions.shape, 1))
    if dtype is dtypes.f64:
        angles = columns.cast(dtype) * positions.graph.constant(frequencies)
    else:
        angles = _short_angles(_as_i32(columns), frequencies)
    return angles.cos(), angles.sin()


@rope_tables.vmap
def _(size: Dim, batched: dict[str, bool], positions: Node, **attrs: Any) -> tuple[Node, Node]:
    return rope_tables(positions, **attrs)


def _as_i32(x: Node) -> Node:
    return x if x.dtype is dtypes.i32 else x.cast(dtypes.i32)


def _short_angles(positions: Node, frequencies: np.ndarray[Any, Any]) -> Node:
    """``positions * frequencies`` less whole turns, in f32.

    A product of f32 numbers loses its fraction as positions grow. Here an angle is counted in steps of 2**-32 turns, and
    an i32 of steps wraps around exactly where a turn is full. What a step leaves of a frequency is added as f32.
    """
    graph = positions.graph
    steps = frequencies / (2 * math.pi) % 1 * 2.0**32
    whole = np.floor(steps)
    wrapped = positions * graph.constant(whole.astype(np.int64).astype(np.int32))
    rest = positions.cast(dtypes.f32) * graph.constant((steps - whole).astype(np.float32))
    return (wrapped + rest.cast(dtypes.i32)).cast(dtypes.f32) * (2 * math.pi / 2.0**32)


# --------------------------------------------------------------------------- turning


@composite(
    family=FAMILY,
    facts=Facts(fused=True),
    samples=[
        sample(spec(5, 12), spec(5, 2), spec(5, 2), head_dim=4),
        sample(spec(2, 3, 10), spec(3, 2), spec(3, 2), head_dim=5, n_rot=4),
        sample(spec(2, 3, 16), spec(3, 4), spec(3, 4), head_dim=8, n_rot=4, interleaved=True),
        sample(spec(2, 3, 2, 6), spec(2, 3, 3), spec(2, 3, 3), layout="shd"),
        sample(spec(2, 2, 3, 6), spec(2, 1, 3, 3), spec(2, 1, 3, 3), layout="hsd"),
        sample(spec(3, 2), spec(3, 1, dtype="f32"), spec(3, 1, dtype="f32"), head_dim=2),
        sample(spec(0, 1, 4), spec(1, 2), spec(1, 2), head_dim=4, interleaved=True),
    ],
)
def rope_with_tables(
    x: Float,
    cos: Free,
    sin: Free,
    *,
    head_dim: int | None = None,
    n_rot: int | None = None,
    layout: Layout = "flat",
    interleaved: bool = False,
) -> Resolved:
    """``x`` turned by angles whose cosines and sines are given: (..., length, pairs), one row for each of the sequence.

    Tables of ``head_dim / 2`` columns may stand beside a smaller ``n_rot``; the first ``n_rot / 2`` are used. Two matrices that
    are longer than the sequence were made for a longer one: their first rows are used. For ``layout`` see ``rope``. The result has the element type of ``x``.
    """
    head_dim, n_rot = _settled_sizes(x, head_dim, n_rot, layout)
    for name, table in (("cos", cos), ("sin", sin)):
        if not table.dtype.is_float:
            raise DTypeError(f"{name} must be float, not {table.dtype}")
        if table.shape != cos.shape:
            raise ShapeError(
                f"cos {format_shape(cos.shape)} and sin {format_shape(sin.shape)} differ"
            )
        if table.rank < 2:
            raise ShapeError(f"{name} has rank {table.rank}, not a row for each position")
        if table.shape[-1] not in (n_rot // 2, head_dim // 2):
            raise ShapeError(
                f"{name} has {table.shape[-1]} columns for {n_rot // 2} pairs to turn "
                f"(head_dim {head_dim})"
            )
    _check_places("tables", cos.shape[:-1], _places(x.shape, layout))
    return resolved(x, head_dim=head_dim, n_rot=n_rot)


def _columns(x: Node, start: int, stop: Dim) -> Node:
    """A range of the last axis."""
    if start == 0 and stop == x.shape[-1]:
        return x
    lead = x.rank - 1
    return slice_(x, (0,) * lead + (start,), (*x.shape[:-1], stop))


def _by_head(x: Node, head_dim: int, layout: str) -> Node:
    """``x`` with the elements of a head, and no others, along its last axis."""
    if layout != "flat":
        return x
    result: Node = x.reshape((*x.shape[:-1], x.shape[-1] // head_dim, head_dim))
    return result


def _pairs(heads: Node, n_rot: int, interleaved: bool) -> tuple[Node, Node]:
    """The first and the second element of each pair that turns."""
    half = n_rot // 2
    if not interleaved:
        return _columns(heads, 0, half), _columns(heads, half, n_rot)
    pairs = _columns(heads, 0, n_rot).reshape((*heads.shape[:-1], half, 2))
    first, second = (_columns(pairs, i, i + 1).reshape(pairs.shape[:-1]) for i in (0, 1))
    return first, second


@rope_with_tables.expand
def _(
    x: Node,
    cos: Node,
    sin: Node,
    head_dim: int,
    n_rot: int,
    layout: str,
    interleaved: bool,
) -> Node:
    half = n_rot // 2
    heads = _by_head(x, head_dim, layout)
    tables = []
    for table in (cos, sin):
        table = _columns(table, 0, half)
        if table.dtype is not x.dtype:
            table = table.cast(x.dtype)
        if layout != "hsd":  # the same for all heads, whose axis comes after the sequence
            table = table.reshape((*table.shape[:-1], 1, half))
        tables.append(table)
    c, s = tables
    a, b = _pairs(heads, n_rot, interleaved)
    parts = [a * c - b * s, b * c + a * s]
    if interleaved:
        side_by_side = concat([part.reshape((*a.shape, 1)) for part in parts], -1)
        parts = [side_by_side.reshape((*heads.shape[:-1], n_rot))]
    if n_rot < head_dim:
        parts.append(_columns(heads, n_rot, head_dim))
    whole = parts[0] if len(parts) == 1 else concat(parts, -1)
    return whole.reshape(x.shape)


@rope_with_tables.vjp
def _(
    g: Node,
    out: Node,
    x: Node,
    cos: Node,
    sin: Node,
    head_dim: int,
    n_rot: int,
    layout: str,
    interleaved: bool,
) -> Any:
    attrs = {"head_dim": head_dim, "n_rot": n_rot, "layout": layout, "interleaved": interleaved}

    @cache
    def pairs() -> tuple[Node, ...]:
        found: list[Node] = []
        for item in (x, g):
            wide = item.cast(dtypes.f32) if item.dtype.is_half else item
            found.extend(_pairs(_by_head(wide, head_dim, layout), n_rot, interleaved))
        return tuple(found)

    def to_table(each: Node) -> Node:
        """What all pairs of a position, in every head, say of its column."""
        rows = each if layout == "hsd" else each.sum(-2)
        total = sum_to(rows, (*cos.shape[:-1], n_rot // 2))
        if total.dtype is not cos.dtype:
            total = total.cast(cos.dtype)
        unused = cos.shape[-1] - n_rot // 2
        return pad(total, (*((0, 0),) * (cos.rank - 1), (0, unused))) if unused else total

    def by_cos() -> Node:
        a, b, da, db = pairs()
        return to_table(da * a + db * b)

    def by_sin() -> Node:
        a, b, da, db = pairs()
        return to_table(db * a - da * b)

    return {
        "x": lambda: rope_with_tables(g, cos, -sin, **attrs),
        "cos": by_cos,
        "sin": by_sin,
    }


def _places_rank(x: Node, batched: bool, layout: str) -> int:
    """How many axes positions may have for each of a batch."""
    return len(_places(x.shape, layout)) - batched


@rope_with_tables.vmap
def _(size: Dim, batched: dict[str, bool], x: Node, cos: Node, sin: Node, **attrs: Any) -> Node:
    tables = [cos, sin]
    if batched["cos"] or batched["sin"]:
        rank = _places_rank(x, batched["x"], attrs["layout"]) + 1
        tables = [
            align(table if batched[name] else spread(table, size), True, rank)
            for name, table in (("cos", cos), ("sin", sin))
        ]
    return rope_with_tables(x if batched["x"] else spread(x, size), *tables, **attrs)


@composite(
    family=FAMILY,
    facts=Facts(fused=True),
    samples=[
        sample(spec(5, 12), 10000.0, 4),
        sample(spec(2, 3, 10), 100.0, 5, n_rot=4, offset=7),
        sample(spec(2, 3, 12), 10.0, 6, interleaved=True, inverse=True),
        sample(spec(2, 3, 2, 6), layout="shd", positions=ints(2, 3, high=50, dtype="u32")),
        sample(spec(2, 2, 3, 6), 50.0, layout="hsd", n_rot=2, positions=ints(3, high=9)),
        sample(spec(1, 2), 1e4, 2, offset=3),
        sample(spec(0, 4), 1e4, 2),
        sample(spec(0, 3, 4), 1e4, 4, positions=ints(3, low=-5, high=5), inverse=True),
    ],
)
def rope(
    x: Float,
    theta: float = 10000.0,
    head_dim: int | None = None,
    *,
    n_rot: int | None = None,
    offset: int = 0,
    layout: Layout = "flat",
    interleaved: bool = False,
    inverse: bool = False,
    positions: Index | None = None,
) -> Resolved:
    """``x`` with its pairs turned by ``position * theta ** (-2 * pair / n_rot)``.

    ``layout`` says where the heads are: side by side in the last axis, (..., length, heads * head_dim), for "flat"; on an
    axis of their own for "shd", (..., length, heads, head_dim), and "hsd", (..., heads, length, head_dim). Row ``i`` has
    position ``i + offset``, or ``positions[i] + offset``; ``positions`` broadcasts to the axes of ``x`` up to the sequence.
    ``n_rot`` (the whole head by default) is how many elements of a head take part, ``interleaved`` pairs neighbours
    instead of halves, and ``inverse`` turns back, which is also the gradient.

    ``rope(x, cos, sin, head_dim)`` takes tables instead of an angle; see ``rope_with_tables``.
    """
    _check_theta(theta)
    head_dim, n_rot = _settled_sizes(x, head_dim, n_rot, layout)
    if positions is not None:
        _check_places("positions", positions.shape, _places(x.shape, layout))
    return resolved(x, head_dim=head_dim, n_rot=n_rot)


@rope.spelling
def _(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    """Two tables where the angle would be: ``rope(x, cos, sin, head_dim)``."""
    tables = [kwargs[name] for name in ("cos", "sin") if name in kwargs]
    if not tables and any(isinstance(item, Node | np.ndarray) for item in args[1:2]):
        tables, args = list(args[1:3]), (args[0], *args[3:])
    elif tables:
        kwargs = {name: value for name, value in kwargs.items() if name not in ("cos", "sin")}
    else:
        return args, kwargs
    if len(tables) != 2:
        raise ArgumentError(
            "a table of cosines needs one of sines", hint="the call is rope(x, cos, sin, head_dim)"
        )
    x, *rest = args
    if rest and hasattr(rest[0], "__index__"):
        kwargs["head_dim"] = rest.pop(0)
    return rope_with_tables(x, *tables, *rest, **kwargs)


@rope_with_tables.spelling
def _(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    """Tables made for the longest sequence: of each the first rows are meant."""
    given = dict(zip(("x", "cos", "sin"), args, strict=False)) | kwargs
    x, cos, sin = (given.get(name) for name in ("x", "cos", "sin"))
    if not (isinstance(x, Node) and isinstance(cos, Node) and isinstance(sin, Node)):
        return args, kwargs
    layout = kwargs.get("layout", "flat")
    if x.rank < (3 if layout == "shd" else 2) or cos.rank != 2 or cos.shape != sin.shape:
        return args, kwargs
    rows = _places(x.shape, layout)[-1]
    longest = cos.shape[0]
    if not isinstance(rows, int) or not isinstance(longest, int) or longest <= rows:
        return args, kwargs
    first = {name: given[name].narrow(0, 0, rows) for name in ("cos", "sin")}
    rest = {name: value for name, value in given.items() if name not in ("x", "cos", "sin")}
    return (x, first["cos"], first["sin"], *args[3:]), rest


@rope.spelled_operands
def _(args: Sequence[Any]) -> tuple[int, ...]:
    """Three integers behind x are two tables, and head_dim."""
    tables = len(args) >= 4 and all(isinstance(item, int) for item in args[:4])
    return (1, 2) if tables else ()


def row_positions(x: Node, layout: str, offset: int) -> Node:
    rows = x.graph.iota((_places(x.shape, layout)[-1],))
    return rows + offset if offset else rows


@rope.expand
def _(
    x: Node,
    theta: float,
    head_dim: int,
    n_rot: int,
    offset: int,
    layout: Layout,
    interleaved: bool,
    inverse: bool,
    positions: Node | None,
) -> Node:
    if positions is None:
        places = row_positions(x, layout, offset)
    else:
        places = _as_i32(positions) + offset if offset else positions
    cos, sin = rope_tables(places, n_rot, theta, dtype=x.dtype)
    return rope_with_tables(
        x,
        cos,
        -sin if inverse else sin,
        head_dim=head_dim,
        n_rot=n_rot,
        layout=layout,
        interleaved=interleaved,
    )


@rope.vjp
def _(g: Node, out: Node, x: Node, positions: Node | None, inverse: bool, **attrs: Any) -> Any:
    return {"x": lambda: rope(g, positions=positions, inverse=not inverse, **attrs)}


@rope.vmap
def _(size: Dim, batched: dict[str, bool], x: Node, positions: Node | None, **attrs: Any) -> Node:
    if positions is not None and batched["positions"]:
        positions = align(positions, True, _places_rank(x, batched["x"], attrs["layout"]))
    return rope(x if batched["x"] else spread(x, size), positions=positions, **attrs)


# --------------------------------------------------------------------------- images


@composite(
    family=FAMILY,
    samples=[
        sample(spec(1, 6, 8), 3, 2, 4, 2, 100.0, 1),
        sample(spec(1, 12, 8), 3, 2, 8, 1, 10000.0, 2),
        sample(spec(2, 1, 4), 1, 1, 4, 1),
        sample(spec(0, 4), 0, 3, 4, 1),
    ],
)
def axial_rope2d(
    x: Float,
    end_x: int,
    end_y: int,
    head_dim: int,
    num_heads: int,
    theta: float = 10000.0,
    repeat_factor: int = 1,
    *,
    inverse: bool = False,
) -> TensorType:
    """Rotary embedding of the rows of an image, (..., length, num_heads * head_dim).

    The sequence runs along x, then y, with ``repeat_factor`` rows for each of the ``end_x * end_y`` places. Neighbours in
    the first half of a head turn by their x position, in the second half by y, with frequencies
    ``theta ** (-4 * i / head_dim)``. ``inverse`` turns back, which is also the gradient.
    """
    _check_theta(theta)
    for name, value in (
        ("head_dim", head_dim),
        ("num_heads", num_heads),
        ("repeat_factor", repeat_factor),
    ):
        if value < 1:
            raise ArgumentError(f"{name} must be at least 1, not {value}")
    if end_x < 0 or end_y < 0:
        raise ArgumentError(f"the image of {end_x} by {end_y} has a negative size")
    if head_dim % 4:
        raise ArgumentError(f"head_dim {head_dim} is not divisible by 4: two axes turn in pairs")
    if x.rank < 2:
        raise ShapeError(f"x has rank {x.rank}, not (..., length, num_heads * head_dim)")
    if x.shape[-1] != num_heads * head_dim:
        raise ShapeError(
            f"the last axis of x is {x.shape[-1]}, not num_heads * head_dim = {num_heads * head_dim}"
        )
    length = end_x * end_y * repeat_factor
    if x.shape[-2] != length:
        raise ShapeError(f"x has {x.shape[-2]} rows, not end_x * end_y * repeat_factor = {length}")
    return x


@axial_rope2d.expand
def _(
    x: Node,
    end_x: int,
    end_y: int,
    head_dim: int,
    num_heads: int,
    theta: float,
    repeat_factor: int,
    inverse: bool,
) -> Node:
    places = x.graph.iota((x.shape[-2],)) // repeat_factor
    columns = rope_tables(places % end_x, head_dim // 2, theta, dtype=x.dtype)
    rows = rope_tables(places // end_x, head_dim // 2, theta, dtype=x.dtype)
    cos, sin = (concat([column, row], -1) for column, row in zip(columns, rows, strict=True))
    turn = -sin if inverse else sin
    return rope_with_tables(x, cos, turn, head_dim=head_dim, interleaved=True)


@axial_rope2d.vjp
def _(g: Node, out: Node, x: Node, inverse: bool, **attrs: Any) -> Node:
    return axial_rope2d(g, inverse=not inverse, **attrs)


@axial_rope2d.vmap
def _(size: Dim, batched: dict[str, bool], x: Node, **attrs: Any) -> Node:
    return axial_rope2d(x, **attrs)


# --------------------------------------------------------------------------- other names
