"""Contractions, attention and rotary positions are recognised in every spelling, and nothing else is taken for them."""

import math
from collections import Counter

import numpy as np
import pytest

import darner
from darner import Graph
from darner.optimizer import RULES, optimize_inference
from darner.optimizer.rules.attention_masks import visible_options
from darner.optimizer.rules.rope_forms import usual_theta
from tests.optimizer.firing import saturated
from tests.zoo import MODEL_VARIANTS, MODELS, PIECES, llama

FAMILIES = (
    "attention",
    "attention_masks",
    "attention_operands",
    "contraction",
    "rope",
    "rope_forms",
)


def names(*families):
    """The rules of these families, and what they build on."""
    wanted = (*families, "shapes", "views", "softmax", "broadcasts")
    return [name for name, rule in RULES.items() if rule.family in wanted]


def equals(graph, rules=None):
    """The calls that were found equal to a graph's only output: (op, operands, attributes)."""
    egraph = saturated(graph, rules)
    (output,) = graph.outputs
    first = next(i for i, node in enumerate(egraph.nodes) if node.origin == output.id)
    return [
        (node.op.name, node.slots, node.attrs)
        for i, node in enumerate(egraph.nodes)
        if egraph.classes[i] == egraph.classes[first] and node.op is not None
    ]


def attentions(graph):
    """The attentions equal to the output, by their operands and what they say of masks."""
    return {
        (slots[3:], attrs["causal"], attrs["window"])
        for name, slots, attrs in equals(graph, names(*FAMILIES))
        if name == "scaled_dot_attention"
    }


def heads(g, *, queries=5, keys=5, width=4, dtype="f32"):
    sizes = (("q", queries), ("k", keys), ("v", keys))
    return [g.input(name, (2, 3, length, width), dtype) for name, length in sizes]


def attended(hide, **sizes):
    """A graph of attention in parts; ``hide`` makes the probabilities of scores."""
    g = Graph("attention")
    q, k, v = heads(g, **sizes)
    scores = g.matmul_bt(q, k) * 0.5
    g.set_outputs([hide(g, scores) @ v])
    return g


# --------------------------------------------------------------------------- every spelling of the zoo

WANTED = {
    "rope": {"rope"},
    "attention": {"scaled_dot_attention"},
    "attention of as many heads": {"scaled_dot_attention"},
    "causal attention": {"scaled_dot_attention"},
    "masked attention": {"scaled_dot_attention"},
}
SPELLED = [(piece, i) for piece in WANTED for i in range(PIECES[piece][0])]


@pytest.mark.parametrize(("piece", "variant"), SPELLED)
def test_a_piece_in_primitives_is_found_equal_to_its_composite(piece, variant):
    found = equals(PIECES[piece][2](variant))
    assert WANTED[piece] <= {name for name, _, _ in found}


LINEAR = {"linear": "matmul", "linear of a weight stored (out, in)": "matmul_bt"}


@pytest.mark.parametrize("variant", range(PIECES["linear"][0]))
@pytest.mark.parametrize(("piece", "product"), LINEAR.items())
def test_a_linear_layer_in_primitives_is_found_equal_to_a_product_and_a_bias(
    piece, product, variant
):
    graph = PIECES[piece][2](variant)
    egraph = saturated(graph)
    origin = {node.name: node.id for node in graph.inputs.values()}
    nodes = egraph.nodes
    output = next(i for i, node in enumerate(nodes) if node.origin == graph.outputs[0].id)
    added = {
        egraph.classes[child]
        for i, node in enumerate(nodes)
        if egraph.classes[i] == egraph.classes[output] and _is_call(node, "add")
        for child in node.children
    }
    wanted = [origin["x"], origin["weight"]]
    assert any(
        egraph.classes[i] in added
        and [nodes[egraph.classes[k]].origin for k in node.children] == wanted
        for i, node in enumerate(nodes)
        if _is_call(node, product)
    )


@pytest.mark.parametrize("variant", range(PIECES["causal attention"][0]))
@pytest.mark.parametrize("piece", ["causal attention", "attention of as many heads"])
def test_causal_attention_of_any_spelling_needs_no_mask(piece, variant):
    found = [
        (slots, attrs)
        for name, slots, attrs in equals(PIECES[piece][2](variant))
        if "dot_at" in name
    ]
    wanted = {"layout": "bhsd", "causal": True, "window": None, "scale": 0.5, "softcap": None}
    assert (("q", "k", "v"), wanted) in found


