"""Contractions as native code, against NumPy in float64."""

import ctypes
import mmap
import sys
from dataclasses import dataclass, replace
from functools import cache

import llvmlite.binding as llvm
import llvmlite.ir as ir
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from darner.backends.cpu.contract import plan as gemm_plan
from darner.backends.cpu.contract.pack import PackKernel
from darner.backends.cpu.contract.plan import cut
from darner.backends.cpu.contract.template import _parts
from darner.backends.cpu.contract.tile import choose_tile
from darner.backends.cpu.emit.panels import Panels
from darner.codegen.ir.emit import load, loop, offset
from darner.codegen.ir.index import i64
from darner.graph.errors import ArgumentError
from tests.conformance import examples
from tests.cpu.product_functions import (
    Contraction,
    emit_contraction,
    emit_pack_b,
    packed_elements,
    scratch_bytes,
    share_evenly,
)

CANARY = 123.0
GUARD = 64
NUMPY = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52, "bf16": 2.0**-7, "f16": 2.0**-10}


@dataclass(frozen=True)
class Vectors:
    vector_bytes: int
    multiplies: int = 2


@cache
def host_vector_bytes():
    features = llvm.get_host_cpu_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx2") else 16


MACHINE = Vectors(host_vector_bytes())


class Jit:
    """A module of IR as native code."""

    def __init__(self, module):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
        )
        self.engine = llvm.create_mcjit_compiler(parsed, target)
        self.engine.finalize_object()

    def function(self, name, count):
        """A function of two integers and ``count`` pointers."""
        kinds = [ctypes.c_int64] * 2 + [ctypes.c_void_p] * count
        return ctypes.CFUNCTYPE(None, *kinds)(self.engine.get_function_address(name))


