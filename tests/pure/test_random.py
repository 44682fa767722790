"""Random numbers: known answers, distributions, independence of shape and type, streams and steps."""

import math

import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, NameTakenError, ShapeError
from darner.ops.random.bits import philox


@pytest.fixture(scope="module")
def stats():
    """SciPy's tests of distributions, which take a second to load: not while tests are collected."""
    from scipy import stats

    return stats


def draw(build, *, state=None, float64=False, **inputs):
    """One run of the node that ``build`` makes in a new graph."""
    graph = Graph("test")
    nodes = [graph.input(name, np.shape(a), np.asarray(a).dtype) for name, a in inputs.items()]
    graph.set_outputs([build(graph, *nodes)])
    return darner.run(graph, inputs, state=state, float64=float64)[0]


# --------------------------------------------------------------------------- bits


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, answer):
    words = philox(np.array(counter, np.uint64).reshape(4, 1), key)
    assert " ".join(f"{word:08x}" for word in words[:, 0]) == answer


def test_bits_start_with_the_known_answer():
    bits = draw(lambda g: g.random_bits((4,)))
    assert [f"{word:08x}" for word in bits] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@pytest.mark.parametrize(
    "name", ["random_bits", "random_uniform", "random_normal", "random_bernoulli"]
)
def test_an_element_is_the_same_in_every_shape(name):
    whole = draw(lambda g: getattr(g, name)((24,), seed=7))
    for shape in ((2, 3, 4), (24, 1), (5,), (1, 23), ()):
        part = draw(lambda g, shape=shape: getattr(g, name)(shape, seed=7))
        assert part.shape == shape
        np.testing.assert_array_equal(part.reshape(-1), whole[: part.size])


def test_seed_stream_and_step_each_change_every_word():
    base = draw(lambda g: g.random_bits((64,), 5, 1))
    others = [
        draw(lambda g: g.random_bits((64,), 6, 1)),
        draw(lambda g: g.random_bits((64,), 5 + 2**32, 1)),
        draw(lambda g: g.random_bits((64,), 5, 2)),
        draw(lambda g, s: g.random_bits((64,), 5, 1, s), step=np.int32(1)),
    ]
    for other in others:
        assert not np.any(base == other)
    np.testing.assert_array_equal(
        base, draw(lambda g, s: g.random_bits((64,), 5, 1, s), step=np.uint32(0))
    )


def test_bits_are_balanced_and_words_do_not_repeat():
    bits = draw(lambda g: g.random_bits((100_000,), 11))
    for place in range(32):
        ones = int(((bits >> np.uint32(place)) & 1).sum())
        assert abs(ones - 50_000) < 4 * math.sqrt(25_000)
    assert len(np.unique(bits)) > 99_990


# --------------------------------------------------------------------------- distributions


def test_uniform_numbers_are_spread_evenly(stats):
    x = draw(lambda g: g.random_uniform((100_000,), seed=1))
    assert x.min() >= 0
    assert x.max() < 1
    counts, _ = np.histogram(x, 50, (0, 1))
    assert stats.chisquare(counts).pvalue > 0.01
    assert abs(x.mean() - 0.5) < 4 / math.sqrt(12 * 100_000)
    serial = np.corrcoef(x[:-1], x[1:])[0, 1]
    assert abs(serial) < 4 / math.sqrt(100_000)


@pytest.mark.parametrize(("dtype", "bits"), [("f64", 24), ("f32", 24), ("f16", 11), ("bf16", 8)])
def test_uniform_numbers_are_the_top_bits_exactly(dtype, bits):
    words = draw(lambda g: g.random_bits((500,), 3))
    x = draw(lambda g: g.random_uniform((500,), seed=3, dtype=dtype))
    np.testing.assert_array_equal(x.astype(np.float64), (words >> (32 - bits)) / 2.0**bits)
    wide = draw(lambda g: g.random_uniform((500,), seed=3, dtype=dtype), float64=True)
    np.testing.assert_array_equal(x.astype(np.float64), wide)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (-3.0, 0.5), (0.0, 0.1), (100.0, 101.0)])
