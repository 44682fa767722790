"""Random graphs of odd sizes, with their gradients, by native code: the reference's numbers on 1, 2 and 3 threads."""

import random
import tempfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner.backends.base.cache import ObjectCache
from darner.lower.roles import whole_ops
from tests.conformance import examples
from tests.cpu.running import compiled, run_program
from tests.optimizer.random_graphs import grown, with_loss

SIZES = (1, 2, 3, 5, 7, 17, 33)


def outputs_on(graph, inputs, params, threads, cache=None):
    program = compiled(graph, threads=threads, whole=whole_ops(), cache=cache)
    try:
        return run_program(program, inputs, params)
    finally:
        program.close()


def check(graph, values, close=1e-9):
    """Results of f64 graphs agree with the reference, and are bit-equal on any number of threads."""
    inputs = {name: values[name] for name in graph.inputs}
    params = {name: values[name] for name in graph.parameters}
    wanted = darner.run(graph, inputs, params)
    with tempfile.TemporaryDirectory() as folder:  # the code is the same for any number of threads
        first, *others = [
            outputs_on(graph, inputs, params, threads, ObjectCache(folder)) for threads in (1, 2, 3)
        ]
    for found in others:
        for a, b in zip(found, first, strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(first, wanted, strict=True):
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=1.0))
        np.testing.assert_allclose(a, b, rtol=close, atol=close * scale)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32))
def test_random_graphs_compute_what_the_reference_computes(seed):
    check(*grown(random.Random(seed), 10, SIZES))


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32))
def test_gradients_of_random_graphs_are_those_of_the_reference(seed):
    graph, values = grown(random.Random(seed), 8, SIZES)
    wrt = [name for name in values if name in graph.parameters or name in graph.inputs]
    check(darner.value_and_grad(with_loss(graph), wrt), values)


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32))
def test_optimized_random_graphs_compute_what_the_reference_computes(seed):
    graph, values = grown(random.Random(seed), 10, SIZES)
    optimized = darner.optimize(graph)
    inputs = {name: values[name] for name in graph.inputs}
    params = {name: values[name] for name in graph.parameters}
    found = outputs_on(optimized, inputs, params, 2)
    for a, b in zip(found, darner.run(graph, inputs, params), strict=True):
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=1.0))
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8 * scale)
