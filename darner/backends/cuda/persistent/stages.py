"""A range of kernels, cut into stages."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ....graph.dtypes import DType
from ....lower.plan import Plan
from ....lower.specs import sizes
from .facts import Facts
from .forms import Argument, Chain, Columns, Form, Place, What, Work, part_words
from .roles import attention_of, fits, is_update, matrix_of, tail_of

MOST_COPIED = 4096
"""Elements that a block copies from memory before it waits."""
KEPT_BYTES = 32 << 10
"""Bytes of what every block computes once and keeps."""


class Stages:
    """Cuts a range of kernels into stages."""

    def __init__(self, plan: Plan, run: range, blocks: int) -> None:
        self.plan, self.run, self.blocks = plan, run, blocks
        facts = Facts(plan)
        for number in run:
            facts.admits(number)
        self.copies = facts.copies
        self.maker = facts.made
        self.readers: dict[int, list[int]] = {}
        for number, kernel in enumerate(plan.kernels):
            for buffer in set(kernel.operands):
                self.readers.setdefault(buffer, []).append(number)
        self.mains = [number for number in run if facts.is_main(number)]
        self.tails = dict(self._tails())
        self.outside = self._outside()
        self.words: dict[int, int] = {}
        self.count = 0
        self.kept: dict[int, Place] = {}
        self.early = self._early()
        self.forms: dict[Form, int] = {}
        self.rows: list[tuple[int, tuple[Argument, ...]]] = []
        self.reads: list[tuple[int, ...]] = []
        self.matrices: dict[int, tuple[int, int]] = {}

    def _tails(self) -> Iterator[tuple[int, int]]:
        """For products the element-wise kernels that are done where they are."""
        for number in self.mains:
            kernel = self.plan.kernels[number]
            matrix = matrix_of(self.plan.spec(number))
            if matrix is None or matrix.tail is not None or len(kernel.results) != 1:
                continue
            (buffer,) = kernel.results
            users = self.readers.get(buffer, [])
            if len(users) != 1 or users[0] not in self.run or self._is_left(buffer):
                continue
            tail = tail_of(self.plan.spec(users[0]), matrix.product.m)
            if tail is not None and fits(matrix, tail):
                yield number, users[0]

    def _is_left(self, buffer: int) -> bool:
        """Whether a value is read after all kernels."""
        return buffer in self.plan.outputs or any(buffer == new for _, new in self.plan.updates)

    def _outside(self) -> set[int]:
        """What others than the chain read of what it makes."""
        return {
            buffer
            for number in self.run
            for buffer in self.plan.kernels[number].results
            if self._is_left(buffer) or any(k not in self.run for k in self.readers.get(buffer, ()))
        }

    def _is_light(self, number: int) -> bool:
        return (
            number not in self.mains
            and number not in self.tails.values()
            and any(result not in self.copies for result in self.plan.kernels[number].results)
        )

    def _early(self) -> list[int]:
        """Light kernels that read nothing of other blocks: they are run once, before all stages."""
        found: list[int] = []
        known: set[int] = set()
        left = KEPT_BYTES
        for number in self.run:
            kernel, spec = self.plan.kernels[number], self.plan.spec(number)
            if not self._is_light(number) or is_update(spec):
                continue
            made = [self.maker.get(buffer) for buffer in kernel.operands]
            nbytes = sum(prod(sizes(out)) * max(4, out.dtype.itemsize) for out in spec.body.outputs)
            if all(m is None or m in known for m in made) and nbytes <= left:
                left -= nbytes
                known.add(number)
                found.append(number)
        return found

    def chain(self) -> Chain | None:
        """The chain; None where it cannot be cut."""
        if self.early:
            self._add(None, self.early)
        waiting = [k for k in self.run if self._is_light(k) and self._has_effect(k)]
        waiting = [k for k in waiting if k not in self.early]
        for main in self.mains:
            needed = self._needed(main)
            # What no stage reads is done where its operands can be there.
            for update in [k for k in waiting if k < main]:
                needed |= {update, *self._needed(update)}
            waiting = [k for k in waiting if k not in needed]
            self._add(main, self._in_levels(needed - set(self.early)))
        attentions = (k for k in self.mains if attention_of(self.plan.spec(k)) is not None)
        shown = any(set(self.plan.kernels[k].results) & self.outside for k in attentions)
        if waiting or shown or not self._is_apart():
            return None
        specs = {self.plan.kernels[k].spec: self.plan.spec(k) for k in self.run}
        return Chain(
            self.run.start,
            self.run.stop,
            specs,
            tuple(self.forms),
            tuple(self.rows),
            tuple(self.reads),
            {b: Columns(*size, self._is_read_alone(b)) for b, size in self.matrices.items()},
            self.count,
            tuple(self.kept.values()),
        )

    def _is_read_alone(self, buffer: int) -> bool:
        """Whether all that the chain does with a matrix is to multiply by it, with columns that are neighbours."""
        for number in self.readers.get(buffer, ()):
            if number in self.run:
                matrix, kernel = matrix_of(self.plan.spec(number)), self.plan.kernels[number]
                if matrix is None or not matrix.by_columns or kernel.operands.count(buffer) > 1:
                    return False
                if kernel.operands[matrix.weight] != buffer:
                    return False
        return True

    def _in_levels(self, light: set[int]) -> list[int]:
        """Light kernels in an order in which those that do not need each other follow each other."""
        level: dict[int, int] = {}
        for number in sorted(light):
            needed = self._needed(number) & light
            level[number] = 1 + max((level[k] for k in needed), default=0)
        return sorted(light, key=lambda k: (level[k], k))

    def _has_effect(self, number: int) -> bool:
        """Whether others than the chain see what a kernel makes."""
        results = self.plan.kernels[number].results
        return is_update(self.plan.spec(number)) or any(r in self.outside for r in results)

    def _needed(self, number: int) -> set[int]:
        """The light kernels that a kernel needs."""
        found: set[int] = set()
        for buffer in self.plan.kernels[number].operands:
            buffer = self.copies.get(buffer, buffer)
            made = self.maker.get(buffer)
            if made is not None and made < number and self._is_light(made) and made not in found:
                found |= {made, *self._needed(made)}
        return found

    def _is_apart(self) -> bool:
        """Whether what the chain writes to memory lies apart from what other blocks may still read there."""
        buffers = self.plan.buffers
        made = {buffer for buffer in self.outside if buffers[buffer].place == "arena"}
        read = {
            buffer
            for number in self.run
            for buffer in self.plan.kernels[number].operands
            if buffer not in self.maker and buffers[buffer].place == "arena"
        }
        for one in made:
            first, end = buffers[one].range
            for other in (read | made) - {one}:
                start, stop = buffers[other].range
                if first < stop and start < end:
                    return False
        return True

    def _add(self, main: int | None, light: list[int]) -> None:
        stage = _Stage(self, main, light)
        form = stage.form()
        if form is None:
            return
        number = self.forms.setdefault(form, len(self.forms))
        self.rows.append((number, tuple(stage.arguments)))
        self.reads.append(stage.reads)

    def words_of(self, buffer: int, count: int) -> int:
        """The number of the first word of a value."""
        if buffer not in self.words:
            self.words[buffer] = self.count
            # Whole lines: blocks that wait for one value do not slow down those that write another.
            self.count += (count + 15) // 16 * 16
        return self.words[buffer]


class _Stage:
    """One stage in the making."""

    def __init__(self, stages: Stages, main: int | None, light: list[int]) -> None:
        self.stages, self.plan = stages, stages.plan
        self.main, self.light = main, light
        self.arguments: list[Argument] = []
        self.gathers: dict[int, tuple[Place, Place]] = {}
        self.local: dict[int, Place] = {}
        self.locals = 0

    def form(self) -> Form | None:
        """What its code depends on."""
        stages, plan = self.stages, self.plan
        light = tuple(self._light(number) for number in self.light)
        main = tail = None
        strides = -1
        if self.main is not None:
            spec, kernel = plan.spec(self.main), plan.kernels[self.main]
            matrix = matrix_of(spec)
            keep = set()
            if matrix is not None:
                if matrix.by_columns:
                    buffer = kernel.operands[matrix.weight]
                    strides = self._argument(Argument("strides", buffer))
                    pitch = matrix.pitch // matrix.vector
                    rows = _count(plan, buffer) // matrix.pitch
                    stages.matrices[buffer] = pitch, rows
                keep = {matrix.x}
            else:
                attention = attention_of(spec)
                if attention is not None:
                    q = attention.operands["q"].base
                    keep = {i for i, leaf in enumerate(spec.inputs) if leaf is q}
            operands = tuple(
                self._read(buffer, gathered=i in keep) for i, buffer in enumerate(kernel.operands)
            )
            last = stages.tails.get(self.main)
            results = () if last is not None else self._results(self.main)
            main = Work(kernel.spec, operands, results, self._fault(self.main))
            if last is not None:
                tail = Work(plan.kernels[last].spec, (), self._results(last), self._fault(last))
        gathers = tuple(self.gathers.values())
        return Form(gathers, light, main, tail, len(self.arguments), strides)

    @property
    def reads(self) -> tuple[int, ...]:
        """The buffers that it reads in whole: matrices, keys and values, and what is small."""
        if self.main is None:
            return ()
        first = self.stages.copies
        kernels = [self.plan.kernels[k] for k in (self.main, *self.light)]
        found = dict.fromkeys(first.get(b, b) for kernel in kernels for b in kernel.operands)
        whole = {first.get(b, b) for b in self.plan.kernels[self.main].operands}
        given = {a.number for a in self.arguments if a.what == "buffer"}
        return tuple(
            b for b in found if b in given and (b in whole or _count(self.plan, b) <= MOST_COPIED)
        )

    def _argument(self, argument: Argument) -> int:
        if argument not in self.arguments:
            self.arguments.append(argument)
        return self.arguments.index(argument)

    def _fault(self, number: int) -> int:
        if not self.plan.kernels[number].checks:
            return -1
        return self._argument(Argument("fault", number))

    def _memory(self, buffer: int) -> Place:
        about = self.plan.buffers[buffer].type
        number = self._argument(Argument("buffer", buffer))
        return Place("memory", number, about.dtype, _count(self.plan, buffer))

    def _new_local(self, buffer: int) -> Place:
        about = self.plan.buffers[buffer].type
        self.locals += 1
        return Place("local", self.locals - 1, about.dtype, _count(self.plan, buffer))

    def _read(self, buffer: int, *, gathered: bool) -> Place:
        """Where an operand is; ``gathered`` says that all of it is wanted in shared memory."""
        stages = self.stages
        rounded: tuple[DType, ...] = ()
        if buffer in stages.copies:
            rounded = (self.plan.buffers[buffer].type.dtype,)
            buffer = stages.copies[buffer]
        if buffer in stages.kept:
            return stages.kept[buffer]
        if buffer in self.local:
            return self.local[buffer]
        made = stages.maker.get(buffer)
        if made is None or is_update(self.plan.spec(made)):
            found = self._memory(buffer)
            return Place(found.what, found.number, found.dtype, found.count, "", rounded)
        attention = attention_of(self.plan.spec(made))
        about, count = self.plan.buffers[buffer].type, _count(self.plan, buffer)
        source = self.plan.kernels[made].spec if attention is not None else ""
        what: What = "words" if attention is None else "parts"
        words = count if attention is None else part_words(self.plan.spec(made), stages.blocks)
        argument = self._argument(Argument("words", stages.words_of(buffer, words)))
        place = Place(what, argument, about.dtype, count, source)
        if attention is None and not gathered:
            return place
        target = self._new_local(buffer)
        self.gathers[buffer] = place, target
        self.local[buffer] = target
        return target

    def _light(self, number: int) -> Work:
        kernel, spec = self.plan.kernels[number], self.plan.spec(number)
        operands = tuple(self._read(buffer, gathered=True) for buffer in kernel.operands)
        results: list[tuple[Place, ...]] = []
        for buffer in kernel.results:
            if is_update(spec):
                results.append((self._memory(buffer),))
                continue
            if buffer in self.stages.copies:
                results.append(())
                continue
            target = self._new_local(buffer)
            if self.main is None:
                count = len(self.stages.kept)
                target = Place("kept", count, target.dtype, target.count)
                self.stages.kept[buffer] = target
            else:
                self.local[buffer] = target
            written = [self._memory(buffer)] if buffer in self.stages.outside else []
            results.append((target, *written))
        return Work(kernel.spec, operands, tuple(results), self._fault(number))

    def _results(self, number: int) -> tuple[tuple[Place, ...], ...]:
        stages, found = self.stages, []
        spec = self.plan.spec(number)
        for buffer in self.plan.kernels[number].results:
            places = []
            dtype, count = self.plan.buffers[buffer].type.dtype, _count(self.plan, buffer)
            if any(k in stages.run for k in stages.readers.get(buffer, ())):
                attention = attention_of(spec)
                words = count if attention is None else part_words(spec, stages.blocks)
                argument = self._argument(Argument("words", stages.words_of(buffer, words)))
                places.append(Place("words", argument, dtype, words))
            if buffer in stages.outside:
                places.append(self._memory(buffer))
            found.append(tuple(places))
        return tuple(found)


def _count(plan: Plan, buffer: int) -> int:
    return prod(int(size) for size in plan.buffers[buffer].type.shape)
