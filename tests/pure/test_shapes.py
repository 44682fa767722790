"""Builders of shapes, fills and reductions against NumPy; symbolic sizes; what is refused, and how it is said."""

import enum
import math

import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, RunError, ShapeError, symbol
from darner.testing import assert_close


def counted(*shape):
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def value(build, *arrays, **bindings):
    """What a function of a graph and its inputs computes."""
    graph = Graph()
    nodes = [graph.input(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
    answer = build(graph, *nodes)
    several = isinstance(answer, list)
    graph.set_outputs(answer if several else [answer])
    results = darner.run(graph.verify(), {f"x{i}": array for i, array in enumerate(arrays)})
    return results if several else results[0]


CUBE = counted(2, 3, 4)
THIN = counted(1, 3, 1)

SAME_AS_NUMPY = {
    "unsqueeze": (lambda g, x: x.unsqueeze(1), lambda a: a[:, None], CUBE),
    "unsqueeze at the end": (lambda g, x: x.unsqueeze(-1), lambda a: a[..., None], CUBE),
    "unsqueeze twice": (lambda g, x: x.unsqueeze((0, -1)), lambda a: a[None, ..., None], CUBE),
    "expand_dims": (lambda g, x: g.expand_dims(x, 0), lambda a: a[None], CUBE),
    "squeeze": (lambda g, x: x.squeeze(), np.squeeze, THIN),
    "squeeze one axis": (lambda g, x: x.squeeze(-1), lambda a: a[..., 0], THIN),
    "squeeze two axes": (lambda g, x: x.squeeze((0, 2)), lambda a: a[0, :, 0], THIN),
    "flatten": (lambda g, x: x.flatten(), np.ravel, CUBE),
    "flatten the last": (lambda g, x: x.flatten(1), lambda a: a.reshape(2, 12), CUBE),
    "flatten the first": (lambda g, x: x.flatten(0, 1), lambda a: a.reshape(6, 4), CUBE),
    "flatten a scalar": (lambda g, x: x.flatten(), np.ravel, np.float32(3).reshape(())),
    "swapaxes": (lambda g, x: x.swapaxes(0, -1), lambda a: a.swapaxes(0, -1), CUBE),
    "moveaxis": (lambda g, x: x.moveaxis(0, -1), lambda a: np.moveaxis(a, 0, -1), CUBE),
    "moveaxis of two": (
        lambda g, x: x.moveaxis((0, 1), (2, 0)),
        lambda a: np.moveaxis(a, (0, 1), (2, 0)),
        CUBE,
    ),
    "reshape_": (lambda g, x: g.reshape_(x, [4, -1]), lambda a: a.reshape(4, 6), CUBE),
    "transpose_": (lambda g, x: g.transpose_(x, [1, 0, 2]), lambda a: a.transpose(1, 0, 2), CUBE),
    "expand": (
        lambda g, x: x.expand((5, 2, -1, 4)),
        lambda a: np.broadcast_to(a, (5, 2, 3, 4)),
        counted(2, 3, 1),
    ),
    "tile": (lambda g, x: x.tile((2, 1, 3)), lambda a: np.tile(a, (2, 1, 3)), CUBE),
    "tile by one number": (lambda g, x: x.tile(2), lambda a: np.tile(a, 2), CUBE),
    "tile to more axes": (
        lambda g, x: x.tile((2, 1, 1, 1)),
        lambda a: np.tile(a, (2, 1, 1, 1)),
        CUBE,
    ),
    "tile by nothing": (lambda g, x: x.tile((0, 1, 1)), lambda a: np.tile(a, (0, 1, 1)), CUBE),
    "repeat": (lambda g, x: x.repeat(3, 1), lambda a: np.repeat(a, 3, 1), CUBE),
    "repeat flat": (lambda g, x: x.repeat(2), lambda a: np.repeat(a, 2), CUBE),
    "repeat never": (lambda g, x: x.repeat(0, -1), lambda a: np.repeat(a, 0, -1), CUBE),
    "roll": (lambda g, x: x.roll(2, 1), lambda a: np.roll(a, 2, 1), CUBE),
    "roll far back": (lambda g, x: x.roll(-9, -1), lambda a: np.roll(a, -9, -1), CUBE),
    "roll flat": (lambda g, x: x.roll(5), lambda a: np.roll(a, 5), CUBE),
    "roll two axes": (
        lambda g, x: x.roll((1, -1), (0, 2)),
        lambda a: np.roll(a, (1, -1), (0, 2)),
        CUBE,
    ),
    "roll of nothing": (lambda g, x: x.roll(1, 0), lambda a: a, counted(0, 2)),
    "diagonal": (lambda g, x: x.diagonal(), lambda a: np.diagonal(a, 0, -2, -1), CUBE),
    "diagonal above": (lambda g, x: x.diagonal(2), lambda a: np.diagonal(a, 2, -2, -1), CUBE),
    "diagonal below": (lambda g, x: x.diagonal(-1), lambda a: np.diagonal(a, -1, -2, -1), CUBE),
    "diagonal outside": (lambda g, x: x.diagonal(7), lambda a: np.diagonal(a, 7, -2, -1), CUBE),
    "trace": (lambda g, x: x.trace(), lambda a: np.trace(a, 0, -2, -1), CUBE),
    "narrow": (lambda g, x: x.narrow(1, 1, 2), lambda a: a[:, 1:3], CUBE),
    "narrow_": (lambda g, x: g.narrow_(x, 2, 0, 3), lambda a: a[..., :3], CUBE),
    "take": (lambda g, x: x.take(np.array([1, 1, 0]), 1), lambda a: a.take([1, 1, 0], 1), CUBE),
    "take flat": (lambda g, x: x.take(np.array([[9, 3]])), lambda a: a.take([[9, 3]]), CUBE),
    "sum_rows": (lambda g, x: x.sum_rows(), lambda a: a.sum(0), counted(3, 4)),
    "sum_all": (lambda g, x: x.sum_all(), lambda a: a.sum().reshape(1), CUBE),
    "mean_all": (lambda g, x: x.mean_all(), lambda a: a.mean().reshape(1), CUBE),
    "count_nonzero": (
        lambda g, x: x.count_nonzero(1),
        lambda a: np.count_nonzero(a, 1).astype(np.int32),
        CUBE % 3,
    ),
    "axis by name": (lambda g, x: x.sum(axis=1), lambda a: a.sum(1), CUBE),
    "keep_dim": (
        lambda g, x: g.mean(x, [1], keep_dim=True),
        lambda a: a.mean(1, keepdims=True),
        CUBE,
    ),
}


@pytest.mark.parametrize("name", SAME_AS_NUMPY)
def test_builder_gives_what_numpy_gives(name):
    build, wanted, array = SAME_AS_NUMPY[name]
    np.testing.assert_array_equal(value(build, array), wanted(array), strict=True)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "prod"])
