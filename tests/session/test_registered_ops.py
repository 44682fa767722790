"""Ops registered by name: what ``custom_op`` and ``custom_op_packed`` call."""

import json
import struct

import numpy as np
import pytest
import scipy.sparse as sparse
from scipy.sparse.linalg import splu

import darner
from darner import Graph, Shape, TensorType, optim
from darner.graph.op import OPS, unregister
from darner.lower.lower import lower
from tests.gpu import needs_gpu

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def registered():
    """``register_op`` whose ops are forgotten after the test."""
    names = []

    def register(name, *args, **options):
        record = darner.register_op(name, *args, **options)
        names.append(name)
        return record

    yield register
    for name in set(names):
        if name in OPS:
            unregister(name)


def same_type(types, attrs):
    return types[0]


def scale(arrays, attrs, out):
    (factor,) = struct.unpack("<d", attrs)
    if arrays[0].max() > 1000:
        raise OverflowError("too large for me")
    np.multiply(arrays[0], factor, out=out)


def scale_vjp(attrs, inputs, output, g):
    return [g.graph.custom_op("scale", attrs, [g])]


def factor(number):
    return struct.pack("<d", number)


@pytest.fixture
def scaling(registered):
    return registered("scale", 1, same_type, scale, vjp=scale_vjp)


def layers():
    g = Graph("layers")
    x, w = g.input("x", (3, 4)), g.parameter("w", (4, 5))
    y = g.custom_op("scale", factor(3.0), [x @ w], label="tripled")
    g.set_outputs([(y.tanh() @ g.parameter("v", (5, 2))).square().mean()])
    return g


WEIGHTS = {
    "w": np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32),
    "v": np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32),
}


# --------------------------------------------------------------------------- the seed's example

N = 5
MATRIX = sparse.csc_matrix(
    np.array(
        [[4.0, 1, 0, 0, 2], [1, 5, 1, 0, 0], [0, 1, 6, 1, 0], [0, 0, 1, 7, 1], [2, 0, 0, 1, 8]]
    )
)


def lu_of(values):
    matrix = sparse.csc_matrix((values, MATRIX.indices, MATRIX.indptr), shape=MATRIX.shape)
    # The order of rows and columns is that of the matrix: the factors' pattern depends on it alone.
    options = {"SymmetricMode": True}
    return splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options=options)


def sparse_lu(arrays, attrs, out):
    found = lu_of(arrays[0])
    lower_count, _ = struct.unpack("<qq", attrs)
    out[:lower_count], out[lower_count:] = found.L.data, found.U.data


def unknown_size(types, attrs):
    raise AssertionError("custom_op_packed does not ask")


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_sparse_lu_packs_two_results_that_narrow_takes_apart(registered, device):
    registered("sparse_lu", 2, unknown_size, sparse_lu)
    wanted = lu_of(MATRIX.data)
    nnz_l, nnz_u = wanted.L.nnz, wanted.U.nnz
    assert nnz_l > N
    g = Graph("solve")
    a, b = g.input("a", (MATRIX.nnz,), "f64"), g.input("b", (N,), "f64")
    attrs = struct.pack("<qq", nnz_l, nnz_u)
    lu = g.custom_op_packed("sparse_lu", attrs, [a * 2.0, b], Shape.new([nnz_l + nnz_u], "f64"))
    l_values, u_values = g.narrow_(lu, 0, 0, nnz_l), g.narrow_(lu, 0, nnz_l, nnz_u)
    g.set_outputs([l_values, u_values * 3.0])
    with darner.build_inference_session(g, device=device) as session:
        for scaled in (1.0, 4.0):
            given = {"a": MATRIX.data * scaled, "b": np.ones(N)}
            found_l, found_u = session.run(given).values()
            np.testing.assert_allclose(found_l, wanted.L.data, rtol=1e-14)
            np.testing.assert_allclose(found_u, wanted.U.data * 6.0 * scaled, rtol=1e-14)
            lower_, upper = wanted.L.copy(), wanted.U.copy()
            lower_.data, upper.data = found_l, found_u / 6.0
            back = (lower_ @ upper).toarray()[np.ix_(wanted.perm_r, wanted.perm_c)]
            np.testing.assert_allclose(back, MATRIX.toarray() * scaled, rtol=1e-12, atol=1e-12)


