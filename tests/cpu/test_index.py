"""Sorting, writing by index, replacing blocks and running sums by native code: the reference's answers, bit-equal on any number of threads."""

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.base.cache import ObjectCache
from darner.graph import dtypes
from darner.lower.lower import lower
from darner.testing import assert_close
from tests.conformance import examples
from tests.cpu.running import compiled, run_program

RNG = np.random.default_rng(7)
HALVES = ("bf16", "f16")
FLOATS = ("f32", "f64", *HALVES)
INTS = ("i64", "i32", "i16", "i8", "u32", "u8")


def normal(*shape, dtype="f32"):
    return RNG.normal(size=shape).astype(dtypes.dtype(dtype).numpy)


def whole(high, *shape, low=0, dtype="i32"):
    return RNG.integers(low, high, shape).astype(dtypes.dtype(dtype).numpy)


def built(make, arrays):
    g = Graph()
    nodes = [g.input(str(i), array.shape, array.dtype) for i, array in enumerate(arrays)]
    made = make(g, *nodes)
    g.set_outputs(list(made) if isinstance(made, list | tuple) else [made])
    return g


def outputs_by_threads(graph, values, threads):
    """What a graph gives on each number of threads."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        # All have the same code: it is compiled once.
        cache = ObjectCache(Path(folder)) if len(threads) > 1 else None
        for count in threads:
            program = compiled(graph, threads=count, cache=cache)
            found.append(run_program(program, values))
            program.close()
    return found


def agree(make, *arrays, threads=(1, 2, 3), length=1):
    """Assert what the reference computes in f64, and the same bits on every number of threads."""
    g = built(make, arrays)
    values = {str(i): array for i, array in enumerate(arrays)}
    first, *others = outputs_by_threads(g, values, threads)
    for found in others:
        assert [a.tobytes() for a in found] == [a.tobytes() for a in first]
    for node, a, b in zip(g.outputs, first, darner.run(g, values, float64=True), strict=True):
        assert a.dtype == node.dtype.numpy
        if node.dtype.kind == "complex":
            np.testing.assert_allclose(
                a, b, rtol=1e-5, atol=1e-5 * max(np.abs(b).max(initial=0), 1)
            )
        else:
            assert_close(a, b, node.dtype, length)
    return first


# --------------------------------------------------------------------------- sorting


def ordered(axis, k):
    def make(g, x):
        both = [(x.sort(axis, down), x.argsort(axis, down)) for down in (False, True)]
        return [*both[0], *both[1], *x.top_k(k, axis)]

    return make


def with_ties_and_nans(dtype, *shape):
    values = RNG.integers(-4, 5, shape).astype(np.float64)
    flat = values.reshape(-1)
    flat[::7], flat[3::11], flat[5::13], flat[1::17] = np.nan, -0.0, np.inf, -np.inf
    return values.astype(dtypes.dtype(dtype).numpy)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_sorted_in_a_stable_order_with_nan_above_all(dtype):
    x = with_ties_and_nans(dtype, 5, 131)
    agree(ordered(1, 7), x, threads=(2,))
    up, places, down, _, best, where = agree(ordered(0, 3), x[:, :9].T.copy())
    assert np.isnan(up[-1].astype(float)).any()
    assert places.dtype == where.dtype == np.int32
    assert best[:3].tobytes() == down[:3].tobytes()


@pytest.mark.parametrize("dtype", [*INTS, "bool"])
def test_integers_are_sorted_over_their_whole_range(dtype):
    low, high = dtypes.dtype(dtype).limits
    x = RNG.integers(low, high, (3, 61), dtype=np.int64, endpoint=True)
    x[0, :5] = low, high, low, high, low
    agree(ordered(1, 61), x.astype(dtypes.dtype(dtype).numpy), threads=(2,))


def test_each_zero_keeps_its_sign_when_sorted():
    x = np.array([0.0, -0.0, 1.0, -0.0, 0.0], np.float32)
    up, places, *_ = agree(ordered(0, 2), x)
    np.testing.assert_array_equal(np.signbit(up), [False, True, True, False, False])
    np.testing.assert_array_equal(places, [0, 1, 3, 4, 2])


@pytest.mark.parametrize(("shape", "axis"), [((3, 0), 1), ((0, 4), 1), ((1,), 0), ((2, 1, 3), 1)])
def test_sorting_little_or_nothing(shape, axis):
    agree(ordered(axis, min(shape[axis], 1)), normal(*shape))


@pytest.mark.parametrize("dtype", ["f32", "f64", "u8"])
@pytest.mark.parametrize(("rows", "length"), [(2, 8192), (1, 20011)])
def test_a_long_row_is_sorted_in_parts_and_merged(dtype, rows, length):
    x = whole(200, rows, length, dtype="u8") if dtype == "u8" else normal(rows, length, dtype=dtype)
    agree(ordered(-1, 10), x)


def test_many_largest_are_taken_from_the_sorted_row():
    agree(lambda g, x: [*x.top_k(100), *x.top_k(0), x.top_k(5)[1]], normal(4, 150))


@pytest.mark.parametrize("length", [15, 16, 17, 64, 127, 129, 256, 257, 513, 769, 2300, 8191])
def test_rows_of_any_number_of_blocks_are_sorted(length):
    x = normal(3, length)
    x[1] = np.sort(x[1])[::-1]
    x[2] = RNG.integers(0, 5, length)
    up, places = agree(lambda g, x: [x.sort(1), x.argsort(1)], x, threads=(2,))
    np.testing.assert_array_equal(up, np.sort(x, 1))
    np.testing.assert_array_equal(places, np.argsort(x, 1, kind="stable"))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "bf16"])
@pytest.mark.parametrize("k", [32, 33, 300])
def test_the_best_of_many_are_found_in_batches(dtype, k):
    rising = np.arange(1300)
    drawn = RNG.integers(-90, 90, (2, 1300))
    x = np.stack([rising, rising[::-1], *drawn, np.zeros(1300)])
    found = agree(lambda g, x: x.top_k(k), x.astype(dtypes.dtype(dtype).numpy), threads=(2,))
    wanted = np.argsort(-x.astype(dtypes.dtype(dtype).numpy).astype(float), 1, kind="stable")
    np.testing.assert_array_equal(found[1], wanted[:, :k])


@pytest.mark.parametrize("k", [3, 100, 1100])
def test_a_long_row_has_its_best_found_in_parts(k):
    x = RNG.integers(0, 5000, (2, 70_001)).astype(np.float32)
    _, places = agree(lambda g, x: x.top_k(k), x, threads=(1, 2))
    np.testing.assert_array_equal(places, np.argsort(-x, 1, kind="stable")[:, :k])


@settings(max_examples=examples(9), deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.data())
def test_sorting_any_shape_along_any_axis(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    agree(ordered(axis, k), whole(9, *shape).astype(np.float32), threads=(1, 3))


def test_sorting_reads_through_views_and_sampling_draws_what_the_reference_draws():
    x = normal(6, 10)
    agree(lambda g, x: [x.transpose()[::2].argsort(1), g.iota((9,)).flip(0).argsort()], x)
    for options in ({"top_k": 4}, {"top_p": 0.6}, {"top_k": 5, "min_p": 0.1}):
        agree(lambda g, x, options=options: g.sample(x, seed=3, step=False, **options), x)


# --------------------------------------------------------------------------- writing by index


@pytest.mark.parametrize("dtype", [*FLOATS, "i32", "u8", "i64", "c64"])
def test_scatter_add_sums_slices_of_equal_index(dtype):
    cast = dtypes.dtype(dtype).numpy
    narrow, wide = RNG.integers(-3, 4, (29, 3)), RNG.normal(size=(29, 307))
    if dtype not in FLOATS:
        wide = RNG.integers(0, 5, (29, 307))
    places = whole(11, 29)
    agree(
        lambda g, i, a, b: [g.scatter_add(i, a, 11), g.scatter_add(i, b, 11)],
        places,
        np.abs(narrow).astype(cast),
        wide.astype(cast),
        length=29,
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_many_16_bit_terms_are_summed_in_f32(dtype):
    ones = np.ones((3000, 2), dtypes.dtype(dtype).numpy)
    zeros = np.zeros(3000, np.int32)
    slices, elements = agree(
        lambda g, i, x, j: [g.scatter_add(i, x, 2), g.scatter_add_along_axis(j, x, 3, 0)],
        zeros,
        ones,
        np.zeros((3000, 2), np.int32),
    )
    # One after another, sums of bf16 would stop at 256 and those of f16 at 2048.
    wanted = float(np.asarray(3000).astype(dtypes.dtype(dtype).numpy))
    np.testing.assert_array_equal(slices.astype(float)[0], [wanted, wanted])
    np.testing.assert_array_equal(elements.astype(float)[0], [wanted, wanted])


@pytest.mark.parametrize("mode", ["set", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_scatter_combines_in_order(mode, dtype):
    floating = dtype != "i32"
    values = [RNG.uniform(0.5, 1.5, s) if floating else RNG.integers(1, 4, s) for s in SHAPES]
    x, src, tall = (value.astype(dtypes.dtype(dtype).numpy) for value in values)
    agree(
        lambda g, x, i, s, j, t: [
            x.scatter(i, s, 0, mode),
            x.scatter(j, t, 1, mode),
            x.transpose().scatter(j, t.transpose(), 0, mode),
        ],
        x,
        whole(7, 12, dtype="u32"),
        src,
        whole(19, 5, dtype="i8"),
        tall,
        length=12,
    )


SHAPES = ((7, 19), (12, 19), (7, 5))


@pytest.mark.parametrize("mode", ["set", "max", "min"])
def test_scatter_of_bools(mode):
    agree(
        lambda g, x, i, s: x.scatter(i, s, 0, mode),
        whole(2, 4, 3, dtype="bool"),
        whole(4, 6),
        whole(2, 6, 3, dtype="bool"),
    )


def test_scatter_with_indices_of_other_ranks_and_of_none():
    agree(
        lambda g, x, i, s, one, t, none, nothing: [
            x.scatter(i, s, 1),
            x.scatter(one, t, -1, "add"),
            x.scatter(none, nothing, 0),
            g.scatter_add(one, t, 3, axis=1),
            g.scatter_add(none, nothing, 4),
        ],
        normal(2, 5, 3),
        whole(5, 2, 4),
        normal(2, 2, 4, 3),
        np.int32(2),
        normal(2, 5),
        np.zeros(0, np.int32),
        normal(0, 5, 3),
    )


@pytest.mark.parametrize("dtype", [*FLOATS, "i32", "i8", "c64"])
def test_scatter_add_along_an_axis(dtype):
    cast = dtypes.dtype(dtype).numpy
    x = RNG.integers(-3, 4, (5, 6, 19)).astype(cast)
    agree(
        lambda g, x, a, b, c: [
            g.scatter_add_along_axis(a, x, 4, 0),
            g.scatter_add_along_axis(b, x, 3, 1),
            g.scatter_add_along_axis(c, x, 33, 2),
            g.scatter_add_along_axis(c[0, 0], x[0, 0], 33, 0),
        ],
        x,
        whole(4, 5, 6, 19),
        whole(3, 5, 6, 19, dtype="u8"),
        whole(33, 5, 6, 19, dtype="i64"),
        length=19,
    )


@settings(max_examples=examples(9), deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data())
def test_scattering_any_shape_along_any_axis(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    count, size = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 9))
    target = [size if k == axis else n for k, n in enumerate(shape)]
    source = [count if k == axis else n for k, n in enumerate(shape)]
    agree(
        lambda g, i, s, x, j: [
            g.scatter_add(i, s, size, axis=axis),
            x.scatter(i, s, axis),
            g.scatter_add_along_axis(j, s, size, axis),
        ],
        whole(size, count),
        normal(*source),
        normal(*target),
        whole(size, *source),
        threads=(1, 3),
        length=count,
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_gradient_of_an_embedding(dtype):
    g = Graph()
    table = g.parameter("table", (50, 24), dtype)
    ids = g.input("ids", (3, 7), "i32")
    g.set_outputs([g.gather(table, ids).cast("f32").square().sum()])
    g = darner.grad(g)
    values = normal(50, 24, dtype=dtype)
    numbers = whole(50, 3, 7)
    program = compiled(g, threads=2)
    (found,) = run_program(program, {"ids": numbers}, {"table": values})
    program.close()
    (wanted,) = darner.run(g, {"ids": numbers}, {"table": values}, float64=True)
    assert_close(found, wanted, dtype, 21)
    assert np.count_nonzero(found.astype(float).any(1)) == len(np.unique(numbers))


# --------------------------------------------------------------------------- replacing a block


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8", "bool", "c64"])
def test_a_block_is_replaced_and_what_it_came_from_is_not(dtype):
    kind = dtypes.dtype(dtype).numpy
    x, block = (
        RNG.integers(0, 2, (4, 5, 6)).astype(kind),
        RNG.integers(0, 2, (2, 5, 3)).astype(kind),
    )
    original = x.copy()
    agree(
        lambda g, x, block, at: [
            g.dynamic_update_slice(x, block, at),
            g.dynamic_update_slice(x.transpose((2, 1, 0)), block.transpose((2, 1, 0)), at),
            g.dynamic_update_slice(x, x, at),
            g.dynamic_update_slice(x, block[:, :0], at),
        ],
        x,
        block,
        np.array([9, -4, 2], np.int64),
    )
    np.testing.assert_array_equal(x, original)


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.data())
def test_replacing_any_block(shape, data):
    sizes = [data.draw(st.integers(0, n)) for n in shape]
    starts = [data.draw(st.integers(-2, n)) for n in shape]
    agree(
        lambda g, x, block, at: g.dynamic_update_slice(x * 2.0, block, at),
        normal(*shape),
        normal(*sizes),
        np.array(starts, np.int32),
        threads=(1, 3),
    )


@pytest.mark.parametrize("op", ["dynamic_update_slice", "scatter"])
def test_a_state_is_written_in_place(op):
    g = Graph()
    cache, new = g.state("cache", (2, 300, 4)), g.input("new", (2, 1, 4))
    at = g.input("at", (3,), "i32")
    if op == "scatter":
        value = cache.scatter(at[1:2], new, 1)
    else:
        value = g.dynamic_update_slice(cache, new, at)
    g.set_update(cache, value)
    g.set_outputs([new + 1.0])
    plan = lower(g, target="cpu", whole=())
    assert all(old == new for old, new in plan.updates)
    program = compiled(g, threads=3)
    wanted = normal(2, 300, 4)
    state = {"cache": wanted}
    for place in (0, 299, 17):
        block = normal(2, 1, 4)
        run_program(program, {"new": block, "at": np.array([0, place, 0])}, state=state)
        wanted = wanted.copy()
        wanted[:, place] = block[:, 0]
        np.testing.assert_array_equal(state["cache"], wanted)
    program.close()


# --------------------------------------------------------------------------- running sums


def running(axis):
    def make(g, x):
        found = [x.cumsum(axis), x.cumsum(axis, True), x.cumprod(axis, reverse=True)]
        if x.dtype.kind != "complex":
            found += [x.cummax(axis), x.cummin(axis, reverse=True)]
        return [*found, x.cumsum(axis, True, reverse=True)]

    return make


@pytest.mark.parametrize("dtype", [*FLOATS, "i32", "i8", "u8", "i64", "bool", "c64"])
@pytest.mark.parametrize("axis", [0, 2])
def test_running_sums_products_and_extremes(dtype, axis):
    kind = dtypes.dtype(dtype).numpy
    x = RNG.choice([-1.5, 0.5, 1.0, 2.0], (5, 3, 37 if axis == 0 else 6))
    x = x.astype(kind) if dtype in (*FLOATS, "c64") else (x > 0).astype(kind)
    agree(running(axis), x, threads=(2,) if dtype != "f32" else (1, 2, 3), length=37)


def test_running_extremes_keep_nan_and_running_sums_take_views():
    x = normal(6, 35)
    x[2, ::3] = np.nan
    found = agree(lambda g, x: [x.cummax(0), x.cummin(0), x.cummax(1)], x)
    assert np.isnan(found[0][2:, 0]).all()
    assert not np.isnan(found[0][:2]).any()
    agree(
        lambda g, x: [x.transpose().cumsum(0), x[::2, 1:].cumsum(0), x.flip(1).cumsum(1)],
        normal(40, 35),
        length=40,
    )


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.data())
def test_running_along_any_axis_of_any_shape(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    agree(running(axis), normal(*shape), threads=(1, 3), length=20)


def test_half_sums_are_rounded_once_each():
    ones = np.ones((700, 20), ml_dtypes.bfloat16)
    (found,) = agree(lambda g, x: x.cumsum(0), ones)
    np.testing.assert_array_equal(found, np.cumsum(np.ones((700, 20)), 0).astype(found.dtype))