@pytest.mark.parametrize("variant", range(MODEL_VARIANTS))
def test_a_layer_of_llama_in_primitives_has_one_attention_of_the_projections(variant):
    graph = llama(1, loss=False, spelling="primitive", variant=variant)
    egraph = saturated(graph)
    found = [i for i, node in enumerate(egraph.nodes) if _is_call(node, "scaled_dot_attention")]
    whole = {
        (egraph.classes[i], *(egraph.classes[k] for k in egraph.nodes[i].children))
        for i in found
        if egraph.nodes[i].attrs["layout"] == "bshd" and egraph.nodes[i].attrs["causal"]
        if egraph.nodes[i].attrs["scale"] == 0.5 and len(egraph.nodes[i].slots) == 3
    }
    # One, of rotated queries and keys with their heads side by side, as the composite model has it.
    assert len(whole) == 1
    _, q, k, _ = whole.pop()
    for operand in (q, k):
        behind = [n for i, n in enumerate(egraph.nodes) if egraph.classes[i] == operand]
        flat = {egraph.classes[n.children[0]] for n in behind if _is_call(n, "reshape")}
        ropes = [
            n.attrs["theta"]
            for i, n in enumerate(egraph.nodes)
            if egraph.classes[i] in flat and _is_call(n, "rope") and n.attrs["layout"] == "flat"
        ]
        assert ropes == [10000.0]


@pytest.mark.slow
@pytest.mark.parametrize("variant", range(MODEL_VARIANTS))
@pytest.mark.parametrize("model", ["llama", "gpt2", "bert", "vit"])
def test_a_model_in_primitives_ends_with_one_attention_for_each_layer(model, variant):
    graph = MODELS[model](2, loss=False, spelling="primitive", variant=variant)
    optimized, _ = optimize_inference(graph)
    found = Counter(node.op.name for node in optimized.nodes)
    assert found["scaled_dot_attention"] == 2
    assert found["softmax"] == 0


def _is_call(node, name):
    return node.op is not None and node.op.name == name


# --------------------------------------------------------------------------- masks that are no masks


def test_a_mask_that_hides_by_a_finite_number_stays_an_added_one():
    # A row that is hidden throughout is a mean of all values, where a mask would give zeros.
    def hide(g, scores):
        return g.where(g.input("mask", (5, 5), "bool"), scores, -1e30).softmax()

    assert attentions(attended(hide)) == {(("bias",), False, None)}


def test_a_mask_that_hides_by_a_small_number_is_left_alone():
    def hide(g, scores):
        return g.where(g.input("mask", (5, 5), "bool"), scores, -50.0).softmax()

    assert attentions(attended(hide)) == set()


def test_an_added_mask_that_is_causal_but_for_one_key_stays_added():
    def hide(g, scores):
        seen = np.tril(np.ones((5, 5), bool))
        seen[1, 4] = True
        return (scores + g.constant(np.where(seen, 0.0, -1e9), dtype="f32")).softmax()

    assert attentions(attended(hide)) == {(("bias",), False, None)}


def test_an_added_mask_with_other_numbers_than_zero_stays_added():
    def hide(g, scores):
        added = np.where(np.tril(np.ones((5, 5), bool)), 0.25, -1e9)
        return (scores + g.constant(added, dtype="f32")).softmax()

    assert attentions(attended(hide)) == {(("bias",), False, None)}


def test_a_causal_comparison_of_another_offset_stays_a_mask():
    def hide(g, scores):
        seen = g.iota((3, 1)) + 1 >= g.iota((1, 5), 1)
        return g.where(seen, scores, -math.inf).softmax()

    found = attentions(attended(hide, queries=3))
    assert (("mask",), False, None) in found
    assert all(not causal for _, causal, _ in found)


def test_a_comparison_of_keys_with_queries_the_wrong_way_round_stays_a_mask():
    def hide(g, scores):
        return g.where(g.iota((1, 5), 1) >= g.iota((5, 1)), scores, -math.inf).softmax()

    assert all(not causal for _, causal, _ in attentions(attended(hide)))


