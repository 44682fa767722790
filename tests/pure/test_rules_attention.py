"""Derivatives and batches of attention, rotary embedding and caches, against PyTorch and by value."""

import itertools
import math

import numpy as np
import pytest
import torch

import darner
from darner.testing import assert_close

RNG = np.random.default_rng(7)

# Batch, query heads, key heads, queries, keys, width, value width.
SIZES = (2, 4, 2, 3, 5, 4, 3)

MASKS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window": 2},
    "causal window": {"causal": True, "window": 2},
    "mask": {"mask": (2, 1, 3, 5)},
    "keys": {"mask": (5,)},
    "bias": {"bias": (4, 3, 5)},
    "bias for each key": {"bias": (2, 1, 1, 5), "causal": True},
    "bias and mask": {"bias": (1, 4, 1, 5), "mask": (2, 1, 1, 5)},
    "offset": {"offset": (), "causal": True},
    "offsets": {"offset": (2,), "causal": True, "window": 3},
    "scale": {"scale": -1.3, "causal": True},
    "softcap": {"softcap": 0.7, "scale": 1.1, "bias": (3, 5), "causal": True},
}


def tensors(kind, layout="bhsd"):
    """The float operands, the fixed ones, and the attributes of one kind of attention."""
    batch, heads, kv_heads, queries, keys, width, value_width = SIZES
    shapes = {
        "q": (batch, heads, queries, width),
        "k": (batch, kv_heads, keys, width),
        "v": (batch, kv_heads, keys, value_width),
    }
    if layout == "bshd":
        shapes = {name: (a, c, b, d) for name, (a, b, c, d) in shapes.items()}
    options = dict(MASKS[kind])
    if "bias" in options:
        shapes["bias"] = options.pop("bias")
    floats = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    fixed = {}
    if "mask" in options:
        fixed["mask"] = RNG.random(options.pop("mask")) > 0.4
    if "offset" in options:
        fixed["offset"] = np.asarray(RNG.integers(-1, 4, options.pop("offset")), np.int32)
    return floats, fixed, {**options, "layout": layout}


def attention_graph(floats, fixed, options, dtype="f64"):
    graph = darner.Graph()
    nodes = {name: graph.input(name, array.shape, dtype) for name, array in floats.items()}
    nodes |= {name: graph.input(name, array.shape, array.dtype) for name, array in fixed.items()}
    # In the middle of a graph: operands and result are not the graph's own.
    moved = {name: nodes[name] * 1.25 for name in floats}
    graph.set_outputs([graph.scaled_dot_attention(**{**nodes, **moved}, **options) * 0.5])
    return graph


def torch_attention(
    q,
    k,
    v,
    bias=None,
    *,
    mask=None,
    offset=None,
    layout="bhsd",
    causal=False,
    window=None,
    scale=None,
    softcap=None,
):
    """What the graph above computes, one step at a time."""
    q, k, v = 1.25 * q, 1.25 * k, 1.25 * v
    if layout == "bshd":
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + 1.25 * bias
    queries, keys = scores.shape[-2:]
    start = torch.as_tensor(keys - queries if offset is None else offset).reshape(-1, 1, 1, 1)
    distance = start + torch.arange(queries)[:, None] - torch.arange(keys)
    visible = torch.ones(scores.shape, dtype=torch.bool)
    if causal:
        visible = visible & (distance >= 0)
    if window is not None:
        visible = visible & (distance < window) & (distance > -window)
    if mask is not None:
        visible = visible & torch.as_tensor(mask)
    weights = scores.masked_fill(~visible, -1e9).softmax(-1) * visible
    result = 0.5 * weights @ v
    return result.transpose(1, 2) if layout == "bshd" else result


def as_torch(arrays, **options):
    return {name: torch.tensor(array, **options) for name, array in arrays.items()}


# --------------------------------------------------------------------------- attention


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("kind", MASKS)
def test_gradients_of_attention_are_those_of_pytorch(kind, layout):
    floats, fixed, options = tensors(kind, layout)
    pulled = darner.vjp(attention_graph(floats, fixed, options), list(floats))
    leaves = as_torch(floats, requires_grad=True)
    expected = torch_attention(**leaves, **fixed, **options)
    cotangent = RNG.normal(size=expected.shape)
    value, *gradients = darner.run(pulled, {**floats, **fixed, "d_output": cotangent})
    expected.backward(torch.tensor(cotangent))
    assert_close(value, expected.detach(), "f64", 60)
    for gradient, leaf in zip(gradients, leaves.values(), strict=True):
        assert_close(gradient, leaf.grad, "f64", 400)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kind", ["causal", "bias and mask", "softcap"])