def test_reduce_takes_its_kind_by_name_or_enum(kind):
    class ReduceOp(enum.Enum):
        KIND = kind.capitalize()

    for op in (kind, kind.upper(), ReduceOp.KIND):
        found = value(lambda g, x, op=op: g.reduce(x, op, [0, 2], True, (1, 3, 1)), CUBE)
        assert_close(found, getattr(np, kind)(CUBE, (0, 2), keepdims=True), "f32")


def test_reduce_by_an_unknown_kind_names_the_known_ones():
    with pytest.raises(ArgumentError, match=r"no reduction is called 'median'.*sum, mean, max"):
        Graph().input("x", (3,)).reduce("median")


# --------------------------------------------------------------------------- several results


def test_split_gives_equal_pieces_or_pieces_of_given_sizes():
    array = counted(2, 6)
    for sections, at in ((3, [2, 4]), ([1, 0, 5], [1, 1])):
        found = value(lambda g, x, s=sections: x.split(s, axis=1), array)
        for a, b in zip(found, np.split(array, at, 1), strict=True):
            np.testing.assert_array_equal(a, b)


def test_chunk_leaves_a_smaller_last_piece():
    found = value(lambda g, x: x.chunk(3, axis=-1), counted(2, 7))
    assert [piece.shape for piece in found] == [(2, 3), (2, 3), (2, 1)]
    np.testing.assert_array_equal(np.concatenate(found, 1), counted(2, 7))
    assert len(value(lambda g, x: x.chunk(4), counted(5, 1))) == 3


def test_stack_joins_along_a_new_axis():
    a, b = counted(2, 3), counted(2, 3) + 10
    for axis in (0, 1, -1):
        found = value(lambda g, x, y, axis=axis: g.stack([x, y], axis), a, b)
        np.testing.assert_array_equal(found, np.stack([a, b], axis))


