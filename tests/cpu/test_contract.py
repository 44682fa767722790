"""Products of matrices as kernels of a plan, against the reference in float64."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llvmlite import ir

import darner
from darner import Graph
from darner.backends.base.cache import ObjectCache
from darner.backends.cpu.contract import plan as gemm_plan
from darner.backends.cpu.contract import queued
from darner.backends.cpu.contract import template as contract
from darner.backends.cpu.contract.plan import Contraction
from darner.backends.cpu.contract.queued import can_claim, can_claim_parts
from darner.backends.cpu.emit.work_queue import Claims
from darner.backends.cpu.kernels import template_of
from darner.backends.cpu.model import CpuModel
from darner.backends.cpu.runtime.jit import host
from darner.backends.cpu.runtime.program import CpuProgram
from darner.graph import dtypes
from darner.lower.lower import lower
from darner.ops.linalg.contract import dot_general
from tests.conformance import examples
from tests.cpu.running import compiled, run_program

EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52, "bf16": 2.0**-7, "f16": 2.0**-10}
SIZES = (1, 1, 2, 3, 5, 7, 17)


def contract_kernels(program):
    """The kernels of a program that are products, by template."""
    plan = program.plan
    return [
        template_of(plan.spec(kernel)).name
        for kernel in plan.kernels
        if plan.spec(kernel).kind == "contract"
    ]


def check(
    make, *arrays, dtype="f32", threads=2, terms=64, template="contract", kernels=1, cache=None
):
    """Assert that what ``make(graph, *nodes)`` builds is one product's kernel and computes what the reference does."""
    g = Graph()
    kind = dtypes.dtype(dtype)
    given = [np.asarray(array).astype(kind.numpy) for array in arrays]
    nodes = [g.input(str(i), array.shape, kind) for i, array in enumerate(given)]
    made = make(g, *nodes)
    g.set_outputs(made if isinstance(made, list) else [made])
    inputs = {str(i): array for i, array in enumerate(given)}
    program = compiled(g, threads=threads, cache=cache)
    try:
        assert contract_kernels(program) == [template] * kernels
        found = run_program(program, inputs)
        again = run_program(program, inputs)
    finally:
        program.close()
    summed = EPSILON["f64" if dtype == "f64" else "f32"] * (terms + 8)
    for a, b, c in zip(found, darner.run(g, inputs, float64=True), again, strict=True):
        assert a.shape == b.shape
        assert a.tobytes() == c.tobytes()
        scale = max(1.0, float(np.abs(b.astype(np.float64)).max(initial=0.0)))
        tolerance = scale * (summed + 3 * EPSILON[dtype])
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=0, atol=tolerance
        )
    return found


@pytest.fixture
def cache(tmp_path):
    """Code for one number of threads is that for any other: it is made once."""
    return ObjectCache(tmp_path)


def normal(*shape):
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape)


# --------------------------------------------------------------------------- layouts


@st.composite
def products(draw):
    """Sizes of the axes of a product, the order in which each operand has them, and how it is viewed."""

    def some(most, sizes=SIZES):
        return tuple(draw(st.lists(st.sampled_from(sizes), max_size=most)))

    batch, rows, columns, summed = some(2, (1, 2, 3)), some(2), some(2), some(2)
    if draw(st.integers(0, 9)) == 0:
        rows = (*rows[:1], 0)
    if draw(st.integers(0, 9)) == 0:
        summed = (*summed[:1], 0)
    views = []
    for free in (rows, columns):
        count = len(batch) + len(free) + len(summed)
        order = draw(st.permutations(range(count)))
        views.append((tuple(order), draw(st.sampled_from(["", "flip", "slice"]))))
    return batch, rows, columns, summed, views


