"""Products of few terms, few rows or few columns: strips of C, dot products, and what is left at the ends of all of them."""

import numpy as np
import pytest

from darner.backends.cpu.contract import plan as gemm_plan
from darner.backends.cpu.contract import queued
from darner.backends.cpu.contract.plan import Contraction, cut
from darner.backends.cpu.contract.queued import can_claim
from darner.backends.cpu.contract.template import _parts
from darner.backends.cpu.model import CpuModel
from darner.backends.cpu.runtime.jit import host
from tests.cpu.test_contract import AFTER, cache, check, normal

__all__ = ["cache"]

FORMS = ("NN", "NT", "TN", "TT")


def product(form, after="plain"):
    """What makes a product of operands that are stored transposed, or not."""

    def turned(node, letter):
        around = range(node.rank - 2)
        return node.transpose((*around, -1, -2)) if letter == "T" else node

    def make(g, x, w):
        return AFTER[after](g, turned(x, form[0]) @ turned(w, form[1]))

    return make


def operands(form, m, k, n, *batch):
    """Random operands of a product, stored as the form says."""
    x, w = normal(*batch, m, k), normal(*batch, k, n)
    return tuple(
        np.swapaxes(value, -1, -2) if letter == "T" else value
        for value, letter in zip((x, w), form, strict=True)
    )


def same_for_any_threads(form, sizes, *batch, after="plain", dtype="f32", cache=None):
    """Check a product with some numbers of threads, and that none changes a bit."""
    m, k, n = sizes
    given = operands(form, m, k, n, *batch)
    found = [
        check(product(form, after), *given, threads=threads, terms=k, dtype=dtype, cache=cache)
        for threads in (1, 2, 5)
    ]
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one.tobytes() == other.tobytes()


def dense(form, m, k, n, **more):
    how = {"transpose_a": form[0] == "T", "transpose_b": form[1] == "T"}
    return Contraction.dense("f32", m, n, k, **how, **more)


# --------------------------------------------------------------------------- few terms


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "shape", [(131, 11, 77), (200, 1, 96), (129, 64, 401), (301, 7, 9), (133, 16, 47)]
)
def test_sums_of_few_terms_are_written_in_strips(form, shape, cache):
    m, k, n = shape
    assert cut(dense(form, m, k, n), host()).strips
    same_for_any_threads(form, shape, cache=cache)


@pytest.mark.parametrize("after", ["scaled", "two results"])
@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
def test_what_follows_sums_of_few_terms(form, after, cache):
    same_for_any_threads(form, (150, 13, 75), after=after, cache=cache)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
def test_few_terms_of_other_types(form, dtype, cache):
    same_for_any_threads(form, (137, 9, 61), dtype=dtype, cache=cache)


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_few_terms(form, cache):
    same_for_any_threads(form, (53, 6, 85), 7, cache=cache)


def test_strips_of_more_panels_than_are_held_at_a_time(cache, monkeypatch):
    monkeypatch.setattr(gemm_plan, "HELD", (24 << 10) / CpuModel.of(host()).l2)
    plan = cut(dense("NN", 140, 24, 1003), host())
    assert plan.strips
    assert plan.group < plan.panels
    same_for_any_threads("NN", (140, 24, 1003), cache=cache)


def test_results_beyond_the_cache_are_claimed_in_strips(cache, monkeypatch):
    monkeypatch.setattr(queued, "PANELS_OF_THREAD", 0)
    monkeypatch.setattr(gemm_plan, "STREAMED", (1 << 16) / CpuModel.of(host()).l2)
    plan = cut(dense("NN", 533, 5, 431), host())
    assert plan.strips
    assert can_claim(plan, packed_b=False)
    same_for_any_threads("NN", (533, 5, 431), cache=cache)


# --------------------------------------------------------------------------- few rows or columns, long sums


@pytest.mark.parametrize("form", ["NT", "TT"])
@pytest.mark.parametrize(
    "shape", [(5, 300, 7), (8, 1037, 77), (11, 700, 50), (17, 2100, 21), (3, 129, 1), (24, 800, 33)]
)
def test_few_rows_of_long_sums_are_dot_products(form, shape, cache):
    m, k, n = shape
    if n > m:
        assert cut(dense(form, m, k, n), host()).path == "dots"
    same_for_any_threads(form, shape, cache=cache)


@pytest.mark.parametrize("form", ["NN", "NT"])
@pytest.mark.parametrize("shape", [(50, 333, 5), (61, 1100, 16), (300, 513, 2), (41, 2049, 9)])
def test_few_columns_of_long_sums_are_dot_products(form, shape, cache):
    same_for_any_threads(form, shape, cache=cache)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(9, 601, 40), (70, 450, 6)])
def test_dot_products_of_other_types_and_what_follows(shape, dtype, cache):
    after = "scaled" if dtype == "f64" else "plain"
    same_for_any_threads("NT", shape, after=after, dtype=dtype, cache=cache)


@pytest.mark.parametrize("after", ["scaled", "two results", "clipped"])
@pytest.mark.parametrize("shape", [(7, 400, 45), (83, 400, 7)])
def test_what_follows_dot_products(shape, after, cache):
    same_for_any_threads("NT", shape, after=after, cache=cache)


@pytest.mark.parametrize("form", ["NN", "NT"])
@pytest.mark.parametrize("shape", [(6, 257, 20), (40, 257, 3)])
def test_batches_of_dot_products(form, shape, cache):
    same_for_any_threads(form, shape, 5, cache=cache)


@pytest.mark.parametrize("rows", [9, 10, 11, 12])
def test_many_rows_that_are_read_as_they_lie(rows, cache):
    same_for_any_threads("NN", (rows, 75, 28), 4, cache=cache)


@pytest.mark.parametrize("form", FORMS)
def test_few_rows_and_panels_of_long_sums_are_shared_out_in_parts(form, cache):
    sizes = 101, 1703, 131
    assert _parts(dense(form, *sizes), host()) is not None
    assert _parts(dense(form, *sizes), host(), packing=False) is None
    same_for_any_threads(form, sizes, after="scaled", cache=cache)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("terms", "columns"), [(577, 601), (1000, 333), (131, 3001)])
def test_few_rows_read_narrow_weights_in_runs_of_their_rows(rows, terms, columns, cache):
    parts = _parts(dense("NN", rows, terms, columns), host())
    assert parts is not None
    assert 1 < parts.all <= 5
    same_for_any_threads("NN", (rows, terms, columns), after="scaled", cache=cache)


def test_weights_in_the_cache_and_wide_ones_are_shared_out_by_columns():
    for terms, columns in ((400, 400), (576, 8192)):
        assert _parts(dense("NN", 1, terms, columns), host()) is None
