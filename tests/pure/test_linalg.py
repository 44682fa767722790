"""Solves, inverses, determinants and the Cholesky factor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import DTypeError, Graph, RunError, ShapeError


def well_conditioned(*shape, seed=0):
    """Square matrices far from singular."""
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    return values + 2 * shape[-1] * np.eye(shape[-1])


def definite(*shape, seed=0):
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    return values @ np.swapaxes(values, -1, -2) + np.eye(shape[-1])


def evaluate(build, *arrays):
    g = Graph()
    nodes = [g.input(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
    result = build(g, *nodes)
    g.set_outputs(list(result) if isinstance(result, tuple) else [result])
    g.verify()
    found = darner.run(g, {f"x{i}": array for i, array in enumerate(arrays)})
    return found[0] if len(found) == 1 else found


# --------------------------------------------------------------------------- values


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 99))
def test_a_solution_times_the_matrix_is_the_right_hand_side(n, columns, seed):
    a = well_conditioned(n, n, seed=seed)
    shape = (n,) if columns is None else (n, columns)
    b = np.random.default_rng(seed + 1).normal(size=shape)
    x = evaluate(lambda g, a, b: g.dense_solve(a, b), a, b)
    assert x.shape == b.shape
    np.testing.assert_allclose(a @ x, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2)])
def test_each_system_of_a_batch_is_solved_on_its_own(shape):
    a = well_conditioned(3, 4, 4)
    b = np.random.default_rng(1).normal(size=shape)
    x = evaluate(lambda g, a, b: g.batched_dense_solve(a, b), a, b)
    for i in range(3):
        np.testing.assert_allclose(x[i], np.linalg.solve(a[i], b[i]), rtol=1e-12)


def test_a_vector_is_solved_as_one_column():
    g = Graph()
    g.set_outputs([g.dense_solve(g.input("a", (3, 3)), g.input("b", (3,)))])
    names = [node.op.name for node in darner.expand(g).nodes]
    assert names == ["input", "input", "reshape", "solve", "reshape"]


def test_a_square_right_hand_side_is_columns_not_a_batch_of_vectors():
    a, b = well_conditioned(3, 3, 3), np.random.default_rng(0).normal(size=(3, 3, 3))
    x = evaluate(lambda g, a, b: g.batched_dense_solve(a, b), a, b)
    np.testing.assert_allclose(a @ x, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (0, 0), (0, 2, 2)])
def test_inverse_times_matrix_is_the_identity(shape):
    a = well_conditioned(*shape)
    inverse = evaluate(lambda g, a: a.inverse(), a)
    wanted = np.broadcast_to(np.eye(shape[-1]), shape)
    np.testing.assert_allclose(inverse @ a, wanted, rtol=1e-12, atol=1e-12)


def test_inverse_of_symbolic_size():
    g = Graph()
    g.set_outputs([g.input("a", ("batch", "n", "n")).inverse()])
    a = well_conditioned(2, 3, 3).astype(np.float32)
    np.testing.assert_allclose(darner.run(g, {"a": a})[0], np.linalg.inv(a), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (0, 0)])
def test_cholesky_is_lower_and_squares_to_its_matrix(shape):
    a = definite(*shape)
    factor = evaluate(lambda g, a: a.cholesky(), a)
    np.testing.assert_allclose(factor @ np.swapaxes(factor, -1, -2), a, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(factor, np.tril(factor))


def test_cholesky_reads_only_the_lower_triangle():
    a = definite(3, 3)
    factor = evaluate(lambda g, a: a.cholesky(), np.tril(a))
    np.testing.assert_array_equal(factor, np.linalg.cholesky(a))


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (0, 0)])
def test_determinants_agree_with_numpy(shape):
    a = np.random.default_rng(3).normal(size=shape)
    sign, logarithm, det = evaluate(lambda g, a: (*a.slogdet(), a.det()), a)
    np.testing.assert_array_equal(sign, np.linalg.slogdet(a).sign)
    np.testing.assert_allclose(logarithm, np.linalg.slogdet(a).logabsdet)
    np.testing.assert_allclose(det, np.linalg.det(a))


def test_determinants_of_singular_and_reflecting_matrices():
    a = np.stack([np.eye(2), np.ones((2, 2)), np.diag([1.0, -2.0])])
    sign, _ = evaluate(lambda g, a: a.slogdet(), a)
    det, logdet = evaluate(lambda g, a: (a.det(), a.logdet()), a)
    assert sign.tolist() == [1, 0, -1]
    np.testing.assert_allclose(det, [1, 0, -2])
    np.testing.assert_array_equal(logdet, [0, -np.inf, np.nan])


def test_integers_are_solved_as_floats_and_complex_is_refused():
    g = Graph()
    whole = g.input("a", (2, 2), "i32")
    assert g.dense_solve(whole, g.input("b", (2,))).dtype.name == "f32"
    assert whole.inverse().dtype.name == "f32"
    with pytest.raises(DTypeError, match="complex values"):
        g.input("c", (2, 2), "c64").cholesky()


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda g, a: a.inverse(), "the matrix is singular"),
        (lambda g, a: a.dense_solve(a), "the matrix is singular"),
        (lambda g, a: a.cholesky(), "cholesky 'factor': .*the matrix is not positive definite"),
    ],
)
def test_matrices_without_a_solution_are_an_error_when_they_run(build, text):
    g = Graph()
    result = build(g, g.input("a", (2, 2)))
    g.relabel(result, "factor")
    g.set_outputs([result])
    with pytest.raises(RunError, match=text):
        darner.run(g, {"a": np.ones((2, 2), np.float32)})


ERRORS = [
    ("dense_solve", [(3, 4), (3,)], "a must be square in its last two axes"),
    ("dense_solve", [(3,), (3,)], "a must be a matrix, not (3,)"),
    ("dense_solve", [(2, 3, 3), (2, 3)], "a must be a matrix, not (2, 3, 3); batched_dense_solve"),
    ("dense_solve", [(3, 3), (4,)], "a has 3 rows, b has 4"),
    ("dense_solve", [(3, 3), (4, 3)], "a has 3 rows, b has 4"),
    ("dense_solve", [(3, 3), ()], "b must be (3,) or (3, K), not ()"),
    ("dense_solve", [(3, 3), (3, 2, 2)], "b must be (3,) or (3, K), not (3, 2, 2)"),
    ("batched_dense_solve", [(3, 3), (3,)], "a must be a batch of matrices, not (3, 3)"),
    ("batched_dense_solve", [(2, 3, 4), (2, 3)], "a must be square in its last two axes"),
    ("batched_dense_solve", [(2, 3, 3), (3, 3)], "b must be (2, 3) or (2, 3, K), not (3, 3)"),
    ("batched_dense_solve", [(2, 3, 3), (2, 4)], "a has 3 rows, b has 4"),
    ("batched_dense_solve", [(2, 3, 3), (3,)], "b must be (2, 3) or (2, 3, K), not (3,)"),
    ("inverse", [(3,)], "a must be square in its last two axes"),
    ("inverse", [(2, 3, 4)], "a must be square in its last two axes"),
    ("cholesky", [(3, 2)], "a must be square in its last two axes"),
    ("slogdet", [()], "a must be square in its last two axes"),
    ("det", [(3, 2)], "a must be square in its last two axes"),
    ("logdet", [(2,)], "a must be square in its last two axes"),
]


@pytest.mark.parametrize(("name", "shapes", "text"), ERRORS)
def test_wrong_shapes_are_refused_where_they_are_given(name, shapes, text):
    g = Graph()
    nodes = [g.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    with pytest.raises(ShapeError) as caught:
        getattr(g, name)(*nodes)
    assert text in str(caught.value)
    assert "test_linalg.py" in str(caught.value)
    assert len(g) == len(nodes)
