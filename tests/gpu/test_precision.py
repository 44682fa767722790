"""GPU sessions whose contractions multiply in fewer bits, beside the reference."""

import numpy as np
import pytest

import darner
from darner import Graph, optim
from tests.gpu import needs_gpu
from tests.session.precise import MODELS, assert_alike, found_by, perceptron, values_of

pytestmark = needs_gpu

CASES = [
    ("perceptron", "tf32"),
    ("perceptron", "f16"),
    ("convolutions", "bf16"),
    ("attention", "bf16"),
    pytest.param("recurrent", "f16", marks=pytest.mark.slow),
    pytest.param("convolutions", "tf32", marks=pytest.mark.slow),
    pytest.param("attention", "f16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_a_gpu_computes_what_the_reference_does(name, precision):
    graph = MODELS[name]()
    wanted = found_by(graph, "reference", precision)
    # Gradients of attention read the forward pass's result, rounded once more than where they compute it again.
    digits = 2.0 if name == "attention" else 1.0
    assert_alike(found_by(graph, "gpu", precision), wanted, precision, digits)


def test_a_step_that_overflows_changes_nothing_on_a_gpu():
    graph = perceptron()
    inputs, parameters = values_of(graph)
    options = {"optimizer": optim.Adam(1e-2), "precision": "f16", "cache": None}
    with darner.build_session(graph, device="gpu", **options) as session:
        session.parameters().update(parameters)
        session.run(inputs)
        before = {**session.parameters(), **session.state()}
        session.run({**inputs, "x": np.full_like(inputs["x"], 1e30)})
        after = {**session.parameters(), **session.state()}
        assert session.loss_scale == 2.0**15
    for name, value in before.items():
        if not name.startswith("loss_scale/"):
            np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_reduce_precision_of_several_kinds_in_one_kernel():
    x = (np.random.default_rng(0).normal(size=64) * np.exp2(np.arange(-32, 32))).astype(np.float32)
    g = Graph("reduced")
    leaf = g.input("x", (64,))
    kinds = [(8, 10), (8, 7), (5, 10), (5, 2)]
    g.set_outputs([leaf.reduce_precision(*bits) for bits in kinds])
    wanted = darner.run(g, {"x": x})
    with darner.build_inference_session(g, device="gpu", cache=None) as session:
        for found, value in zip(session.run({"x": x}).values(), wanted, strict=True):
            np.testing.assert_array_equal(found, value)
