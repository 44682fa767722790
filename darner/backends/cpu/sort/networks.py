"""Sorting networks: vectors are compared with vectors, whatever they hold, so that nothing depends on a branch.

As many vectors as fit the registers are a block. Its columns are sorted by comparing vectors with each other, and are then transposed; sorted vectors are
merged in pairs within the registers. Blocks are then merged in memory, a vector at a time and from both ends at once: neither end waits for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....codegen.ir.emit import loop, minimum
from ....codegen.ir.index import i64
from ....codegen.ir.lanes import function_of, mangled, own_function
from ....codegen.ir.types import Builder, Function, Module, Pointer, Value
from ....graph.integers import ceil_div, round_up
from ..emit.vectors import copy_bytes, each

BOTH_ENDS = (1, -1)


def block_vectors(bits: int, lanes: int) -> int:
    """How many vectors are sorted in registers: half of those that there are."""
    return 16 if bits * lanes == 512 else 8


def block_size(bits: int, lanes: int, count: int) -> int:
    """Numbers of the block that ``count`` of them are sorted in, or of the largest there is.

    >>> [block_size(32, 16, count) for count in (3, 17, 256, 5000)]
    [16, 32, 256, 256]
    """
    vectors = 1 << (ceil_div(count, lanes) - 1).bit_length()
    return lanes * min(vectors, block_vectors(bits, lanes))


def rounded(bits: int, lanes: int, count: int) -> int:
    """So many numbers in whole blocks: what there must be room for.

    >>> [rounded(32, 16, count) for count in (3, 300)]
    [16, 512]
    """
    block = block_size(bits, lanes, count)
    return round_up(count, block)


def sort_function(module: Module, bits: int, lanes: int, most: int) -> Function:
    """``sort(data, other, count)``: unsigned numbers in order, in one of the two places, which it returns.

    Their number is that of whole blocks for ``most`` (``rounded``), and no larger than that.
    """
    from llvmlite import ir

    block = block_size(bits, lanes, most)
    pointer, wide = ir.PointerType(), ir.IntType(64)
    merge = merge_function(module, bits, lanes)

    def body(b: Builder, data: Pointer, other: Pointer, count: Value) -> None:
        network = _Network(b, bits, lanes)

        def sort_vector(at: Value, _: Sequence[Value]) -> None:
            network.sort_block(data, at, block // lanes)

        loop(b, i64(0), count, block, sort_vector)
        if most <= block:
            b.ret(data)
            return
        nbytes = i64(bits // 8)
        before = b.block
        head, more, done = (b.append_basic_block(name) for name in ("head", "more", "done"))
        b.branch(head)
        b.position_at_end(head)
        source, target, width = b.phi(pointer), b.phi(pointer), b.phi(wide)
        for phi, start in ((source, data), (target, other), (width, i64(block))):
            phi.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", width, count), more, done)
        b.position_at_end(more)
        both = b.add(width, width)

        def pair(number: Value) -> None:
            first = b.mul(number, both)
            middle = minimum(b, b.add(first, width), count)
            last = minimum(b, b.add(first, both), count)
            left, right, to = (
                network.address(memory, at)
                for memory, at in ((source, first), (source, middle), (target, first))
            )
            sizes = b.sub(middle, first), b.sub(last, middle)
            with b.if_else(b.icmp_signed(">", sizes[1], i64(0))) as (two, alone):
                with two:
                    b.call(merge, [left, sizes[0], right, sizes[1], to])
                with alone:
                    copy_bytes(b, to, left, b.mul(sizes[0], nbytes))

        pairs = b.udiv(b.add(count, b.sub(both, i64(1))), both)
        each(b, 0, pairs, pair)
        for phi, following in ((source, target), (target, source), (width, both)):
            phi.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)
        b.ret(source)

    name = f"network{bits}x{lanes}by{block // lanes}{'more' if most > block else ''}"
    return own_function(module, name, pointer, [pointer, pointer, wide], body, "noinline")


def merge_function(
    module: Module, bits: int, lanes: int, ends: Sequence[int] = BOTH_ENDS
) -> Function:
    """``merge(left, left_count, right, right_count, target)``: two sorted runs of whole vectors as one.

    From one end alone (1 the first, -1 the last), half of the numbers are written: a thread can merge from each.
    """
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)

    def body(
        b: Builder,
        left: Pointer,
        left_count: Value,
        right: Pointer,
        right_count: Value,
        to: Pointer,
    ) -> None:
        network = _Network(b, bits, lanes)
        runs = (left, left_count), (right, right_count)
        merges = [_End(network, runs, to, end) for end in ends]
        total = b.add(left_count, right_count)
        vectors = b.udiv(total, i64(lanes))
        half = b.lshr(vectors, i64(1))

        def step(number: Value, held: Sequence[Value]) -> Sequence[Value]:
            following: list[Value] = []
            for i, merge in enumerate(merges):
                following += merge.step(number, held[3 * i : 3 * i + 3])
            return following

        start = [value for merge in merges for value in merge.start()]
        held = loop(b, i64(0), half, 1, step, start)
        if ends[0] > 0:
            # The one in the middle, of an odd number.
            with b.if_then(b.icmp_signed(">", b.sub(vectors, half), half)):
                merges[0].step(half, held[:3])
        b.ret_void()

    kinds = [pointer, wide, pointer, wide, pointer]
    name = f"merging{bits}x{lanes}{'first' * (1 in ends)}{'last' * (-1 in ends)}"
    return own_function(module, name, ir.VoidType(), kinds, body, "noinline")


class _End:
    """One end of two runs that are merged: a vector is kept, and compared with the next of the run whose next number is nearer to the end."""

    def __init__(
        self, network: _Network, runs: Sequence[tuple[Pointer, Value]], to: Pointer, end: int
    ) -> None:
        self.network = network
        self.runs = runs
        self.to = to
        self.end = end

    def start(self) -> list[Value]:
        """The vector that is kept first, and how many numbers of either run were taken."""
        (left, count), _ = self.runs
        step = i64(self.network.lanes)
        return [self.network.read(left, self._at(count, i64(0))), step, i64(0)]

    def _at(self, count: Value, taken: Value) -> Value:
        """Where the next vector of a run lies."""
        if self.end > 0:
            return taken
        b = self.network.builder
        return b.sub(count, b.add(taken, i64(self.network.lanes)))

    def step(self, number: Value, held: Sequence[Value]) -> list[Value]:
        """Write one more vector; what is held after that."""
        network, b = self.network, self.network.builder
        kept, *taken = held
        lanes = i64(network.lanes)
        heads, places, over = [], [], []
        for (run, count), done in zip(self.runs, taken, strict=True):
            over.append(b.icmp_signed(">=", done, count))
            # Of a run that is over its last vector is looked at once more, and not taken.
            position = self._at(count, b.select(over[-1], b.sub(count, lanes), done))
            places.append(network.address(run, position))
            offset = i64(0 if self.end > 0 else network.lanes - 1)
            heads.append(network.number(places[-1], offset))
        first = b.icmp_unsigned("<=" if self.end > 0 else ">=", *heads)
        first = b.and_(b.or_(first, over[1]), b.not_(over[0]))
        found = network.transposed(network.read(b.select(first, *places), i64(0)))
        low, high = network.ordered(kept, found)
        written, kept = (low, high) if self.end > 0 else (high, low)
        total = b.add(self.runs[0][1], self.runs[1][1])
        network.write(
            network.halves(written, network.lanes),
            self.to,
            self._at(total, b.mul(number, lanes)),
        )
        taken = [
            b.select(first, b.add(taken[0], lanes), taken[0]),
            b.select(first, taken[1], b.add(taken[1], lanes)),
        ]
        return [network.halves(kept, network.lanes), *taken]


def comparisons(count: int) -> Iterator[tuple[int, int]]:
    """Batcher's network for a power of two: which places are compared, one after the other.

    >>> list(comparisons(4))
    [(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)]
    """
    run = 1
    while run < count:
        distance = run
        while distance:
            for first in range(distance % run, count - distance, 2 * distance):
                for position in range(first, min(first + distance, count - distance)):
                    if position // (2 * run) == (position + distance) // (2 * run):
                        yield position, position + distance
            distance //= 2
        run *= 2


class _Network:
    """Code on vectors of unsigned numbers."""

    def __init__(self, builder: Builder, bits: int, lanes: int) -> None:
        from llvmlite import ir

        self.builder = builder
        self.lanes = lanes
        self.element = ir.IntType(bits)
        self.kind = ir.VectorType(self.element, lanes)

    # ------------------------------------------------------------- vectors

    def address(self, data: Pointer, at: Value) -> Pointer:
        """The address of a number."""
        return self.builder.gep(data, [at], source_etype=self.element)

    def number(self, data: Pointer, at: Value) -> Value:
        """One number."""
        return self.builder.load(self.address(data, at), typ=self.element, align=self._align)

    def read(self, data: Pointer, at: Value) -> Value:
        """A vector."""
        return self.builder.load(self.address(data, at), typ=self.kind, align=self._align)

    def write(self, value: Value, data: Pointer, at: Value) -> None:
        """Write a vector."""
        self.builder.store(value, self.address(data, at), align=self._align)

    @property
    def _align(self) -> int:
        return int(self.element.width) // 8

    def picked(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes of two vectors, those of the second counted on."""
        from llvmlite import ir

        numbers = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), list(lanes))
        return self.builder.shuffle_vector(a, b, numbers)

    def ordered(self, a: Value, b: Value) -> tuple[Value, Value]:
        """The smaller and the larger in each lane."""
        found = []
        for name in ("umin", "umax"):
            full = f"llvm.{name}.{mangled(self.kind)}"
            function = function_of(self.builder.module, full, self.kind, [self.kind, self.kind])
            found.append(self.builder.call(function, [a, b]))
        return found[0], found[1]

    def transposed(self, value: Value) -> Value:
        """The lanes backwards."""
        return self.picked(value, value, range(self.lanes - 1, -1, -1))

    def within(self, value: Value, distance: int) -> Value:
        """Compare each lane with the one whose number differs by these bits."""
        other = self.picked(value, value, [lane ^ distance for lane in range(self.lanes)])
        lanes = [
            lane if lane < lane ^ distance else self.lanes + lane for lane in range(self.lanes)
        ]
        return self.picked(*self.ordered(value, other), lanes)

    def halves(self, value: Value, width: int) -> Value:
        """Put runs of ``width`` lanes in order whose halves are in order against each other."""
        while width > 1:
            width //= 2
            value = self.within(value, width)
        return value

    # ------------------------------------------------------------- several vectors

    def sort_block(self, data: Pointer, at: Value, vectors: int) -> None:
        """Sort the numbers of some vectors, a power of two, in registers."""
        b = self.builder
        places = [b.add(at, i64(i * self.lanes)) for i in range(vectors)]
        found = [self.read(data, address) for address in places]
        if vectors % self.lanes:
            found = [self.sorted(value) for value in found]
        else:
            groups = [found[i : i + self.lanes] for i in range(0, vectors, self.lanes)]
            found = [value for group in groups for value in self.columns(group)]
        width = 1
        while width < vectors:
            pairs = range(0, vectors, 2 * width)
            found = [value for i in pairs for value in self.merged(found[i : i + 2 * width])]
            width *= 2
        for position, value in zip(places, found, strict=True):
            self.write(value, data, position)

    def sorted(self, value: Value) -> Value:
        """One vector in order."""
        width = 2
        while width <= self.lanes:
            value = self.halves(self.within(value, width - 1), width // 2)
            width *= 2
        return value

    def columns(self, vectors: list[Value]) -> list[Value]:
        """As many vectors as there are lanes: their columns, each in order."""
        for i, j in comparisons(len(vectors)):
            vectors[i], vectors[j] = self.ordered(vectors[i], vectors[j])
        lanes, distance = range(self.lanes), self.lanes // 2
        while distance:
            for i in lanes:
                if i & distance:
                    continue
                a, b = vectors[i], vectors[i | distance]
                low = [
                    self.lanes + (lane ^ distance) if lane & distance else lane for lane in lanes
                ]
                high = [self.lanes + lane if lane & distance else lane | distance for lane in lanes]
                vectors[i], vectors[i | distance] = self.picked(a, b, low), self.picked(a, b, high)
            distance //= 2
        return vectors

    def merged(self, vectors: list[Value]) -> list[Value]:
        """Two sorted runs of vectors as one: the second backwards is compared with the first, then halves of halves."""
        half = len(vectors) // 2
        backwards = [self.transposed(value) for value in reversed(vectors[half:])]
        pairs = [self.ordered(a, b) for a, b in zip(vectors[:half], backwards, strict=True)]
        found = [low for low, _ in pairs] + [high for _, high in pairs]
        distance = half // 2
        while distance:
            for i in range(len(found)):
                if not i & distance:
                    found[i], found[i | distance] = self.ordered(found[i], found[i | distance])
            distance //= 2
        return [self.halves(value, self.lanes) for value in found]
