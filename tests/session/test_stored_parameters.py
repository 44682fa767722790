"""Parameters that are stored in blocks: bytes in memory, in checkpoints and between sessions; floats for who reads and writes them."""

import numpy as np
import pytest
import safetensors.numpy

import darner
from darner import ArgumentError, Graph, ShapeError
from darner.ops.quantised.packed import decoded
from darner.ops.quantised.scheme import QuantScheme

SCHEMES = {"q4": "q4_1", "q8": "q8_0"}


def product(storage, rows=256, columns=96):
    g = Graph("stored")
    w = g.parameter("w", (rows, columns), storage=storage)
    g.set_outputs([g.input("x", (3, rows)) @ w])
    return g


def weights(rows=256, columns=96):
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


def rounded(values, storage):
    """What values are once they are stored, by the scheme's own decoder."""
    codes = darner.quantize_weights(values.T, SCHEMES[storage]).codes
    return decoded(QuantScheme(SCHEMES[storage]), codes).T


X = {"x": np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)}


@pytest.mark.parametrize("storage", SCHEMES)
@pytest.mark.parametrize("device", ["cpu", "gpu", "reference"])
def test_weights_take_the_memory_of_their_codes(storage, device):
    with darner.build_inference_session(product(storage), device=device) as session:
        session.set_parameter("w", weights())
        found = session.run(X)["output0"]
        wanted = X["x"].astype(np.float64) @ rounded(weights(), storage)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        bits = QuantScheme(SCHEMES[storage]).bits_per_element
        assert session.memory_summary().total_buffer_bytes < 256 * 96 * bits / 8 + 8000
        np.testing.assert_array_equal(session.read_param("w"), rounded(weights(), storage))
        assert repr(session.parameters()) == "<parameters {'w': 'f32[256, 96]'}>"
        assert session.param_size("w") == 256 * 96


@pytest.mark.parametrize("storage", SCHEMES)
def test_checkpoints_hold_the_codes(storage, tmp_path):
    path = tmp_path / "step.safetensors"
    with darner.build_inference_session(product(storage), threads=1) as session:
        session.set_parameter("w", weights())
        wanted = session.run(X)["output0"]
        session.save_checkpoint(path)
    bytes_ = safetensors.numpy.load_file(path)["w"]
    assert bytes_.dtype == np.uint8
    np.testing.assert_array_equal(
        bytes_, darner.quantize_weights(weights().T, SCHEMES[storage]).codes
    )
    with darner.build_inference_session(product(storage), threads=1) as session:
        session.load_checkpoint(path)
        np.testing.assert_array_equal(session.run(X)["output0"], wanted)


def test_a_checkpoint_of_floats_is_quantised_as_it_is_loaded(tmp_path):
    path = tmp_path / "floats.safetensors"
    with darner.build_inference_session(product("dense"), threads=1) as session:
        session.set_parameter("w", weights())
        session.save_checkpoint(path)
    with darner.build_inference_session(product("q8"), threads=1) as session:
        session.load_checkpoint(path)
        np.testing.assert_array_equal(session.read_param("w"), rounded(weights(), "q8"))


def test_codes_of_another_size_are_refused_and_nothing_changes(tmp_path):
    path = tmp_path / "other.safetensors"
    safetensors.numpy.save_file({"w": np.zeros((96, 3), np.uint8)}, path)
    with darner.build_inference_session(product("q8"), threads=1) as session:
        session.set_parameter("w", weights())
        with pytest.raises(darner.FormatError, match="'w'"):
            session.load_checkpoint(path)
        np.testing.assert_array_equal(session.read_param("w"), rounded(weights(), "q8"))


def test_sessions_share_the_codes():
    with (
        darner.build_inference_session(product("q4"), threads=1) as first,
        darner.build_inference_session(product("q4"), threads=1, share=first) as second,
    ):
        second.set_parameter("w", weights())
        np.testing.assert_array_equal(first.read_param("w"), rounded(weights(), "q4"))
        np.testing.assert_array_equal(first.run(X)["output0"], second.run(X)["output0"])
        assert np.shares_memory(first._values.arrays["w"], second._values.arrays["w"])


def test_weights_stored_in_other_ways_are_not_shared():
    with (
        darner.build_inference_session(product("q4"), threads=1) as first,
        darner.build_inference_session(product("q8"), threads=1) as second,
        pytest.raises(ShapeError, match=r"'w' is u8\[96, 272\], but u8\[96, 160\]"),
    ):
        second.share_parameters(first)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_what_has_no_codes_is_refused_and_nothing_changes(value):
    bad = weights()
    bad[5, 5] = value
    with darner.build_inference_session(product("q8"), threads=1) as session:
        session.set_parameter("w", weights())
        with pytest.raises(ArgumentError, match="parameter 'w'"):
            session.set_parameter("w", bad)
        np.testing.assert_array_equal(session.read_param("w"), rounded(weights(), "q8"))


def test_first_values_are_quantised_too():
    g = Graph("drawn")
    g.set_outputs([g.parameter("w", (64, 8), storage="q8", init="normal(0.5)") * 1.0])
    with darner.build_inference_session(g, threads=1) as session:
        found = session.run({})["output0"]
        np.testing.assert_array_equal(found, session.read_param("w"))
        assert 0.3 < found.std() < 0.7


def test_a_model_trains_beside_weights_that_are_stored_in_blocks():
    g = Graph("lora")
    x, w = g.input("x", (8, 64)), g.parameter_q4("w", (64, 16))
    a, b = g.parameter("a", (64, 4), init="normal(0.1)"), g.parameter("b", (4, 16))
    y = x @ w + (x @ a) @ b
    g.set_outputs([g.mse_loss(y, g.input("wanted", (8, 16)))])
    rng = np.random.default_rng(0)
    x_value = rng.normal(size=(8, 64)).astype(np.float32)
    base = rng.normal(size=(64, 16)).astype(np.float32)
    batch = {"x": x_value, "wanted": x_value @ rounded(base, "q4") + 1.0}
    adam = darner.optim.Adam(0.02, multipliers={"w": 0.0})
    with darner.build_session(g, optimizer=adam, device="cpu") as session:
        session.set_parameter("w", base)
        losses = [session.run(batch)["output0"].item() for _ in range(60)]
        np.testing.assert_array_equal(session.read_param("w"), rounded(base, "q4"))
    assert losses[-1] < 0.1 * losses[0]
