"""Loops on a GPU: by elements in one dispatch, any other body as dispatches of its steps."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.codegen.simt.families import template_of
from tests.conformance.devices import run_on
from tests.cpu.test_loops import CLOSE, elementwise, looked_up, recurrent, summed
from tests.gpu import needs_gpu
from tests.random_loops import nested_loop, random_loop

pytestmark = needs_gpu


def forms(graph):
    """The templates of a graph's loops."""
    specs, machine = lower_for("gpu", graph).specs.values(), opened().machine
    return [template_of(spec, machine).name for spec in specs if spec.kind == "loop"]


def check(graph, values, close=1e-9):
    """Results agree with the interpreter."""
    for found, expected in zip(
        run_on("gpu", graph, values), darner.run(graph, values), strict=True
    ):
        assert found.dtype == expected.dtype
        expected = expected.astype(np.float64)
        scale = float(np.abs(expected).max(initial=1.0))
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=close, atol=close * scale
        )


@pytest.mark.parametrize("seed", range(10))
def test_random_loops_compute_what_the_interpreter_computes(seed):
    check(*random_loop(300 + seed))


def test_a_loop_in_a_loop_computes_what_the_interpreter_computes():
    check(*nested_loop())


@pytest.mark.parametrize("length", [0, 1, 2, 50])
@pytest.mark.parametrize("width", [20, 64])
def test_steps_that_are_no_multiple_of_what_can_be_bound_are_read_and_stacked(length, width):
    check(*recurrent(length, batch=3, width=width, reverse=width == 20), close=5e-6)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("shape", [(), (3,), (100,), (4, 33)])
def test_loops_by_elements_are_one_dispatch(shape, dtype):
    graph, values = elementwise(shape, 4, dtype, reverse=len(shape) == 1)
    assert forms(graph) == ["element loops"]
    check(graph, values, CLOSE[dtype])


@pytest.mark.parametrize("length", [0, 1, 4000])
def test_loops_by_elements_of_any_length(length):
    graph, values = elementwise((5,), length, counted=True)
    check(graph, values, 5e-5)


def test_carries_that_are_exchanged_are_not_lost():
    graph = Graph()
    start = graph.input("a", (5,)), graph.input("b", (5,))
    last, written = graph.iterate(lambda ab, _: ((ab[1], ab[0] + ab[1]), ab[0]), start, length=9)
    graph.set_outputs([*last, written])
    assert forms(graph) == ["element loops"]
    check(graph, {"a": np.arange(5, dtype=np.float32), "b": np.ones(5, np.float32)})


def test_a_carry_that_no_step_changes_is_a_result():
    body = Graph()
    h, s = body.input("h", (6,)), body.input("s", (6,))
    body.set_outputs([h * s, s])
    graph = Graph()
    leaves = [graph.input("start", (6,)), graph.input("kept", (6,))]
    graph.set_outputs(list(graph.loop(leaves, [], [], body.freeze(), 3)))
    values = {"start": np.arange(6, dtype=np.float32), "kept": np.full(6, 0.5, np.float32)}
    check(graph, values, 1e-6)


def test_training_of_a_loop_is_that_of_the_cpu():
    values = np.random.default_rng(0).normal(size=(6, 3, 20)).astype(np.float32)
    start = np.random.default_rng(1).normal(size=(20, 20)).astype(np.float32) * 0.2
    found = []
    for device in ("gpu", "cpu"):
        with darner.build_session(summed(6), optimizer=None, device=device) as session:
            session.set_parameter("w", start)
            session.run({"xs": values})
            found.append(session.gradients()["w"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_body_that_can_fail_is_refused_with_its_label_and_what_would_help():
    with pytest.raises(
        darner.UnsupportedError, match=r"gather 'row'.*body of a loop.*device='cpu'"
    ):
        lower_for("gpu", looked_up())


def test_more_dispatches_than_a_gpu_takes_are_refused():
    graph, values = recurrent(20000)
    with pytest.raises(darner.UnsupportedError, match="a loop of 20000 steps"):
        run_on("gpu", graph, values)
