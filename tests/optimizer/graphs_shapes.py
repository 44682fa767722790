"""Graphs as users write them, on which the rules of shapes, joins and indices fire."""

from itertools import pairwise

import numpy as np

from tests.optimizer.firing import table

FIRES, fires = table()


def tensor(g, d, least=1, most=3, name="x"):
    return g.input(name, d.shape(least, most), d.float)


def filled(g, d, rank, name="x", least=1):
    """A tensor without an empty axis."""
    return g.input(name, tuple(d.size(least) for _ in range(rank)), d.float)


def positive(x):
    return x.square() + 0.5


# --------------------------------------------------------------------------- views of views


@fires("reshape of reshape")
def _(g, d):
    batch, length, width = d.size(1), d.size(1), d.size(1)
    x = g.input("x", (batch, length, width), d.float)
    return x.reshape((batch * length, width)).reshape((batch, length * width))


@fires("reshape to its own shape")
def _(g, d):
    x = tensor(g, d)
    return x.reshape(x.shape)


@fires("transpose of transpose")
def _(g, d):
    x = tensor(g, d, 2, 4)
    return x.transpose(d.permutation(x.rank)).transpose(d.permutation(x.rank))


@fires("transpose that moves nothing")
def _(g, d):
    x = tensor(g, d)
    return x.transpose(tuple(range(x.rank)))


@fires("transpose of axes of size 1")
def _(g, d):
    x = g.input("x", (d.size(), 1, d.size()), d.float)
    return x.transpose((1, 0, 2))


@fires("transpose past axes of size 1")
def _(g, d):
    x = g.input("x", d.matrix(), d.float)
    return x.unsqueeze(d.choice((0, 1, 2))).transpose((2, 1, 0))


@fires("broadcast to its own shape")
def _(g, d):
    x = tensor(g, d)
    return x.broadcast_to(x.shape)


@fires("broadcast of broadcast")
def _(g, d):
    x = tensor(g, d, 1, 2)
    wide = (d.size(), *x.shape)
    return x.broadcast_to(wide).broadcast_to((d.size(), *wide))


@fires("broadcast of new leading axes")
def _(g, d):
    x = tensor(g, d, 1, 2)
    return x.unsqueeze(0).broadcast_to((d.size(), *x.shape))


@fires("reshape of a broadcast number")
def _(g, d):
    scale = g.parameter("scale", (), d.float)
    rows, columns = d.matrix()
    return scale.broadcast_to((rows, columns)).reshape((rows * columns,))


@fires("transpose of a broadcast number")
def _(g, d):
    return g.parameter("scale", (), d.float).broadcast_to(d.matrix()).transpose()


@fires("transpose of broadcast")
def _(g, d):
    x = g.input("x", (1, d.size()), d.float)
    return x.broadcast_to((d.size(), x.shape[1])).transpose()


# --------------------------------------------------------------------------- broadcasts beside ops


def _broadcasts(name, label, turned):
    @fires(f"{label} of a broadcast")
    def _(g, d):
        x = tensor(g, d, 1, 3)
        small = g.input("small", d.broadcast(x.shape), d.float)
        if name == "div":
            x, small = positive(x), positive(small)
        wide = small.broadcast_to(x.shape)
        first, second = (x, wide) if turned else (wide, x)
        return getattr(g, name)(first, second)

    @fires(f"{label} of a broadcast")
    def _(g, d):
        rows = d.size()
        x, y = (g.input(name, (rows, 1), d.float) for name in "xy")
        if name == "div":
            x, y = positive(x), positive(y)
        wide = x.broadcast_to((rows, d.size()))
        return getattr(g, name)(y, wide) if turned else getattr(g, name)(wide, y)


def _leading_axes(name, label, turned):
    @fires(f"{label} of new leading axes")
    def _(g, d):
        x = tensor(g, d, 2, 3)
        bias = g.parameter("bias", x.shape[-1:], d.float)
        if name == "div":
            x, bias = positive(x), positive(bias)
        row = bias.reshape((*(1,) * (x.rank - 1), *bias.shape))
        return getattr(g, name)(x, row) if turned else getattr(g, name)(row, x)


