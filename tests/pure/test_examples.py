"""Every example runs, and says what it promises."""

import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "examples"

EXAMPLES = {
    "diffusion_toy.py": (
        ["--quick", "--points", "500"],
        [
            "after 400 steps",
            "\nlearnt: ",
            "% of the points are within 0.1 of the ring",
            "the picture is diffusion_toy.svg",
        ],
    ),
    "mnist.py": (
        ["--synthetic", "--drawn", "3000", "--epochs", "1"],
        [
            "3,000 images to learn from, 600 to",
            "training by Adam",
            "% of the test images are right",
        ],
    ),
    "mnist_graph.py": (
        ["--batch", "4"],
        ["graph @mnist {", "fused_matmul", "ShapeError: matmul 'oops'"],
    ),
    "optimize_llama.py": (
        ["--layers", "2"],
        ["=== Optimization Report ===", "MatMul+Add→FusedMatMulAdd x4", "layer1.gate+layer1.up"],
    ),
}


def test_every_example_is_listed():
    assert sorted(EXAMPLES) == sorted(path.name for path in HERE.glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, monkeypatch, capsys, tmp_path):
    arguments, promised = EXAMPLES[name]
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.delenv("DARNER_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)  # for what an example writes
    with suppress(SystemExit):
        runpy.run_path(str(HERE / name), run_name="__main__")
    printed = capsys.readouterr().out
    for text in promised:
        assert text in printed
