"""Traces: who made the first NaN or infinity, that nothing is changed by asking, and sums of gradients."""

import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.reference.program import ReferenceProgram
from darner.graph.errors import ArgumentError, RunError, ShapeError, UnknownNameError
from darner.lower.lower import lower
from darner.optim import Adam, training_step
from darner.session.gradients import gradient_summary
from darner.session.statistics import PIECE, statistics
from darner.session.trace import trace_dispatches
from tests.conformance import examples
from tests.cpu.running import compiled, run_program
from tests.zoo import values


def model(name="model"):
    g = Graph(name)
    x = g.input("x", (4, 3))
    hidden = (x @ g.parameter("w", (3, 5))).relu(label="hidden")
    logs = (hidden * 3.0).log(label="logs")
    g.set_outputs([(logs @ g.parameter("v", (5, 2))).sum(label="loss")])
    return g


def reference(graph):
    return ReferenceProgram(lower(graph))


def native(threads):
    return lambda graph: compiled(graph, whole={"dot_general"}, threads=threads)


PROGRAMS = {
    "reference": reference,
    "one thread": native(1),
    "two threads": native(2),
    "three threads": native(3),
}


def filled(program, **leaves):
    plan = program.plan
    places = {**plan.leaves("input"), **plan.leaves("parameter"), **plan.leaves("state")}
    for name, value in leaves.items():
        program.arrays[places[name]][...] = value
    return program


def snapshot(program):
    leaves = {name: array.tobytes() for name, array in program.storage.items()}
    return leaves, [program.arrays[i].tobytes() for i in program.plan.outputs]


# --------------------------------------------------------------------------- who is to blame


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_the_logarithm_of_zero_is_found_with_its_line_and_element(make):
    x = np.ones((4, 3), np.float32)
    x[2] = -1.0  # its hidden values are zero
    program = filled(make(model()), x=x, w=1.0, v=1.0)
    found = trace_dispatches(program)
    assert found
    first = found.first
    assert first is found.dispatches[-1]
    assert first.made == ("inf",)
    assert first.cause.op == "log"
    assert first.cause.operands == (0.0,)
    assert first.cause.value == -math.inf
    assert first.cause.index == (2, 0)
    assert first.label == "logs"
    assert first.source.file == __file__
    with open(__file__) as file:
        assert ".log(label=" in file.readlines()[first.source.line - 1]
    (bad,) = [value for value in first.results if value.statistics.bad]
    assert bad.statistics.infinities == 5
    assert bad.statistics.first_bad == (2, 0)
    assert bad.statistics.shape == (4, 5)
    read = {value.name: value.statistics for value in first.operands}
    assert read["input 'x'"].minimum == -1.0
    text = str(found)
    assert "the first kernel to make an infinity:" in text
    assert "log(0) = -inf at [2, 0] of [4, 5]" in text
    assert "test_trace.py:" in text


def test_a_sound_step_has_nobody_to_blame():
    program = filled(native(2)(model()), x=1.0, w=1.0, v=1.0)
    found = trace_dispatches(program)
    assert not found
    assert found.first is None
    assert len(found.dispatches) == len(program.plan.kernels)
    assert "no kernel made a NaN or an infinity" in str(found)


@settings(max_examples=examples(10), deadline=None)
@given(row=st.integers(0, 12), column=st.integers(0, 6), threads=st.sampled_from([1, 2, 3]))
def test_the_first_bad_element_is_told_wherever_it_is(row, column, threads):
    g = Graph()
    g.set_outputs([(1.0 / g.input("x", (13, 7))).exp()])
    x = np.ones((13, 7), np.float32)
    x[row, column] = -0.0
    x[12, 6] = -0.0
    program = compiled(g, threads=threads)
    found = trace_dispatches(filled(program, x=x))
    program.close()
    # exp(-inf) is 0: what leaves the kernel is finite, so nothing went wrong.
    assert not found
    x[row, column] = 0.0
    program = compiled(g, threads=threads)
    found = trace_dispatches(filled(program, x=x))
    program.close()
    assert found.first.results[0].statistics.first_bad == (row, column)
    assert found.first.cause.op in ("div", "recip")
    assert found.first.cause.value in (math.inf, -math.inf)


