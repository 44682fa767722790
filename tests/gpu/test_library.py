"""Linear algebra and complex numbers on a GPU, and all of it on a smaller one."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.program import WgpuProgram
from darner.codegen.simt.families import written
from darner.graph import dtypes
from darner.graph.op import OPS
from darner.testing import make_case
from tests.conformance import examples
from tests.gpu import needs_gpu
from tests.gpu.test_index import agree, built, opened, outputs

pytestmark = needs_gpu

RNG = np.random.default_rng(11)


def matrices(*shape, dtype="f32"):
    """Square matrices that are far from singular, but whose diagonals are no good pivots."""
    order = shape[-1]
    values = RNG.normal(size=shape) + 4 * np.roll(np.eye(order), 1, 0)
    return values.astype(dtypes.dtype(dtype).numpy)


def definite(*shape, dtype="f32"):
    root = RNG.normal(size=shape)
    values = root @ root.swapaxes(-1, -2) + np.eye(shape[-1])
    return values.astype(dtypes.dtype(dtype).numpy)


def near(found, wanted, dtype, factor=100):
    """Within some hundred roundings of the largest value."""
    limit = factor * darner.testing.epsilon(dtype) if dtype in ("f32", "f64") else 0.05
    scale = max(float(np.abs(wanted).max(initial=0)), 1)
    np.testing.assert_allclose(found.astype(float), wanted, rtol=0, atol=limit * scale)


def solved(make, *arrays, dtype="f32", factor=100):
    g = built(make, arrays)
    values = {str(i): array for i, array in enumerate(arrays)}
    (found,) = outputs(g, values)
    for a, b in zip(found, darner.run(g, values, float64=True), strict=True):
        near(a, b, dtype, factor)
    return found


def systems(g, a, b):
    upper = {"lower": False, "unit_diagonal": True}
    return [
        g.solve(a, b),
        a.inverse(),
        *a.slogdet(),
        (a + 9.0 * g.eye(a.shape[-1], dtype=a.dtype)).triangular_solve(b),
        (a * 0.1).triangular_solve(b, **upper),
    ]


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_systems_of_a_batch(dtype):
    b = RNG.normal(size=(2, 3, 5, 3)).astype(dtypes.dtype(dtype).numpy)
    solved(systems, matrices(2, 3, 5, 5, dtype=dtype), b, dtype=dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_cholesky_reads_and_writes_the_lower_triangle(dtype):
    a = definite(3, 6, 6, dtype=dtype)
    a[:, 0, 1:] = np.nan
    (found,) = solved(lambda g, a: a.cholesky(), a, dtype=dtype)
    assert not found[:, 0, 1:].any()


@settings(max_examples=examples(3), deadline=None)
@given(st.integers(0, 40), st.integers(0, 20), st.lists(st.integers(0, 3), max_size=2))
def test_systems_of_any_size(order, sides, lead):
    solved(
        lambda g, a, b, c: [*systems(g, a, b), c.cholesky()],
        matrices(*lead, order, order, dtype="f64"),
        RNG.normal(size=(*lead, order, sides)),
        definite(*lead, order, order, dtype="f64"),
        dtype="f64",
        factor=1e5,
    )


def test_large_matrices_lie_in_scratch_memory():
    a, b = matrices(2, 131, 131), RNG.normal(size=(2, 131, 2)).astype(np.float32)
    make = lambda g, a, b, c: [g.solve(a, b), *a.slogdet(), c.cholesky()]  # noqa: E731
    solved(make, a, b, definite(2, 131, 131), factor=2000)
    plan = lower_for("gpu", built(make, (a, b, a)))
    assert all(written(spec, opened().machine).scratch for spec in plan.specs.values())


def test_rows_are_exchanged_for_the_largest_pivot():
    a = np.array([[1e-6, 1], [1, 1]], np.float32)
    (x,) = solved(lambda g, a, b: g.solve(a, b), a, np.array([[1], [2]], np.float32))
    np.testing.assert_allclose(x, [[1], [1]], atol=1e-5)


def test_a_singular_matrix_has_sign_0_and_what_is_unknown_stays_so():
    singular = np.zeros((3, 3), np.float32)
    unknown = np.full((3, 3), np.nan, np.float32)
    swapped = np.eye(3, dtype=np.float32)[::-1]
    values = {"0": np.stack([singular, swapped, unknown]), "1": np.stack([swapped, unknown])}
    values["2"] = np.ones((2, 3, 1), np.float32)
    g = built(lambda g, a, b, c: [*a.slogdet(), g.solve(b, c)], values.values())
    ((sign, logarithm, x),) = outputs(g, values)
    np.testing.assert_array_equal(sign, [0, -1, np.nan])
    np.testing.assert_array_equal(logarithm, [-np.inf, 0, np.nan])
    np.testing.assert_array_equal(x[0], np.ones((3, 1)))
    assert np.isnan(x[1]).all()


def test_gradients_go_through_systems():
    def loss(g, a, b, c):
        return g.solve(a, b).square().sum() + c.cholesky().sum() + a.slogdet()[1].sum()

    arrays = matrices(4, 4), RNG.normal(size=(4, 2)).astype(np.float32), definite(4, 4)
    g = darner.grad(built(loss, arrays), ["0", "1", "2"])
    values = {str(i): array for i, array in enumerate(arrays)}
    (found,) = outputs(g, values)
    for a, b in zip(found, darner.run(g, values, float64=True), strict=True):
        near(a, b, "f32", 500)


# --------------------------------------------------------------------------- complex numbers


def complex_numbers(*shape):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(np.complex64)


def test_complex_arithmetic():
    agree(
        lambda g, a, b: [
            *(a + b, a - b, a * b, a / b, -a, a.square(), a.recip(), a.chain(b), a * 2.0 + 1j),
            *(a.eq(b), a.ne(a), a.eq(b).where(a, b), a.chain(b * 0.0)),
        ],
        complex_numbers(3, 5),
        complex_numbers(1, 5),
    )


def test_complex_functions_on_both_sides_of_their_cuts():
    parts = np.array([-3.0, -0.5, 0.0, 1e-3, 2.0], np.float32)
    z = (parts[:, None] + 1j * parts).astype(np.complex64)
    agree(lambda g, z: [z.exp(), z.sqrt(), z.sin(), z.cos(), (z + (0.1 + 0.2j)).log()], z)


def test_a_complex_quotient_neither_overflows_nor_divides_by_the_smaller_part():
    b = np.array([1e30, 1e-30j, 3e20 + 3e20j, 1e-25 - 1e-25j], np.complex64)
    values = {"0": complex_numbers(4), "1": b}
    ((found,),) = outputs(built(lambda g, a, b: a / b, values.values()), values)
    np.testing.assert_allclose(found, values["0"].astype(np.complex128) / b, rtol=1e-5)


def test_complex_contractions_reductions_and_moves():
    agree(
        lambda g, a, b, i: [
            a @ b,
            a.sum(0),
            *(a.prod((0, 1)), a[:0].prod(0), a.cumprod(1, reverse=True)),
            *(a.transpose(), a.pad([(1, 2), (0, 1)], 0.5), a.flip(0), a[::2, 1:]),
            *(g.concat([a, b.transpose()]), g.gather(b, i), b.scatter(i, b[:4], 0)),
            i.cast("c64"),
        ],
        complex_numbers(3, 9),
        complex_numbers(9, 3),
        np.array([5, 0, 5, 8], np.int32),
    )


def test_complex_slices_of_one_index_are_multiplied():
    agree(
        lambda g, x, i, s: [x.scatter(i, s, 0, "mul"), x.scatter(i, s, 0, "add")],
        complex_numbers(4, 3),
        np.array([1, 0, 1, 3, 1, 3, 1], np.int32),
        complex_numbers(7, 3),
    )


def test_a_complex_state_is_updated_from_itself():
    g = Graph()
    z = g.state("z", (5,), "c64")
    g.set_update(z, z * z + 1j)
    g.set_outputs([z.sum()])
    wanted = complex_numbers(5) * np.complex64(0.5)
    program = WgpuProgram(lower_for("gpu", g), opened(), storage={"z": wanted.copy()})
    for _ in range(3):
        program.run()
        program.sync()
        wanted = wanted * wanted + np.complex64(1j)
        found = program.read(program.plan.leaves("state")["z"])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    program.close()


@pytest.mark.parametrize("name", ["scatter_add", "fold", "windows", "dot_general"])
def test_samples_of_ops_on_complex_numbers(name):
    case = make_case(OPS[name], 0, "c64")
    for k, array in case.arrays.items():
        if array.dtype.kind == "c" and array.ndim:
            case.arrays[k] = array + 1j * array[::-1]
    (found,) = outputs(case.graph, case.arrays)
    for a, b in zip(found, case.run(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


# --------------------------------------------------------------------------- smaller GPUs


def smaller(**limits):
    """The GPU as it would be with 32-bit numbers and little more than every device has."""
    device = copy.copy(opened())
    device.machine = device.machine.without(
        *("shader-f64", "shader-int64", "shader-f16", "subgroup", "subgroup-barrier"),
        max_compute_workgroup_storage_size=16384,
        max_compute_invocations_per_workgroup=limits.get("threads", 256),
        max_storage_buffers_per_shader_stage=8,
    )
    return device


@pytest.mark.parametrize("threads", [256, 128])
def test_a_smaller_gpu_gives_the_same(threads):
    def make(g, x, i, a, b):
        found = [x.sort(1), x.argsort(1, True), *x.top_k(5), x.cumsum(1), x.cummax(0)]
        found += [g.scatter_add(i, x, 40, axis=1), x.scatter(i[:30], x[:, :30], 1)]
        return [*found, g.solve(a, b), *a.slogdet(), definite_root(g, a)]

    def definite_root(g, a):
        return (a @ a.transpose() + g.eye(70)).cholesky()

    x = RNG.integers(-9, 9, (2, 2300)).astype(np.float32)
    arrays = (
        x,
        RNG.integers(0, 40, 2300).astype(np.int32),
        matrices(70, 70),
        x[:, :140].reshape(70, 4),
    )
    g = built(make, arrays)
    values = {str(k): array for k, array in enumerate(arrays)}
    device = smaller(threads=threads)
    program = WgpuProgram(lower_for("gpu", g), device)
    for name, place in program.plan.leaves("input").items():
        program.bind(place, values[name])
    program.run()
    program.sync()
    found = [program.read(place) for place in program.plan.outputs]
    program.close()
    for a, b in zip(found, darner.run(g, values, float64=True), strict=True):
        near(a, b, "f32", 2000)
    most = max(
        len(stage.bindings)
        for spec in program.plan.specs.values()
        for stage in written(spec, device.machine).stages
    )
    assert most <= 8
