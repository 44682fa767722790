"""What rotary embeddings promise: accuracy at any position, every spelling, the way back."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, ShapeError


class Desk:
    """A graph with made-up inputs, and the arrays behind them."""

    def __init__(self):
        self.graph, self.values = Graph("rope"), {}
        self.rng = np.random.default_rng(3)

    def give(self, *shape, dtype="f32"):
        return self.hold(self.rng.normal(size=shape), dtype)

    def hold(self, array, dtype):
        name = f"v{len(self.values)}"
        node = self.graph.input(name, np.shape(array), dtype)
        self.values[name] = np.asarray(array).astype(node.dtype.numpy)
        return node

    def run(self, *nodes, **options):
        self.graph.set_outputs(list(nodes))
        found = darner.run(self.graph.verify(), self.values, **options)
        return found[0] if len(nodes) == 1 else found


def angles(positions, n_rot, theta):
    return np.multiply.outer(positions, theta ** (-2 * np.arange(n_rot // 2) / n_rot))


# --------------------------------------------------------------------------- values


@pytest.mark.parametrize("theta", [1.5, 1e4, 5e5])
def test_tables_are_accurate_far_along_the_sequence(theta):
    positions = np.array([0, 1, 1000, 99_999, 1_048_575, 16_777_259, -99_999])
    desk = Desk()
    cos, sin = desk.run(*desk.hold(positions, "i32").rope_tables(64, theta))
    exact = angles(positions.astype(np.float64), 64, theta)
    assert cos.dtype == np.float32
    np.testing.assert_allclose(cos, np.cos(exact), atol=4e-7, rtol=0)
    np.testing.assert_allclose(sin, np.sin(exact), atol=4e-7, rtol=0)


def test_pairs_are_the_halves_of_each_head():
    g = Graph()
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 8)
    g.set_outputs([g.rope_with_offset(g.constant(x), 100.0, 1, 4)])
    found = darner.run(g)[0].reshape(2, 4)
    turns = np.exp(1j * np.array([1.0, 0.1]))
    pairs = (x.reshape(2, 4)[:, :2] + 1j * x.reshape(2, 4)[:, 2:]) * turns
    np.testing.assert_allclose(found, np.concatenate([pairs.real, pairs.imag], 1), rtol=1e-5)


def test_interleaved_pairs_are_neighbours():
    desk = Desk()
    x = desk.give(5, 8)
    apart = x.reshape((5, 4, 2)).transpose((0, 2, 1)).reshape((5, 8))
    halves = apart.rope(1e4, 8).reshape((5, 2, 4)).transpose((0, 2, 1)).reshape((5, 8))
    a, b = desk.run(x.rope(1e4, 8, interleaved=True), halves)
    np.testing.assert_array_equal(a, b)


def test_scores_depend_on_the_distance_alone():
    desk = Desk()
    q, k = desk.give(1, 16, dtype="f64"), desk.give(1, 16, dtype="f64")
    products = [
        (q.rope(1e4, 16, offset=start + 7) * k.rope(1e4, 16, offset=start)).sum()
        for start in (0, 5, 1000)
    ]
    found = desk.run(*products)
    np.testing.assert_allclose(found, found[0], rtol=1e-9)


def test_partial_rope_leaves_the_rest_alone():
    desk = Desk()
    x = desk.give(5, 16)
    part = desk.run(x.rope(1e4, 8, n_rot=4)).reshape(5, 2, 8)
    whole = desk.run(x.reshape((5, 2, 8)).slice((0, 0, 0), (5, 2, 4)).rope(1e4, layout="shd"))
    np.testing.assert_array_equal(part[..., :4], whole)
    np.testing.assert_array_equal(part[..., 4:], desk.values["v0"].reshape(5, 2, 8)[..., 4:])


def test_layouts_hold_the_same_numbers():
    desk = Desk()
    x = desk.give(2, 5, 3, 8)
    flat = x.reshape((2, 5, 24)).rope(1e3, 8, offset=2)
    apart = x.rope(1e3, layout="shd", offset=2)
    first = x.transpose((0, 2, 1, 3)).rope(1e3, layout="hsd", offset=2)
    a, b, c = desk.run(flat.reshape(x.shape), apart, first.transpose((0, 2, 1, 3)))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)


def test_each_of_a_batch_may_have_its_own_positions():
    desk = Desk()
    x = desk.give(2, 3, 8)
    positions = desk.hold([[0, 1, 2], [40, 41, 7]], "u32")
    both = desk.run(x.rope(1e4, 4, positions=positions))
    rows = np.array([[0, 1, 2], [40, 41, 7]])
    for b in range(2):
        for i in range(3):
            one = Graph()
            row = one.constant(desk.values["v0"][b, i : i + 1])
            one.set_outputs([one.rope_with_offset(row, 1e4, int(rows[b, i]), 4)])
            np.testing.assert_allclose(both[b, i], darner.run(one)[0][0], rtol=1e-6)


# --------------------------------------------------------------------------- spellings


def tables(desk, rows, pairs, dtype="f32"):
    exact = angles(np.arange(rows), 2 * pairs, 1e4)
    return desk.hold(np.cos(exact), dtype), desk.hold(np.sin(exact), dtype)


def test_tables_and_theta_are_one_rotation():
    desk = Desk()
    x = desk.give(2, 5, 16)
    cos, sin = tables(desk, 5, 4)
    a, b = desk.run(desk.graph.rope(x, cos, sin, 8), desk.graph.rope(x, 10000.0, 8))
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_form_with_tables_is_recognised_however_it_is_written():
    desk = Desk()
    x = desk.give(5, 16)
    cos, sin = tables(desk, 5, 4)
    g = desk.graph
    calls = [
        g.rope(x, cos, sin, 8),
        g.rope(x, cos, sin, head_dim=8),
        g.rope(x, cos=cos, sin=sin, head_dim=8),
        g.rope(x.id, cos.id, sin.id, 8),
        g.rope(x, cos, sin, 8, (5, 16)),
        g.rope(x, desk.values["v1"], desk.values["v2"], 8),
        x.rope(cos, sin, 8),
        g.rope_n(x, cos, sin, 8, 8),
        g.rope_with_tables(x, cos, sin, head_dim=8),
    ]
    assert {node.op.name for node in calls} == {"rope_with_tables"}
    found = desk.run(*calls)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_the_form_with_theta_takes_whole_numbers_and_a_stated_shape():
    g = Graph()
    x = g.input("x", (5, 16))
    assert g.rope(x, 10000, 8).attrs["theta"] == 10000.0
    assert g.rope(x, 10000, 8, (5, 16)).op.name == "rope"
    with pytest.raises(ShapeError, match="stated"):
        g.rope(x, 10000, 8, (5, 8))


def test_partial_tables_may_be_as_wide_as_half_a_head():
    desk = Desk()
    x = desk.give(5, 16)
    cos, sin = tables(desk, 5, 4)
    narrow = [table.slice((0, 0), (5, 2)) for table in (cos, sin)]
    a, b = desk.run(desk.graph.rope_n(x, cos, sin, 8, 4), desk.graph.rope_n(x, *narrow, 8, 4))
    np.testing.assert_array_equal(a, b)


def test_offsets_in_the_call_and_in_the_graph_agree():
    desk = Desk()
    x = desk.give(7, 16)
    tail = x.slice((3, 0), (7, 16))
    offset = desk.hold([3], "u32")
    whole, fixed, moving = desk.run(
        x.rope(1e4, 8),
        desk.graph.rope_with_offset(tail, 1e4, 3, 8),
        desk.graph.rope_dynamic_offset(tail, 1e4, offset, 8),
    )
    np.testing.assert_array_equal(whole[3:], fixed)
    np.testing.assert_array_equal(fixed, moving)


def test_the_result_has_the_type_of_the_operand_not_of_the_tables():
    desk = Desk()
    x = desk.give(5, 8, dtype="f16")
    cos, sin = tables(desk, 5, 4, "f64")
    assert desk.graph.rope(x, cos, sin, 8).dtype.name == "f16"
    assert x.rope(1e4, 8).dtype.name == "f16"
    a, b = desk.run(desk.graph.rope(x, cos, sin, 8), x.rope(1e4, 8))
    np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=2e-3, atol=1e-3)


def test_lengths_may_be_symbols():
    g = Graph()
    x = g.input("x", ("seq", 8))
    offset = g.input("offset", (1,), "u32")
    g.set_outputs([x.rope(1e4, 4), g.rope_dynamic_offset(x, 1e4, offset, 4)])
    values = {"x": np.random.default_rng(0).normal(size=(6, 8)), "offset": np.array([0])}
    a, b = darner.run(g, values)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(darner.run(darner.expand(g), values)[0], a)


# --------------------------------------------------------------------------- the way back


def test_turning_back_undoes_the_turn():
    desk = Desk()
    x = desk.give(2, 5, 16)
    cos, sin = tables(desk, 5, 4)
    there = desk.graph.rope_n(x, cos, sin, 8, 4)
    back = desk.graph.rope_backward(there, cos, sin, 8, 4)
    again = desk.graph.rope_grad(x.rope(50.0, 8, offset=4), 50.0, 8, offset=4)
    a, b = desk.run(back, again)
    np.testing.assert_allclose(a, desk.values["v0"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b, desk.values["v0"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_is_the_transpose(interleaved):
    desk = Desk()
    x, dy = desk.give(5, 12, dtype="f64"), desk.give(5, 12, dtype="f64")
    options = {"n_rot": 4, "interleaved": interleaved, "offset": 9}
    forward = (x.rope(1e4, 6, **options) * dy).sum()
    backward = (x * dy.rope(1e4, 6, inverse=True, **options)).sum()
    a, b = desk.run(forward, backward)
    np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_gradient_follows_the_positions_of_its_forward_pass():
    desk = Desk()
    x = desk.give(3, 8)
    positions = desk.hold([4, 0, 9], "i32")
    there = x.rope(1e4, 8, positions=positions)
    back = desk.graph.rope_grad(there, 1e4, 8, positions=positions)
    np.testing.assert_allclose(desk.run(back), desk.values["v0"], rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x.rope(0.0, 8), ArgumentError, "theta 0.0 must be above 0"),
        (lambda x: x.rope(-1.0, 8), ArgumentError, "theta -1.0 must be above 0"),
        (lambda x: x.rope(1e4, 5), ArgumentError, "head_dim 5 is odd"),
        (lambda x: x.rope(1e4, 0), ArgumentError, "head_dim must be at least 1"),
        (lambda x: x.rope(1e4), ArgumentError, "head_dim is missing.*layout='shd'"),
        (lambda x: x.rope(1e4, 6), ShapeError, "20, is not heads of 6"),
        (lambda x: x.rope(1e4, 4, n_rot=6), ArgumentError, "n_rot 6 is more than head_dim 4"),
        (lambda x: x.rope(1e4, 10, n_rot=3), ArgumentError, "n_rot 3 must be even"),
        (lambda x: x.rope(1e4, 10, layout="sdh"), ArgumentError, "'flat', 'shd', 'hsd'"),
        (lambda x: x.rope(1e4, 10, layout="hsd"), ShapeError, "last axis of x is 20"),
        (lambda x: x.rope(1e4, 20, layout="shd"), ShapeError, "at least 3 axes"),
        (lambda x: x.sum(0).rope(1e4, 10), ShapeError, "x has rank 1"),
        (lambda x: x.rope(x, x, 20), ShapeError, "cos has 20 columns for 10 pairs"),
        (lambda x: x.rope(x), ArgumentError, "needs one of sines"),
        (lambda x: x.rope_tables(4), DTypeError, "positions must be integers"),
        (lambda x: x.graph.iota((3,)).rope_tables(4, dtype="i32"), DTypeError, "i32"),
        (lambda x: x.axial_rope2d(3, 1, 10, 2), ArgumentError, "head_dim 10 is not divisible by 4"),
        (lambda x: x.axial_rope2d(3, 1, 4, 2), ShapeError, "num_heads \\* head_dim = 8"),
        (lambda x: x.axial_rope2d(2, 1, 4, 5), ShapeError, "x has 3 rows"),
        (lambda x: x.axial_rope2d(3, 1, 4, 5, -2.0), ArgumentError, "theta"),
    ],
)
def test_mistakes_are_named(call, error, text):
    g = Graph()
    with pytest.raises(error, match=text):
        call(g.input("x", (3, 20)))


def test_positions_need_an_entry_for_each_row():
    g = Graph()
    x = g.input("x", (2, 3, 8))
    for shape in ((1,), (4,), (3, 3), (2, 2, 3), ()):
        with pytest.raises(ShapeError, match="x needs 3 of them"):
            x.rope(1e4, 8, positions=g.input(f"positions{shape}", shape, "i32"))
    with pytest.raises(DTypeError, match="positions must be integers"):
        x.rope(1e4, 8, positions=g.input("float", (3,)))
    with pytest.raises(ShapeError, match=r"offset \(2,\) must be one integer"):
        g.rope_dynamic_offset(x, 1e4, g.input("two", (2,), "u32"), 8)


def test_tables_need_a_row_for_each_position_and_must_agree():
    g = Graph()
    x = g.input("x", (2, 3, 8))
    cos, short = g.input("cos", (3, 4)), g.input("short", (2, 4))
    with pytest.raises(ShapeError, match=r"cos \(3, 4\) and sin \(2, 4\) differ"):
        g.rope(x, cos, short, 8)
    with pytest.raises(ShapeError, match="x needs 3 of them"):
        g.rope(x, short, short, 8)
    with pytest.raises(DTypeError, match="cos must be float"):
        g.rope_with_tables(x, g.iota((3, 4)), g.iota((3, 4)), head_dim=8)
