"""Linear algebra and complex numbers by native code, and what has no native code at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.graph import dtypes
from darner.graph.op import OPS
from darner.testing import make_case
from tests.conformance import examples
from tests.cpu.running import compiled, run_program
from tests.cpu.test_index import agree, built, outputs_by_threads

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
    results = outputs_by_threads(g, values, (1, 2, 3))
    assert len({tuple(a.tobytes() for a in found) for found in results}) == 1
    for a, b in zip(results[0], darner.run(g, values, float64=True), strict=True):
        near(a, b, dtype, factor)
    return results[0]


def systems(g, a, b):
    lower = {"lower": False, "unit_diagonal": True}
    return [
        g.solve(a, b),
        a.inverse(),
        *a.slogdet(),
        (a + 9.0 * g.eye(a.shape[-1], dtype=a.dtype)).triangular_solve(b),
        (a * 0.1).triangular_solve(b, **lower),
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


@settings(max_examples=examples(5), deadline=None)
@given(st.integers(0, 40), st.integers(0, 20), st.lists(st.integers(0, 3), max_size=2))
def test_systems_of_any_size(order, sides, lead):
    b = RNG.normal(size=(*lead, order, sides))
    solved(
        lambda g, a, b, c: [*systems(g, a, b), c.cholesky()],
        matrices(*lead, order, order, dtype="f64"),
        b,
        definite(*lead, order, order, dtype="f64"),
        dtype="f64",
        factor=1e5,
    )


def test_threads_share_a_large_matrix():
    a, b = matrices(2, 101, 101), RNG.normal(size=(2, 101, 2)).astype(np.float32)
    solved(lambda g, a, b: [g.solve(a, b), *a.slogdet()], a, b, factor=2000)


def test_rows_are_exchanged_for_the_largest_pivot():
    a = np.array([[1e-6, 1], [1, 1]], np.float32)
    (x,) = solved(lambda g, a, b: g.solve(a, b), a, np.array([[1], [2]], np.float32))
    np.testing.assert_allclose(x, [[1], [1]], atol=1e-5)


def test_a_singular_matrix_has_sign_0():
    g = Graph()
    g.set_outputs([*g.input("a", (2, 3, 3)).slogdet()])
    program = compiled(g, threads=2)
    singular = np.zeros((3, 3), np.float32)
    values = {"a": np.stack([singular, np.eye(3, dtype=np.float32)[::-1]])}
    sign, logarithm = run_program(program, values)
    program.close()
    np.testing.assert_array_equal(sign, [0, -1])
    np.testing.assert_array_equal(logarithm, [-np.inf, 0])


def test_gradients_go_through_systems():
    def loss(g, a, b, c):
        return g.solve(a, b).square().sum() + c.cholesky().sum() + a.slogdet()[1].sum()

    arrays = matrices(4, 4), RNG.normal(size=(4, 2)).astype(np.float32), definite(4, 4)
    g = darner.grad(built(loss, arrays), ["0", "1", "2"])
    values = {str(i): array for i, array in enumerate(arrays)}
    (found,) = outputs_by_threads(g, values, (2,))
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
    a, b = complex_numbers(4), np.array([1e30, 1e-30j, 3e20 + 3e20j, 1e-25 - 1e-25j], np.complex64)
    g = Graph()
    g.set_outputs([g.input("a", (4,), "c64") / g.input("b", (4,), "c64")])
    program = compiled(g, threads=2)
    (found,) = run_program(program, {"a": a, "b": b})
    program.close()
    np.testing.assert_allclose(found, a.astype(np.complex128) / b, rtol=1e-5)


def test_complex_contractions_reductions_and_moves():
    agree(
        lambda g, a, b, i: [
            a @ b,
            a.sum(0),
            a.sum((0, 1), keepdims=True),
            *(a.prod(1), a.prod((0, 1)), a[:0].prod(0), a.cumprod(0), a.cumprod(1, reverse=True)),
            *(a.transpose(), a.pad([(1, 2), (0, 1)], 0.5), a.flip(0), a[::2, 1:]),
            *(g.concat([a, b.transpose()]), g.gather(b, i), b.scatter(i, b[:4], 0)),
            a.cast("c64"),
            i.cast("c64"),
        ],
        complex_numbers(3, 9),
        complex_numbers(9, 3),
        np.array([5, 0, 5, 8], np.int32),
    )


@pytest.mark.parametrize(
    "shape", [(1,), (7,), (33,), (64,), (131,), (3, 40), (5, 1), (2, 3, 17), (9000,)]
)
def test_complex_elements_are_vectors_of_any_length(shape):
    agree(
        lambda g, a, b, x: [
            *(a * b + x, (a / b).conjugate(), a.abs() * x, (a * 1j).imag(), g.complex(x, x * 2.0)),
            *(a.eq(b).where(a, b * x), (x > 0.0).where(a, 0.0), a[..., ::-1] * 2.0, a.sum(-1)),
            a[..., :1] * b,
        ],
        complex_numbers(*shape),
        complex_numbers(*shape),
        RNG.normal(size=shape).astype(np.float32),
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
    program = compiled(g, threads=2)
    wanted = complex_numbers(5) * np.complex64(0.5)
    state = {"z": wanted}
    for _ in range(3):
        run_program(program, state=state)
        wanted = wanted * wanted + np.complex64(1j)
        np.testing.assert_allclose(state["z"], wanted, rtol=1e-5, atol=1e-6)
    program.close()


MOVES = (
    "eq",
    "sum",
    "cumsum",
    "gather",
    "scatter",
    "scatter_add",
    "fold",
    "windows",
    "dot_general",
)


@pytest.mark.parametrize("name", MOVES)
def test_samples_of_ops_on_complex_numbers(name):
    for index in range(0, len(OPS[name].samples), 2):
        try:
            case = make_case(OPS[name], index, "c64")
        except darner.DarnerError:  # not every mode takes them
            continue
        names = [k for k, array in case.arrays.items() if array.dtype.kind == "c"]
        if not names:
            continue
        for k in names:
            case.arrays[k] = (
                case.arrays[k] + 1j * case.arrays[k][::-1]
                if case.arrays[k].ndim
                else case.arrays[k]
            )
        program = compiled(case.graph, threads=2)
        found = run_program(program, case.arrays)
        program.close()
        for a, b in zip(found, case.run(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