def test_added_causal_comparisons_that_hide_whole_rows_stay_added():
    # More queries than keys: the first rows see nothing, and have a mean here.
    def hide(g, scores):
        seen = g.iota((5, 1)) + -2 >= g.iota((1, 3), 1)
        return (
            scores + g.where(seen, *(g.constant(x, dtype="f32") for x in (0.0, -1e30)))
        ).softmax()

    assert attentions(attended(hide, keys=3)) == {(("bias",), False, None)}


def test_a_softmax_over_queries_is_no_attention():
    assert attentions(attended(lambda g, scores: scores.softmax(2))) == set()


def test_a_bias_that_repeats_the_scores_is_no_attention():
    g = Graph("broadcast")
    q, k, v = (g.input(name, (1, 3, 5, 4)) for name in "qkv")
    scores = g.matmul_bt(q, k) + g.input("bias", (2, 3, 5, 5))
    g.set_outputs([scores.softmax() @ v])
    assert attentions(g) == set()


def test_a_scale_for_each_head_is_no_scale():
    g = Graph("scales")
    q, k, v = heads(g)
    scores = g.matmul_bt(q, k) * g.constant(np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1), dtype="f32")
    g.set_outputs([scores.softmax() @ v])
    found = [attrs["scale"] for name, _, attrs in equals(g, names(*FAMILIES)) if "dot_at" in name]
    assert found == []


def test_attention_by_einsum_of_heads_after_the_sequence_is_found():
    g = Graph("einsum")
    q, k, v = (g.input(name, (2, 5, 3, 4)) for name in "qkv")
    scores = g.dot_general(q, k, (3,), (3,), (0, 2), (0, 2)) * 0.5
    mixed = g.dot_general(scores.softmax(), v, (3,), (1,), (0, 1), (0, 2))
    g.set_outputs([mixed.transpose((0, 2, 1, 3))])
    found = [attrs for name, _, attrs in equals(g) if "dot_at" in name]
    assert {
        "layout": "bshd",
        "causal": False,
        "window": None,
        "scale": 0.5,
        "softcap": None,
    } in found


def test_hidden_rows_of_an_added_mask_keep_their_mean():
    g = Graph("rows")
    q, k, v = heads(g, dtype="f64")
    mask = g.input("mask", (5, 1), "bool")
    spelled = g.where(mask, g.matmul_bt(q, k) * 0.5, -1e30).softmax() @ v
    shown, hidden = (g.constant(x, dtype="f64") for x in (0.0, -1e30))
    whole = g.scaled_dot_attention(q, k, v, bias=g.where(mask, shown, hidden))
    g.set_outputs([spelled, whole])
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(2, 3, 5, 4)) for name in "qkv"}
    left, right = darner.run(g, {**given, "mask": np.array([[True], [False]] * 2 + [[True]])})
    np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-13)


# --------------------------------------------------------------------------- what a mask says


def test_masks_are_read_as_causal_windows_and_neighbourhoods():
    distance = np.arange(4)[:, None] + 2 - np.arange(6)
    assert visible_options(distance >= 0, 4, 6) == {"causal": True, "window": None}
    assert visible_options((distance >= 0) & (distance < 3), 4, 6) == {"causal": True, "window": 3}
    assert visible_options(np.abs(distance) < 2, 4, 6) == {"causal": False, "window": 2}
    assert visible_options(np.ones((1, 1), bool), 4, 6) == {}
    assert visible_options(np.stack([distance >= 0] * 3)[:, None], 4, 6) == {
        "causal": True,
        "window": None,
    }


def test_masks_that_say_something_else_are_not_read():
    distance = np.arange(4)[:, None] + 2 - np.arange(6)
    assert visible_options(distance > 0, 4, 6) is None
    assert visible_options(distance <= 0, 4, 6) is None
    assert visible_options(np.stack([distance >= 0, distance >= -1]), 4, 6) is None
    # The first two rows see nothing.
    assert visible_options(np.arange(5)[:, None] - 2 - np.arange(3) >= 0, 5, 3) is None
    assert visible_options(np.ones((0, 3), bool), 0, 3) is None


# --------------------------------------------------------------------------- tables


def test_theta_is_read_in_the_digits_it_was_written_in():
    for theta in (10000.0, 500000.0, 1e6, 12345.0):
        turns = (theta ** (-np.arange(8) / 8)).astype(np.float32).astype(np.float64)
        assert usual_theta(turns, 16, 4 * np.finfo(np.float32).eps) == theta


