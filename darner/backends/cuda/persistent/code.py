"""What all code of a chain is written with: its threads, its shared memory, and where the values of a stage are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Operand, Value
from ....codegen.simt.dispatch import operand_number
from ....codegen.simt.elements import ThreadElements, ThreadRegisters
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from ....graph.graph import Graph
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ..machine import Machine
from ..printer import Printer
from .exchange import Exchange
from .forms import Chain, Place, Work

LINE = 16
"""What every piece of shared memory begins at a multiple of."""
WARP = 32


@dataclass(frozen=True)
class Shape:
    """The blocks of a chain.

    Attributes:
        blocks: how many; all run at once.
        threads: of each.
    """

    blocks: int
    threads: int


def shape_of(machine: Machine) -> Shape:
    """One block for each multiprocessor; an emulated device has few, as each is a thread of the host's."""
    if machine.emulated:
        return Shape(3, 64)
    return Shape(machine.processors, 384)


class Code:
    """A chain's code in the making.

    Args:
        chain: what is written.
        machine: for which GPU.

    Attributes:
        exchange: hands words over, once there is a tag.
        given: the numbers of the stage's arguments: where each lies and its bytes, or the strides of a matrix.
    """

    exchange: Exchange

    def __init__(self, chain: Chain, machine: Machine) -> None:
        self.chain, self.machine = chain, machine
        self.shape = shape_of(machine)
        self.threads = self.shape.threads
        self.builder = cast(Printer, machine.builder(self.threads))
        self.builder.together = True
        self._pool = self.builder.dynamic_shared(LINE)
        self._at = self._most = self._form = self._busy = 0
        self._kept: dict[int, Memory] = {}
        self._local: dict[int, Memory] = {}
        self._copies: dict[Place, Memory] = {}
        self.given: list[tuple[Value, Value]] = []

    def barrier(self) -> None:
        """Wait for all threads of the block."""
        self.builder.barrier()

    # ------------------------------------------------------------- shared memory

    def shared(self, dtype: DType, shape: int | Sequence[int], name: str) -> Memory:
        """Shared memory until the end of the stage, or for all stages where none is begun."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        start = self._at
        self._at += round_up(prod(sizes) * dtype.itemsize, LINE)
        self._most = max(self._most, self._at)
        return self.builder.part_of(self._pool, start, dtype, sizes, name)

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory in all."""
        return self._most

    def close(self) -> None:
        """Say how much shared memory there is, when all is written."""
        self.builder.resize_dynamic(self._pool, round_up(max(self._most, LINE), LINE))

    def argument(self, number: int) -> str:
        """What an argument of the stage is called."""
        return f"form{self._form}_argument{number}"

    @contextmanager
    def stage(self, form: int) -> Iterator[None]:
        """The code of the stages of a form: its shared memory is given back, and what its elements know is forgotten."""
        self._form, self._busy = form, 0
        start, scopes = self._at, list(self.builder.scopes)
        try:
            yield
        finally:
            self._at = start
            self._local.clear()
            self._copies.clear()
            self.builder.scopes[:] = scopes

    def next_threads(self, count: int) -> Value:
        """Numbers of the block's threads from those on that had the least to do so far: those below ``count`` are to do something."""
        b, shift = self.builder, self._busy
        self._busy = (shift + round_up(count, WARP)) % self.threads
        if not shift:
            return b.local
        return b.let(b.choose(b.local >= shift, b.local - shift, b.local + (self.threads - shift)))

    # ------------------------------------------------------------- values

    def memory(self, place: Place) -> Memory:
        """Where the elements of a value lie."""
        if place in self._copies:
            return self._copies[place]
        if place.what in ("memory", "words", "parts"):
            return Memory(self.argument(place.number), place.dtype, builder=self.builder)
        pieces = self._kept if place.what == "kept" else self._local
        if place.number not in pieces:
            name = f"{place.what}{place.number}"
            pieces[place.number] = self.shared(place.dtype, place.count, name)
        return pieces[place.number]

    def copy(self, place: Place) -> None:
        """Copy what lies in memory to shared memory, for the rest of the stage; a barrier is to follow."""
        source = self.memory(place)
        target = self.shared(place.dtype, place.count, "copy")
        registers = ThreadRegisters(self.builder)
        b, rounds = self.builder, ceil_div(place.count, self.threads)
        # All are on their way before the first is there.
        places = [b.let(b.local + number * self.threads) for number in range(rounds)]
        near = [b.let(b.min(at, place.count - 1)) for at in places]
        values = [b.let(registers.load(source, at, place.dtype)) for at in near]
        for at, value in zip(near, values, strict=True):
            registers.store(value, target, at, place.dtype)
        self._copies[place] = target

    def words(self, place: Place, vector: int = 2) -> Memory:
        """The words of a value, each with its tag: one in an item, or two."""
        name = self.argument(place.number)
        return Memory(name, dtypes.u32, vector=vector, builder=self.builder)

    def vectors(self, place: Place) -> Memory:
        """A value in items of 16 bytes."""
        return replace(self.memory(place), dtype=dtypes.u32, vector=4, single=False)

    def word(self, value: Operand, dtype: DType) -> Value:
        """An element as a word."""
        b = self.builder
        return b.half_bits(value) if dtype is dtypes.f16 else b.bits(value)

    def of_word(self, word: Operand, dtype: DType) -> Value:
        """What ``word`` gave."""
        b = self.builder
        if dtype is dtypes.f16:
            return b.of_half_bits(word)
        if dtype.itemsize < 4:
            word = word & ((1 << dtype.bits) - 1)
        return b.of_bits(word, dtype)

    def spec(self, work: Work) -> Spec:
        """What a kernel of a stage computes."""
        return self.chain.specs[work.spec]

    def elements(self, work: Work) -> StageElements:
        """The elements of a kernel's values."""
        return StageElements(self, self.spec(work).body, work)

    def leave(
        self, elements: StageElements, value: Operand, places: Sequence[Place], at: Number
    ) -> None:
        """Write an element of a result to all the places that it goes to."""
        b = self.builder
        for place in places:
            if place.what == "words":
                word = b.let(self.word(value, place.dtype))
                self.exchange.put(word, self.words(place), b.index(at))
            else:
                elements.registers.store(value, self.memory(place), at, place.dtype)


