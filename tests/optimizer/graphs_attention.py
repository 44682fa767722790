"""Graphs as users write them, on which the rules of contractions, attention and rotary positions fire."""

import math

import numpy as np

from tests.optimizer.firing import table

FIRES, fires = table()


def some(g, d, name, shape):
    """An input of the graph's float type."""
    return g.input(name, shape, d.float)


# --------------------------------------------------------------------------- dot_general


@fires("dot_general is matmul")
def _(g, d):
    lead, m, k, n = d.shape(), d.size(), d.size(), d.size()
    a, b = some(g, d, "a", (*lead, m, k)), some(g, d, "b", (k, n))
    return g.dot_general(a, b, (len(lead) + 1,), (0,))


@fires("dot_general is matmul")
def _(g, d):
    lead, m, k, n = d.shape(least=1), d.size(), d.size(), d.size()
    a, b = some(g, d, "a", (*lead, m, k)), some(g, d, "b", (*lead, n, k))
    batch, last = range(len(lead)), len(lead) + 1
    return g.dot_general(a, b, (last,), (last,), batch, batch)


@fires("dot_general is matmul of views")
def _(g, d):
    # Scores of queries and keys whose heads come after the sequence: "bqhd,bkhd->bhqk".
    b, h, n, k, w = d.size(), d.size(1), d.size(), d.size(), d.size()
    queries, keys = some(g, d, "q", (b, n, h, w)), some(g, d, "k", (b, k, h, w))
    return g.dot_general(queries, keys, (3,), (3,), (0, 2), (0, 2))


@fires("dot_general is matmul of views")
def _(g, d):
    # The gradient of a weight: summed over all rows.
    b, s, m, n = d.size(), d.size(), d.size(), d.size()
    x, dy = some(g, d, "x", (b, s, m)), some(g, d, "dy", (b, s, n))
    return g.dot_general(x, dy, (0, 1), (0, 1))


@fires("dot_general is matmul of views")
def _(g, d):
    # Both operands the other way round.
    m, k, n = d.size(), d.size(), d.size()
    return g.dot_general(some(g, d, "a", (k, m)), some(g, d, "b", (n, k)), (0,), (1,))


@fires("dot_general is matmul of views")
def _(g, d):
    # Matrices on both sides that are kept as two axes each.
    a, b = d.shape(least=2, most=2), d.shape(least=2, most=2)
    k = d.size()
    return g.dot_general(some(g, d, "a", (*a, k)), some(g, d, "b", (k, *b)), (2,), (0,))


@fires("dot_general of vectors is matmul")
def _(g, d):
    lead, k = d.shape(), d.size()
    return g.dot_general(some(g, d, "a", (*lead, k)), some(g, d, "b", (k,)), (len(lead),), (0,))


@fires("dot_general of vectors is matmul")
def _(g, d):
    k, n = d.size(), d.size()
    return g.dot_general(some(g, d, "a", (k,)), some(g, d, "b", (k, n)), (0,), (0,))


@fires("dot_general of a transposed a", "dot_general of a transposed b")
def _(g, d):
    b, m, k, n = d.size(), d.size(), d.size(), d.size()
    left = some(g, d, "a", (b, k, m)).transpose((0, 2, 1))
    right = some(g, d, "b", (b, n, k)).transpose((0, 2, 1))
    return g.dot_general(left, right, (2,), (1,), (0,), (0,))


# --------------------------------------------------------------------------- transposes and reshapes


