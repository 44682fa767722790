"""How long a block waits before it looks for words. Who looks before a word can be there slows down whoever writes it, and who looks late loses time.

A block learns it: for every form of a stage it knows how long it waited the last time, and how long it then took until all words were there. What it has learned stays on the device from launch to launch; no number depends on it.
"""

from __future__ import annotations

from ....codegen.simt.builder import Memory, Value
from ....graph import dtypes
from .code import Code
from .forms import Chain

TARGET = 1000
"""Cycles from the first look until all is there, if it comes at the right time: what a look and a barrier take, and a little more."""
SHARE = 8
"""Part of the difference by which the next wait is another."""
STEP = 64
"""Cycles by which a wait changes at most."""
MOST = 2500
"""Cycles of a wait at most."""


def known_words(chain: Chain) -> int:
    """Words that each block keeps from launch to launch: how many there were, and its waits by form."""
    return 1 + len(chain.forms)


class Waits:
    """The waits of a block.

    Args:
        code: of the chain.
        kept: what blocks keep from launch to launch.
        own: where that of this block begins.
    """

    def __init__(self, code: Code, kept: Memory, own: Value) -> None:
        self.code, self._kept, self._own = code, kept, own
        self._count = len(code.chain.forms)
        self.memory = code.shared(dtypes.u32, self._count, "waits")
        b = code.builder
        with b.for_(b.local, self._count, code.threads) as form:
            b.store(b.load(kept, own + form + 1), self.memory, form)

    def keep(self) -> None:
        """Keep what was learned; a barrier comes before it."""
        b = self.code.builder
        with b.for_(b.local, self._count, self.code.threads) as form:
            b.store(b.load(self.memory, form), self._kept, self._own + form + 1)


class Waiting:
    """The wait of a stage.

    Args:
        waits: of the block.
        form: the stage's.
        began: when the stage began.
    """

    def __init__(self, waits: Waits, form: int, began: Value) -> None:
        self._waits, self._form, self._began = waits, form, began
        self._first = began

    def begin(self) -> None:
        """Wait, right before words are looked for."""
        code = self._waits.code
        b = code.builder
        cycles = b.let(b.load(self._waits.memory, b.index(self._form)), "cycles")
        code.exchange.hold(self._began, cycles)
        self._first = code.exchange.clock()

    def end(self) -> None:
        """Learn, when all words are there and all threads know."""
        code = self._waits.code
        b, memory = code.builder, self._waits.memory
        with b.if_(b.local == 0):
            took = b.as_signed(b.let(code.exchange.clock() - self._first))
            change = b.let(b.max(b.min((took - TARGET) // SHARE, STEP), -STEP))
            before = b.as_signed(b.let(b.load(memory, b.index(self._form))))
            after = b.let(b.max(b.min(before + change, MOST), 0))
            b.store(b.as_unsigned(after), memory, b.index(self._form))