def viewed(node, groups, view):
    """A node whose axes come in another order, and where groups of them are then."""
    order, change = view
    if change == "flip" and order:
        node = node.flip((order[0],))
    if change == "slice" and order and int(node.shape[order[-1]]) > 1:
        node = node.graph.concat([node, node], order[-1])
        keep = [slice(None)] * node.rank
        keep[order[-1]] = slice(0, int(node.shape[order[-1]]) // 2)
        node = node[tuple(keep)]
    turned = node.transpose(order) if node.rank else node
    return turned, [tuple(order.index(axis) for axis in group) for group in groups]


AFTER = {
    "plain": lambda g, y: y,
    "scaled": lambda g, y: (y * 0.5 + 1.0).tanh(),
    "two results": lambda g, y: [y, y.sigmoid() * y],
    "clipped": lambda g, y: g.maximum(y, 0.0) - g.minimum(y, 1.0),
}


@settings(max_examples=examples(25), deadline=None)
@given(
    products(),
    st.sampled_from(["f32", "f32", "f64", "bf16", "f16"]),
    st.integers(1, 3),
    st.sampled_from(sorted(AFTER)),
)
@example(((), (), (), (), [((), ""), ((), "")]), "f32", 1, "plain")
@example(
    ((2, 3), (17, 5), (5, 17), (7,), [((4, 1, 3, 0, 2), ""), ((0, 1, 4, 2, 3), "flip")]),
    "f32",
    3,
    "two results",
)
@example(((3,), (17,), (1,), (5,), [((0, 1, 2), ""), ((2, 0, 1), "")]), "bf16", 2, "scaled")
def test_axes_in_any_order_and_number(product, dtype, threads, after):
    batch, rows, columns, summed, views = product
    arrays, axes = [], []
    for free in (rows, columns):
        arrays.append(normal(*batch, *free, *summed))
        first, last = len(batch), len(batch) + len(free)
        axes.append([tuple(range(first)), tuple(range(last, last + len(summed)))])

    def make(g, a, b):
        (a, (a_batch, a_sum)), (b, (b_batch, b_sum)) = (
            viewed(node, group, view) for node, group, view in zip((a, b), axes, views, strict=True)
        )
        y = dot_general(a, b, a_sum, b_sum, a_batch, b_batch)
        return AFTER[after](g, y)

    check(make, *arrays, dtype=dtype, threads=threads, terms=int(np.prod(summed)))


@pytest.mark.parametrize("form", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "shape", [(33, 129, 65), (8, 16, 48), (1, 301, 77), (50, 33, 1), (3, 70, 2), (70, 40, 10)]
)
def test_stored_transposed_or_not(form, shape):
    m, k, n = shape
    a = normal(k, m) if form[0] == "T" else normal(m, k)
    b = normal(n, k) if form[1] == "T" else normal(k, n)

    def make(g, x, w):
        x = x.transpose((1, 0)) if form[0] == "T" else x
        w = w.transpose((1, 0)) if form[1] == "T" else w
        return [(x @ w).tanh()]

    for threads in (1, 3):
        check(make, a, b, threads=threads, terms=k)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_batch_that_repeats_an_operand(threads):
    check(lambda g, x, w: x @ w, normal(2, 3, 9, 20), normal(20, 33), threads=threads)
    check(lambda g, x, w: x @ w, normal(9, 20), normal(2, 3, 20, 33), threads=threads)
    check(lambda g, x, w: x @ w, normal(2, 1, 9, 20), normal(1, 3, 20, 33), threads=threads)


def test_an_operand_that_is_read_backwards():
    check(lambda g, x, w: x.flip((0, 1)) @ w.flip((1,)), normal(9, 20), normal(20, 33))
    check(lambda g, x, w: x[::-2] @ w[:, 3:30:2], normal(9, 20), normal(20, 33))


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 1, 1), (0, 0, 0)])
def test_sizes_of_nothing_and_of_one(shape):
    m, k, n = shape
    check(lambda g, x, w: x @ w + 1.0, normal(m, k), normal(k, n))


def test_outer_products_and_dot_products():
    check(lambda g, x, y: dot_general(x, y, (), ()), normal(7, 3), normal(4, 5))
    check(lambda g, x, y: dot_general(x, y, (), (), (0,), (0,)), normal(7, 3), normal(7, 5))
    check(lambda g, x, y: x @ y, normal(70), normal(70))
    check(lambda g, x, y: dot_general(x, y, (0, 1), (0, 1)).exp(), normal(3, 4) / 4, normal(3, 4))


# --------------------------------------------------------------------------- long sums


