"""Rules of shapes, joins, indices and reductions: what they join, and what they must leave alone."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.optimizer.declare import RULES
from darner.optimizer.engine import Engine
from darner.optimizer.region import ingest, whole
from darner.optimizer.saturate import Budget
from tests.optimizer.firing import fired, saturated
from tests.zoo import llama, trained

FAMILIES = ("shapes", "broadcasts", "views", "joining", "indexing", "reductions", "statistics")
OWN = tuple(name for name, rule in RULES.items() if rule.family in FAMILIES)


def graph_of(write):
    graph = Graph("written")
    made = write(graph)
    graph.set_outputs(made if isinstance(made, list) else [made])
    return graph


def forms(write, names=OWN):
    """The ops at the root of every form that the first output was found to have."""
    graph = graph_of(write)
    egraph = saturated(graph, names)
    root = egraph.classes[_place(graph, egraph)]
    return {egraph.nodes[i].op.name for i in egraph.members()[root] if egraph.nodes[i].op}


def _place(graph, egraph):
    """The e-node of the first output."""
    origin = graph.outputs[0].id
    return next(i for i, node in enumerate(egraph.nodes) if node.origin == origin and not node.rule)


def are_one(write, names=OWN):
    """Whether all outputs were found to be one value."""
    graph = graph_of(write)
    engine = Engine([RULES[name] for name in names])
    egraph, place = ingest(engine, graph, whole(graph))
    egraph.saturate(Budget())
    return len({egraph.classes[place[node.id]] for node in graph.outputs}) == 1


# --------------------------------------------------------------------------- spellings become one


def test_all_spellings_of_a_mean_with_its_axis_kept_are_one_value():
    def write(g):
        x = g.input("x", (4, 6))
        return [
            x.mean(-1, keepdims=True),
            x.sum(-1, keepdims=True) / 6.0,
            x.sum(-1, keepdims=True) * (1 / 6),
            (x.sum(-1) / 6.0).reshape((4, 1)),
            (x * (1 / 6)).sum(-1).unsqueeze(-1),
            x.transpose().mean(0).unsqueeze(-1),
        ]

    assert are_one(write, tuple(RULES))


def test_a_reduction_of_a_flattened_tensor_is_that_of_the_tensor():
    def write(g):
        x = g.input("x", (2, 3, 4))
        return [x.sum(), x.flatten().sum(), x.sum(-1).sum(), x.reshape((6, 4)).sum(1).sum(0)]

    assert are_one(write)


def test_a_reshape_that_adds_axes_of_size_1_reaches_the_reduction_behind_functions():
    def write(g):
        x = g.input("x", (4, 6))
        late = (x.square().sum(-1) + 1e-5).rsqrt().unsqueeze(-1)
        return [late, (x.square().sum(-1, keepdims=True) + 1e-5).rsqrt()]

    assert are_one(write)


def test_transposes_on_both_sides_of_a_function_cancel():
    def write(g):
        x = g.input("x", (4, 6))
        return [(x.transpose().silu() * 2.0).transpose(), x.silu() * 2.0]

    assert are_one(write)


def test_the_bias_of_a_flattened_linear_layer_moves_before_the_reshape():
    def write(g):
        x, w = g.input("x", (2, 5, 4)), g.parameter("w", (4, 3))
        b = g.parameter("b", (3,))
        flat = x.reshape((10, 4)) @ w
        return [flat.reshape((2, 5, 3)) + b, (flat + b).reshape((2, 5, 3))]

    assert are_one(write)


def test_the_gradient_of_three_slices_is_a_concatenation():
    graph = Graph("pieces")
    x = graph.parameter("x", (4, 9))
    a, b, c = x[:, :3], x[:, 3:6], x[:, 6:]
    graph.set_outputs([(a.exp() + b.sin() * c.tanh()).sum()])
    gradients = darner.value_and_grad(graph)
    assert any(node.op.name == "pad" for node in gradients.nodes)
    egraph = saturated(gradients, OWN)
    joined = [node for node in egraph.nodes if node.op is not None and node.op.name == "concat"]
    assert any(len(node.children) == 3 and node.type.shape == (4, 9) for node in joined)


# --------------------------------------------------------------------------- what must stay


def _x(g, *shape, dtype="f32"):
    return g.input("x", shape, dtype)


STAYS = {
    "a wrong count": ("mean from sum over count", lambda g: _x(g, 4, 6).sum(-1) / 5.0),
    "a wrong reciprocal": (
        "mean from sum times 1 over count",
        lambda g: _x(g, 4, 6).sum(-1) * 0.1667,
    ),
    "a count that broadcasts": (
        "mean from sum over count",
        lambda g: _x(g, 4, 6).sum(-1) / g.constant(np.full((3, 4), 6, np.float32)),
    ),
    "integers over their count": (
        "mean from sum over count",
        lambda g: _x(g, 4, 6, dtype="i32").sum(-1) / 6.0,
    ),
    "small integers summed over one element": (
        "sum over axes of size 1",
        lambda g: _x(g, 4, 1, dtype="i8").sum(-1),
    ),
    "a broadcast that gives the shape": (
        "add of a broadcast",
        lambda g: _x(g, 3).broadcast_to((0, 3)).sum(0),
    ),
    "new axes that are not in front": (
        "add of new leading axes",
        lambda g: g.input("y", (3, 4)) + _x(g, 3).reshape((3, 1)),
    ),
    "slices that overlap": (
        "concat of 2 neighbouring slices",
        lambda g: (lambda x: g.concat([x[:3], x[2:]]))(_x(g, 5)),
    ),
    "slices along another axis": (
        "concat of 2 neighbouring slices",
        lambda g: (lambda x: g.concat([x[:, :2], x[:, 2:]], 0))(_x(g, 3, 4)),
    ),
    "slices in the wrong order": (
        "concat of 2 neighbouring slices",
        lambda g: (lambda x: g.concat([x[2:], x[:2]]))(_x(g, 4)),
    ),
    "paddings that overlap": (
        "sum of two paddings that fill the whole",
        lambda g: _x(g, 3).pad(((0, 1),)) + g.input("y", (3,)).pad(((1, 0),)),
    ),
    "paddings with ones": (
        "sum of two paddings that fill the whole",
        lambda g: _x(g, 2).pad(((0, 2),), 1.0) + g.input("y", (2,)).pad(((2, 0),), 1.0),
    ),
    "paddings on two axes": (
        "sum of two paddings that fill the whole",
        lambda g: _x(g, 2, 2).pad(((0, 2), (0, 2))) + g.input("y", (2, 2)).pad(((2, 0), (2, 0))),
    ),
    "padding that shifts": (
        "padding with nothing",
        lambda g: _x(g, 4).pad(((1, -1),)),
    ),
    "paddings with different numbers": (
        "padding of padding",
        lambda g: _x(g, 4).pad(1, 0.0).pad(1, 1.0),
    ),
    "a concat along another axis": (
        "concat of a concat then more",
        lambda g: g.concat(
            [g.concat([_x(g, 2, 2), g.input("y", (2, 2))], 1), g.input("z", (1, 4))]
        ),
    ),
    "known indices with a gap": (
        "gather of known neighbours",
        lambda g: g.gather(_x(g, 8), g.constant(np.asarray([1, 2, 4], np.int32))),
    ),
    "known indices backwards": (
        "gather of known neighbours",
        lambda g: g.gather(_x(g, 8), g.constant(np.asarray([3, 2, 1], np.int32))),
    ),
    "known indices outside": (
        "gather of known neighbours",
        lambda g: g.gather(_x(g, 3), g.constant(np.asarray([1, 2, 3], np.int32))),
    ),
    "a count that turns round": (
        "cast of iota",
        lambda g: g.iota((300,)).cast("u8"),
    ),
    "a shift that differs along the axis": (
        "softmax of a shift",
        lambda g: (_x(g, 3, 4) + g.input("y", (4,))).softmax(-1),
    ),
    "a shift that widens": (
        "softmax of a shift",
        lambda g: (_x(g, 4) + g.input("y", (3, 1))).softmax(-1),
    ),
    "softmax along another axis": (
        "argmax of softmax",
        lambda g: _x(g, 3, 4).softmax(0).argmax(1),
    ),
    "softmax and the whole": ("argmax of softmax", lambda g: _x(g, 3, 4).softmax(1).argmax()),
    "a negative multiple": ("argmax of a positive multiple", lambda g: (_x(g, 4) * -0.5).argmax()),
    "integers turned round": ("argmax of a negative", lambda g: (-_x(g, 4, dtype="i32")).argmax()),
    "half of a reshaped axis": (
        "sum of reshape",
        lambda g: _x(g, 6).reshape((2, 3)).sum(1),
    ),
    "a 16-bit sum of fractions": (
        "sum of a multiple",
        lambda g: (_x(g, 4, 6, dtype="f16") * 0.01).sum(-1),
    ),
    "a sum of no fractions of zero": (
        "sum of a fraction",
        lambda g: (_x(g, 0, 3) / g.input("zero", ())).sum(0),
    ),
    "an axis put back in another place": (
        "max with its axes put back",
        lambda g: _x(g, 3, 4).max(1).reshape((1, 3)),
    ),
    "variance around another mean": (
        "var from distances to the mean",
        lambda g: (lambda x: (x - x.mean(0, keepdims=True)).square().mean(1))(_x(g, 3, 4)),
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_a_rule_leaves_alone(case):
    name, write = STAYS[case]
    assert name in RULES
    assert fired(graph_of(write), (name,))[name] == 0


def test_a_slice_moves_past_a_sum_and_a_join_only_upwards():
    found = forms(lambda g: (_x(g, 4, 6) + g.input("y", (4, 6)))[1:])
    assert found == {"slice", "add"}


def test_a_matrix_and_its_transpose_stay_two_values():
    def write(g):
        x = _x(g, 3, 3)
        return [x, x.transpose(), x.transpose().exp(), x.exp()]

    graph = graph_of(write)
    egraph = saturated(graph, OWN)
    assert len(egraph.members()) == 4


# --------------------------------------------------------------------------- special points


@pytest.mark.parametrize("values", [[1.0, -2.0, 3.0, -2.0], [np.nan, 1.0, np.nan, -5.0]])
def test_the_largest_of_negatives_is_the_first_smallest_on_ties_and_nan(values):
    graph = graph_of(lambda g: [(-_x(g, 4)).argmax(), g.node(0).argmin()])
    left, right = darner.run(graph, {"x": np.asarray(values, np.float32)})
    assert left == right == np.argmin(values)
    assert fired(graph, ("argmax of a negative",)) == {"argmax of a negative": 1}


def test_a_block_that_begins_outside_is_cut_where_the_op_would_have_moved_it():
    def write(g):
        x = _x(g, 5, 6)
        starts = g.constant(np.asarray([-3, 9], np.int32))
        return [x.dynamic_slice(starts, (2, 4)), x[0:2, 2:6]]

    graph = graph_of(write)
    left, right = darner.run(graph, {"x": np.arange(30, dtype=np.float32).reshape(5, 6)})
    assert (left == right).all()
    assert are_one(write)


def test_a_shift_that_is_the_same_along_the_axis_leaves_no_trace_in_softmax():
    def write(g):
        x, row = _x(g, 3, 4), g.input("row", (3, 1))
        return [(row + x).softmax(-1), x.softmax(-1), (x + row * 2.0).softmax(-1)]

    assert are_one(write)


# --------------------------------------------------------------------------- symbols and growth


def test_sizes_with_names_are_no_obstacle():
    n = darner.symbol("n")

    def write(g):
        x, y = g.input("x", (n, 4)), g.input("y", (n, 4))
        joined = g.concat([x, y], 1)
        wide = g.input("b", (4,)).broadcast_to((n, 4))
        heads = x.reshape((n, 2, 2)).transpose((1, 0, 2))
        return [
            joined[:, :4] + wide,
            joined[:, 4:],
            g.concat([x, y], 0)[:2],
            heads.transpose((1, 0, 2)).reshape((n, 4)),
            x.sum(0) / 4.0,
            (x + y.max(-1, keepdims=True)).softmax(-1),
            wide.sum(0),
            x.reshape((4 * n,)).sum(),
            x.unsqueeze(0).transpose((0, 2, 1)),
            x.mean(0).unsqueeze(0),
            g.gather(x, g.iota((n,))),
            x.pad(((0, 0), (1, 1)))[:, 1:5],
        ]

    found = fired(graph_of(write), OWN)
    for name in (
        "slice of one of 2 parts",
        "add of a broadcast",
        "reshape of reshape",
        "softmax of a shift",
        "mean with its axes put back",
        "gather in order",
        "slice inside padding",
    ):
        assert found[name], name
    assert not found["mean from sum over count"]
    assert not found["sum of broadcast"]


@pytest.mark.parametrize("spelling", ["composite", "primitive"])
def test_shape_rules_alone_stay_small_on_a_model(spelling):
    graph = trained(llama, spelling=spelling)
    egraph = saturated(graph, OWN)
    assert egraph.limit is None
    assert len(egraph.nodes) < 1.5 * len(graph.nodes)
