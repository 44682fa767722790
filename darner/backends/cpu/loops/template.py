"""The driver of a loop: one function that calls the kernels of a step as often as there are steps.

Every thread runs it and calls every kernel with the same addresses, so nothing of a call lies in memory that others read. Before the first step carries
take what they begin with, and constants are packed that kernels read packed. A fault is told in words of the step's kernels, and in those of the loop at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....codegen.ir.emit import loop as repeat
from ....codegen.ir.faults import FAULT
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import Function, Pointer, Value
from ....graph.cached import cached_property
from ....graph.data import Array
from ....lower.loops import CARRY, failing
from ....lower.plan import Spec
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import clear_bytes, copy_bytes, moved, same_pointer
from ..runtime.jit import Machine
from ..runtime.steps import FIXED
from ..runtime.threads_ir import OFFSETS, RECORDS
from .layout import WORD_BYTES, Layout, Step, layout_of


def _fits(spec: Spec) -> bool:
    from ..kernels import template_of

    if spec.inner is None:
        return False
    return all(template_of(inner) is not None for inner in spec.inner.specs.values())


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    return layout_of(spec, machine).scratch


def inner_functions(name: str, spec: Spec, machine: Machine) -> list[tuple[str, Template]]:
    """The functions that the driver of this name calls, and those that they call, each with who writes it."""
    found: list[tuple[str, Template]] = []
    for step in layout_of(spec, machine).steps:
        own = inner_name(name, step.function)
        if own not in (known for known, _ in found):
            found.append((own, step.template))
            if step.template is LOOPS:
                found += inner_functions(own, step.spec, machine)
    return found


def inner_name(driver: str, number: int) -> str:
    """What a function of a step is called."""
    return f"{driver}.{number}"


def _emit(code: Code) -> None:
    layout = layout_of(code.spec, code.machine)
    functions, packs = _functions(code, layout)
    if not layout.alone:
        _Driver(code, layout, functions, packs).emit()
        return
    with code.alone():
        one = replace(code, thread=i64(0), threads=i64(1), team=_team_of_one(code))
        _Driver(one, layout, functions, packs).emit()


def _functions(code: Code, layout: Layout) -> tuple[dict[int, Function], dict[str, Function]]:
    """The functions of a step by number, and those that pack by key, written into the module."""
    from ..kernels import new_code

    functions: dict[int, Function] = {}
    packs: dict[str, Function] = {}
    for step in layout.steps:
        name = inner_name(code.builder.function.name, step.function)
        if step.function not in functions:
            counts = len(step.spec.inputs), len(step.spec.body.outputs)
            inner = new_code(
                code.module, name, step.spec, counts, code.machine, step.packing is not None
            )
            step.template.emit(inner)
            inner.builder.ret_void()
            functions[step.function] = inner.builder.function
        if step.packing is not None and step.packing.key not in packs:
            inner = new_code(code.module, f"{name}.pack", step.spec, (1, 1), code.machine, False)
            step.packing.emit(inner)
            inner.builder.ret_void()
            packs[step.packing.key] = inner.builder.function
    return functions, packs


def _team_of_one(code: Code) -> Pointer:
    """A team whose barriers nobody waits at."""
    words = np.zeros(RECORDS, np.uint8)
    words[OFFSETS["launch"] + 16] = 1
    return constant_bytes(code, words)


def constant_bytes(code: Code, array: Array) -> Pointer:
    """The address of an array that is part of the code."""
    from llvmlite import ir

    data = bytearray(np.ascontiguousarray(array).tobytes())
    value = ir.Constant(ir.ArrayType(ir.IntType(8), len(data)), data)
    name = code.module.get_unique_name("values")
    memory = ir.GlobalVariable(code.module, value.type, name)
    memory.linkage = "internal"
    memory.global_constant = True
    memory.align = 64
    memory.initializer = value
    return memory


@dataclass(frozen=True)
class _Driver:
    """The driver while it is written, by all threads or by one."""

    code: Code
    layout: Layout
    functions: dict[int, Function]
    packs: dict[str, Function]

    def emit(self) -> None:
        """All of it."""
        self._begin()
        calls = [(step, self._arguments(step)) for step in self.layout.steps]
        loop = self.layout.loop

        def emit_step(number: Value, _: Sequence[Value]) -> None:
            indices = self.code.indices
            at = indices.sub(loop.length - 1, number) if loop.reverse else number
            for step, arguments in calls:
                for place, buffer in self._advancing(step):
                    self._store(arguments, FIXED + place, self._stepped(buffer, number, at))
                self._call(self.functions[step.function], arguments)
                if step.waits:
                    self._wait()

        repeat(self.code.builder, i64(0), i64(loop.length), 1, emit_step)
        if any(step.kernel.checks for step in self.layout.steps):
            self._tell()

    # ------------------------------------------------------------- before the first step

    def _begin(self) -> None:
        code, loop = self.code, self.layout.loop
        with code.alone():
            clear_bytes(code.builder, code.shared, len(self.layout.steps) * WORD_BYTES)
        for name in loop.carries:
            place = loop.places[name]
            if loop.is_updated(name) or place.result is not None:
                self._copy(name)
        done: set[tuple[int, str]] = set()
        for step in self.layout.steps:
            if step.packing is None:
                continue
            buffer = step.kernel.operands[step.packing.operand]
            if (buffer, step.packing.key) in done:
                continue
            done.add((buffer, step.packing.key))
            room = moved(code.builder, code.shared, self.layout.packed[buffer, step.packing.key])
            arguments = self._table(0, [self._address(buffer), room])
            self._call(self.packs[step.packing.key], arguments)
        self._wait()

    def _copy(self, name: str) -> None:
        """Copy what a carry begins with to where it is kept, unless it is there; threads share it."""
        code, loop = self.code, self.layout.loop
        b, number = code.builder, loop.plan.leaves("state")[name]
        source = self._operand(name)
        target = self._home(name)
        if number in loop.exchanged and not loop.lies_at_home(0):
            target = self._room(loop.exchanged[number])
        first, last = code.share(loop.plan.buffers[number].nbytes)
        with b.if_then(b.not_(same_pointer(b, source, target))):
            count = b.sub(last, first)
            copy_bytes(b, moved(b, target, first), moved(b, source, first), count)

    # ------------------------------------------------------------- addresses

    @cached_property
    def _names(self) -> dict[int, str]:
        plan = self.layout.loop.plan
        return {i: name for kind in ("state", "input") for name, i in plan.leaves(kind).items()}

    @cached_property
    def _constants(self) -> dict[int, Pointer]:
        plan = self.layout.loop.plan
        return {
            number: constant_bytes(self.code, plan.constants[str(buffer.name)].array)
            for number, buffer in enumerate(plan.buffers)
            if buffer.place == "constant"
        }

    def _operand(self, name: str) -> Pointer:
        """Where in an operand a leaf is, in the step of number 0."""
        place = self.layout.loop.places[name]
        return moved(self.code.builder, self.code.operands[place.operand or 0], place.offset)

    def _home(self, name: str) -> Pointer:
        """Where a carry is kept."""
        place = self.layout.loop.places[name]
        if place.result is not None:
            return self.code.results[place.result]
        return self._room(self.layout.loop.plan.leaves("state")[name])

    def _room(self, buffer: int) -> Pointer:
        """Where in scratch memory a buffer is that is not in the arena of a step."""
        return moved(self.code.builder, self.code.shared, self.layout.rooms[buffer])

    def _address(self, buffer: int) -> Pointer:
        """Where a buffer of the step's plan is, in the step of number 0."""
        plan, code = self.layout.loop.plan, self.code
        found = plan.buffers[buffer]
        if buffer in self._others:
            return self._room(buffer)
        if found.place == "arena":
            return moved(code.builder, code.shared, self.layout.arena + (found.offset or 0))
        if found.place == "constant":
            return self._constants[buffer]
        name = self._names[buffer]
        if name[0] == CARRY:
            updated = self.layout.loop.is_updated(name)
            return self._home(name) if updated else self._operand(name)
        if self.layout.loop.places[name].operand is not None:
            return self._operand(name)
        return code.results[self.layout.loop.places[name].result or 0]

    @cached_property
    def _others(self) -> dict[int, int]:
        """The buffers that carries change places with, and the carries."""
        return {other: carry for carry, other in self.layout.loop.exchanged.items()}

    def _stepped(self, buffer: int, number: Value, at: Index) -> Pointer:
        """Where a buffer is in the step of a number, which is the one at a place."""
        loop, b = self.layout.loop, self.code.builder
        carry = self._others.get(buffer, buffer)
        if carry in loop.exchanged:
            left = b.and_(b.sub(i64(loop.length), number), i64(1))
            there = b.icmp_signed("==", left, i64(0 if buffer == carry else 1))
            return b.select(
                there, self._home(self._names[carry]), self._room(loop.exchanged[carry])
            )
        stride = self.layout.loop.places[self._names[buffer]].stride
        offset = self.code.indices.mul(at, stride)
        return moved(self.code.builder, self._address(buffer), offset)

    def _advancing(self, step: Step) -> list[tuple[int, int]]:
        """The operands and results of a kernel that are elsewhere in the next step: positions, and buffers."""
        places = self.layout.loop.places
        found = enumerate((*step.kernel.operands, *step.kernel.results))
        return [
            (place, buffer)
            for place, buffer in found
            if self._is_exchanged(buffer)
            or (buffer in self._names and places[self._names[buffer]].stride)
        ]

    def _is_exchanged(self, buffer: int) -> bool:
        return buffer in self._others or buffer in self.layout.loop.exchanged

    # ------------------------------------------------------------- calls

    def _arguments(self, step: Step) -> Pointer:
        """The arguments of a kernel, in the step of number 0."""
        number = self.layout.steps.index(step)
        addresses = []
        for place, buffer in enumerate((*step.kernel.operands, *step.kernel.results)):
            if step.packing is not None and place == step.packing.operand:
                room = self.layout.packed[buffer, step.packing.key]
                addresses.append(moved(self.code.builder, self.code.shared, room))
            else:
                addresses.append(self._address(buffer))
        return self._table(number, addresses)

    def _table(self, number: int, addresses: Sequence[Pointer]) -> Pointer:
        """Arguments in this thread's memory: the fixed ones, with the words of a kernel of the step, and addresses."""
        from llvmlite import ir

        code = self.code
        with code.builder.goto_entry_block():
            table = code.builder.alloca(ir.PointerType(), i64(FIXED + len(addresses)))
        none = ir.Constant(ir.PointerType(), None)
        rest = moved(code.builder, code.shared, self.layout.rest)
        words = moved(code.builder, code.shared, number * WORD_BYTES)
        # The scratch memory of a thread is given as if it were that of the first, and the others' were no bytes further.
        for place, value in enumerate((code.team, code.own, none, rest, words, *addresses)):
            self._store(table, place, value)
        return table

    def _store(self, table: Pointer, place: int, value: Pointer) -> None:
        from llvmlite import ir

        b = self.code.builder
        value = b.bitcast(value, ir.PointerType())
        b.store(value, b.gep(table, [i64(place)], source_etype=ir.PointerType()))

    def _call(self, function: Function, arguments: Pointer) -> None:
        self.code.builder.call(function, [self.code.thread, self.code.threads, arguments])

    def _wait(self) -> None:
        if not self.layout.alone:
            self.code.barrier()

    # ------------------------------------------------------------- faults

    def _tell(self) -> None:
        """Let the words of the loop say what those of its kernels do: the first that tells of a fault."""
        before = 0
        self._wait()
        for number, step in enumerate(self.layout.steps):
            count = sum(1 for _ in failing(step.spec))
            if count:
                self._pass_on(number, before)
            before += count

    def _pass_on(self, number: int, before: int) -> None:
        code, b = self.code, self.code.builder
        word = i64(0).type
        own = moved(b, code.shared, number * WORD_BYTES)
        told = [b.load(b.gep(own, [i64(i)], source_etype=word), typ=word) for i in range(FAULT)]
        here = b.load(code.words, typ=word)
        first = b.icmp_signed("==", code.thread, i64(0))
        fresh = b.and_(b.icmp_signed("!=", told[0], i64(0)), b.icmp_signed("==", here, i64(0)))
        with b.if_then(b.and_(first, fresh), likely=False):
            told[0] = b.add(told[0], i64(before))
            for position, value in enumerate(told):
                b.store(value, b.gep(code.words, [i64(position)], source_etype=word))


LOOPS = Template("loops", _fits, _emit, _scratch)
"""Loops of any body."""