def test_a_product_that_overflows_is_blamed_on_the_contraction():
    g = Graph()
    y = g.input("x", (3, 4)) @ g.parameter("w", (4, 2))
    g.set_outputs([y.tanh()])
    program = filled(native(2)(g), x=1e30, w=1e30)
    # The hyperbolic tangent hides it: the kernel's result is finite.
    assert not trace_dispatches(program)
    g = Graph()
    g.set_outputs([g.input("x", (3, 4)) @ g.parameter("w", (4, 2))])
    found = trace_dispatches(filled(native(2)(g), x=1e30, w=1e30))
    assert found.first.cause.op == "dot_general"
    assert found.first.kind == "contract"
    assert found.first.results[0].statistics.infinities == 6


def test_infinities_that_were_read_are_not_blamed_but_a_nan_made_of_them_is():
    g = Graph()
    x = g.input("x", (6,))
    total = x.sum(keepdims=True)
    g.set_outputs([x * 2.0, x - total])
    x = np.array([1, 2, np.inf, 3, 4, 5], np.float32)
    found = trace_dispatches(filled(native(1)(g), x=x))
    assert [leaf.name for leaf in found.leaves] == ["input 'x'"]
    assert found.leaves[0].statistics.first_bad == (2,)
    assert found.first.made == ("nan",)
    assert found.first.cause.op == "sub"
    assert found.first.cause.operands == (math.inf, math.inf)
    assert "before anything ran, input 'x': f32[6]" in str(found)


def test_a_mask_of_infinities_is_nobodys_fault():
    g = Graph()
    scores = g.input("scores", (4, 4))
    masked = g.where(g.input("keep", (4, 4), "bool"), scores, -math.inf)
    g.set_outputs([masked, masked.softmax()])
    keep = np.tril(np.ones((4, 4), bool))
    assert not trace_dispatches(filled(native(2)(g), scores=1.0, keep=keep))
    # With a row that keeps nothing, softmax divides nothing by nothing.
    keep[1] = False
    found = trace_dispatches(filled(native(2)(g), scores=1.0, keep=keep))
    assert found.first.made == ("nan",)
    assert found.first.cause.op == "sub"
    assert found.first.cause.operands == (-math.inf, -math.inf)


def test_operands_that_are_overwritten_are_told_as_they_were():
    g = Graph()
    held = g.state("held", (8,), init=1.0)
    x = g.input("x", (8,))
    g.set_update(held, (held - x).log())
    g.set_outputs([x * 2.0])
    program = native(2)(g)
    assert program.plan.updates == ((0, 0),)  # in place
    start = np.arange(8, dtype=np.float32)
    filled(program, held=start, x=3.0)
    found = trace_dispatches(program)
    assert found.first.made == ("nan", "inf")
    assert found.first.cause.operands == (-3.0,)
    assert found.first.cause.index == (0,)
    read = {value.name: value.statistics for value in found.first.operands}
    assert (read["state 'held'"].minimum, read["state 'held'"].maximum) == (0.0, 7.0)
    np.testing.assert_array_equal(program.storage["held"], start)


def test_a_threshold_blames_who_grows():
    g = Graph()
    x = g.input("x", (5,))
    small = (x * 10.0).sum(keepdims=True)
    g.set_outputs([small, small.sqrt()])
    program = filled(native(1)(g), x=0.5)
    assert not trace_dispatches(program)
    found = trace_dispatches(program, threshold=20.0)
    assert found.first.made == ("large",)
    assert found.first.results[0].statistics.largest == 25.0
    with pytest.raises(ArgumentError, match="threshold is 0"):
        trace_dispatches(program, threshold=0)


# --------------------------------------------------------------------------- nothing changes


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("every", [False, True])
def test_a_trace_leaves_parameters_states_and_outputs_as_they_were(make, every):
    graph = training_step(model(), Adam(1e-2))
    program = make(graph)
    inputs, params, _ = values(graph)
    inputs = {name: np.abs(value) for name, value in inputs.items()}
    run_program(program, inputs, {name: np.abs(value) + 1 for name, value in params.items()})
    before = snapshot(program)
    bad = np.full((4, 3), -1, np.float32)
    found = trace_dispatches(program, {"x": bad}, every=every)
    assert found.first.cause.op == "log"
    assert (len(found.dispatches) == len(program.plan.kernels)) == every
    assert snapshot(program) == before
    # The input has its own value again.
    np.testing.assert_array_equal(program.arrays[program.plan.leaves("input")["x"]], inputs["x"])


