"""Graphs as users write them, on which the rules of identities, strength and algebra fire."""

import math

import numpy as np

from tests.optimizer.firing import table

FIRES, fires = table()


def some(g, d, name="x", shape=None):
    """An input of the graph's float type."""
    return g.input(name, d.shape() if shape is None else shape, d.float)


def two(g, d):
    """Two inputs, the second of which is broadcast at times."""
    shape = d.shape()
    return some(g, d, "a", shape), some(g, d, "b", d.choice((shape, d.broadcast(shape))))


def filled(g, d, x, value):
    """A constant of one number that broadcasts to ``x``."""
    return g.constant(np.full(d.choice(((), x.shape)), value), dtype=x.dtype)


# --------------------------------------------------------------------------- neutral elements


def _neutral(name, make):
    @fires(name)
    def _(g, d):
        return make(g, d, some(g, d)).tanh()


_neutral("x * 1", lambda g, d, x: x * filled(g, d, x, 1))
_neutral("x / 1", lambda g, d, x: x / filled(g, d, x, 1))
_neutral("x + 0", lambda g, d, x: filled(g, d, x, 0) + x)
_neutral("x - 0", lambda g, d, x: x - filled(g, d, x, 0))
_neutral("x ** 1", lambda g, d, x: x ** filled(g, d, x, 1))
_neutral("0 - x", lambda g, d, x: filled(g, d, x, 0) - x)
_neutral("x * -1", lambda g, d, x: x * filled(g, d, x, -1))


@fires("x * 1", "x + 0")
def _(g, d):
    x = g.input("x", d.shape(), "i32")
    return x * g.constant(1, dtype="i32") + g.constant(0, dtype="i32")


def _logic(name, op, value):
    @fires(name)
    def _(g, d):
        x = some(g, d) > 0.0
        known = g.constant(np.full(x.shape, value))
        return getattr(x, op)(known)


_logic("x and true", "logical_and", True)
_logic("x and false", "logical_and", False)
_logic("x or false", "logical_or", False)
_logic("x or true", "logical_or", True)
_logic("x xor false", "logical_xor", False)
_logic("x xor true", "logical_xor", True)


@fires("x and x")
def _(g, d):
    x = some(g, d) > 0.0
    return x & x


@fires("x or x")
def _(g, d):
    x = some(g, d) > 0.0
    return x | x


@fires("maximum of x and x", "minimum of x and x")
def _(g, d):
    x = some(g, d)
    return x.maximum(x).minimum(x), x.minimum(x)


# --------------------------------------------------------------------------- selection


@fires("where of equal branches")
def _(g, d):
    x = some(g, d)
    return g.where(some(g, d, "c", d.broadcast(x.shape)) > 0.0, x, x)


@fires("where not")
def _(g, d):
    a, b = two(g, d)
    return g.where((a > 0.0).logical_not(), a, b)


@fires("where of a known condition")
def _(g, d):
    a, b = two(g, d)
    return g.where(g.constant(d.flag()), a, b), g.where(g.constant(not d.flag()), a, b)


@fires("clip")
def _(g, d):
    x = some(g, d)
    return x.maximum(-1.5).minimum(some(g, d, "high", d.broadcast(x.shape)))


@fires("clip from above")
def _(g, d):
    return some(g, d).minimum(1.5).maximum(-2.5)


@fires("clip by the same low and high", "clip by the same low", "clip by the same high")
def _(g, d):
    x = some(g, d)
    low, high = some(g, d, "low", d.broadcast(x.shape)), some(g, d, "high", d.broadcast(x.shape))
    return (
        x.clip(low, high).clip(low, high),
        x.clip(low).clip(low),
        x.clip(high=high).clip(high=high),
    )


@fires("clip of clip")
def _(g, d):
    return some(g, d).clip(-2.0, d.choice((1.0, 3.0))).clip(d.choice((-1.0, -3.0, 4.0)), 2.0)


# --------------------------------------------------------------------------- what does nothing twice


