"""The chain of a plan: kernels that follow each other and are run as one, cut into stages.

A stage has one product or attention, whose work all blocks share, and before it the light kernels that it needs, which each block computes for itself. What blocks
hand each other are *words* (``exchange``): every result of a stage that a later one reads. So a chain depends on nothing but the order of its stages: any block may be ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from ....graph.dtypes import DType
from ....lower.plan import Kernel, Plan, Spec
from ....lower.specs import sizes
from .roles import (
    attention_of,
    is_light,
    is_rounding_copy,
    is_update,
    matrix_of,
    tail_of,
)

FEWEST_PRODUCTS = 2
"""Products of a chain that is worth it."""
KEPT_BYTES = 32 << 10
"""Bytes of what every block computes once and keeps."""

What = Literal["memory", "words", "parts", "kept", "local"]


@dataclass(frozen=True)
class Place:
    """Where a stage finds a value, or leaves it.

    Attributes:
        what: memory of the device; words that blocks wait for; parts of an attention; shared memory that is kept through all stages; shared memory of this stage.
        number: which one: an argument of the stage, or a piece of shared memory.
        dtype: of its elements.
        count: how many there are.
        source: of parts, the attention's spec.
        rounded: types that elements are rounded to as they are read.
    """

    what: What
    number: int
    dtype: DType
    count: int
    source: str = ""
    rounded: tuple[DType, ...] = ()


@dataclass(frozen=True)
class Work:
    """A kernel in a stage.

    Attributes:
        spec: the digest of what it computes.
        operands: where they are.
        results: the places that each goes to.
        fault: the argument that faults are told in; -1 where there are none.
    """

    spec: str
    operands: tuple[Place, ...]
    results: tuple[tuple[Place, ...], ...]
    fault: int = -1


@dataclass(frozen=True)
class Form:
    """A stage without its memory: stages of equal forms have the same code.

    Attributes:
        gathers: words and parts that are brought to shared memory first, and where.
        light: what each block computes then, in order.
        main: the work that all share; None of the stage before the first.
        tail: what is element-wise after it.
        arguments: how many there are.
    """

    gathers: tuple[tuple[Place, Place], ...]
    light: tuple[Work, ...]
    main: Work | None
    tail: Work | None
    arguments: int


@dataclass(frozen=True)
class Argument:
    """What a stage is given: a buffer of the plan, words from a place on, or where a kernel tells of faults."""

    what: Literal["buffer", "words", "fault"]
    number: int


@dataclass(frozen=True)
class Chain:
    """Kernels of a plan that are run as one.

    Attributes:
        first: its first kernel.
        end: the one after its last.
        specs: by digest.
        forms: of its stages.
        stages: for each the number of its form, and its arguments.
        weights: for each stage the buffer of its matrix; -1 where it has none.
        words: how many are handed over.
        kept: what is computed once.
    """

    first: int
    end: int
    specs: Mapping[str, Spec] = field(hash=False)
    forms: tuple[Form, ...]
    stages: tuple[tuple[int, tuple[Argument, ...]], ...]
    weights: tuple[int, ...]
    words: int
    kept: tuple[Place, ...]


# --------------------------------------------------------------------------- which kernels


def chain_of(plan: Plan, blocks: int) -> Chain | None:
    """The longest chain of a plan on so many blocks; None where there is none that is worth it."""
    best: tuple[int, range] | None = None
    for run in _runs(plan):
        products = sum(matrix_of(plan.spec(k)) is not None for k in run)
        if products >= FEWEST_PRODUCTS and (best is None or products > best[0]):
            best = products, run
    return None if best is None else _Stages(plan, best[1], blocks).chain()


def _runs(plan: Plan) -> Iterator[range]:
    """Ranges of kernels that can be one chain, each as long as it can be."""
    start = plan.commit
    while start < len(plan.kernels):
        facts = _Facts(plan)
        end = start
        while end < len(plan.kernels) and facts.admits(end):
            end += 1
        # What comes after the last product needs no chain.
        last = end
        while last > start and not facts.is_main(last - 1):
            last -= 1
        if last > start:
            yield range(start, last)
        start = end + 1


class _Facts:
    """What is known of the buffers of a chain in the making."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: dict[int, int] = {}
        self.read: set[int] = set()
        self.copies: dict[int, int] = {}

    def is_main(self, number: int) -> bool:
        spec = self.plan.spec(number)
        return matrix_of(spec) is not None or attention_of(spec) is not None

    def is_stable(self, buffer: int) -> bool:
        """Whether nothing of the chain has written a buffer."""
        return buffer not in self.made

    def admits(self, number: int) -> bool:
        """Whether a kernel can be the next of the chain; then it is."""
        kernel, spec = self.plan.kernels[number], self.plan.spec(number)
        if not self._fits(number, kernel, spec):
            return False
        self.read.update(kernel.operands)
        self.made.update(dict.fromkeys(kernel.results, number))
        return True

    def _fits(self, number: int, kernel: Kernel, spec: Spec) -> bool:
        if is_update(spec):
            return self._fits_update(kernel)
        if set(kernel.operands) & set(kernel.results):
            return False
        matrix = matrix_of(spec)
        if matrix is not None:
            return self.is_stable(kernel.operands[matrix.weight])
        attention = attention_of(spec)
        if attention is not None:
            where = {leaf.id: i for i, leaf in enumerate(spec.inputs)}
            rows = [kernel.operands[where[attention.operands[n].base.id]] for n in ("k", "v")]
            return all(self._is_memory(buffer) for buffer in rows)
        copy = is_rounding_copy(spec) and self._is_memory(kernel.operands[0])
        if copy and self._is_copied_for_attention(kernel.results[0]):
            self.copies[kernel.results[0]] = kernel.operands[0]
            return True
        return is_light(spec)

    def _is_memory(self, buffer: int) -> bool:
        """Whether a buffer lies in memory: nothing of the chain has made it but updates in place."""
        buffer = self.copies.get(buffer, buffer)
        made = self.made.get(buffer)
        return made is None or is_update(self.plan.spec(made))

    def _is_copied_for_attention(self, buffer: int) -> bool:
        """Whether only attention reads a copy, as keys or values."""
        outside = {*self.plan.outputs, *(new for _, new in self.plan.updates)}
        users = [k for k in self.plan.kernels if buffer in k.operands]
        for kernel in users:
            spec = self.plan.spec(kernel)
            found = attention_of(spec)
            if found is None:
                return False
            names = {leaf.id: i for i, leaf in enumerate(spec.inputs)}
            q = kernel.operands[names[found.operands["q"].base.id]]
            if q == buffer:
                return False
        return bool(users) and buffer not in outside

    def _fits_update(self, kernel: Kernel) -> bool:
        """An update in place of what nothing in the chain has read or made."""
        (result,) = kernel.results
        return (
            kernel.operands[0] == result
            and result not in kernel.operands[1:]
            and result not in self.read
            and result not in self.made
        )


