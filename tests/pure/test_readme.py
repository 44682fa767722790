"""README.md shows what happens: its Python runs, and prints what stands below it."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import darner

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page):
    """Each Python block with the text block that follows it at once, or None."""
    blocks = list(FENCE.finditer(page))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.group(1) != "python":
            continue
        follows = (
            after is not None
            and after.group(1) == "text"
            and not page[block.end() : after.start()].strip()
        )
        yield block.group(2), after.group(2) if follows else None


def output_of(source, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, "model.py", "exec"), names)
        except darner.DarnerError as error:
            printed.write(f"{type(error).__name__}: {error}\n")
    return printed.getvalue()


@pytest.mark.slow
def test_readme_examples_print_what_stands_below_them():
    names = {}
    found = list(examples((ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(found) >= 2
    for source, expected in found:
        assert output_of(source, names) == (expected or "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--batch", "5"]])
def test_demo_runs(arguments):
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples/mnist_graph.py"), *arguments],
        capture_output=True,
        text=True,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "graph @mnist" in finished.stdout
    assert "fc2.weight" in finished.stdout
    loss = float(re.search(r"loss +(\d+\.\d+)  \(guessing", finished.stdout).group(1))
    assert 1.5 < loss < 3.5
    assert "inner sizes 10 and 784 differ (mnist_graph.py:" in finished.stdout


def test_demo_says_when_its_data_is_missing(tmp_path):
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples/mnist_graph.py"), "--data", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    assert "cannot read MNIST" in finished.stdout