class StageElements(ThreadElements):
    """The elements of a kernel in a stage: operands are wherever the stage has them, and reductions are what was found before."""

    def __init__(self, code: Code, body: Graph, work: Work) -> None:
        self.code, self.work = code, work
        self.reduced: dict[int, Callable[[Number], Operand]] = {}
        memories = [code.memory(place) for place in work.operands]
        # What follows a product reads its sums, which it is given.
        rest = len(body.inputs) - len(memories)
        memories += [Memory("sums", dtypes.f32, builder=code.builder)] * rest
        fault = None
        if work.fault >= 0:
            fault = Memory(code.argument(work.fault), dtypes.u32, builder=code.builder)
        super().__init__(code.builder, body, memories, fault)

    def _element(self, node: Node, index: list[Number]) -> Operand:
        found = self.reduced.get(node.id)
        if found is not None:
            return found(self._flat(node, index))
        if node.id not in self.leaves:
            return super()._element(node, index)
        place = self.work.operands[operand_number(node)]
        if place.what == "parts":
            raise InternalError("parts of an attention are put together before they are read")
        if place.what == "words":
            code, at = self.code, self.places.value(self._flat(node, index))
            return code.of_word(code.exchange.word(code.words(place), at), place.dtype)
        if not place.rounded:
            return super()._element(node, index)
        dtype = place.dtype
        value = self.registers.load(self.leaves[node.id][0], self._flat(node, index), dtype)
        for wanted in place.rounded:
            value, dtype = self.registers.cast(value, dtype, wanted), wanted
        return value

    def _flat(self, node: Node, index: Sequence[Number]) -> Number:
        return self.places.offset(list(index), [int(size) for size in node.shape])
