"""Fourier transforms on a GPU: in the memory of a workgroup, from dispatch to dispatch, as convolutions; and sessions."""

import numpy as np
import pytest

import darner
from tests.cpu.test_fft import VIEWS, assert_near, check_all, numbers, run


@pytest.mark.parametrize("count", [1, 2, 5, 8, 12, 17])
def test_transforms_of_every_kind_of_length_are_numpys(count):
    check_all(count, 3, "gpu")


@pytest.mark.slow
@pytest.mark.parametrize("count", [31, 360, 1024, 997, 4096, 5000, 2**16])
def test_longer_transforms_are_numpys(count):
    check_all(count, 2, "gpu")


def test_a_transform_that_no_workgroup_holds_goes_from_dispatch_to_dispatch():
    check_all(4096, 1, "gpu")


@pytest.mark.parametrize("name", ["transposed", "every second"])
def test_operands_may_be_views(name):
    ours, numpys = VIEWS[name]
    z = numbers(4, 4, 8)
    (found,) = run(lambda z: ours(z).fft(), "gpu", z=z)
    assert_near(found, np.fft.fft(numpys(z.astype("c16"))), 32)


def test_axes_may_be_anywhere():
    z = numbers(3, 6, 5)
    (found,) = run(lambda z: z.fftn(), "gpu", z=z)
    assert_near(found, np.fft.fftn(z.astype("c16")), 90)


def test_a_session_computes_spectra_and_their_gradients():
    x = np.random.default_rng(0).standard_normal((3, 40)).astype("f4")
    graph = darner.Graph("spectra")
    density = graph.input("x", x.shape).stft(16, 8)
    graph.set_outputs([(density * density).sum()])
    both = darner.value_and_grad(graph, ["x"])
    wanted = darner.run(both, {"x": x}, float64=True)
    with darner.build_inference_session(both, device="gpu") as session:
        found = list(session.run({"x": x}).values())
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-3)
