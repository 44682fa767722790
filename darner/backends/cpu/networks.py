"""Sorting by a network: vectors are compared with vectors, whatever is in them, so that nothing depends on a branch.

The numbers are sorted within vectors first. Sorted runs are then merged two by two: the second is read backwards and compared with the first, which
leaves the smaller half of all in the first, and halves of halves are compared until a vector is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .gemm_ir import loop
from .lanes import function_of, mangled, own_function
from .places import as_value


def network_function(module: Any, bits: int, lanes: int) -> Any:
    """``sort(data, exponent)``: 2**exponent unsigned numbers in order, at least as many as a vector's lanes."""
    from llvmlite import ir  # type: ignore[import-untyped]

    kinds = [ir.PointerType(), ir.IntType(64)]

    def body(b: Any, data: Any, exponent: Any) -> None:
        _Network(b, data, bits, lanes).emit(exponent)
        b.ret_void()

    name = f"network{bits}x{lanes}"
    return own_function(module, name, ir.VoidType(), kinds, body, "noinline")


def merge_function(module: Any, bits: int, lanes: int) -> Any:
    """``merge(data, count, target)``: two sorted runs of ``count`` numbers, one after the other, as one; whole vectors."""
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)

    def body(b: Any, data: Any, count: Any, target: Any) -> None:
        source, to = (_Network(b, place, bits, lanes) for place in (data, target))
        step, both = as_value(lanes), b.add(count, count)
        before = b.sub(count, step)

        def one(at: Any, held: Sequence[Any]) -> Sequence[Any]:
            # The next vector is that of the run whose next number is smaller; of a run at its end, none.
            kept, left, right = held
            ends = b.icmp_signed(">=", left, count), b.icmp_signed(">=", right, both)
            heads = []
            for place, over, last in ((left, ends[0], before), (right, ends[1], b.sub(both, step))):
                inside = b.select(over, last, place)
                heads.append(b.load(source.place(inside), typ=source.element, align=bits // 8))
            first = b.icmp_unsigned("<=", heads[0], heads[1])
            first = b.and_(b.or_(first, ends[1]), b.not_(ends[0]))
            taken = source.turned(source.read(b.select(first, left, right)))
            low, high = (source.extreme(name, kept, taken) for name in ("umin", "umax"))
            to.write(source.halves(low, lanes), at)
            left = b.select(first, b.add(left, step), left)
            right = b.select(first, right, b.add(right, step))
            return [source.halves(high, lanes), left, right]

        start = [source.read(as_value(0)), step, count]
        kept, _, _ = loop(b, as_value(0), b.sub(both, step), lanes, one, start)
        to.write(kept, b.sub(both, step))
        b.ret_void()

    kinds = [pointer, wide, pointer]
    name = f"merging{bits}x{lanes}"
    return own_function(module, name, ir.VoidType(), kinds, body, "noinline")


class _Network:
    """The code of one function."""

    def __init__(self, builder: Any, data: Any, bits: int, lanes: int) -> None:
        from llvmlite import ir

        self.builder = builder
        self.data = data
        self.lanes = lanes
        self.least = (lanes - 1).bit_length()
        self.element = ir.IntType(bits)
        self.kind = ir.VectorType(self.element, lanes)

    # ------------------------------------------------------------- vectors

    def place(self, at: Any) -> Any:
        """The address of a number."""
        return self.builder.gep(self.data, [at], source_etype=self.element)

    def read(self, at: Any) -> Any:
        """A vector."""
        return self.builder.load(self.place(at), typ=self.kind, align=self.element.width // 8)

    def write(self, value: Any, at: Any) -> None:
        """Write a vector."""
        self.builder.store(value, self.place(at), align=self.element.width // 8)

    def picked(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """Lanes of two vectors, those of the second counted on."""
        from llvmlite import ir

        numbers = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), list(lanes))
        return self.builder.shuffle_vector(a, b, numbers)

    def extreme(self, name: str, a: Any, b: Any) -> Any:
        """The smaller or the larger in each lane."""
        full = f"llvm.{name}.{mangled(self.kind)}"
        function = function_of(self.builder.module, full, self.kind, [self.kind, self.kind])
        return self.builder.call(function, [a, b])

    def turned(self, value: Any) -> Any:
        """The lanes backwards."""
        return self.picked(value, value, range(self.lanes - 1, -1, -1))

    def within(self, value: Any, distance: int) -> Any:
        """Compare each lane with the one whose number differs by these bits."""
        other = self.picked(value, value, [lane ^ distance for lane in range(self.lanes)])
        low, high = self.extreme("umin", value, other), self.extreme("umax", value, other)
        lanes = [
            lane if lane < lane ^ distance else self.lanes + lane for lane in range(self.lanes)
        ]
        return self.picked(low, high, lanes)

    def halves(self, value: Any, width: int) -> Any:
        """Put runs of ``width`` lanes in order whose halves are in order against each other."""
        while width > 1:
            width //= 2
            value = self.within(value, width)
        return value

    # ------------------------------------------------------------- passes

    def each(self, count: Any, step: int, inside: Any) -> None:
        """``inside(at)`` for every ``step``-th number before ``count``."""

        def one(at: Any, _: Sequence[Any]) -> None:
            inside(at)

        loop(self.builder, as_value(0), count, step, one)

    def emit(self, exponent: Any) -> None:
        """All of it."""
        b = self.builder
        count = b.shl(as_value(1), exponent)

        def first(at: Any) -> None:
            value, width = self.read(at), 2
            while width <= self.lanes:
                value = self.halves(self.within(value, width - 1), width // 2)
                width *= 2
            self.write(value, at)

        self.each(count, self.lanes, first)

        def merge(power: Any, _: Sequence[Any]) -> None:
            size = b.shl(as_value(1), power)
            self.meet(count, power, size)
            # Halves of halves, down to those of two vectors.
            stages = b.sub(power, as_value(self.least + 1))

            def stage(number: Any, _: Sequence[Any]) -> None:
                shift = b.sub(b.sub(power, as_value(2)), number)
                self.apart(count, shift)

            loop(b, as_value(0), stages, 1, stage)

            def last(at: Any) -> None:
                self.write(self.halves(self.read(at), self.lanes), at)

            self.each(count, self.lanes, last)

        loop(b, as_value(self.least + 1), b.add(exponent, as_value(1)), 1, merge)

    def meet(self, count: Any, power: Any, size: Any) -> None:
        """Compare each run with the next, read backwards."""
        b = self.builder
        half = b.lshr(size, as_value(1))
        inner = b.sub(half, as_value(1))

        def one(number: Any) -> None:
            run = b.shl(b.lshr(number, b.sub(power, as_value(1))), power)
            at = b.and_(number, inner)
            low = b.add(run, at)
            high = b.sub(b.add(run, size), b.add(at, as_value(self.lanes)))
            a, c = self.read(low), self.turned(self.read(high))
            self.write(self.extreme("umin", a, c), low)
            self.write(self.turned(self.extreme("umax", a, c)), high)

        self.each(b.lshr(count, as_value(1)), self.lanes, one)

    def apart(self, count: Any, shift: Any) -> None:
        """Compare numbers that are 2**shift apart."""
        b = self.builder
        distance = b.shl(as_value(1), shift)
        inner = b.sub(distance, as_value(1))

        def one(number: Any) -> None:
            above = b.shl(b.lshr(number, shift), b.add(shift, as_value(1)))
            low = b.or_(above, b.and_(number, inner))
            high = b.add(low, distance)
            a, c = self.read(low), self.read(high)
            self.write(self.extreme("umin", a, c), low)
            self.write(self.extreme("umax", a, c), high)

        self.each(b.lshr(count, as_value(1)), self.lanes, one)