def test_meshgrid_agrees_with_numpy_in_both_orders():
    a, b, c = counted(2), counted(3), counted(1)
    for order in ("ij", "xy"):
        found = value(lambda g, *x, order=order: g.meshgrid(list(x), order), a, b, c)
        for one, other in zip(found, np.meshgrid(a, b, c, indexing=order), strict=True):
            np.testing.assert_array_equal(one, other)


def test_flat_concat_and_splits_are_inverse_over_channels():
    a, b = counted(2, 3, 4), 100 + counted(2, 1, 4)
    joined = value(lambda g, x, y: g.concat(x, y, 2, 3, 1, 4), a.ravel(), b.ravel())
    np.testing.assert_array_equal(joined, np.concatenate([a, b], 1).ravel())
    first, second = value(lambda g, x: [g.split_a(x, 2, 3, 1, 4), g.split_b(x, 2, 3, 1, 4)], joined)
    np.testing.assert_array_equal(first, a.ravel())
    np.testing.assert_array_equal(second, b.ravel())


# --------------------------------------------------------------------------- fills

FILLS = {
    "full": (lambda g: g.full((2, 3), 1.5), np.full((2, 3), 1.5, np.float32)),
    "full of integers": (lambda g: g.full(3, 7), np.full(3, 7, np.int32)),
    "full of a type": (lambda g: g.full((2,), 7, "f64"), np.full(2, 7.0)),
    "full of infinity": (lambda g: g.full((2,), -math.inf), np.full(2, -np.inf, np.float32)),
    "zeros": (lambda g: g.zeros((2, 0)), np.zeros((2, 0), np.float32)),
    "ones": (lambda g: g.ones((), "i64"), np.ones((), np.int64)),
    "eye": (lambda g: g.eye(3), np.eye(3, dtype=np.float32)),
    "eye of a rectangle": (lambda g: g.eye(2, 4, "bool"), np.eye(2, 4, dtype=bool)),
    "arange": (lambda g: g.arange(5), np.arange(5, dtype=np.int32)),
    "arange between": (lambda g: g.arange(3, 12, 4), np.arange(3, 12, 4, np.int32)),
    "arange down": (lambda g: g.arange(5, 0, -2), np.arange(5, 0, -2, np.int32)),
    "arange of nothing": (lambda g: g.arange(4, 2), np.arange(4, 2, dtype=np.int32)),
    "arange of fractions": (lambda g: g.arange(0.5, 2, 0.5), np.arange(0.5, 2, 0.5, np.float32)),
    "arange of bytes": (
        lambda g: g.arange(0, 255, 2, dtype="u8"),
        np.arange(0, 255, 2).astype(np.uint8),
    ),
    "arange past f16": (
        lambda g: g.arange(0, 6000, 4, dtype="f16"),
        np.arange(0, 6000, 4).astype(np.float16),
    ),
    "arange of large unsigned": (
        lambda g: g.arange(3_000_000_000, 3_000_000_003, dtype="u32"),
        np.arange(3_000_000_000, 3_000_000_003, dtype=np.uint32),
    ),
    "linspace of nothing": (lambda g: g.linspace(0, 1, 0), np.zeros(0, np.float32)),
    "linspace of one": (lambda g: g.linspace(2, 5, 1), np.array([2], np.float32)),
}


@pytest.mark.parametrize("name", FILLS)
def test_fill_gives_what_numpy_gives(name):
    build, wanted = FILLS[name]
    np.testing.assert_array_equal(value(lambda g: build(g)), wanted, strict=True)


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_linspace_ends_exactly_where_it_should(count):
    found = value(lambda g: g.linspace(-0.1, 0.7, count))
    assert_close(found, np.linspace(-0.1, 0.7, count), "f32")
    assert found[0] == np.float32(-0.1)
    assert found[-1] == np.float32(0.7)


def test_fills_like_a_tensor_take_its_shape_and_type():
    found = value(lambda g, x: [x.zeros_like(), x.ones_like("i32"), x.full_like(2)], counted(2, 3))
    assert [(a.dtype, a.tolist()) for a in found] == [
        (np.float32, [[0] * 3] * 2),
        (np.int32, [[1] * 3] * 2),
        (np.float32, [[2] * 3] * 2),
    ]


def test_fill_is_one_number_however_large_it_is():
    graph = Graph()
    graph.full((1000, 1000, 1000), 3.0)
    assert [node.type.size for node in graph.nodes if node.op.name == "constant"] == [1]