def test_a_linear_solve_has_gradients_through_its_vjp(registered):
    """x = A^-1 b; the cotangent of b is A^-T g, that of the values of A is -(A^-T g)_i x_j where A has an element."""

    def solve(arrays, attrs, out):
        values, b = arrays
        out[...] = lu_of(values).solve(b, trans=attrs.decode())

    rows = MATRIX.indices
    columns = np.repeat(np.arange(N), np.diff(MATRIX.indptr))

    def solve_vjp(attrs, inputs, output, g):
        back = b"T" if attrs == b"N" else b"N"
        d_b = g.graph.custom_op("sparse_solve", back, [inputs[0], g])
        at_rows, at_columns = (rows, columns) if attrs == b"N" else (columns, rows)
        d_values = -d_b.gather(np.asarray(at_rows)) * output.gather(np.asarray(at_columns))
        return [d_values, d_b]

    registered("sparse_solve", 2, lambda types, attrs: types[1], solve, vjp=solve_vjp)
    g = Graph("solve")
    a, b = g.parameter("a", (MATRIX.nnz,), "f64"), g.parameter("b", (N,), "f64")
    x = g.custom_op("sparse_solve", b"N", [a, b])
    weights = np.array([0.3, -1.0, 2.0, 0.7, -0.4])
    g.set_outputs([(x.sin() * weights).sum()])
    rng = np.random.default_rng(5)
    values, right = MATRIX.data + rng.normal(size=MATRIX.nnz) * 0.1, rng.normal(size=N)

    def loss(values, right):
        return float(np.sin(lu_of(values).solve(right)) @ weights)

    with darner.build_session(g, optimizer=None) as session:
        session.parameters().update({"a": values, "b": right})
        session.run({})
        found = session.gradients()
    for name, at in (("a", 0), ("b", 1)):
        point = [values, right]
        for i in range(len(point[at])):
            step = np.zeros(len(point[at]))
            step[i] = 1e-6
            high, low = list(point), list(point)
            high[at], low[at] = point[at] + step, point[at] - step
            slope = (loss(*high) - loss(*low)) / 2e-6
            np.testing.assert_allclose(found[name][i], slope, rtol=1e-6, atol=1e-9)


# --------------------------------------------------------------------------- in sessions


@pytest.mark.parametrize("threads", [1, 2])
def test_a_registered_op_trains_between_compiled_kernels(scaling, threads):
    plan = lower(darner.value_and_grad(layers()), target="cpu")
    assert [plan.spec(kernel).kind for kernel in plan.kernels].count("host") == 2
    with darner.build_session(layers(), optimizer=optim.SGD(0.1), threads=threads) as session:
        session.parameters().update(WEIGHTS)
        losses = [float(session.run({"x": X})["output0"]) for _ in range(3)]
        trained = np.array(session.get_parameter("w"))
    w, v = (WEIGHTS[name].astype(np.float64) for name in "wv")
    for step in range(3):
        inner = np.tanh(3 * (X @ w))
        out = inner @ v
        np.testing.assert_allclose(losses[step], np.square(out).mean(), rtol=1e-5)
        back = 2 * out / out.size
        d_v = inner.T @ back
        d_w = X.T @ ((back @ v.T) * (1 - inner**2) * 3)
        w, v = w - 0.1 * d_w, v - 0.1 * d_v
    np.testing.assert_allclose(trained, w, rtol=1e-4, atol=1e-6)


