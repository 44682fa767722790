"""Fourier transforms on the CPU: lengths of every kind, layouts, threads, and sessions."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import compile_for, lower_for
from darner.backends.cpu.fft.lanes import is_direct
from darner.backends.cpu.fft.template import plan_of
from darner.backends.cpu.runtime.jit import Machine
from darner.codegen.ir.butterflies import Complex, butterfly
from darner.codegen.problems.fft import convolved_length, halves, is_smooth, radices, roots
from tests.conformance.devices import run_on

MACHINE = Machine("x86_64-unknown-linux-gnu", "znver4", "", 64, 2, 32 << 10, 1 << 20, 32 << 20)


def numbers(*shape, seed=0, kind="c8"):
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(kind)


def graph_of(build, **arrays):
    types = {"complex64": "c64", "float32": "f32", "float64": "f64"}
    graph = darner.Graph()
    nodes = [graph.input(name, a.shape, types[a.dtype.name]) for name, a in arrays.items()]
    found = build(*nodes)
    graph.set_outputs(list(found) if isinstance(found, tuple) else [found])
    return graph


def run(build, device="cpu", threads=None, **arrays):
    return run_on(device, graph_of(build, **arrays), arrays, threads)


def assert_near(found, wanted, count, rounding=1e-6):
    """Within the rounding of so many butterflies, by the largest value."""
    assert found.shape == wanted.shape
    limit = rounding * max(1.0, np.log2(count)) * max(np.abs(wanted).max(initial=0.0), 1e-30)
    assert np.abs(found - wanted).max(initial=0.0) <= limit


def check_all(count, rows, device="cpu"):
    """Complex both ways and real both ways, of one length."""
    z, x = numbers(rows, count), numbers(rows, count, seed=1).real.astype("f4").copy()
    half = np.fft.rfft(x.astype("f8"), norm="ortho")
    re, im = half.real.astype("f4"), half.imag.astype("f4")

    def build(z, x, re, im):
        forward, inverse = z.fft(), z.fft(True, "ortho")
        return forward, inverse, *x.real_fft("ortho"), re.inverse_real_fft(im, count, "ortho")

    found = run(build, device, z=z, x=x, re=re, im=im)
    wide = z.astype("c16")
    assert_near(found[0], np.fft.fft(wide), count)
    assert_near(found[1], np.fft.ifft(wide, norm="ortho"), count)
    assert_near(found[2] + 1j * found[3], half, count)
    assert_near(found[4], x, count)


LENGTHS = [1, 2, 3, 4, 5, 7, 9, 11, 15, 16, 17, 34, 64, 97, 100, 101, 121, 206]


@pytest.mark.parametrize("count", LENGTHS)
def test_transforms_of_every_kind_of_length_are_numpys(count):
    check_all(count, 3)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize(
    "count", [*range(6, 50), 107, 128, 210, 243, 289, 360, 1000, 1024, 997, 1525, 1891]
)
def test_transforms_of_more_lengths_are_numpys(count, rows):
    check_all(count, rows)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2**14, 10007, 20250, 2**17, 3 * 5**6])
def test_long_transforms_that_threads_share_are_numpys(count):
    check_all(count, 1)


@pytest.mark.parametrize("count", [8, 17, 60, 101])
def test_transforms_in_f64_are_exact_to_its_rounding(count):
    x = np.random.default_rng(0).standard_normal((5, 2 * count))
    (found,) = run(lambda x: x.fft(), x=x)
    wanted = np.fft.fft(x[:, :count] + 1j * x[:, count:])
    assert_near(found[:, :count] + 1j * found[:, count:], wanted, count, 2e-15)


@pytest.mark.parametrize("count", [6, 17, 101])
@pytest.mark.parametrize("inner", [1, 5, 40])
def test_axes_may_be_anywhere(count, inner):
    z = numbers(3, count, inner)
    (found,) = run(lambda z: z.fft(axis=1), z=z)
    assert_near(found, np.fft.fft(z.astype("c16"), axis=1), count)
    block = np.concatenate([z.real, z.imag], 1)
    (found,) = run(lambda x: x.fft(True, axis=1), x=block)
    wanted = np.fft.ifft(z.astype("c16"), axis=1, norm="forward")
    assert_near(found, np.concatenate([wanted.real, wanted.imag], 1), count)


VIEWS = {
    "transposed": (lambda z: z.swapaxes(1, 2), lambda z: z.swapaxes(1, 2)),
    "cut": (lambda z: z[:, 1:, 2:7], lambda z: z[:, 1:, 2:7]),
    "reversed": (lambda z: z.flip(2), lambda z: z[..., ::-1]),
    "every second": (lambda z: z[..., ::2], lambda z: z[..., ::2]),
    "rows in another order": (lambda z: z.transpose((1, 0, 2)), lambda z: z.transpose(1, 0, 2)),
    "merged": (lambda z: z.reshape((4, 32)), lambda z: z.reshape(4, 32)),
    "repeated": (
        lambda z: z[:1].broadcast_to((3, 4, 8)),
        lambda z: np.broadcast_to(z[:1], (3, 4, 8)),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_operands_may_be_views(name):
    ours, numpys = VIEWS[name]
    z = numbers(4, 4, 8)
    x = z.real.copy()
    found = run(lambda z, x: (ours(z).fft(), *ours(x).real_fft()), z=z, x=x)
    assert_near(found[0], np.fft.fft(numpys(z.astype("c16"))), 32)
    assert_near(found[1] + 1j * found[2], np.fft.rfft(numpys(x.astype("f8"))), 32)


PADDED = [(5, 8), (5, 12), (9, 7), (40, 100), (40, 64), (130, 256), (140, 97), (1, 3), (3, 2)]


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize(("length", "count"), PADDED)
def test_signals_are_padded_and_cropped_on_the_way(length, count, kind):
    for rows in (2, 19):
        x = np.random.default_rng(0).standard_normal((rows, length)).astype(kind)
        graph = graph_of(lambda x: x.rfft("ortho", n=count), x=x)
        assert len(lower_for("cpu", graph).kernels) == 1
        re, im = run_on("cpu", graph, {"x": x})
        wanted = np.fft.rfft(x.astype("f8"), count, norm="ortho")
        assert_near(re + 1j * im, wanted, count, 1e-6 if kind == "f4" else 2e-15)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 9, 33, 100, 257])
def test_what_is_behind_a_signal_is_not_written(length):
    for rows in (2, 19):
        x = np.random.default_rng(0).standard_normal((rows, length)).astype("f4")
        graph = graph_of(lambda x: x.graph.irfft(*x.rfft(), length, "backward"), x=x)
        assert len(lower_for("cpu", graph).kernels) == 2
        assert_near(run_on("cpu", graph, {"x": x})[0], x, length)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(("frame", "hop"), [(4, 2), (5, 3), (24, 5), (64, 64), (100, 1), (150, 7)])
def test_frames_are_read_where_they_lie(frame, hop, window):
    x = np.random.default_rng(0).standard_normal((3, 170)).astype("f4")
    weights = np.hanning(frame).astype("f4") if window else np.ones(frame, "f4")
    graph = graph_of(
        lambda x, w: x.stft(frame, hop, "ortho", window=w if window else None), x=x, w=weights
    )
    assert len(lower_for("cpu", graph).kernels) == 1
    (found,) = run_on("cpu", graph, {"x": x, "w": weights})
    wide = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), frame, -1)[:, ::hop] * weights
    size = 1 << (frame - 1).bit_length()
    wanted = np.moveaxis(np.fft.rfft(wide, size, norm="ortho"), 1, 0)
    assert_near(found, np.concatenate([wanted.real, wanted.imag], -1), size)


def test_views_may_be_transformed_along_other_axes():
    z = numbers(4, 4, 8)
    (found,) = run(lambda z: z.swapaxes(0, 2).fft(axis=1), z=z)
    assert_near(found, np.fft.fft(z.astype("c16").swapaxes(0, 2), axis=1), 4)


@pytest.mark.parametrize("shape", [(1, 16384), (5, 300), (64, 24)])
def test_any_number_of_threads_gives_the_same_bits(shape):
    z = numbers(*shape)
    found = [run(lambda z: z.fft(), threads=threads, z=z)[0] for threads in (1, 2, 3)]
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_one_result_of_two_may_be_left_out():
    x = np.random.default_rng(0).standard_normal((3, 12)).astype("f4")
    (im,) = run(lambda x: x.real_fft()[1], x=x)
    assert_near(im, np.fft.rfft(x.astype("f8")).imag, 12)


def test_large_numbers_are_not_lost_before_they_are_scaled():
    z = np.full((1, 64), 1e30 + 1e30j, np.complex64)
    (found,) = run(lambda z: z.fft(norm="forward"), z=z)
    np.testing.assert_allclose(found[0, 0], 1e30 + 1e30j, rtol=1e-5)


def test_nan_stays_in_its_row():
    z = numbers(3, 40)
    z[1, 3] = np.nan
    (found,) = run(lambda z: z.fft(), z=z)
    assert np.isnan(found[1]).all()
    assert_near(found[[0, 2]], np.fft.fft(z[[0, 2]].astype("c16")), 40)


@pytest.mark.parametrize(
    ("shape", "form"), [((256, 64), "rows"), ((1, 1024), "line"), ((4, 30, 64), "columns")]
)
def test_lanes_are_filled_by_what_there_is_most_of(shape, form):
    graph = graph_of(lambda z: z.fft(axis=1), z=np.zeros(shape, np.complex64))
    plan = lower_for("cpu", graph)
    (kernel,) = plan.kernels
    assert plan_of(plan.spec(kernel), MACHINE).form == form


class Plain(float):
    """A number that butterflies can compute with."""

    def __add__(self, other):
        return Plain(float(self) + float(other))

    def __sub__(self, other):
        return Plain(float(self) - float(other))

    def __mul__(self, other):
        return Plain(float(self) * float(other))

    def __neg__(self):
        return Plain(-float(self))

    def fma(self, factor, term):
        return Plain(float(self) * float(factor) + float(term))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16])
def test_butterflies_are_transforms(count):
    z = numbers(count, kind="c16")
    found = butterfly([Complex(Plain(a.real), Plain(a.imag)) for a in z])
    values = [complex(float(a.re), float(a.im)) for a in found]
    np.testing.assert_allclose(values, np.fft.fft(z), atol=1e-13)


def test_lengths_are_cut_into_what_there_are_butterflies_for():
    for count in range(1, 400):
        if is_direct(count):
            assert np.prod(radices(count), dtype=int) == count
            assert np.prod(halves(count, 16)) == count
        length = convolved_length(count)
        assert is_smooth(length)
        assert length >= 2 * count - 1


def test_roots_of_unity_are_exact_on_the_axes():
    np.testing.assert_array_equal(roots(np.arange(0, 12, 3), 12), [1, -1j, -1, 1j])
    wanted = np.exp(-2j * np.pi * np.arange(1000) / 1000)
    np.testing.assert_allclose(roots(np.arange(1000), 1000), wanted, atol=1e-15)


def test_a_session_learns_a_filter_in_the_frequency_domain():
    rng = np.random.default_rng(0)
    x, kernel = rng.standard_normal((16, 20)).astype("f4"), np.array([0.5, -0.25, 0.125], "f4")
    wanted = np.array([np.convolve(row, kernel) for row in x], np.float32)
    graph = darner.Graph("filter")
    signal, target = graph.input("x", x.shape), graph.input("y", wanted.shape)
    guess = signal.fft_conv1d(graph.parameter("kernel", (3,)))
    graph.set_outputs([(guess - target).square().mean()])
    with darner.build_session(graph, device="cpu") as session:
        session.set_parameter("kernel", np.zeros(3, np.float32))
        session.set_optimizer(darner.optim.Adam(0.05))
        session.set_input("x", x)
        session.set_input("y", wanted)
        for _ in range(200):
            session.step()
        np.testing.assert_allclose(session.get_parameter("kernel"), kernel, atol=1e-3)


def test_programs_close_with_constants_shared_by_kernels():
    z = numbers(3, 16)
    graph = graph_of(lambda z: (z.fft(), z.fft(True), z.conjugate().fft()), z=z)
    program = compile_for("cpu", lower_for("cpu", graph), 1)
    program.write(next(iter(program.plan.leaves("input").values())), z)
    program.run()
    found = [program.read(i) for i in program.plan.outputs]
    assert_near(found[2], np.fft.fft(z.conj().astype("c16")), 16)
    program.close()