def _twice(outer, inner):
    @fires(f"{outer} of {inner}")
    def _(g, d):
        return getattr(getattr(some(g, d, shape=d.shape(1)), inner)(), outer)()


for _name in ("relu", "relu6", "hard_tanh", "abs", "sign", "floor", "ceil", "trunc", "round"):
    _twice(_name, _name)
_twice("relu6", "relu")
_twice("relu", "relu6")
for _name in ("exp", "sigmoid", "softmax", "square"):
    _twice("relu", _name)
    _twice("abs", _name)
_twice("relu", "abs")
_twice("abs", "relu")
_twice("square", "abs")
_twice("neg", "neg")
for _name in ("abs", "square", "cos", "cosh", "sin", "tanh", "erf", "recip"):
    _twice(_name, "neg")

# --------------------------------------------------------------------------- signs


def _of_two(name, make):
    @fires(name)
    def _(g, d):
        return make(*two(g, d))


_of_two("a + -b", lambda a, b: a + -b)
_of_two("a - -b", lambda a, b: a - -b)
_of_two("-a - b", lambda a, b: -a - b)
_of_two("-(a - b)", lambda a, b: -(a - b))
_of_two("-a * -b", lambda a, b: -a * -b)
_of_two("-a / -b", lambda a, b: -a / -b)
_of_two("-a * b", lambda a, b: -a * b)
_of_two("-a / b", lambda a, b: -a / b)
_of_two("a / -b", lambda a, b: a / -b)

# --------------------------------------------------------------------------- logic, comparison, casts


@fires("not of not")
def _(g, d):
    return (some(g, d) > 0.0).logical_not().logical_not()


_of_two("not of eq", lambda a, b: a.eq(b).logical_not())
_of_two("not of ne", lambda a, b: a.ne(b).logical_not())
_of_two("a < b", lambda a, b: a < b)
_of_two("a < b, reversed", lambda a, b: a > b)
_of_two("a <= b", lambda a, b: a <= b)
_of_two("a <= b, reversed", lambda a, b: a >= b)


@fires("not of lt", "not of le", "not of gt", "not of ge")
def _(g, d):
    a = g.input("a", d.shape(), "i32")
    b = g.input("b", d.broadcast(a.shape), "i32")
    return [test.logical_not() for test in (a < b, a <= b, a > b, a >= b)]


@fires("cast to its own type")
def _(g, d):
    return some(g, d).cast(d.float)


@fires("cast of a wider cast")
def _(g, d):
    x = some(g, d)
    labels = g.input("labels", d.shape(), "u8")
    return (
        x.cast("f64").cast(d.float),
        labels.cast("i32").cast("f32"),
        labels.cast("f32").cast("u8"),
    )


@fires("stop_gradient")
def _(g, d):
    x = some(g, d)
    return x * x.sigmoid().stop_gradient()


# --------------------------------------------------------------------------- powers


def _power(name, exponent):
    @fires(name)
    def _(g, d):
        x = some(g, d)
        return x ** filled(g, d, x, exponent)


for _exponent in (2, 3, 4, -1, -2, 0.5, -0.5):
    _power(f"x ** {_exponent}", _exponent)


@fires("2 ** x")
def _(g, d):
    x = some(g, d)
    return filled(g, d, x, 2) ** x


@fires("x * x")
def _(g, d):
    x = some(g, d)
    return x * x


@fires("x * x, reversed")
def _(g, d):
    return some(g, d).square()


@fires("x * (x * c)")
def _(g, d):
    x = some(g, d)
    return x * (0.044715 * x)


_twice("recip", "recip")
_twice("recip", "sqrt")
_twice("recip", "rsqrt")
_twice("sqrt", "recip")
_twice("sqrt", "square")
_twice("log", "exp")
_twice("log2", "exp2")
_twice("log1p", "expm1")
_twice("recip", "exp")
_twice("square", "exp")
_twice("log", "sqrt")
_twice("log", "recip")


@fires("x * rsqrt(x)")
def _(g, d):
    x = some(g, d)
    return x * x.rsqrt()