def test_an_exception_is_a_run_error_with_op_and_line_and_changes_nothing(scaling):
    with darner.build_session(layers(), optimizer=optim.Adam(0.1)) as session:
        session.parameters().update(WEIGHTS)
        session.run({"x": X})
        weights = {name: np.array(session.get_parameter(name)) for name in "wv"}
        with pytest.raises(
            darner.RunError,
            match=r"scale 'tripled': .*cannot compute: too large for me \(test_registered_ops\.py:\d+\)",
        ) as caught:
            session.run({"x": X * 1e6})
        assert isinstance(caught.value.__cause__, OverflowError)
        for name, value in weights.items():
            np.testing.assert_array_equal(session.get_parameter(name), value)
        assert np.isfinite(session.run({"x": X})["output0"])
        assert not np.array_equal(session.get_parameter("w"), weights["w"])


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        (
            lambda arrays, attrs, out: arrays[0] * 2,
            "its compute returned ndarray instead of filling",
        ),
        (lambda arrays, attrs, out: arrays[0].fill(0), "cannot compute: .*read-only"),
        (lambda arrays, attrs, out: out.fill("a"), "cannot compute: "),
    ],
)
def test_a_compute_that_does_not_fill_out_is_told(registered, compute, says):
    registered("odd", 1, same_type, compute)
    g = Graph("odd")
    g.set_outputs([g.custom_op("odd", b"", [g.input("x", (3,))])])
    with darner.build_inference_session(g) as session, pytest.raises(darner.RunError, match=says):
        session.run({"x": np.ones(3, np.float32)})


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "c64"])
def test_element_types(registered, dtype):
    seen = []

    def double(arrays, attrs, out):
        seen.append((arrays[0].dtype, out.dtype))
        np.add(arrays[0], arrays[0], out=out)

    registered("doubled", 1, same_type, double)
    g = Graph("double")
    g.set_outputs([g.custom_op("doubled", b"", [g.input("x", (2, 3), dtype)])])
    kind = darner.graph.dtypes.dtype(dtype).numpy
    values = np.arange(6).reshape(2, 3).astype(kind)
    with darner.build_inference_session(g) as session:
        (found,) = session.run({"x": values}).values()
    assert found.dtype == kind
    np.testing.assert_array_equal(found.astype(np.complex64), 2 * np.arange(6).reshape(2, 3))
    assert {str(part) for pair in seen for part in pair} == {
        "float32" if dtype in ("f16", "bf16") else str(np.dtype(kind))
    }


def test_symbolic_sizes_and_no_inputs(registered):
    registered(
        "transposed",
        1,
        lambda types, attrs: types[0].with_shape(types[0].shape[::-1]),
        lambda arrays, attrs, out: np.copyto(out, arrays[0].T),
    )
    registered(
        "counted",
        0,
        lambda types, attrs: TensorType.new([len(attrs)], "u8"),
        lambda arrays, attrs, out: np.copyto(out, np.frombuffer(attrs, np.uint8)),
    )
    g = Graph("sizes")
    x = g.input("x", (darner.symbol("n"), 2))
    g.set_outputs([g.custom_op("transposed", b"", [x]), g.custom_op("counted", b"\x00\xff", [])])
    with darner.build_inference_session(g) as session:
        for n in (3, 1, 4):
            values = np.arange(2.0 * n, dtype=np.float32).reshape(n, 2)
            turned, counted = session.run({"x": values}).values()
            np.testing.assert_array_equal(turned, values.T)
            np.testing.assert_array_equal(counted, [0, 255])


@needs_gpu
def test_a_gpu_says_at_build_that_it_has_no_code(scaling):
    with pytest.raises(darner.UnsupportedError, match="scale"):
        darner.build_inference_session(layers(), device="gpu")


# --------------------------------------------------------------------------- forms


def test_attributes_survive_text_and_json(scaling):
    g = layers()
    attrs = bytes(range(256))
    g.custom_op_packed("scale", attrs, [g.node(0)], TensorType.new([7], "f64"))
    for again in (
        Graph.from_text(g.to_text()),
        Graph.from_json(json.loads(json.dumps(g.to_json()))),
    ):
        assert again.digest() == g.digest()
        assert again.nodes[-1].attrs["attrs"] == attrs
        assert again.nodes[-1].type == TensorType.new([7], "f64")
        found = darner.run(again, {"x": X}, WEIGHTS)
        np.testing.assert_array_equal(found[0], darner.run(g, {"x": X}, WEIGHTS)[0])
    assert 'attrs="AAAAAAAACEA="' in str(g)
    with pytest.raises(darner.FormatError, match="bytes in base64"):
        Graph.from_text(str(g).replace("AAAAAAAACEA=", "AAAAAAAACEA"))


def test_different_attributes_are_different_values(scaling):
    g = Graph("two")
    x = g.input("x", (3, 4))
    g.set_outputs([g.custom_op("scale", factor(k), [x]) for k in (2.0, 2.0, 5.0)])
    with darner.build_inference_session(g) as session:
        found = list(session.run({"x": X}).values())
    for value, k in zip(found, (2, 2, 5), strict=True):
        np.testing.assert_array_equal(value, X * np.float32(k))


# --------------------------------------------------------------------------- derivatives and batches


