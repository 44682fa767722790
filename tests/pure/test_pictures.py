"""The pictures of the pages show what the pages and darner say: ``python -m bench.pictures`` draws them again."""

import re
from pathlib import Path

from bench import pictures

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_chart_is_that_of_the_table():
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    drawn = pictures.performance_svg(page)
    assert drawn == (DOCS / "performance.svg").read_text(encoding="utf-8")
    assert drawn.count('class="bar"') == sum(
        bool(cell)
        for row in pictures.first_table(page)[1]
        for name, cell in zip(pictures.first_table(page)[0], row, strict=True)
        if name in pictures.COLOURS
    )


def test_the_filtered_signal_is_that_of_the_example():
    drawn = pictures.denoising_svg()
    assert drawn == (DOCS / "denoising.svg").read_text(encoding="utf-8")
    example = (DOCS / "fft.md").read_text(encoding="utf-8")
    for line in ("x.rfft(n=1000)", 'kept.where(re, 0.0), kept.where(im, 0.0), 1000, "backward"'):
        assert line in example


def test_the_stages_have_the_numbers_of_darner():
    there = (DOCS / "stages.svg").read_text(encoding="utf-8")
    kernels = int(re.search(r">(\d+) kernels<", there)[1])
    assert there == pictures.stages_svg(pictures.node_counts(), kernels)
    assert 8 <= kernels <= 20