# --------------------------------------------------------------------------- special values


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ([-math.inf, -math.inf], -math.inf),
        ([math.inf, 1.0], math.inf),
        ([math.inf, -math.inf], math.inf),
        ([math.nan, 1.0], math.nan),
        ([1e4, 1e4], 1e4 + math.log(2)),
        ([-1e4, -math.inf], -1e4),
    ],
    ids=repr,
)
def test_logsumexp_of_extremes(row, wanted):
    found = value(lambda g, x: x.logsumexp(), np.array(row, np.float32))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_mean_and_variance_of_nothing_are_nan():
    found = value(lambda g, x: [x.mean(1), x.var(1), x.std()], counted(2, 0))
    assert all(np.isnan(a).all() for a in found)
    assert [a.shape for a in found] == [(2,), (2,), ()]


def test_sorting_puts_nan_above_everything():
    array = np.array([1, np.nan, -np.inf, np.inf], np.float32)
    up, down, (top, place) = (
        value(lambda g, x: x.sort(), array),
        value(lambda g, x: x.sort(descending=True), array),
        value(lambda g, x: list(x.top_k(2)), array),
    )
    np.testing.assert_array_equal(up, [-np.inf, 1, np.inf, np.nan])
    np.testing.assert_array_equal(down, up[::-1])
    np.testing.assert_array_equal(top, [np.nan, np.inf])
    assert place.tolist() == [1, 3]


def test_equal_elements_keep_their_order_when_sorted():
    array = np.array([2, 1, 2, 1], np.int32)
    assert value(lambda g, x: x.argsort(), array).tolist() == [1, 3, 0, 2]
    assert value(lambda g, x: x.argsort(descending=True), array).tolist() == [0, 2, 1, 3]
    assert value(lambda g, x: x.top_k(3)[1], array).tolist() == [0, 2, 1]


# --------------------------------------------------------------------------- symbolic sizes


def run_symbolic(build, array, shape=("seq", 4)):
    """Run with the size left open until the value comes, and with it bound before."""
    graph = Graph()
    graph.set_outputs([build(graph, graph.input("x", shape))])
    late = darner.run(graph, {"x": array})[0]
    np.testing.assert_array_equal(late, darner.run(graph.bind(seq=array.shape[0]), {"x": array})[0])
    return late