def test_uniform_numbers_never_reach_the_upper_end(dtype, low, high):
    x = draw(lambda g: g.random_uniform((20_000,), low, high, seed=2, dtype=dtype))
    ends = np.array([low, high]).astype(x.dtype)
    assert x.min() >= ends[0]
    assert x.max() < ends[1]
    assert x.dtype == ends.dtype


def test_a_range_of_one_number_gives_that_number():
    np.testing.assert_array_equal(draw(lambda g: g.random_uniform((3,), 2.5, 2.5)), [2.5] * 3)


def test_normal_numbers_are_normal(stats):
    x = draw(lambda g: g.random_normal((100_000,), 3.0, 2.0, seed=4))
    assert np.isfinite(x).all()
    assert stats.kstest((x - 3) / 2, "norm").pvalue > 0.01
    assert abs(x.mean() - 3) < 4 * 2 / math.sqrt(100_000)
    assert abs(x.std() - 2) < 4 * 2 / math.sqrt(200_000)
    assert abs(stats.skew(x)) < 4 * math.sqrt(6 / 100_000)
    assert abs(stats.kurtosis(x)) < 4 * math.sqrt(24 / 100_000)


def test_normal_numbers_in_f32_and_in_float64_are_the_same_but_for_rounding():
    narrow = draw(lambda g: g.random_normal((5000,), seed=6))
    wide = draw(lambda g: g.random_normal((5000,), seed=6), float64=True)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(narrow, wide, rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.997])
def test_bernoulli_hits_as_often_as_it_should(p):
    x = draw(lambda g: g.bernoulli((100_000,), p, seed=8))
    assert x.dtype == np.bool_
    assert abs(x.mean() - p) < 4 * math.sqrt(p * (1 - p) / 100_000)


def test_certain_events_are_certain():
    assert draw(lambda g: g.random_bernoulli((50,), 1.0)).all()
    assert not draw(lambda g: g.random_bernoulli((50,), 0.0)).any()


def test_integers_are_even_over_their_range(stats):
    x = draw(lambda g: g.random_integers((70_000,), -3, 4, seed=9))
    assert x.dtype == np.int32
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("span", [1, 2, 3, 65_535, 65_536, 65_537, 2**31 - 1, 2**31, 2**32 - 1])
def test_integers_are_the_upper_half_of_an_exact_product(span):
    words = draw(lambda g: g.random_bits((200,), 5))
    x = draw(lambda g: g.random_integers((200,), 0, span, seed=5, dtype="u32"))
    assert x.tolist() == [int(word) * span >> 32 for word in words]


