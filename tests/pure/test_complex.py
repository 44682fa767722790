"""Complex numbers: their parts, and gradients as PyTorch's; and derivatives of transforms of them."""

import numpy as np
import pytest
import torch

import darner
from darner import Graph
from darner.graph.errors import ArgumentError, DTypeError, ShapeError


def numbers(*shape, seed=0):
    parts = np.random.default_rng(seed).uniform(-2, 2, (2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


LOSSES = {
    "real": (lambda z: (z.real() * z.imag()).sum(), lambda z: (z.real * z.imag).sum()),
    "abs": (lambda z: (z.abs() ** 3.0).sum(), lambda z: (z.abs() ** 3.0).sum()),
    "square of norm": (
        lambda z: (z * z + 1.5j).complex_norm_sq().sum(),
        lambda z: ((z * z + 1.5j).abs() ** 2).sum(),
    ),
    "conjugate": (
        lambda z: (z.conjugate() * z * z).real().sum(),
        lambda z: (z.conj() * z * z).real.sum(),
    ),
    "complex": (
        lambda z: z.graph.complex(z.imag() * 2.0, z.real() ** 2.0).exp().imag().sum(),
        lambda z: torch.complex(z.imag * 2.0, z.real**2.0).exp().imag.sum(),
    ),
    "quotient": (
        lambda z: (1.0 / z + z.log()).imag().sum(),
        lambda z: (1 / z + z.log()).imag.sum(),
    ),
    "fft": (
        lambda z: (z.fft(axis=0, norm="ortho") * 1j).real().square().sum(),
        lambda z: (torch.fft.fft(z, dim=0, norm="ortho") * 1j).real.square().sum(),
    ),
    "inverse": (
        lambda z: z.fft(True, "backward").abs().sum(),
        lambda z: torch.fft.ifft(z).abs().sum(),
    ),
    "several axes": (
        lambda z: z.fftn([0, 1]).complex_norm_sq().sum(),
        lambda z: (torch.fft.fftn(z).abs() ** 2).sum(),
    ),
    "a real factor": (
        lambda z: (z.abs() * z).imag().sum(),
        lambda z: (z.abs() * z).imag.sum(),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_complex_leaves_are_those_of_torch(name):
    ours, theirs = LOSSES[name]
    values = numbers(4, 3)
    graph = Graph()
    graph.set_outputs([ours(graph.input("z", values.shape, "c64"))])
    value, gradient = darner.run(darner.value_and_grad(graph, ["z"]), {"z": values})
    z = torch.tensor(values, requires_grad=True)
    loss = theirs(z)
    loss.backward()
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, z.grad.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_tangents_agree_with_gradients(name):
    graph = Graph()
    graph.set_outputs([LOSSES[name][0](graph.input("z", (4, 3), "c64"))])
    values, direction = numbers(4, 3), numbers(4, 3, seed=1)
    wide = darner.in_float64(graph)
    (gradient,) = darner.run(darner.grad(wide, ["z"]), {"z": values})
    _, tangent = darner.run(darner.jvp(wide, ["z"]), {"z": values, "tangent_z": direction})
    np.testing.assert_allclose(tangent, (gradient.conj() * direction).real.sum(), rtol=1e-9)


def test_the_vjp_inside_is_the_plain_transpose():
    graph = Graph()
    z = graph.input("z", (3,), "c64")
    graph.set_outputs([z.fft()])
    values, weights = numbers(3), numbers(3, seed=1)
    _, found = darner.run(darner.vjp(graph, ["z"]), {"z": values, "d_output": weights})
    np.testing.assert_allclose(found, np.fft.fft(weights), rtol=1e-5)


def test_a_batch_of_complex_graphs_is_that_of_each():
    graph = Graph()
    z = graph.input("z", (4, 3), "c64")
    graph.set_outputs([z.fft(axis=0).conjugate(), z.abs(), z.imag()])
    values = numbers(5, 4, 3)
    found = darner.run(darner.vmap(graph, ["z"], 5), {"z": values})
    for each, *parts in zip(values, *found, strict=True):
        for part, wanted in zip(parts, darner.run(graph, {"z": each}), strict=True):
            np.testing.assert_allclose(part, wanted, rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_descends_on_complex_parameters_as_torch_does(momentum):
    start, target = numbers(3), numbers(3, seed=1)
    graph = Graph()
    w = graph.parameter("w", (3,), "c64")
    graph.set_outputs([((w * w) - target).complex_norm_sq().mean()])
    with darner.build_session(graph, device="cpu") as session:
        session.set_parameter("w", start)
        session.set_optimizer(darner.optim.SGD(0.05, momentum=momentum))
        for _ in range(5):
            session.step()
        found = session.get_parameter("w")
    w = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.05, momentum=momentum)
    for _ in range(5):
        optimizer.zero_grad()
        ((w * w - torch.tensor(target)).abs() ** 2).mean().backward()
        optimizer.step()
    np.testing.assert_allclose(found, w.detach().numpy(), rtol=1e-5)


def test_other_optimizers_refuse_complex_parameters_with_a_hint():
    graph = Graph()
    graph.set_outputs([graph.parameter("w", (3,), "c64").abs().sum()])
    for optimizer in (darner.optim.Adam(0.1), darner.optim.SGD(0.1, clip_norm=1.0)):
        with pytest.raises(
            ArgumentError, match=r"'w' is c64.*trains real floats.*complex\(re, im\)"
        ):
            darner.optim.training_step(graph, optimizer)


def test_a_complex_loss_is_refused():
    graph = Graph()
    graph.set_outputs([graph.input("z", (3,), "c64").sum()])
    with pytest.raises(ArgumentError, match=r"must be one float, but it is c64.*complex_norm_sq"):
        darner.grad(graph, ["z"])


def test_the_square_of_an_absolute_value_is_real_after_the_optimizer_too():
    graph = Graph()
    graph.set_outputs([graph.input("z", (3,), "c64").abs().square()])
    found = darner.optimize(graph)
    (value,) = darner.run(found, {"z": np.array([3 + 4j, 1j, 0], np.complex64)})
    np.testing.assert_allclose(value, [25, 1, 0], rtol=1e-6)


def test_absolute_values_neither_overflow_nor_vanish_on_the_cpu():
    z = np.array([3e38 + 1e38j, 1e-30 - 1e-30j, 0, np.inf + 1j], np.complex64)
    graph = Graph()
    graph.set_outputs([graph.input("z", (4,), "c64").abs()])
    with darner.build_inference_session(graph, device="cpu") as session:
        (found,) = session.run({"z": z}).values()
    np.testing.assert_allclose(found, np.abs(z), rtol=1e-6)


REAL = Graph()
X = REAL.input("x", (3,))
Z = REAL.input("z", (3,), "c64")
D = REAL.input("d", (3,), "f64")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: X.real(), DTypeError, "z must be complex, not f32"),
        (lambda: X.imag(), DTypeError, "complex"),
        (lambda: X.conjugate(), DTypeError, "conjugate.*z must be complex"),
        (lambda: X.complex_norm_sq(), DTypeError, "must be complex"),
        (lambda: X.complex_norm_sq_backward(X), DTypeError, "must be complex"),
        (lambda: Z.complex_norm_sq_backward(Z), DTypeError, "g must be f32"),
        (lambda: REAL.complex(Z, Z), DTypeError, "complex values"),
        (lambda: REAL.complex(X, np.ones(3)), DTypeError, "f64 has no complex type.*cast to f32"),
        (lambda: REAL.complex(D, X), DTypeError, "f64 has no complex type"),
        (lambda: REAL.complex(X, REAL.ones((4,))), ShapeError, "broadcast"),
        (lambda: Z.cast("f32"), ArgumentError, r"x\.real\(\)"),
    ],
)
def test_operands_of_wrong_kinds_are_errors(call, error, text):
    before = len(REAL)
    with pytest.raises(error, match=text):
        call()
    assert len(REAL) == before or text == "broadcast"
