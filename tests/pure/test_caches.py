"""Caches in the type that they are multiplied in: which states are, and that no result changes."""

import ml_dtypes
import numpy as np
import pytest

import darner
from darner import Graph
from darner.interpreter import run
from darner.transforms.caches import narrowed_caches
from darner.transforms.precision import with_precision

ROWS, HEADS, WIDTH = 8, 2, 16


def decoder(finish=None):
    """Attention of a token to what was cached, and the cache's nodes."""
    g = Graph("decode")
    x, position = g.input("x", (1, HEADS * WIDTH)), g.input("position", (1,), "u32")
    written = []
    for name in ("keys", "values"):
        cache = g.state(name, (ROWS, HEADS * WIDTH))
        new = x @ g.parameter(f"{name}.w", (HEADS * WIDTH, HEADS * WIDTH))
        written.append(g.cache_write(new, cache, position))
    found = [g.cached_attention(x, *written, position, HEADS, HEADS, WIDTH)]
    g.set_outputs(found + (finish(g, written) if finish else []))
    return g


def arrays():
    rng = np.random.default_rng(0)
    weights = {
        f"{name}.w": rng.normal(size=(HEADS * WIDTH, HEADS * WIDTH)).astype(np.float32)
        for name in ("keys", "values")
    }
    return weights, [rng.normal(size=(1, HEADS * WIDTH)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_a_cache_that_is_only_multiplied_is_stored_in_the_precision(precision):
    found = narrowed_caches(decoder(), precision)
    assert {str(leaf.dtype) for leaf in found.states.values()} == {precision}
    assert [str(out.type) for out in found.outputs] == ["f32[1, 32]"]


@pytest.mark.parametrize("precision", ["f32", "tf32"])
def test_a_precision_of_four_bytes_changes_nothing(precision):
    g = decoder()
    assert narrowed_caches(g, precision) is g


@pytest.mark.parametrize(
    "finish",
    [
        lambda g, written: written,
        lambda g, written: [x.sum() for x in written],
        lambda g, written: [x.reshape((HEADS, -1)).tanh() for x in written],
    ],
    ids=["an output", "a sum", "a view and a function"],
)
def test_a_cache_that_anything_else_reads_stays(finish):
    g = decoder(finish)
    assert narrowed_caches(g, "bf16") is g


def test_a_state_that_is_multiplied_and_not_written_in_part_stays():
    g = Graph()
    x, state = g.input("x", (4, 4)), g.state("s", (4, 4))
    g.set_outputs([x @ state])
    g.set_update(state, state @ x)
    assert narrowed_caches(g, "bf16") is g


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_sessions_compute_what_rounding_the_whole_cache_gives(precision):
    g = decoder()
    weights, tokens = arrays()
    rounded = with_precision(g, precision)
    states = {name: np.zeros((ROWS, HEADS * WIDTH), np.float32) for name in g.states}
    with darner.build_inference_session(g, precision=precision, cache=None) as session:
        for name, value in weights.items():
            session.set_parameter(name, value)
        for i, token in enumerate(tokens):
            given = {"x": token, "position": np.array([i], np.uint32)}
            (found,) = session.run(given).values()
            wanted = run(rounded, given, weights, state=states)
            np.testing.assert_allclose(found, wanted[0], rtol=2e-5, atol=2e-5)
        kind = np.dtype({"bf16": ml_dtypes.bfloat16, "f16": np.float16}[precision])
        assert session.state()["keys"].dtype == kind


def test_numbers_that_are_written_to_a_cache_are_rounded_and_read_back(tmp_path):
    given = np.linspace(-1, 1, ROWS * HEADS * WIDTH, dtype=np.float32).reshape(ROWS, -1)
    with darner.build_inference_session(decoder(), precision="bf16", cache=None) as session:
        session.state()["keys"] = given
        kept = session.state()["keys"]
        np.testing.assert_array_equal(kept, given.astype(ml_dtypes.bfloat16))
        session.save_checkpoint(tmp_path / "states.safetensors")
        session.state()["keys"] = 0 * given
        session.load_checkpoint(tmp_path / "states.safetensors")
        np.testing.assert_array_equal(session.state()["keys"], kept)
