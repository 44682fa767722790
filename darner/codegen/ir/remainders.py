"""Exact remainders: of an angle by a quarter turn, and of one float by another.

For nearly every operand a few fused multiply-adds are enough. For the rest there is a scalar function with
integer arithmetic, which is called lane by lane, and only if some lane needs it. Both paths are in one function
of the module, so that a caller keeps a single basic block.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from . import tables
from .emit import constant_words
from .lanes import Lane, function_of, mangled, own_function
from .types import Builder, Function, Value

# Up to here three parts of pi / 2 give the angle to within a unit in its last place.
QUADRANT_LIMIT = {32: 2.0**17, 64: 2.0**30}
_SIGNIFICAND = (1 << 52) - 1


def _return(builder: Builder, *results: Lane) -> None:
    """Return a structure of the results."""
    from llvmlite import ir

    structure = ir.Constant(builder.function.ftype.return_type, ir.Undefined)
    for position, result in enumerate(results):
        structure = builder.insert_value(structure, result.value, position)
    builder.ret(structure)


def _lane_by_lane(
    builder: Builder, function: Function, operands: list[Lane], results: list[Lane], needed: Lane
) -> list[Lane]:
    """``results`` with the lanes where ``needed`` holds replaced by what a scalar function returns."""
    from llvmlite import ir

    index_type = ir.IntType(32)
    values = [result.value for result in results]
    for lane in range(needed.count or 1):
        index = ir.Constant(index_type, lane)

        def pick(value: Value, index: Value = index) -> Value:
            return value if needed.count is None else builder.extract_element(value, index)

        given = builder.call(function, [pick(operand.value) for operand in operands])
        for position in range(len(values)):
            own = builder.extract_value(given, position)
            kept = builder.select(pick(needed.value), own, pick(values[position]))
            if needed.count is None:
                values[position] = kept
            else:
                values[position] = builder.insert_element(values[position], kept, index)
    return [result.of(value) for result, value in zip(results, values, strict=True)]


def _with_rare_lanes(
    builder: Builder, function: Function, operands: list[Lane], results: list[Lane], needed: Lane
) -> list[Lane]:
    """As ``_lane_by_lane``, behind a branch that is taken only if some lane needs it."""
    before = builder.block
    with builder.if_then(needed.any().value, likely=False):
        replaced = _lane_by_lane(builder, function, operands, results, needed)
        inside = builder.block
    merged = []
    for result, other in zip(results, replaced, strict=True):
        joined = builder.phi(result.type)
        joined.add_incoming(result.value, before)
        joined.add_incoming(other.value, inside)
        merged.append(result.of(joined))
    return merged


# --------------------------------------------------------------------------- angles


def quadrant(x: Lane) -> tuple[Lane, Lane]:
    """(r, n) with x = n * pi / 2 + r and |r| at most a little over pi / 4; n counts modulo 4.

    Right to about a unit in the last place of r for every finite x; NaN for the others.
    """
    from llvmlite import ir

    pair = ir.LiteralStructType([x.type, x.integer()])
    name = f"darner.quadrant.{mangled(x.type)}"
    function = own_function(x.builder.module, name, pair, [x.type], _quadrant_body, "alwaysinline")
    given = x.builder.call(function, [x.value])
    return x.of(x.builder.extract_value(given, 0)), x.of(x.builder.extract_value(given, 1))


def _quadrant_body(builder: Builder, argument: Value) -> None:
    from llvmlite import ir

    x = Lane(builder, argument)
    bits = x.bits
    first, second, third = tables.HALF_PI[bits]
    n, turns = x.nearest_integer(2.0 / (2.0 * tables.HALF_PI[64][0]))
    # The first step is exact; the others round to a last place of what is left.
    r = n.fma(-third, n.fma(-second, n.fma(-first, x)))
    r = x.equals(0.0).choose(x, r)  # the sums would lose the sign of -0
    pair = ir.LiteralStructType([x.element, ir.IntType(bits)])
    name = f"darner.quadrant.far.{mangled(x.element)}"
    far = own_function(builder.module, name, pair, [x.element], _far_body, "noinline")
    needed = x.absolute() > QUADRANT_LIMIT[bits]
    r, turns = _with_rare_lanes(builder, far, [x], [r, turns], needed)
    r = (x.absolute() < float("inf")).choose(r, x - x)
    _return(builder, r, turns)


def _far_body(builder: Builder, argument: Value) -> None:
    """One large angle, by as many bits of 2 / pi as its exponent reaches."""
    from llvmlite import ir

    def wide(value: Value, bits: int) -> Value:
        emit = builder.zext if value.type.width < bits else builder.trunc
        return emit(value, ir.IntType(bits))

    x = Lane(builder, argument).refloated(64)
    pattern = x.as_integer()
    biased = pattern.shift_right(52, signed=False) & 0x7FF
    significand = (pattern & _SIGNIFICAND) | (1 << 52)
    exponent = biased - 1075  # x = significand * 2**exponent
    # 126 bits of the fraction of x * 2 / pi below 2 bits of its integer part. 64 bits below those hold
    # what the bits beyond them could carry in.
    window = _bits_of_two_over_pi(builder, (tables.TWO_OVER_PI_BITS - 190) - exponent)
    product = window * window.of(wide(significand.value, 256))
    fraction = window.of(wide(product.shift_right(64, signed=False).value, 128))
    turns = (fraction + (1 << 125)).shift_right(126, signed=False)
    fraction = fraction - turns.shift_left(126)
    below = fraction < 0
    size = below.choose(-fraction, fraction)
    count = function_of(
        builder.module, "llvm.ctlz.i128", ir.IntType(128), [ir.IntType(128), ir.IntType(1)]
    )
    zeros = size.of(builder.call(count, [size.value, ir.Constant(ir.IntType(1), 0)]))
    zeros = (zeros > 120).choose(zeros.constant(120), zeros)
    top = size.shift_left(zeros).shift_right(64, signed=False)
    top = top.of(wide(top.value, 64))
    # The 64 leading bits as two doubles, then times pi / 2 in two parts.
    low_bits = top & 0x7FF
    high = (top ^ low_bits).to_float(64, signed=False)
    low = low_bits.to_float(64, signed=False)
    first, second, _ = tables.HALF_PI[64]
    angle = high * first
    rest = high.fma(first, -angle) + high * second + low * first
    zeros = top.of(wide(zeros.value, 64))
    scale = ((1023 + 64 - 126) - zeros).shift_left(52).as_float()
    angle = (angle + rest) * scale
    negative = pattern < 0
    turns = top.of(wide(turns.value, 64))
    angle = (below ^ negative).choose(-angle, angle)
    turns = negative.choose(-turns, turns)
    bits = Lane(builder, argument).bits
    _return(builder, angle.refloated(bits), turns.resized(bits, signed=True))


def _bits_of_two_over_pi(builder: Builder, first: Lane) -> Lane:
    """256 bits of the table from bit ``first`` on; those beyond its end are 0."""
    from llvmlite import ir

    size, word = ir.IntType(256), ir.IntType(64)
    name, count = "darner.two_over_pi", tables.TWO_OVER_PI_BITS // 64
    table = builder.module.globals.get(name)
    if table is None:
        numbers = [tables.TWO_OVER_PI >> (64 * i) & ((1 << 64) - 1) for i in range(count)]
        table = constant_words(builder, name, [*numbers, *[0] * 5])
    index = first.shift_right(6, signed=False)
    # Angles that are not far, whose result is not made use of, would begin beyond it.
    index = (index < count).choose(index, count)
    low = first & 63

    def word_at(number: int) -> Lane:
        place = builder.gep(table, [(index + number).value], source_etype=word)
        return low.of(builder.load(place, typ=word, align=8))

    words = [word_at(number) for number in range(5)]
    found = None
    for number, (here, above) in enumerate(pairwise(words)):
        # Shifted by 64, bits would be undefined.
        moved = here.shift_right(low, signed=False) | above.shift_left(1).shift_left(63 - low)
        part = moved.of(builder.zext(moved.value, size)).shift_left(64 * number)
        found = part if found is None else found | part
    return cast(Lane, found)


# --------------------------------------------------------------------------- remainders


def truncated_remainder(a: Lane, b: Lane) -> Lane:
    """What C calls fmod, of f64 lanes: a - b * trunc(a / b), exactly."""
    name = f"darner.fmod.{mangled(a.type)}"
    function = own_function(
        a.builder.module, name, a.type, [a.type, a.type], _remainder_body, "alwaysinline"
    )
    return a.of(a.builder.call(function, [a.value, b.value]))


def _remainder_body(builder: Builder, dividend: Value, divisor: Value) -> None:
    from llvmlite import ir

    a, b = Lane(builder, dividend), Lane(builder, divisor)
    top, bottom = a.absolute(), b.absolute()
    ratio = top / bottom
    r = ratio.intrinsic("trunc").fma(-bottom, top)
    # The quotient was rounded, up to the next integer at most.
    r = (r < 0.0).choose(r + bottom, r)
    # With an infinite divisor the product is NaN; the remainder is the dividend.
    r = (top < bottom).choose(top, r)
    finite = (top < float("inf")) & (bottom > 0.0)
    needed = finite & (ratio >= 2.0**52)
    double = ir.DoubleType()
    single = ir.LiteralStructType([double])
    far = own_function(
        builder.module, "darner.fmod.far", single, [double, double], _far_remainder_body, "noinline"
    )
    one = a.constant(1.0)
    operands = [needed.choose(top, one), needed.choose(bottom, one)]
    (r,) = _with_rare_lanes(builder, far, operands, [r], needed)
    r = finite.choose(r, a.constant(float("nan")))
    r = (a.is_nan() | b.is_nan()).choose(a + b, r)
    builder.ret(r.with_sign_of(a).value)


def _far_remainder_body(builder: Builder, dividend: Value, divisor: Value) -> None:
    """Long division of significands, 11 bits at a time. Both operands are positive and finite."""
    from llvmlite import ir

    def taken_apart(value: Value) -> tuple[Lane, Lane]:
        bits = Lane(builder, value).as_integer()
        exponent = bits.shift_right(52, signed=False)
        low = bits & _SIGNIFICAND
        normal = exponent > 0
        return normal.choose(low | (1 << 52), low), normal.choose(exponent, 1)

    top, top_exponent = taken_apart(dividend)
    bottom, bottom_exponent = taken_apart(divisor)
    start = builder.urem(top.value, bottom.value)
    distance = top_exponent - bottom_exponent
    entry = builder.block
    loop, done = builder.append_basic_block("digits"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    rest = builder.phi(ir.IntType(64))
    left = builder.phi(ir.IntType(64))
    rest.add_incoming(start, entry)
    left.add_incoming(distance.value, entry)
    todo = Lane(builder, left)
    step = (todo < 11).choose(todo, 11)
    shifted = Lane(builder, rest).shift_left(step)
    following = builder.urem(shifted.value, bottom.value)
    remaining = todo - step
    rest.add_incoming(following, loop)
    left.add_incoming(remaining.value, loop)
    builder.cbranch((remaining > 0).value, loop, done)
    builder.position_at_end(done)
    exponent = bottom_exponent - 1075
    half = exponent.shift_right(1, signed=True)
    value = Lane(builder, following).to_float(64, signed=False)
    for part in (half, exponent - half):
        value = value * (part + 1023).shift_left(52).as_float()
    _return(builder, value)


# --------------------------------------------------------------------------- powers


def integer_power(a: Lane, b: Lane) -> Lane:
    """By squaring; wraps around. A negative exponent, which the reference refuses, counts as its bits."""
    name = f"darner.power.{mangled(a.type)}"
    function = own_function(a.builder.module, name, a.type, [a.type, a.type], _integer_power_body)
    return a.of(a.builder.call(function, [a.value, b.value]))


def _integer_power_body(builder: Builder, base: Value, exponent: Value) -> None:
    entry = builder.block
    loop, done = builder.append_basic_block("bits"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    one = Lane(builder, base).constant(1).value
    joined = [builder.phi(base.type) for _ in range(3)]
    total, square, left = (Lane(builder, value) for value in joined)
    total = (left & 1).differs(0).choose(total * square, total)
    square = square * square
    left = left.shift_right(1, signed=False)
    following = (total.value, square.value, left.value)
    for phi, start, after in zip(joined, (one, base, exponent), following, strict=True):
        phi.add_incoming(start, entry)
        phi.add_incoming(after, loop)
    builder.cbranch(left.differs(0).any().value, loop, done)
    builder.position_at_end(done)
    builder.ret(total.value)
