"""What CONTRIBUTING.md names exists: files it links to, folders of the tour in their order, targets of the Makefile."""

import re

import pytest

from tests.house.layers import layers
from tests.house.source import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted(
    {
        *re.findall(r"\]\((?!http)([^)#]+)\)", TEXT),
        *re.findall(r"`((?:darner|tests|bench)/[\w/.]*)`", TEXT),
    }
)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_named_exists(path):
    assert (ROOT / path).exists()


def test_the_tour_goes_through_every_folder_in_the_order_of_the_layers():
    tour = TEXT.partition("## A tour")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)/`", tour)
    folders = {path.name for path in (ROOT / "darner").iterdir() if (path / "__init__.py").exists()}
    assert folders - set(named) == set()
    heights = {**layers().heights, "backends": layers().heights["backends.base"]}
    steps = re.findall(r"^\d+\. \*\*`(\w+)[/.]", tour, flags=re.M)
    assert [heights[name] for name in steps[:-2]] == sorted(heights[name] for name in steps[:-2])


def test_every_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:^|`)make (\w+)", TEXT, flags=re.M))
    assert {name for name in targets if not re.search(rf"^{name}:", makefile, flags=re.M)} == set()
