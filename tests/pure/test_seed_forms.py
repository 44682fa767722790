"""What Meganeura and RLX give to calls of the same name: longer tables, names of ops, stated types, layers with ``forward``."""

import numpy as np
import pytest

import darner
from darner import Activation, DType, DTypeError, Graph, Shape, ShapeError, nn

RNG = np.random.default_rng(3)


def computed(graph, *nodes, **inputs):
    graph.set_outputs(list(nodes))
    return darner.run(graph, inputs)


def test_shape_has_sizes_and_element_type():
    g = Graph()
    x = g.input("x", (4, 15), "f16")
    found = g.shape(x)
    assert found == Shape.new([4, 15], DType.F16)
    assert (found.rank, found.dtype, found.shape) == (2, "f16", (4, 15))
    assert found != Shape.new([4, 15], DType.F32)


@pytest.mark.parametrize("call", ["rope", "rope_n", "rope_with_tables"])
def test_tables_for_longer_sequences_are_read_from_the_start(call):
    g = Graph()
    x, cos, sin = g.input("x", (2, 3, 8)), g.input("cos", (5, 4)), g.input("sin", (5, 4))
    sizes = {"n_rot": 8} if call == "rope_n" else {}
    long = getattr(g, call)(x, cos, sin, head_dim=8, **sizes)
    exact = getattr(g, call)(x, cos[:3], sin[:3], head_dim=8, **sizes)
    values = {
        "x": RNG.normal(size=(2, 3, 8)),
        **{n: RNG.normal(size=(5, 4)) for n in ("cos", "sin")},
    }
    found, wanted = computed(g, long, exact, **values)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ShapeError, match="x needs 3 of them"):
        g.rope(x, cos[:2], sin[:2], 8)


def test_gradients_go_straight_through_rounding():
    g = Graph()
    x, d = g.input("x", (3,)), g.input("d", (3,))
    dx = g.activation_backward(Activation.Round, x, d, Shape.new([3], DType.F32))
    (found,) = computed(g, dx, x=[0.4, 1.5, -2.6], d=[1.0, 2.0, 3.0])
    np.testing.assert_array_equal(found, [1.0, 2.0, 3.0])


def test_a_stated_type_of_a_sample_is_checked():
    g = Graph()
    logits = g.input("logits", (2, 5))
    drawn = g.sample(logits, 1, 1.0, 1.0, 7, Shape.new([2], DType.I32))
    assert drawn.dtype == "i32"
    with pytest.raises(DTypeError, match="is i32, but f32 was stated"):
        g.sample(logits, 1, 1.0, 1.0, 7, Shape.new([2], DType.F32))


@pytest.mark.parametrize(
    ("name", "attrs", "own"),
    [
        ("RmsNorm", {}, "rms_norm"),
        ("MatMul", {}, "matmul"),
        ("Softmax", {"axis": -1}, "softmax"),
        ("Where", {}, "where"),
        ("Expand", {"shape": (2, 3, 3)}, "broadcast_to"),
        ("ResizeNearest2x", {}, "resize_nearest"),
        ("Activation", {"kind": "Silu"}, "silu"),
        ("Binary", {"op": "Max"}, "maximum"),
        ("Compare", {"op": "Eq"}, "eq"),
        ("Reduce", {"op": "Sum", "axes": [1]}, "sum"),
        ("Param", {"name": "p", "shape": (2,)}, "parameter"),
    ],
)
def test_ops_are_added_by_the_names_of_rlx(name, attrs, own):
    g = Graph()
    x = g.input("x", (3, 3))
    operands = {
        "RmsNorm": [x, g.input("w", (3,))],
        "MatMul": [x, x],
        "Where": [x > 0, x, x],
        "ResizeNearest2x": [g.input("picture", (1, 1, 2, 2))],
        "Binary": [x, x],
        "Compare": [x, x],
        "Param": [],
    }.get(name, [x])
    assert g.add_node(name, operands, **attrs).op.name == own


def test_a_shape_that_is_stated_for_a_builder_is_checked():
    g = Graph()
    x = g.input("x", (2, 3))
    assert g.add_node("Binary", [x, x], Shape.new([2, 3]), op="Add").shape == (2, 3)
    with pytest.raises(ShapeError):
        g.add_node("Binary", [x, x], Shape.new([3, 2]), op="Add")
    with pytest.raises(darner.ArgumentError, match="no op is called 'RmsNrm'"):
        g.add_node("RmsNrm", [x])