@pytest.mark.parametrize(
    "shape", [(1, 20003, 1), (8, 9001, 8), (3, 5000, 40), (40, 4999, 3), (100, 1193, 8)]
)
@pytest.mark.parametrize("form", ["NN", "TN"])
def test_long_sums_of_few_elements_are_cut_into_parts(shape, form, cache):
    m, k, n = shape
    a = normal(k, m) if form == "TN" else normal(m, k)
    results = [
        check(
            lambda g, x, w: [
                y := (x.transpose((1, 0)) if form == "TN" else x) @ w,
                (y * 0.01).tanh(),
            ],
            a,
            normal(k, n),
            threads=threads,
            terms=k,
            cache=cache,
        )
        for threads in (1, 2, 3)
    ]
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize("shape", [(40, 2112, 150), (37, 2131, 150), (130, 2900, 230)])
def test_panels_of_parts_of_sums_are_claimed_by_any_number_of_threads(
    form, shape, cache, monkeypatch
):
    """Parts are as long as each other, or the last is shorter; rows are packed (tn) and panels then shared out, or not."""
    monkeypatch.setattr(queued, "PANELS_OF_THREAD", 0)
    m, k, n = shape
    a, b = normal(m, k), normal(k, n)
    how = {"transpose_a": form == "tn", "transpose_b": form == "nt"}
    parts = contract._parts(Contraction.dense("f32", m, n, k, **how), host())
    assert parts is not None
    assert bool(parts.rest) == (k != 2112)
    one = Contraction.dense("f32", m, n, parts.length, batch=parts.count, **how)
    assert can_claim_parts(gemm_plan.cut(one, host())) == (form != "tn")

    def make(g, x, y):
        x = g.transpose(x) if form == "tn" else x
        y = g.transpose(y) if form == "nt" else y
        return [y := g.matmul(x, y), (y * 0.01).tanh()]

    given = (a.T if form == "tn" else a, b.T if form == "nt" else b)
    found = [check(make, *given, threads=threads, terms=k, cache=cache) for threads in (1, 2, 3, 5)]
    for other in found[1:]:
        assert [array.tobytes() for array in other] == [array.tobytes() for array in found[0]]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("rows", [1, 3, 7, 16, 128])
@pytest.mark.parametrize(("k", "n"), [(1536, 576), (8192, 460), (700, 1600)])
def test_there_is_room_for_a_product_of_packed_weights_and_of_plain_ones(dtype, rows, k, n):
    """The same kernel may be cut into parts in one place and read panels in another."""
    g = Graph()
    x, w = g.input("x", (rows, k), dtype), g.parameter("w", (k, n), dtype)
    g.set_outputs([(x @ w).tanh()])
    (spec,) = lower(g, target="cpu").specs.values()
    room = contract._scratch(spec, host())
    product = contract._known(spec)
    for packed in (False, True):
        _, cuts = contract._cuts(spec, product, host(), packed)
        for one in cuts:
            assert room.own >= one.scratch_bytes or one.blocked
    assert (contract._packing(spec, host()) is not None) == (k != 8192 or rows < 128)


@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_parts_of_batches_and_other_types(dtype):
    check(
        lambda g, x, y: dot_general(x, y, (0,), (0,), (1,), (1,)) * 0.125,
        normal(3000, 2, 3),
        normal(3000, 2, 5),
        dtype=dtype,
        terms=3000,
    )


def test_sums_of_several_passes_reach_the_epilogue_once():
    check(
        lambda g, x, w, r: (x @ w) * 0.02 + r,
        normal(70, 4500),
        normal(4500, 70),
        normal(70, 70),
        terms=4500,
    )


# --------------------------------------------------------------------------- epilogues


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(33, 20, 65), (1, 20, 65), (16, 20, 96)])
def test_bias_and_gelu_and_residual(threads, shape):
    m, k, n = shape
    check(
        lambda g, x, w, b, r: (x @ w + b).gelu() + r,
        normal(m, k),
        normal(k, n),
        normal(n),
        normal(m, n),
        threads=threads,
    )


def test_columns_of_several_axes_and_rows_of_several():
    check(
        lambda g, x, w, b, c: dot_general(x, w, (2,), (0,)) * b + c,
        normal(2, 5, 7),
        normal(7, 3, 11),
        normal(3, 11),
        normal(5, 1, 1),
    )


def test_a_matrix_times_a_vector_with_what_follows():
    check(lambda g, x, w, b: (x @ w + b).tanh(), normal(65, 20), normal(20), normal(65))
    check(
        lambda g, x, w, b: [y := x @ w, (y + b).exp()],
        normal(2, 65, 20) / 4,
        normal(2, 20, 1),
        normal(65, 1),
    )


