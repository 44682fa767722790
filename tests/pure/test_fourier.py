"""Fourier transforms by name: NumPy's and RLX's factors, lengths, laws, and what is refused."""

import numpy as np
import pytest
import scipy.fft
import torch

import darner
from darner import FftNorm, Graph
from darner.graph.errors import ArgumentError, DTypeError, ShapeError


def rng(seed=0):
    return np.random.default_rng(seed)


def numbers(*shape, seed=0):
    return rng(seed).uniform(-2, 2, shape) + 1j * rng(seed + 1).uniform(-2, 2, shape)


def run(build, *arrays, wide=True):
    """The results of a graph of inputs, in f64."""
    graph = Graph()
    nodes = [
        graph.input(f"x{i}", a.shape, "c64" if np.iscomplexobj(a) else "f32")
        for i, a in enumerate(arrays)
    ]
    found = build(*nodes)
    graph.set_outputs(list(found) if isinstance(found, list | tuple) else [found])
    values = {f"x{i}": a for i, a in enumerate(arrays)}
    return darner.run(graph, values, float64=wide)


@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_words_mean_what_they_mean_in_numpy(norm, count):
    z, x = numbers(3, count), rng().uniform(-2, 2, (3, count))
    half = np.fft.rfft(x)
    found = run(
        lambda z, x, re, im: [
            z.fft(norm=norm),
            z.fft(True, norm),
            *x.rfft(norm, n=count),
            re.irfft(im, count, norm),
        ],
        *(z, x, half.real, half.imag),
    )
    spectrum = np.fft.rfft(x, norm=norm)
    wanted = [
        np.fft.fft(z, norm=norm),
        np.fft.ifft(z, norm=norm),
        spectrum.real,
        spectrum.imag,
        np.fft.irfft(half, count, norm=norm),
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize(
    ("norm", "forward", "inverse"),
    [(FftNorm.Backward, 1, 1), (FftNorm.Forward, 1, 1 / 6), (FftNorm.Ortho, 6**-0.5, 6**-0.5)],
)
def test_members_of_the_enum_mean_what_they_mean_in_rlx(norm, forward, inverse):
    z = numbers(2, 6)
    found = run(lambda z: [z.fft_norm(False, norm), z.fft_norm(True, norm)], z)
    np.testing.assert_allclose(found[0], np.fft.fft(z) * forward, atol=1e-12)
    np.testing.assert_allclose(found[1], np.fft.ifft(z) * 6 * inverse, atol=1e-12)
    assert not isinstance(norm, str)


@pytest.mark.parametrize("n", [1, 3, 6, 11])
def test_rfft_with_n_crops_and_pads_as_numpy_does(n):
    x = rng().uniform(-2, 2, (2, 6))
    re, im = run(lambda x: x.rfft(n=n), x)
    np.testing.assert_allclose(re + 1j * im, np.fft.rfft(x, n), atol=1e-12)


def test_transforms_along_several_axes_are_those_of_scipy():
    z = numbers(3, 4, 5)
    found = run(
        lambda z: [z.fftn(), z.fftn([2, 0]), z.ifftn((0, 1), "backward"), z.fft_axis(-2)], z
    )
    wanted = [
        scipy.fft.fftn(z),
        scipy.fft.fftn(z, axes=[0, 2]),
        scipy.fft.ifftn(z, axes=[0, 1]),
        scipy.fft.fft(z, axis=1),
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-11)


def test_a_block_is_real_parts_and_then_imaginary_ones_along_any_axis():
    z = numbers(5, 3)
    block = np.concatenate([z.real, z.imag], 0)
    (found,) = run(lambda x: x.fft(True, "ortho", 0), block)
    wanted = np.fft.ifft(z, axis=0, norm="ortho")
    np.testing.assert_allclose(found, np.concatenate([wanted.real, wanted.imag], 0), atol=1e-12)


def test_irfft_ignores_imaginary_parts_that_no_real_signal_has():
    re, im = rng().uniform(-2, 2, (2, 2, 5))
    (found,) = run(lambda re, im: re.irfft(im, 8), re, im)
    im[:, [0, -1]] = 0
    np.testing.assert_allclose(found, np.fft.irfft(re + 1j * im, 8, norm="forward"), atol=1e-12)


def test_signals_of_any_rank_come_back():
    x = rng().uniform(-2, 2, (2, 3, 5))
    (found,) = run(lambda x: x.graph.irfft(*x.rfft(), 5, "backward"), x)
    np.testing.assert_allclose(found, x, atol=1e-12)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(("frame", "hop"), [(8, 8), (6, 4), (5, 1), (20, 3)])
def test_short_time_transforms_are_those_of_frames(frame, hop, window):
    x = rng().uniform(-2, 2, (3, 20))
    weights = np.hanning(frame) if window else np.ones(frame)
    found = run(lambda x, w: x.stft(frame, hop, window=w if window else None), x, weights)[0]
    frames = np.lib.stride_tricks.sliding_window_view(x, frame, -1)[:, ::hop] * weights
    wanted = np.moveaxis(np.fft.rfft(frames, 1 << (frame - 1).bit_length()), 1, 0)
    np.testing.assert_allclose(found, np.concatenate([wanted.real, wanted.imag], -1), atol=1e-12)


def test_the_nodes_of_a_short_time_transform_do_not_depend_on_the_length():
    def size(length):
        graph = Graph()
        graph.set_outputs([graph.input("x", (2, length)).stft(16, 4)])
        return len(darner.expand(graph)), len(darner.expand(darner.vjp(graph, ["x"])))

    assert size(32) == size(32000)


def test_short_time_transforms_have_torchs_gradient():
    x, window = rng().uniform(-2, 2, (2, 30)).astype("f4"), np.hanning(8).astype("f4")
    graph = Graph()
    found = graph.input("x", x.shape).stft(8, 4, window=graph.input("w", (8,)))
    graph.set_outputs([(found * found).sum()])
    (gradient,) = darner.run(darner.grad(graph, ["x"]), {"x": x, "w": window})
    signal = torch.tensor(x, requires_grad=True)
    torch.fft.rfft(signal.unfold(-1, 8, 4) * torch.tensor(window)).abs().square().sum().backward()
    np.testing.assert_allclose(gradient, signal.grad.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["none", "backward", "forward", "ortho", *FftNorm])
def test_convolutions_are_numpys_whatever_the_norm(norm):
    a, b = rng().uniform(-2, 2, (3, 7)), rng(1).uniform(-2, 2, 4)
    found = run(lambda a, b: a.fft_conv1d(b, 32, norm), a, b)[0]
    wanted = np.array([np.convolve(row, b) for row in a])
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_are_numpys(n):
    graph = Graph()
    graph.set_outputs([graph.fftfreq_tensor(n), graph.rfftfreq_tensor(n)])
    assert [node.dtype.name for node in graph.outputs] == ["f64", "f64"]
    found = darner.run(graph)
    np.testing.assert_array_equal(found[0], np.fft.fftfreq(n))
    np.testing.assert_array_equal(found[1], np.fft.rfftfreq(n))


def test_power_densities_divide_by_the_length():
    x = rng().uniform(-2, 2, (2, 6))
    found = run(lambda x: [x.psd_real(), x.psd(x)], x)
    np.testing.assert_allclose(found[0], np.abs(np.fft.rfft(x, 8)) ** 2 / 8, atol=1e-12)
    np.testing.assert_allclose(found[1], 2 * x * x / 6, atol=1e-12)


def test_what_needs_no_padding_makes_no_node():
    graph = Graph()
    x = graph.input("x", (3, 8))
    assert x.pad_last_axis_to_pow2() is x
    assert x.fftn([]) is x
    assert len(graph) == 1


@pytest.mark.parametrize("build", [lambda x: x.fft(), lambda x: x.rfft(n=6)[1]])
def test_lengths_may_be_symbols(build):
    graph = Graph()
    graph.set_outputs([build(graph.input("x", ("batch", 6))).sum()])
    bound = darner.grad(graph, ["x"]).bind(batch=3)
    fixed = Graph()
    fixed.set_outputs([build(fixed.input("x", (3, 6))).sum()])
    values = {"x": rng().uniform(-2, 2, (3, 6))}
    for one, other in zip(
        darner.run(bound, values), darner.run(darner.grad(fixed, ["x"]), values), strict=True
    ):
        np.testing.assert_allclose(one, other)


def test_a_length_that_is_a_symbol_has_a_gradient_too():
    graph = Graph()
    x = graph.input("x", ("n",))
    re, im = graph.concat([x, x * 2.0]).real_fft()
    graph.set_outputs([(re * re + im * im).sum()])
    gradient = darner.grad(graph, ["x"])
    for n in (5, 6):
        x = rng().uniform(-2, 2, n).astype("f4")
        signal = torch.tensor(x, requires_grad=True)
        torch.fft.rfft(torch.cat([signal, 2 * signal])).abs().square().sum().backward()
        (found,) = darner.run(gradient.bind(n=n), {"x": x})
        np.testing.assert_allclose(found, signal.grad.numpy(), rtol=1e-5, atol=1e-4)


def test_graphs_print_and_are_read_back():
    graph = Graph("spectra")
    x, z = graph.input("x", (3, 6)), graph.input("z", (2, 5), "c64")
    graph.set_outputs([*x.rfft(FftNorm.Ortho, n=5), z.fft(True, "backward", 0).abs(), x.stft(4, 2)])
    for made in (graph, darner.expand(graph)):
        assert str(Graph.from_text(made.to_text())) == str(made)
        assert Graph.from_json(made.to_json()).digest() == made.digest()
    assert 'norm="ortho"' in str(graph)


WRONG = Graph()
X = WRONG.input("x", (3, 7))
Z = WRONG.input("z", (3, 4), "c64")
EMPTY = WRONG.input("empty", (3, 0))
SCALAR = WRONG.input("scalar", ())
FREE = WRONG.input("free", (3, "n"))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: X.fft(), ShapeError, r"fft: x is f32\[3, 7\]: axis 1 has size 7.*rfft takes real"),
        (lambda: EMPTY.fft(), ShapeError, "axis 1 has no elements to transform"),
        (lambda: SCALAR.fft(), ArgumentError, "axis -1 does not exist in a scalar"),
        (lambda: Z.fft(norm="backwards"), ArgumentError, "norm.*'none' or|expected one of"),
        (lambda: Z.fft(axis=2), ArgumentError, "axis 2 is outside"),
        (lambda: Z.fft("yes"), ArgumentError, "inverse"),
        (lambda: X.fftn([0, 1]), DTypeError, r"2 axes need complex numbers.*complex\(re, im\)"),
        (lambda: Z.fftn([0, 0]), ArgumentError, "one axis twice"),
        (lambda: Z.fftn([5]), ArgumentError, "axis 5 is outside"),
        (lambda: Z.rfft(), DTypeError, "complex values"),
        (lambda: Z.real_fft(), DTypeError, "complex values"),
        (lambda: Z.stft(2, 1), DTypeError, "complex values"),
        (lambda: EMPTY.rfft(), ShapeError, "no elements to transform"),
        (lambda: SCALAR.rfft(n=4), ShapeError, "no axis to transform"),
        (lambda: FREE.rfft(), ShapeError, "symbolic size n.*bind"),
        (lambda: X.rfft(n=0), ArgumentError, "n must be at least 1"),
        (lambda: X.irfft(X, 20), ShapeError, "n=20 needs 17 or 11 bins, not 7"),
        (lambda: X.irfft(X[:, :5], 8), ShapeError, r"re and im are \(3, 7\) and \(3, 5\)"),
        (lambda: X.inverse_real_fft(X, 8), ShapeError, "n=8 needs 5 bins, not 7"),
        (lambda: X.split_spectrum(), ShapeError, "has size 7"),
        (lambda: Z.split_spectrum(), DTypeError, r"the spectrum is c64.*real\(x\)"),
        (lambda: EMPTY.pad_last_axis_to_pow2(), ShapeError, "no elements to transform"),
        (lambda: X.stft(8, 1), ShapeError, "7 elements, and a frame 8"),
        (lambda: X.stft(4, 0), ArgumentError, "hop must be at least 1"),
        (lambda: X.stft(0, 1), ArgumentError, "frame_len must be at least 1"),
        (lambda: X.stft(4, 1, window=X), ShapeError, r"window must be \(4,\)"),
        (lambda: X.fft_conv1d(EMPTY), ShapeError, "b's last axis has no elements"),
        (lambda: X.psd(SCALAR), ShapeError, "re and im are"),
        (lambda: WRONG.fftfreq_tensor(0), ArgumentError, "n must be at least 1"),
        (lambda: WRONG.rfftfreq_tensor(2.5), ArgumentError, "n must be an integer"),
    ],
)
def test_what_cannot_be_transformed_is_an_error_of_the_call(call, error, text):
    with pytest.raises(error, match=text):
        call()
    WRONG.verify()
