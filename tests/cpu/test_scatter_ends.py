"""Sums by index that go on element by element: an embedding's gradient with its optimizer's update, in one kernel."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph, optim
from darner.backends.base.cache import ObjectCache
from darner.backends.cpu.runtime.program import CpuProgram
from darner.lower import roles
from darner.lower.lower import lower
from darner.lower.plan import Plan
from darner.testing import assert_close
from tests.conformance import examples
from tests.cpu.running import run_program

RNG = np.random.default_rng(11)


@pytest.fixture(scope="module", autouse=True)
def _however_many_indices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roles, "PER_INDEX", 0)
        yield


def scaled(g, sums, axis):
    g.set_outputs([sums * 0.5 - 1.0])


def momentum(g, sums, axis):
    p, m = (g.state(name, sums.shape, sums.dtype) for name in "pm")
    moved = m * 0.9 + sums
    g.set_update(m, moved)
    g.set_update(p, p - moved * 0.1)
    g.set_outputs([])


def adam(g, sums, axis):
    p, m, v = (g.state(name, sums.shape, sums.dtype) for name in "pmv")
    first, second = m * 0.9 + sums * 0.1, v.square() * 0.99 + sums.square() * 0.01
    g.set_update(m, first)
    g.set_update(v, second)
    g.set_update(p, p * 0.99 - first / (second.sqrt() + 0.1))
    g.set_outputs([])


def along_columns(g, sums, axis):
    """With an operand that has only the last axis, and one that has none."""
    bias, rate = g.input("bias", sums.shape[-1:], sums.dtype), g.input("rate", (), sums.dtype)
    g.set_outputs([(sums + bias) * rate])


def along_places(g, sums, axis):
    """With an operand that has only the axis of the indices, and results of other types."""
    shape = [size if k == axis else 1 for k, size in enumerate(sums.shape)]
    total = sums * g.input("weight", shape, sums.dtype)
    g.set_outputs([total, total > 0.0, total.cast("f64")])


def turned(g, sums, axis):
    """With an operand that is read across."""
    g.set_outputs([sums + g.input("x", sums.shape[::-1], sums.dtype).transpose()])


RULES = (scaled, momentum, adam, along_columns, along_places, turned)


def summed(rule, indices, shape, axis, dtype="f32"):
    g = Graph()
    src = g.input("src", (*shape[:axis], *indices, *shape[axis + 1 :]), dtype)
    sums = g.scatter_add(g.input("i", indices, "i32"), src, shape[axis], axis=axis)
    rule(g, sums, axis)
    return g


def drawn(graph, size, numbers=None):
    """Values of all leaves; the indices are numbers below ``size``, or those that are given."""
    inputs = {name: drawn_for(node) for name, node in graph.inputs.items()}
    shape = graph.inputs["i"].shape
    inputs["i"] = RNG.integers(0, size, shape) if numbers is None else np.asarray(numbers)
    return inputs, {name: drawn_for(node) for name, node in graph.states.items()}


def drawn_for(node):
    return RNG.normal(size=node.shape).astype(node.dtype.numpy)


def run(graph, values, threads, cache, ended=None):
    """Outputs and states, by name, and the kinds of kernels."""
    inputs, states = values
    plan = lower(graph, target="cpu", whole=(), ended=ended)
    program = CpuProgram(plan, threads=threads, cache=cache)
    found = dict(states)
    try:
        outputs = run_program(program, inputs, {}, found)
    finally:
        program.close()
    return [*outputs, *(found[name] for name in sorted(found))], [s.kind for s in specs(plan)]


def specs(plan):
    return [plan.spec(kernel) for kernel in plan.kernels]


def agree(graph, values, length=1):
    """One kernel gives the bits of two, on any number of threads, and what the reference gives in f64."""
    with tempfile.TemporaryDirectory() as folder:
        cache = ObjectCache(Path(folder))
        apart, kinds = run(graph, values, 1, cache, ended=())
        assert "index" in kinds
        assert len(kinds) > 1
        for threads in (1, 2, 3):
            found, kinds = run(graph, values, threads, cache)
            assert kinds == ["index"]
            assert [a.tobytes() for a in found] == [a.tobytes() for a in apart]
    inputs, states = values
    wanted_states = dict(states)
    wanted = darner.run(graph, inputs, state=wanted_states, float64=True)
    wanted += [wanted_states[name] for name in sorted(wanted_states)]
    kind = graph.inputs["src"].dtype
    for a, b in zip(found, wanted, strict=True):
        if not kind.is_half:
            assert_close(a, b, kind, 16 * max(length, 1))
    return found


@settings(max_examples=examples(24), deadline=None)
@given(
    st.sampled_from(RULES),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.sampled_from([(), (0,), (1,), (7,), (90,), (3, 5), (2, 0)]),
    st.sampled_from(["f32", "f32", "f64", "bf16", "f16"]),
    st.data(),
)
def test_any_shape_along_any_axis_with_any_indices(rule, shape, indices, dtype, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    graph = summed(rule, indices, shape, axis, dtype)
    agree(graph, drawn(graph, shape[axis]), int(np.prod(indices)))


@pytest.mark.parametrize(
    ("shape", "axis", "count", "how"),
    [
        ((1301, 577), 0, 200, "random"),
        ((700, 640), 0, 3000, "one"),
        ((2, 40, 5003), 1, 60, "random"),
        ((90001, 5), 0, 2500, "random"),
        ((500_009,), 0, 1000, "ends"),
        ((3, 5000, 24), 1, 0, "random"),
        ((1, 400_001), 0, 9, "one"),
    ],
)
def test_much_is_shared_out_in_pieces_wherever_the_indices_point(shape, axis, count, how):
    size = shape[axis]
    numbers = {
        "random": None,
        "one": np.full(count, size - 1),
        "ends": [0, size - 1] * (count // 2),
    }
    graph = summed(adam, (count,), shape, axis)
    agree(graph, drawn(graph, size, numbers[how]), count if how != "random" else 8)


def test_results_that_lie_elsewhere_are_written_past_the_cache():
    def two(g, sums, axis):
        g.set_outputs([sums * 2.0 + 1.0, (sums - 1.0).square()])

    graph = summed(two, (50,), (3700, 576), 0)
    found = agree(graph, drawn(graph, 3700), 50)
    assert sum(array.nbytes for array in found) > 1 << 24


def test_rows_that_no_index_names_are_updated_by_a_gradient_of_zero():
    graph = summed(momentum, (3,), (20, 33), 0)
    inputs, states = drawn(graph, 20, [4, 11, 4])
    moved, table = agree(graph, (inputs, states))
    others = [row for row in range(20) if row not in (4, 11)]
    np.testing.assert_array_equal(moved[others], states["m"][others] * np.float32(0.9))
    wanted = states["p"] - moved * np.float32(0.1)
    np.testing.assert_array_equal(table, wanted)
    wanted = states["m"][4] * np.float32(0.9) + (inputs["src"][0] + inputs["src"][2])
    np.testing.assert_array_equal(moved[4], wanted)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_terms_of_16_bits_are_summed_in_f32_and_rounded_once(dtype):
    graph = summed(scaled, (8000,), (3, 40), 0, dtype)
    inputs, states = drawn(graph, 3, np.arange(8000) % 2)
    # One by one, in their own type, ones would add up to 256 or 2048 at most.
    inputs["src"] = np.ones_like(inputs["src"])
    (found,) = agree(graph, (inputs, states))
    wanted = np.array([1999, 1999, -1]).astype(found.dtype)
    np.testing.assert_array_equal(found, np.broadcast_to(wanted[:, None], (3, 40)))


@pytest.mark.parametrize("dtype", ["i32", "c64"])
def test_sums_of_integers_and_complex_numbers_go_on_too(dtype):
    g = Graph()
    src, i = g.input("src", (6, 30), dtype), g.input("i", (6,), "i32")
    g.set_outputs([g.scatter_add(i, src, 9) * 2])
    inputs = {"src": RNG.integers(-9, 9, (6, 30)).astype(src.dtype.numpy), "i": [1, 8, 1, 1, 0, 8]}
    (found,), kinds = run(g, (inputs, {}), 2, None)
    assert kinds == ["index"]
    np.testing.assert_array_equal(found, darner.run(g, inputs)[0])


# --------------------------------------------------------------------------- sessions and plans


def embedded(tied=False):
    g = Graph("embedded")
    tokens, labels = (g.input(name, (9,), "i32") for name in ("tokens", "labels"))
    table = g.parameter("table", (60, 17))
    x = g.embedding(tokens, table).tanh()
    head = table.transpose() if tied else g.parameter("head", (17, 60))
    g.set_outputs([g.cross_entropy_loss(x @ head, labels)])
    return g


TOKENS = {"tokens": np.array([3, 59, 3, 0, 7, 3, 7, 20, 41]), "labels": np.arange(9) * 6}
OPTIMIZERS = {
    "sgd": optim.SGD(0.1),
    "momentum": optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "adam": optim.Adam(0.01),
    "adamw": optim.AdamW(0.01, weight_decay=0.1),
    "lion": optim.Lion(0.01),
    "accumulated": optim.Adam(0.01, accumulate=2),
}


def trained_table(graph, optimizer, steps=4, **options):
    with darner.build_session(graph, optimizer=optimizer, init="normal", **options) as session:
        for _ in range(steps):
            session.run(TOKENS)
        kinds = [s.ops for s in specs(session.plan()) if "scatter_add" in s.ops]
        return session.parameters()["table"], kinds


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_embedding_is_trained_as_by_the_reference(name, tied):
    found, (ops,) = trained_table(embedded(tied), OPTIMIZERS[name], threads=2)
    wanted, _ = trained_table(embedded(tied), OPTIMIZERS[name], device="reference")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    # A gradient that a product adds to is that product's to finish.
    assert (len(ops) == 1) == tied


def test_a_clipped_gradient_is_needed_twice_and_so_in_memory():
    clipped = optim.Adam(0.01, clip_norm=0.5)
    found, (ops,) = trained_table(embedded(), clipped, threads=2)
    wanted, _ = trained_table(embedded(), clipped, device="reference")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    assert ops == ("scatter_add",)


def test_states_are_written_in_place_and_the_plan_is_read_back():
    graph = summed(adam, (5,), (30, 40), 0)
    plan = lower(graph, target="cpu")
    assert all(old == new for old, new in plan.updates)
    assert plan.arena_bytes == 0
    again = Plan.from_json(plan.to_json())
    assert again.digest() == plan.digest()
    assert [spec.kind for spec in specs(again)] == ["index"]
