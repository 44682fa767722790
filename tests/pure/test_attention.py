"""What attention promises beyond its conformance rows: masks, forms, layouts, gradients, errors."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, ShapeError
from darner.compat.attention import AttentionBwdWrt
from darner.ops.attention.attention import MaskKind, SlidingWindow


class Desk:
    """A graph with made-up inputs, and the arrays behind them."""

    def __init__(self, dtype="f32"):
        self.graph, self.values, self.dtype = Graph("attention"), {}, dtype
        self.rng = np.random.default_rng(11)

    def give(self, *shape):
        return self.hold(self.rng.normal(size=shape), self.dtype)

    def hold(self, array, dtype):
        name = f"v{len(self.values)}"
        node = self.graph.input(name, np.shape(array), dtype)
        self.values[name] = np.asarray(array).astype(node.dtype.numpy)
        return node

    def run(self, *nodes):
        self.graph.set_outputs(list(nodes))
        found = darner.run(self.graph.verify(), self.values)
        return found[0] if len(nodes) == 1 else found


def one_hot_values(desk, keys, heads=1):
    """Values from which a result can be read as the weight of each key."""
    return desk.hold(np.broadcast_to(np.eye(keys), (1, heads, keys, keys)), "f32")


def weights(desk, queries, keys, **options):
    q, k = desk.give(1, 1, queries, 4), desk.give(1, 1, keys, 4)
    result = desk.graph.scaled_dot_attention(q, k, one_hot_values(desk, keys), **options)
    return desk.run(result)[0, 0]


# --------------------------------------------------------------------------- which keys are seen


def test_rows_that_see_nothing_are_zero_and_the_others_are_not():
    desk = Desk()
    mask = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], bool)
    found = weights(desk, 3, 3, mask=desk.hold(mask, "bool"))
    np.testing.assert_allclose(found.sum(-1), [1, 0, 1], rtol=1e-6)
    np.testing.assert_array_equal(found > 0, mask)


def test_causal_mask_aligns_the_last_query_with_the_last_key():
    found = weights(Desk(), 3, 5, causal=True)
    np.testing.assert_array_equal(found > 0, np.tril(np.ones((3, 5)), 2))


def test_causal_queries_before_the_first_key_see_nothing():
    found = weights(Desk(), 4, 2, causal=True)
    np.testing.assert_array_equal(found > 0, [[0, 0], [0, 0], [1, 0], [1, 1]])


def test_causal_window_counts_its_keys():
    found = weights(Desk(), 6, 6, causal=True, window=2)
    np.testing.assert_array_equal((found > 0).sum(-1), [1, 2, 2, 2, 2, 2])
    assert found[5, 4] > 0
    assert found[5, 5] > 0


def test_window_without_causal_reaches_both_ways():
    found = weights(Desk(), 5, 5, window=2)
    near = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) < 2
    np.testing.assert_array_equal(found > 0, near)


def test_offset_places_the_queries_among_the_keys():
    desk = Desk()
    q, k = desk.give(2, 1, 2, 4), desk.give(2, 1, 5, 4)
    v = desk.hold(np.broadcast_to(np.eye(5), (2, 1, 5, 5)), "f32")
    start = desk.hold([0, 2], "u32")
    found = desk.run(desk.graph.scaled_dot_attention(q, k, v, causal=True, offset=start))
    np.testing.assert_array_equal(found[0, 0] > 0, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(found[1, 0] > 0, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])


def test_a_bias_of_minus_infinity_hides():
    desk = Desk()
    bias = np.array([[0, -np.inf, 0], [-np.inf] * 3], np.float32)
    found = weights(desk, 2, 3, bias=desk.hold(bias, "f32"))
    np.testing.assert_array_equal(found > 0, [[1, 0, 1], [0, 0, 0]])


def test_what_a_hidden_key_holds_does_not_matter():
    desk = Desk()
    q, k, v = (np.random.default_rng(i).normal(size=(1, 1, 3, 4)) for i in range(3))
    mask = desk.hold([True, True, False], "bool")
    nodes = [desk.hold(x, "f32") for x in (q, k, v)]
    k[..., 2, :], v[..., 2, :] = np.inf, 1e30
    wild = [desk.hold(x, "f32") for x in (q, k, v)]
    attend = desk.graph.scaled_dot_attention
    a, b = desk.run(attend(*nodes, mask), attend(*wild, mask))
    np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------- scores


def scores_of(desk, **options):
    """The probabilities for scores of (2, 4, -6) before scale, cap and bias."""
    q, k = desk.hold([[[[1.0]]]], "f32"), desk.hold([[[[2.0], [4.0], [-6.0]]]], "f32")
    return desk.run(desk.graph.scaled_dot_attention(q, k, one_hot_values(desk, 3), **options))


def softmax(x):
    raised = np.exp(np.asarray(x) - np.max(x))
    return raised / raised.sum()


def test_the_cap_comes_after_the_scale_and_before_the_bias():
    desk = Desk()
    bias = np.array([0.0, 0.0, 9.0])
    found = scores_of(desk, scale=0.5, softcap=2.0, bias=desk.hold(bias, "f32"))
    wanted = softmax(2 * np.tanh(np.array([1.0, 2.0, -3.0]) / 2) + bias)
    np.testing.assert_allclose(found[0, 0, 0], wanted, rtol=1e-5)


def test_the_default_scale_is_settled_so_that_equal_calls_are_equal_nodes():
    desk = Desk()
    x = desk.give(1, 1, 2, 16)
    a, b = x.scaled_dot_attention(x, x), x.scaled_dot_attention(x, x, scale=0.25)
    assert a.attrs == b.attrs
    assert a.attrs["scale"] == 0.25


def test_scores_far_apart_neither_overflow_nor_vanish():
    found = scores_of(Desk(), scale=1e4)
    np.testing.assert_array_equal(found[0, 0, 0], [0, 1, 0])


def test_half_precision_is_computed_in_single():
    wide, narrow = Desk("f32"), Desk("f16")
    results = []
    for desk in (wide, narrow):
        q, k, v = (desk.give(1, 2, 40, 8) for _ in range(3))
        results.append(desk.run(q.scaled_dot_attention(k, v, causal=True)))
    assert results[1].dtype == np.float16
    exact = Desk("f32")
    nodes = [exact.hold(narrow.values[f"v{i}"], "f32") for i in range(3)]
    rounded = exact.run(exact.graph.scaled_dot_attention(*nodes, causal=True)).astype(np.float16)
    np.testing.assert_array_equal(results[1], rounded)


# --------------------------------------------------------------------------- heads and layouts


def test_query_heads_share_key_heads_in_order():
    desk = Desk()
    q, k = desk.give(1, 6, 2, 4), desk.give(1, 2, 3, 4)
    values = np.zeros((1, 2, 3, 1))
    values[0, 1] = 1
    found = desk.run(q.scaled_dot_attention(k, desk.hold(values, "f32")))
    np.testing.assert_allclose(found[0, :, :, 0], [[0, 0]] * 3 + [[1, 1]] * 3, rtol=1e-6)


def test_shared_heads_are_not_copied():
    desk = Desk()
    q, k = desk.give(1, 8, 4, 4), desk.give(1, 2, 4, 4)
    desk.graph.set_outputs([q.scaled_dot_attention(k, k, causal=True)])
    expanded = darner.expand(desk.graph)
    assert not {"broadcast_to", "concat", "gather"} & {node.op.name for node in expanded.nodes}


def test_layouts_hold_the_same_numbers():
    desk = Desk()
    q, k, v = desk.give(2, 4, 3, 5), desk.give(2, 2, 6, 5), desk.give(2, 2, 6, 3)
    order = (0, 2, 1, 3)
    first = q.scaled_dot_attention(k, v, causal=True, window=4)
    swapped = [x.transpose(order) for x in (q, k, v)]
    second = desk.graph.scaled_dot_attention(*swapped, layout="bshd", causal=True, window=4)
    a, b = desk.run(first, second.transpose(order))
    np.testing.assert_array_equal(a, b)


def test_sizes_may_be_symbols():
    g = Graph("symbolic")
    q = g.input("q", ("batch", 4, "new", 8))
    k = g.input("k", ("batch", 2, "all", 8))
    y = q.scaled_dot_attention(k, k, causal=True, window=3)
    assert [str(size) for size in y.shape] == ["batch", "4", "new", "8"]
    g.set_outputs([y])
    rng = np.random.default_rng(0)
    values = {"q": rng.normal(size=(2, 4, 3, 8)), "k": rng.normal(size=(2, 2, 5, 8))}
    bound = g.bind({"batch": 2, "new": 3, "all": 5})
    for graph in (darner.expand(g), bound, darner.expand(bound)):
        np.testing.assert_array_equal(darner.run(graph, values)[0], darner.run(g, values)[0])


# --------------------------------------------------------------------------- forms


def as_rows(y):
    """(1, heads, length, width) as (length, heads * width)."""
    _, heads, length, width = y.shape
    return y.transpose((0, 2, 1, 3)).reshape((length, heads * width))


def as_heads(x, heads):
    return x.reshape((1, x.shape[0], heads, -1)).transpose((0, 2, 1, 3))


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (lambda g, *x: g.causal_attention(*x, 4, 2, 3), {"causal": True}),
        (lambda g, *x: g.sliding_window_attention(*x, 4, 2, 3, 2), {"causal": True, "window": 2}),
        (lambda g, *x: g.full_attention(*x, 4, 2, 3), {}),
        (lambda g, *x: g.cross_attention(*x, 4, 2, 3), {}),
        (lambda g, *x: g.multi_head_attn(*x, 4, 2, 3, False), {}),
        (lambda g, *x: g.attention_kind(*x, 4, 3, MaskKind.NONE), {}),
        (lambda g, *x: g.attention_kind(*x, 4, 3, "Causal", (5, 12)), {"causal": True}),
        (
            lambda g, *x: g.attention_kind(*x, 4, 3, SlidingWindow(1)),
            {"causal": True, "window": 2},
        ),
        (
            lambda g, *x: g.attention_kind_opts(*x, 4, 3, "none", None, 0.3, 4.0),
            {"scale": 0.3, "softcap": 4.0},
        ),
    ],
)
def test_forms_with_heads_side_by_side_are_the_same_op(call, options):
    desk = Desk()
    q, k, v = desk.give(5, 12), desk.give(5, 6), desk.give(5, 6)
    own = desk.graph.scaled_dot_attention(as_heads(q, 4), as_heads(k, 2), as_heads(v, 2), **options)
    a, b = desk.run(call(desk.graph, q, k, v), as_rows(own))
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_forms_take_a_batch_and_another_value_width():
    desk = Desk()
    q, k, v = desk.give(2, 3, 8), desk.give(2, 5, 4), desk.give(2, 5, 3)
    both = desk.graph.cross_attention(q, k, v, 2, 1, 4)
    assert both.shape == (2, 3, 6)
    first = desk.graph.cross_attention(
        *(x.slice((0, 0, 0), (1, *x.shape[1:])).reshape(x.shape[1:]) for x in (q, k, v)), 2, 1, 4
    )
    a, b = desk.run(both, first)
    np.testing.assert_allclose(a[0], b, rtol=1e-6, atol=1e-7)


MASK = np.array([[1, 1, 0, 0], [1, 0, 1, 1]], bool)


@pytest.mark.parametrize(
    ("mask", "dtype"),
    [
        (MASK, "bool"),
        (np.where(MASK, 0.5, 0.4), "f32"),
        (MASK * 3, "i32"),
        (MASK[:, None, None, :], "bool"),
        (np.broadcast_to(MASK[:, None, None, :], (2, 2, 3, 4)), "f32"),
    ],
)
def test_mask_tensors_say_which_keys_count(mask, dtype):
    desk = Desk()
    q, k = desk.give(2, 3, 8), desk.give(2, 4, 8)
    v = desk.hold(np.broadcast_to(np.tile(np.eye(4), 2), (2, 4, 8)), "f32")
    found = desk.run(desk.graph.attention(q, k, v, desk.hold(mask, dtype), 2, 4, (2, 3, 8)))
    seen = np.broadcast_to(MASK[:, None, None, :], (2, 3, 2, 4))
    np.testing.assert_array_equal(found.reshape(2, 3, 2, 4) > 0, seen)


def test_one_mask_row_serves_a_single_sequence():
    desk = Desk()
    x = desk.give(3, 8)
    mask = desk.hold([1.0, 0.0, 1.0], "f32")
    a = desk.graph.attention(x, x, x, mask, 2, 4)
    b = desk.graph.attention_(x, x, x, mask.reshape((1, 3)), 2, 4)
    assert a.shape == (3, 8)
    np.testing.assert_array_equal(*desk.run(a, b))


def test_attention_options_are_honoured():
    desk = Desk()
    x = desk.give(2, 3, 8)
    mask = desk.hold(np.ones((2, 3)), "f32")
    plain = desk.graph.attention(x, x, x, mask, 2, 4)
    scaled = desk.graph.attention_opts(x, x, x, mask, 2, 4, None, 0.1, None)
    capped = desk.graph.attention_opts(x, x, x, mask, 2, 4, score_scale=0.1, attn_logit_softcap=0.2)
    a, b, c = desk.run(plain, scaled, capped)
    assert np.abs(a - b).max() > 1e-3
    assert np.abs(b - c).max() > 1e-4


def test_a_bias_form_adds_to_the_scores():
    desk = Desk()
    q, bias = desk.give(2, 3, 8), desk.give(2, 1, 3, 3)
    found = desk.graph.attention_bias(q, q, q, bias, 2, 4, (2, 3, 8))
    heads = q.reshape((2, 3, 2, 4))
    own = heads.scaled_dot_attention(heads, heads, bias=bias, layout="bshd")
    a, b = desk.run(found, own.reshape((2, 3, 8)))
    np.testing.assert_array_equal(a, b)


def test_rank_four_layouts_are_found_where_only_one_fits():
    g = Graph()
    q, k = g.input("q", (1, 2, 5, 4)), g.input("k", (1, 2, 7, 4))
    assert g.attention_kind(q, k, k, 2, 4, "none").shape == (1, 2, 5, 4)
    swapped = [x.transpose((0, 2, 1, 3)) for x in (q, k, k)]
    assert g.attention_kind(*swapped, 2, 4, "none").shape == (1, 5, 2, 4)


def test_rank_four_layouts_are_never_guessed():
    g = Graph()
    x = g.input("x", (1, 2, 2, 4))
    with pytest.raises(ArgumentError, match=r"both layouts fit.*layout='bhsd'"):
        g.attention_kind(x, x, x, 2, 4, "causal")
    y = g.attention_kind(x, x, x, 2, 4, "causal", layout="bshd")
    assert y.op.name == "scaled_dot_attention"
    assert y.attrs["layout"] == "bshd"


def test_ids_stand_for_nodes():
    g = Graph()
    q, k = g.input("q", (5, 8)), g.input("k", (5, 4))
    assert g.causal_attention(q.id, k.id, k.id, 2, 1, 4).shape == (5, 8)


def test_mask_kinds_compare_and_print():
    assert MaskKind.Causal is MaskKind.CAUSAL
    assert MaskKind.SlidingWindow(3) == SlidingWindow(3) != SlidingWindow(4)
    assert repr(SlidingWindow(3)) == "SlidingWindow(3)"
    with pytest.raises(ArgumentError, match="at least 0"):
        SlidingWindow(-1)


# --------------------------------------------------------------------------- gradients


def numeric_gradient(function, arrays, index, cotangent, step=1e-5):
    result = np.zeros_like(arrays[index])
    for place in np.ndindex(result.shape):
        ends = []
        for sign in (1, -1):
            moved = [array.copy() for array in arrays]
            moved[index][place] += sign * step
            ends.append((function(*moved) * cotangent).sum())
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


def forms(kind, dtype="f64"):
    """A forward and a backward graph for one kind of mask, and the arrays they take."""
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=shape) for shape in ((2, 3, 8), (2, 4, 4), (2, 4, 4))]
    tensor = {
        MaskKind.CUSTOM: (np.array([[1, 1, 0, 1], [0, 0, 0, 0]], float), "f32"),
        MaskKind.BIAS: (rng.normal(size=(2, 1, 4)), dtype),
    }.get(kind)

    def build(backward):
        g = Graph("form")
        q, k, v = (g.input(name, x.shape, dtype) for name, x in zip("qkv", arrays, strict=True))
        mask = None if tensor is None else g.constant(tensor[0], dtype=tensor[1])
        if backward:
            dy = g.input("dy", (2, 3, 8), dtype)
            g.set_outputs(list(g.attention_backward_all(q, k, v, dy, 2, 4, kind, mask)))
        elif kind == MaskKind.CUSTOM:
            g.set_outputs([g.attention(q, k, v, mask, 2, 4)])
        elif kind == MaskKind.BIAS:
            g.set_outputs([g.attention_bias(q, k, v, mask, 2, 4)])
        else:
            g.set_outputs([g.attention_kind(q, k, v, 2, 4, kind)])
        return g

    return build(False), build(True), arrays, rng.normal(size=(2, 3, 8))


@pytest.mark.parametrize(
    "kind", [MaskKind.NONE, MaskKind.CAUSAL, SlidingWindow(1), MaskKind.CUSTOM, MaskKind.BIAS]
)
def test_gradients_of_each_kind_agree_with_finite_differences(kind):
    forward, backward, arrays, cotangent = forms(kind)
    named = dict(zip("qkv", arrays, strict=True))
    found = darner.run(backward, {**named, "dy": cotangent})
    for i, name in enumerate("qkv"):
        wanted = numeric_gradient(
            lambda *moved: darner.run(forward, dict(zip("qkv", moved, strict=True)))[0],
            arrays,
            i,
            cotangent,
        )
        assert found[i].shape == named[name].shape
        np.testing.assert_allclose(found[i], wanted, rtol=1e-6, atol=1e-8)


def test_gradients_are_zero_where_nothing_is_seen():
    _, backward, arrays, cotangent = forms(MaskKind.CUSTOM)
    dq, dk, dv = darner.run(backward, {**dict(zip("qkv", arrays, strict=True)), "dy": cotangent})
    for gradient in (dq, dk, dv):
        assert np.abs(gradient[0]).max() > 0
        np.testing.assert_array_equal(gradient[1], 0)
    np.testing.assert_array_equal(dk[0, 2], 0)


@pytest.mark.parametrize("wrt", [*AttentionBwdWrt, "q", "K"])
def test_one_gradient_is_one_of_all(wrt):
    desk = Desk()
    q, dy = (desk.give(5, 8) for _ in range(2))
    k, v = desk.give(6, 4), desk.give(6, 4)
    each = desk.graph.attention_backward(wrt, q, k, v, dy, 2, 4, MaskKind.CAUSAL)
    every = desk.graph.attention_backward_all(q, k, v, dy, 2, 4, MaskKind.CAUSAL)
    same = every["qkv".index(str(wrt).lower())]
    assert each.shape == same.shape
    np.testing.assert_array_equal(*desk.run(each, same))


def test_gradients_honour_scale_and_cap():
    desk = Desk("f64")
    x, dy, options = desk.give(3, 8), desk.give(3, 8), {"scale": 0.9, "softcap": 0.7}
    found = desk.graph.attention_backward(
        "q", x, x, x, dy, 2, 4, "causal", score_scale=0.9, attn_logit_softcap=0.7
    )

    def attended(moved):
        g = Graph()
        q, kept = g.input("q", (3, 8), "f64"), g.constant(desk.values["v0"].reshape(1, 3, 2, 4))
        q = q.reshape((1, 3, 2, 4))
        y = q.scaled_dot_attention(kept, kept, layout="bshd", causal=True, **options)
        g.set_outputs([y.reshape((3, 8))])
        return darner.run(g, {"q": moved})[0]

    wanted = numeric_gradient(attended, [desk.values["v0"]], 0, desk.values["v1"])
    np.testing.assert_allclose(desk.run(found), wanted, rtol=1e-6, atol=1e-8)


def test_a_bias_gets_a_gradient_summed_over_what_it_was_repeated_along():
    desk = Desk("f64")
    q, k, dy = desk.give(2, 4, 3, 5), desk.give(2, 2, 6, 5), desk.give(2, 4, 3, 5)
    wide, narrow = desk.give(2, 4, 3, 6) * 0.0, desk.give(4, 1, 6) * 0.0
    backward = desk.graph.scaled_dot_attention_backward
    (*_, whole), (*_, summed) = (backward(q, k, k, dy, None, b) for b in (wide, narrow))
    assert summed.shape == (4, 1, 6)
    a, b = desk.run(whole, summed)
    np.testing.assert_allclose(a.sum((0, 2))[:, None], b, rtol=1e-12)
    assert len(backward(q, k, k, dy)) == 3


# --------------------------------------------------------------------------- errors


def shapes(*given):
    g = Graph()
    return [g, *(g.input(f"x{i}", shape) for i, shape in enumerate(given))]


def core(*given, **options):
    g, *nodes = shapes(*given)
    return g.scaled_dot_attention(*nodes, **options)


Q, K = (2, 4, 3, 8), (2, 2, 5, 8)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: core((2, 6, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8)), ShapeError, "6 query heads"),
        (lambda: core(Q, (3, 2, 5, 8), K), ShapeError, "batch sizes of q and k, 2 and 3"),
        (lambda: core(Q, (2, 2, 5, 7), K), ShapeError, "widths of q and k, 8 and 7"),
        (lambda: core(Q, K, (2, 2, 6, 8)), ShapeError, "k has 5 rows and v has 6"),
        (lambda: core(Q, K, (2, 1, 5, 8)), ShapeError, "k has 2 heads and v has 1"),
        (lambda: core(Q[1:], K, K), ShapeError, "q has rank 3"),
        (lambda: core(Q, K, K, layout="sbhd"), ArgumentError, "'bhsd', 'bshd', got 'sbhd'"),
        (lambda: core(Q, K, K, window=0), ArgumentError, "window 0 must be at least 1"),
        (lambda: core(Q, K, K, softcap=0.0), ArgumentError, "softcap 0.0 must be above 0"),
        (lambda: core(Q, K, K, scale=float("nan")), ArgumentError, "scale nan is not finite"),
        (lambda: core(Q, K, K, (3, 5)), DTypeError, "mask must be bool, not f32.*as bias"),
        (lambda: core(Q, K), ArgumentError, "'v' is missing"),
    ],
)
def test_mistakes_in_a_call_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_masks_and_biases_must_broadcast_to_the_scores():
    g, q, k, bias = shapes(Q, K, (3, 3, 5))
    with pytest.raises(ShapeError, match=r"bias \(3, 3, 5\) does not broadcast.*\(2, 4, 3, 5\)"):
        g.scaled_dot_attention(q, k, k, bias=bias)
    with pytest.raises(ShapeError, match=r"mask \(3, 6\) does not broadcast"):
        g.scaled_dot_attention(q, k, k, np.ones((3, 6), bool))
    with pytest.raises(ShapeError, match=r"mask \(1, 2, 4, 3, 5\) does not"):
        g.scaled_dot_attention(q, k, k, np.ones((1, 2, 4, 3, 5), bool))


def test_offsets_are_checked():
    g, q, k = shapes(Q, K)
    with pytest.raises(ArgumentError, match="there is neither"):
        g.scaled_dot_attention(q, k, k, offset=g.constant([1]))
    with pytest.raises(ShapeError, match=r"offset \(3,\) must be one integer"):
        g.scaled_dot_attention(q, k, k, causal=True, offset=g.constant([1, 2, 3]))
    with pytest.raises(DTypeError, match="offset must be integers"):
        g.scaled_dot_attention(q, k, k, causal=True, offset=g.constant([1.0]))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda g, q, k: g.causal_attention(q, k, k, 3, 1, 4), ShapeError, "8 columns, not"),
        (lambda g, q, k: g.causal_attention(q, k, k, 2, 2, 4), ShapeError, "k has 4 columns"),
        (lambda g, q, k: g.causal_attention(q, k, k, 0, 1, 4), ArgumentError, "num_heads must"),
        (lambda g, q, k: g.causal_attention(q, k, k, 2, 1, 2.5), ArgumentError, "head_dim must"),
        (lambda g, q, k: g.full_attention(q, k, k, 2, 1, 4), ShapeError, "cross_attention"),
        (lambda g, q, k: g.sliding_window_attention(q, k, k, 2, 1, 4, 0), ArgumentError, "window"),
        (
            lambda g, q, k: g.attention_kind(q, k, k, 2, 4, "custom"),
            ArgumentError,
            "call attention",
        ),
        (lambda g, q, k: g.attention_kind(q, k, k, 2, 4, "wide"), ArgumentError, "SlidingWindow"),
        (lambda g, q, k: g.attention_kind(q, k, k, 2, 4, "none", (9, 8)), ShapeError, "stated"),
        (lambda g, q, k: g.attention(q, k, k, k, 2, 4), ShapeError, "batch, keys"),
        (
            lambda g, q, k: g.attention_kind(q, k, k, 2, 4, "none", layout="bhsd"),
            ArgumentError,
            "rank 4",
        ),
        (
            lambda g, q, k: g.attention_backward("mask", q, k, k, q, 2, 4, "none"),
            ArgumentError,
            "wrt must be",
        ),
        (
            lambda g, q, k: g.attention_backward_all(q, k, k, q, 2, 4, "none", k),
            ArgumentError,
            "takes no mask tensor",
        ),
        (
            lambda g, q, k: g.attention_backward_all(q, k, k, q, 2, 4, MaskKind.CUSTOM),
            ArgumentError,
            "needs the mask",
        ),
        (
            lambda g, q, k: g.attention_backward_all(q, k, k, k, 2, 4, "none"),
            ShapeError,
            "dy .* is not shaped like the result",
        ),
    ],
)
def test_mistakes_in_a_form_are_named_and_leave_no_nodes(call, error, text):
    g, q, k = shapes((5, 8), (6, 4))
    with pytest.raises(error, match=text):
        call(g, q, k)
    assert len(g) == 2
