"""Quantised weights: what their bytes stand for, products with them, and how floats become codes. Every op also has rows in ``tests/conformance``."""

import ml_dtypes
import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, QuantScheme, ShapeError, UnsupportedError
from darner.ops.quantised.block_formats import FORMATS
from darner.ops.quantised.packed import decoded

HALVES = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
}
"""Where the scales of a block lie."""
PACKED = [*HALVES, "q8_k"]


def blocks(scheme, count, seed=0):
    """Random bytes, with numbers where scales lie."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, (count, FORMATS[scheme].bytes)).astype(np.uint8)
    if scheme == "q8_k":
        scales = rng.normal(0, 0.01, count).astype("<f4")
        found[:, :4] = scales.view(np.uint8).reshape(count, 4)
    for place in HALVES.get(scheme, []):
        scales = rng.normal(0, 0.1, count).astype("<f2")
        found[:, place : place + 2] = scales.view(np.uint8).reshape(count, 2)
    return found


def run(build, device=None, params=None, **arrays):
    graph = Graph("packed")
    nodes = {name: graph.input(name, a.shape, a.dtype) for name, a in arrays.items()}
    graph.set_outputs([build(graph, **nodes)])
    if device is None:
        return darner.run(graph, arrays)[0]
    with darner.build_inference_session(graph, device=device) as session:
        return session.run(arrays)["output0"]


# --------------------------------------------------------------------------- what bytes stand for


@pytest.mark.parametrize("scheme", HALVES)
def test_blocks_stand_for_what_gguf_reads_in_them(scheme):
    gguf = pytest.importorskip("gguf", reason="pip install -r requirements/dev.lock")
    codes = blocks(scheme, 400)
    wanted = gguf.quants.dequantize(codes, gguf.GGMLQuantizationType[scheme.upper()])
    np.testing.assert_array_equal(decoded(QuantScheme(scheme), codes), wanted)


def test_blocks_of_q8_k_have_a_scale_of_32_bits_before_their_codes():
    codes = blocks("q8_k", 5)
    assert codes.shape == (5, 292)
    wanted = codes[:, :4].copy().view("<f4") * codes[:, 4:260].view(np.int8)
    np.testing.assert_array_equal(decoded(QuantScheme.GgufQ8K, codes), wanted)


def test_q2_k_and_q3_k_have_their_scales_where_ggml_has_them():
    codes = np.zeros((1, 84), np.uint8)
    codes[0, 80:82] = np.float16(0.5).tobytes()[0], np.float16(0.5).tobytes()[1]
    codes[0, 0] = 3  # the scale of the first 16
    codes[0, 16] = 2  # the code of the first
    found = decoded(QuantScheme.GgufQ2K, codes)
    assert found[0, 0] == 0.5 * 3 * 2
    assert not found[0, 1:].any()


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [("fp8_e4m3", ml_dtypes.float8_e4m3fn), ("fp8_e5m2", ml_dtypes.float8_e5m2)],
)
@pytest.mark.parametrize("device", [None, "cpu", "gpu"])
def test_every_float_of_8_bits_is_itself(scheme, kind, device):
    codes = np.arange(256, dtype=np.uint8)
    wanted = codes.view(kind).astype(np.float32)
    found = run(lambda g, c: g.dequantize_blocks(c, scheme=scheme), device, c=codes)
    np.testing.assert_array_equal(found, wanted)
    plain = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[plain], np.signbit(wanted)[plain])
    if scheme == "fp8_e4m3":
        assert found[0x7E] == 448
        assert np.flatnonzero(np.isnan(found)).tolist() == [0x7F, 0xFF]


@pytest.mark.parametrize("device", [None, "cpu", "gpu"])
def test_every_float_of_4_bits_times_its_scale(device):
    codes = np.repeat(np.arange(256, dtype=np.uint8)[None], 16, axis=0)
    scales = np.tile(np.arange(256, dtype=np.uint8), 2)[None]
    both = np.stack([codes & 15, codes >> 4], -1).reshape(16, 512).view(ml_dtypes.float4_e2m1fn)
    wanted = both.astype(np.float32) * scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    found = run(
        lambda g, c, s: g.dequantize_blocks(c, s, scheme="nvfp4_block"), device, c=codes, s=scales
    )
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(found[:, 0x7F]).all()


def test_a_last_block_may_be_short():
    codes = np.ones((5, 2), np.int8)
    scales = np.float32([[1, 2], [3, 4], [5, 6]])
    found = run(
        lambda g, c, s: g.dequantize_blocks(c, s, scheme=QuantScheme.Int8Block(2)),
        c=codes,
        s=scales,
    )
    assert found.tolist() == [[1, 2], [1, 2], [3, 4], [3, 4], [5, 6]]


def test_flat_codes_of_4_bits_are_the_matrix_row_by_row():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (6, 2)).astype(np.uint8)
    scales, points = rng.uniform(0.1, 1, (2, 2, 4)).astype(np.float32)
    x = rng.normal(size=(3, 6)).astype(np.float32)
    scheme = QuantScheme.Int4Block(4)
    given = {"x": x, "s": scales, "z": points}

    def product(g, x, c, s, z):
        return g.dequant_matmul(x, c, s, z, scheme)

    matrix = run(product, c=codes, **given)
    np.testing.assert_array_equal(run(product, c=codes.ravel(), **given), matrix)
    # Element 0 is the low half of the first byte, element 1 the high one.
    low = (codes[0, 0] & 15) - points[0, 0]
    decoded_ = run(
        lambda g, c, s, z: g.dequantize_blocks(c, s, z, scheme=scheme), c=codes, s=scales, z=points
    )
    assert decoded_[0, 0] == np.float32(low * scales[0, 0])


# --------------------------------------------------------------------------- products


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("scheme", PACKED)
def test_products_with_blocks_agree_with_float64(scheme, device):
    known = QuantScheme(scheme)
    for seed, (rows, terms, columns) in enumerate([(1, 512, 37), (40, 256, 64)]):
        codes = blocks(scheme, columns * terms // known.block, seed).reshape(columns, -1)
        x = np.random.default_rng(seed).normal(size=(rows, terms)).astype(np.float32)
        wanted = x.astype(np.float64) @ decoded(known, codes).astype(np.float64).T
        found = run(lambda g, x, w: g.dequant_matmul_packed(x, w, scheme), device, x=x, w=codes)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("scheme", ["int8_block(32)", "int8_block_asym(7)", "int4_block(16)"])
def test_products_with_scales_beside_codes_agree_with_float64(scheme, device):
    known = QuantScheme(scheme)
    for seed, (rows, terms, columns) in enumerate([(1, 100, 38), (5, 65, 130), (33, 64, 2)]):
        rng = np.random.default_rng(seed)
        weights = rng.normal(size=(terms, columns))
        codes, scales, points = darner.quantize_weights(weights, known)
        given = {"x": rng.normal(size=(rows, terms)).astype(np.float32), "c": codes, "s": scales}
        if points is not None:
            given["z"] = points

        def product(g, x, c, s, z=None):
            return g.dequant_matmul(x, c, s, z, known)

        wide = (
            np.stack([codes & 15, codes >> 4], -1).reshape(terms, columns)
            if codes.dtype == np.uint8
            else codes
        )
        repeated = [
            np.repeat(np.zeros_like(scales) if a is None else a, known.block, 0)[:terms]
            for a in (scales, points)
        ]
        wanted = given["x"].astype(np.float64) @ (
            (wide - repeated[1].astype(np.float64)) * repeated[0]
        )
        found = run(product, device, **given)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_weights_are_never_floats_in_memory(device):
    rng, scheme = np.random.default_rng(0), QuantScheme.GgufQ4_0
    codes = darner.quantize_weights(rng.normal(size=(256, 512)), scheme).codes
    g = Graph()
    x, w = g.input("x", (3, 512)), g.parameter("w", codes.shape, "u8")
    g.set_outputs([g.dequant_matmul_packed(x, w, scheme).relu()])
    with darner.build_inference_session(g, device=device) as session:
        session.set_parameter("w", codes)
        found = session.run({"x": np.ones((3, 512), np.float32)})["output0"]
        wanted = np.maximum(decoded(scheme, codes).sum(1), 0)
        np.testing.assert_allclose(found[1], wanted, rtol=1e-4, atol=1e-3)
        assert session.memory_summary().total_buffer_bytes < codes.nbytes + 32_000
        assert [session.plan().spec(k).kind for k in session.plan().kernels] == ["contract"]
        np.testing.assert_array_equal(session.get_parameter("w"), codes)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_training_beside_quantised_weights_decodes_them_both_ways(device):
    rng, scheme = np.random.default_rng(0), QuantScheme.GgufQ8_0
    codes = darner.quantize_weights(rng.normal(size=(96, 64)), scheme).codes
    g = Graph()
    x, w, scale = (
        g.input("x", (4, 64)),
        g.parameter("w", codes.shape, "u8"),
        g.parameter("s", (64,)),
    )
    y = g.dequant_matmul_packed(x * scale, w, scheme)
    g.set_outputs([(y * y).mean()])
    given, params = {"x": rng.normal(size=(4, 64))}, {"w": codes, "s": np.ones(64, np.float32)}
    weights = decoded(scheme, codes).astype(np.float64)
    wanted = ((given["x"] @ weights.T) * 2 / (4 * 96) @ weights * given["x"]).sum(0)
    with darner.build_session(g, device=device, optimizer=darner.optim.SGD(1.0)) as session:
        session.parameters().update(params)
        session.run({"x": given["x"].astype(np.float32)})
        step = 1.0 - session.get_parameter("s")
        assert session.plan().arena_bytes < 20_000
    np.testing.assert_allclose(step, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def test_gradients_of_scales_and_zero_points_are_sums_over_their_blocks():
    rng, scheme = np.random.default_rng(0), QuantScheme.Int8BlockAsym(2)
    codes = rng.integers(-128, 128, (3, 4)).astype(np.int8)
    scales, points = rng.normal(size=(2, 2, 4))
    x = rng.normal(size=(5, 3))
    g = Graph()
    nodes = [g.input("x", (5, 3), "f64"), g.input("c", (3, 4), "i8")]
    s, z = (g.input(name, (2, 4), "f64") for name in "sz")
    g.set_outputs([g.dequant_matmul(*nodes, s, z, scheme)])
    pulled = darner.vjp(g, ["x", "s", "z"])
    cotangent = rng.normal(size=(5, 4))
    given = {"x": x, "c": codes, "s": scales, "z": points}
    name = next(name for name in pulled.inputs if name not in given)
    _, dx, ds, dz = darner.run(pulled, {**given, name: cotangent})
    block = np.array([0, 0, 1])
    centred = codes - points[block]
    dw = x.T @ cotangent
    np.testing.assert_allclose(dx, cotangent @ (centred * scales[block]).T)
    sums = [np.add.reduceat(values, [0, 2]) for values in (dw * centred, -dw * scales[block])]
    np.testing.assert_allclose(ds, sums[0])
    np.testing.assert_allclose(dz, sums[1])


def test_codes_have_no_gradient():
    g = Graph()
    w = g.parameter("w", (2, 34), "u8")
    g.set_outputs([g.dequant_matmul_packed(g.input("x", (1, 32)), w, "q8_0").sum()])
    with pytest.raises(ArgumentError, match="'w'"):
        darner.grad(g, ["w"])


def test_f16_rows_are_multiplied_in_f32():
    codes = np.zeros((1, 34 * 8), np.uint8)
    blocks_ = codes.reshape(8, 34)
    blocks_[:, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    blocks_[:, 2] = 100
    x = np.zeros((1, 256), np.float16)
    x[0, ::32] = [600, 600, -600, -600, 0, 0, 0, 1]  # sums beyond what f16 has on the way
    found = run(lambda g, x, w: g.dequant_matmul_packed(x, w, "q8_0"), "cpu", x=x, w=codes)
    assert found.dtype == np.float16
    assert found[0, 0] == 100


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_are_the_same_on_any_number_of_threads(threads):
    rng = np.random.default_rng(0)
    codes = darner.quantize_weights(rng.normal(size=(300, 256)), "q8_0").codes
    g = Graph()
    x, w = g.input("x", (7, 256)), g.input("w", codes.shape, "u8")
    g.set_outputs([g.dequant_matmul_packed(x, w, "q8_0")])
    given = {"x": rng.normal(size=(7, 256)).astype(np.float32), "w": codes}
    with darner.build_inference_session(g, device="cpu", threads=threads) as session:
        found = session.run(given)["output0"]
    with darner.build_inference_session(g, device="cpu", threads=1) as session:
        np.testing.assert_array_equal(found, session.run(given)["output0"])


# --------------------------------------------------------------------------- experts


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_rows_meet_the_experts_that_are_chosen_for_them(device):
    rng, scheme = np.random.default_rng(0), QuantScheme.GgufQ4_0
    slabs = darner.quantize_weights(rng.normal(size=(4, 10, 64)), scheme).codes
    x = rng.normal(size=(3, 64)).astype(np.float32)
    chosen = np.array([2, 0, 2], np.int32)
    found = run(
        lambda g, x, w, e: g.dequant_grouped_matmul(x, w, e, scheme), device, x=x, w=slabs, e=chosen
    )
    weights = decoded(scheme, slabs)
    wanted = np.stack([weights[e] @ row for e, row in zip(chosen, x, strict=True)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    whole = run(lambda g, w: g.dequant_moe_weights(w, scheme), device, w=slabs)
    np.testing.assert_array_equal(whole, weights.swapaxes(1, 2))


def test_an_expert_that_does_not_exist_is_an_error_of_the_step():
    slabs = np.zeros((2, 3, 34), np.uint8)
    with pytest.raises(darner.RunError, match="index 5"):
        run(
            lambda g, x, w, e: g.dequant_grouped_matmul(x, w, e, "q8_0"),
            "cpu",
            x=np.zeros((1, 32), np.float32),
            w=slabs,
            e=np.array([5], np.int32),
        )


# --------------------------------------------------------------------------- schemes


def test_schemes_have_the_bits_of_their_blocks():
    found = {name: QuantScheme(name).bits_per_element for name in PACKED}
    assert found == {
        "q4_0": 4.5,
        "q4_1": 5.0,
        "q5_0": 5.5,
        "q5_1": 6.0,
        "q8_0": 8.5,
        "q2_k": 2.625,
        "q3_k": 3.4375,
        "q4_k": 4.5,
        "q5_k": 5.5,
        "q6_k": 6.5625,
        "q8_k": 9.125,
    }
    assert QuantScheme.Int8Block(32).bits_per_element == 8
    assert (
        QuantScheme.Int4Block(32).bits_per_element == QuantScheme.Nvfp4Block.bits_per_element == 4
    )
    assert QuantScheme.Fp8E4m3.bits_per_element == 8


@pytest.mark.parametrize("text", ["q4_k", "Q4_K", "GgufQ4K", "q4k", QuantScheme.GgufQ4K])
def test_a_scheme_has_many_spellings(text):
    assert QuantScheme(text) == "q4_k"
    assert QuantScheme(text).block == 256


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("IQ4_NL", UnsupportedError, "no decoder for IQ4_NL"),
        ("GgufIq2Xs", UnsupportedError, "no decoder for IQ2_XS"),
        ("mxfp4", UnsupportedError, "no decoder for MXFP4"),
        ("q4_z", darner.UnknownNameError, "no scheme 'q4_z'"),
        ("int8_block", ArgumentError, r"needs the size of its blocks: int8_block\(32\)"),
        ("int8_block(0)", ArgumentError, "must have 1 to"),
        ("q4_k(32)", ArgumentError, "blocks of its own size"),
        (4, ArgumentError, "not 4"),
        ("int8_block(-3)", ArgumentError, "a scheme is"),
        ("", ArgumentError, "a scheme is"),
    ],
)
def test_what_is_no_scheme_is_refused_by_name(text, kind, message):
    with pytest.raises(kind, match=message):
        QuantScheme(text)


def test_schemes_read_back_from_text_and_json():
    g = Graph()
    x, w = g.input("x", (2, 256)), g.input("w", (3, 144), "u8")
    c, s = g.input("c", (256, 4), "i8"), g.input("s", (8, 4))
    y = g.dequant_matmul(x, c, s, None, QuantScheme.Int8Block(32))
    g.set_outputs([g.dequant_matmul_packed(x, w, QuantScheme.GgufQ4K), y])
    again = Graph.from_json(g.to_json())
    assert again.to_text() == g.to_text() == Graph.from_text(g.to_text()).to_text()
    assert 'scheme="q4_k"' in g.to_text()
    assert again.outputs[1].attrs["scheme"] == QuantScheme.Int8Block(32)


# --------------------------------------------------------------------------- from floats to codes


@pytest.mark.parametrize(("scheme", "steps"), [("q8_0", 127), ("q4_0", 8), ("q4_1", 7.5)])
def test_weights_come_back_within_half_a_step(scheme, steps):
    weights = np.random.default_rng(0).normal(size=(7, 96))
    codes = darner.quantize_weights(weights, scheme).codes
    assert codes.dtype == np.uint8
    assert codes.shape == (7, 3 * FORMATS[scheme].bytes)
    error = np.abs(decoded(QuantScheme(scheme), codes) - weights).reshape(7, 3, 32).max(-1)
    largest = np.abs(weights).reshape(7, 3, 32).max(-1)
    half = {"q4_0": 1.01}.get(scheme, 0.52)  # the largest of the other sign is a step beyond
    assert (error <= half * largest / steps).all()


def test_codes_round_to_even():
    block = np.zeros((1, 32))
    block[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    codes = darner.quantize_weights(block, "q8_0").codes
    assert codes[0, 2:8].view(np.int8).tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("block", [1, 5, 32, 100])
def test_codes_beside_scales_come_back_within_half_a_step(block):
    weights = np.random.default_rng(0).normal(size=(33, 6))
    weights[:, 3] = 0
    for scheme in (
        QuantScheme.Int8Block(block),
        QuantScheme.Int8BlockAsym(block),
        QuantScheme.Int4Block(block),
    ):
        codes, scales, points = darner.quantize_weights(weights, scheme)
        given = {"c": codes, "s": scales} | ({} if points is None else {"z": points})
        found = run(
            lambda g, c, s, z=None, scheme=scheme: g.dequantize_blocks(c, s, z, scheme=scheme),
            **given,
        )
        step = np.repeat(scales, block, 0)[:33]
        assert (np.abs(found - weights) <= 1.01 * step + 1e-12).all()
        assert not found[:, 3].any()


@pytest.mark.parametrize(
    ("weights", "scheme", "kind", "message"),
    [
        (np.full((1, 32), np.nan), "q8_0", ArgumentError, "NaN or infinite"),
        (np.full((1, 32), 1e38), "q8_0", ArgumentError, "no scale in f16"),
        (np.ones((1, 33)), "q8_0", ShapeError, "whole blocks of 32"),
        (np.ones((1, 256)), "q4_k", UnsupportedError, "no quantiser for q4_k"),
        (np.ones((1, 256)), "fp8_e4m3", UnsupportedError, "no quantiser"),
        (np.ones((3, 3)), QuantScheme.Int4Block(2), ShapeError, "N must be even"),
        (np.ones(3), QuantScheme.Int8Block(2), ShapeError, "a matrix"),
        (np.ones((2, 2), complex), QuantScheme.Int8Block(2), DTypeError, "floats"),
        (["a"], "q8_0", darner.DarnerError, "weights"),
    ],
)
def test_weights_that_have_no_codes_are_refused(weights, scheme, kind, message):
    with pytest.raises(kind, match=message):
        darner.quantize_weights(weights, scheme)


def test_no_weights_have_no_codes():
    assert darner.quantize_weights(np.zeros((0, 32)), "q8_0").codes.shape == (0, 34)
    assert darner.quantize_weights(np.zeros((0, 4)), QuantScheme.Int8Block(3)).scales.shape == (
        0,
        4,
    )


# --------------------------------------------------------------------------- errors

X, U8 = ((2, 64), "f32"), ((3, 68), "u8")
WRONG = [
    ("dequant_matmul_packed", [X, ((3, 68), "i8")], ["q8_0"], DTypeError, "packed_w must be u8"),
    ("dequant_matmul_packed", [X, U8], ["q4_k"], ShapeError, "64 terms are no whole number"),
    ("dequant_matmul_packed", [X, ((3, 67), "u8")], ["q8_0"], ShapeError, "have 68 bytes"),
    ("dequant_matmul_packed", [X, ((100,), "u8")], ["q8_0"], ShapeError, "rows of 68"),
    ("dequant_matmul_packed", [X, ((1, 3, 68), "u8")], ["q8_0"], ShapeError, "flat or"),
    ("dequant_matmul_packed", [((), "f32"), U8], ["q8_0"], ShapeError, "scalar"),
    ("dequant_matmul_packed", [X, U8], ["int8_block(4)"], ArgumentError, "beside its codes"),
    ("dequant_matmul_packed", [X, U8], ["iq4_nl"], UnsupportedError, "IQ4_NL"),
    ("dequant_matmul_packed", [X, U8], ["q8_0", (2, 4)], ShapeError, "stated"),
    ("dequant_matmul", [X, U8, ((1,), "f32")], [None, "q8_0"], ArgumentError, "must be None"),
    (
        "dequant_matmul",
        [X, ((64, 4), "u8"), ((2, 4), "f32")],
        [None, "int8_block(32)"],
        DTypeError,
        "must be i8",
    ),
    (
        "dequant_matmul",
        [X, ((63, 4), "i8"), ((2, 4), "f32")],
        [None, "int8_block(32)"],
        ShapeError,
        "inner sizes",
    ),
    (
        "dequant_matmul",
        [X, ((64, 4), "i8"), ((3, 4), "f32")],
        [None, "int8_block(32)"],
        ShapeError,
        r"scales must be \(2, 4\)",
    ),
    (
        "dequant_matmul",
        [X, ((64, 4), "i8")],
        [None, None, "int8_block(32)"],
        ArgumentError,
        "scales are needed",
    ),
    (
        "dequant_matmul",
        [X, ((64, 4), "i8"), ((2, 4), "i32")],
        [None, "int8_block(32)"],
        DTypeError,
        "must be floats",
    ),
    (
        "dequant_matmul",
        [X, ((64, 2), "u8"), ((2, 4), "f32")],
        [None, "int4_block(32)"],
        ArgumentError,
        "offsets are needed",
    ),
    (
        "dequant_matmul",
        [X, ((100,), "u8"), ((2, 4), "f32")],
        [None, "int4_block(32)"],
        ShapeError,
        "200 codes",
    ),
    (
        "dequant_matmul",
        [X, ((64, 4), "u8"), ((3,), "f32")],
        [None, "fp8_e4m3"],
        ShapeError,
        "scale must be",
    ),
    (
        "dequant_matmul_nvfp4",
        [((2, 24), "f32"), ((24, 2), "u8"), ((2, 4), "u8")],
        [],
        ShapeError,
        "blocks of 16",
    ),
    ("dequant_matmul_nvfp4", [X, ((64, 2), "u8"), ((4, 4), "f32")], [], DTypeError, "must be u8"),
    (
        "dequant_matmul_nvfp4",
        [X, ((64, 2), "u8"), ((4, 4), "u8"), ((2,), "f32")],
        [],
        ShapeError,
        "zp must be",
    ),
    (
        "dequant_grouped_matmul",
        [X, ((4, 3, 68), "u8"), ((3,), "i32")],
        ["q8_0"],
        ShapeError,
        "x has rows",
    ),
    (
        "dequant_grouped_matmul",
        [X, ((4, 3, 34), "u8"), ((2,), "i32")],
        ["q8_0"],
        ShapeError,
        "inner sizes",
    ),
    ("dequant_grouped_matmul", [X, U8, ((2,), "i32")], ["q8_0"], ShapeError, "a slab for each"),
    ("dequant_moe_weights", [((4, 3, 33), "u8")], ["q8_0"], ShapeError, "33 bytes"),
    ("dequantize_blocks", [((), "u8")], ["q8_0"], ShapeError, "not a scalar"),
]


@pytest.mark.parametrize(("name", "operands", "rest", "kind", "text"), WRONG)
def test_wrong_calls_say_what_is_wrong(name, operands, rest, kind, text):
    g = Graph()
    nodes = [g.input(f"x{i}", *operand) for i, operand in enumerate(operands)]
    named = {"scheme": rest.pop()} if name == "dequantize_blocks" else {}
    with pytest.raises(kind, match=text) as caught:
        getattr(g, name)(*nodes, *rest, **named, label="here")
    assert caught.value.op == name
    assert "here" in str(caught.value)


def test_sizes_of_packed_weights_may_be_symbols_but_for_the_terms():
    g = Graph()
    x, w = g.input("x", ("rows", 64)), g.input("w", ("columns", 68), "u8")
    y = g.dequant_matmul_packed(x, w, "q8_0")
    assert [str(size) for size in y.shape] == ["rows", "columns"]
    g.set_outputs([y])
    given = {"x": np.ones((2, 64), np.float32), "w": blocks("q8_0", 6).reshape(3, 68)}
    with darner.build_inference_session(g, device="cpu") as session:
        found = session.run(given)["output0"]
    wanted = decoded(QuantScheme.GgufQ8_0, given["w"]).sum(1)
    np.testing.assert_allclose(found, [wanted, wanted], rtol=1e-4, atol=1e-4)
    with pytest.raises(ShapeError, match="terms of a product with packed weights"):
        g.dequant_matmul_packed(g.input("z", (2, "terms")), w, "q8_0")


def test_a_scheme_without_scales_takes_none():
    g = Graph()
    with pytest.raises(ArgumentError, match="has no scales beside its codes"):
        g.dequantize_blocks(g.input("c", (2, 34), "u8"), g.input("s", (1, 2)), scheme="q8_0")