def _turned(x):
    return x.transpose((*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _add_transposed(name, make):
    @fires(name)
    def _(g, d):
        lead, m, k, n = d.shape(), d.size(), d.size(), d.size()
        return make(g, lambda name, *last: some(g, d, name, (*lead, *last)), m, k, n)


_add_transposed(
    "matmul of a transposed b", lambda g, i, m, k, n: i("a", m, k) @ _turned(i("b", n, k))
)
_add_transposed(
    "matmul of a transposed a", lambda g, i, m, k, n: _turned(i("a", k, m)) @ i("b", k, n)
)
_add_transposed(
    "matmul_bt of a transposed b",
    lambda g, i, m, k, n: g.matmul_bt(i("a", m, k), _turned(i("b", k, n))),
)
_add_transposed(
    "matmul_at of a transposed a",
    lambda g, i, m, k, n: g.matmul_at(_turned(i("a", m, k)), i("b", k, n)),
)
_add_transposed(
    "matmul_at of a transposed b",
    lambda g, i, m, k, n: g.matmul_at(i("a", k, m), _turned(i("b", n, k))),
)
_add_transposed(
    "matmul_bt of a transposed a",
    lambda g, i, m, k, n: g.matmul_bt(_turned(i("a", k, m)), i("b", n, k)),
)


def _add_moved(name, make, left, right):
    @fires(name)
    def _(g, d):
        # Heads after the sequence, as (batch, length, heads, width).
        batch, h, m, k, n = d.size(), d.size(), d.size(), d.size(), d.size()
        sizes = {"m": m, "k": k, "n": n}

        def leaf(name, last, turned):
            rows, columns = (sizes[axis] for axis in last)
            if not turned:
                return some(g, d, name, (batch, h, rows, columns))
            return some(g, d, name, (batch, columns, h, rows)).transpose((0, 2, 3, 1))

        return getattr(g, make)(leaf("a", *left), leaf("b", *right))


_add_moved("matmul of b with axes moved", "matmul", ("mk", False), ("kn", True))
_add_moved("matmul_bt of b with axes moved", "matmul_bt", ("mk", False), ("nk", True))
_add_moved("matmul of a with axes moved", "matmul", ("mk", True), ("kn", False))
_add_moved("matmul_at of a with axes moved", "matmul_at", ("km", True), ("kn", False))


def _rows(g, d, stored):
    """Rows of two axes in one, a weight, and the shape of the result."""
    b, s, k, n = d.size(), d.size(), d.size(), d.size()
    rows = some(g, d, "x", (b, s, k)).reshape((b * s, k))
    weight = g.parameter("w", (k, n) if stored == "matmul" else (n, k), d.float)
    return getattr(g, stored)(rows, weight), (b, s, n)


for _name in ("matmul", "matmul_bt"):

    @fires(f"{_name} between reshapes")
    def _(g, d, name=_name):
        product, shape = _rows(g, d, name)
        return product.reshape(shape)

    @fires(f"{_name} and bias between reshapes")
    def _(g, d, name=_name):
        product, shape = _rows(g, d, name)
        return (product + g.parameter("b", shape[-1:], d.float)).reshape(shape)

    @fires(f"{_name} of flattened rows")
    def _(g, d, name=_name):
        product, _ = _rows(g, d, name)
        return product.tanh()

    @fires(f"{_name} by a batch of one matrix")
    def _(g, d, name=_name):
        lead, m, k, n = d.shape(least=1), d.size(), d.size(), d.size()
        a = some(g, d, "a", (*lead, m, k))
        last = (k, n) if name == "matmul" else (n, k)
        return getattr(g, name)(a, some(g, d, "b", (*(1,) * len(lead), *last)))


@fires("fused_matmul_bias_act is fused_matmul")
def _(g, d):
    x, k, n = d.shape(least=1), d.size(), d.size()
    operands = [some(g, d, *leaf) for leaf in (("x", (*x, k)), ("w", (k, n)), ("b", (n,)))]
    return g.fused_matmul_bias_act(*operands, d.choice(("gelu", "relu", None)))


# --------------------------------------------------------------------------- attention, in parts


def _qkv(g, d, groups=1):
    """Queries, keys and values of (batch, heads, length, width); at times without a batch, or a head."""
    lead = (d.size(1), groups * d.size(1))[d.choice((0, 1, 2)) if groups == 1 else 0 :]
    queries, keys, width = d.size(1), d.size(1), d.size(1)
    kv_lead = (*lead[:-1], lead[-1] // groups) if lead else ()
    return (
        some(g, d, "q", (*lead, queries, width)),
        some(g, d, "k", (*kv_lead, keys, width)),
        some(g, d, "v", (*kv_lead, keys, d.size(1))),
    )


_CORES = {
    "scores": lambda products: products,
    "scaled scores": lambda products: products * 0.3,
    "capped scores": lambda products: (products * 0.02).tanh() * 15.0,
}


def _hidden(g, d, scores, way):
    """Scores after a bias is added and keys are hidden."""
    keys = scores.shape[-1]
    if "bias" in way:
        scores = scores + some(g, d, "bias", (*d.choice(((), scores.shape[:-1])), keys))
    if "mask" not in way:
        return scores.softmax()
    mask = g.input("mask", (*d.choice((scores.shape[:-1], ())), keys), "bool")
    if "masked_softmax" in way:
        return g.masked_softmax(scores, mask)
    return g.where(mask, scores, -math.inf).softmax()


_WAYS = (
    "",
    " with a bias",
    " under a mask",
    " with a bias under a mask",
    " in masked_softmax",
    " with a bias in masked_softmax",
)

for _core, _make in _CORES.items():
    for _way in _WAYS:

        @fires(f"attention of {_core}{_way}")
        def _(g, d, make=_make, way=_way):
            q, k, v = _qkv(g, d)
            return _hidden(g, d, make(g.matmul_bt(q, k)), way) @ v


@fires("attention of scaled scores under a mask")
def _(g, d):
    # Hidden scores are finite, so they are added.
    q, k, v = (x.cast("f32") for x in _qkv(g, d))
    mask = g.input("mask", (k.shape[-2],), "bool")
    return g.where(mask, g.matmul_bt(q, k) * 0.5, -1e30).softmax() @ v


for _way in _WAYS[:3]:
    for _scale, _label in ((1.0, "grouped scores"), (0.7, "scaled grouped scores")):

        @fires(f"attention of {_label}{_way}")
        def _(g, d, way=_way, scale=_scale):
            batch, kv_heads, group = d.size(1), d.size(1), d.choice((2, 1, 3))
            queries, keys, width = d.size(1), d.size(1), d.size(1)
            q = some(g, d, "q", (batch, kv_heads, group * queries, width))
            k, v = (some(g, d, name, (batch, kv_heads, keys, width)) for name in "kv")
            scores = g.matmul_bt(q, k).reshape((batch, kv_heads * group, queries, keys))
            scores = scores if scale == 1 else scores * scale
            weights = _hidden(g, d, scores, way)
            return weights.reshape((batch, kv_heads, group * queries, keys)) @ v


@fires("hidden by where, the other way round")
def _(g, d):
    q, k, v = _qkv(g, d)
    hidden = g.input("hidden", (k.shape[-2],), "bool")
    return g.where(hidden, -math.inf, g.matmul_bt(q, k)).softmax() @ v


@fires("hidden by masked_fill")
def _(g, d):
    q, k, v = _qkv(g, d)
    hidden = g.input("hidden", (k.shape[-2],), "bool")
    return g.masked_fill(g.matmul_bt(q, k), hidden, -math.inf).softmax() @ v


# --------------------------------------------------------------------------- masks


def _four(g, d, queries=None, keys=None):
    """Queries, keys and values with four axes."""
    lead, width = (d.size(1), d.size(1)), d.size(1)
    queries = queries or d.size(1)
    keys = keys or queries + d.choice((0, 1, 3))
    sizes = (("q", queries), ("k", keys), ("v", keys))
    return [some(g, d, name, (*lead, length, width)) for name, length in sizes], queries, keys


def _seen(queries, keys, window=None):
    distance = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    return (distance >= 0) & (distance < (window or keys + 1))


@fires("attention with a known mask")
def _(g, d):
    qkv, queries, keys = _four(g, d)
    seen = _seen(queries, keys, d.choice((None, 2, 1)))
    return g.scaled_dot_attention(*qkv, g.constant(seen.reshape((1, 1, *seen.shape))))


@fires("attention with a known mask")
def _(g, d):
    qkv, queries, keys = _four(g, d, 5, 5)
    near = np.abs(np.arange(queries)[:, None] - np.arange(keys)) < d.choice((2, 3))
    return g.scaled_dot_attention(*qkv, g.constant(near))


@fires("attention with a known bias")
def _(g, d):
    qkv, queries, keys = _four(g, d)
    hidden = d.choice((-1e9, -math.inf)) if d.float != "f16" else -math.inf
    added = np.where(_seen(queries, keys), 0.0, hidden)
    return g.scaled_dot_attention(*qkv, bias=g.constant(added, dtype=d.float))


@fires("attention with a mask that is added")
def _(g, d):
    qkv, queries, keys = _four(g, d)
    mask = g.input("mask", (queries, keys), "bool")
    shown, hidden = (g.constant(number, dtype=d.float) for number in (0.0, -math.inf))
    return g.scaled_dot_attention(*qkv, bias=g.where(mask, shown, hidden))


@fires("attention with a mask that is added")
def _(g, d):
    qkv, queries, keys = _four(g, d)
    shown, hidden = (g.constant(number, dtype="f32") for number in (0.0, -1e30))
    added = g.where(g.constant(_seen(queries, keys)), shown, hidden)
    return g.scaled_dot_attention(*(x.cast("f32") for x in qkv), bias=added)


def _positions(g, queries, keys):
    return g.iota((queries, 1)), g.iota((1, keys), 1)


for _how in ("", ", shifted"):

    def _causal(g, d, how):
        qkv, queries, keys = _four(g, d, 3, 3 if how == "" else 5)
        rows, columns = _positions(g, queries, keys)
        return qkv, (rows if how == "" else rows + 2) >= columns

    @fires(f"attention under a causal comparison{_how}")
    def _(g, d, how=_how, causal=_causal):
        qkv, seen = causal(g, d, how)
        return g.scaled_dot_attention(*qkv, seen)

    @fires(f"attention with a bias under a causal comparison{_how}")
    def _(g, d, how=_how, causal=_causal):
        qkv, seen = causal(g, d, how)
        bias = some(g, d, "bias", (qkv[1].shape[2],))
        return g.scaled_dot_attention(*qkv, seen, bias)

    @fires(f"attention under a causal comparison and a mask{_how}")
    def _(g, d, how=_how, causal=_causal):
        qkv, seen = causal(g, d, how)
        other = g.input("mask", (qkv[0].shape[0], 1, 1, qkv[1].shape[2]), "bool")
        return g.scaled_dot_attention(*qkv, seen.logical_and(other))

    @fires(f"attention with an added causal comparison{_how}")
    def _(g, d, how=_how, causal=_causal):
        qkv, seen = causal(g, d, how)
        shown, hidden = (g.constant(number, dtype="f32") for number in (0.0, -1e30))
        added = g.where(seen, shown, hidden)
        return g.scaled_dot_attention(*(x.cast("f32") for x in qkv), bias=added)


def _add_window(name, compare):
    @fires("attention within a window", name)
    def _(g, d):
        qkv, queries, keys = _four(g, d, 5, 5)
        rows, columns = _positions(g, queries, keys)
        return g.scaled_dot_attention(*qkv, compare(rows, columns, d.choice((2, 3))), causal=True)


_add_window("lt of a distance", lambda rows, columns, window: rows - columns < window)
_add_window("lt of positions, moved on the right", lambda rows, columns, w: rows < columns + w)
_add_window("lt of positions, moved back", lambda rows, columns, window: rows - window < columns)
_add_window("gt, turned round", lambda rows, columns, window: columns > rows - window)
_add_window("not at least", lambda rows, columns, w: (rows - columns >= w).logical_not())


def _add_causal(name, compare):
    @fires(name)
    def _(g, d):
        qkv, queries, keys = _four(g, d, 3, 5)
        rows, columns = _positions(g, queries, keys)
        return g.scaled_dot_attention(*qkv, compare(rows, columns))


_add_causal("ge of a distance", lambda rows, columns: rows - columns >= -2)
_add_causal("ge of positions, moved on the right", lambda rows, columns: rows >= columns + -2)
_add_causal("ge of positions, moved back", lambda rows, columns: rows - -2 >= columns)
_add_causal("le, turned round", lambda rows, columns: columns <= rows + 2)
_add_causal("not less", lambda rows, columns: (rows + 2 < columns).logical_not())


@fires("iota under another shape")
def _(g, d):
    qkv, queries, keys = _four(g, d, 5, 5)
    seen = g.arange(queries).reshape((queries, 1)) >= g.arange(keys).reshape((1, keys))
    return g.scaled_dot_attention(*qkv, seen)


# --------------------------------------------------------------------------- operands

_FORMS = ("", " under a mask", " with a bias", " with a bias under a mask")


def _attended(g, d, q, k, v, way, **options):
    """An attention with the optional operands that ``way`` names."""
    axis = 2 if options.get("layout", "bhsd") == "bhsd" else 1
    scores = (q.shape[axis], k.shape[axis])
    mask = g.input("mask", scores, "bool") if "mask" in way else None
    bias = some(g, d, "bias", scores) if "bias" in way else None
    return g.scaled_dot_attention(q, k, v, mask, bias, **options)


for _way in _FORMS:

    @fires(f"attention of scaled queries{_way}")
    def _(g, d, way=_way):
        (q, k, v), _, _ = _four(g, d)
        return _attended(g, d, q * 0.25, k, v, way, scale=d.choice((1.0, -0.3, None)))

    @fires(f"attention of scaled keys{_way}")
    def _(g, d, way=_way):
        (q, k, v), _, _ = _four(g, d)
        return _attended(g, d, q, k * 3.0, v, way, scale=d.choice((0.1, None)))

    @fires(f"attention of repeated heads{_way}")
    def _(g, d, way=_way):
        batch, kv_heads, length, width = d.size(1), d.size(1), d.size(1), d.size(1)
        each = d.choice((2, 3, 1))
        layout = d.choice(("bhsd", "bshd"))
        axis = 1 if layout == "bhsd" else 2

        def leaf(name, heads):
            rest = (heads, length) if axis == 1 else (length, heads)
            return some(g, d, name, (batch, *rest, width))

        q, k, v = leaf("q", kv_heads * each), leaf("k", kv_heads), leaf("v", kv_heads)
        return _attended(g, d, q, k.repeat(each, axis), v.repeat(each, axis), way, layout=layout)

    @fires(f"attention of one repeated head{_way}")
    def _(g, d, way=_way):
        (q, _, _), _, _ = _four(g, d)
        batch, _, length, width = q.shape
        k, v = (some(g, d, f"one {name}", (batch, 1, length, width)) for name in "kv")
        return _attended(g, d, q, k.broadcast_to(q.shape), v.broadcast_to(q.shape), way)

    @fires(f"attention of the other layout{_way}")
    def _(g, d, way=_way):
        leaves, _, _ = _four(g, d)
        q, k, v = (x.transpose((0, 2, 1, 3)) for x in leaves)
        layout = d.choice(("bshd", "bhsd"))
        q, k, v = (q, k, v) if layout == "bshd" else (q, q * 2.0, q.tanh())
        return _attended(g, d, q, k, v, way, layout=layout).transpose((0, 2, 1, 3))


@fires("matmul, its rows reshaped")
def _(g, d):
    rows = g.input("x", (2 * 3, 5))
    return (rows @ g.parameter("w", (5, 4))).reshape((2, 3, 4))


@fires("matmul_bt, its rows reshaped")
def _(g, d):
    rows = g.input("x", (2 * 3, 5))
    return rows.matmul_bt(g.parameter("w", (4, 5))).reshape((2, 3, 4))


@fires("matmul and bias, its rows reshaped")
def _(g, d):
    rows = g.input("x", (2 * 3, 5))
    return (rows @ g.parameter("w", (5, 4)) + g.parameter("b", (4,))).reshape((2, 3, 4))


@fires("matmul_bt and bias, its rows reshaped")
def _(g, d):
    rows = g.input("x", (2 * 3, 5))
    return (rows.matmul_bt(g.parameter("w", (4, 5))) + g.parameter("b", (4,))).reshape((2, 3, 4))