def test_a_step_after_a_trace_is_the_step_without_it():
    graph = training_step(model(), Adam(1e-2))
    inputs, params, _ = values(graph)
    params = {name: np.abs(value) + 1 for name, value in params.items()}
    inputs = {name: np.abs(value) for name, value in inputs.items()}
    plain, traced = native(2)(graph), native(2)(graph)
    for program in (plain, traced):
        run_program(program, inputs, params)
    trace_dispatches(traced, every=True)
    for program in (plain, traced):
        program.run()
    assert snapshot(plain) == snapshot(traced)


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ({"y": np.ones(3)}, UnknownNameError, "no input 'y'"),
        ({"x": np.ones((3, 4))}, ShapeError, r"input 'x' is \(4, 3\), but the value is \(3, 4\)"),
        ({"x": np.ones((4, 3), complex)}, RunError, "input 'x' is f32"),
    ],
)
def test_wrong_inputs_are_refused_before_anything_runs(inputs, error, text):
    program = filled(reference(model()), x=1.0, w=1.0, v=1.0)
    before = snapshot(program)
    with pytest.raises(error, match=text):
        trace_dispatches(program, inputs)
    assert snapshot(program) == before


# --------------------------------------------------------------------------- every dispatch


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_dispatch_is_listed_with_what_it_made(threads):
    g = Graph("listed")
    x = g.input("x", (9, 7))
    y = x.sum(axis=1, label="sums")
    z = (y * y).sum(label="total")
    g.set_outputs([y, z, g.input("zeros", (3,)) * 2.0])
    program = compiled(g, threads=threads)
    data = np.random.default_rng(0).normal(size=(9, 7)).astype(np.float32)
    found = trace_dispatches(filled(program, x=data), every=True)
    sums = data.astype(np.float64).sum(axis=1)
    made = {one.label: one.results[0].statistics for one in found.dispatches}
    assert made["sums"].minimum == pytest.approx(sums.min(), rel=1e-5)
    assert made["sums"].maximum == pytest.approx(sums.max(), rel=1e-5)
    assert made["sums"].mean == pytest.approx(sums.mean(), rel=1e-5)
    assert made["total"].mean == pytest.approx((sums**2).sum(), rel=1e-5)
    assert [one.flags for one in found.dispatches if one.label is None] == [("zero",)]
    lines = str(found.table()).splitlines()
    assert len(lines) == 2 + sum(len(kernel.results) for kernel in program.plan.kernels)
    assert any("sums" in line and "f32[9]" in line for line in lines)
    assert sum("zero" in line for line in lines[2:]) == 1
    program.close()


# --------------------------------------------------------------------------- statistics


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_statistics_are_those_of_numpy_in_f64(numbers):
    array = np.array(numbers, np.float32).reshape(-1, 1)
    found = statistics(array)
    finite = array[np.isfinite(array)].astype(np.float64)
    assert found.nans == np.isnan(array).sum()
    assert found.infinities == np.isinf(array).sum()
    assert found.zeros == (array == 0).sum()
    assert found.norm == pytest.approx(np.linalg.norm(finite))
    if finite.size:
        assert (found.minimum, found.maximum) == (finite.min(), finite.max())
        assert found.mean == pytest.approx(finite.mean())
        assert found.largest == np.abs(finite).max()
    else:
        assert found.mean is None
        assert found.largest == 0.0
    bad = np.argwhere(~np.isfinite(array))
    assert found.first_bad == (tuple(bad[0]) if len(bad) else None)


def test_statistics_of_large_narrow_and_odd_arrays():
    large = np.arange(2 * PIECE + 3, dtype=np.float32)
    found = statistics(large)
    assert found.maximum == 2 * PIECE + 2
    assert found.mean == pytest.approx(PIECE + 1)
    large[PIECE + 1] = np.nan
    assert statistics(large).first_bad == (PIECE + 1,)
    half = np.array([1.5, -2.0, np.inf], ml_dtypes.bfloat16)
    assert statistics(half).dtype == "bf16"
    assert (statistics(half).infinities, statistics(half).norm) == (1, 2.5)
    assert statistics(np.array([3 + 4j], np.complex64)).maximum == 5.0
    assert statistics(np.array([True, False])).mean == 0.5
    empty = statistics(np.zeros((0, 3), np.float32))
    assert (empty.size, empty.mean, empty.zero_share) == (0, None, 0.0)