@fires("square of a norm")
def _(g, d):
    x = some(g, d, shape=d.shape(1))
    return x.square().sum(-1, keepdims=True).sqrt().square()


# --------------------------------------------------------------------------- divisions


@fires("1 / x")
def _(g, d):
    x = some(g, d)
    return filled(g, d, x, 1) / x


_of_two("a / b", lambda a, b: a / b)
_of_two("a * recip(b)", lambda a, b: a * b.recip())
_of_two("a / sqrt(b)", lambda a, b: a / (b.square() + 1e-3).sqrt())


@fires("a / (exp(x) + 1)")
def _(g, d):
    x = g.input("x", d.shape(), "f16")
    return x / (1.0 + (-x).exp())


def _of_one(name, make):
    @fires(name)
    def _(g, d):
        return make(some(g, d))


_of_one("x / c", lambda x: x / 8.0)
_of_one("x / c", lambda x: x / math.sqrt(2))

# --------------------------------------------------------------------------- constants gathered

_of_one("x + x", lambda x: x + x)
_of_one("(x * c) * d", lambda x: 0.5 * (x * 0.1))
_of_one("(x * c) * d", lambda x: (x * 1024.0) * (1 / 1024))
_of_one("(x + c) + d", lambda x: 3.0 + (x + 0.5))
_of_one("(x + c) + d", lambda x: (x + 0.5) + -0.5)
_of_one("x - c", lambda x: x - 0.5)
_of_one("c - (d - x)", lambda x: 1.0 - (1.0 - x))
_of_one("(c - x) + d", lambda x: (1.0 - x) + 2.0)
_of_one("(x + c) * d", lambda x: (x / 255 - 0.5) / 0.25)
_of_one("(x + c) * d", lambda x: 0.5 * (x.tanh() + 1.0))
_of_one("neg of x * c", lambda x: (-(x * 1.702)).exp())
_of_one("x * negative", lambda x: (x * -1.702).exp())


@fires("(x * c) * y")
def _(g, d):
    a, b = two(g, d)
    return 0.5 * a * (b.tanh() + 1.0)


@fires("chain by a number")
def _(g, d):
    return some(g, d).chain(0.5)


@fires("chain of a number")
def _(g, d):
    x = some(g, d)
    return g.constant(2.0, dtype=d.float).chain(x)


# --------------------------------------------------------------------------- exponentials and logarithms


def _exp_of_log(inner):
    @fires(f"exp of log of {inner}")
    def _(g, d):
        return getattr(some(g, d, shape=d.shape(1)), inner)().log().exp()


for _name in ("sigmoid", "softmax", "abs", "square"):
    _exp_of_log(_name)

_of_two("exp(a) * exp(b)", lambda a, b: a.exp() * b.exp())
_of_two("exp(a) / exp(b)", lambda a, b: a.exp() / b.exp())
_of_one("exp(x) - 1", lambda x: x.exp() - 1.0)
_of_one("exp(x) + -1", lambda x: x.exp() + -1.0)
_of_one("log(x + 1)", lambda x: (1.0 + x.square()).log())
_of_one("exp of x * log 2", lambda x: (x * math.log(2)).exp())
_of_one("exp2 of x / log 2", lambda x: (x * (1 / math.log(2))).exp2())
_of_one("log(x) / log 2", lambda x: x.square().log() * (1 / math.log(2)))
_of_one("log(x) / log 10", lambda x: x.square().log() * (1 / math.log(10)))
_of_one("log2(x) * log 2", lambda x: x.square().log2() * math.log(2))
_of_one("log of x ** c", lambda x: (x.square() ** 0.7).log())
_of_one("1 - sigmoid(x)", lambda x: 1.0 - x.sigmoid())
_of_one("sigmoid(x) * 2 - 1", lambda x: x.sigmoid() * 2.0 - 1.0)

# --------------------------------------------------------------------------- factors


@fires("a * b + a * c", "a * b - a * c")
def _(g, d):
    a, b = two(g, d)
    c = some(g, d, "c", a.shape)
    return a * b + c * a, a * b - a * c


