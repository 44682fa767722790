"""A loss that is no number: which step, which kernel, which line; and what is left."""

import numpy as np
import pytest

import darner
from darner import optim, train
from darner.train.checkpoints import checkpoint_name


def root():
    """A loss that is NaN where x is below -w, and its gradient too."""
    g = darner.Graph("root")
    x = g.input("x", (3,))
    w = g.parameter("w", (), init="ones")
    g.set_outputs([(x + w).sqrt().mean(label="loss")])
    return g


def batches(bad_at, count=8):
    found = [{"x": np.array([1.0, 2.0, 3.0], np.float32)} for _ in range(count)]
    found[bad_at]["x"] = np.array([1.0, -50.0, 3.0], np.float32)
    return found


def made(bad_at, **options):
    chosen = {"optimizer": optim.SGD(0.1), "steps": 8, "threads": 1, **options}
    return train.Trainer(root(), batches(bad_at), **chosen)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_kernel_and_the_line_are_found_by_going_back_to_the_checkpoint(tmp_path, accumulate):
    with made(
        5, checkpoint=tmp_path, checkpoint_every=1, accumulate=accumulate, steps=8
    ) as trainer:
        with pytest.raises(train.DivergedError) as failed:
            trainer.train()
        good = 5 // accumulate
        error = failed.value
        assert error.step == good + 1
        assert f"the loss is nan at step {good + 1}" in str(error)
        assert "sqrt(-49" in str(error)  # sqrt(-50 + w), with the w of that step
        assert "at [1] of [3]" in str(error)
        assert "test_diverged.py:" in str(error)
        assert error.checkpoint == tmp_path / checkpoint_name(good)
        assert train.latest(tmp_path) == error.checkpoint
        assert error.trace.first.cause.op == "sqrt"
        # The session has the weights of that checkpoint again.
        assert trainer.step == good
        assert np.isfinite(trainer.session.parameters()["w"])


def test_an_update_that_made_the_parameters_infinite_is_found_one_run_earlier(tmp_path):
    g = darner.Graph("power")
    x, w = g.input("x", ()), g.parameter("w", (), init="ones")
    g.set_outputs([(w * x).square(label="loss")])
    rows = [{"x": np.float32(value)} for value in (1.0, 1.0, 1e19, 1.0)]
    with (
        train.Trainer(
            g,
            rows,
            optimizer=optim.SGD(1e10),
            steps=4,
            threads=1,
            checkpoint=tmp_path,
            checkpoint_every=1,
        ) as trainer,
        pytest.raises(train.DivergedError) as failed,
    ):
        trainer.train()
    assert np.isfinite(trainer_weights(failed.value.checkpoint))
    assert failed.value.trace.first is not None


def trainer_weights(path):
    from darner.session.checkpoint import load_checkpoint

    return load_checkpoint(path).parameters["w"]


def test_without_checkpoints_the_step_is_named_and_how_to_learn_more():
    with made(2) as trainer, pytest.raises(train.DivergedError) as failed:
        trainer.train()
    assert failed.value.step == 3
    assert "the loss is nan at step 3" in str(failed.value)
    assert "with checkpoint= the kernel is found" in str(failed.value)


def test_a_bad_batch_before_the_update_is_traced_without_checkpoints():
    with made(1, accumulate=4) as trainer, pytest.raises(train.DivergedError) as failed:
        trainer.train()
    assert "at step 1, run 2 of 4: kernel" in str(failed.value)
    assert "sqrt(-49) = nan" in str(failed.value)


def test_an_infinite_loss_is_an_error_too():
    g = darner.Graph("reciprocal")
    x = g.input("x", (2,))
    g.set_outputs([(g.parameter("w", (), init="ones") / x).mean()])
    rows = [{"x": np.array([1.0, 0.0], np.float32)}]
    with (
        train.Trainer(g, rows, optimizer=optim.SGD(0.1), steps=1, threads=1) as trainer,
        pytest.raises(train.DivergedError, match="the loss is inf at step 1"),
    ):
        trainer.train()
