"""A kernel of attention by ``wgmma`` while it is written: one warp brings tiles by tensor maps, warpgroups multiply them (sm_90a).

A tile lies in slabs of 64 elements by its rows: 128 bytes a row, swizzled. A warpgroup has 64 rows of its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from ....codegen.ir.index import Number
from ....codegen.simt.attention.operands import Place
from ....codegen.simt.attention.results import RowBlock, write_unit
from ....codegen.simt.builder import Value, Variable
from ....codegen.simt.dispatch import Binding, operand_number
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import row_major
from ..instructions import barriers, copies, mma, threads, wgmma
from ..instructions.assembly import F32, I32, I64
from ..instructions.assembly import Value as Raw
from ..instructions.warp import NativeCores
from ..machine import Machine
from ..printer import Printer
from ..stage import TensorMap
from .problem import Problem, Rows
from .rows import Fragments, RowKernel

ROW = wgmma.ROW
WIDE = 64
"""Elements of a row of a slab."""
SLAB = 64 * ROW
"""Bytes of a slab of 64 rows."""
WARPGROUP = 128
WARPS = 4
"""Of a warpgroup, each of which tells when it has read a stage."""


def slabs_of(rows: Rows) -> int:
    """Slabs that a row of an operand goes through."""
    return ceil_div(rows.padded, WIDE)


def rows_map(problem: Problem, name: str, count: int) -> TensorMap | None:
    """The tensor map of an operand in slabs of so many rows; None where it cannot be one."""
    attention, rows = problem.attention, problem.rows[name]
    heads = attention.kv_heads if name in ("k", "v") else attention.heads
    shape = (rows.width, rows.count, heads, attention.batch)
    # Of an axis of one element any stride will do; others must not repeat what is there.
    given = zip(shape[1:], rows.strides[::-1], strict=True)
    strides = [stride if size > 1 else rows.width for size, stride in given]
    if any(stride <= 0 for stride in strides):
        return None
    return TensorMap(
        Binding("operand", operand_number(rows.leaf)),
        rows.offset * 2,
        problem.dtype.name,
        shape,
        tuple(stride * 2 for stride in strides),
        (WIDE, count, 1, 1),
        swizzle=ROW,
    )


def result_map(problem: Problem, node: Node, number: int) -> TensorMap | None:
    """The tensor map of a result in slabs of 64 rows, if it has the factors' type."""
    if node.dtype is not problem.dtype:
        return None
    shape, strides = sizes(node), row_major(sizes(node))
    axes = (3, 2, 1, 0) if problem.attention.layout == "bhsd" else (3, 1, 2, 0)
    return TensorMap(
        Binding("result", number),
        0,
        node.dtype.name,
        tuple(shape[axis] for axis in axes),
        tuple(strides[axis] * 2 for axis in axes[1:]),
        (WIDE, 64, 1, 1),
        swizzle=ROW,
    )


class Ring:
    """The stage that comes next, and the parity of its phase."""

    def __init__(self, builder: Printer, stages: int) -> None:
        self.builder, self.stages = builder, stages
        self._stage = builder.variable(builder.index(0), "stage")
        self._phase = builder.variable(builder.index(0), "phase")

    @property
    def stage(self) -> Value:
        """The number of the stage."""
        return self.builder.let(self._stage, "stage")

    @property
    def phase(self) -> Value:
        """Its parity."""
        return self.builder.let(self._phase, "phase")

    def advance(self) -> None:
        """Go on to the next."""
        b = self.builder
        following = b.let(self._stage + 1)
        wraps = b.let(following == self.stages)
        self._stage.set(b.choose(wraps, 0, following))
        self._phase.set(self._phase ^ b.bits(wraps))


@dataclass(frozen=True)
class Barriers:
    """Barriers in shared memory, one for each stage.

    Attributes:
        at: the first one's distance from the beginning.
        stages: how many.
        count: arrivals that a phase waits for.
    """

    at: int
    stages: int
    count: int

    @property
    def end(self) -> int:
        """Where other barriers may begin."""
        return self.at + 8 * self.stages


