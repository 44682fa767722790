"""The gradients of attention by ``wgmma``, in one launch of two kinds of blocks and without anything that is added to in turns.

Blocks of keys have 128 keys and values, and tiles of 64 queries and their gradients pass by; blocks of queries have 128 queries and gradients, and keys and values pass by. Neither exchanges anything while it
runs, and the two fill each other's gaps. Scores of keys are computed with keys as rows: probabilities and slopes never leave registers, which a product takes its rows from.

The query heads of a key head are a cluster, whose blocks add up their sums through each other's shared memory, in the order of heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from ....codegen.simt.attention.results import are_whole
from ....codegen.simt.builder import Value
from ....codegen.simt.dispatch import Stage, Written
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..instructions import threads
from ..instructions.assembly import Value as Raw
from ..machine import Machine
from .backward import GRADIENTS
from .hopper import HopperKernel, rows_map
from .hopper_blocks import BLOCK, Kind, Launched, Layout, Work, kinds_of
from .hopper_forward import ForwardKernel, hopper_cuts
from .kept import write_kept
from .problem import Problem
from .softmax import Known

MAPPED = ("q", "k", "v", "dy")
"""Operands that tensor maps bring."""
MOST_TOGETHER = 8
"""Blocks of a cluster that every card takes."""
REGISTERS = 24, 240
"""Of a thread that brings, and of one that multiplies."""
L2_SHARE = 0.7
"""Of the L2 cache, for operands that blocks which run together read again."""


def can_write_hopper_backward(spec: Spec, machine: Machine, problem: Problem) -> bool:
    """Whether the gradients are computed so."""
    layout = Layout.of(problem, machine)
    if layout is None or not hopper_cuts(problem, machine):
        return False
    if problem.attention.group > MOST_TOGETHER:
        return False
    if not are_whole(spec, range(len(spec.body.outputs))):
        return False
    return all(rows_map(problem, name, layout.rows) is not None for name in MAPPED)


def write_hopper_backward(spec: Spec, machine: Machine, problem: Problem) -> Written:
    """The launches of the gradients that the body's results name."""
    found = {
        GRADIENTS[output.attrs["index"]]: i
        for i, output in enumerate(spec.body.outputs)
        if prod(sizes(output))
    }
    if not found:
        return Written(())
    cut = hopper_cuts(problem, machine)[0]
    known = Known.of(problem, 64 * cut.groups)
    if problem.attention.reads_kept:
        first = write_kept(spec, machine, known)
    else:
        first = ForwardKernel(spec, machine, problem, cut, known).write()
    second = BackwardKernel(spec, machine, known, found).write()
    if problem.attention.reads_kept:
        second = replace(second, early=True)
    return Written((first, second), known.nbytes)


class BackwardKernel:
    """The kernel while it is written.

    Args:
        spec: what is computed.
        machine: for which GPU.
        known: what is kept of queries.
        found: the numbers of the results, by what they are gradients of.
    """

    def __init__(self, spec: Spec, machine: Machine, known: Known, found: dict[str, int]) -> None:
        self.spec, self.known, self.found, self.problem = spec, known, found, known.problem
        self.attention = self.problem.attention
        layout = Layout.of(self.problem, machine)
        if layout is None:
            raise InternalError("there is too little shared memory for these gradients")
        self.layout = layout
        kernel = HopperKernel(spec, machine, self.problem, 2, self.layout.nbytes)
        self.kernel, self.builder, b = kernel, kernel.builder, kernel.builder
        kernel.row = b.let(kernel.first_row + (kernel.lane >> 2), "row_of_half")
        self.together = self.attention.group
        b.cluster = (self.together, 1, 1)
        self.rank: Value = b.held(threads.cluster_rank(b.ir)) if self.together > 1 else b.index(0)
        self.kinds = kinds_of(self.problem, found)
        self.maps: dict[str, Raw] = {}
        for name in MAPPED:
            described = rows_map(self.problem, name, layout.rows)
            if described is not None:
                self.maps[name] = b.tensor_map(described)
        self.section = self._section(machine)

    def _section(self, machine: Machine) -> int:
        """Key heads whose operands fit the L2 cache together: a divisor of all of them."""
        attention, rows = self.attention, self.problem.rows
        each = attention.keys * (rows["k"].width + rows["v"].width)
        each += self.together * attention.queries * (rows["q"].width + rows["dy"].width)
        total = attention.batch * attention.kv_heads
        most = max(1, int(L2_SHARE * machine.l2) // (2 * each))
        return max(n for n in range(1, total + 1) if total % n == 0 and n <= most)

    def _levels(self, kind: Kind) -> int:
        """Blocks of rows of a head."""
        return ceil_div(self.attention.queries if kind.by_query else self.attention.keys, BLOCK)

    # ------------------------------------------------------------- the kernel

    def write(self) -> Stage:
        """Write it."""
        b, kernel, attention = self.builder, self.kernel, self.attention
        per, levels = self.section * len(self.kinds), max(map(self._levels, self.kinds))
        number = b.let(b.group // self.together)
        section, inside = b.let(number // (per * levels)), b.let(number % (per * levels))
        level, rest = b.let(inside // per, "level"), b.let(inside % per)
        head = b.let(section * self.section + rest % self.section)
        self.which = b.let(rest // self.section, "which")
        batch = b.let(head // attention.kv_heads, "batch")
        kv_head = b.let(head % attention.kv_heads, "kv_head")
        self.own = Launched(
            spec=self.spec,
            kernel=kernel,
            layout=self.layout,
            known=self.known,
            memory=self.known.memory(kernel),
            found=self.found,
            maps=self.maps,
            level=level,
            batch=batch,
            head=b.let(kv_head * self.together + self.rank, "head"),
            kv_head=kv_head,
            rank=self.rank,
            together=self.together,
        )
        kernel.write_start(batch)
        layout = self.layout
        kernel.initialise((layout.held_in, layout.full, layout.empty), list(self.maps.values()))
        if self.together > 1:
            threads.cluster_sync(b.ir)
        with b.if_(kernel.group == 2):
            threads.set_max_registers(b.ir, REGISTERS[0], more=False)
            self._by_kind(self._produce)
        with b.else_():
            threads.set_max_registers(b.ir, REGISTERS[1], more=True)
            self._by_kind(self._consume)
        total = attention.batch * attention.kv_heads * len(self.kinds) * levels
        return kernel.dispatch.finish(total * self.together)

    def _by_kind(self, write: Callable[[Work], None]) -> None:
        """What blocks of each kind do; there are no rows for some."""
        b = self.builder
        most = max(map(self._levels, self.kinds))
        for number, kind in enumerate(self.kinds):
            exists = self.own.level < self._levels(kind) if self._levels(kind) < most else None
            own = self._is(number)
            with b.if_(own, exists):
                write(Work(self.own, kind))

    def _is(self, number: int) -> Value | None:
        """Whether the block is of a kind, by comparisons that do not become a table of jumps; None where all are."""
        last = len(self.kinds) - 1
        if not last:
            return None
        if number == 0:
            return self.which < 1
        return self.which >= last if number == last else self.which == number

    def _produce(self, work: Work) -> None:
        b, kernel = self.builder, self.kernel
        with b.if_(kernel.warp == 8):
            with b.if_(b.held(threads.elect(b.ir)) == 1):
                work.produce()
            threads.sync_warp(b.ir)
        if self.together > 1 and not work.kind.by_query:
            threads.cluster_sync(b.ir)
            threads.cluster_sync(b.ir)

    def _consume(self, work: Work) -> None:
        work.consume()