def test_scaled_frequencies_have_no_theta():
    turns = 10000.0 ** (-np.arange(8) / 8)
    assert usual_theta(turns / 2, 16, 1e-6) is None
    assert usual_theta(np.where(np.arange(8) < 4, turns, turns / 8), 16, 1e-6) is None
    assert usual_theta(-turns, 16, 1e-6) is None


def _turned(angles, x_shape=(2, 3, 5, 8)):
    g = Graph("rope")
    x = g.input("x", x_shape)
    cos, sin = (g.constant(table, dtype="f32") for table in (np.cos(angles), np.sin(angles)))
    g.set_outputs([g.rope_with_tables(x, cos, sin, layout="hsd")])
    return [
        (name, attrs.get("theta"), attrs.get("inverse"))
        for name, _, attrs in equals(g, names(*FAMILIES))
    ]


def test_tables_in_f32_are_known_as_the_usual_ones_and_others_are_not():
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    assert ("rope", 10000.0, False) in _turned(angles)
    assert ("rope", 10000.0, True) in _turned(-angles)
    shifted = [name for name, _, _ in _turned(angles + angles[1])]
    assert "rope" not in shifted
    assert "rope_with_tables" in shifted
    assert "rope" not in [
        name for name, _, _ in _turned(angles * np.linspace(1, 1.001, 5)[:, None])
    ]


def test_halves_of_unequal_tables_are_no_rope():
    g = Graph("rope")
    x = g.input("x", (5, 4))
    first, second = g.slice(x, (0, 0), (5, 2)), g.slice(x, (0, 2), (5, 4))
    cos, sin = (g.constant(np.arange(20.0).reshape(5, 4), dtype="f32") for _ in range(2))
    g.set_outputs([x * cos + g.concat([-second, first], -1) * sin])
    assert {name for name, _, _ in equals(g, names(*FAMILIES))} == {"add"}


def test_halves_turned_the_other_way_round_are_no_rope():
    g = Graph("rope")
    x = g.input("x", (5, 4))
    first, second = g.slice(x, (0, 0), (5, 2)), g.slice(x, (0, 2), (5, 4))
    cos, sin = g.input("cos", (5, 2)), g.input("sin", (5, 2))
    g.set_outputs([g.concat([second * cos - first * sin, first * cos + second * sin], -1)])
    assert "rope_with_tables" not in {name for name, _, _ in equals(g, names(*FAMILIES))}


# --------------------------------------------------------------------------- contractions


def products(make):
    g = Graph("product")
    g.set_outputs([make(g)])
    return {name for name, _, _ in equals(g, names("contraction"))}


def test_a_transpose_that_moves_batch_axes_stays_a_transpose():
    g = Graph("product")
    g.set_outputs([g.input("a", (2, 3, 4)) @ g.input("b", (5, 2, 4)).transpose((1, 2, 0))])
    egraph = saturated(g, names("contraction"))
    seconds = {
        node.op.name: egraph.nodes[node.children[1]].type.shape
        for node in egraph.nodes
        if node.op is not None and node.op.name.startswith("matmul")
    }
    assert seconds == {"matmul": (2, 4, 5), "matmul_bt": (2, 5, 4)}


def test_a_contraction_of_axes_that_are_apart_stays_general():
    found = products(
        lambda g: g.dot_general(g.input("a", (2, 3, 4)), g.input("b", (2, 4, 5)), (0, 2), (0, 1))
    )
    assert found == {"dot_general"}


def test_pairs_of_contracted_axes_in_another_order_stay_general():
    found = products(
        lambda g: g.dot_general(g.input("a", (2, 3, 3)), g.input("b", (3, 3, 5)), (1, 2), (1, 0))
    )
    assert found == {"dot_general"}


def test_integers_below_32_bits_keep_their_wider_sums():
    g = Graph("integers")
    a, b = g.input("a", (3, 4), "i8"), g.input("b", (5, 4), "i8")
    g.set_outputs([g.dot_general(a, b, (1,), (1,)), g.matmul_bt(a, b)])
    egraph = saturated(g, names("contraction"))
    made = [i for i, node in enumerate(egraph.nodes) if node.op is not None]
    assert len({egraph.classes[i] for i in made}) == 1
    assert str(egraph.nodes[made[0]].type.dtype) == "i32"