def test_forward_mode_uses_the_transpose_of_the_vjp_or_the_jvp(registered, scaling):
    told = []

    def scale_jvp(attrs, inputs, output, tangents):
        told.append(tangents)
        return tangents[0].graph.custom_op("scale2", attrs, tangents)

    registered("scale2", 1, same_type, scale, jvp=scale_jvp)
    for name in ("scale", "scale2"):
        g = Graph("forward")
        x = g.input("x", (3, 4))
        g.set_outputs([g.custom_op(name, factor(3.0), [x.sin()])])
        point = {"x": X, "tangent_x": np.ones_like(X)}
        found = darner.run(darner.jvp(g, "x"), point)[1]
        np.testing.assert_allclose(found, 3 * np.cos(X), rtol=1e-5, atol=1e-6)
    assert len(told) == 1


def test_second_derivatives_follow(scaling):
    g = Graph("second")
    x = g.input("x", (12,))
    g.set_outputs([(g.custom_op("scale", factor(3.0), [x]) ** 3).sum()])
    found = darner.run(darner.hessian(g, "x"), {"x": X.ravel()})[0]
    np.testing.assert_allclose(found, np.diag(6 * 27 * X.ravel()), rtol=1e-4, atol=1e-3)


def test_a_gradient_without_a_vjp_is_an_error_that_says_what_helps(registered):
    registered("plain", 1, same_type, lambda arrays, attrs, out: np.copyto(out, arrays[0]))
    g = Graph("plain")
    x = g.input("x", (3,))
    g.set_outputs([g.custom_op("plain", b"", [x], label="here").sum()])
    for transform in (darner.grad, darner.jvp):
        with pytest.raises(
            darner.ArgumentError,
            match=r"plain 'here': has no derivative; register 'plain' with a vjp \(test_reg.*:\d+\)",
        ):
            transform(g, "x")


@pytest.mark.parametrize(
    ("vjp", "says"),
    [
        (lambda attrs, inputs, output, g: g, "its vjp must return 1 nodes"),
        (lambda attrs, inputs, output, g: [g, g], "its vjp must return 1 nodes"),
        (lambda attrs, inputs, output, g: [2.0], "its vjp gave 2.0 for input 0, not a node"),
        (
            lambda attrs, inputs, output, g: [g.sum()],
            r"its vjp gave f32\[\] for input 0, which is f32\[3\]",
        ),
    ],
)
def test_a_wrong_vjp_is_told(registered, vjp, says):
    registered("odd", 1, same_type, scale, vjp=vjp)
    g = Graph("odd")
    x = g.input("x", (3,))
    g.set_outputs([g.custom_op("odd", b"", [x]).sum()])
    with pytest.raises(darner.DarnerError, match=f"odd: {says}"):
        darner.grad(g, "x")


def test_an_input_without_gradient_gets_none(registered):
    def picked(arrays, attrs, out):
        out[...] = arrays[0][arrays[1]]

    def picked_vjp(attrs, inputs, output, g):
        x, index = inputs
        return [g.graph.scatter_add(index, g, x.shape[0]), None]

    registered(
        "picked",
        2,
        lambda types, attrs: types[1].with_dtype(types[0].dtype),
        picked,
        vjp=picked_vjp,
    )
    g = Graph("picked")
    x, index = g.input("x", (4,)), g.input("index", (3,), "i32")
    g.set_outputs([g.custom_op("picked", b"", [x, index]).square().sum()])
    given = {"x": np.array([1.0, 2, 3, 4]), "index": np.array([3, 1, 3])}
    np.testing.assert_array_equal(darner.run(darner.grad(g, "x"), given)[0], [0, 4, 0, 16])


def test_batches_call_it_for_each_element_or_ask_its_rule(registered, scaling):
    asked = []

    def scale_vmap(attrs, inputs, batched, size):
        asked.append((list(batched), size))
        return inputs[0].graph.custom_op("whole", attrs, inputs)

    registered("whole", 1, same_type, scale, vmap=scale_vmap)
    for name in ("scale", "whole"):
        g = Graph("batch")
        x = g.input("x", (4,))
        g.set_outputs([g.custom_op(name, factor(3.0), [x]) + 1.0])
        np.testing.assert_array_equal(darner.run(darner.vmap(g, ["x"], 3), {"x": X})[0], X * 3 + 1)
    assert asked == [([True], 3)]
    g = Graph("batch")
    g.set_outputs([g.custom_op("scale", factor(3.0), [g.input("x", (4,))])])
    empty = darner.run(darner.vmap(g, ["x"], 0), {"x": X[:0]})[0]
    assert empty.shape == (0, 4)
    for size in ("n", 1000):
        with pytest.raises(darner.ArgumentError, match="register 'scale' with a vmap"):
            darner.vmap(g, ["x"], size)


