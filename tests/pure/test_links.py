"""Every relative link of the pages leads to a file that is there, and to a heading that it has."""

import functools
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for folder, pattern in ((ROOT, "*.md"), (ROOT / "docs", "**/*.md"), (ROOT / "bench", "**/*.md"))
    for path in folder.glob(pattern)
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@functools.cache
def anchors(text):
    """The anchors that GitHub gives the headings of a page: a second one of a name ends in -1."""
    seen, found = Counter(), set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(text):
    """The targets of links and pictures outside code."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    return [plain or quoted for plain, quoted in LINK.findall(prose)]


def broken(page, text):
    """The links of a page that lead nowhere."""
    found = []
    for target in links(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            found.append(f"{target}: there is no such file")
        elif anchor and file.suffix == ".md":
            known = anchors(text if file == page else file.read_text(encoding="utf-8"))
            if anchor not in known:
                found.append(f"{target}: there is no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_every_page_can_be_reached_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in links(page.read_text(encoding="utf-8")):
            path = target.partition("#")[0]
            if path.endswith(".md") and not path.startswith("http"):
                waiting.append((page.parent / path).resolve())
    assert set((ROOT / "docs").rglob("*.md")) - seen == set()


def test_broken_links_are_found():
    text = "# A b\n\n## A b\n\n[x](#a-b) [x](#a-b-1) [x](#c) [x](gone.md) ![x](docs/ops.md#tanh) `[x](no)`\n"
    assert broken(ROOT / "README.md", text) == [
        "#c: there is no such heading",
        "gone.md: there is no such file",
    ]


# --------------------------------------------------------------------------- modules


MODULE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.pyi?)`")
FOLDER = re.compile(r"`((?:darner|tests|bench|examples|fuzz)/[\w/.-]*)`")
SOURCES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("darner", "tests", "bench", "examples", "fuzz")
    for path in (ROOT / folder).rglob("*.py*")
}
OLDER = {ROOT / "CHANGELOG.md", ROOT / "docs/rejected.md"}
"""Pages that speak of code as it was."""


def unknown_modules(text):
    """The modules and folders of the repository that a page names and that are not there; a path may be shortened in front."""
    prose = FENCE.sub("", text)
    lost = [
        name
        for name in MODULE.findall(prose)
        if not any(source == name or source.endswith(f"/{name}") for source in SOURCES)
    ]
    return lost + [name for name in FOLDER.findall(prose) if not (ROOT / name).exists()]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in OLDER and "log" not in page.parts],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_modules_that_a_page_names_exist(page):
    assert unknown_modules(page.read_text(encoding="utf-8")) == []


def test_unknown_modules_are_found():
    text = "`graph/op.py` `graph/opp.py` `darner/ops` `darner/nothing` `bench/lines.py` `train.py`"
    assert unknown_modules(text) == ["graph/opp.py", "darner/nothing"]