def test_a_result_may_lie_over_what_is_added_to_it():
    g = Graph()
    x, w = g.input("x", (40, 70)), g.parameter("w", (70, 70))
    hidden = x @ w
    g.set_outputs([(hidden + hidden.sigmoid() @ w).sum((1,))])
    program = compiled(g, threads=2)
    plan = program.plan
    inputs, params = {"x": normal(40, 70)}, {"w": normal(70, 70)}
    try:
        *_, kernel = [k for k in plan.kernels if plan.spec(k).kind == "contract"]
        places = [plan.buffers[i] for i in (*kernel.operands, *kernel.results)]
        offsets = [place.offset for place in places if place.place == "arena"]
        assert len(set(offsets)) < len(offsets)
        (found,) = run_program(program, inputs, params)
    finally:
        program.close()
    (wanted,) = darner.run(g, inputs, params, float64=True)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)


def test_a_result_of_another_type():
    a, b = np.arange(-60, 60).reshape(8, 15) % 7 - 3, np.arange(15 * 50).reshape(15, 50) % 5 - 2
    found = check(lambda g, x, w: [y := x @ w, y > 3.0, (y * 0.5).cast("i32")], a, b)
    assert [array.dtype.name for array in found] == ["float32", "bool", "int32"]
    np.testing.assert_array_equal(found[0], a @ b)
    np.testing.assert_array_equal(found[1], a @ b > 3)


def test_summed_axes_that_do_not_follow_each_other():
    for threads in (1, 3):
        check(
            lambda g, x, y: dot_general(x, y, (0, 2), (0, 2)).tanh(),
            normal(5, 9, 7),
            normal(5, 50, 7),
            threads=threads,
        )
        check(
            lambda g, x, y: dot_general(x, y, (3, 0, 1), (0, 3, 1)),
            normal(4, 3, 9, 5),
            normal(5, 3, 50, 4),
            threads=threads,
            dtype="bf16",
        )


def test_results_do_not_depend_on_the_number_of_threads(cache):
    def make(g, x, w):
        return [(x @ w).tanh()]

    first, *others = [
        check(make, normal(61, 75), normal(75, 131), threads=threads, terms=75, cache=cache)
        for threads in (1, 2, 3, 5)
    ]
    for other in others:
        assert first[0].tobytes() == other[0].tobytes()


# --------------------------------------------------------------------------- what others do


def test_integers_are_left_to_other_kernels():
    g = Graph()
    a, b = g.input("a", (5, 7), "i32"), g.input("b", (7, 3), "i32")
    g.set_outputs([a @ b])
    program = compiled(g)
    given = {"a": np.arange(35).reshape(5, 7), "b": np.arange(21).reshape(7, 3)}
    try:
        assert contract_kernels(program) != ["contract"]
        (found,) = run_program(program, given)
    finally:
        program.close()
    np.testing.assert_array_equal(found, given["a"] @ given["b"])


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_changes_seldom_is_packed_once_and_again_when_it_changed(dtype, transposed):
    g = Graph()
    kind = dtypes.dtype(dtype).numpy
    x = g.input("x", (37, 65), dtype)
    w = g.parameter("w", (50, 65) if transposed else (65, 50), dtype)
    product = x @ (w.transpose() if transposed else w)
    g.set_outputs([product, (product + 1.0).tanh()])
    plan = lower(g, target="cpu")
    place = plan.leaves("parameter")["w"]
    program = CpuProgram(plan, threads=2, fixed=[place])
    rng = np.random.default_rng(0)
    values = {"x": rng.normal(size=(37, 65)).astype(kind)}
    weights = [rng.normal(size=w.shape).astype(kind) for _ in range(2)]

    def found():
        return [a.astype(np.float64) for a in run_program(program, values)]

    def wanted(weight):
        return [a.astype(np.float64) for a in darner.run(g, values, {"w": weight})]

    close = {"f32": 1e-5, "f64": 1e-13, "bf16": 2e-2}[dtype]
    for weight in weights:
        before = found() if weight is weights[1] else None
        program.arrays[place][...] = weight
        if before is not None:
            # Not prepared yet: the step still has the weights of before.
            for a, b in zip(found(), before, strict=True):
                np.testing.assert_array_equal(a, b)
        program.prepare()
        for a, b in zip(found(), wanted(weight), strict=True):
            np.testing.assert_allclose(a, b, rtol=close, atol=close * np.abs(b).max())
    program.close()