for _name in ("add", "mul", "eq"):
    _broadcasts(_name, _name, False)
for _name in ("sub", "div", "maximum", "minimum", "chain", "ge"):
    _broadcasts(_name, _name, False)
    _broadcasts(_name, f"{_name} from the right", True)
for _name in ("add", "mul"):
    _leading_axes(_name, _name, False)
for _name in ("sub", "div"):
    _leading_axes(_name, _name, False)
    _leading_axes(_name, f"{_name} from the right", True)


def _function_of_broadcast(name):
    @fires(f"{name} of a broadcast")
    def _(g, d):
        x = tensor(g, d, 1, 2)
        spread = positive(x).broadcast_to((d.size(), *x.shape))
        return getattr(spread, name)()


for _name in ("neg", "exp", "sqrt", "rsqrt", "recip"):
    _function_of_broadcast(_name)


@fires("where of a broadcast condition", "where of a broadcast", "where of a broadcast otherwise")
def _(g, d):
    x = tensor(g, d, 2, 3)
    mask = g.input("mask", x.shape[-1:], "bool")
    other = g.input("other", d.broadcast(x.shape), d.float)
    return [
        g.where(mask.broadcast_to(x.shape), x, 0.0),
        g.where(mask, other.broadcast_to(x.shape), x),
        g.where(mask, x, other.broadcast_to(x.shape)),
    ]


# --------------------------------------------------------------------------- views past functions


def _function_of_views(name):
    @fires(f"{name} of a transpose")
    def _(g, d):
        x = tensor(g, d, 2, 3)
        return _called(x.transpose(d.permutation(x.rank)), name)

    @fires(f"{name} of a reshape")
    def _(g, d):
        x = filled(g, d, 3)
        return _called(x.reshape((x.shape[0] * x.shape[1], x.shape[2])), name)


def _called(x, name):
    return x.cast("f64") if name == "cast" else getattr(x, name)()


for _name in ("neg", "exp", "tanh", "sigmoid", "silu", "relu", "gelu", "gelu_approx", "cast"):
    _function_of_views(_name)


def _unit_axes(name):
    @fires(f"axes of size 1 before {name}")
    def _(g, d):
        total = positive(tensor(g, d, 1, 3)).sum(-1)
        return _called(total, name).unsqueeze(-1)


for _name in ("neg", "log", "sqrt", "rsqrt", "recip", "square", "cast"):
    _unit_axes(_name)


def _slice_before(name):
    @fires(f"slice before {name}")
    def _(g, d):
        x = filled(g, d, 2, least=2)
        return _called(x, name)[:, 1:]


for _name in ("exp", "silu", "relu", "gelu", "gelu_approx", "cast"):
    _slice_before(_name)


def _concat_before(name):
    @fires(f"concat before {name}")
    def _(g, d):
        x, y = (g.input(name, (d.size(), 3), d.float) for name in "xy")
        return g.concat([_called(x, name), _called(y, name)])


for _name in ("neg", "silu", "relu", "gelu", "gelu_approx"):
    _concat_before(_name)


def _arithmetic(name):
    def pair(g, d, rank):
        shape = tuple(d.size(1) for _ in range(rank))
        return (g.input(name, shape, d.float) for name in "xy")

    @fires(f"{name} of two transposes")
    def _(g, d):
        x, y = pair(g, d, 2)
        return getattr(g, name)(x.transpose(), y.transpose())

    @fires(f"{name} of two reshapes")
    def _(g, d):
        x, y = pair(g, d, 2)
        return getattr(g, name)(x.flatten(), y.flatten())

    @fires(f"slice before {name}")
    def _(g, d):
        x, y = pair(g, d, 2)
        return getattr(g, name)(x, y)[:-1]


def _arithmetic_of_axes(name):
    @fires(f"axes of size 1 before {name}")
    def _(g, d):
        x = filled(g, d, 2)
        top, total = x.max(-1), positive(x).sum(-1)
        return getattr(g, name)(top, total).unsqueeze(-1)

    @fires(f"axes of size 1 before {name} of a number")
    def _(g, d):
        return getattr(g, name)(filled(g, d, 2).sum(-1), 3.0).unsqueeze(-1)


