"""The micro-kernel of contractions: a tile of C kept in registers while k runs.

One function per (type, tile, form of A) serves every shape: strides and lengths are arguments. It reads B as a panel
``P[k][width]`` and A in one of two forms: ``rows`` (k is contiguous) or ``columns`` (the rows of a k are contiguous).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ...graph.errors import ArgumentError
from .gemm_ir import (
    STORAGE_BYTES,
    accumulator_of,
    broadcast,
    fused_multiply_add,
    i64,
    ir,
    load,
    loop,
    offset,
    prefetch,
    zero,
)

UNROLL = 4


class Machine(Protocol):
    """What the template asks of a machine."""

    @property
    def vector_bytes(self) -> int:
        """The width of its vector registers: 64 (AVX-512), 32 (AVX2) or 16 (NEON, SSE)."""


@dataclass(frozen=True)
class Tile:
    """A tile of C in registers: ``rows`` by ``vectors`` vectors of ``lanes`` elements.

    >>> Tile(8, 3, 16).width
    48
    """

    rows: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes


def choose_tile(machine: Machine, dtype: str) -> Tile:
    """The tile that fills a machine's registers and leaves room for B's vectors and one of A.

    >>> from types import SimpleNamespace
    >>> choose_tile(SimpleNamespace(vector_bytes=64), "f32")
    Tile(rows=8, vectors=3, lanes=16)
    >>> choose_tile(SimpleNamespace(vector_bytes=32), "f64")
    Tile(rows=6, vectors=2, lanes=4)
    """
    shapes = {64: (8, 3), 32: (6, 2), 16: (8, 3)}
    if machine.vector_bytes not in shapes:
        raise ArgumentError(
            f"contractions have tiles for vectors of 16, 32 and 64 bytes, not {machine.vector_bytes}"
        )
    rows, vectors = shapes[machine.vector_bytes]
    return Tile(rows, vectors, machine.vector_bytes // STORAGE_BYTES[accumulator_of(dtype)])


def tile_kernel(module: Any, tile: Tile, panel: str, form: str) -> Any:
    """The micro-kernel over panels of type ``panel``, emitted once per module.

    Its signature is ``(k, a*, a_stride, b*, out*, out_stride, keep, next*)``. ``out[row * out_stride + column]`` gets
    the sums, added to what stands there when ``keep`` is set. ``a`` has the accumulator type; ``a_stride`` is the
    distance of two rows (form ``rows``) or of two k (form ``columns``). A line of ``next`` is prefetched every
    four k, one after the other.
    """
    types = ir()
    name = f"darner.tile.{panel}.{tile.rows}x{tile.vectors}x{tile.lanes}.{form}"
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    arguments = [word, pointer, word, pointer, pointer, word, types.IntType(1), pointer]
    function = types.Function(module, types.FunctionType(types.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    _emit_kernel(function, tile, panel, form)
    return function


def _emit_kernel(function: Any, tile: Tile, panel: str, form: str) -> None:
    types = ir()
    dtype = accumulator_of(panel)
    k, a, a_stride, b, out, out_stride, keep, following = function.args
    builder = types.IRBuilder(function.append_basic_block("entry"))
    places = [
        offset(builder, out, dtype, builder.mul(out_stride, i64(row)), vector * tile.lanes)
        for row in range(tile.rows)
        for vector in range(tile.vectors)
    ]
    fresh = builder.block
    reading = builder.append_basic_block("keep")
    start = builder.append_basic_block("start")
    builder.cbranch(keep, reading, start)
    builder.position_at_end(reading)
    kept = [load(builder, place, dtype, tile.lanes) for place in places]
    builder.branch(start)
    builder.position_at_end(start)
    sums = []
    for value in kept:
        phi = builder.phi(value.type)
        phi.add_incoming(zero(dtype, tile.lanes), fresh)
        phi.add_incoming(value, reading)
        sums.append(phi)

    def addresses(index: Any) -> list[Any]:
        if form == "columns":
            return [offset(builder, a, dtype, builder.mul(index, a_stride))]
        return [
            offset(builder, a, dtype, builder.mul(a_stride, i64(row)), index)
            for row in range(tile.rows)
        ]

    def steps(index: Any, values: Any, count: int) -> list[Any]:
        """``count`` consecutive k from ``index``."""
        totals = list(values)
        panel_row = offset(builder, b, panel, builder.mul(index, i64(tile.width)))
        starts = addresses(index)
        for step in range(count):
            columns = [
                load(
                    builder,
                    offset(builder, panel_row, panel, step * tile.width + vector * tile.lanes),
                    panel,
                    tile.lanes,
                )
                for vector in range(tile.vectors)
            ]
            if form == "columns" and step:
                starts = [offset(builder, starts[0], dtype, a_stride)]
            for row in range(tile.rows):
                place = (
                    offset(builder, starts[0], dtype, row)
                    if form == "columns"
                    else offset(builder, starts[row], dtype, step)
                )
                value = broadcast(builder, load(builder, place, dtype, 1), tile.lanes)
                for vector, column in enumerate(columns):
                    at = row * tile.vectors + vector
                    totals[at] = fused_multiply_add(builder, value, column, totals[at], tile.lanes)
        return totals

    def unrolled(index: Any, values: Any) -> list[Any]:
        # 64 bytes for every four k.
        place = builder.mul(index, i64(64 // UNROLL))
        prefetch(builder, builder.gep(following, [place], source_etype=types.IntType(8)))
        return steps(index, values, UNROLL)

    whole = builder.and_(k, i64(-UNROLL))
    sums = loop(builder, i64(0), whole, UNROLL, unrolled, sums)
    sums = loop(builder, whole, k, 1, lambda index, values: steps(index, values, 1), sums)
    for value, place in zip(sums, places, strict=True):
        builder.store(value, place, align=STORAGE_BYTES[dtype])
    builder.ret_void()