def test_gradients_of_attention_in_narrow_types(kind, dtype):
    floats, fixed, options = tensors(kind)
    graph = darner.Graph()
    nodes = {name: graph.input(name, array.shape, dtype) for name, array in floats.items()}
    nodes |= {name: graph.input(name, array.shape, array.dtype) for name, array in fixed.items()}
    graph.set_outputs([graph.scaled_dot_attention(**nodes, **options)])
    narrow = graph.inputs["q"].dtype.numpy
    floats = {name: array.astype(narrow) for name, array in floats.items()}
    pulled = darner.vjp(graph, list(floats))
    cotangent = RNG.normal(size=graph.outputs[0].shape).astype(narrow)
    feeds = {**floats, **fixed, "d_output": cotangent}
    found = darner.run(pulled, feeds)
    exact = darner.run(pulled, feeds, float64=True)
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == narrow
        assert_close(a, b, dtype, 60)


def test_gradients_by_all_operands_share_one_backward_op():
    floats, fixed, options = tensors("bias")
    gradient = darner.vjp(attention_graph(floats, fixed, options), list(floats))
    names = [node.op.name for node in gradient.nodes]
    assert names.count("scaled_dot_attention_backward") == 1
    assert names.count("scaled_dot_attention") == 1
    assert all(
        gradient.use_count(node) or gradient.is_output(node) or node.name for node in gradient.nodes
    )


def test_gradient_by_the_bias_alone_asks_for_nothing_else():
    floats, fixed, options = tensors("bias")
    gradient = darner.vjp(attention_graph(floats, fixed, options), ["bias"])
    projected = [node.attrs["index"] for node in gradient.nodes if node.op.name == "project"]
    assert projected == [3]


def test_queries_that_see_nothing_pass_no_gradient_and_no_nan():
    graph = darner.Graph()
    q, k, v = (graph.input(name, (1, 1, 3, 2), "f64") for name in "qkv")
    mask = graph.input("mask", (3, 3), "bool")
    graph.set_outputs([graph.scaled_dot_attention(q, k, v, mask)])
    visible = np.array([[True, True, True], [False] * 3, [True, False, False]])
    feeds = {name: RNG.normal(size=(1, 1, 3, 2)) for name in ("q", "k", "v", "d_output")}
    _, dq, dk, dv = darner.run(darner.vjp(graph, ["q", "k", "v"]), {**feeds, "mask": visible})
    assert np.isfinite([dq, dk, dv]).all()
    # One visible key: the weight is 1 whatever the score is.
    assert np.array_equal(dq[0, 0, 1:], np.zeros((2, 2)))
    assert np.abs(dq[0, 0, 0]).min() > 0
    moved = darner.vjp(darner.vjp(graph, ["q", "k", "v"]), ["q", "k", "v"])
    again = {name: RNG.normal(size=node.shape) for name, node in moved.inputs.items()}
    results = darner.run(moved, {**again, **feeds, "mask": visible})
    assert all(np.isfinite(result).all() for result in results)


def test_keys_hidden_by_a_bias_of_minus_infinity_have_gradient_zero():
    graph = darner.Graph()
    q, k, v = (graph.input(name, (1, 1, 2, 2), "f64") for name in "qkv")
    bias = graph.input("bias", (2, 2), "f64")
    graph.set_outputs([graph.scaled_dot_attention(q, k, v, bias=bias)])
    feeds = {name: RNG.normal(size=(1, 1, 2, 2)) for name in ("q", "k", "v", "d_output")}
    feeds["bias"] = np.array([[0.3, -np.inf], [-np.inf, -np.inf]])
    gradient = darner.vjp(graph, ["q", "k", "v", "bias"])
    _, dq, _, dv, dbias = darner.run(gradient, feeds)
    assert np.array_equal(dbias, np.zeros((2, 2)))
    assert np.array_equal(dq, np.zeros_like(dq))
    assert np.array_equal(dv[0, 0, 1], np.zeros(2))
    assert_close(dv[0, 0, 0], feeds["d_output"][0, 0, 0], "f64")