def test_a_permutation_has_every_number_once_and_any_order(stats):
    graph = Graph("orders")
    graph.set_outputs([graph.random_permutation(4, step=True)])
    state = {}
    orders = [darner.run(graph, state=state)[0] for _ in range(600)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    counts = np.unique([tuple(order) for order in orders], axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.01


def test_sizes_may_be_symbols():
    graph = Graph("symbolic")
    x = graph.input("x", ("n",))
    graph.set_outputs(
        [
            graph.random_normal(("n", 2), seed=1),
            graph.random_permutation("n", seed=2),
            x.dropout(0.5, seed=3),
        ]
    )
    for n in (3, 5):
        normal, order, kept = darner.run(graph, {"x": np.ones(n, np.float32)})
        assert normal.shape == (n, 2)
        assert sorted(order) == list(range(n))
        assert set(kept.tolist()) <= {0.0, 2.0}


# --------------------------------------------------------------------------- streams and steps


def test_two_calls_draw_different_numbers_and_a_stream_repeats_them():
    graph = Graph("streams")
    first, second = graph.random_uniform((8,)), graph.random_uniform((8,))
    again = graph.random_uniform((8,), stream=first.attrs["stream"])
    graph.set_outputs([first, second, again])
    a, b, c = darner.run(graph)
    assert not np.any(a == b)
    np.testing.assert_array_equal(a, c)


def test_streams_stay_apart_in_a_graph_that_was_saved():
    graph = Graph("streams")
    first = graph.random_uniform((8,))
    graph.set_outputs([first])
    loaded = Graph.from_json(graph.to_json())
    assert loaded.random_uniform((8,)).attrs["stream"] != first.attrs["stream"]


def test_numbers_stay_the_same_from_run_to_run_without_a_step():
    graph = Graph("fixed")
    graph.set_outputs([graph.random_uniform((8,))])
    assert not graph.states
    np.testing.assert_array_equal(darner.run(graph)[0], darner.run(graph)[0])


def test_a_step_draws_anew_at_every_run_and_is_kept_in_the_state():
    graph = Graph("anew")
    with graph.scope("block"):
        noise = graph.random_uniform((8,), step=True)
        dropped = graph.constant(np.ones(64, np.float32)).dropout()
    graph.set_outputs([noise, dropped])
    assert list(graph.states) == ["random_step"]
    state = {}
    runs = [darner.run(graph, state=state) for _ in range(3)]
    assert state["random_step"] == 3
    assert len({noise.tobytes() for noise, _ in runs}) == 3
    assert len({mask.tobytes() for _, mask in runs}) == 3
    state = {"random_step": np.uint32(1)}
    for a, b in zip(darner.run(graph, state=state), runs[1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_count_of_runs_wraps_around():
    graph = Graph("wrap")
    graph.set_outputs([graph.random_step()])
    state = {"random_step": np.uint32(2**32 - 1)}
    darner.run(graph, state=state)
    assert state["random_step"] == 0


def test_all_random_ops_share_one_count_of_runs():
    graph = Graph("shared")
    x = graph.input("x", (4, 5))
    step = graph.random_step()
    assert graph.random_step() is step
    for node in (x.dropout(), x.sample(), graph.random_normal((3,), step=True)):
        assert node.operands[-1] is step
    assert len(graph.updates) == 1
    graph.verify()


def test_a_failed_call_leaves_no_count_and_no_stream_behind():
    graph = Graph("failed")
    x = graph.input("x", (4, 5))
    with pytest.raises(ArgumentError, match=r"rate must be in 0..1, got 1.5"):
        x.dropout(1.5)
    assert not graph.states
    assert not graph.updates
    assert len(graph) == 1
    assert x.dropout(0.5).attrs["stream"] == 0
    assert list(graph.states) == ["random_step"]
    graph.verify()


def test_a_leaf_of_the_same_name_is_not_taken_for_the_count():
    graph = Graph("taken")
    x = graph.input("random_step", (3,))
    with pytest.raises(NameTakenError, match=r"another leaf has it; .*pass step="):
        x.dropout()
    assert x.dropout(step=False).shape == (3,)


# --------------------------------------------------------------------------- dropout


def test_dropout_keeps_the_mean_and_drops_the_rate():
    x = np.ones(100_000, np.float32)
    found = draw(lambda g, x: x.dropout(0.3, seed=1), x=x)
    assert set(np.unique(found).tolist()) == {0.0, float(np.float32(1 / 0.7))}
    assert abs((found == 0).mean() - 0.3) < 4 * math.sqrt(0.21 / 100_000)


def test_dropout_at_its_ends():
    x = np.array([1.0, -2.0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(draw(lambda g, x: x.dropout(0.0), x=x), x)
    np.testing.assert_array_equal(draw(lambda g, x: x.dropout(1.0), x=x), np.zeros(4))


def test_dropout_drops_the_same_elements_in_every_type():
    masks = [
        draw(lambda g, x: x.dropout(0.3, step=False), x=np.ones(1000, dtype)) == 0
        for dtype in (np.float16, np.float32, np.float64)
    ]
    np.testing.assert_array_equal(masks[0], masks[1])
    np.testing.assert_array_equal(masks[0], masks[2])


def test_dropout_without_a_step_keeps_its_choice():
    graph = Graph("fixed")
    graph.set_outputs([graph.input("x", (64,)).dropout(step=False)])
    assert not graph.states
    values = {"x": np.ones(64, np.float32)}
    np.testing.assert_array_equal(darner.run(graph, values)[0], darner.run(graph, values)[0])


# --------------------------------------------------------------------------- sampling

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.0], np.float32)


def draws(count=20_000, **options):
    """How often each index comes up, over rows of equal logits."""
    rows = np.tile(LOGITS, (count, 1))
    ids = draw(lambda g, x: x.sample(**options), x=rows)
    assert ids.dtype == np.int32
    assert ids.shape == (count,)
    return np.bincount(ids, minlength=len(LOGITS))


def probabilities(kept, temperature=1.0):
    weights = np.zeros(len(LOGITS))
    weights[kept] = np.exp(LOGITS[kept].astype(np.float64) / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 2.0, "seed": 3}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 3, "seed": 9}, [1, 2, 3]),
        ({"top_k": 100, "seed": 5}, [0, 1, 2, 3, 4, 5]),
        ({"top_p": 0.9, "seed": 1}, [1, 2, 3]),
        ({"top_p": 0.5, "seed": 1}, [1, 3]),
        ({"min_p": 0.3, "seed": 1}, [1, 2, 3]),
        ({"top_k": 3, "top_p": 0.8, "seed": 7}, [1, 3]),
        ({"top_p": 0.95, "min_p": 0.3, "temperature": 1.5, "seed": 7}, [1, 2, 3]),
    ],
)
def test_ids_come_up_as_often_as_their_probability(options, kept, stats):
    counts = draws(**options)
    wanted = probabilities(kept, options.get("temperature", 1.0))
    assert counts[wanted == 0].sum() == 0
    assert stats.chisquare(counts[kept], wanted[kept] * counts.sum()).pvalue > 0.01