# --------------------------------------------------------------------------- mistakes


def test_names_and_counts_are_checked_at_build(registered, scaling):
    g = Graph("wrong")
    x = g.input("x", (3, 4))
    with pytest.raises(
        darner.UnknownNameError,
        match=r"custom_op: no op is registered as 'scal'; did you mean 'scale'",
    ):
        g.custom_op("scal", b"", [x])
    with pytest.raises(
        darner.UnknownNameError, match="'tanh' is an op that graphs have as a method"
    ):
        g.custom_op("tanh", b"", [x])
    with pytest.raises(darner.ArgumentError, match="takes 1 inputs, got 2"):
        g.custom_op("scale", b"", [x, x])
    with pytest.raises(darner.ArgumentError, match="takes 1 inputs, got 0"):
        g.custom_op_packed("scale", b"", [], TensorType.new([3], "f32"))
    with pytest.raises(
        darner.ArgumentError, match=r"attrs: expected bytes, got str; text is bytes by"
    ):
        g.custom_op("scale", "3.0", [x])
    with pytest.raises(darner.ArgumentError, match="out_shape must be a type"):
        g.custom_op_packed("scale", b"", [x], (3,))
    with pytest.raises(darner.NameTakenError, match="'scale' is already declared; replace=True"):
        darner.register_op("scale", 1, same_type, scale)
    for name in ("tanh", "custom_op"):
        with pytest.raises(darner.NameTakenError, match=f"'{name}' is already declared"):
            darner.register_op(name, 1, same_type, scale, replace=True)
    with pytest.raises(darner.NameTakenError, match="attribute of Graph"):
        darner.register_op("nodes", 1, same_type, scale)
    with pytest.raises(darner.ArgumentError, match="a name is letters"):
        darner.register_op("two words", 1, same_type, scale)
    with pytest.raises(darner.ArgumentError, match="compute must be a function, got None"):
        darner.register_op("nothing", 1, same_type, None)
    with pytest.raises(darner.ArgumentError, match="num_inputs is a whole number"):
        darner.register_op("nothing", -1, same_type, scale)
    with pytest.raises(darner.UnknownNameError, match="no op is registered as 'nothing'"):
        darner.lookup_op("nothing")
    assert len(g) == 1


def test_an_infer_shape_that_fails_is_told_at_build(registered):
    registered("broken", 1, lambda types, attrs: types[1], scale)
    registered("sized", 1, lambda types, attrs: (3, 4), scale)
    g = Graph("broken")
    x = g.input("x", (3,))
    with pytest.raises(darner.ArgumentError, match=r"custom_op: .*infer_shape failed: IndexError"):
        g.custom_op("broken", b"", [x])
    with pytest.raises(darner.ArgumentError, match=r"must return a TensorType, not \(3, 4\)"):
        g.custom_op("sized", b"", [x])


def test_an_op_can_be_looked_up_and_replaced(registered, scaling):
    assert darner.lookup_op("scale") is scaling
    assert (scaling.num_inputs, scaling.compute, scaling.vjp) == (1, scale, scale_vjp)
    g = Graph("old")
    g.set_outputs([g.custom_op("scale", factor(3.0), [g.input("x", (3, 4))])])

    def minus(arrays, attrs, out):
        np.negative(arrays[0], out=out)

    registered("scale", 1, same_type, minus, replace=True)
    new = Graph("new")
    new.set_outputs([new.custom_op("scale", factor(3.0), [new.input("x", (3, 4))])])
    with pytest.raises(darner.VerifyError, match="op 'scale' is not the registered one"):
        darner.build_inference_session(g)
    np.testing.assert_array_equal(darner.run(new, {"x": X})[0], -X)
    unregister("scale")
    with pytest.raises(darner.UnknownNameError, match="no op is registered as 'scale'"):
        darner.lookup_op("scale")
