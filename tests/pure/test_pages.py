"""The pages for readers of other systems: what they call the same exists, and what they say is missing does not."""

import re
from pathlib import Path

import pytest

import darner
from darner import Graph, Session, data, load, nn, optim, optimizer, text, train

DOCS = Path(__file__).resolve().parents[2] / "docs"
PLACES = [darner, Graph("any"), Session, train, train.Trainer, data, data.MnistDataset, load]
MODULES = {
    "darner": darner,
    "data": data,
    "load": load,
    "nn": nn,
    "optim": optim,
    "optimizer": optimizer,
    "text": text,
    "train": train,
    "session": Session,
    "g": Graph("any"),
    "Graph": Graph,
}
WORD = re.compile(r"`([a-z_][a-z0-9_]*)`")
PAGES = ["coming-from-meganeura.md", "coming-from-rlx.md"]


def rows(page):
    """The cells of every row of a table."""
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            cells = line.removeprefix("| ").removesuffix("|").split(" | ")
            yield [cell.strip() for cell in [*cells, ""]]


@pytest.mark.parametrize("page", PAGES)
def test_names_that_are_the_same_exist(page):
    named = [WORD.findall(row[0]) for row in rows(page) if row[1].startswith("the same")]
    names = {name for found in named for name in found}
    assert len(names) > 50
    lost = {name for name in names if not any(hasattr(place, name) for place in PLACES)}
    assert lost == set()


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("coming-from-*.md")))
def test_names_with_their_module_exist(page):
    ours = "\n".join(row[1] for row in rows(page))
    found = set(re.findall(r"(?<![\w.])(\w+)\.([A-Za-z_]\w*)\(?", ours))
    known = {(module, name) for module, name in found if module in MODULES and name != "md"}
    assert len(known) > 5
    assert {pair for pair in known if not hasattr(MODULES[pair[0]], pair[1])} == set()