def _arithmetic_of_numbers(name):
    @fires(f"{name} of a transpose and a number")
    def _(g, d):
        return getattr(g, name)(tensor(g, d, 2, 3).transpose(), 0.3)

    @fires(f"{name} of a reshape and a number")
    def _(g, d):
        return getattr(g, name)(filled(g, d, 2).flatten(), g.parameter("scale", (), d.float))

    @fires(f"{name} of a reshape and a vector")
    def _(g, d):
        batch, length, width = d.size(2), d.size(2), d.size(1)
        x = g.input("x", (batch * length, width), d.float)
        vector = g.parameter("vector", (width,), d.float)
        return getattr(g, name)(x.reshape((batch, length, width)), vector)

    @fires(f"slice before {name} of a number")
    def _(g, d):
        return getattr(g, name)(filled(g, d, 2, least=2), 0.3)[1:]


for _name in ("add", "sub", "mul"):
    _arithmetic(_name)
for _name in ("add", "sub", "mul", "div"):
    _arithmetic_of_axes(_name)
for _name in ("add", "mul"):
    _arithmetic_of_numbers(_name)


# --------------------------------------------------------------------------- slices and joins


@fires("slice of everything")
def _(g, d):
    x = tensor(g, d)
    return g.slice(x, (0,) * x.rank, x.shape)


@fires("slice of slice")
def _(g, d):
    x = g.input("x", (d.integer(6, 9), d.integer(6, 9)), d.float)
    return x[1 :: d.choice((1, 2)), 1:][d.choice((1, 0)) :, :: d.choice((2, 1))]


@fires("slice of broadcast")
def _(g, d):
    x = g.input("x", (1, d.integer(3, 5)), d.float)
    return x.broadcast_to((d.size(2), *x.shape[1:]))[1:, d.choice((1, 0)) :]


@fires("slice of transpose")
def _(g, d):
    return filled(g, d, 3, least=2).transpose((2, 0, 1))[1:, :, 1:]


@fires("concat of one")
def _(g, d):
    return g.concat([tensor(g, d)], -1)


def _parts(g, d, count):
    rows = d.size(1)
    return [g.input(f"x{i}", (rows, d.size(2)), d.float) for i in range(count)]


def _of_parts(count):
    @fires(f"slice of one of {count} parts")
    def _(g, d):
        parts = _parts(g, d, count)
        start = sum(part.shape[1] for part in parts[:-1])
        return g.concat(parts, 1)[:, start + d.choice((0, 1)) :]

    @fires(f"slice across {count} parts")
    def _(g, d):
        return g.concat(_parts(g, d, count), 1)[:, 1:-1]

    @fires(f"concat of {count} neighbouring slices")
    def _(g, d):
        x = g.input("x", (d.size(1), d.integer(6, 8)), d.float)
        cuts = [d.choice((0, 1)), *range(2, 2 + count - 1), 6]
        return g.concat([x[:, a:b] for a, b in pairwise(cuts)], 1)


for _count in (2, 3):
    _of_parts(_count)


@fires("concat of a concat then more")
def _(g, d):
    a, b, c = _parts(g, d, 3)
    return g.concat([g.concat([a, b], 1), c], 1)


@fires("concat of a concat after one")
def _(g, d):
    a, b, c = _parts(g, d, 3)
    return g.concat([a, g.concat([b, c], 1)], 1)


# --------------------------------------------------------------------------- paddings


@fires("padding with nothing")
def _(g, d):
    return tensor(g, d).pad(0)


@fires("padding that only crops")
def _(g, d):
    return filled(g, d, 2, least=2).pad(((0, -1), (d.choice((-1, 0)), 0)))


@fires("padding of padding")
def _(g, d):
    return g.input("x", d.matrix(), d.float).pad(((0, 0), (1, 2))).pad(((1, 1), (0, 1)))


@fires("slice inside padding", "slice of padding")
def _(g, d):
    x = filled(g, d, 2, least=2)
    wide = x.pad(((1, 1), (1, 2)))
    return [wide[2:-1, 1:-2], wide[1:, 2:-1]]