# --------------------------------------------------------------------------- stages


class _Stages:
    """Cuts a range of kernels into stages."""

    def __init__(self, plan: Plan, run: range, blocks: int) -> None:
        self.plan, self.run, self.blocks = plan, run, blocks
        facts = _Facts(plan)
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
        self.weights: list[int] = []

    def _tails(self) -> Iterator[tuple[int, int]]:
        """For products the element-wise kernels that are done where they are."""
        for number in self.mains:
            kernel = self.plan.kernels[number]
            matrix = matrix_of(self.plan.spec(number))
            if matrix is None or len(kernel.results) != 1:
                continue
            (buffer,) = kernel.results
            users = self.readers.get(buffer, [])
            if len(users) != 1 or users[0] not in self.run or self._is_left(buffer):
                continue
            tail = tail_of(self.plan.spec(users[0]), matrix.product.m)
            if tail is None:
                continue
            ends = [tail.columns, *tail.starts]
            if not matrix.by_columns or all(end % matrix.vector == 0 for end in ends):
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
            and self.plan.kernels[number].results[0] not in self.copies
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
            self._add(main, sorted(needed - set(self.early)))
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
            tuple(self.weights),
            self.count,
            tuple(self.kept.values()),
        )

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
        self.weights.append(stage.weight)

    def words_of(self, buffer: int, count: int) -> int:
        """The number of the first word of a value."""
        if buffer not in self.words:
            self.words[buffer] = self.count
            # Whole lines: blocks that wait for one value do not slow down those that write another.
            self.count += (count + 15) // 16 * 16
        return self.words[buffer]


class _Stage:
    """One stage in the making."""

    def __init__(self, stages: _Stages, main: int | None, light: list[int]) -> None:
        self.stages, self.plan = stages, stages.plan
        self.main, self.light = main, light
        self.arguments: list[Argument] = []
        self.gathers: dict[int, tuple[Place, Place]] = {}
        self.local: dict[int, Place] = {}
        self.locals = 0
        self.weight = -1

    def form(self) -> Form | None:
        """What its code depends on."""
        stages, plan = self.stages, self.plan
        light = tuple(self._light(number) for number in self.light)
        main = tail = None
        if self.main is not None:
            spec, kernel = plan.spec(self.main), plan.kernels[self.main]
            matrix = matrix_of(spec)
            keep = set()
            if matrix is not None:
                self.weight = kernel.operands[matrix.weight]
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
        return Form(gathers, light, main, tail, len(self.arguments))

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


# --------------------------------------------------------------------------- parts of an attention

MOST_PARTS = 8
FEWEST_KEYS = 32
"""Keys of a part at least."""
MOST_PART_WORDS = 6000
"""Words that every block reads of the parts of an attention, if it can be helped."""


def parts_of(spec: Spec, blocks: int) -> int:
    """How many parts the keys of an attention are cut into."""
    attention = attention_of(spec)
    if attention is None:
        return 0
    heads = attention.batch * attention.kv_heads
    rows = heads * attention.group * attention.queries
    most = max(1, min(MOST_PARTS, attention.keys // FEWEST_KEYS, blocks // heads))
    while most > 1 and rows * most * (attention.width + 2) > MOST_PART_WORDS:
        most -= 1
    return most


def part_words(spec: Spec, blocks: int) -> int:
    """The words of all parts: for each query of each head and each part its sums, their maximum, and the total of the weights."""
    attention = attention_of(spec)
    if attention is None:
        return 0
    rows = attention.batch * attention.heads * attention.queries
    return rows * parts_of(spec, blocks) * (attention.width + 2)
