"""Sums stored by tensor maps: through pieces of shared memory, whole lines at a time, clipped at the edges of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ....codegen.simt.builder import Value
from ....codegen.simt.contract.product import Axis, Product, Steps
from ....codegen.simt.dispatch import Binding, Dispatch
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.graph import Graph
from ..instructions import barriers, copies, mma, numbers
from ..instructions.assembly import Value as Pointer
from ..printer import Printer
from ..stage import TensorMap
from .fragments import Corner, Fragment

ROW = 128
SLAB = 64 * ROW
"""Bytes of a slab: 64 rows of 128 bytes."""
WARPGROUP = 128


@dataclass(frozen=True)
class ResultMap:
    """A result that tensor maps can write.

    Attributes:
        described: its tensor map.
        dtype: of its elements.
        batch: sizes and strides of its batch axes.
    """

    described: TensorMap
    dtype: DType
    batch: Steps

    @property
    def columns(self) -> int:
        """Columns of a slab."""
        return ROW // self.dtype.itemsize


@dataclass(frozen=True)
class Slabs:
    """The slabs of a warpgroup: its number, where they are in shared memory, and how many."""

    group: Value
    address: Value
    count: int


def result_map(product: Product, body: Graph) -> ResultMap | None:
    """How a product's sums are written by tensor map: if nothing but a cast comes after them, and they lie in rows of whole 16 bytes."""
    if len(body.outputs) != 1 or product.halves:
        return None
    (output,) = body.outputs
    node = product.node
    casts = output.op.name == "cast" and output.operands[0].id == node.id
    if output.id != node.id and not (casts and node.dtype is dtypes.f32):
        return None
    if output.dtype.name not in ("f32", "bf16", "f16"):
        return None
    if not all(axis.plain for axis in (*product.rows, *product.columns)):
        return None
    size = output.dtype.itemsize
    rows, columns, batch = (
        _merged(axes) for axes in (product.rows, product.columns, product.batch)
    )
    if len(rows) != 1 or len(columns) != 1 or columns[0][1] != 1 or len(batch) > 3:
        return None
    strides = [rows[0][1], *(stride for _, stride in batch[::-1])]
    if any(stride * size % 16 for stride in strides):
        return None
    described = TensorMap(
        Binding("result", 0),
        0,
        output.dtype.name,
        (columns[0][0], rows[0][0], *(count for count, _ in batch[::-1])),
        tuple(stride * size for stride in strides),
        (ROW // size, 64, *(1 for _ in batch)),
        swizzle=ROW,
    )
    return ResultMap(described, output.dtype, batch)


def _merged(axes: Sequence[Axis]) -> Steps:
    """Sizes and strides in the result, axes that follow each other taken as one."""
    found: list[tuple[int, int]] = []
    for axis in axes:
        if found and found[-1][1] == axis.size * axis.apart:
            found[-1] = found[-1][0] * axis.size, axis.apart
        else:
            found.append((axis.size, axis.apart))
    return tuple(found)


class SlabWriter:
    """Writes the sums of warpgroups.

    Args:
        dispatch: where the code goes.
        result: where they go.
    """

    def __init__(self, dispatch: Dispatch, result: ResultMap) -> None:
        self.builder = cast(Printer, dispatch.builder)
        self.places = dispatch.elements().places
        self.result = result
        self.map: Pointer = self.builder.tensor_map(result.described)

    def write(self, slabs: Slabs, corner: Corner, rows: Sequence[Sequence[Fragment]]) -> None:
        """Write the sums of a warpgroup: for each 64 rows the fragments of 8 columns each."""
        b = self.builder
        per = self.result.columns // 8
        index = self.places.split(corner.batch, [size for size, _ in self.result.batch])
        batch = [b.raw(self.places.value(i)) for i in reversed(index)]
        jobs = [
            (r, j, fragments[j : j + per])
            for r, fragments in enumerate(rows)
            for j in range(0, len(fragments), per)
        ]
        leader = b.let((b.local & (WARPGROUP - 1)) == 0)
        barrier = b.raw(slabs.group + 1)
        for number, (r, j, fragments) in enumerate(jobs):
            address = b.let(slabs.address + number % slabs.count * SLAB)
            # The slab was read to its end; of the tile before, it may be the last one.
            under_way = 0 if number == 0 and len(jobs) % slabs.count else slabs.count - 1
            with b.if_(leader):
                copies.bulk_wait(b.ir, under_way)
            barriers.named_barrier(b.ir, barrier, WARPGROUP)
            self._fill(address, fragments)
            barriers.fence_async(b.ir)
            barriers.named_barrier(b.ir, barrier, WARPGROUP)
            with b.if_(leader):
                at = [b.raw(corner.column + 8 * j), b.raw(corner.row + 64 * r), *batch]
                copies.tensor_store(b.ir, self.map, at, b.raw(address))
                copies.bulk_commit(b.ir)

    def _fill(self, address: Value, fragments: Sequence[Fragment]) -> None:
        """Write a warp's sums to its 16 rows of a slab."""
        b, dtype = self.builder, self.result.dtype
        lane = b.let(b.local & 31)
        first = b.let((b.local // 32 & 3) * 16)
        if dtype is dtypes.f32:
            self._fill_wide(address, fragments, lane, first)
            return
        pack = numbers.pack_bf16 if dtype is dtypes.bf16 else numbers.pack_f16
        row, piece = b.let(first + (lane & 15)), b.let(lane >> 4)
        for q in range(0, len(fragments), 2):
            words = [
                pack(b.ir, b.raw(fragment[2 * h]), b.raw(fragment[2 * h + 1]))
                for fragment in fragments[q : q + 2]
                for h in range(2)
            ]
            at = b.let(address + row * ROW + (((piece + q) ^ (row & 7)) << 4))
            mma.stmatrix(b.ir, b.raw(at), words)

    def _fill_wide(
        self, address: Value, fragments: Sequence[Fragment], lane: Value, first: Value
    ) -> None:
        b = self.builder
        for q, fragment in enumerate(fragments):
            for h in range(2):
                row = b.let(first + (lane >> 2) + 8 * h)
                piece = b.let((((lane & 3) >> 1) + 2 * q) ^ (row & 7))
                at = b.let(address + row * ROW + (piece << 4) + ((lane & 1) << 3))
                values = [b.raw(x) for x in fragment[2 * h : 2 * h + 2]]
                copies.store_shared(b.ir, b.raw(at), values)