def test_top_k_keeps_exactly_k_of_equal_logits():
    ids = draw(lambda g, x: x.sample(3), x=np.zeros((500, 8), np.float32))
    assert set(ids.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 0.0}, {"top_p": 1e-9}])
def test_narrow_options_are_greedy(options):
    rows = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
    np.testing.assert_array_equal(draw(lambda g, x: x.sample(**options), x=rows), rows.argmax(-1))


def test_a_temperature_near_zero_takes_the_largest():
    rows = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
    ids = draw(lambda g, x: x.sample(temperature=1e-12), x=rows)
    np.testing.assert_array_equal(ids, rows.argmax(-1))


def test_greedy_takes_the_first_of_equal_logits_and_counts_nothing():
    graph = Graph("greedy")
    x = graph.input("x", (2, 3))
    graph.set_outputs([x.greedy(), x.sample(temperature=0.0)])
    assert not graph.states
    for ids in darner.run(graph, {"x": np.array([[1.0, 5, 5], [7, 7, 0]])}):
        assert ids.tolist() == [1, 0]


def test_impossible_ids_are_never_drawn():
    rows = np.full((2000, 5), -np.inf, np.float32)
    rows[:, [1, 3]] = 0
    for options in ({}, {"top_k": 4}, {"top_p": 0.99}):
        ids = draw(lambda g, x, options=options: x.sample(**options), x=rows)
        assert set(ids.tolist()) == {1, 3}


def test_the_call_of_rlx_states_the_shape_last():
    graph = Graph("rlx")
    x = graph.input("x", (3, 7))
    node = graph.sample(x, 5, 0.9, 0.7, 42, darner.Shape.new([3], "i32"))
    assert str(node.type) == "i32[3]"
    assert {k: node.attrs[k] for k in ("top_k", "top_p", "temperature", "seed")} == {
        "top_k": 5,
        "top_p": 0.9,
        "temperature": 0.7,
        "seed": 42,
    }
    with pytest.raises(ShapeError, match=r"the result is \(3,\), but \(4,\) was stated"):
        graph.sample(x, 5, 0.9, 0.7, 42, [4])
    with pytest.raises(darner.DTypeError, match="the result is i32, but f32 was stated"):
        graph.sample(x, 5, 0.9, 0.7, 42, darner.Shape.new([3], "f32"))


