"""Work queues: threads claim pieces of work, so that a thread that is held up leaves more to the others.

Each thread has its own queue, the same in every step: what it wrote in one step is in its cache in the next. Cache lines that another core has
written are slow to read, and lines that another core has read are slower to write. A thread that reaches the end of
its queue goes on with others'. Where there are more threads than queues, neighbours share one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....codegen.ir.emit import ir, minimum
from ....codegen.ir.faults import FAULT
from ....codegen.ir.index import Index, i64
from ....codegen.ir.types import Builder, Function, Module, Pointer, Value

CLAIM = "darner.claim"

ENDED = FAULT
"""Which of a kernel's words counts the threads that find nothing more to claim."""
MARKS = ENDED + 1
"""The first of the words in which threads mark what they have done, up to the end of the line of cache."""
LINE_WORDS = 8
"""Words of a line. Each line after the first counts what was claimed of one queue."""
MOST_MARKS = 64 * (LINE_WORDS - MARKS)
QUEUES = 4
WORDS = LINE_WORDS * (1 + QUEUES)
"""What a kernel has in all, those of faults included."""


@dataclass(frozen=True)
class Division:
    """How pieces are divided into queues: ``things`` that come up ``blocks`` times, and ``extra`` pieces more in each queue.

    Attributes:
        queues: how many there are.
    """

    builder: Builder
    queues: Value
    things: Value
    blocks: Index = 1
    extra: Index = 0

    def first(self, queue: Value) -> Value:
        """The first thing of a queue."""
        b = self.builder
        return b.udiv(b.mul(self.things, queue), self.queues)

    def before(self, queue: Value) -> Value:
        """How many pieces the queues before one have."""
        b = self.builder
        pieces = b.mul(self.first(queue), i64(self.blocks))
        return b.add(pieces, b.mul(queue, i64(self.extra)))

    @property
    def pieces(self) -> Value:
        """How many there are in all."""
        return self.before(self.queues)

    def queue(self, piece: Value) -> Value:
        """The queue of a piece."""
        b = self.builder
        found = i64(0)
        for queue in range(1, QUEUES):
            there = b.icmp_unsigned("<", i64(queue), self.queues)
            behind = b.icmp_unsigned(">=", piece, self.before(i64(queue)))
            found = b.select(b.and_(there, behind), i64(queue), found)
        return found


@dataclass(frozen=True)
class Claims:
    """A kernel's claims, as one thread makes them.

    Attributes:
        words: of the kernel, ``WORDS`` of them.
        thread: this thread's number; ``threads`` says how many there are.
    """

    builder: Builder
    words: Pointer
    thread: Value
    threads: Value

    def division(self, things: Value, blocks: int = 1, extra: int = 0) -> Division:
        """The queues of so many things."""
        queues = minimum(self.builder, self.threads, i64(QUEUES))
        return Division(self.builder, queues, things, blocks, extra)

    def begin(self) -> Pointer:
        """Where this thread counts the queues that are empty."""
        with self.builder.goto_entry_block():
            tried = self.builder.alloca(ir().IntType(64))
        self.builder.store(i64(0), tried)
        return tried

    def claim(self, division: Division, tried: Pointer) -> Value:
        """One more piece that no other thread has claimed in this run; ``division.pieces`` where none is left.

        A thread goes on until then, and calls ``end`` once.
        """
        b = self.builder
        function = _claim_function(b.module)
        own = b.udiv(b.mul(self.thread, division.queues), self.threads)
        about = [division.things, i64(division.blocks), i64(division.extra)]
        return b.call(function, [self.words, own, division.queues, *about, tried])

    def end(self, marks: bool = False) -> None:
        """End this thread's claims. The last of all threads has the next run begin anew, and takes back the ``marks``."""
        b = self.builder
        before = b.atomic_rmw("add", self._word(ENDED), i64(1), "acq_rel")
        last = b.sub(self.threads, i64(1))
        with b.if_then(b.icmp_signed("==", before, last)):
            places = list(range(MARKS, MARKS + MOST_MARKS // 64)) if marks else []
            places += [LINE_WORDS * (1 + queue) for queue in range(QUEUES)]
            for position in (*places, ENDED):
                b.atomic_rmw("xchg", self._word(position), i64(0), "release")

    def each(self, pieces: int, body: Callable[[Value], None]) -> None:
        """``body(piece)`` for the pieces that this thread claims, one after another, as long as there are any."""
        b = self.builder
        division, tried = self.division(i64(pieces)), self.begin()
        first, before = self.claim(division, tried), b.block
        head, some = b.append_basic_block("claim"), b.append_basic_block("claimed")
        done = b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        piece = b.phi(first.type)
        piece.add_incoming(first, before)
        b.cbranch(b.icmp_unsigned("<", piece, i64(pieces)), some, done)
        b.position_at_end(some)
        body(piece)
        following = self.claim(division, tried)
        piece.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)
        self.end()

    def mark(self, number: Value) -> None:
        """Say that something, one of ``MOST_MARKS``, is done: what this thread wrote before is seen by who sees the mark.

        A thread marks nothing more once no piece is left for it; then all marks may be taken back at any time.
        """
        place, bit = self._mark(number)
        self.builder.atomic_rmw("or", place, bit, "release")

    def marked(self, number: Value) -> Value:
        """Whether something was marked."""
        b = self.builder
        place, bit = self._mark(number)
        seen = b.load_atomic(place, "acquire", 8, typ=bit.type)
        return b.icmp_unsigned("!=", b.and_(seen, bit), i64(0))

    def _mark(self, number: Value) -> tuple[Pointer, Value]:
        """The word of a mark, and its bit."""
        b = self.builder
        position = b.add(i64(MARKS), b.lshr(number, i64(6)))
        return self._word(position), b.shl(i64(1), b.and_(number, i64(63)))

    def _word(self, number: Index) -> Pointer:
        position = i64(number)
        return self.builder.gep(self.words, [position], source_etype=ir().IntType(64))


def _claim_function(module: Module) -> Function:
    """The function behind ``Claims.claim``: the kernel's words, the queue to begin with, how many there are, the division, and where empty ones are counted."""
    if CLAIM in module.globals:
        return module.globals[CLAIM]
    types = ir()
    word, pointer = types.IntType(64), types.PointerType()
    kind = types.FunctionType(word, [pointer, *[word] * 5, pointer])
    function = types.Function(module, kind, CLAIM)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    words, own, queues, things, blocks, extra, tried = function.args
    b = types.IRBuilder(function.append_basic_block("entry"))
    head, some = b.append_basic_block("head"), b.append_basic_block("some")
    got, empty = b.append_basic_block("got"), b.append_basic_block("empty")
    none = b.append_basic_block("none")
    division = Division(b, queues, things, blocks, extra)
    b.branch(head)
    b.position_at_end(head)
    count = b.load(tried, typ=word)
    b.cbranch(b.icmp_unsigned("<", count, queues), some, none)
    b.position_at_end(some)
    queue = b.urem(b.add(own, count), queues)
    position = b.mul(b.add(queue, i64(1)), i64(LINE_WORDS))
    counter = b.gep(words, [position], source_etype=word)
    number = b.atomic_rmw("add", counter, i64(1), "acq_rel")
    start = division.before(queue)
    length = b.sub(division.before(b.add(queue, i64(1))), start)
    b.cbranch(b.icmp_unsigned("<", number, length), got, empty)
    b.position_at_end(got)
    b.ret(b.add(start, number))
    b.position_at_end(empty)
    b.store(b.add(count, i64(1)), tried)
    b.branch(head)
    b.position_at_end(none)
    b.ret(division.pieces)
    return function
