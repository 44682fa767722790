"""Sorting, writing by index, replacing blocks and running sums on a GPU: the reference's answers, the same bits each time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph, RunError
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.program import WgpuProgram
from darner.codegen.simt.families import written
from darner.graph import dtypes
from darner.testing import assert_close
from tests.conformance import examples
from tests.gpu import needs_gpu

pytestmark = needs_gpu

RNG = np.random.default_rng(7)
HALVES = ("bf16", "f16")
FLOATS = ("f32", "f64", *HALVES)


def opened():
    from darner.backends.wgpu.device import opened

    return opened()


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


def outputs(graph, values, runs=1):
    """What each of several runs of one program gives."""
    program = WgpuProgram(lower_for("gpu", graph), opened())
    found = []
    try:
        for _ in range(runs):
            for name, i in program.plan.leaves("input").items():
                program.bind(i, np.asarray(values[name]))
            program.run()
            program.sync()
            found.append([program.read(i) for i in program.plan.outputs])
    finally:
        program.close()
    return found


def agree(make, *arrays, length=1):
    """Assert what the reference computes in f64, and the same bits in a second run."""
    g = built(make, arrays)
    values = {str(i): array for i, array in enumerate(arrays)}
    first, second = outputs(g, values, runs=2)
    assert [a.tobytes() for a in first] == [a.tobytes() for a in second]
    for node, a, b in zip(g.outputs, first, darner.run(g, values, float64=True), strict=True):
        assert a.dtype == node.dtype.numpy
        if node.dtype.kind == "complex":
            scale = max(np.abs(b).max(initial=0), 1)
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * scale)
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
    up, places, down, _, best, _ = agree(ordered(0, 3), with_ties_and_nans(dtype, 131, 5))
    assert np.isnan(up[-1].astype(float)).all()
    assert places.dtype == np.int32
    assert best.tobytes() == down[:3].tobytes()


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u32", "u8", "bool"])
def test_integers_are_sorted_over_their_whole_range(dtype):
    low, high = dtypes.dtype(dtype).limits
    x = RNG.integers(low, high, (3, 61), dtype=np.int64, endpoint=True)
    x[0, :5] = low, high, low, high, low
    agree(ordered(1, 61), x.astype(dtypes.dtype(dtype).numpy))


def test_each_zero_keeps_its_sign_when_sorted():
    up, places, *_ = agree(ordered(0, 2), np.array([0.0, -0.0, 1.0, -0.0, 0.0], np.float32))
    np.testing.assert_array_equal(np.signbit(up), [False, True, True, False, False])
    np.testing.assert_array_equal(places, [0, 1, 3, 4, 2])


@pytest.mark.parametrize(("shape", "axis"), [((3, 0), 1), ((0, 4), 1), ((1,), 0), ((2, 1, 3), 1)])
def test_sorting_little_or_nothing(shape, axis):
    agree(ordered(axis, min(shape[axis], 1)), normal(*shape))


@pytest.mark.parametrize(("rows", "length"), [(2, 2049), (1, 20011)])
def test_a_long_row_is_sorted_in_blocks_and_merged(rows, length):
    x = whole(500, rows, length, low=-500).astype(np.float32)
    agree(lambda g, x: [x.sort(), x.argsort(-1, True), *x.top_k(1000), *x.top_k(10)], x)


def test_long_rows_of_64_bits():
    x = whole(1 << 60, 2, 3001, low=-(1 << 60), dtype="i64")
    agree(lambda g, x: [x.sort(), x.top_k(3)[1]], x)


@settings(max_examples=examples(4), deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.data())
def test_sorting_any_shape_along_any_axis(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    agree(ordered(axis, k), whole(9, *shape).astype(np.float32))


def test_sorting_reads_through_views_and_sampling_draws_what_the_reference_draws():
    def make(g, x):
        drawn = [
            g.sample(x, seed=3, step=False, **options)
            for options in ({"top_k": 4}, {"top_p": 0.6}, {"top_k": 5, "min_p": 0.1})
        ]
        return [x.transpose()[::2].argsort(1), g.iota((9,)).flip(0).argsort(), *drawn]

    agree(make, normal(6, 10))


# --------------------------------------------------------------------------- writing by index


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8", "i64", "c64"])
def test_scatter_add_sums_slices_of_equal_index(dtype):
    """A few slices, many with long runs of one index, and slices of some elements only."""
    cast = dtypes.dtype(dtype).numpy
    few, many = whole(11, 6), whole(300, 2500)
    many[100:2000] = 7
    values = [RNG.integers(0, 5, shape).astype(cast) for shape in ((6, 30), (2500, 9), (3, 2500))]
    found = agree(
        lambda g, i, j, a, b, c: [
            g.scatter_add(i, a, 11),
            g.scatter_add(j, b, 300),
            g.scatter_add(j, c, 300, axis=1),
        ],
        few,
        many,
        *values,
        length=1900,
    )
    assert (found[1][7] != 0).any()


@pytest.mark.parametrize("dtype", HALVES)
def test_many_16_bit_terms_are_summed_in_f32(dtype):
    ones = np.ones((3000, 2), dtypes.dtype(dtype).numpy)
    # One after another, sums of bf16 would stop at 256 and those of f16 at 2048.
    found = agree(
        lambda g, i, x, j: [
            g.scatter_add(i, x, 2),
            g.scatter_add_along_axis(j, x, 3, 0),
            g.scatter_add_along_axis(j, x, 900, 0),
        ],
        np.zeros(3000, np.int32),
        ones,
        np.zeros((3000, 2), np.int32),
    )
    wanted = float(np.asarray(3000).astype(dtypes.dtype(dtype).numpy))
    for sums in found:
        np.testing.assert_array_equal(sums.astype(float)[0], [wanted, wanted])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "bool"])
@pytest.mark.parametrize(("count", "columns"), [(12, 19), (40, 9001), (400, 900)])
def test_scatter_replaces_or_combines_in_order(dtype, count, columns):
    """Each problem is looked through, done by one of equal slices, or sorted; of several slices the last replaces."""
    floating = dtype in FLOATS
    shapes = (7, columns), (count, columns)
    near_one = [RNG.uniform(0.5, 1.5, s) if floating else RNG.integers(0, 3, s) for s in shapes]
    x, src = (value.astype(dtypes.dtype(dtype).numpy) for value in near_one)
    if dtype == "f32" and count == 400:
        src = np.clip(src, 0.98, 1.02)
    modes = ("set", "max", "min") if dtype == "bool" else ("set", "add", "mul", "max", "min")
    modes = [mode for mode in modes if (mode, dtype, count) != ("mul", "bf16", 400)]
    agree(
        lambda g, x, i, s: [x.scatter(i, s, 0, mode) for mode in modes],
        x,
        whole(7, count, dtype="u32"),
        src,
        length=count,
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


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "c64"])
def test_scatter_add_along_an_axis(dtype):
    """Small, with many columns, with few long ones, and with few elements of many."""
    cast = dtypes.dtype(dtype).numpy
    shapes = (5, 6, 19), (70, 40, 71), (2, 3000), (300, 2)
    sources = [RNG.integers(0, 4, shape).astype(cast) for shape in shapes]
    agree(
        lambda g, x, y, z, w, a, b, c, d: [
            g.scatter_add_along_axis(a, x, 33, 2),
            g.scatter_add_along_axis(b, y, 31, 1),
            g.scatter_add_along_axis(c, z, 900, 1),
            g.scatter_add_along_axis(d, w, 4001, 1),
        ],
        *sources,
        whole(33, *shapes[0], dtype="u8"),
        whole(31, *shapes[1]),
        whole(900, *shapes[2], dtype="i64"),
        whole(4001, *shapes[3]),
        length=40,
    )


@settings(max_examples=examples(4), deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data())
def test_scattering_any_shape_along_any_axis(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    count, size = data.draw(st.integers(0, 90)), data.draw(st.integers(1, 9))
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
        length=count,
    )


def test_the_work_of_an_embeddings_gradient_does_not_grow_with_tokens_times_words():
    g = Graph()
    tokens, width, words = 4096, 576, 49152
    g.set_outputs(
        [g.scatter_add(g.input("i", (tokens,), "i32"), g.input("s", (tokens, width)), words)]
    )
    plan = lower_for("gpu", g)
    (spec,) = plan.specs.values()
    stages = written(spec, opened().machine).stages
    threads = [256 * stage.groups[0] * stage.groups[1] for stage in stages]
    assert threads[0] * 16 <= 2 * words * width
    assert sum(threads[1:]) <= tokens * width


@pytest.mark.parametrize("index", [-1, 9])
@pytest.mark.parametrize("count", [3, 3000])
def test_an_index_outside_is_told(index, count):
    def make(g, i, s, x):
        return [g.scatter_add(i, s, 9), x.scatter(i, s)]

    places = np.zeros(count, np.int32)
    places[count // 2] = index
    arrays = places, normal(count, 100), normal(9, 100)
    with pytest.raises(RunError, match=rf"scatter.*index {index} is outside 0..8"):
        agree(make, *arrays)
    arrays[0][...] = 0
    agree(make, *arrays, length=count)


@pytest.mark.parametrize("dtype", ["f32", "c64"])
def test_what_follows_sums_by_index_is_a_kernel_of_its_own(dtype):
    src, indices = normal(5, 40).astype(dtypes.dtype(dtype).numpy), whole(30, 5)

    def make(g, i, s):
        return g.scatter_add(i, s, 30) * 2.0 + 1.0

    agree(make, indices, src, length=5)
    plan = lower_for("gpu", built(make, [indices, src]))
    assert [plan.spec(kernel).kind for kernel in plan.kernels] == ["index", "map"]


# --------------------------------------------------------------------------- replacing a block


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8", "bool", "c64"])
def test_a_block_is_replaced_and_what_it_came_from_is_not(dtype):
    kind = dtypes.dtype(dtype).numpy
    x, block = (RNG.integers(0, 2, shape).astype(kind) for shape in ((4, 5, 8), (2, 5, 3)))
    original = x.copy()
    agree(
        lambda g, x, block, row, at: [
            g.dynamic_update_slice(x, block, at),
            g.dynamic_update_slice(x, row, at),
            g.dynamic_update_slice(x.transpose((2, 1, 0)), block.transpose((2, 1, 0)), at),
            g.dynamic_update_slice(x, block[:, :0], at),
        ],
        x,
        block,
        x[:2, 1:3],
        np.array([9, -4, 2], np.int64),
    )
    np.testing.assert_array_equal(x, original)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("op", ["dynamic_update_slice", "scatter"])
def test_a_state_is_written_in_place(op, dtype):
    g = Graph()
    cache, new = g.state("cache", (2, 300, 4), dtype), g.input("new", (2, 1, 4), dtype)
    at = g.input("at", (3,), "i32")
    if op == "scatter":
        value = cache.scatter(at[1:2], new, 1)
    else:
        value = g.dynamic_update_slice(cache, new, at)
    g.set_update(cache, value)
    g.set_outputs([new + 1.0])
    plan = lower_for("gpu", g)
    assert all(old == new for old, new in plan.updates)
    kind = dtypes.dtype(dtype).numpy
    wanted = normal(2, 300, 4, dtype=dtype)
    program = WgpuProgram(plan, opened(), storage={"cache": wanted.copy()})
    again = WgpuProgram(plan, opened(), storage=program.storage, saved=program.saved)
    (number,) = [k for k, kernel in enumerate(plan.kernels) if op in plan.spec(kernel).ops]
    stages = written(plan.spec(number), opened().machine).stages
    # What would copy the state to itself is left out.
    assert len(program._calls[number]) == len(again._calls[number]) == len(stages) - 1
    state = plan.leaves("state")["cache"]
    for place in (0, 299, 17):
        block = normal(2, 1, 4, dtype=dtype)
        inputs = {"new": block, "at": np.array([0, place, 0], np.int32)}
        for name, i in plan.leaves("input").items():
            program.bind(i, inputs[name])
        program.run()
        program.sync()
        wanted[:, place] = block[:, 0]
        found = program.read(state)
        assert found.dtype == kind
        assert found.tobytes() == wanted.tobytes()
    program.close()
    again.close()


# --------------------------------------------------------------------------- running sums


def running(axis):
    def make(g, x):
        found = [x.cumsum(axis), x.cumsum(axis, True), x.cumprod(axis, reverse=True)]
        if x.dtype.kind != "complex":
            found += [x.cummax(axis), x.cummin(axis, reverse=True)]
        return [*found, x.cumsum(axis, True, reverse=True)]

    return make


@pytest.mark.parametrize("dtype", [*FLOATS, "i8", "i64", "bool", "c64"])
def test_running_sums_products_and_extremes(dtype):
    kind = dtypes.dtype(dtype).numpy
    # No product of 45 of these is more than f16 has.
    x = RNG.choice([-1.25, 0.75, 1.0, 1.25], (3, 45, 2))
    x = x.astype(kind) if dtype in (*FLOATS, "c64") else (x > 0).astype(kind)
    agree(running(1), x, length=45)


@pytest.mark.parametrize("shape", [(2, 9000), (8200, 40), (1, 40)])
def test_running_along_long_and_many_rows(shape):
    x = RNG.choice([-1.0, 1.0], shape).astype(np.float32)
    agree(running(1), x, length=shape[1])


def test_running_extremes_keep_nan_and_running_sums_take_views():
    x = normal(6, 35)
    x[2, ::3] = np.nan
    found = agree(lambda g, x: [x.cummax(0), x.cummin(0), x.cummax(1)], x)
    assert np.isnan(found[0][2:, 0]).all()
    assert not np.isnan(found[0][:2]).any()
    views = lambda g, x: [x.transpose().cumsum(0), x[::2, 1:].cumsum(0), x.flip(1).cumsum(1)]  # noqa: E731
    agree(views, normal(40, 35), length=40)


@settings(max_examples=examples(3), deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.data())
def test_running_along_any_axis_of_any_shape(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    agree(lambda g, x: [x.cumsum(axis, True), x.cummax(axis)], normal(*shape), length=40)
