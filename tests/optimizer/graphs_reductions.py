"""Graphs as users write them, on which the rules of reductions and statistics fire."""

import math

from tests.optimizer.firing import table

FIRES, fires = table()


def tensor(g, d, least=1, most=3, name="x"):
    return g.input(name, d.shape(least, most), d.float)


def filled(g, d, rank, name="x", least=1):
    """A tensor without an empty axis."""
    return g.input(name, tuple(d.size(least) for _ in range(rank)), d.float)


def positive(x):
    return x.square() + 0.5


# --------------------------------------------------------------------------- reductions


def _reductions(name):
    def operand(g, d, rank, least=1):
        shape = tuple(d.size(least) for _ in range(rank))
        return g.input("x", shape, "bool" if name in ("any", "all") else d.float)

    @fires(f"{name} of {name}")
    def _(g, d):
        inner = getattr(operand(g, d, 3), name)(d.choice((0, 1, 2)), d.choice((True, False)))
        return getattr(inner, name)(d.choice((-1, 0, (0, 1))), d.choice((False, True)))

    @fires(f"{name} over axes of size 1")
    def _(g, d):
        return getattr(operand(g, d, 2).unsqueeze(1), name)(1)

    if name in ("prod", "any", "all"):
        return

    @fires(f"{name} with its axes put back")
    def _(g, d):
        return getattr(operand(g, d, 3), name)((0, 2)).unsqueeze((0, 2))

    @fires(f"{name} with its axes put back")
    def _(g, d):
        return getattr(operand(g, d, 2, 2), name)(1, keepdims=True).squeeze(1)

    @fires(f"{name} of transpose")
    def _(g, d):
        x = operand(g, d, 3).transpose(d.permutation(3))
        return getattr(x, name)(d.choice((0, 1, (0, 2))), d.choice((False, True)))

    @fires(f"{name} of reshape")
    def _(g, d):
        x = operand(g, d, 3)
        flat = x.reshape((x.shape[0], x.shape[1] * x.shape[2]))
        return [getattr(flat, name)(d.choice((1, 0))), getattr(flat, name)()]

    @fires(f"{name} of broadcast")
    def _(g, d):
        x = g.input("x", (d.size(1), 1), d.float)
        wide = x.broadcast_to((d.size(1), x.shape[0], d.size(2)))
        return getattr(wide, name)(d.choice((-1, (0, 2), (1, 2), 0)), d.choice((False, True)))


for _name in ("sum", "prod", "max", "min", "any", "all", "mean"):
    _reductions(_name)


def _multiples(name):
    @fires(f"{name} of a negative")
    def _(g, d):
        return getattr(-tensor(g, d, 1, 3), name)(-1)

    @fires(f"{name} of a multiple")
    def _(g, d):
        return getattr(tensor(g, d, 1, 3) * 0.3, name)(-1, keepdims=d.flag())

    @fires(f"{name} of a fraction")
    def _(g, d):
        return getattr(filled(g, d, 2) / positive(g.input("scale", (), d.float)), name)(0)


for _name in ("sum", "mean"):
    _multiples(_name)


# --------------------------------------------------------------------------- statistics


@fires("mean from sum over count", "mean from sum times 1 over count")
def _(g, d):
    x = filled(g, d, 2)
    count = math.prod(x.shape)
    return [x.sum(-1, keepdims=d.flag()) / x.shape[1], x.sum() * (1 / count)]


@fires("var from sum over count less 1", "var from sum times 1 over count less 1")
def _(g, d):
    x = filled(g, d, 2, least=3)
    total = (x - x.mean(1, keepdims=True)).square().sum(1, keepdims=d.flag())
    return [total / (x.shape[1] - 1), total * (1 / (x.shape[1] - 1))]


@fires("var from distances to the mean")
def _(g, d):
    x = filled(g, d, 2)
    return (x - x.mean(-1, keepdims=True)).square().mean(-1, keepdims=d.flag())


@fires("std")
def _(g, d):
    return filled(g, d, 2).var(-1, correction=d.choice((0.0, 1.0))).sqrt()


@fires("norm")
def _(g, d):
    return tensor(g, d, 1, 3).square().sum(-1, keepdims=d.flag()).sqrt()


@fires("logsumexp less its maximum")
def _(g, d):
    x = filled(g, d, 2)
    return (x - x.max(-1, keepdims=True)).logsumexp(-1) + x.max(-1)


@fires("softmax of a shift", "log_softmax of a shift")
def _(g, d):
    x = filled(g, d, 2)
    row = g.parameter("row", (x.shape[0], 1), d.float)
    return [(x + row).softmax(-1), (x + g.parameter("bias", (), d.float)).log_softmax(-1)]


@fires("argmax of softmax", "argmax of log_softmax")
def _(g, d):
    x = filled(g, d, 3)
    axis = d.axis(3)
    return [x.softmax(axis).argmax(axis, d.flag()), x.log_softmax(axis).argmax(axis)]


@fires("argmax of a shift", "argmax less a shift")
def _(g, d):
    x = filled(g, d, 2)
    row = g.parameter("row", (x.shape[0], 1), d.float)
    return [(x + row).argmax(1), (x - g.parameter("bias", (), d.float)).argmax()]


@fires("argmax of a positive multiple", "argmax of a positive fraction", "argmax of a negative")
def _(g, d):
    x = filled(g, d, 2)
    return [(x * 0.5).argmax(-1), (x / 0.7).argmax(-1, keepdims=True), (-x).argmax()]
