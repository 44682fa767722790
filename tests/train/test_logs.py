"""Logs as others read them: JSON line by line, and event files by TensorBoard's own reader."""

import importlib
import json

import pytest

import darner
from darner import train
from tests.train.examples import Shuffled, examples, listed, trainer


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_is_a_line_of_json(tmp_path):
    with trainer(
        listed(4), epochs=2, validation=listed(1), checkpoint=tmp_path, log=True, log_interval=2
    ) as made:
        history = made.train()
    found = lines(tmp_path / "log.jsonl")
    assert [(item["kind"], item.get("step")) for item in found] == [
        ("train", 2),
        ("epoch", None),
        ("train", 4),
        ("validation", 4),
        ("train", 6),
        ("epoch", None),
        ("train", 8),
        ("validation", 8),
    ]
    assert found[0]["loss"] == pytest.approx(sum(history.losses[:2]) / 2)
    assert found[3]["loss"] == history.validations[0].values["loss"]
    assert found[1] == {"kind": "epoch", "epoch": 0, "loss": history.epochs[0].avg_loss, "steps": 4}


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    seen = []
    path = tmp_path / "deep" / "run.jsonl"
    look = lambda metrics: seen.append(len(lines(path)))  # noqa: E731
    with trainer(steps=3, log=path, log_interval=1, callbacks=[look]) as made:
        made.train()
    assert seen == [1, 2, 3]


def test_lines_of_steps_that_are_made_again_are_dropped(tmp_path):
    class Dies(train.Callback):
        def on_step(self, metrics):
            if metrics.step == 5:
                raise RuntimeError("killed")

    chosen = {"checkpoint": tmp_path, "checkpoint_every": 3, "log": True, "log_interval": 1}
    data = examples(16)
    with (
        trainer(Shuffled(data), **chosen, callbacks=[Dies()], steps=7) as made,
        pytest.raises(RuntimeError, match="killed"),
    ):
        made.train()
    path = tmp_path / "log.jsonl"
    assert [item.get("step") for item in lines(path)] == [1, 2, 3, None, 4, 5]
    with path.open("a") as file:
        file.write('{"kind": "train", "st')  # the process died here
    with trainer(Shuffled(data), **chosen, resume=True, steps=7) as made:
        made.train()
    assert [item.get("step") for item in lines(path)] == [1, 2, 3, None, 4, 5, 6, 7]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_its_files(tmp_path):
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    board, folder = tmp_path / "board", tmp_path / "run"
    chosen = {"checkpoint": folder, "tensorboard": board, "log_interval": 2}
    for steps in (4, 8):
        with trainer(steps=steps, validation=listed(1), resume=True, **chosen) as made:
            history = made.train()
    found = reader.EventAccumulator(str(board)).Reload()
    names = set(found.Tags()["scalars"])
    assert {"train/loss", "train/learning_rate", "train/gradient_norm", "validation/loss"} <= names
    losses = [(item.step, item.value) for item in found.Scalars("train/loss")]
    assert [step for step, _ in losses] == [2, 4, 6, 8]
    assert losses[3][1] == pytest.approx(sum(history.losses[6:8]) / 2, rel=1e-6)


def test_without_tensorboard_the_error_names_the_extra(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("darner.graph.errors.importlib.import_module", missing)
    with pytest.raises(darner.DarnerError) as error:
        trainer(tensorboard=tmp_path)
    assert isinstance(error.value, ImportError)
    assert "pip install 'darner[tensorboard]'" in str(error.value)