def test_layers_have_forward_with_and_without_the_graph():
    g = Graph()
    x = g.input("x", (2, 4))
    layer = nn.Linear("fc", 4, 3)
    first, second, third = layer(x), layer.forward(x), layer.forward(g, x)
    g.set_outputs([first, second, third])
    with darner.build_inference_session(g, init="kaiming") as session:
        a, b, c = session.run({"x": RNG.normal(size=(2, 4)).astype(np.float32)}).values()
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
    with pytest.raises(darner.ArgumentError, match="of another graph"):
        layer.forward(Graph("other"), x)


def test_several_outputs_are_a_handle():
    body = Graph("body")
    v = body.input("v", (2,))
    body.set_outputs([v + 1, v * 2])
    g = Graph()
    handle = g.custom_fn_multi([g.input("x", (2,))], body)
    assert isinstance(handle, darner.MultiOutputHandle)
    assert handle.n_outputs() == 2
    (found,) = computed(g, handle.output(g, 1), x=[1.0, 3.0])
    np.testing.assert_array_equal(found, [2.0, 6.0])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_half_parameter_takes_floats_and_rounds_them(dtype):
    g = Graph()
    x = g.input("x", (2, 3))
    w = g.parameter_f16("w", (3, 4)) if dtype == "f16" else g.parameter("w", (3, 4), dtype)
    g.set_outputs([x @ w.cast("f32")])
    values = RNG.normal(size=(3, 4)).astype(np.float32)
    with darner.build_inference_session(g) as session:
        session.set_parameter("w", values)
        kept = session.read_param("w")
        assert kept.dtype.name == {"f16": "float16", "bf16": "bfloat16"}[dtype]
        np.testing.assert_array_equal(kept, values.astype(kept.dtype))
        with pytest.raises(DTypeError, match="but it is given i32"):
            session.set_parameter("w", np.zeros((3, 4), np.int32))
        np.testing.assert_array_equal(session.read_param("w"), kept)


def test_norms_join_products_where_it_is_asked_for():
    g = Graph()
    x, w = g.input("x", (4, 8)), g.parameter("w", (8,))
    normed = x.rms_norm(w)
    g.set_outputs([normed @ g.parameter("p", (8, 2)), normed @ g.parameter("q", (8, 3)), normed])
    joined = darner.apply_rms_norm_matmul_fusions(g)
    assert [node.op.name for node in joined.outputs] == ["norm_matmul", "norm_matmul", "rms_norm"]
    values = {"x": RNG.normal(size=(4, 8)).astype(np.float32)}
    weights = {
        name: RNG.normal(size=leaf.shape).astype(np.float32) for name, leaf in g.parameters.items()
    }
    for found, wanted in zip(
        darner.run(joined, values, weights), darner.run(g, values, weights), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_group_norm_and_silu_become_one_op():
    g = Graph()
    x, w, b = g.input("x", (2, 4, 3, 3)), g.parameter("w", (4,)), g.parameter("b", (4,))
    g.set_outputs([x.group_norm(w, b, 2).silu()])
    joined = darner.apply_group_norm_silu_fusions(g)
    assert joined.outputs[0].op.name == "group_norm_silu"
    values = {"x": RNG.normal(size=(2, 4, 3, 3)).astype(np.float32)}
    weights = {
        "w": RNG.normal(size=4).astype(np.float32),
        "b": RNG.normal(size=4).astype(np.float32),
    }
    (found,), (wanted,) = darner.run(joined, values, weights), darner.run(g, values, weights)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_rules_are_applied_by_name_alone():
    g = Graph()
    x = g.input("x", (2, 4))
    g.set_outputs([x * x.sigmoid(), x.softmax(-1).log()])
    found = darner.optimizer.apply_rules(g, ["silu"])
    assert [node.op.name for node in found.nodes] == ["input", "silu", "softmax", "log"]
    with pytest.raises(darner.ArgumentError, match="there is no rule 'silo'"):
        darner.optimizer.apply_rules(g, ["silo"])