class HopperKernel(RowKernel):
    """A launch by ``wgmma``.

    Args:
        spec: what is computed.
        machine: for which GPU.
        problem: the same as a problem.
        groups: warpgroups that multiply; one more brings.
        nbytes: of shared memory.

    Attributes:
        warp: the number of the warp, which the assembler knows to be the same in all lanes.
        group: the number of the warpgroup.
    """

    builder: Printer

    def __init__(
        self, spec: Spec, machine: Machine, problem: Problem, groups: int, nbytes: int
    ) -> None:
        super().__init__(spec, machine, problem, WARPGROUP * (groups + 1), True)
        b = self.builder
        self.groups, self.block = groups, 64 * groups
        b.blocks_together(1)
        self.base = NativeCores(b, nbytes).base
        self.warp = b.held(threads.warp_uniform(b.ir, b.raw(b.local // 32)))
        self.group = b.let(self.warp // 4, "group")
        self.own_thread = b.let(b.local & (WARPGROUP - 1), "own_thread")
        self.first_row = b.let((self.warp & 3) * 16, "first_row")
        self.row = b.let(self.group * 64 + (self.first_row + (self.lane >> 2)), "own_row")

    # ------------------------------------------------------------- barriers

    def initialise(self, groups: Sequence[Barriers], maps: Sequence[Raw]) -> None:
        """Initialise all barriers, and let the block see them; tensor maps are on their way meanwhile."""
        b = self.builder
        with b.if_(b.local == 0):
            for map_ in maps:
                copies.tensor_prefetch(b.ir, map_)
            with b.if_((self.base & 1023) != 0):
                threads.trap(b.ir)
            for group in groups:
                for stage in range(group.stages):
                    address = self.barrier(group, stage)
                    barriers.barrier_init(b.ir, b.raw(address), group.count)
            barriers.fence_barrier_init(b.ir)
        b.barrier()

    def barrier(self, group: Barriers, stage: Number = 0) -> Value:
        """The address of a barrier."""
        return self.builder.let(self.base + (stage * 8 + group.at))

    def wait(self, group: Barriers, stage: Number, phase: Number) -> None:
        """Wait for a phase of a barrier."""
        b = self.builder
        barriers.barrier_wait(b.ir, b.raw(self.barrier(group, stage)), b.raw(b.index(phase)))

    def expect(self, group: Barriers, stage: Number, nbytes: int) -> Value:
        """Announce what copies bring; returns the barrier's address."""
        b = self.builder
        address = self.barrier(group, stage)
        barriers.barrier_expect(b.ir, b.raw(address), nbytes)
        return address

    def release(self, group: Barriers, stage: Number) -> None:
        """Tell that this warp has read a stage: one may be behind the others of its warpgroup."""
        b = self.builder
        address = self.barrier(group, stage)
        with b.if_(self.lane == 0):
            barriers.barrier_arrive(b.ir, b.raw(address))

    # ------------------------------------------------------------- bringing

    def bring(self, map_: Raw, to: Value, at: Sequence[Number], barrier: Value) -> None:
        """Copy a slab by a tensor map: its first element, row, head and batch."""
        b = self.builder
        given = [b.raw(b.index(x)) for x in at]
        copies.tensor_load(b.ir, b.raw(to), map_, given, b.raw(barrier))

    def bring_rows(
        self,
        name: str,
        map_: Raw,
        to: Value,
        count: int,
        at: tuple[Number, Number, Number],
        barrier: Value,
    ) -> None:
        """Copy all slabs of ``count`` rows of an operand from a row, head and batch on."""
        b = self.builder
        for slab in range(slabs_of(self.problem.rows[name])):
            address = b.let(to + slab * count * ROW)
            self.bring(map_, address, (WIDE * slab, *at), barrier)

    # ------------------------------------------------------------- products

    def described(self, address: Value, lead: int = 16) -> Raw:
        """The descriptor of an operand; ``lead`` is the distance of slabs of one that is not contiguous along K."""
        b = self.builder
        low = b.let(((address & 0x3FFFF) >> 4) | ((lead >> 4) << 16))
        wide = b.ir.zext(b.raw(low), I64)
        return b.ir.or_(wide, ir.Constant(I64, (1 << 62) | ((8 * ROW >> 4) << 32)))

    def along_terms(self, address: Value, count: int, terms: int) -> list[Raw]:
        """Descriptors of an operand of ``count`` rows that is contiguous along K: for each 16 terms."""
        b, first = self.builder, self.described(address)
        each = count * ROW
        steps = [(k // 4 * each + k % 4 * 32) >> 4 for k in range(terms // 16)]
        return [b.ir.add(first, ir.Constant(I64, step)) for step in steps]

    def along_columns(self, address: Value, count: int) -> list[Raw]:
        """Descriptors of B whose ``count`` terms are rows: for each 16 terms."""
        b, first = self.builder, self.described(address, count * ROW)
        return [b.ir.add(first, ir.Constant(I64, k * 16 * ROW >> 4)) for k in range(count // 16)]

    def fresh(
        self, columns: int, lefts: Sequence[Raw | Sequence[Raw]], rights: Sequence[Raw]
    ) -> list[Raw]:
        """Start products whose sums begin at 0, as a group: columns of B are rows, contiguous along K."""
        shape = wgmma.Shape(self.problem.dtype.name, columns)
        sums = [ir.Constant(F32, ir.Undefined)] * shape.sums
        pairs = list(zip(lefts, rights, strict=True))
        return wgmma.wgmma(self.builder.ir, shape, sums, pairs, keep=ir.Constant(I32, 0))

    def added(
        self,
        sums: Sequence[Raw],
        words: Sequence[Sequence[Raw]],
        rights: Sequence[Raw],
        *,
        fence: bool = True,
        commit: bool = True,
    ) -> list[Raw]:
        """Start products of fragments that add to sums, as a group: terms of B are rows."""
        shape = wgmma.Shape(self.problem.dtype.name, 2 * len(sums), right_along_k=False)
        pairs = list(zip(words, rights, strict=True))
        return wgmma.wgmma(self.builder.ir, shape, sums, pairs, fence=fence, commit=commit)

    def waited(
        self, sums: Sequence[Raw], most: int = 0, keep: Sequence[Sequence[Raw]] = ()
    ) -> list[Raw]:
        """Wait until at most so many groups are under way; ``keep`` are fragments that they read until then."""
        flat = [word for words in keep for word in words]
        return wgmma.wgmma_wait(self.builder.ir, sums, most, flat)

    def fragments(self, raw: Sequence[Raw], name: str) -> Fragments:
        """Sums as variables."""
        b = self.builder
        held: list[Variable] = [b.variable(b.held(value), name) for value in raw]
        return [[held[i : i + 4] for i in range(0, len(held), 4)]]

    def words(self, sums: Fragments) -> list[list[Raw]]:
        """Sums as fragments of A."""
        return [[self.builder.raw(word) for word in words] for words in self.packed(sums)]

    # ------------------------------------------------------------- results

    def store_slabs(
        self, map_: Raw, room: Value, sums: Fragments, at: tuple[Number, Number, Number]
    ) -> None:
        """Store a warpgroup's sums by a tensor map, from a row, head and batch on; ``room`` is its own, one slab after the other."""
        b, (fours,) = self.builder, sums
        barrier = b.raw(b.let(self.group + 1))
        pack = self.ops.pack
        barriers.named_barrier(b.ir, barrier, WARPGROUP)
        row, piece = b.let(self.first_row + (self.lane & 15)), b.let(self.lane >> 4)
        for q in range(0, len(fours), 2):
            words = [
                b.raw(pack(four[2 * h], four[2 * h + 1], self.problem.dtype))
                for four in fours[q : q + 2]
                for h in range(2)
            ]
            to = room + (q // 8 * SLAB) + row * ROW + (((piece + q % 8) ^ (row & 7)) << 4)
            mma.stmatrix(b.ir, b.raw(b.let(to)), words)
        barriers.fence_async(b.ir)
        barriers.named_barrier(b.ir, barrier, WARPGROUP)
        with b.if_(self.own_thread == 0):
            for slab in range(ceil_div(len(fours), 8)):
                given = [b.raw(b.index(x)) for x in (WIDE * slab, *at)]
                copies.tensor_store(b.ir, map_, given, b.raw(b.let(room + slab * SLAB)))
            copies.bulk_commit(b.ir)
            copies.bulk_wait(b.ir)

    def write_pairs(
        self, sums: Fragments, node: Node, numbers: Sequence[int], place: Place, limit: int
    ) -> None:
        """Write sums from registers: the elements of ``node``, of which the results ``numbers`` are made."""
        b, (fours,) = self.builder, sums
        for half in range(2):
            row = b.let(self.row + place.first + 8 * half)
            with b.if_(row < limit):
                for j, four in enumerate(fours[: int(node.shape[-1]) // 8]):
                    self._write_pair(four[2 * half : 2 * half + 2], node, numbers, place, (row, j))

    def write_pair(
        self,
        pair: Sequence[Value],
        node: Node,
        number: int,
        place: Place,
        at: tuple[Value, Value, int],
    ) -> None:
        """Write one pair of sums: which 8 columns, which half of rows, and how many rows there are."""
        b, (j, half, limit) = self.builder, at
        row = b.let(self.row + place.first + half * 8)
        with b.if_(row < limit, j < int(node.shape[-1]) // 8):
            self._write_pair(pair, node, [number], place, (row, j))

    def _write_pair(
        self,
        pair: Sequence[Value],
        node: Node,
        numbers: Sequence[int],
        place: Place,
        at: tuple[Value, Number],
    ) -> None:
        pending = list(pair)

        def element(row: Value, column: Value) -> Value:
            return pending.pop(0)

        block = RowBlock(node, numbers, place, self.block, self.block, element, element)
        unit = self.builder.let((self.column >> 1) + at[1] * 4)
        write_unit(self, block, (at[0], at[0]), unit, 2)