def test_sampling_draws_anew_at_every_run():
    graph = Graph("decode")
    graph.set_outputs([graph.input("x", (64, 50)).sample()])
    state, values = {}, {"x": np.zeros((64, 50), np.float32)}
    first, second = (darner.run(graph, values, state=state)[0] for _ in range(2))
    assert np.mean(first == second) < 0.2


# --------------------------------------------------------------------------- wrong calls


class Model:
    def __init__(self):
        self.g = Graph("wrong")
        self.x = self.g.input("x", (4, 3))
        self.empty = self.g.input("empty", (4, 0))
        self.scalar = self.g.input("scalar", ())
        self.ids = self.g.input("ids", (4,), "i32")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: m.g.random_bits((3,), seed=2**64), ArgumentError, "seed 18446744073709551616"),
        (lambda m: m.g.random_bits((3,), stream=-1), ArgumentError, "stream -1 is outside"),
        (lambda m: m.g.random_bits((-3,)), ShapeError, "-3 is negative"),
        (lambda m: m.g.random_bits((3,), step=m.ids), ShapeError, "step must be a scalar integer"),
        (lambda m: m.g.random_bits((3,), step=m.scalar), DTypeError, "step must be integers"),
        (lambda m: m.g.random_uniform((3,), seed=-1), ArgumentError, "seed -1 is outside"),
        (lambda m: m.g.random_uniform((3,), 2.0, 1.0), ArgumentError, "low 2.0 is above high 1.0"),
        (lambda m: m.g.random_uniform((3,), dtype="i32"), DTypeError, "a float type, not i32"),
        (lambda m: m.g.random_uniform((3,), 0, 1e6, dtype="f16"), ArgumentError, "fit in f16"),
        (lambda m: m.g.random_uniform((3,), -3e38, 3e38), ArgumentError, "range from -3e.38"),
        (lambda m: m.g.random_uniform((3,), 0, float("inf")), ArgumentError, "high inf"),
        (lambda m: m.g.random_uniform((3,), bits=30), ArgumentError, "bits 30 is outside 1..24"),
        (lambda m: m.g.random_uniform((3,), step=m.ids), ShapeError, "step must be a scalar"),
        (lambda m: m.g.random_normal((3,), 0.0, -1.0), ArgumentError, "std -1.0 is negative"),
        (lambda m: m.g.random_normal((3,), float("nan")), ArgumentError, "mean nan"),
        (lambda m: m.g.random_bernoulli((3,), -0.1), ArgumentError, "p must be in 0..1, got -0.1"),
        (lambda m: m.g.random_integers((3,), 4, 4), ArgumentError, "from 4 to below 4"),
        (lambda m: m.g.random_integers((3,), 0, 300, dtype="u8"), ArgumentError, "fit in u8"),
        (lambda m: m.g.random_integers((3,), 0, 3, dtype="f32"), DTypeError, "an integer type"),
        (lambda m: m.g.random_permutation(-2), ArgumentError, "n -2 is negative"),
        (lambda m: m.ids.cast("c64").dropout(), DTypeError, "complex"),
        (lambda m: m.x.dropout(-0.5), ArgumentError, "rate must be in 0..1, got -0.5"),
        (lambda m: m.x.dropout(step=m.ids), ShapeError, "step must be a scalar integer"),
        (lambda m: m.x.sample(-1), ArgumentError, "top_k -1 is negative; 0 keeps every index"),
        (lambda m: m.x.sample(top_p=0.0), ArgumentError, "top_p must be above 0 .* got 0.0"),
        (lambda m: m.x.sample(top_p=1.5), ArgumentError, "top_p must be above 0 .* got 1.5"),
        (lambda m: m.x.sample(min_p=2.0), ArgumentError, "min_p must be in 0..1, got 2.0"),
        (lambda m: m.x.sample(temperature=-1.0), ArgumentError, "temperature must be 0 or more"),
        (lambda m: m.empty.sample(), ShapeError, "nothing to choose from"),
        (lambda m: m.scalar.sample(), ShapeError, "nothing to choose from"),
    ],
)
def test_wrong_calls_are_refused(call, error, text):
    model = Model()
    with pytest.raises(error, match=text):
        call(model)
    assert not model.g.states
    assert not model.g.updates
