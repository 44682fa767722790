"""Kernels of splats on processors with other vectors."""

import dataclasses

import numpy as np
import pytest

from darner import Graph
from darner.backends.base.cache import ObjectCache
from darner.backends.cpu.runtime.jit import host
from tests.cpu.running import compiled, run_program

BLENDING = ("splat_blend", "splat_blend_backward")
PICTURE = {"width": 23, "height": 11, "tile_size": 6}
TILES, ENTRIES, SPLATS = 8, 40, 9


def blended():
    """Light of a picture, and the gradient of it by a random cotangent."""
    rng = np.random.default_rng(4)
    numbers = np.concatenate([rng.permutation(SPLATS)[:5] for _ in range(TILES)])
    ends = np.stack([np.arange(0, 40, 5), np.arange(5, 45, 5)], 1)
    lists = np.concatenate([numbers, ends.ravel()]).astype(np.int32)
    features = rng.uniform(0.1, 0.9, (SPLATS, 16)).astype(np.float32)
    features[:, 3:12] *= 0.2
    g = Graph("blended")
    x, given = g.input("x", features.shape), g.input("g", (23 * 11, 4))
    g.set_outputs(
        [
            g.splat_blend(x, g.constant(lists), **PICTURE),
            g.splat_blend_backward(x, g.constant(lists), given, **PICTURE),
        ]
    )
    return g, {"x": features, "g": rng.normal(size=(23 * 11, 4)).astype(np.float32)}


@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_narrower_vectors_give_the_same_picture_and_gradient(vector_bytes):
    g, values = blended()
    narrower = dataclasses.replace(host(), vector_bytes=vector_bytes)
    results = []
    for machine in (host(), narrower):
        program = compiled(g, whole=BLENDING, threads=2, cache=ObjectCache(None), machine=machine)
        try:
            results.append(run_program(program, values))
        finally:
            program.close()
    assert results[0][0].std() > 0.05
    assert np.abs(results[0][1]).max() > 0.5
    for wide, narrow in zip(*results, strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-4)