@pytest.mark.parametrize("kind", ["causal", "bias and mask", "softcap", "offsets"])
def test_second_derivatives_of_attention_are_those_of_pytorch(kind):
    floats, fixed, options = tensors(kind)
    graph = attention_graph(floats, fixed, options)
    graph.set_outputs([graph.outputs[0].square().sum()])
    directions = {name: RNG.normal(size=array.shape) for name, array in floats.items()}
    feeds = {f"tangent_{name}": array for name, array in directions.items()}
    found = darner.run(darner.hvp(graph, list(floats)), {**floats, **fixed, **feeds})

    def loss(*leaves):
        named = dict(zip(floats, leaves, strict=True))
        return torch_attention(**named, **fixed, **options).square().sum()

    leaves, moves = as_torch(floats).values(), as_torch(directions).values()
    _, expected = torch.autograd.functional.hvp(loss, tuple(leaves), tuple(moves))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, "f64", 4000)


@pytest.mark.parametrize("kind", ["none", "causal window", "softcap"])
def test_tangents_of_attention_are_those_of_pytorch(kind):
    floats, fixed, options = tensors(kind)
    moves = {name: RNG.normal(size=array.shape) for name, array in floats.items()}
    pushed = darner.jvp(attention_graph(floats, fixed, options), list(floats))
    feeds = {f"tangent_{name}": array for name, array in moves.items()}
    _, tangent = darner.run(pushed, {**floats, **fixed, **feeds})

    def result(*leaves):
        return torch_attention(**dict(zip(floats, leaves, strict=True)), **fixed, **options)

    leaves, directions = as_torch(floats).values(), as_torch(moves).values()
    _, expected = torch.autograd.functional.jvp(result, tuple(leaves), tuple(directions))
    assert_close(tangent, expected, "f64", 400)


@pytest.mark.parametrize("kind", MASKS)
def test_a_batch_of_attentions_and_their_gradients_is_one_attention(kind):
    floats, fixed, options = tensors(kind)
    graph = darner.vjp(attention_graph(floats, fixed, options), list(floats))
    operands = {**floats, **fixed, "d_output": RNG.normal(size=graph.inputs["d_output"].shape)}
    size = 3
    for chosen in (["q", "d_output"], ["k", "v"], list(fixed), [*floats, *fixed, "d_output"]):
        if not chosen:
            continue
        feeds = dict(operands)
        for name in chosen:
            feeds[name] = np.stack(
                [
                    operands[name] + i if name == "offset" else RNG.permuted(operands[name])
                    for i in range(size)
                ]
            )
        batched = darner.vmap(graph, chosen, size)
        names = [node.op.name for node in batched.nodes]
        assert names.count("scaled_dot_attention") == 1
        assert names.count("scaled_dot_attention_backward") == 1
        found = darner.run(batched, feeds)
        for i in range(size):
            each = {name: a[i] if name in chosen else a for name, a in feeds.items()}
            for a, b in zip(found, darner.run(graph, each), strict=True):
                assert_close(a[i], b, "f64", 60)


def test_a_batch_shares_a_mask_that_broadcasts():
    graph = darner.Graph()
    q = graph.input("q", (2, 1, 3, 2))
    mask = graph.input("mask", (1, 1, 3, 3), "bool")
    graph.set_outputs([graph.scaled_dot_attention(q, q, q, mask)])
    batched = darner.vmap(graph, ["q"], 5)
    (attention,) = (n for n in batched.nodes if n.op.name == "scaled_dot_attention")
    assert attention.operands[0].shape == (10, 1, 3, 2)
    assert attention.operands[3].shape == (1, 1, 3, 3)


# --------------------------------------------------------------------------- rotary embedding


def test_gradient_of_rope_is_the_turn_back():
    graph = darner.Graph()
    x = graph.input("x", (5, 8), "f64")
    positions = graph.input("positions", (5,), "i32")
    graph.set_outputs([graph.rope(x, 100.0, 4, offset=2, interleaved=True, positions=positions)])
    gradient = darner.vjp(graph, ["x"])
    (turn,) = (n for n in gradient.nodes if n.op.name == "rope" and n.attrs["inverse"])
    assert turn.attrs["offset"] == 2
    feeds = {"x": RNG.normal(size=(5, 8)), "positions": np.array([9, 0, 3, 3, 70])}
    y = darner.run(graph, feeds)[0]
    # A turn keeps lengths, so pulling the result itself back gives x again.
    assert_close(darner.run(gradient, {**feeds, "d_output": y})[1], feeds["x"], "f64", 8)


