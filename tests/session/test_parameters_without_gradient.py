"""Parameters that the loss does not depend on by a differentiable path: zeros, everywhere."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, optim

from .opening import opened

X = {"x": np.arange(8, dtype=np.float32).reshape(4, 2) / 8}

# How a float parameter p of shape (4,) takes part: a function of the graph, of x @ w and of p.
USES = {
    "unused": lambda g, y, p: y,
    "stopped": lambda g, y, p: y + p.stop_gradient(),
    "index": lambda g, y, p: y.gather(p.cast("i32")),
    "argmax": lambda g, y, p: y + p.argmax().cast("f32"),
    "comparison": lambda g, y, p: y + (p > 0.5).cast("f32"),
    "choice": lambda g, y, p: (p > 0.5).where(y, -2.0 * y),
    "rounding": lambda g, y, p: y + p.round(),
    "sign": lambda g, y, p: y + p.sign(),
    "integers between": lambda g, y, p: y + p.cast("i32").cast("f32"),
    "one hot": lambda g, y, p: y * p.argmax().one_hot(4),
}
uses = pytest.mark.parametrize("use", USES.values(), ids=USES)


def model(use):
    g = Graph("model")
    x, w, p = g.input("x", (4, 2)), g.parameter("w", (2,)), g.parameter("p", (4,))
    g.set_outputs([use(g, x @ w, p).square().mean(label="loss")])
    return g


START = {"w": np.array([0.5, -0.25], np.float32), "p": np.array([0.1, 0.9, 0.6, 0.3], np.float32)}


@uses
def test_the_gradient_is_zero_in_every_transform(use):
    g = model(use)
    for transformed in (darner.grad(g), darner.grad(g, ["w", "p"])):
        by_w, by_p = darner.run(transformed, X, START)
        assert np.any(by_w)
        np.testing.assert_array_equal(by_p, np.zeros(4))
    np.testing.assert_array_equal(darner.run(darner.grad(g, "p"), X, START)[0], np.zeros(4))
    np.testing.assert_array_equal(
        darner.run(darner.value_and_grad(g, "p"), X, START)[1], np.zeros(4)
    )
    back = darner.run(darner.vjp(g, "p"), {**X, "d_output": np.float32(1)}, START)
    np.testing.assert_array_equal(back[1], np.zeros(4))
    forward = darner.run(darner.jvp(g, "p"), {**X, "tangent_p": np.ones(4)}, START)
    assert forward[1] == 0
    for jacobian in (darner.jacrev(g, "p"), darner.jacfwd(g, "p")):
        np.testing.assert_array_equal(darner.run(jacobian, X, START)[0], np.zeros(4))


@uses
def test_a_session_has_the_zeros_too(use):
    with opened(model(use), params=START, level=0) as session:
        assert session.has_param_grad("p")
        session.run(X)
        assert list(session.gradients()) == ["w", "p"]
        np.testing.assert_array_equal(session.read_param_grad("p"), np.zeros(4))
        session.sgd_step(0.5)
        np.testing.assert_array_equal(session.read_param("p"), START["p"])


@uses
def test_an_optimizer_takes_zeros_for_a_gradient(use):
    decayed = optim.SGD(0.5, weight_decay=0.1)
    with opened(model(use), params=START, level=0, optimizer=decayed) as session:
        session.run(X)
        np.testing.assert_allclose(session.read_param("p"), START["p"] * 0.95, rtol=1e-6)


def test_a_frozen_parameter_stays_as_it_is():
    frozen = optim.SGD(0.5, weight_decay=0.1, multipliers={"p": 0.0})
    options = {"params": START, "level": 0, "keep_gradients": True}
    with opened(model(USES["unused"]), optimizer=frozen, **options) as session:
        assert (session.has_param_grad("w"), session.has_param_grad("p")) == (True, False)
        session.run(X)
        np.testing.assert_array_equal(session.read_param("p"), START["p"])


@pytest.mark.parametrize("dtype", ["i32", "bool"])
def test_integers_and_truth_values_have_none(dtype):
    g = Graph("model")
    x, w, p = g.input("x", (4, 2)), g.parameter("w", (2,)), g.parameter("p", (4,), dtype)
    g.set_outputs([((x @ w) * p.cast("f32")).mean(label="loss")])
    assert len(darner.grad(g).outputs) == 1
    with pytest.raises(ArgumentError, match=rf"'p' is {dtype}\[4\]: only floats have gradients"):
        darner.grad(g, "p")
    with opened(g, level=0) as session:
        assert not session.has_param_grad("p")
        session.run(X)
        assert list(session.gradients()) == ["w"]


def test_whether_there_is_a_gradient_is_known_before_sizes_are():
    g = Graph("model")
    x, w = g.input("x", ("rows", 2)), g.parameter("w", (2,))
    g.set_outputs([(x @ w).mean(label="loss")])
    with opened(g, level=0) as session:
        assert session.has_param_grad("w")


ONLY = {
    "argmax": lambda g, x, w, p: (x @ w).argmax().cast("f32") * p.argmax().cast("f32"),
    "comparison": lambda g, x, w, p: ((x @ w) > p).cast("f32").mean(),
}


@pytest.mark.parametrize("loss", ONLY.values(), ids=ONLY)
@pytest.mark.parametrize("wrt", [None, "w", ["w", "p"]])
def test_a_loss_without_any_derivative_is_an_error_that_names_all(loss, wrt):
    g = Graph("model")
    x, w, p = g.input("x", (4, 2)), g.parameter("w", (2,)), g.parameter("p", (4,))
    g.set_outputs([loss(g, x, w, p)])
    named = "'w'" if wrt == "w" else "'w', 'p'"
    with pytest.raises(ArgumentError, match=f"no gradient reaches {named}: the only way is"):
        darner.grad(g, wrt)
    if wrt is None:
        with pytest.raises(ArgumentError, match=f"no gradient reaches {named}: the only way is"):
            optim.training_step(g, optim.SGD(0.1))


def test_training_what_the_loss_does_not_depend_on_is_refused():
    g = model(USES["stopped"])
    only = optim.SGD(0.1, multipliers={"w": 0.0})
    for call in (
        lambda: optim.training_step(g, only),
        lambda: darner.build_session(g, optimizer=only, level=0),
    ):
        with pytest.raises(ArgumentError, match="depends on no parameter that is trained: 'p'"):
            call()
    with pytest.raises(ArgumentError, match="depends on no parameter that is trained: 'p'"):
        optim.training_step(g, optim.SGD(0.1), wrt="p")