def _padded(g, d, places, name="x"):
    """Blocks of 8 columns that are zero but for some, added up."""
    rows = d.size(1)
    total = None
    for i, (low, high) in enumerate(places):
        part = g.input(f"{name}{i}", (rows, high - low), d.float)
        block = part.pad(((0, 0), (low, 8 - high)))
        total = block if total is None else total + block
    return total


@fires("sum of two paddings that fill the whole")
def _(g, d):
    return _padded(g, d, d.choice([[(0, 3), (3, 8)], [(5, 8), (0, 5)]]))


@fires("sum of two paddings side by side")
def _(g, d):
    return _padded(g, d, d.choice([[(1, 3), (3, 8)], [(5, 7), (2, 5)]]))


@fires("sum of three paddings that fill the whole")
def _(g, d):
    return _padded(g, d, d.choice([[(0, 3), (6, 8), (3, 6)], [(6, 8), (0, 3), (3, 6)]]))


@fires("sum of three paddings side by side")
def _(g, d):
    return _padded(g, d, d.choice([[(1, 3), (6, 8), (3, 6)], [(5, 6), (0, 3), (3, 5)]]))


@fires("flip of flip")
def _(g, d):
    return tensor(g, d, 2, 3).flip(d.choice((-1, 0))).flip(d.choice((-1, (0, 1))))


@fires("flip of axes of size 1")
def _(g, d):
    return g.input("x", (1, d.size()), d.float).flip(0)


# --------------------------------------------------------------------------- indices


@fires("gather of known neighbours")
def _(g, d):
    table = g.parameter("table", (d.size(1), 8), d.float)
    places = np.arange(d.choice((1, 0)), 8, d.choice((2, 1, 3)))
    return g.gather(table, g.constant(places.astype(np.int32)), 1)


@fires("gather of known neighbours")
def _(g, d):
    return g.gather(filled(g, d, 2, least=2), g.constant(1, dtype="i32"), 0)


@fires("embedding of known neighbours")
def _(g, d):
    table = g.parameter("positions", (8, d.size()), d.float)
    return g.embedding(g.constant(np.arange(d.choice((5, 8)), dtype=np.int32)[None]), table)


@fires("gather in order")
def _(g, d):
    table = g.parameter("positions", (d.size(), 8), d.float)
    return g.gather(table, g.iota((d.choice((5, 8)),)), 1)


@fires("embedding in order")
def _(g, d):
    table = g.parameter("positions", (8, d.size()), d.float)
    return g.embedding(g.iota((1, d.choice((5, 8))), 1), table)


@fires("gather from one part of a concat")
def _(g, d):
    axis = d.choice((0, 1))
    parts = [g.input(name, (4, 4)) for name in "ab"]
    places = np.array([6, 4, 4] if d.flag() else [3, 0, 2], np.int32)
    return g.gather(g.concat(parts, axis=axis), g.constant(places), axis)


@fires("embedding from one part of a concat")
def _(g, d):
    words = g.concat([g.parameter("words", (5, 3)), g.parameter("marks", (2, 3))], axis=0)
    return g.embedding(g.constant(np.array([[6, 5]], np.int32)), words)


@fires("gather of iota")
def _(g, d):
    places = g.input("places", (d.size(),), d.choice(("i32", "u32")))
    return g.gather(g.iota((1000,)), places)


@fires("take in order")
def _(g, d):
    x = tensor(g, d, 2, 3)
    return x.take_along_axis(g.iota(x.shape, x.rank - 1), -1)


@fires("block at a known place")
def _(g, d):
    x = g.input("x", (5, 6), d.float)
    starts = g.constant(np.asarray([d.choice((1, -3, 7)), 2], np.int32))
    return x.dynamic_slice(starts, (2, d.size()))


@fires("update of the whole")
def _(g, d):
    x, update = (g.input(name, (4, 5), d.float) for name in ("x", "update"))
    return x.dynamic_update_slice(update, g.input("starts", (2,), "i32"))


@fires("cast of iota")
def _(g, d):
    return g.iota((d.size(), 3), d.choice((0, 1))).cast(d.choice(("f32", "u8", "i64")))
