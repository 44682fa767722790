"""Maps that make the equal parts of a concatenation together, with what is element-wise beside them."""

import numpy as np
import pytest

from darner import Graph
from darner.backends.cpu.maps.concat import results_of
from darner.lower.groups import Fusing
from darner.lower.lower import lower
from tests.cpu.running import check


def gates(shape, axis, count=3):
    """Parts of a concatenation that share what they are made of, and a value beside them."""
    g = Graph()
    a, b = g.input("a", shape), g.input("b", shape)
    both = (a + b).tanh()
    parts = [both * float(i + 1) - a for i in range(count)]
    g.set_outputs([both * 0.5, g.concat(parts, axis=axis)])
    return g


@pytest.mark.parametrize("shape", [(5, 7), (32, 256), (1, 129), (3, 4, 33), (6, 1000), (70,)])
def test_parts_along_any_axis_are_what_the_reference_computes(shape):
    for axis in range(len(shape)):
        check(gates(shape, axis))
        check(gates(shape, axis), threads=1)


def test_large_parts_beyond_the_cache_are_what_the_reference_computes():
    check(gates((600, 2048), 1))


def test_values_of_several_types_beside_parts_are_what_the_reference_computes():
    g = Graph()
    a = g.input("a", (9, 50))
    both = a.sin() + 1.0
    g.set_outputs([both > 1.0, g.concat([both, both * a], axis=1), both.cast("f64")])
    check(g)


def kernels(g, **options):
    return [(k.spec[:3], len(k.results)) for k in lower(g, target="cpu", **options).kernels]


def test_parts_and_what_is_beside_them_are_one_kernel_where_the_target_places_parts():
    g = gates((8, 64), 1)
    assert kernels(g, fusing=Fusing(places_parts=True)) == [("map", 2)]
    assert len(kernels(g)) == 2


def test_parts_of_different_sizes_are_a_kernel_of_their_own():
    g = Graph()
    a = g.input("a", (8, 64))
    both = a.tanh()
    g.set_outputs([both * 2.0, g.concat([both, both[:, :3] * 2.0], axis=1)])
    assert len(kernels(g, fusing=Fusing(places_parts=True))) == 2
    check(g)


def test_an_operand_is_not_overwritten_that_a_later_part_reads():
    g = Graph()
    a, kept = g.input("a", (8, 64)), g.state("kept", (8, 64))
    both = (a + kept).tanh()
    g.set_update(kept, both)
    g.set_outputs([g.concat([both * kept, both - kept], axis=1)])
    check(g)


def test_parts_that_share_nothing_keep_loops_of_their_own():
    g = Graph()
    a, b = g.input("a", (8, 64)), g.input("b", (8, 64))
    g.set_outputs([g.concat([a.sin(), b.cos()], axis=1)])
    (spec,) = lower(g, target="cpu", fusing=Fusing(places_parts=True)).specs.values()
    assert list(results_of(spec.body, [None])) == [(8, 128)]
    shared = gates((8, 64), 1, count=2)
    (spec,) = lower(shared, target="cpu", fusing=Fusing(places_parts=True)).specs.values()
    found = results_of(spec.body, [None, None])
    assert [(r.part, r.count, r.block) for r in found[8, 64]] == [(0, 1, 0), (0, 2, 64), (1, 2, 64)]
    np.testing.assert_equal(len(found), 1)
