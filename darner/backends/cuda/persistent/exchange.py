"""How blocks hand each other values without waiting for each other as a whole: as words that carry a tag.

A word is an element of 32 bits and a tag beside it, written and read as one. The tag is the number of the launch: whoever reads looks until it is there, so nothing else has to be in order,
and no word needs to be cleared. Every value has words of its own, so none is written twice in a launch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from ....codegen.simt.builder import Memory, Value
from ..emulator.printer import EmulatedPrinter
from ..instructions.assembly import I32, assembly
from ..machine import Machine
from ..printer import Printer

MOST_LOOKS = 1 << 22
"""Times that a thread looks for a word before the launch stops with an error: about a second."""
PREFETCHES = (9, 0)
"""The first generation that brings many lines to its cache by one instruction."""


class Asked(NamedTuple):
    """A word on its way.

    Attributes:
        word: what it was.
        tag: beside it.
        memory: where it lies.
        at: its number there.
    """

    word: Value
    tag: Value
    memory: Memory
    at: Value


class Exchange(Protocol):
    """Hands words over.

    Attributes:
        tag: of this launch.
    """

    tag: Value

    def put(self, word: Value, memory: Memory, at: Value) -> None:
        """Write a word; ``memory`` has items of a word and its tag."""
        ...

    def pairs(self, memory: Memory, places: Sequence[Value]) -> list[tuple[Value, Value]]:
        """Pairs of words, once all are there; ``memory`` has items of two words with their tags."""
        ...

    def word(self, memory: Memory, at: Value) -> Value:
        """A word, once it is there."""
        ...

    def asked(self, memory: Memory, at: Value) -> Asked:
        """A word as it is now, which nobody waits for before ``settled``."""
        ...

    def settled(self, asked: Asked) -> Value:
        """That word, once it is there."""
        ...

    def prefetch(self, address: Value, nbytes: Value) -> None:
        """Bring memory to the device's cache; both are multiples of 16."""
        ...

    def touch(self, memory: Memory, at: Value) -> None:
        """Bring an item near, to the processor's own cache: nobody waits for it."""
        ...


class Settling:
    """What all ways have in common.

    Attributes:
        builder: where the code goes.
        tag: of this launch.
    """

    builder: Printer
    tag: Value

    @abstractmethod
    def word(self, memory: Memory, at: Value) -> Value:
        """See ``Exchange``."""

    def settled(self, asked: Asked) -> Value:
        """See ``Exchange``."""
        b = self.builder
        found = b.variable(asked.word, "word")
        with b.if_(asked.tag != self.tag):
            found.set(self.word(asked.memory, asked.at))
        return b.let(found)


