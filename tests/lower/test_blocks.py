"""Kernels that replace a block compute it themselves, where a target's kernels do."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.lower.groups import Fusing
from darner.lower.prepare import prepare
from darner.lower.specs import kernels


def decoder(finish):
    g = Graph()
    cache, position = g.state("cache", (6, 4)), g.input("position", (1,), "u32")
    new = g.input("new", (1, 8)).tanh()
    written = g.cache_write(finish(g, new, cache)[:, 2:6], cache, position)
    g.set_outputs([written @ g.input("x", (4, 3))])
    return g


def kinds(graph, **options):
    return [work.kind for work in kernels(prepare(graph), **options)]


def test_what_a_block_is_computed_by_is_one_kernel_with_it():
    g = decoder(lambda g, new, cache: (new * 2.0).exp())
    assert kinds(g).count("map") == kinds(g, fusing=Fusing(blocks=True)).count("map") + 1
    (index,) = (w for w in kernels(prepare(g), fusing=Fusing(blocks=True)) if w.kind == "index")
    assert [node.op.name for node in index.body.nodes].count("exp") == 1


def test_a_block_that_is_made_of_what_it_replaces_is_computed_before():
    g = decoder(lambda g, new, cache: g.concat([cache[:1], cache[1:2]], 1) + new)
    assert kinds(g) == kinds(g, fusing=Fusing(blocks=True))


def test_a_block_that_is_read_elsewhere_is_computed_once():
    g = Graph()
    cache, position = g.state("cache", (6, 4)), g.input("position", (1,), "u32")
    new = g.input("new", (1, 4)).tanh()
    g.set_outputs([g.cache_write(new, cache, position).sum(), new.exp()])
    assert kinds(g) == kinds(g, fusing=Fusing(blocks=True))


@pytest.mark.parametrize("device", ["cuda:emulated", "cpu"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_blocks_that_are_computed_where_they_are_written_have_the_same_numbers(device, dtype):
    g = Graph()
    cache, position = g.state("cache", (2, 6, 4), dtype), g.input("position", (1,), "u32")
    new = g.input("new", (2, 1, 8)).tanh()[:, :, 2:6]
    g.set_outputs([g.cache_write(new, cache, position, axis=1).cast("f32") * 2.0])
    given = {"new": np.linspace(-2, 2, 16).reshape(2, 1, 8).astype(np.float32)}
    with darner.build_inference_session(g, device=device, cache=None) as session:
        session.state()["cache"] = np.ones((2, 6, 4), np.float32)
        for row in (3, 5):
            (found,) = session.run({**given, "position": np.array([row], np.uint32)}).values()
    wanted = np.ones((2, 6, 4), np.float32)
    wanted[:, [3, 5]] = np.tanh(given["new"])[:, :, 2:6]
    np.testing.assert_allclose(found, 2 * wanted, rtol=1e-6 if dtype == "f32" else 8e-3)