SYMBOLIC = {
    "reshape by -1": (lambda g, x: x.reshape((-1, 2)), lambda a: a.reshape(-1, 2)),
    "reshape by arithmetic": (
        lambda g, x: x.reshape((2 * symbol("seq"), 2)),
        lambda a: a.reshape(-1, 2),
    ),
    "flatten": (lambda g, x: x.flatten(), np.ravel),
    "unsqueeze": (lambda g, x: x.unsqueeze(0).squeeze(0), lambda a: a),
    "tile": (lambda g, x: x.tile((2, 1)), lambda a: np.tile(a, (2, 1))),
    "repeat": (lambda g, x: x.repeat(2, 0), lambda a: np.repeat(a, 2, 0)),
    "roll": (lambda g, x: x.roll(2, 0), lambda a: np.roll(a, 2, 0)),
    "roll back": (lambda g, x: x.roll(-1, 0), lambda a: np.roll(a, -1, 0)),
    "split": (lambda g, x: g.stack(x.flatten().split(2)), lambda a: a.reshape(2, -1)),
    "zeros": (lambda g, x: x + g.zeros(("seq", 4)), lambda a: a),
    "full_like": (lambda g, x: x.full_like(2), lambda a: np.full_like(a, 2)),
    "arange": (
        lambda g, x: g.arange(symbol("seq")).reshape((-1, 1)) * x.ones_like(),
        lambda a: np.arange(len(a), dtype=np.float32)[:, None] * np.ones_like(a),
    ),
    "tril": (lambda g, x: x.tril(), np.tril),
    "one_hot": (
        lambda g, x: x.argmax(0).one_hot(symbol("seq")),
        lambda a: np.eye(len(a), dtype=np.float32)[a.argmax(0)],
    ),
    "mean": (lambda g, x: x.mean(0), lambda a: a.mean(0)),
    "mean of all": (lambda g, x: x.mean(), np.mean),
    "var": (lambda g, x: x.var(0, correction=1), lambda a: a.var(0, ddof=1)),
    "logsumexp": (
        lambda g, x: x.logsumexp(0),
        lambda a: np.log(np.exp(a.astype(np.float64)).sum(0)),
    ),
    "pad_with edge": (
        lambda g, x: x.pad_with(((2, 1), (0, 0)), "edge"),
        lambda a: np.pad(a, ((2, 1), (0, 0)), "edge"),
    ),
    "pad_with reflect": (
        lambda g, x: x.pad_with(((2, 1), (0, 0))),
        lambda a: np.pad(a, ((2, 1), (0, 0)), "reflect"),
    ),
    "pad_with wrap": (
        lambda g, x: x.pad_with(((2, 1), (0, 0)), "wrap"),
        lambda a: np.pad(a, ((2, 1), (0, 0)), "wrap"),
    ),
    "windows": (
        lambda g, x: x.transpose().windows((2,)),
        lambda a: np.lib.stride_tricks.sliding_window_view(a.T, 2, 1),
    ),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_size_is_computed_with_before_it_is_known(name):
    build, wanted = SYMBOLIC[name]
    array = counted(3, 4)
    assert_close(run_symbolic(build, array), wanted(array), "f32", array.size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_reflections_go_on_as_far_as_the_padding_does(size):
    array = counted(size)
    for low, high in [(0, 1), (3, 0), (4, 4), (1, 9), (20, 5), (6, 31)]:
        graph = Graph()
        graph.set_outputs([graph.input("x", (size,)).pad_with(((low, high),), "reflect")])
        (found,) = darner.run(graph, {"x": array})
        np.testing.assert_array_equal(found, np.pad(array, (low, high), "reflect"))
        # Each part of a concat is computed once for an element: reflections of reflections would double them.
        reads = [len(n.inputs) for n in darner.expand(graph).nodes if n.op.name == "concat"]
        assert sum(reads) <= 4 + (low + high) // size


def test_reshape_that_only_some_sizes_fill_is_refused():
    x = Graph().input("x", ("seq", 4))
    with pytest.raises(ShapeError, match=r"4\*seq elements do not divide into \(-1, 3\)"):
        x.reshape((-1, 3))
    with pytest.raises(ShapeError, match=r"4\*seq elements do not fill \(seq, 5\)"):
        x.reshape(("seq", 5))


# --------------------------------------------------------------------------- what is refused

REFUSED = {
    "broadcast": (lambda g, x: x + g.input("y", (2, 5)), ShapeError, "add.*4 and 5 on axis -1"),
    "narrow past the end": (
        lambda g, x: x.narrow(1, 2, 3),
        ShapeError,
        "narrow: x is f32.*3 elements from 2 do not lie in axis 1 of size 4",
    ),
    "narrow before the start": (lambda g, x: x.narrow(0, -1, 1), ShapeError, "narrow.*from -1"),
    "narrow by a fraction": (
        lambda g, x: x.narrow(0, 0, 1.5),
        ArgumentError,
        "length must be an integer, got 1.5",
    ),
    "squeeze of a size": (lambda g, x: x.squeeze(1), ShapeError, "axis 1 has size 4, not 1"),
    "unsqueeze too far": (lambda g, x: x.unsqueeze(4), ArgumentError, "axis 4 is outside -3..2"),
    "flatten backwards": (lambda g, x: x.flatten(1, 0), ArgumentError, "comes before"),
    "expand to fewer axes": (lambda g, x: x.expand((4,)), ShapeError, "1 sizes for.*rank 2"),
    "expand a new axis by -1": (lambda g, x: x.expand((-1, 2, 4)), ShapeError, "axis 0 is new"),
    "negative repeats": (lambda g, x: x.repeat(-1, 0), ArgumentError, "0 or more, got -1"),
    "uneven split": (
        lambda g, x: x.split(3, axis=1),
        ShapeError,
        "axis 1 of size 4 does not divide into 3 equal pieces; .*chunk",
    ),
    "split into none": (lambda g, x: x.split(0), ShapeError, "into 0 equal pieces"),
    "sizes that do not add up": (
        lambda g, x: x.split([1, 2], axis=1),
        ShapeError,
        r"pieces of \(1, 2\) add up to 3, not 4",
    ),
    "stack of two shapes": (
        lambda g, x: g.stack([x, x.T]),
        ShapeError,
        r"inputs\[1\] is \(4, 2\), inputs\[0\] is \(2, 4\)",
    ),
    "stack of one node": (lambda g, x: g.stack(x), ArgumentError, "in a list"),
    "stack of nothing": (lambda g, x: g.stack([]), ArgumentError, "at least one"),
    "moveaxis to fewer places": (
        lambda g, x: x.moveaxis((0, 1), 0),
        ArgumentError,
        "2 axes.*1 places",
    ),
    "sum_rows of a vector": (lambda g, x: x[0].sum_rows(), ShapeError, "matrix, not of rank 1"),
    "split_a of another size": (
        lambda g, x: g.split_a(x, 2, 3, 1, 4),
        ShapeError,
        "split_a.*8 elements are not 2 times 4 channels of 4",
    ),
    "float indices": (
        lambda g, x: g.embedding(g.input("i", (3,)), x),
        DTypeError,
        "embedding.*must be integers, not f32; .*input_u32",
    ),
    "table of rank 3": (
        lambda g, x: g.embedding(g.input_u32("i", (3,)), x.unsqueeze(0)),
        ShapeError,
        "table must be a matrix, not of rank 3",
    ),
    "scatter of another shape": (
        lambda g, x: x.scatter(np.array([0]), x),
        ShapeError,
        r"src is \(2, 4\), but the indices select \(1, 4\)",
    ),
    "scatter into bool": (
        lambda g, x: (x > 0).scatter(np.array([0, 1]), x > 0, mode="add"),
        DTypeError,
        "no arithmetic",
    ),
    "masked_fill by a larger mask": (
        lambda g, x: x.masked_fill(g.input("m", (3, 2, 4), "bool"), 0),
        ShapeError,
        "does not broadcast to",
    ),
    "masked_fill of a fraction": (
        lambda g, x: x.cast("i32").masked_fill(x > 0, 0.5),
        ArgumentError,
        "0.5 does not fit in i32",
    ),
    "pad beyond a type": (lambda g, x: x.cast("u8").pad(1, -1), ArgumentError, "not fit in u8"),
    "pad_with of nothing": (
        lambda g, x: x[:0].pad_with(1),
        ShapeError,
        "axis 0 has no elements to repeat",
    ),
    "negative pad_with": (lambda g, x: x.pad_with(-1), ArgumentError, "negative; slice to crop"),
    "norm of another order": (lambda g, x: x.norm(order=3), ArgumentError, "1, 2 or infinity"),
    "largest of nothing": (
        lambda g, x: x[:0].norm(0, order=math.inf),
        ShapeError,
        "axis 0 has no elements",
    ),
    "tril of a vector": (lambda g, x: x[0].tril(), ShapeError, "matrix is needed"),
    "negative depth": (lambda g, x: x.cast("i32").one_hot(-1), ShapeError, "depth -1"),
    "arange of bool": (lambda g, x: g.arange(3, dtype="bool"), DTypeError, "bool cannot count"),
    "arange without a step": (lambda g, x: g.arange(0, 3, 0), ArgumentError, "step is 0"),
    "arange of a node": (lambda g, x: g.arange(x), ArgumentError, "expected a number"),
    "linspace to a node": (lambda g, x: g.linspace(0, x, 3), ArgumentError, "expected a number"),
    "linspace of integers": (lambda g, x: g.linspace(0, 1, 3, "i32"), DTypeError, "fractions"),
    "axis given twice": (lambda g, x: x.sum(axis=0, axes=1), ArgumentError, "given twice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistake_is_refused_at_its_line(name):
    build, error, text = REFUSED[name]
    graph = Graph()
    x = graph.input("x", (2, 4))
    with pytest.raises(error, match=text) as caught:
        build(graph, x)
    assert "test_shapes.py" in str(caught.value)


@pytest.mark.parametrize("op", ["gather", "take_along_axis", "scatter_add", "scatter"])
def test_index_out_of_range_names_op_label_and_line_when_it_runs(op):
    graph = Graph()
    table, ids = graph.input("table", (4, 2)), graph.input("ids", (3,), "i32")
    calls = {
        "gather": lambda: table.gather(ids, label="tokens"),
        "take_along_axis": lambda: table.take_along_axis(
            ids.reshape((3, 1)).broadcast_to((3, 2)), 0, label="tokens"
        ),
        "scatter_add": lambda: graph.scatter_add(ids, table[:3], 4, label="tokens"),
        "scatter": lambda: table.scatter(ids, table[:3], label="tokens"),
    }
    graph.set_outputs([calls[op]()])
    values = {"table": counted(4, 2), "ids": np.array([0, 4, 9], np.int32)}
    with pytest.raises(RunError, match=r"index 4 is outside 0\.\.3") as caught:
        darner.run(graph, values)
    text = str(caught.value)
    assert text.startswith(f"{op} 'tokens': ")
    assert "test_shapes.py" in text
    with pytest.raises(RunError, match="index -1"):
        darner.run(graph, {**values, "ids": np.array([-1, 0, 0], np.int32)})