def test_gradient_of_rope_follows_an_offset_of_the_graph():
    graph = darner.Graph()
    x, offset = graph.input("x", (3, 4), "f64"), graph.input("offset", (1,), "u32")
    graph.set_outputs([graph.rope_dynamic_offset(x, 100.0, offset, 4)])
    gradient = darner.vjp(graph, ["x"])
    cotangent = RNG.normal(size=(3, 4))
    feeds = {"x": RNG.normal(size=(3, 4)), "offset": np.array([11]), "d_output": cotangent}
    fixed = darner.Graph()
    dy = fixed.input("dy", (3, 4), "f64")
    fixed.set_outputs([fixed.rope(dy, 100.0, 4, offset=11, inverse=True)])
    expected = darner.run(fixed, {"dy": cotangent})[0]
    assert_close(darner.run(gradient, feeds)[1], expected, "f64", 4)


@pytest.mark.parametrize(
    ("x", "table", "options"),
    [
        ((3, 8), (3, 2), {"head_dim": 4}),
        ((2, 3, 12), (3, 3), {"head_dim": 6, "interleaved": True}),
        ((2, 3, 12), (2, 3, 3), {"head_dim": 6, "n_rot": 4}),
        ((2, 3, 2, 4), (1, 3, 2), {"layout": "shd", "n_rot": 2}),
        ((2, 4, 3, 6), (2, 1, 3, 3), {"layout": "hsd", "interleaved": True}),
    ],
)
def test_tables_of_rope_have_gradients(x, table, options):
    graph = darner.Graph()
    nodes = [graph.input("x", x, "f64")]
    nodes += [graph.input(name, table, "f64") for name in ("cos", "sin")]
    graph.set_outputs([graph.rope_with_tables(*nodes, **options)])
    shapes = {"x": x, "cos": table, "sin": table, "d_output": x}
    feeds = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    _, dx, dcos, dsin = darner.run(darner.vjp(graph, ["x", "cos", "sin"]), feeds)

    leaves = as_torch(feeds, requires_grad=True)
    head_dim = options.get("head_dim", x[-1])
    n_rot = options.get("n_rot", head_dim)
    heads = leaves["x"].unflatten(-1, (-1, head_dim)) if "head_dim" in options else leaves["x"]
    cos, sin = leaves["cos"][..., : n_rot // 2], leaves["sin"][..., : n_rot // 2]
    if options.get("layout") != "hsd":
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turning, rest = heads[..., :n_rot], heads[..., n_rot:]
    if options.get("interleaved"):
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = turning.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    torch.cat([turned, rest], -1).reshape(x).backward(leaves["d_output"].detach())
    for found, name in ((dx, "x"), (dcos, "cos"), (dsin, "sin")):
        assert_close(found, leaves[name].grad, "f64", 48)


def test_gradient_of_a_wider_table_stays_in_its_type():
    graph = darner.Graph()
    x = graph.input("x", (64, 8), "bf16")
    cos, sin = (graph.input(name, (64, 4), "f32") for name in ("cos", "sin"))
    graph.set_outputs([graph.rope_with_tables(x, cos, sin, head_dim=8)])
    gradient = darner.vjp(graph, ["cos", "sin"])
    narrow = graph.inputs["x"].dtype.numpy
    feeds = {
        "x": RNG.normal(size=(64, 8)).astype(narrow),
        "cos": RNG.normal(size=(64, 4)).astype(np.float32),
        "sin": RNG.normal(size=(64, 4)).astype(np.float32),
        "d_output": RNG.normal(size=(64, 8)).astype(narrow),
    }
    found, exact = darner.run(gradient, feeds)[1:], darner.run(gradient, feeds, float64=True)[1:]
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == np.float32
        assert_close(a, b, "f32", 2)


def test_inverse_of_axial_rope_undoes_it_and_is_its_gradient():
    graph = darner.Graph()
    x = graph.input("x", (2, 6, 8), "f64")
    sizes = (3, 2, 4, 2, 100.0, 1)
    graph.set_outputs([graph.axial_rope2d(x, *sizes)])
    feeds = {"x": RNG.normal(size=(2, 6, 8))}
    y = darner.run(graph, feeds)[0]
    assert np.abs(y - feeds["x"]).max() > 0.1
    back = darner.Graph()
    back.set_outputs([back.axial_rope2d(back.input("y", (2, 6, 8), "f64"), *sizes, inverse=True)])
    assert_close(darner.run(back, {"y": y})[0], feeds["x"], "f64", 8)
    gradient = darner.vjp(graph, ["x"])
    assert_close(darner.run(gradient, {**feeds, "d_output": y})[1], feeds["x"], "f64", 8)


def test_a_batch_of_positions_turns_one_tensor_many_ways():
    graph = darner.Graph()
    x = graph.input("x", (2, 3, 4), "f64")
    positions = graph.input("positions", (3,), "i32")
    graph.set_outputs([graph.rope(x, 10.0, 4, positions=positions)])
    batched = darner.vmap(graph, ["positions"], 5)
    assert [n.op.name for n in batched.nodes].count("rope") == 1
    feeds = {"x": RNG.normal(size=(2, 3, 4)), "positions": RNG.integers(0, 90, (5, 3))}
    found = darner.run(batched, feeds)[0]
    for i in range(5):
        each = {"x": feeds["x"], "positions": feeds["positions"][i]}
        assert_close(found[i], darner.run(graph, each)[0], "f64", 4)


# --------------------------------------------------------------------------- caches


@pytest.mark.parametrize(("position", "first"), [(1, 1), (9, 3), (-4, 0)])
def test_rows_written_to_a_cache_take_its_gradient(position, first):
    graph = darner.Graph()
    cache, new = graph.input("cache", (5, 2), "f64"), graph.input("new", (2, 2), "f64")
    graph.set_outputs([graph.cache_update(cache, new, graph.input("position", (), "i32"))])
    gradient = darner.vjp(graph, ["cache", "new"])
    cotangent = RNG.normal(size=(5, 2))
    feeds = {name: np.zeros(node.shape) for name, node in graph.inputs.items()}
    feeds |= {"position": np.array(position), "d_output": cotangent}
    _, to_cache, to_new = darner.run(gradient, feeds)
    assert np.array_equal(to_new, cotangent[first : first + 2])
    kept = cotangent.copy()
    kept[first : first + 2] = 0
    assert np.array_equal(to_cache, kept)


def test_each_of_a_batch_writes_at_its_own_position():
    graph = darner.Graph()
    cache, new = graph.input("cache", (4, 2)), graph.input("new", (1, 2))
    graph.set_outputs([graph.cache_update(cache, new, graph.input("position", (1,), "i32"))])
    for chosen in (["position"], ["cache", "position"], ["cache", "new", "position"], ["new"]):
        feeds = {"cache": np.arange(8.0).reshape(4, 2), "new": -np.ones((1, 2))}
        feeds["position"] = np.array([2])
        each = [feeds] * 3
        for name in chosen:
            values = [feeds[name] + i for i in range(3)]
            feeds = {**feeds, name: np.stack(values)}
            each = [{**old, name: value} for old, value in zip(each, values, strict=True)]
        found = darner.run(darner.vmap(graph, chosen, 3), feeds)[0]
        expected = [darner.run(graph, one)[0] for one in each]
        assert np.array_equal(found, np.stack(expected))


def test_training_through_a_cache_matches_attention_without_one():
    """Two steps of decoding into a cache, and the gradients by both steps' keys."""
    graph = darner.Graph()
    q = graph.input("q", (1, 4), "f64")
    rows = [graph.input(f"row{i}", (1, 4), "f64") for i in range(2)]
    cache = graph.state("cache", (3, 4), "f64")
    first = graph.cache_write(rows[0], cache, graph.constant(0))
    both = graph.cache_write(rows[1], first, graph.constant(1))
    graph.set_outputs([graph.cached_attention(q, both, both, graph.constant(1), 2, 2, 2)])
    gradient = darner.vjp(graph, ["q", "row0", "row1"])
    names = ["q", "row0", "row1", "d_output"]
    feeds = {name: RNG.normal(size=(1, 4)) for name in names}
    found = darner.run(gradient, feeds, state={"cache": np.full((3, 4), 7.0)})[1:]
    leaves = as_torch({name: feeds[name] for name in names[:3]}, requires_grad=True)
    heads = torch.cat([leaves["row0"], leaves["row1"]]).reshape(2, 2, 2).transpose(0, 1)
    query = leaves["q"].reshape(1, 2, 2).transpose(0, 1)
    result = torch.nn.functional.scaled_dot_product_attention(query, heads, heads)
    result.transpose(0, 1).reshape(1, 4).backward(torch.tensor(feeds["d_output"]))
    for a, leaf in itertools.zip_longest(found, leaves.values()):
        assert_close(a, leaf.grad, "f64", 8)
