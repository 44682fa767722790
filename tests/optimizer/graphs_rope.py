"""Graphs as users write them, on which the rules of rotary positions fire."""

import numpy as np

from tests.optimizer.firing import table

from .graphs_attention import some

FIRES, fires = table()


def _columns(x, start, stop, step=1):
    lead = x.shape[:-1]
    return x.graph.slice(x, (*(0 for _ in lead), start), (*lead, stop), (*(1 for _ in lead), step))


def _halves(x):
    width = x.shape[-1]
    return _columns(x, 0, width // 2), _columns(x, width // 2, width)


def _heads(g, d, width=None):
    """(batch, heads, length, width), at times with fewer axes in front."""
    lead = (d.size(1), d.size(1))[d.choice((0, 1, 2)) :]
    return some(g, d, "x", (*lead, d.size(2), width or d.choice((6, 2, 4))))


def _tables(g, d, length, half, ones=0):
    """Cosines and sines that the user gives."""
    shape = (*(1,) * ones, length, half)
    return some(g, d, "cos", shape), some(g, d, "sin", shape)


def _turned(a, b, cos, sin):
    return [a * cos - b * sin, b * cos + a * sin]


# --------------------------------------------------------------------------- turning


@fires("rope of halves")
def _(g, d):
    x = _heads(g, d)
    cos, sin = _tables(g, d, x.shape[-2], x.shape[-1] // 2, d.choice((0, 1)) if x.rank > 2 else 0)
    return g.concat(_turned(*_halves(x), cos, sin), -1)


@fires("rope of halves")
def _(g, d):
    # Heads after the sequence: tables have an axis for them.
    x = some(g, d, "x", (d.size(1), d.size(2), d.size(2), 4))
    cos, sin = (t.reshape((x.shape[1], 1, 2)) for t in _tables(g, d, x.shape[1], 2))
    return g.concat(_turned(*_halves(x), cos, sin), -1)


@fires("rope of halves, turned back")
def _(g, d):
    x = _heads(g, d)
    cos, sin = _tables(g, d, x.shape[-2], x.shape[-1] // 2)
    a, b = _halves(x)
    return g.concat([a * cos + b * sin, b * cos - a * sin], -1)


@fires("rope of some elements, in three parts")
def _(g, d):
    x = _heads(g, d, 7)
    cos, sin = _tables(g, d, x.shape[-2], 2)
    parts = _turned(_columns(x, 0, 2), _columns(x, 2, 4), cos, sin)
    return g.concat([*parts, _columns(x, 4, 7)], -1)


def _changed_over(x):
    a, b = _halves(x)
    return x.graph.concat([-b, a], -1)


@fires("rope with halves changed over", "reshape of a table written twice")
def _(g, d):
    x = some(g, d, "x", (d.size(1), d.size(2), d.size(2), 6))
    tables = _tables(g, d, x.shape[2], 3)
    cos, sin = (g.concat([t, t], -1).reshape((1, 1, x.shape[2], 6)) for t in tables)
    return x * cos + _changed_over(x) * sin


@fires("cos of angles written twice", "sin of angles written twice")
def _(g, d):
    x = some(g, d, "x", (d.size(1), d.size(2), 4))
    angles = some(g, d, "angles", (x.shape[1], 2))
    twice = g.concat([angles, angles], -1)
    return x * twice.cos() + _changed_over(x) * twice.sin()


@fires("rope with halves changed over, by known tables")
def _(g, d):
    x = _heads(g, d)
    angles = np.arange(x.shape[-2])[:, None] * np.linspace(1, 0.3, x.shape[-1] // 2)
    cos, sin = (
        g.constant(np.concatenate([t, t], -1), dtype=d.float)
        for t in (np.cos(angles), np.sin(angles))
    )
    return x * cos + _changed_over(x) * sin


@fires("rope with halves changed over, by known tables")
def _(g, d):
    # Heads after the sequence.
    x = some(g, d, "x", (d.size(1), d.size(2), d.size(2), 4))
    angles = np.arange(x.shape[1])[:, None, None] * np.array([1.0, 0.25, 1.0, 0.25])
    cos, sin = (g.constant(t, dtype=d.float) for t in (np.cos(angles), np.sin(angles)))
    return x * cos + _changed_over(x) * sin


def _side_by_side(x, parts):
    g, half = x.graph, x.shape[-1] // 2
    return g.concat([p.reshape((*x.shape[:-1], half, 1)) for p in parts], -1).reshape(x.shape)


@fires("rope of neighbours")
def _(g, d):
    x = _heads(g, d)
    width = x.shape[-1]
    cos, sin = _tables(g, d, x.shape[-2], width // 2)
    a, b = _columns(x, 0, width - d.choice((0, 1)), 2), _columns(x, 1, width, 2)
    return _side_by_side(x, _turned(a, b, cos, sin))


@fires("rope of pairs on an axis of their own")
def _(g, d):
    x = _heads(g, d)
    lead, half = x.shape[:-1], x.shape[-1] // 2
    cos, sin = _tables(g, d, x.shape[-2], half)
    pairs = x.reshape((*lead, half, 2))
    a, b = (_columns(pairs, i, i + 1).reshape((*lead, half)) for i in (0, 1))
    return _side_by_side(x, _turned(a, b, cos, sin))


# --------------------------------------------------------------------------- the usual angles


@fires("rope of usual tables")
def _(g, d):
    x = g.input("x", (d.size(1), d.size(1), d.size(2), 6), "f64")
    theta = d.choice((10000.0, 500000.0, 100.0))
    angles = np.arange(x.shape[-2])[:, None] * theta ** (-np.arange(3) / 3)
    sign = d.choice((1, -1))
    cos, sin = (g.constant(t, dtype="f64") for t in (np.cos(angles), sign * np.sin(angles)))
    return g.rope_with_tables(x, cos, sin, layout="hsd")


def _add_computed(name, cast):
    @fires(name)
    def _(g, d):
        x = g.input("x", (d.size(1), d.size(1), d.size(2), 6), "f32")
        length = x.shape[-2]
        rows = g.iota((length, 1)).cast("f32") if cast else g.iota((length, 1), dtype="f32")
        angles = rows * g.constant(d.choice((1e4, 1e6)) ** (-np.arange(3) / 3), dtype="f32")
        return g.rope_with_tables(x, angles.cos(), angles.sin(), layout="hsd")


_add_computed("rope of computed tables", True)
_add_computed("rope of computed tables, not cast", False)


# --------------------------------------------------------------------------- what stands around


@fires("rope of the first elements")
def _(g, d):
    x = _heads(g, d, 7)
    turned = g.rope(_columns(x, 0, 4), 100.0, layout="hsd", interleaved=not d.flag())
    return g.concat([turned, _columns(x, 4, 7)], -1)


@fires("rope_with_tables of the first elements")
def _(g, d):
    x = _heads(g, d, 7)
    cos, sin = _tables(g, d, x.shape[-2], 2)
    turned = g.rope_with_tables(_columns(x, 0, 4), cos, sin, layout="hsd")
    return g.concat([turned, _columns(x, 4, 7)], -1)


@fires("rope of the other layout")
def _(g, d):
    x = some(g, d, "x", (*d.shape(), d.size(1), d.size(1), 4))
    rank = x.rank
    y = x.transpose((*range(rank - 3), rank - 2, rank - 3, rank - 1))
    return g.rope(y, 100.0, layout=d.choice(("hsd", "shd")), offset=d.choice((0, 3)))


@fires("rope_with_tables of the other layout")
def _(g, d):
    x = some(g, d, "x", (d.size(1), d.size(1), d.size(1), 4)).transpose((0, 2, 1, 3))
    layout = d.choice(("hsd", "shd"))
    length = x.shape[2] if layout == "hsd" else x.shape[1]
    ones = d.choice((0, 1))
    cos, sin = _tables(g, d, length, 2, ones)
    return g.rope_with_tables(x, cos, sin, layout=layout)


@fires("rope of heads side by side")
def _(g, d):
    lead, length, heads = d.shape(most=2), d.size(1), d.size(1)
    x = some(g, d, "x", (*lead, length, heads * 4)).reshape((*lead, length, heads, 4))
    return g.rope(x, 100.0, layout="shd", inverse=not d.flag())


@fires("rope_with_tables of heads side by side")
def _(g, d):
    length, heads = d.size(1), d.size(1)
    x = some(g, d, "x", (length, heads * 4)).reshape((1, length, heads, 4))
    cos, sin = _tables(g, d, length, 2)
    return g.rope_with_tables(x, cos, sin, layout="shd")