# --------------------------------------------------------------------------- gradients


def test_a_summary_of_gradients_holds_those_of_the_reference():
    graph = darner.differentiate(model())
    program = native(2)(graph)
    inputs, params, _ = values(graph)
    inputs = {name: np.abs(value) + 0.1 for name, value in inputs.items()}
    params = {name: np.abs(value) + 0.1 for name, value in params.items()}
    run_program(program, inputs, params)
    names = list(graph.parameters)
    outputs = [program.arrays[i] for i in program.plan.outputs]
    found = gradient_summary(dict(zip(names, outputs[1:], strict=True)), program.storage)
    wanted = dict(zip(names, darner.run(graph, inputs, params, float64=True)[1:], strict=True))
    assert [one.name for one in found] == names
    for name, gradient in wanted.items():
        norm, weight = np.linalg.norm(gradient), np.linalg.norm(params[name])
        assert found[name].norm == pytest.approx(norm, rel=1e-5)
        assert found[name].gradient.largest == pytest.approx(np.abs(gradient).max(), rel=1e-5)
        assert found[name].gradient.mean == pytest.approx(gradient.mean(), rel=1e-5)
        assert found[name].ratio == pytest.approx(norm / weight, rel=1e-5)
        assert found[name].update_ratio is None
    total = math.sqrt(sum((gradient**2).sum() for gradient in wanted.values()))
    assert found.norm == pytest.approx(total, rel=1e-5)


def test_a_summary_tells_what_is_wrong_and_what_the_update_was():
    gradients = {
        "fine": np.array([0.3, -0.4]),
        "broken": np.array([np.nan, 1.0, np.inf]),
        "dead": np.zeros(4),
        "half": np.array([0.0, 3.0, 0.0, 4.0], ml_dtypes.bfloat16),
    }
    weights = {
        "fine": np.array([3.0, 4.0]),
        "broken": np.ones(3),
        "dead": np.zeros(4),
        "half": np.ones(4, ml_dtypes.bfloat16),
        "frozen": np.ones(2),
    }
    before = {"fine": np.array([3.0, 3.5])}
    found = gradient_summary(gradients, weights, before=before, updates={"half": np.full(4, 0.5)})
    assert found["fine"].update_ratio == pytest.approx(0.1)
    assert found["half"].update_ratio == pytest.approx(0.5)
    assert found["half"].norm == 5.0
    assert found["half"].gradient.zero_share == 0.5
    assert found["broken"].remarks == ("1 NaN", "1 Inf")
    assert math.isnan(found["broken"].norm)
    assert math.isnan(found.norm)
    assert found["dead"].remarks == ("all zero",)
    assert found["dead"].ratio is None
    text = str(found)
    assert text.startswith("gradients of 4 parameters: norm nan, 1 not finite, 1 all zero")
    assert "50.0 %" in text
    rows = json.loads(json.dumps(found.records(), allow_nan=False))
    assert [row["parameter"] for row in rows] == list(gradients)
    assert rows[1]["norm"] == "nan"
    assert rows[0]["norm"] == 0.5


def test_a_short_summary_shows_what_is_wrong_first_then_the_largest():
    gradients = {name: np.full(2, size) for name, size in (("a", 1), ("b", 9), ("c", 5), ("d", 0))}
    found = gradient_summary(gradients, dict(gradients), shown=2)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["d", "b"]
    assert lines[-1] == "  and 2 more of smaller norm"
    with pytest.raises(UnknownNameError, match="no gradient of 'e'"):
        found["e"]
    with pytest.raises(UnknownNameError, match="no parameter 'a'"):
        gradient_summary({"a": np.ones(2)}, {"b": np.ones(2)})
    with pytest.raises(ArgumentError, match="-1 parameters"):
        gradient_summary({}, {}, shown=-1)
    assert str(gradient_summary({}, {})) == "gradients of 0 parameters: norm 0"