class CardExchange(Settling):
    """By instructions that are relaxed and one access each.

    Args:
        builder: where the code goes.
        tag: of this launch.
        machine: which GPU.
    """

    def __init__(self, builder: Printer, tag: Value, machine: Machine) -> None:
        self.builder, self.tag, self.machine = builder, tag, machine

    def put(self, word: Value, memory: Memory, at: Value) -> None:
        """See ``Exchange``."""
        b = self.builder
        address = b.address(memory, memory.type, b.index(at))
        text = "{ .reg .b64 x; mov.b64 x, {$1, $2}; st.relaxed.gpu.global.b64 [$0], x; }"
        assembly(b.ir, text, [], [address, b.raw(word), b.raw(self.tag)])

    def _looked(self, memory: Memory, places: Sequence[Value], each: int) -> list[Value]:
        b, count = self.builder, len(places) * each
        addresses = [b.address(memory, memory.type, b.index(at)) for at in places]
        lines = [
            f".reg .pred p; .reg .b32 c, t<{count}>; .reg .b64 x<{count}>; mov.b32 c, 0; LOOK:"
        ]
        for i in range(len(places)):
            if each == 2:
                into, kind = f"{{x{2 * i}, x{2 * i + 1}}}", "v2.b64"
            else:
                into, kind = f"x{i}", "b64"
            lines.append(f"ld.relaxed.gpu.global.{kind} {into}, [${count + i}];")
        tag = f"${count + len(places)}"
        for i in range(count):
            also = f"setp.eq.and.u32 p, t{i}, {tag}, p;" if i else f"setp.eq.u32 p, t0, {tag};"
            lines.append(f"mov.b64 {{${i}, t{i}}}, x{i}; {also}")
        lines.append(
            f"@p bra FOUND; add.u32 c, c, 1; setp.gt.u32 p, c, {MOST_LOOKS}; @p trap; bra LOOK; FOUND:"
        )
        operands = [*addresses, b.raw(self.tag)]
        text = "{ " + " ".join(lines) + " }"
        found = assembly(b.ir, text, [I32] * count, operands, early=True)
        return [b.held(word) for word in found]

    def pairs(self, memory: Memory, places: Sequence[Value]) -> list[tuple[Value, Value]]:
        """See ``Exchange``."""
        found = self._looked(memory, places, 2)
        return list(zip(found[::2], found[1::2], strict=True))

    def word(self, memory: Memory, at: Value) -> Value:
        """See ``Exchange``."""
        return self._looked(memory, [at], 1)[0]

    def asked(self, memory: Memory, at: Value) -> Asked:
        """See ``Exchange``."""
        b = self.builder
        address = b.address(memory, memory.type, b.index(at))
        text = "{ .reg .b64 x; ld.relaxed.gpu.global.b64 x, [$2]; mov.b64 {$0, $1}, x; }"
        word, tag = assembly(b.ir, text, [I32, I32], [address])
        return Asked(b.held(word), b.held(tag), memory, at)

    def prefetch(self, address: Value, nbytes: Value) -> None:
        """See ``Exchange``."""
        if self.machine.capability >= PREFETCHES:
            text = "cp.async.bulk.prefetch.L2.global [$0], $1;"
            assembly(
                self.builder.ir, text, [], [self.builder.raw(address), self.builder.raw(nbytes)]
            )

    def touch(self, memory: Memory, at: Value) -> None:
        """See ``Exchange``."""
        b = self.builder
        address = b.address(memory, memory.type, b.index(at))
        assembly(b.ir, "{ .reg .b32 x; ld.global.b32 x, [$0]; }", [], [address])


class EmulatedExchange(Settling):
    """By plain loads and stores: one thread runs at a time."""

    def __init__(self, builder: EmulatedPrinter, tag: Value) -> None:
        self.builder, self.tag = builder, tag
        self._pause = builder.pause

    def put(self, word: Value, memory: Memory, at: Value) -> None:
        """See ``Exchange``."""
        memory[at] = self.builder.vector([word, self.tag])

    def _looked(self, memory: Memory, places: Sequence[Value]) -> list[Value]:
        b = self.builder
        ready = b.variable(b.index(0), "ready")
        kept = [b.variable(b.splat(b.index(0), memory.vector), "words") for _ in places]
        with b.while_(lambda: ready == 0):
            missing = b.variable(b.index(0), "missing")
            for word, at in zip(kept, places, strict=True):
                word.set(b.load(memory, at))
                for part in range(1, memory.vector, 2):
                    missing.set(missing | (word[part] ^ self.tag))
            with b.if_(missing == 0):
                ready.set(b.index(1))
            with b.if_(missing != 0):
                self._pause()
        return [b.let(word[part]) for word in kept for part in range(0, memory.vector, 2)]

    def pairs(self, memory: Memory, places: Sequence[Value]) -> list[tuple[Value, Value]]:
        """See ``Exchange``."""
        found = self._looked(memory, places)
        return list(zip(found[::2], found[1::2], strict=True))

    def word(self, memory: Memory, at: Value) -> Value:
        """See ``Exchange``."""
        return self._looked(memory, [at])[0]

    def asked(self, memory: Memory, at: Value) -> Asked:
        """See ``Exchange``."""
        both = self.builder.let(memory[at])
        return Asked(self.builder.let(both[0]), self.builder.let(both[1]), memory, at)

    def prefetch(self, address: Value, nbytes: Value) -> None:
        """See ``Exchange``: there is no cache."""

    def touch(self, memory: Memory, at: Value) -> None:
        """See ``Exchange``: nor is anything far."""


def exchange_of(builder: Printer, tag: Value, machine: Machine) -> Exchange:
    """What hands words over on a machine."""
    if machine.emulated:
        return EmulatedExchange(cast(EmulatedPrinter, builder), tag)
    return CardExchange(builder, tag, machine)