def aligned(count, dtype, fill):
    """``count`` elements at a multiple of 64 bytes, with a guard on both sides."""
    size = np.dtype(dtype).itemsize
    whole = np.empty(count + 2 * GUARD + 64 // size, dtype)
    skip = (-whole.ctypes.data % 64) // size
    whole = whole[skip : skip + count + 2 * GUARD]
    whole[:] = fill
    return whole


def spans(sizes, strides):
    """Elements from the first to the last that strides reach."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def view(buffer, sizes, strides):
    """A strided window after the guard."""
    size = buffer.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        buffer[GUARD:], sizes, [stride * size for stride in strides]
    )


def filled(rng, dtype, sizes, strides):
    """A buffer whose elements that strides reach are random and whose others are NaN."""
    buffer = aligned(spans(sizes, strides), NUMPY[dtype], np.nan)
    window = view(buffer, sizes, strides)
    window[...] = rng.standard_normal(sizes).astype(NUMPY[dtype])
    return buffer, np.array(window, np.float64)


def run(
    contraction,
    machine=MACHINE,
    threads=1,
    packed=False,
    epilogue=None,
    after=None,
    extra=(),
    share=share_evenly,
):
    """Run a contraction, prove that nothing else was written, and compare with NumPy."""
    rng = np.random.default_rng(1)
    c, dtype = contraction, contraction.dtype
    a_buffer, a = filled(rng, dtype, (c.batch, c.m, c.k), c.a_strides)
    b_buffer, b = filled(rng, dtype, (c.batch, c.k, c.n), c.b_strides)
    c_sizes = (c.batch, c.m, c.n)
    out = aligned(spans(c_sizes, c.c_strides), NUMPY[dtype], CANARY)
    old = rng.standard_normal(c_sizes).astype(NUMPY[dtype])
    view(out, c_sizes, c.c_strides)[...] = old
    module = ir.Module()
    emit_contraction(module, "product", c, machine, epilogue, packed, share)
    if packed:
        emit_pack_b(module, "pack", c, machine)
    jit = Jit(module)
    b_pointer = b_buffer.ctypes.data + GUARD * b_buffer.itemsize
    panels = aligned(packed_elements(c, machine), NUMPY[dtype], CANARY)
    if packed:
        pack = jit.function("pack", 2)
        for thread in range(threads):
            target = panels.ctypes.data + GUARD * panels.itemsize
            pack(thread, threads, b_pointer, target)
        b_pointer = panels.ctypes.data + GUARD * panels.itemsize
    scratch = aligned(threads * scratch_bytes(c, machine, packed) // 8, np.float64, CANARY)
    pointers = np.array([array.ctypes.data for array in extra] or [0], np.uint64)
    product = jit.function("product", 5)
    for thread in range(threads):
        product(
            thread,
            threads,
            a_buffer.ctypes.data + GUARD * a_buffer.itemsize,
            b_pointer,
            out.ctypes.data + GUARD * out.itemsize,
            pointers.ctypes.data,
            scratch.ctypes.data + GUARD * scratch.itemsize,
        )
    expected = a @ b
    size = np.abs(a) @ np.abs(b) + 1
    if c.accumulate:
        expected = expected + old.astype(np.float64)
        size = size + np.abs(old.astype(np.float64))
    if after is not None:
        expected = after(expected)
    result = np.array(view(out, c_sizes, c.c_strides), np.float64)
    summed = "f64" if dtype == "f64" else "f32"
    bound = EPSILON[summed] * (c.k + 4) * size + EPSILON[dtype] * (np.abs(expected) + 1)
    assert result.shape == expected.shape
    assert np.all(np.abs(result - expected) <= bound)
    view(out, c_sizes, c.c_strides)[...] = CANARY
    for buffer in (out, scratch, panels):
        edges = np.concatenate([buffer[:GUARD], buffer[-GUARD:]])
        assert np.all(edges.astype(np.float64) == CANARY)
    assert np.all(out.astype(np.float64) == CANARY)
    return result


TILE = choose_tile(MACHINE, "f32")
ODD = sorted(
    {0, 1, 2, 3, 5, 7, 13, 17, 31, 61, TILE.rows, TILE.rows + 1, TILE.width - 1}
    | {TILE.width, TILE.width + 1, TILE.width + TILE.lanes, 2 * TILE.width + 1, TILE.lanes}
)


@st.composite
def contractions(draw):
    dtype = draw(st.sampled_from(["f32", "f32", "f64", "bf16", "f16"]))
    m, n, k = (draw(st.sampled_from(ODD)) for _ in range(3))
    batch = draw(st.sampled_from([1, 1, 2, 3]))

    def strides(rows, columns, may_repeat):
        gap = draw(st.sampled_from([0, 0, 3]))
        step = draw(st.sampled_from([1, 1, 1, 2]))
        order = draw(st.booleans())
        inner = rows if order else columns
        line = inner * step + gap
        down, across = (step, line) if order else (line, step)
        repeated = may_repeat and draw(st.booleans())
        return (0 if repeated else line * (columns if order else rows) + gap, down, across)

    a = strides(m, k, True)
    b = strides(k, n, True)
    c = strides(m, n, False)
    if batch > 1 and c[0] == 0:
        c = (1, *c[1:])
    fine = all(size < 2 or stride for size, stride in zip((batch, m, n), c, strict=True))
    if not fine:
        c = (m * n + 1, max(n, 1), 1)
    return Contraction(dtype, batch, m, n, k, a, b, c, draw(st.booleans()))


@settings(max_examples=examples(20), deadline=None)
@given(contractions(), st.integers(1, 3), st.booleans())
@example(Contraction.dense("f32", 17, 97, 13), 2, False)
def test_any_sizes_strides_batches_and_threads_give_the_product(contraction, threads, packed):
    run(contraction, threads=threads, packed=packed)


def run_with_a_small_cache(contraction, **how):
    """Run a contraction as on a machine whose cache holds a few tiles: A goes through it in blocks of rows and of k."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm_plan, "ROLLING_BYTES", 32 << 10)
        patch.setattr(gemm_plan, "BLOCK_BYTES", 32 << 10)
        patch.setattr(gemm_plan, "GROUP_BYTES", 40 << 10)
        patch.setattr(gemm_plan, "LONGEST_BLOCK", 40)
        patch.setattr(gemm_plan, "LONGEST_PASS", 50)
        run(contraction, **how)


@settings(max_examples=examples(20), deadline=None)
@given(contractions(), st.integers(1, 3), st.booleans())
@example(Contraction.dense("f32", 61, 130, 61), 2, False)
@example(Contraction.dense("f32", 61, 130, 61, transpose_a=True, accumulate=True), 3, True)
def test_sizes_beyond_the_cache_give_the_product(contraction, threads, packed):
    run_with_a_small_cache(contraction, threads=threads, packed=packed)


@pytest.mark.parametrize("shape", [(170, 209, 83), (170, 209, 37), (90, 600, 101), (500, 60, 90)])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_of_rows_and_of_terms(shape, transpose_a, transpose_b, packed):
    how = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    run_with_a_small_cache(Contraction.dense("f32", *shape, **how), threads=3, packed=packed)
    contraction = Contraction.dense("bf16", *shape, batch=2, accumulate=True, **how)
    run_with_a_small_cache(contraction, threads=2, packed=packed)


def test_blocks_of_more_threads_than_tiles_have_nothing_to_do_for_some():
    run_with_a_small_cache(Contraction.dense("f32", 70, 50, 130, transpose_b=True), threads=40)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_of_transposed_operands(dtype, transpose_a, transpose_b):
    contraction = Contraction.dense(
        dtype, 29, 131, 83, transpose_a=transpose_a, transpose_b=transpose_b
    )
    run(contraction, threads=2)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_products_of_a_few_rows(rows, transpose_b, packed):
    run(Contraction.dense("f32", rows, 301, 77, transpose_b=transpose_b), threads=3, packed=packed)
    run(Contraction.dense("bf16", rows, 65, 40, transpose_b=transpose_b, transpose_a=True))


@pytest.mark.parametrize("packed", [False, True])
def test_sums_longer_than_one_pass_over_a_panel(packed):
    run(Contraction.dense("f32", 19, 70, 4500), packed=packed, threads=2)
    run(Contraction.dense("f32", 9, 50, 4500, accumulate=True, transpose_a=True), packed=packed)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_few_rows_of_more_columns_than_are_held_at_a_time(transpose_b):
    contraction = Contraction.dense("f32", 2, 9001, 11, transpose_b=transpose_b)
    run(contraction)
    run(contraction, threads=2)


@pytest.mark.parametrize("shape", [(33, 16, 5), (71, 80, 300), (128, 112, 37), (127, 256, 9)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_weights_of_few_whole_vectors_are_read_as_they_lie(shape, dtype):
    contraction = Contraction.dense(dtype, *shape)
    assert cut(contraction, MACHINE).direct or dtype != "f32"
    run(contraction, threads=2)


def test_more_rows_and_panels_than_the_cache_holds():
    run(Contraction.dense("f32", 150, 700, 1501), threads=2)
    run(Contraction.dense("f32", 300, 40, 1001), threads=3)


@pytest.mark.skipif(sys.platform == "win32", reason="protects pages through POSIX")
@pytest.mark.parametrize("shape", [(9, 61, 13), (3, 61, 13), (17, 49, 37), (41, 61, 13)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_nothing_is_touched_past_the_end_of_an_operand(shape, transposed, dtype):
    m, n, k = shape
    contraction = Contraction.dense(dtype, m, n, k, transpose_a=transposed, transpose_b=transposed)
    module = ir.Module()
    emit_contraction(module, "product", contraction, MACHINE)
    jit = Jit(module)
    rng = np.random.default_rng(4)
    page = mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    arrays, protected = [], []
    for count in (m * k, k * n, m * n):
        size = count * np.dtype(NUMPY[dtype]).itemsize
        whole = np.frombuffer(mmap.mmap(-1, -(-size // page) * page + page), np.uint8)
        assert protect(whole.ctypes.data + whole.size - page, page, 0) == 0
        protected.append(whole)
        end = whole.size - page
        array = whole[end - size : end].view(NUMPY[dtype])
        array[...] = rng.standard_normal(count)
        arrays.append(array)
    a, b, c = arrays
    scratch = aligned(scratch_bytes(contraction, MACHINE) // 8, np.float64, 0.0)
    jit.function("product", 5)(
        0,
        1,
        *(array.ctypes.data for array in arrays),
        0,
        scratch.ctypes.data + GUARD * scratch.itemsize,
    )
    left = a.reshape(k, m).T if transposed else a.reshape(m, k)
    right = b.reshape(n, k).T if transposed else b.reshape(k, n)
    expected = left.astype(np.float64) @ right.astype(np.float64)
    tolerance = 8 * EPSILON[dtype]
    np.testing.assert_allclose(
        c.reshape(m, n).astype(np.float64), expected, rtol=tolerance, atol=tolerance * k
    )
    for whole in protected:
        assert protect(whole.ctypes.data + whole.size - page, page, 3) == 0


def test_no_terms_give_zeros_or_what_was_there():
    assert np.all(run(Contraction.dense("f32", 3, 50, 0)) == 0)
    assert np.any(run(Contraction.dense("f32", 3, 50, 0, accumulate=True)) != 0)


def bias_and_relu(builder, values, batch, row, column, mask, extra):
    lanes = values.type.count
    pointer = builder.load(extra, typ=ir.PointerType())
    bias = load(builder, offset(builder, pointer, "f32", column), "f32", lanes, mask)
    total = builder.fadd(values, bias)
    zeros = ir.Constant(total.type, None)
    return builder.select(builder.fcmp_ordered(">", total, zeros), total, zeros)


@pytest.mark.parametrize("shape", [(9, 131, 20), (1, 131, 20), (16, 96, 20)])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_an_epilogue_adds_a_bias_and_clips(shape, transpose_b, packed):
    m, n, k = shape
    bias = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    run(
        Contraction.dense("f32", m, n, k, transpose_b=transpose_b),
        threads=2,
        packed=packed,
        epilogue=bias_and_relu,
        after=lambda sums: np.maximum(sums + bias, 0),
        extra=[bias],
    )


def test_an_epilogue_knows_its_batch_and_row():
    def add_place(builder, values, batch, row, column, mask, extra):
        lanes = values.type.count
        place = builder.add(builder.mul(batch, i64(1000)), row)
        number = builder.sitofp(place, ir.FloatType())
        vector = ir.Constant(values.type, ir.Undefined)
        for lane in range(lanes):
            vector = builder.insert_element(vector, number, ir.IntType(32)(lane))
        return builder.fadd(values, vector)

    place = np.arange(3)[:, None, None] * 1000.0 + np.arange(10)[None, :, None]
    run(
        Contraction.dense("f32", 10, 50, 7, batch=3),
        threads=2,
        epilogue=add_place,
        after=lambda sums: sums + place,
    )


@pytest.mark.parametrize("width", [16, 32])
def test_narrower_vectors_give_the_same_products(width):
    if width > host_vector_bytes():
        pytest.skip("this machine has no vectors of that width")
    run(Contraction.dense("f32", 13, 37, 29), machine=Vectors(width))
    run(Contraction.dense("f64", 7, 25, 18, transpose_a=True), machine=Vectors(width))
    run(Contraction.dense("bf16", 7, 25, 18, transpose_b=True), machine=Vectors(width))


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize("packed", [False, True])
def test_threads_may_claim_units_one_by_one(rows, packed):
    def one_by_one(builder, thread, threads, units, work):
        def claim(start, stop):
            def unit(index, _):
                work(index, builder.add(index, i64(1)))

            loop(builder, start, stop, 1, unit)

        share_evenly(builder, thread, threads, units, claim)

    contraction = Contraction.dense("f32", rows, 200, 12, batch=2)
    run(contraction, threads=3, packed=packed, share=one_by_one)


def test_sixteen_bit_results_round_to_nearest_even_and_keep_infinities():
    values = np.array([1.00390625, 1.01171875, 3.4e38, -3.4e38, np.nan], np.float32)
    a = values.astype(ml_dtypes.bfloat16)
    module = ir.Module()
    contraction = Contraction.dense("bf16", 5, 1, 1)
    emit_contraction(module, "product", contraction, MACHINE)
    one = np.ones(1, ml_dtypes.bfloat16)
    out = np.zeros(5, ml_dtypes.bfloat16)
    scratch = np.zeros(scratch_bytes(contraction, MACHINE), np.uint8)
    jit = Jit(module)
    jit.function("product", 5)(
        0, 1, a.ctypes.data, one.ctypes.data, out.ctypes.data, 0, scratch.ctypes.data
    )
    np.testing.assert_array_equal(out.astype(np.float32), a.astype(np.float32))


def test_shapes_of_a_module_share_their_kernels():
    module = ir.Module()
    emit_contraction(module, "first", Contraction.dense("f32", 64, 96, 10), MACHINE)
    kernels = len(module.functions)
    emit_contraction(module, "second", Contraction.dense("f32", 128, 192, 33), MACHINE)
    assert len(module.functions) == kernels + 1


def test_a_repeated_output_and_an_unknown_type_are_refused():
    with pytest.raises(ArgumentError, match="stride 0 along n"):
        Contraction("f32", 1, 2, 3, 4, (0, 4, 1), (0, 3, 1), (0, 3, 0))
    with pytest.raises(ArgumentError, match="i32"):
        Contraction.dense("i32", 2, 3, 4)
    with pytest.raises(ArgumentError, match="at least 0"):
        Contraction.dense("f32", -1, 3, 4)
    with pytest.raises(ArgumentError, match="vectors of 16, 32 and 64"):
        choose_tile(Vectors(8), "f32")


@pytest.mark.parametrize("multiplies", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_ask_for_what_the_processor_does_not_foresee(rows, multiplies):
    machine = Vectors(host_vector_bytes(), multiplies)
    contraction = Contraction.dense("f32", rows, 131, 61)
    plan = cut(contraction, machine)
    assert plan.path == "rows"
    assert plan.asks == (rows > 2 or multiplies == 2)
    run(contraction, machine, threads=2)


def test_parts_of_sums_keep_the_rows_of_a_weight_to_one_thread():
    def parts(m, k, n):
        return _parts(Contraction.dense("f32", m, n, k), Vectors(64))

    found = parts(128, 784, 128)
    assert (found.count, found.length, found.rest) == (2, 392, 0)
    assert parts(128, 256, 128) is None
    assert parts(128, 784, 16) is None


def test_sums_that_are_too_long_for_the_cache_are_made_in_parts():
    """Of rows that all fit at once too, and of terms that lie in panels: there passes over all rows took a seventh longer."""
    machine = Vectors(64)
    for m, n, k in ((96, 200, 20000), (128, 576, 8192), (42, 332, 8356)):
        plain = Contraction.dense("f32", m, n, k, transpose_b=True)
        last = -(-(k % 48) // 16) * 16
        terms = replace(plain, b_strides=(0, 1, 48), b_panels=Panels(n, k, 48, last, False))
        for contraction in (plain, terms):
            found = _parts(contraction, machine)
            assert found is not None
            held = found.length * (m + 96) * 4
            assert held <= 1.2 * (1 << 20)
    assert _parts(Contraction.dense("f32", 64, 3000, 1500), machine) is None


@pytest.mark.parametrize("m", [1, 2, 4, 5, 7, 16])
def test_sums_of_panels_that_were_packed_before_stay_whole_where_threads_have_some_each(m):
    machine = Vectors(64)
    assert _parts(Contraction.dense("f32", m, 576, 1536), machine, packing=False) is None
    assert _parts(Contraction.dense("f32", m, 100, 8192), machine, packing=False) is not None
    assert cut(Contraction.dense("f32", m, 576, 1536), machine, packed_b=True).path == "tiles"


@pytest.mark.parametrize("contiguous", ["columns", "k"])
def test_what_others_read_is_packed_past_the_cache(contiguous):
    def text(past):
        module = ir.Module()
        PackKernel("f32", "f32", 8, 8, contiguous, non_temporal=past).function(module)
        return str(module)

    assert "!nontemporal" in text(True)
    assert "!nontemporal" not in text(False)
