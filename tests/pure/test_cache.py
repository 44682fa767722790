"""Caches: what a run leaves in them, in which order writes and reads stand, and decoding by them."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, ShapeError

HEADS, KV_HEADS, WIDTH, ROOM = 4, 2, 3, 9


def decoder(rows, window=None):
    """A graph that takes some rows of q, k and v and attends to all rows so far."""
    g = Graph("decode")
    position = g.input("position", (1,), "u32")
    q = g.input("q", (rows, HEADS * WIDTH))
    caches = []
    for name in ("k", "v"):
        cache = g.state(f"{name}_cache", (ROOM, KV_HEADS * WIDTH))
        caches.append(g.cache_write(g.input(name, (rows, KV_HEADS * WIDTH)), cache, position))
    y = g.cached_attention(q, *caches, position, HEADS, KV_HEADS, WIDTH, window=window)
    g.set_outputs([y])
    return g.verify()


def sequence(length):
    rng = np.random.default_rng(1)
    widths = {"q": HEADS * WIDTH, "k": KV_HEADS * WIDTH, "v": KV_HEADS * WIDTH}
    return {n: rng.normal(size=(length, w)).astype(np.float32) for n, w in widths.items()}


def whole(values, window=None):
    g = Graph("whole")
    nodes = [g.input(name, x.shape) for name, x in values.items()]
    if window is None:
        y = g.causal_attention(*nodes, HEADS, KV_HEADS, WIDTH)
    else:
        y = g.sliding_window_attention(*nodes, HEADS, KV_HEADS, WIDTH, window)
    g.set_outputs([y])
    return darner.run(g, values)[0]


# --------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("steps", [[1] * 8, [5, 1, 1, 1], [3, 4, 1]])
def test_decoding_by_steps_is_causal_attention(steps, window):
    values = sequence(8)
    state, rows, start = {}, [], 0
    for count in steps:
        part = {name: x[start : start + count] for name, x in values.items()}
        graph = decoder(count, window)
        rows += list(darner.run(graph, {**part, "position": np.array([start])}, state=state)[0])
        start += count
    np.testing.assert_allclose(rows, whole(values, window), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state["k_cache"][:8], values["k"])
    np.testing.assert_array_equal(state["v_cache"][8:], 0)


def test_rows_beyond_the_position_are_not_read():
    values = sequence(1)
    state = {
        name: np.full((ROOM, KV_HEADS * WIDTH), 1e6, np.float32) for name in ("k_cache", "v_cache")
    }
    found = darner.run(decoder(1), {**values, "position": np.array([0])}, state=state)[0]
    np.testing.assert_allclose(found, whole(values), rtol=1e-6)


def test_a_batch_decodes_along_its_own_axis():
    g = Graph()
    position = g.input("position", (1,), "u32")
    cache = g.state("cache", (2, ROOM, 6))
    new = g.input("new", (2, 1, 6))
    written = g.cache_write(new, cache, position, axis=1)
    g.set_outputs([g.cached_attention(new, written, written, position, 2, 2, 3)])
    rows = np.random.default_rng(2).normal(size=(2, 4, 6)).astype(np.float32)
    state, found = {}, []
    for i in range(4):
        step = {"new": rows[:, i : i + 1], "position": np.array([i])}
        found.append(darner.run(g, step, state=state)[0])
    full = Graph()
    x = full.input("x", (2, 4, 6))
    full.set_outputs([full.causal_attention(x, x, x, 2, 2, 3)])
    wanted = darner.run(full, {"x": rows})[0]
    np.testing.assert_allclose(np.concatenate(found, 1), wanted, rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------- writing


def small(kind="state", dtype="f32"):
    g = Graph("small")
    cache = getattr(g, kind)("cache", (4, 2), dtype)
    return g, cache, g.input("new", (1, 2)), g.input("position", (1,), "i32")


def test_a_write_returns_the_written_cache_and_keeps_it():
    g, cache, new, position = small()
    written = g.cache_write(new, cache, position)
    assert g.updates[cache] is written
    g.set_outputs([written, cache])
    state = {}
    values = {"new": np.array([[1, 2]]), "position": np.array([2])}
    after, before = darner.run(g, values, state=state)
    np.testing.assert_array_equal(after, [[0, 0], [0, 0], [1, 2], [0, 0]])
    np.testing.assert_array_equal(before, 0)
    np.testing.assert_array_equal(state["cache"], after)


def test_a_parameter_can_be_a_cache():
    g, cache, new, position = small("parameter")
    written = g.cache_write(new, cache, position)
    assert g.updates[cache] is written


def test_other_nodes_are_written_without_any_state():
    g, cache, new, position = small("input")
    written = g.cache_write(new, cache, position)
    assert written.shape == (4, 2)
    assert g.updates == {}
    assert g.cache_write(new, cache, position).op.name == "cache_update"


def test_positions_beyond_the_cache_move_to_its_end():
    g, cache, new, position = small()
    g.set_outputs([g.cache_write(new, cache, position)])
    for given, row in ((9, 3), (-5, 0)):
        values = {"new": np.array([[1, 2]]), "position": np.array([given])}
        np.testing.assert_array_equal(np.nonzero(darner.run(g, values)[0][:, 0])[0], [row])


def test_new_rows_take_the_type_of_the_cache():
    g, cache, new, position = small(dtype="f16")
    assert g.cache_write(new, cache, position).dtype.name == "f16"
    assert g.updates


def test_chained_writes_leave_the_last_value():
    g, cache, new, position = small()
    first = g.cache_write(new, cache, position)
    second = g.cache_write(new * 10.0, first, position + 1)
    assert g.updates[cache] is second
    g.set_outputs([second])
    g.verify()
    state = {}
    darner.run(g, {"new": np.array([[1, 2]]), "position": np.array([0])}, state=state)
    np.testing.assert_array_equal(state["cache"], [[1, 2], [10, 20], [0, 0], [0, 0]])


# --------------------------------------------------------------------------- mistakes


def test_a_second_write_to_the_same_cache_must_be_chained():
    g, cache, new, position = small()
    first = g.cache_write(new, cache, position)
    with pytest.raises(
        ArgumentError, match=f"cache_write: .*'cache' is already written by %{first.id}.*chain"
    ):
        g.cache_write(new, cache, position)
    second = g.cache_write(new, first, position)
    with pytest.raises(ArgumentError, match=f"already written by %{second.id}"):
        g.cache_write(new, first, position)
    assert g.updates[cache] is second


def test_a_failed_write_leaves_the_graph_as_it_was():
    g, cache, new, position = small()
    first = g.cache_write(new, cache, position)
    size = len(g)
    with pytest.raises(ShapeError):
        g.cache_write(g.input("wide", (1, 3)), first, position)
    assert len(g) == size + 1
    assert g.updates[cache] is first


def test_attention_to_a_cache_as_it_was_before_the_write_is_refused():
    g = Graph()
    position = g.input("position", (1,), "u32")
    q, new = g.input("q", (1, 6)), g.input("new", (1, 6))
    k, v = g.state("k", (4, 6)), g.state("v", (4, 6))
    k_written, v_written = g.cache_write(new, k, position), g.cache_write(new, v, position)
    with pytest.raises(
        ArgumentError, match=r"k_cache is 'k' as it was before.*cache_write returned"
    ):
        g.cached_attention(q, k, v_written, position, 2, 2, 3)
    with pytest.raises(ArgumentError, match="v_cache is 'v' as it was before"):
        g.cached_attention(q, k_written, v, position, 2, 2, 3)
    assert g.cached_attention(q, k_written, v_written, position, 2, 2, 3).shape == (1, 6)


def test_a_cache_that_nothing_writes_can_be_read():
    g = Graph()
    k = g.state("k", (4, 6))
    y = g.cached_attention(g.input("q", (1, 6)), k, k, g.constant([2]), 2, 2, 3)
    assert y.shape == (1, 6)


@pytest.mark.parametrize(
    ("new", "cache", "position", "axis", "text"),
    [
        ((1, 3), (4, 2), (1,), 0, "differ on axis 1: 3 and 2"),
        ((5, 2), (4, 2), (1,), 0, "5 rows do not fit a cache of 4"),
        ((1, 1, 2), (4, 2), (1,), 0, "rank 3 and the cache has rank 2"),
        ((1, 2), (4, 2), (2,), 0, r"position \(2,\) must be one integer"),
        ((1, 2), (4, 2), (1,), 1, "differ on axis 0: 1 and 4"),
        ((1, 2), (4, 2), (1,), 2, "axis 2 is outside"),
    ],
)
def test_mistakes_in_a_write_are_named(new, cache, position, axis, text):
    g = Graph()
    nodes = g.input("new", new), g.state("cache", cache), g.input("position", position, "i32")
    with pytest.raises((ShapeError, ArgumentError), match=text):
        g.cache_write(*nodes, axis=axis)
    assert g.updates == {}


def test_a_position_is_an_integer():
    g, cache, new, _ = small()
    with pytest.raises(DTypeError, match="position must be integers"):
        g.cache_write(new, cache, g.constant([1.0]))
    with pytest.raises(DTypeError, match="offset must be integers"):
        g.cached_attention(new, cache, cache, g.constant([1.0]), 1, 1, 2)
