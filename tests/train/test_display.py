"""What a terminal shows, and what a file gets instead."""

import io
import signal

import pytest

from darner import train
from darner.train import display
from tests.train.examples import listed, trainer


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream, monkeypatch, **options):
    monkeypatch.setattr(display.sys, "stderr", stream)
    chosen = {"steps": 6, "log_interval": 3, "validation": listed(1), **options}
    with trainer(listed(6), **chosen) as made:
        made.train()
    return stream.getvalue()


def test_nothing_is_written_unless_it_is_asked_for(monkeypatch, capsys):
    assert shown(io.StringIO(), monkeypatch, progress=None) == ""
    assert shown(Terminal(), monkeypatch, progress=False) == ""
    assert capsys.readouterr().out == ""


def test_a_file_gets_a_line_for_every_record(monkeypatch):
    lines = shown(io.StringIO(), monkeypatch, progress=True).splitlines()
    assert lines[0].startswith("step 3/6  loss ")
    assert "learning rate 0.0133" in lines[0]
    assert "samples/s" in lines[0]
    assert lines[0].endswith("left")
    assert lines[2].startswith("step 6/6  validation loss ")
    assert lines[3].startswith("6 steps in 0:")
    assert len(lines) == 4


def test_a_terminal_shows_the_end_of_training(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    text = shown(Terminal(), monkeypatch, progress=None)
    for part in (
        "step 6/6",
        "loss ",
        "validation loss",
        "learning rate",
        "samples/s",
        "6 steps in",
    ):
        assert part in text
    assert any(bar in text for bar in display.BARS)


def test_the_lines_of_a_terminal_hold_numbers_that_training_has(monkeypatch):
    from rich.console import Console

    made = trainer(steps=6, log_interval=1, validation=listed(1))
    live = display.LiveDisplay(Terminal(), Console(file=io.StringIO(), width=140))
    made.callbacks.append(live)
    with made:
        history = made.train()
        console = Console(file=io.StringIO(), width=140)
        console.print(live.drawn())
        text = console.file.getvalue()
    keep = 1 - 1 / display.FORGETS
    weights = [keep ** (5 - i) for i in range(6)]
    mean = sum(w * x for w, x in zip(weights, history.losses, strict=True)) / sum(weights)
    assert f"loss {mean:.4f}" in text
    assert f"validation loss {history.validations[-1].values['loss']:.4f}" in text
    assert "step 6/6" in text


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([1.0, 1.0], "▁▁"), ([0.0, 7.0], "▁█"), (range(8), "▁▂▃▄▅▆▇█"), ([1.0, float("inf")], "")],
)
def test_a_row_of_bars_goes_from_the_lowest_to_the_highest(values, wanted):
    assert display.sparkline(list(values)) == wanted


def test_a_long_row_of_bars_has_the_means_of_stretches():
    assert display.sparkline([*[0.0] * 500, *[1.0] * 500], 10) == "▁▁▁▁▁█████"


def test_a_warning_is_drawn_with_the_next_lines():
    from rich.console import Console

    live = display.LiveDisplay(Terminal())
    with trainer(steps=1) as made:
        live._trainer = made
        live.warn("stopping after this run")
        console = Console(file=io.StringIO(), width=140)
        console.print(live.drawn())
    assert console.file.getvalue().splitlines()[1:] == ["compiling", "stopping after this run"]


def test_the_last_line_of_an_interrupted_training_says_how_to_go_on(monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "300")
    screen = Terminal()
    monkeypatch.setattr(display.sys, "stderr", screen)

    def interrupt(metrics):
        if metrics.step == 3:
            signal.raise_signal(signal.SIGINT)

    with (
        trainer(
            listed(6), steps=6, checkpoint=tmp_path, callbacks=[interrupt], progress=None
        ) as made,
        pytest.raises(train.TrainingInterrupted),
    ):
        made.train()
    last = screen.getvalue().rstrip().splitlines()[-1]
    assert "training was interrupted after step 3 and saved; to go on: Trainer(" in last


def test_a_process_without_standard_error_is_shown_nothing(monkeypatch):
    monkeypatch.setattr(display.sys, "stderr", None)
    assert display.display_for(None) is None
    assert display.display_for(True) is None
