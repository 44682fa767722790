"""Products that decode one operand as they go: every way to cut them, both directions, whatever else the kernel does."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.ops.quantised.packed import decoded
from darner.ops.quantised.scheme import QuantScheme
from tests.cpu.running import compiled, run_program


def codes_of(scheme, columns, terms, seed=0):
    """Bytes whose scales are numbers, wherever they lie."""
    rng = np.random.default_rng(seed)
    row = QuantScheme(scheme).row_bytes(terms)
    return rng.integers(0, 60, (columns, row)).astype(np.uint8)


def assert_near(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=3e-6 * np.abs(wanted).max())


def run_cpu(graph, threads, **arrays):
    program = compiled(graph, threads=threads)
    try:
        (found,) = run_program(program, arrays)
        return found, [program.plan.spec(kernel).kind for kernel in program.plan.kernels]
    finally:
        program.close()


SIZES = [
    (1, 5, 3),
    (3, 129, 40),
    (7, 3, 5),
    (8, 17, 33),
    (13, 33, 70),
    (16, 70, 8),
    (64, 5, 200),
    (100, 17, 130),
    (200, 40, 520),
    (300, 8, 33),
]
"""Rows, blocks of 32 terms, and columns: dot products, panels one by one and side by side, and sums in parts."""


@pytest.mark.parametrize(("rows", "blocks", "columns"), SIZES)
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_along_the_sums(rows, blocks, columns, threads):
    terms = 32 * blocks
    codes = codes_of("q8_0", columns, terms)
    x = np.random.default_rng(1).normal(size=(rows, terms)).astype(np.float32)
    g = Graph()
    left, right = g.input("x", x.shape), g.input("w", codes.shape, "u8")
    g.set_outputs([g.dequant_matmul_packed(left, right, "q8_0")])
    found, kinds = run_cpu(g, threads, x=x, w=codes)
    assert kinds == ["contract"]
    assert_near(found, x.astype(np.float64) @ decoded(QuantScheme.GgufQ8_0, codes).T)


@pytest.mark.parametrize(("rows", "terms", "columns"), [(1, 3, 256), (40, 70, 512), (5, 300, 256)])
def test_blocks_across_the_sums(rows, terms, columns):
    codes = codes_of("q4_k", terms, columns)
    x = np.random.default_rng(1).normal(size=(rows, terms)).astype(np.float32)
    g = Graph()
    left, right = g.input("x", x.shape), g.input("w", codes.shape, "u8")
    g.set_outputs([left @ right.dequantize_blocks(scheme="q4_k")])
    found, kinds = run_cpu(g, 2, x=x, w=codes)
    assert kinds == ["contract"]
    assert_near(found, x.astype(np.float64) @ decoded(QuantScheme.GgufQ4K, codes))


@pytest.mark.parametrize("order", ["weights first", "transposed", "batch of rows"])
def test_the_decoded_operand_may_stand_anywhere(order):
    codes = codes_of("q4_0", 20, 64)
    weights = decoded(QuantScheme.GgufQ4_0, codes).astype(np.float64)
    rng = np.random.default_rng(1)
    g = Graph()
    w = g.input("w", codes.shape, "u8").dequantize_blocks(scheme="q4_0")
    if order == "weights first":
        x = rng.normal(size=(64, 9)).astype(np.float32)
        product, wanted = w @ g.input("x", x.shape), weights @ x
    elif order == "transposed":
        x = rng.normal(size=(20, 9)).astype(np.float32)
        product, wanted = w.T @ g.input("x", x.shape), weights.T @ x
    else:
        x = rng.normal(size=(2, 3, 64)).astype(np.float32)
        product, wanted = g.input("x", x.shape) @ w.T, x @ weights.T
    g.set_outputs([product])
    found, kinds = run_cpu(g, 2, x=x, w=codes)
    assert kinds == ["contract"]
    assert_near(found, wanted)


def test_what_follows_the_product_is_computed_in_its_kernel():
    codes = codes_of("q8_0", 40, 96)
    rng = np.random.default_rng(1)
    x, bias, more = (rng.normal(size=size).astype(np.float32) for size in ((6, 96), (40,), (6, 40)))
    g = Graph()
    y = g.dequant_matmul_packed(g.input("x", (6, 96)), g.input("w", codes.shape, "u8"), "q8_0")
    g.set_outputs([(y + g.input("bias", (40,))).relu() + g.input("more", (6, 40))])
    found, kinds = run_cpu(g, 2, x=x, w=codes, bias=bias, more=more)
    assert kinds == ["contract"]
    sums = x.astype(np.float64) @ decoded(QuantScheme.GgufQ8_0, codes).T
    assert_near(found, np.maximum(sums + bias, 0) + more)


def test_scales_of_the_size_of_the_result_are_no_part_of_the_epilogue():
    # As many blocks of rows as rows of the product.
    rng = np.random.default_rng(0)
    codes = rng.integers(-128, 128, (12, 24)).astype(np.int8)
    scales = rng.normal(size=(3, 24)).astype(np.float32)
    x = rng.normal(size=(3, 12)).astype(np.float32)
    g = Graph()
    nodes = [g.input("x", (3, 12)), g.input("w", (12, 24), "i8"), g.input("s", (3, 24))]
    g.set_outputs([g.dequant_matmul(*nodes, None, "int8_block(4)").tanh()])
    found, kinds = run_cpu(g, 2, x=x, w=codes, s=scales)
    assert kinds == ["contract"]
    assert_near(found, np.tanh(x.astype(np.float64) @ (codes * np.repeat(scales, 4, 0))))


def test_weights_that_are_also_read_one_by_one_are_decoded_once():
    codes = codes_of("q8_0", 10, 64)
    x = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    g = Graph()
    w = g.input("w", codes.shape, "u8").dequantize_blocks(scheme="q8_0")
    g.set_outputs([g.input("x", (4, 64)) @ w.T + w.sum()])
    found, kinds = run_cpu(g, 2, x=x, w=codes)
    assert "contract" in kinds
    assert len(kinds) > 1
    weights = decoded(QuantScheme.GgufQ8_0, codes).astype(np.float64)
    assert_near(found, x @ weights.T + weights.sum())


@pytest.mark.parametrize("rows", [0, 4])
def test_products_of_nothing(rows):
    g = Graph()
    x, w = g.input("x", (rows, 32)), g.input("w", (0, 34), "u8")
    g.set_outputs([g.dequant_matmul_packed(x, w, "q8_0")])
    given = {"x": np.ones((rows, 32), np.float32), "w": np.zeros((0, 34), np.uint8)}
    with darner.build_inference_session(g, device="cpu") as session:
        assert session.run(given)["output0"].shape == (rows, 0)
    g = Graph()
    x, w = g.input("x", (rows, 0)), g.input("w", (3, 0), "u8")
    g.set_outputs([g.dequant_matmul_packed(x, w, "q8_0")])
    given = {"x": np.ones((rows, 0), np.float32), "w": np.zeros((3, 0), np.uint8)}
    with darner.build_inference_session(g, device="cpu") as session:
        assert (session.run(given)["output0"] == np.zeros((rows, 3))).all()


SCALED = [
    ("int8_block(32)", 3, 70, 40),
    ("int8_block(32)", 12, 300, 1002),
    ("int8_block_asym(20)", 17, 530, 66),
    ("int4_block(32)", 8, 257, 34),
    ("int4_block(7)", 40, 600, 514),
    ("int8_block(32)", 130, 259, 98),
    ("int4_block(32)", 400, 260, 300),
]
"""Schemes with scales beside the codes; rows, terms and columns: one tile of rows, several, and panels; whole vectors and parts of them; one block of terms and several."""


@pytest.mark.parametrize(("scheme", "rows", "terms", "columns"), SCALED)
def test_scales_beside_the_codes(scheme, rows, terms, columns):
    rng = np.random.default_rng(0)
    known = QuantScheme(scheme)
    stored = darner.quantize_weights(rng.normal(size=(terms, columns)), known)._asdict()
    stored = {name: value for name, value in stored.items() if value is not None}
    x = rng.normal(size=(rows, terms)).astype(np.float32)

    def codes(g):
        leaves = {name: g.input(name, value.shape, value.dtype) for name, value in stored.items()}
        return g.dequantize_blocks(**leaves, scheme=known)

    g = Graph()
    g.set_outputs([codes(g)])
    (weights,) = darner.run(g, stored)
    g = Graph()
    g.set_outputs([g.input("x", x.shape) @ codes(g)])
    found, kinds = run_cpu(g, 1, x=x, **stored)
    assert kinds == ["contract"]
    assert_near(found, x.astype(np.float64) @ weights)
    # How threads share it out changes no bit.
    assert (run_cpu(g, 3, x=x, **stored)[0] == found).all()


@pytest.mark.parametrize("rows", [3, 8, 11, 16])
def test_dot_products_with_several_columns_at_a_time(rows):
    codes = codes_of("q4_0", 23, 160)
    x = np.random.default_rng(1).normal(size=(rows, 160)).astype(np.float32)
    g = Graph()
    left, right = g.input("x", x.shape), g.input("w", codes.shape, "u8")
    g.set_outputs([g.dequant_matmul_packed(left, right, "q4_0")])
    found, _ = run_cpu(g, 1, x=x, w=codes)
    assert_near(found, x.astype(np.float64) @ decoded(QuantScheme.GgufQ4_0, codes).T)
    assert (run_cpu(g, 3, x=x, w=codes)[0] == found).all()


@pytest.mark.parametrize("scheme", ["int4_block(32)", "q8_0"])
@pytest.mark.parametrize("rows", [1, 3, 9, 16, 40])
def test_batches_of_decoded_matrices(scheme, rows):
    # Matrices of a batch lie at addresses that are indices.
    rng = np.random.default_rng(2)
    known = QuantScheme(scheme)
    x = rng.normal(size=(2, rows, 64)).astype(np.float32)
    if known.is_packed:
        stored = {"codes": rng.integers(0, 60, (2, 40, known.row_bytes(64))).astype(np.uint8)}
    else:
        stored = {
            "codes": rng.integers(0, 256, (2, 64, 20)).astype(np.uint8),
            "scales": rng.normal(size=(2, 2, 40)).astype(np.float32),
            "offsets": rng.integers(0, 15, (2, 2, 40)).astype(np.float32),
        }

    def weights(g):
        leaves = {name: g.input(name, value.shape, value.dtype) for name, value in stored.items()}
        found = g.dequantize_blocks(**leaves, scheme=known)
        return found.transpose((0, 2, 1)) if known.is_packed else found

    g = Graph()
    g.set_outputs([weights(g)])
    (wanted,) = darner.run(g, stored)
    g = Graph()
    g.set_outputs([g.input("x", x.shape) @ weights(g)])
    found, _ = run_cpu(g, 2, x=x, **stored)
    assert_near(found, x.astype(np.float64) @ wanted)
