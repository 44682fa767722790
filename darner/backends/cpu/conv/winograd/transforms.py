"""The transforms of Winograd's convolutions: functions that a module has once, whatever the shapes.

A polynomial of degree ``ends - 1`` is known by its values at as many points. These are 0, pairs of a number and its negative, and infinity: pairs share half of their
arithmetic. With 1 and 2 sums lose up to three bits more than with 5/8 and 3/2, whose powers stay near 1.
All vectors run over channels, so squares may lie anywhere in an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .....codegen.ir.emit import (
    broadcast,
    fused_multiply_add,
    ir,
    load,
    loop,
    offset,
    store,
    vector_type,
)
from .....codegen.ir.index import i64
from .....codegen.ir.types import Builder, Function, Module, Pointer, Value
from .....graph.integers import round_up
from ...contract.pack import transpose

PAIRS = {2: (Fraction(1),), 4: (Fraction(5, 8), Fraction(3, 2))}
"""The positive points of each size of squares."""
DTYPE = "f32"
TAPS = 9


def _scales(pairs: Sequence[Fraction]) -> tuple[Fraction, list[Fraction]]:
    """What weights are divided by to make values of products a polynomial again: at 0, and at each pair."""
    at_zero, at_pairs = Fraction(1), []
    for point in pairs:
        at_zero *= -(point**2)
        scale = 2 * point**2
        for other in pairs:
            if other != point:
                scale *= point**2 - other**2
        at_pairs.append(1 / scale)
    return 1 / at_zero, at_pairs


class Line:
    """The transforms along one axis, as code on vectors.

    Args:
        builder: where the code goes.
        side: of a square.
        lanes: of a vector.
    """

    def __init__(self, builder: Builder, side: int, lanes: int) -> None:
        self.builder, self.side, self.lanes = builder, side, lanes
        self.pairs = PAIRS[side]
        self.at_zero, self.at_pairs = _scales(self.pairs)

    def _constant(self, value: Fraction) -> Value:
        number = ir().Constant(vector_type(DTYPE, 1), float(value))
        return ir().Constant(vector_type(DTYPE, self.lanes), [number] * self.lanes)

    def _sum(self, terms: Sequence[tuple[Fraction, Value]]) -> Value:
        """Of products of numbers and vectors; those with 1 are the start of it."""
        needed = [term for term in terms if term[0]]
        needed.sort(key=lambda term: (abs(term[0]) != 1, term[0] != 1))
        (factor, total), *others = needed
        if factor != 1:
            total = self.builder.fmul(total, self._constant(factor))
        for factor, value in others:
            if abs(factor) == 1:
                act = self.builder.fadd if factor == 1 else self.builder.fsub
                total = act(total, value)
            else:
                total = fused_multiply_add(
                    self.builder, value, self._constant(factor), total, self.lanes
                )
        return total

    def _both(self, even: Value, odd: Value, factor: Fraction) -> list[Value]:
        """``even + factor * odd`` and ``even - factor * odd``."""
        one = Fraction(1)
        return [self._sum([(one, even), (sign * factor, odd)]) for sign in (1, -1)]

    def source(self, values: Sequence[Value]) -> list[Value]:
        """What ``ends`` neighbours of the source are at the points."""
        whole = _product(self.pairs)
        found = [self._sum(list(zip(whole, values[::2], strict=True)))]
        for point in self.pairs:
            rest = _product([other for other in self.pairs if other != point])
            even = self._sum(list(zip(rest, values[2::2], strict=True)))
            odd = self._sum(list(zip(rest, values[1:-1:2], strict=True)))
            found += self._both(even, odd, point)
        found.append(self._sum(list(zip(whole, values[1::2], strict=True))))
        return found

    def weight(self, values: Sequence[Value]) -> list[Value]:
        """What three neighbours of the kernel are at the points, divided by what makes the values of products a polynomial again."""
        first, second, third = values
        found = [self._sum([(self.at_zero, first)])]
        for point, scale in zip(self.pairs, self.at_pairs, strict=True):
            even = self._sum([(scale, first), (scale * point**2, third)])
            found += self._both(even, second, scale * point)
        found.append(third)
        return found

    def result(self, values: Sequence[Value]) -> list[Value]:
        """The ``side`` pixels whose values at the points are given."""
        first, *between, last = values
        builder = self.builder
        sums = [builder.fadd(a, b) for a, b in zip(between[::2], between[1::2], strict=True)]
        differences = [builder.fsub(a, b) for a, b in zip(between[::2], between[1::2], strict=True)]
        found = []
        for power in range(self.side):
            factors = [point**power for point in self.pairs]
            terms = list(zip(factors, differences if power % 2 else sums, strict=True))
            if power == 0:
                terms.append((Fraction(1), first))
            if power == self.side - 1:
                terms.append((Fraction(1), last))
            found.append(self._sum(terms))
        return found

    def gradient(self, values: Sequence[Value]) -> list[Value]:
        """The transpose of ``result``: what ``side`` pixels of the result's gradient are at the points."""
        found = [values[0]]
        for point in self.pairs:
            even = self._sum([(point**k, values[k]) for k in range(0, self.side, 2)])
            odd = self._sum([(point ** (k - 1), values[k]) for k in range(1, self.side, 2)])
            found += self._both(even, odd, point)
        return [*found, values[-1]]

    def weight_gradient(self, values: Sequence[Value]) -> list[Value]:
        """The transpose of ``weight``: three taps."""
        first, *between, last = values
        builder = self.builder
        starts, middles, ends = [(self.at_zero, first)], [], [(Fraction(1), last)]
        scales = zip(self.pairs, self.at_pairs, strict=True)
        values_at = zip(between[::2], between[1::2], strict=True)
        for (point, scale), (plus, minus) in zip(scales, values_at, strict=True):
            both = builder.fadd(plus, minus)
            starts.append((scale, both))
            middles.append((scale * point, builder.fsub(plus, minus)))
            ends.append((scale * point**2, both))
        return [self._sum(starts), self._sum(middles), self._sum(ends)]