# --------------------------------------------------------------------------- panels that threads claim


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize(
    "shape", [(70, 79, 500), (37, 700, 997), (129, 98, 433), (33, 65, 400), (1100, 11, 1003)]
)
def test_panels_are_claimed_by_any_number_of_threads(form, shape, cache):
    m, k, n = shape
    a, b = normal(m, k), normal(k, n)

    def make(g, x, y):
        x = g.transpose(x) if form == "tn" else x
        y = g.transpose(y) if form == "nt" else y
        return g.matmul(x, y) + 1.0

    given = (a.T if form == "tn" else a, b.T if form == "nt" else b)
    found = [
        check(make, *given, threads=threads, terms=k, cache=cache)[0] for threads in (1, 2, 3, 5)
    ]
    for other in found[1:]:
        assert other.tobytes() == found[0].tobytes()


@pytest.mark.parametrize(
    "shape", [(1, 90, 21, 112), (3, 70, 21, 100), (5, 33, 9, 60), (2, 9, 5, 49)]
)
def test_a_narrower_last_panel_is_shared_out_by_the_time_it_takes(shape, cache):
    """Every tile is some thread's, and one's alone, however many threads and batches there are."""
    batch, m, k, n = shape
    found = [
        check(
            lambda g, x, y: x @ y + 1.0,
            normal(batch, m, k),
            normal(batch, k, n),
            threads=threads,
            terms=k,
            cache=cache,
        )[0]
        for threads in (1, 2, 3, 5, 7)
    ]
    for other in found[1:]:
        assert other.tobytes() == found[0].tobytes()


@pytest.fixture
def small_cache(monkeypatch):
    """Rows go through the cache in blocks of a few tiles, and a group has a few panels."""
    model = CpuModel.of(host())
    monkeypatch.setattr(gemm_plan, "SHARED_GROUP", (128 << 10) / model.last)
    monkeypatch.setattr(gemm_plan, "ROLLING", (48 << 10) / model.l2)
    monkeypatch.setattr(gemm_plan, "BLOCK", (40 << 10) / model.l2)
    monkeypatch.setattr(gemm_plan, "GROUP", (64 << 10) / model.of_own_last(1))
    monkeypatch.setattr(gemm_plan, "FEW_TERMS", 0)
    monkeypatch.setattr(queued, "PANELS_OF_THREAD", 0)  # on machines of many cores, too


def claims_blocks(contraction, packed=False):
    plan = gemm_plan.cut(contraction, host(), packed)
    return plan.blocked and can_claim(plan, packed)


def same_for_threads(form, a, b, counts, cache):
    """Check a product, plain and with something after it, with some numbers of threads, and that none changes a bit."""

    def make(plain):
        def made(g, x, y):
            x = g.transpose(x) if form == "tn" else x
            y = g.transpose(y) if form == "nt" else y
            return g.matmul(x, y) if plain else (g.matmul(x, y) + 1.0).tanh()

        return made

    given = (a.T if form == "tn" else a, b.T if form == "nt" else b)
    for plain in (True, False):
        found = [
            check(make(plain), *given, threads=threads, terms=a.shape[1], cache=cache)[0]
            for threads in counts
        ]
        for other in found[1:]:
            assert other.tobytes() == found[0].tobytes()


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize("shape", [(150, 61, 500), (203, 73, 997), (90, 150, 433), (170, 64, 768)])
def test_panels_of_blocks_of_rows_are_claimed_by_any_number_of_threads(
    form, shape, cache, small_cache
):
    m, k, n = shape
    a, b = normal(m, k), normal(k, n)
    how = {"transpose_a": form == "tn", "transpose_b": form == "nt"}
    assert claims_blocks(Contraction.dense("f32", m, n, k, **how))

    same_for_threads(form, a, b, (1, 2, 3), cache)


