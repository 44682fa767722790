"""Contractions that multiply in fewer bits: values and gradients beside PyTorch in float64, of operands rounded by hand."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

import darner
from darner import Graph
from darner.graph.precision import PRECISIONS
from darner.interpreter import run
from darner.transforms.precision import rounded_products

RNG = np.random.default_rng(3)
LOWER = [name for name in PRECISIONS if name != "f32"]


def rounded(x, precision):
    """An array as contractions read it, in float64."""
    x = np.asarray(x, np.float32)
    if precision == "tf32":
        bits = x.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x0FFF + ((bits >> 13) & 1)) & 0xFFFFE000
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    kind = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}[precision]
    return x.astype(kind).astype(np.float64)


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def pulled_back(graph, precision):
    """The graph of outputs and cotangents, whose contractions multiply in a precision."""
    return darner.with_precision(darner.vjp(graph, [*graph.inputs, *graph.parameters]), precision)


def assert_near(found, wanted):
    """Agreement to what sums in f32 may be off: far below a digit of any lower precision."""
    scale = np.abs(wanted).max(initial=1.0)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=4e-6 * scale)


# --------------------------------------------------------------------------- values


@pytest.mark.parametrize("precision", LOWER)
def test_a_product_has_rounded_operands_and_a_result_that_is_not(precision):
    g = Graph()
    g.set_outputs([g.input("x", (2, 5, 33)) @ g.parameter("w", (33, 7))])
    x, w = drawn(2, 5, 33), drawn(33, 7)
    (found,) = darner.run(darner.with_precision(g, precision), {"x": x}, {"w": w})
    assert found.dtype == np.float32
    assert_near(found, rounded(x, precision) @ rounded(w, precision))
    assert np.abs(found - x.astype(np.float64) @ w).max() > 1e-4
    assert np.abs(found - rounded(found, precision)).max() > 1e-4


@pytest.mark.parametrize("precision", LOWER)
def test_gradients_of_a_layer_are_products_of_what_was_rounded(precision):
    g = Graph()
    x, w, b = g.input("x", (6, 33)), g.parameter("w", (33, 7)), g.parameter("b", (7,))
    g.set_outputs([(x @ w + b).tanh() * 2.0])
    values = {"x": drawn(6, 33), "d_output": drawn(6, 7)}
    weights = {"w": drawn(33, 7), "b": drawn(7)}
    found = darner.run(pulled_back(g, precision), values, weights)
    rx, rw = rounded(values["x"], precision), rounded(weights["w"], precision)
    y = np.tanh(rx @ rw + weights["b"])
    dz = 2.0 * values["d_output"] * (1 - y * y)
    rz = rounded(dz, precision)
    for ours, theirs in zip(found, (2 * y, rz @ rw.T, rx.T @ rz, dz.sum(0)), strict=True):
        # A cotangent on the border of two numbers may be rounded to either.
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2 * np.abs(theirs).max() / 4)
    assert_near(found[0], 2 * y)
    assert_near(found[3], dz.sum(0))


@pytest.mark.parametrize("precision", LOWER)
def test_convolutions_and_both_their_gradients_are_rounded(precision):
    g = Graph()
    x, w = g.input("x", (2, 4, 9, 8)), g.parameter("w", (6, 2, 3, 3))
    g.set_outputs([g.conv2d(x, w, stride=2, padding=1, groups=2)])
    shape = g.outputs[0].shape
    values, weights = {"x": drawn(2, 4, 9, 8), "d_output": drawn(*shape)}, {"w": drawn(6, 2, 3, 3)}
    found = darner.run(pulled_back(g, precision), values, weights)
    tx = torch.tensor(rounded(values["x"], precision), requires_grad=True)
    tw = torch.tensor(rounded(weights["w"], precision), requires_grad=True)
    y = functional.conv2d(tx, tw, stride=2, padding=1, groups=2)
    y.backward(torch.tensor(rounded(values["d_output"], precision)))
    for ours, theirs in zip(found, (y, tx.grad, tw.grad), strict=True):
        assert_near(ours, theirs.numpy(force=True))


@pytest.mark.parametrize("precision", LOWER)
def test_attention_has_rounded_queries_keys_values_and_cotangents(precision):
    g = Graph()
    q, k, v = (g.input(name, (2, 3, 7, 8)) for name in "qkv")
    g.set_outputs([g.scaled_dot_attention(q, k, v, causal=True)])
    values = {name: drawn(2, 3, 7, 8) for name in ("q", "k", "v", "d_output")}
    found = darner.run(pulled_back(g, precision), values)
    leaves = [torch.tensor(rounded(values[n], precision), requires_grad=True) for n in "qkv"]
    y = functional.scaled_dot_product_attention(*leaves, is_causal=True)
    y.backward(torch.tensor(rounded(values["d_output"], precision)))
    for ours, theirs in zip(found, (y, *(leaf.grad for leaf in leaves)), strict=True):
        assert_near(ours, theirs.numpy(force=True))


def test_what_is_no_contraction_is_not_rounded():
    g = Graph()
    x = g.input("x", (5, 64))
    g.set_outputs([x.softmax(), x.layer_norm(), x.sum(-1), x.logsumexp(-1), x.square().mean()])
    same = darner.with_precision(g, "bf16")
    assert str(same) == str(g)


# --------------------------------------------------------------------------- the graph


def test_f32_changes_nothing():
    g = Graph()
    g.set_outputs([g.input("x", (2, 3)) @ g.parameter("w", (3, 4))])
    assert darner.with_precision(g, "f32") is g


def test_a_value_is_rounded_once_below_its_views():
    g = Graph()
    x, w = g.input("x", (4, 6)), g.parameter("w", (6, 4))
    h = x.tanh()
    both = h.transpose((1, 0)) @ h + (h @ w).sum() + h.reshape((6, 4)) @ h.slice((0, 0), (4, 6))
    g.set_outputs([both])
    found = darner.with_precision(g, "bf16")
    casts = [n.operands[0].op.name for n in found.nodes if n.op.name == "cast" and n.dtype.is_half]
    assert sorted(casts) == ["parameter", "tanh"]


def test_operands_that_have_fewer_digits_already_are_read_as_they_are():
    g = Graph()
    x, w = g.input("x", (2, 3), "bf16"), g.parameter("w", (3, 4), "bf16")
    g.set_outputs([x.cast("f32") @ w.cast("f32"), x @ w])
    for precision in ("bf16", "tf32"):
        made = rounded_products(g, precision)
        assert [n.op.name for n in made.graph.nodes] == [n.op.name for n in g.nodes]
        assert (made.count, made.others) == (1, 1)
    made = rounded_products(g, "f16")
    assert [str(n.dtype) for n in made.graph.nodes if n.op.name == "cast"].count("f16") == 2


@pytest.mark.parametrize("dtype", ["f64", "bf16", "i32", "c64"])
def test_graphs_of_other_types_compute_in_what_they_are(dtype):
    g = Graph()
    g.set_outputs([g.input("x", (2, 3), dtype) @ g.input("w", (3, 4), dtype)])
    made = rounded_products(g, "f16")
    assert str(made.graph) == str(g)
    assert (made.count, made.others) == (0, 1)


def test_composites_of_contractions_are_written_out_and_others_are_not():
    g = Graph()
    x, a, b = g.input("x", (4, 6)), g.parameter("a", (6, 2)), g.parameter("b", (2, 5))
    g.set_outputs([g.lora_matmul(x, g.parameter("w", (6, 5)), a, b).softmax()])
    made = rounded_products(g, "bf16")
    names = [node.op.name for node in made.graph.nodes]
    assert names.count("matmul") == 3
    assert "softmax" in names
    assert "lora_matmul" not in names
    # The product between them is rounded too, as the operand of the second.
    assert made.count == 3
    assert names.count("cast") == 2 * 5


def test_weights_of_few_bits_are_multiplied_as_they_are_decoded():
    g = Graph()
    x = g.input("x", (4, 32))
    g.set_outputs([x @ g.parameter("w", (32, 6), storage="q8"), x @ g.parameter("v", (32, 6))])
    made = rounded_products(g, "bf16")
    assert (made.count, made.stored) == (1, 1)
    assert "in f32 by weights of fewer bits" in made.note
    first, second = made.graph.outputs
    assert first.operands[1].name == "w"
    assert second.operands[1].op.name == "cast"


def test_contractions_inside_loops_are_rounded_and_their_weights_once():
    g = Graph()
    x, w = g.input("x", (5, 2, 3)), g.parameter("w", (3, 3))

    def step(h, row):
        following = (h @ w + row).tanh()
        return following, following

    g.set_outputs([g.iterate(step, g.zeros((2, 3)), x)[1]])
    found = darner.with_precision(g, "bf16")
    outside = [n.operands[0].name for n in found.nodes if n.op.name == "cast" and n.dtype.is_half]
    assert outside == ["w"]
    (body,) = [n.attrs["body"] for n in found.nodes if n.op.name == "loop"]
    assert [str(n.dtype) for n in body.nodes if n.op.name == "cast"] == ["bf16", "f32"]
    values, weight = drawn(5, 2, 3), drawn(3, 3)
    h, wanted = np.zeros((2, 3)), []
    for row in values:
        h = np.tanh(rounded(h, "bf16") @ rounded(weight, "bf16") + row)
        wanted.append(h)
    assert_near(darner.run(found, {"x": values}, {"w": weight})[0], np.stack(wanted))


def test_a_precision_that_there_is_not_is_refused():
    g = Graph()
    g.set_outputs([g.input("x", (2, 3))])
    with pytest.raises(darner.ArgumentError, match="did you mean 'bf16'"):
        darner.with_precision(g, "bfloat16")
    with pytest.raises(
        darner.ArgumentError, match="precision is one of 'f32', 'tf32', 'bf16', 'f16'"
    ):
        darner.with_precision(g, None)


# --------------------------------------------------------------------------- rounding itself


def test_reduce_precision_rounds_as_bfloat16_does_and_keeps_what_is_no_number():
    values = (RNG.normal(size=4000) * np.exp2(RNG.integers(-126, 127, 4000))).astype(np.float32)
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45], np.float32)
    x = np.concatenate([values, ends])
    g = Graph()
    g.set_outputs([g.input("x", x.shape).reduce_precision(8, 7)])
    (found,) = run(g, {"x": x})
    np.testing.assert_array_equal(found, x.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert np.signbit(found[-6])
    assert not np.signbit(found[-7])


def test_reduce_precision_of_a_small_exponent_overflows_and_flushes():
    g = Graph()
    g.set_outputs([g.input("x", (6,)).reduce_precision(5, 10)])
    x = np.array([65519.0, 65520.0, -7e4, 6.2e-5, 6.0e-5, -6.0e-5], np.float32)
    (found,) = run(g, {"x": x})
    np.testing.assert_array_equal(
        found, np.array([65504, np.inf, -np.inf, np.float16(6.2e-5), 0, 0])
    )
    assert np.signbit(found[5])


def test_reduce_precision_refuses_what_is_no_float():
    g = Graph()
    x = g.input("x", (3,))
    with pytest.raises(darner.ArgumentError, match="exponent_bits must be at least 1, not 0"):
        x.reduce_precision(0, 10)
    with pytest.raises(darner.ArgumentError, match="mantissa_bits must be at least 0, not -1"):
        x.reduce_precision(8, -1)
