"""What the code of a loop is made of: the functions of a step, the memory it needs, and after which kernels threads wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from ....graph.integers import round_up
from ....io.memory import ALIGNMENT
from ....lower.loops import CARRY, CONSTANT, Loop, loop_of
from ....lower.plan import Buffer, Kernel, Plan, Spec
from ....lower.work import KernelWork, kernel_work
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
    loop = loop_of(spec)
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
    if packing is None or (packing.alone and loop.length < LEAST_STEPS):
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
    work = sum((kernel_work(plan, step.kernel) for step in steps), start=KernelWork())
    lanes = machine.vector_bytes // 4
    cycles = work.contraction_flops / (2 * lanes * model.multiplies)
    cycles += work.other_flops * ELEMENT / lanes + work.bytes / model.near_bytes
    waits = sum(step.waits for step in steps)
    return cycles * (1 - 1 / model.threads) < waits * (BARRIER + CALL)