@pytest.fixture
def short_passes(small_cache, monkeypatch):
    """Sums are made in several passes, of a few terms each."""
    monkeypatch.setattr(gemm_plan, "LONGEST_BLOCK", 40)
    monkeypatch.setattr(gemm_plan, "LONGEST_PASS", 50)


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize(
    "shape", [(150, 161, 500), (203, 73, 997), (85, 150, 433), (170, 128, 768), (40, 331, 480)]
)
def test_panels_are_claimed_in_every_pass_over_the_terms(form, shape, cache, short_passes):
    """The last panel has all of its columns or a few, of a vector or not; blocks of rows are several or one."""
    m, k, n = shape
    a, b = normal(m, k), normal(k, n)
    how = {"transpose_a": form == "tn", "transpose_b": form == "nt"}
    contraction = Contraction.dense("f32", m, n, k, **how)
    assert claims_blocks(contraction)
    assert gemm_plan.cut(contraction, host()).passes > 1

    same_for_threads(form, a, b, (1, 2, 3, 5), cache)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_passes_of_other_types_are_claimed(dtype, cache, short_passes):
    m, k, n = 150, 161, 500
    assert claims_blocks(Contraction.dense(dtype, m, n, k))
    check(lambda g, x, y: x @ y, normal(m, k), normal(k, n), dtype=dtype, terms=k, cache=cache)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_panel_that_is_not_marked_is_packed_again(threads, cache, short_passes, monkeypatch):
    """Who comes to a panel that another thread has not packed yet does not wait for it."""
    never = ir.Constant(ir.IntType(1), 0)
    monkeypatch.setattr(Claims, "marked", lambda self, number: never)
    for shape in ((150, 161, 500), (203, 73, 997)):
        m, k, n = shape
        check(lambda g, x, y: x @ y, normal(m, k), normal(k, n), threads=threads, terms=k)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_claims_and_marks_are_taken_back_at_the_end(threads, short_passes):
    m, k, n = 150, 161, 500
    g = Graph()
    g.set_outputs([g.input("x", (m, k)) @ g.input("y", (k, n))])
    program = compiled(g, threads=threads)
    for seed in range(3):
        draw = np.random.default_rng(seed)
        x, y = draw.standard_normal((m, k)), draw.standard_normal((k, n))
        (found,) = run_program(program, {"x": x.astype("f4"), "y": y.astype("f4")})
        np.testing.assert_allclose(found, x @ y, rtol=0, atol=1e-3)
        assert not program._faults.any()
    program.close()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("k", [45, 161])
@pytest.mark.usefixtures("short_passes")
def test_blocks_of_rows_go_past_panels_that_are_packed_already(dtype, threads, k):
    m, n = 300, 701
    assert claims_blocks(Contraction.dense(dtype, m, n, k), packed=True)
    g = Graph()
    x, w = g.input("x", (m, k), dtype), g.parameter("w", (k, n), dtype)
    g.set_outputs([x @ w])
    plan = lower(g, target="cpu")
    place = plan.leaves("parameter")["w"]
    kind = dtypes.dtype(dtype).numpy
    values, weight = {"x": normal(m, k).astype(kind)}, normal(k, n).astype(kind)
    program = CpuProgram(plan, threads=threads, fixed=[place])
    program.arrays[place][...] = weight
    program.prepare()
    (found,) = run_program(program, values)
    program.close()
    wanted = values["x"].astype(np.float64) @ weight.astype(np.float64)
    close = EPSILON[dtype] * 2 + EPSILON["f32"] * k
    np.testing.assert_allclose(
        found.astype(np.float64), wanted, rtol=0, atol=close * np.abs(wanted).max()
    )


@pytest.mark.parametrize("shape", [(150, 200, 500), (203, 173, 499)])
def test_updates_at_the_end_of_a_product_of_blocks(shape, cache, small_cache, monkeypatch):
    monkeypatch.setattr(gemm_plan, "FEWEST_HELD", 1 << 30)
    m, k, n = shape
    assert claims_blocks(Contraction.dense("f32", m, n, k, transpose_a=True))
    check_updates(shape, cache)


@pytest.mark.parametrize("shape", [(640, 31, 611), (1150, 64, 512), (96, 7, 96), (300, 20, 200)])
def test_updates_at_the_end_of_a_product(shape, cache):
    """They read and write arrays as large as its result, more than the cache holds or less."""
    check_updates(shape, cache)


def check_updates(shape, cache):
    """Assert that three arrays, two of them like an optimizer's moments, become what the reference has, by any number of threads."""
    m, k, n = shape
    a, b, p, q, r = normal(k, m), normal(k, n), normal(m, n), normal(m, n + 0), normal(m, n)

    def make(g, x, y, *others):
        gradient = g.matmul(g.transpose(x), y)
        first = others[0] * 0.9 + gradient * 0.1
        second = others[1] * 0.99 + gradient * gradient * 0.01
        return [first, second, others[2] - first * 0.5]

    found = [
        check(make, a, b, p, q, r, threads=threads, terms=4 * k, cache=cache)
        for threads in (1, 2, 3)
    ]
    for other in found[1:]:
        assert [array.tobytes() for array in other] == [array.tobytes() for array in found[0]]