def _product(pairs: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of the product of ``x - p**2``, the lowest first."""
    found = [Fraction(1)]
    for point in pairs:
        shifted = [Fraction(0), *found]
        scaled = [-(point**2) * value for value in found] + [Fraction(0)]
        found = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return found


def _function(module: Module, name: str, arguments: str) -> tuple[Function, Builder | None]:
    """The function of a name, and a builder where it is yet to be written: ``p`` is a pointer, ``n`` a number."""
    types = ir()
    if name in module.globals:
        return module.globals[name], None
    kinds = {"p": types.PointerType(), "n": types.IntType(64)}
    kind = types.FunctionType(types.VoidType(), [kinds[letter] for letter in arguments])
    function = types.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    return function, types.IRBuilder(function.append_basic_block("entry"))


def fill_kernel(module: Module, lanes: int) -> Function:
    """Takes a row of an image, of as many channels as a vector has lanes, to ``[column][channel]``.

    Its signature is ``(count, low, high, channels, source*, distance, target*)``: ``count`` columns are written, those outside of ``low <= column < high`` and channels
    from ``channels`` on are 0 and not read. ``source`` is where column 0 of the first channel would be.
    """
    function, builder = _function(module, f"darner.winograd.fill.{lanes}", "nnnnpnp")
    if builder is None:
        return function
    count, low, high, channels, source, distance, target = function.args
    all_channels = builder.icmp_signed("==", channels, i64(lanes))

    def write(at: Value, values: list[Value]) -> None:
        for lane, value in enumerate(transpose(builder, values)):
            address = offset(builder, target, DTYPE, builder.mul(at, i64(lanes)), lane * lanes)
            store(builder, value, address, DTYPE)

    def address(at: Value, lane: int) -> Pointer:
        return offset(builder, source, DTYPE, builder.mul(distance, i64(lane)), at)

    def chunk(at: Value, _: Sequence[Value]) -> None:
        end = builder.add(at, i64(lanes))
        inside = builder.and_(
            builder.icmp_signed(">=", at, low), builder.icmp_signed("<=", end, high)
        )
        with builder.if_else(builder.and_(inside, all_channels)) as (plain, careful):
            with plain:
                write(at, [load(builder, address(at, i), DTYPE, lanes) for i in range(lanes)])
            with careful:
                some = _between(builder, builder.sub(low, at), builder.sub(high, at), lanes)
                nothing = ir().Constant(some.type, None)
                values = []
                for lane in range(lanes):
                    exists = builder.icmp_signed(">", channels, i64(lane))
                    mask = builder.select(exists, some, nothing)
                    values.append(load(builder, address(at, lane), DTYPE, lanes, mask))
                write(at, values)

    loop(builder, i64(0), count, lanes, chunk)
    builder.ret_void()
    return function


def _between(builder: Builder, low: Value, high: Value, lanes: int) -> Value:
    """The lanes from ``low`` to before ``high``."""
    types = ir()
    numbers = types.Constant(types.VectorType(types.IntType(64), lanes), list(range(lanes)))
    return builder.and_(
        builder.icmp_signed(">=", numbers, broadcast(builder, low, lanes)),
        builder.icmp_signed("<", numbers, broadcast(builder, high, lanes)),
    )


def source_kernel(
    module: Module, side: int, lanes: int, gradient: bool = False, non_temporal: bool = False
) -> Function:
    """Takes a line of squares of one vector of channels to their values at the points.

    Its signature is ``(squares, rows*, pitch, slot, target*, square_distance, point_distance)``. ``rows`` is a ring of ``2 * side`` rows ``[column][channel]``,
    ``pitch`` elements apart; ``slot`` is the place of the first that is read. With ``gradient`` a square is of the result's gradient, and reads no neighbours.
    ``non_temporal`` has vectors go past the cache.
    """
    kind = f"{'gradient' if gradient else 'source'}{'.past' if non_temporal else ''}"
    function, builder = _function(module, f"darner.winograd.{kind}.{side}.{lanes}", "npnnpnn")
    if builder is None:
        return function
    squares, rows, pitch, slot, target, square_distance, point_distance = function.args
    line, ends = Line(builder, side, lanes), side + 2
    along, reach = (line.gradient, side) if gradient else (line.source, ends)
    starts = [
        builder.mul(builder.and_(builder.add(slot, i64(i)), i64(2 * side - 1)), pitch)
        for i in range(reach)
    ]

    def square(number: Value, _: Sequence[Value]) -> None:
        left = builder.mul(number, i64(side * lanes))
        columns = []
        for j in range(reach):
            read = [
                load(builder, offset(builder, rows, DTYPE, start, left, j * lanes), DTYPE, lanes)
                for start in starts
            ]
            columns.append(along(read))
        to = offset(builder, target, DTYPE, builder.mul(number, square_distance))
        for i in range(ends):
            for j, value in enumerate(along([column[i] for column in columns])):
                position = builder.mul(point_distance, i64(i * ends + j))
                store(
                    builder,
                    value,
                    offset(builder, to, DTYPE, position),
                    DTYPE,
                    non_temporal=non_temporal,
                )

    loop(builder, i64(0), squares, 1, square)
    builder.ret_void()
    return function


def result_kernel(module: Module, side: int, lanes: int) -> Function:
    """Takes the sums of a line of squares, of one vector of channels, to rows of pixels ``[column][channel]``.

    Its signature is ``(squares, sums*, square_distance, point_distance, target*, pitch)``. The last square comes first, so that what it has too much on its right
    may lie where the next row begins.
    """
    function, builder = _function(module, f"darner.winograd.result.{side}.{lanes}", "npnnpn")
    if builder is None:
        return function
    squares, sums, square_distance, point_distance, target, pitch = function.args
    line, ends = Line(builder, side, lanes), side + 2

    def square(turn: Value, _: Sequence[Value]) -> None:
        number = builder.sub(builder.sub(squares, turn), i64(1))
        start = builder.mul(number, square_distance)
        columns = []
        for j in range(ends):
            read = []
            for i in range(ends):
                position = builder.mul(point_distance, i64(i * ends + j))
                read.append(
                    load(builder, offset(builder, sums, DTYPE, start, position), DTYPE, lanes)
                )
            columns.append(line.result(read))
        left = builder.mul(number, i64(side * lanes))
        for i in range(side):
            row = builder.mul(pitch, i64(i))
            for j, value in enumerate(line.result([column[i] for column in columns])):
                store(builder, value, offset(builder, target, DTYPE, row, left, j * lanes), DTYPE)

    loop(builder, i64(0), squares, 1, square)
    builder.ret_void()
    return function


def weight_kernel(
    module: Module, side: int, lanes: int, flipped: bool, non_temporal: bool = False
) -> Function:
    """Takes the kernels of up to ``lanes`` channels of the source, for a vector of the result's channels, to their values at the points.

    Its signature is ``(count, channels, weights*, distance, target*, channel_distance, point_distance)``: ``count`` channels of the source, ``channels`` of the
    lanes. The kernels of a channel of the result follow each other and are ``distance`` elements after those of the channel before; where
    ``flipped``, it is the other way around, and taps count from the last. ``non_temporal`` has vectors go past the cache.
    """
    name = f"darner.winograd.weight.{side}.{lanes}.{flipped}{'.past' if non_temporal else ''}"
    function, builder = _function(module, name, "nnpnpnn")
    if builder is None:
        return function
    count, channels, weights, distance, target, channel_distance, point_distance = function.args
    line, ends = Line(builder, side, lanes), side + 2
    fill = fill_kernel(module, lanes)
    exist = builder.select(builder.icmp_signed("<", channels, i64(lanes)), channels, i64(lanes))
    columns = TAPS if flipped else TAPS * lanes
    # Taps are turned by whole squares, the last of which may be larger than what is left.
    transposed = builder.alloca(vector_type(DTYPE, lanes), round_up(columns, lanes))
    if not flipped:
        taps = builder.mul(count, i64(TAPS))
        builder.call(fill, [taps, i64(0), taps, exist, weights, distance, transposed])

    def channel(number: Value, _: Sequence[Value]) -> None:
        start: Pointer = transposed
        if flipped:
            read = offset(builder, weights, DTYPE, builder.mul(number, distance))
            builder.call(fill, [i64(TAPS), i64(0), i64(TAPS), exist, read, i64(TAPS), transposed])
        else:
            start = offset(builder, transposed, DTYPE, builder.mul(number, i64(TAPS * lanes)))

        def tap(i: int) -> Value:
            place = (TAPS - 1 - i if flipped else i) * lanes
            return load(builder, offset(builder, start, DTYPE, place), DTYPE, lanes)

        values = [line.weight([tap(3 * i + j) for i in range(3)]) for j in range(3)]
        to = offset(builder, target, DTYPE, builder.mul(number, channel_distance))
        for i in range(ends):
            for j, value in enumerate(line.weight([column[i] for column in values])):
                position = builder.mul(point_distance, i64(i * ends + j))
                store(
                    builder,
                    value,
                    offset(builder, to, DTYPE, position),
                    DTYPE,
                    non_temporal=non_temporal,
                )

    loop(builder, i64(0), count, 1, channel)
    builder.ret_void()
    return function


def taps_kernel(module: Module, side: int, lanes: int) -> Function:
    """Takes sums over squares, of one channel of the source and a vector of the result's, to the gradients of nine taps ``[tap][channel]``.

    Its signature is ``(splits, sums*, split_distance, point_distance, target*)``: the sums of all splits are added up first.
    """
    function, builder = _function(module, f"darner.winograd.taps.{side}.{lanes}", "npnnp")
    if builder is None:
        return function
    splits, sums, split_distance, point_distance, target = function.args
    line, ends = Line(builder, side, lanes), side + 2
    columns = []
    for j in range(ends):
        addresses = [
            offset(builder, sums, DTYPE, builder.mul(point_distance, i64(i * ends + j)))
            for i in range(ends)
        ]

        def add(
            split: Value, totals: Sequence[Value], addresses: Sequence[Pointer] = addresses
        ) -> list[Value]:
            at = builder.mul(split, split_distance)
            more = [load(builder, offset(builder, p, DTYPE, at), DTYPE, lanes) for p in addresses]
            return [builder.fadd(a, b) for a, b in zip(totals, more, strict=True)]

        first = [load(builder, place, DTYPE, lanes) for place in addresses]
        columns.append(line.weight_gradient(loop(builder, i64(1), splits, 1, add, first)))
    for i in range(3):
        for j, value in enumerate(line.weight_gradient([column[i] for column in columns])):
            store(builder, value, offset(builder, target, DTYPE, (3 * i + j) * lanes), DTYPE)
    builder.ret_void()
    return function


def transpose_kernel(module: Module, lanes: int) -> Function:
    """Takes ``[column][channel]`` to ``[channel][column]``, a square at a time.

    Its signature is ``(columns, source*, target*, pitch)``: channels are ``pitch`` elements apart, and columns are written in whole squares.
    """
    function, builder = _function(module, f"darner.winograd.turn.{lanes}", "nppn")
    if builder is None:
        return function
    columns, source, target, pitch = function.args

    def square(at: Value, _: Sequence[Value]) -> None:
        start = offset(builder, source, DTYPE, builder.mul(at, i64(lanes)))
        rows = [
            load(builder, offset(builder, start, DTYPE, i * lanes), DTYPE, lanes)
            for i in range(lanes)
        ]
        for i, value in enumerate(transpose(builder, rows)):
            position = builder.mul(pitch, i64(i))
            store(builder, value, offset(builder, target, DTYPE, position, at), DTYPE)

    loop(builder, i64(0), columns, lanes, square)
    builder.ret_void()
    return function