_of_two("x + x * y", lambda a, b: a + b * a)
_of_two("x - x * y", lambda a, b: a - a * b)
_of_two("x * y - x", lambda a, b: a * b - a)
_of_one("x * c + x", lambda x: 0.1 * x + x)

# --------------------------------------------------------------------------- matrices

FORMS = {"matmul": (False, False), "matmul_at": (True, False), "matmul_bt": (False, True)}


def matrix(g, d, name, rows, columns, turned=False):
    """A matrix for a place of ``rows`` by ``columns`` that takes it transposed or not."""
    return some(g, d, name, (columns, rows) if turned else (rows, columns))


def sizes(d, count):
    return [d.size(1) for _ in range(count)]


def _chain(outer, inner):
    turn, own = FORMS[outer], FORMS[inner]

    @fires(f"order of {outer}({inner}(a, b), c)")
    def _(g, d):
        m, k, n, o = sizes(d, 4)
        a, b = matrix(g, d, "a", m, k, own[0]), matrix(g, d, "b", k, n, own[1])
        left = getattr(a, inner)(b)
        c = matrix(g, d, "c", m if turn[0] else n, o, turn[1])
        return getattr(left, outer)(c)

    @fires(f"order of {outer}(a, {inner}(b, c))")
    def _(g, d):
        m, k, n, o = sizes(d, 4)
        b, c = matrix(g, d, "b", m, k, own[0]), matrix(g, d, "c", k, n, own[1])
        a = matrix(g, d, "a", o, n if turn[1] else m, turn[0])
        return getattr(a, outer)(getattr(b, inner)(c))


def _products(op):
    turn = FORMS[op]

    def operands(g, d, names="ab", inner=None):
        m, k, n = sizes(d, 3)
        k = k if inner is None else inner
        lead = d.choice(((), (2,)))
        shapes = ((k, m) if turn[0] else (m, k)), ((n, k) if turn[1] else (k, n))
        return [
            some(g, d, name, (*lead, *shape)) for name, shape in zip(names, shapes, strict=True)
        ]

    def times(a, b):
        return getattr(a, op)(b)

    @fires(f"{op} of x by a and b")
    def _(g, d):
        x, a = operands(g, d, "xa")
        return times(x, a) + times(x, some(g, d, "b", a.shape))

    @fires(f"{op} of a and b by x")
    def _(g, d):
        a, x = operands(g, d, "ax")
        return times(a, x) + times(some(g, d, "b", a.shape), x)

    @fires(f"{op} of a scaled a")
    def _(g, d):
        a, b = operands(g, d)
        return times(a * 0.125, b)

    @fires(f"{op} of a scaled b")
    def _(g, d):
        a, b = operands(g, d)
        return times(a, some(g, d, "s", ()) * b)

    @fires(f"scale of {op} to a", f"scale of {op} to b")
    def _(g, d):
        a, b = operands(g, d, inner=1)
        return times(a, b) * 0.125

    @fires(f"{op} of -a", f"{op} of -b")
    def _(g, d):
        a, b = operands(g, d)
        return times(-a, b), times(a, -b)

    @fires(f"{op} + residual + bias", f"{op} + (residual + bias)")
    def _(g, d):
        product = times(*operands(g, d))
        residual = some(g, d, "residual", product.shape)
        bias = g.parameter("bias", product.shape[-1:], d.float)
        other = g.parameter("other", product.shape[-1:], d.float)
        return (residual + product) + bias, product + (residual + other)

    places = ("matmul to a", "matmul to b") if op == "matmul" else (op,)

    @fires(*(f"transpose of {place}" for place in places))
    def _(g, d):
        product = times(*operands(g, d))
        return product.swapaxes(-1, -2)


for _outer in FORMS:
    _products(_outer)
    for _inner in FORMS:
        _chain(_outer, _inner)


@fires("transpose of x * s", "reshape of x * s")
def _(g, d):
    x = some(g, d, shape=d.shape(2))
    turned = (x * 0.125).transpose(d.permutation(x.rank))
    return turned, (x * 0.25).reshape((*x.shape, 1))
