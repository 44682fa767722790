"""RLX's scans beside a loop of PyTorch, values and gradients; what they refuse."""

import numpy as np
import pytest
import torch

import darner
from darner import ArgumentError, Graph, ShapeError

LENGTH, SHAPE = 7, (2, 3)


def body(dtype, constants=0, steps=0):
    """``tanh(1.1 h * k + x)`` of a carry, so many constants and so many steps."""
    g = Graph("body")
    value = g.input("h", SHAPE, dtype) * 1.1
    for i in range(constants):
        value = value * g.input(f"k{i}", SHAPE, dtype)
    for i in range(steps):
        value = value + g.input(f"x{i}", SHAPE, dtype)
    g.set_outputs([value.tanh()])
    return g


CALLS = {
    "scan": lambda g, d, h, k, x: g.scan(h, body(d), LENGTH),
    "scan_with_xs": lambda g, d, h, k, x: g.scan_with_xs(h, [x], body(d, 0, 1), LENGTH),
    "scan_with_bcasts_and_xs": lambda g, d, h, k, x: g.scan_with_bcasts_and_xs(
        h, [k], [x], body(d, 1, 1), LENGTH
    ),
    "scan_trajectory": lambda g, d, h, k, x: g.scan_trajectory(h, body(d), LENGTH),
    "scan_checkpointed": lambda g, d, h, k, x: g.scan_checkpointed(h, body(d), LENGTH, 3),
}


def read(name):
    """Whether a scan reads constants, and steps."""
    return "bcasts" in name, "xs" in name


def in_torch(name, h, k, x):
    constants, steps = read(name)
    found = []
    for t in range(LENGTH):
        h = torch.tanh(1.1 * h * (k if constants else 1.0) + (x[t] if steps else 0.0))
        found.append(h)
    return torch.stack(found) if name == "scan_trajectory" else h


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_torch(name, dtype):
    rng = np.random.default_rng(4)
    arrays = {"h": rng.normal(size=SHAPE), "k": rng.normal(size=SHAPE)}
    arrays["x"] = rng.normal(size=(LENGTH, *SHAPE))
    g = Graph(name)
    leaves = [g.input(key, value.shape, dtype) for key, value in arrays.items()]
    out = CALLS[name](g, dtype, *leaves)
    weight = rng.normal(size=out.shape)
    g.set_outputs([out, (out * g.constant(weight.astype(out.dtype.numpy))).sum()])
    moving = ["h", *(key for key, flag in zip("kx", read(name), strict=True) if flag)]
    loss = g.copy()
    loss.set_outputs(loss.outputs[1:])
    values = darner.run(g, arrays)
    gradients = darner.run(darner.grad(loss, moving), arrays)

    tensors = {key: torch.tensor(value, requires_grad=True) for key, value in arrays.items()}
    theirs = in_torch(name, *tensors.values())
    (theirs * torch.tensor(weight)).sum().backward()
    tolerance = 1e-12 if dtype == "f64" else 2e-5
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(values[0], theirs.detach().numpy(), **close)
    for key, gradient in zip(moving, gradients, strict=True):
        np.testing.assert_allclose(gradient, tensors[key].grad.numpy(), **close)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_the_backward_scans_are_the_gradients_of_scan(count):
    """With the transposed body that ``vjp`` makes, from all carries and from some."""
    rng = np.random.default_rng(5)
    arrays = {"h": rng.normal(size=SHAPE), "x": rng.normal(size=(LENGTH, *SHAPE))}
    g = Graph("backward")
    h, x = (g.input(key, value.shape, "f64") for key, value in arrays.items())
    forward = body("f64", 0, 1)
    transposed = darner.vjp(forward, ["h", "x0"])
    transposed.set_outputs(transposed.outputs[1:])
    every = g.loop([h], [], [x], doubled(forward), LENGTH)[1]
    ends = [-(-(k + 1) * LENGTH // count) - 1 for k in range(count)]
    kept = g.stack([every[t] for t in ends], axis=0)
    upstream = g.constant(rng.normal(size=SHAPE))
    found = [
        g.scan_backward(h, every, upstream, [x], transposed, LENGTH, False),
        g.scan_backward_xs(h, every, upstream, [x], transposed, LENGTH, False, 0),
        g.scan_backward_with_checkpoints(
            h, kept, upstream, [x], transposed, LENGTH, False, count, forward
        ),
        g.scan_backward_xs_with_checkpoints(
            h, kept, upstream, [x], transposed, LENGTH, False, 0, count, forward
        ),
    ]
    g.set_outputs([(g.scan_with_xs(h, [x], forward, LENGTH) * upstream).sum(), *found])
    wanted = darner.run(darner.grad(g, ["h", "x"]), arrays)
    _, *gradients = darner.run(g, arrays)
    for gradient, expected in zip(gradients, [*wanted, *wanted], strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-12)


def doubled(graph):
    """A body that also writes its carry."""
    both = graph.copy()
    both.set_outputs([both.outputs[0], both.outputs[0]])
    return both


def test_mistakes_are_told_at_the_call():
    g = Graph()
    h, x = g.input("h", SHAPE), g.input("x", (LENGTH, *SHAPE))
    two = doubled(body("f32"))
    with pytest.raises(ArgumentError, match="the body has 2 outputs, not 1: the next carry"):
        g.scan(h, two, 3)
    with pytest.raises(ShapeError, match=r"the body has 1 inputs \('h'\) for 2 operands"):
        g.scan_with_xs(h, [x], body("f32"), LENGTH)
    with pytest.raises(ArgumentError, match="checkpoints must be between 1 and the 7 steps"):
        g.scan_checkpointed(h, body("f32"), LENGTH, 0)
    transposed = body("f32", 0, 1)
    with pytest.raises(ArgumentError, match="the body_vjp has no input 'd_output'"):
        g.scan_backward(h, x, h, [x], transposed, LENGTH, False)
    back = darner.vjp(transposed, ["h", "x0"])
    back.set_outputs(back.outputs[1:])
    with pytest.raises(ShapeError, match="but it needs the carry after each of the 7 steps"):
        g.scan_backward(h, x[1:], h, [x], back, LENGTH, False)
    with pytest.raises(
        ShapeError, match=r"upstream is f32\[2, 3\], but its shape must be \[7, 2, 3\]"
    ):
        g.scan_backward(h, x, h, [x], back, LENGTH, True)
    with pytest.raises(ArgumentError, match="with checkpoints the forward_body is needed"):
        g.scan_backward_with_checkpoints(h, x[:3], h, [x], back, LENGTH, False, 3)
    with pytest.raises(ArgumentError, match="xs_idx must be within the 1 xs, not 1"):
        g.scan_backward_xs(h, x, h, [x], back, LENGTH, False, 1)
    with pytest.raises(ShapeError, match=r"the result is \(2, 3\), but \(3, 2\) was stated"):
        g.scan_backward(h, x, h, [x], back, LENGTH, False, (3, 2))
