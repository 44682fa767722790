"""x[key] means what NumPy means, for every key that it takes; the others are refused with a way out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import ArgumentError, DTypeError, Graph, ShapeError, symbol


def counted(shape):
    """An array in which every element differs, so that any slip shows."""
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def index(array, key):
    """What darner makes of array[key]."""
    graph = Graph()
    x = graph.input("x", array.shape)
    graph.set_outputs([x[key]])
    graph.verify()
    return darner.run(graph, {"x": array})[0]


def bounds(size):
    return st.none() | st.integers(-size - 2, size + 2)


@st.composite
def entries(draw, size, with_indices):
    """One entry of a key, for an axis of this size."""
    kinds = ["slice", "slice", *(["integer"] if size else []), *(["indices"] * with_indices)]
    kind = draw(st.sampled_from(kinds))
    if kind == "integer":
        return draw(st.integers(-size, size - 1))
    if kind == "indices":
        shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2))
        chosen = [draw(st.integers(-size, size - 1)) for _ in range(int(np.prod(shape)))]
        return np.array(chosen, np.int64).reshape(shape)
    step = draw(st.none() | st.integers(-3, 3).filter(bool))
    return slice(draw(bounds(size)), draw(bounds(size)), step)


@st.composite
def arrays_and_keys(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=4).map(tuple))
    rank = len(shape)
    first = draw(st.integers(0, rank))
    last = draw(st.integers(0, rank - first))
    picked = draw(st.none() | st.sampled_from([i for i in range(rank) if shape[i]] or [None]))
    leading = [draw(entries(shape[i], i == picked)) for i in range(first)]
    trailing = [draw(entries(shape[i], i == picked)) for i in range(rank - last, rank)]
    dots = [...] if last or draw(st.booleans()) else []
    key = [*leading, *dots, *trailing]
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return counted(shape), tuple(key)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(arrays_and_keys())
def test_any_key_gives_what_numpy_gives(case):
    array, key = case
    np.testing.assert_array_equal(index(array, key), array[key])


@pytest.mark.parametrize(
    "key",
    [
        2,
        -1,
        np.int32(1),
        slice(None, None, -1),
        (slice(None), [0, -1, 2]),
        (..., np.array([[0, 1], [3, -4]])),
        (0, slice(None), [1, 2]),
        ([1, 2], slice(None), 0),
        (0, [1, 2]),
        (1, None, [1, 2]),
        (slice(None), 0, ..., [[1, 2]]),
        (..., 1),
        (None, ..., None),
        [],
        [[]],
        np.array(1),
        (slice(5, 1, -2), slice(-100, 100)),
        (),
        ...,
    ],
    ids=repr,
)
def test_key_gives_what_numpy_gives(key):
    array = counted((3, 4, 5))
    np.testing.assert_array_equal(index(array, key), array[key])


def test_key_that_takes_everything_adds_no_node():
    graph = Graph()
    x = graph.input("x", (3, 4))
    assert x[...] is x
    assert x[:, :] is x
    assert x[0:9] is x
    assert x[()] is x


def test_slices_of_all_axes_are_one_node():
    graph = Graph()
    x = graph.input("x", (5, 6))
    x[1:3, ::2]
    assert [node.op.name for node in graph.nodes] == ["input", "slice"]
    x[::-1]
    assert [node.op.name for node in graph.nodes][2:] == ["flip"]


def test_node_of_indices_picks_along_its_axis():
    graph = Graph()
    x = graph.input("x", (3, 4, 5))
    many, one = graph.input("many", (2, 2), "u32"), graph.input("one", (), "i64")
    graph.set_outputs([x[:, many], x[one], x[one, :, many], x[one, 1:, one], x[many, one, ::-2]])
    array, i, j = counted((3, 4, 5)), np.array([[0, 2], [1, 1]], np.uint32), np.array(1)
    found = darner.run(graph, {"x": array, "many": i, "one": j})
    wanted = [array[:, i], array[1], array[1, :, i], array[1, 1:, 1], array[i, 1, ::-2]]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_iteration_and_unpacking_go_over_the_first_axis():
    graph = Graph()
    x = graph.input("x", (2, 3))
    first, second = x
    graph.set_outputs([first, second])
    a, b = darner.run(graph, {"x": counted((2, 3))})
    assert a.tolist() == [0, 1, 2]
    assert b.tolist() == [3, 4, 5]


# --------------------------------------------------------------------------- symbolic sizes

SYMBOLIC = {
    "from 1": (lambda x: x[1:], "seq-1"),
    "last": (lambda x: x[-1], None),
    "all but the last two": (lambda x: x[:-2], "seq-2"),
    "inner": (lambda x: x[1:-1], "seq-2"),
    "first three": (lambda x: x[:3], 3),
    "last three": (lambda x: x[-3:], 3),
    "backwards": (lambda x: x[::-1], "seq"),
    "backwards from 2": (lambda x: x[2::-1], 3),
    "backwards to 1": (lambda x: x[:1:-1], "seq-2"),
    "backwards from -2": (lambda x: x[-2::-1], "seq-1"),
    "list": (lambda x: x[[0, 2, 2]], 3),
    "new axes": (lambda x: x[None, :, None], 1),
    "other axis": (lambda x: x[..., 1:, -1], "seq"),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_size_is_indexed_before_it_is_known(name):
    take, size = SYMBOLIC[name]
    graph = Graph()
    y = take(graph.input("x", ("seq", 4, 3)))
    graph.set_outputs([y])
    if size is not None:
        assert str(y.shape[0]) == str(size)
    array = counted((5, 4, 3))
    np.testing.assert_array_equal(darner.run(graph, {"x": array})[0], take(array))
    np.testing.assert_array_equal(darner.run(graph.bind(seq=5), {"x": array})[0], take(array))


def test_step_over_a_size_that_it_divides_is_known():
    graph = Graph()
    half = symbol("half")
    x = graph.input("x", (2 * half, 3))
    assert x[::2].shape == (half, 3)
    assert x[1::2].shape == (half, 3)
    graph.set_outputs([x[1::2]])
    array = counted((6, 3))
    found = darner.run(graph.bind(half=3), {"x": array})[0]
    np.testing.assert_array_equal(found, array[1::2])


def test_bounds_may_be_symbols():
    graph = Graph()
    seq = symbol("seq")
    x = graph.input("x", (seq + 4, 2))
    assert x[:seq].shape == (seq, 2)
    assert x[seq:].shape == (4, 2)
    assert x[seq].shape == (2,)


def test_bounds_that_leave_a_symbolic_size_are_found_when_it_is_bound():
    graph = Graph()
    x = graph.input("x", ("seq", 2))
    graph.set_outputs([x[:8]])
    with pytest.raises(ShapeError, match=r"slice.*stop 8 on axis 0 is outside 0\.\.5"):
        graph.bind(seq=5)


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        ((0, 0, 0), ArgumentError, "3 indices for a tensor of rank 2"),
        (3, ShapeError, r"index 3 on axis 0 is outside -3\.\.2"),
        ((0, -5), ShapeError, r"index -5 on axis 1 is outside -4\.\.3"),
        ([0, 7], ShapeError, "index 7 on axis 0"),
        (slice(None, None, 0), ArgumentError, "step 0"),
        ((..., ...), ArgumentError, "only once"),
        (True, DTypeError, "boolean.*where"),
        ([True, False, True], DTypeError, "booleans.*where"),
        (np.zeros((3, 4), bool), DTypeError, "where"),
        (1.5, ArgumentError, "1.5 cannot be an index"),
        ([0.5], DTypeError, "must be integers, not float64"),
        (slice(0.5, None), ArgumentError, "bounds are integers, got 0.5"),
        (([0], [1]), ArgumentError, "only one list"),
        ("a", ArgumentError, "'a' cannot be an index"),
        ([[0], [1, 2]], ArgumentError, "integers only"),
    ],
    ids=repr,
)
def test_wrong_key_is_refused_at_its_line(key, error, text):
    graph = Graph()
    x = graph.input("x", (3, 4))
    with pytest.raises(error, match=text) as caught:
        x[key]
    assert str(caught.value).startswith("getitem: x is f32[3, 4]")
    assert "test_indexing.py" in str(caught.value)
    assert len(graph) == 1


def test_node_that_is_not_integers_is_refused():
    graph = Graph()
    x = graph.input("x", (3, 4))
    with pytest.raises(DTypeError, match=r"boolean node.*where"):
        x[x > 0]
    with pytest.raises(DTypeError, match="must be integers, not f32"):
        x[x]
    with pytest.raises(ArgumentError, match="dynamic_slice"):
        x[graph.input("n", (), "i32") :]


def test_what_depends_on_an_unknown_size_is_refused():
    graph = Graph()
    x = graph.input("x", ("seq", 4))
    with pytest.raises(ShapeError, match="not known until"):
        x[::2]
    with pytest.raises(ShapeError, match="not known until"):
        x[::-2]
    with pytest.raises(ShapeError, match="negative indices into size seq"):
        x[[0, -1]]


def test_empty_axis_has_nothing_to_index():
    x = Graph().input("x", (0, 4))
    with pytest.raises(ShapeError, match="axis 0 has no elements"):
        x[0]
