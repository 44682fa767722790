"""What the code of a loop is made of: the functions of a step, the memory it needs, and after which kernels threads wait."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from ....graph.graph import Graph
from ....graph.integers import round_up
from ....io.memory import ALIGNMENT
from ....lower.groups import Fusing
from ....lower.loop_rows import of_rows, row_count, rows_each
from ....lower.loops import CARRY, CONSTANT, Loop, loop_of
from ....lower.lower import lower
from ....lower.plan import Buffer, Kernel, Plan, Spec
from ....lower.work import KernelWork, kernel_work
from ..contract.template import CONTRACT, order_of_sums
from ..emit.template import Packing, Scratch, Template
from ..emit.work_queue import WORDS
from ..model import CpuModel
from ..runtime.jit import Machine

WORD_BYTES = 8 * WORDS
"""Bytes of the words that a kernel has of its own."""
BARRIER = 1500.0
"""Cycles until all threads have met, and have what the others wrote."""
CALL = 60.0
"""Cycles of a kernel that has next to nothing to do."""
LEAST_STEPS = 8
"""Steps from which on it pays to pack what products of a few rows read, which could read it as it is."""
ELEMENT = 4.0
"""Cycles of an operation on a vector that is no product."""
KEPT = 1 / 2
"""Of the cache next to a core, what all rows read, where each thread takes rows of its own: it is read in every step."""
READ = 24.0
"""Bytes of that which a product of a few rows reads in a cycle."""
KINDS = ("state", "input")


@dataclass(frozen=True)
class Step:
    """A kernel of a step, as code.

    Attributes:
        kernel: of the step's plan.
        spec: what it computes; ``template`` writes it.
        function: the number of its function: kernels that are the same code have one.
        packing: the operand that it takes packed, where it does.
        waits: whether all threads wait after it.
    """

    kernel: Kernel
    spec: Spec
    template: Template
    function: int
    packing: Packing | None
    waits: bool


@dataclass(frozen=True)
class Layout:
    """A loop as the driver runs it.

    Attributes:
        loop: what is repeated.
        steps: its kernels.
        rooms: where in the shared scratch memory carries are that are no results, by number, and the buffers that they change places with.
        packed: by operand of the step and key of the packing, where in it that is packed.
        arena: where in it the arena of a step begins.
        rest: where in it begins what kernels of a step may use.
        scratch: what the kernel needs.
        alone: whether one thread does it all, because sharing takes longer.
    """

    loop: Loop
    steps: tuple[Step, ...]
    rooms: dict[int, int]
    packed: dict[tuple[int, str], int]
    arena: int
    rest: int
    scratch: Scratch
    alone: bool


@lru_cache(maxsize=1024)
def layout_of(spec: Spec, machine: Machine) -> Layout:
    """The layout of a loop on a machine."""
    return _laid_out(loop_of(spec), machine)


def _laid_out(loop: Loop, machine: Machine) -> Layout:
    needs = [_template(inner).scratch(inner, machine) for inner in loop.plan.specs.values()]
    steps = _steps(loop, machine)
    place = round_up(len(steps) * WORD_BYTES, ALIGNMENT)
    rooms: dict[int, int] = {}
    states = loop.plan.leaves("state")
    apart = [states[name] for name in loop.carries if _needs_room(loop, name)]
    for number in (*apart, *loop.exchanged.values()):
        rooms[number] = place
        place += round_up(loop.plan.buffers[number].nbytes, ALIGNMENT)
    arena = place
    place += round_up(loop.plan.arena_bytes, ALIGNMENT)
    packed: dict[tuple[int, str], int] = {}
    for step in steps:
        if step.packing is not None:
            operand = step.kernel.operands[step.packing.operand]
            if (operand, step.packing.key) not in packed:
                packed[operand, step.packing.key] = place
                place += round_up(step.packing.nbytes, ALIGNMENT)
    shared = max((need.shared for need in needs), default=0)
    own = max((need.own for need in needs), default=0)
    scratch = Scratch(own, place + shared)
    alone = _is_quicker_alone(loop.plan, steps, machine)
    return Layout(loop, tuple(steps), rooms, packed, arena, place, scratch, alone)


@dataclass(frozen=True)
class Rows:
    """A loop of which each thread takes some rows through all steps, without waiting for the others.

    Attributes:
        counts: rows of each thread that has some, larger ones first.
        layouts: of the loop of so many rows, by their number.
    """

    counts: tuple[int, ...]
    layouts: dict[int, Layout]


@lru_cache(maxsize=1024)
def rows_of(spec: Spec, machine: Machine) -> Rows | None:
    """A loop by rows, where its rows know nothing of each other, and threads are done sooner than if they met in every step."""
    model = CpuModel.of(machine)
    count = row_count(spec.body) if spec.inner is not None and model.threads > 1 else None
    if count is None or any(kernel.checks for kernel in loop_of(spec).plan.kernels):
        return None
    whole = layout_of(spec, machine)
    counts = rows_each(count, min(count, model.threads))
    layouts: dict[int, Layout] = {}
    for rows in sorted({*counts}):
        plan = _step_of(of_rows(spec.body, rows), whole.loop.plan)
        if plan is None:
            return None
        layouts[rows] = _laid_out(replace(whole.loop, plan=plan), machine)
        if _orders(layouts[rows], machine) != _orders(whole, machine):
            return None
    found = Rows(tuple(counts), layouts)
    return found if _rows_are_quicker(whole, layouts[counts[0]], machine) else None


def _step_of(kernel: Graph, whole: Plan) -> Plan | None:
    """The plan of a step of a loop's kernel, with the leaves of the whole one's."""
    from ....lower.roles import ended_ops

    made = lower(kernel, target=whole.target, ended=ended_ops(), fusing=Fusing(places_parts=True))
    plans = [spec.inner for spec in made.specs.values() if spec.inner is not None]
    if len(plans) != 1 or plans[0] is None or len(made.kernels) != 1:
        return None
    (plan,) = plans
    alike = all(plan.leaves(kind).keys() == whole.leaves(kind).keys() for kind in KINDS)
    written = all(_template_or_none(spec) is not None for spec in plan.specs.values())
    return plan if alike and written else None


def _orders(layout: Layout, machine: Machine) -> list[Hashable]:
    """What the bits of a step depend on: the orders of its sums. How those of kernels other than maps and products are made nobody says."""
    return [
        order_of_sums(step.spec, machine, step.packing is not None)
        if step.template is CONTRACT
        else step.spec.kind == "map" or object()
        for step in layout.steps
    ]


def _rows_are_quicker(whole: Layout, part: Layout, machine: Machine) -> bool:
    """Whether a thread is done with its rows before all of them are done with a step together.

    What all rows read, each thread reads for itself: it has to stay in the cache next to it.
    """
    plan, model = part.loop.plan, CpuModel.of(machine)
    constants = sum(
        plan.buffers[number].nbytes
        for name, number in plan.leaves("input").items()
        if name[0] == CONSTANT
    )
    if constants > model.of_l2(KEPT):
        return False
    together = _cycles(whole.loop.plan, whole.steps, machine)
    waits = sum(step.waits for step in whole.steps)
    if not whole.alone:
        together = together / model.threads + waits * BARRIER
    return max(_cycles(plan, part.steps, machine), constants / READ) < together


def _template_or_none(spec: Spec) -> Template | None:
    from ..kernels import template_of

    return template_of(spec)


def _template(spec: Spec) -> Template:
    from ..kernels import written_by

    return written_by(spec)


def _needs_room(loop: Loop, name: str) -> bool:
    return loop.places[name].result is None and loop.is_updated(name)


def _steps(loop: Loop, machine: Machine) -> list[Step]:
    plan = loop.plan
    numbers: dict[tuple[str, bool], int] = {}
    found = []
    for kernel in _repeated(loop):
        spec = plan.spec(kernel)
        template = _template(spec)
        packing = _packing(loop, kernel, spec, template, machine)
        number = numbers.setdefault((kernel.spec, packing is not None), len(numbers))
        found.append(Step(kernel, spec, template, number, packing, False))
    shares = [step.template.scratch(step.spec, machine).shared > 0 for step in found]
    waits = cyclic_waits(replace(plan, kernels=_repeated(loop)), shares, loop.exchanged)
    return [replace(step, waits=wait) for step, wait in zip(found, waits, strict=True)]


def _repeated(loop: Loop) -> tuple[Kernel, ...]:
    """The kernels of a step, without the copies that are left out."""
    return tuple(k for number, k in enumerate(loop.plan.kernels) if not loop.is_left_out(number))


def _packing(
    loop: Loop, kernel: Kernel, spec: Spec, template: Template, machine: Machine
) -> Packing | None:
    """The operand of a kernel that is packed once, before the first step: it is the same in all of them."""
    packing = template.packing(spec, machine) if loop.length > 1 else None
    if packing is None:
        return None
    if (packing.alone or packing.repeated) and loop.length < LEAST_STEPS:
        return None
    name = str(loop.plan.buffers[kernel.operands[packing.operand]].name)
    same = name[:1] == CONSTANT or (name[:1] == CARRY and not loop.is_updated(name))
    return packing if same else None


def cyclic_waits(
    plan: Plan, shares: Sequence[bool], exchanged: Mapping[int, int] = MappingProxyType({})
) -> list[bool]:
    """After which kernels of a step all threads wait: before one that touches what an earlier one did, in its step or in the one before.

    ``shares`` says which kernels use the scratch memory of all threads; buffers that are ``exchanged`` have each other's place in the next step. There is one wait in each step at the least: what a kernel has threads claim begins anew then.
    """
    count = len(plan.kernels)
    waits = [False] * count
    hazards = _two_steps(plan, exchanged).hazards()
    since = 0
    for k in range(count):
        crossing = any(earlier >= since for earlier in hazards[k])
        crossing |= shares[k] and any(shares[since:k])
        if crossing and k:
            waits[k - 1] = True
            since = k
    for k in range(count):
        before = {earlier for earlier in hazards[count + k] if earlier < count}
        before |= {earlier for earlier in range(count) if shares[k] and shares[earlier]}
        if any(not any(waits[earlier:]) and not any(waits[:k]) for earlier in before):
            waits[-1] = True
    if waits and not any(waits):
        waits[-1] = True
    return waits


def _two_steps(plan: Plan, exchanged: Mapping[int, int]) -> Plan:
    """A step and the one after it, in which buffers that are exchanged have places of their own."""
    other = {**exchanged, **{value: carry for carry, value in exchanged.items()}}
    buffers = list(plan.buffers)
    for number in exchanged.values():
        buffers[number] = Buffer(buffers[number].type, "state", f"exchanged {number}")
    following = tuple(
        replace(
            kernel,
            operands=tuple(other.get(i, i) for i in kernel.operands),
            results=tuple(other.get(i, i) for i in kernel.results),
        )
        for kernel in plan.kernels
    )
    return replace(plan, kernels=plan.kernels + following, buffers=tuple(buffers))


def _is_quicker_alone(plan: Plan, steps: Sequence[Step], machine: Machine) -> bool:
    """Whether one thread is done before several have waited for each other."""
    model = CpuModel.of(machine)
    cycles = _cycles(plan, steps, machine)
    waits = sum(step.waits for step in steps)
    return cycles * (1 - 1 / model.threads) < waits * (BARRIER + CALL)


def _cycles(plan: Plan, steps: Sequence[Step], machine: Machine) -> float:
    """Cycles of a step that one thread goes through."""
    model = CpuModel.of(machine)
    work = sum((kernel_work(plan, step.kernel) for step in steps), start=KernelWork())
    lanes = machine.vector_bytes // 4
    cycles = work.contraction_flops / (2 * lanes * model.multiplies)
    return cycles + work.other_flops * ELEMENT / lanes + work.bytes / model.near_bytes
