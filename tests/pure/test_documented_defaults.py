"""The defaults that the pages state are those of the code.

A table with a column ``option`` also has a column ``default``, and above it a comment that names what takes the options:
``<!-- options of darner.train.Trainer -->``, or ``<!-- all options of ... -->`` where none may be left out. A table with a
column ``signature`` has ``<!-- signatures of darner.optim -->`` above it. A table without its comment fails, so a new one
is compared as soon as it is written.
"""

import argparse
import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

from darner.cli import main as command
from darner.cli.training_run import PRESETS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLE = re.compile(r"(?:^<!-- (?P<mark>[^>]*) -->\n\n?)?(?P<rows>(?:^\|.*\n)+)", re.MULTILINE)
MARK = re.compile(r"(?P<kind>all options|options|signatures) of (?P<of>[\w.]+)")
CODE = re.compile(r"`([^`]+)`")


def tables(text):
    """The comment above each table, its header and its rows."""
    for found in TABLE.finditer(text):
        rows = [
            [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            for line in found["rows"].splitlines()
        ]
        yield found["mark"], rows[0], rows[2:]


def marked_tables():
    for page in PAGES:
        for mark, header, rows in tables(page.read_text(encoding="utf-8")):
            if {"option", "signature"} & set(header):
                where = f"{page.name}, {' | '.join(header)}, {rows[0][0]}"
                yield pytest.param(mark, header, rows, id=where)


def resolve(name):
    """The object of a dotted name."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for part in parts[1:]:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def defaults_of(taker):
    """Every parameter by name; ``inspect.Parameter.empty`` where the caller must give it."""
    fields = getattr(taker, "__dataclass_fields__", {})
    found = {}
    for name, parameter in inspect.signature(taker).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            field = fields.get(name)
            made = field is not None and field.default_factory is not dataclasses.MISSING
            found[name] = field.default_factory() if made else parameter.default
    return found


def stated(cell):
    """The value that a cell states; ``required`` says that there is none."""
    if cell == "required":
        return inspect.Parameter.empty
    return ast.literal_eval(CODE.fullmatch(cell)[1])


def same(documented, real):
    """Whether they are one value; 0 and 0.0 are, False and 0 are not."""
    return documented == real and isinstance(documented, bool) == isinstance(real, bool)


def wrong_options(mark, header, rows):
    """What a table of options says that the code does not."""
    known = defaults_of(resolve(mark["of"]))
    problems, named = [], set()
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        for name in CODE.findall(cells["option"]):
            named.add(name)
            if name not in known:
                problems.append(f"there is no '{name}'")
            elif not same(stated(cells["default"]), known[name]):
                problems.append(f"{name} is {known[name]!r}, not {cells['default']}")
    if mark["kind"] == "all options" and set(known) - named:
        problems.append(f"these are left out: {sorted(set(known) - named)}")
    return problems


def wrong_signatures(mark, header, rows):
    """The same of a table of signatures; parameters by keyword alone may be left out."""
    problems = []
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        call = ast.parse(CODE.match(cells["signature"])[1], mode="eval").body
        taker = getattr(resolve(mark["of"]), call.func.id)
        real = defaults_of(taker)
        kinds = inspect.signature(taker).parameters
        said = {item.id: inspect.Parameter.empty for item in call.args}
        said |= {item.arg: ast.literal_eval(item.value) for item in call.keywords}
        needed = {name for name in real if kinds[name].kind is not inspect.Parameter.KEYWORD_ONLY}
        if not needed <= set(said) <= set(real):
            problems.append(f"{call.func.id} takes {list(real)}, not {list(said)}")
            continue
        problems += [
            f"{call.func.id}: {name} is {real[name]!r}, not {value!r}"
            for name, value in said.items()
            if not same(value, real[name])
        ]
    return problems


@pytest.mark.parametrize(("mark", "header", "rows"), list(marked_tables()))
def test_defaults_of_a_table_are_those_of_the_code(mark, header, rows):
    found = MARK.fullmatch(mark or "")
    assert found, "a comment above the table names what takes these: <!-- options of darner.X -->"
    if found["kind"] == "signatures":
        assert wrong_signatures(found, header, rows) == []
    else:
        assert "default" in header
        assert wrong_options(found, header, rows) == []


def test_there_are_such_tables():
    assert len(list(marked_tables())) >= 8


WRONG = """<!-- options of darner.optimizer.Budget -->
| option | default | meaning |
|---|---|---|
| `nodes` | `19_000` | |
| `itertions` | `30` | |
"""


def test_a_wrong_default_and_an_unknown_option_are_found():
    ((mark, header, rows),) = tables(WRONG)
    assert wrong_options(MARK.fullmatch(mark), header, rows) == [
        "nodes is 20000, not `19_000`",
        "there is no 'itertions'",
    ]
    assert (
        "seconds"
        in wrong_options(MARK.fullmatch(f"all {mark}"), header, [["`nodes`", "`20_000`", ""]])[0]
    )


def test_a_wrong_signature_is_found():
    mark = MARK.fullmatch("signatures of darner.optim")
    header = ["signature"]
    assert wrong_signatures(mark, header, [["`cosine(steps, end=0.0)`"]]) == []
    assert wrong_signatures(mark, header, [["`cosine(steps, end=0.1)`"]]) == [
        "cosine: end is 0.0, not 0.1"
    ]
    assert wrong_signatures(mark, header, [["`cosine(steps)`"]]) == [
        "cosine takes ['steps', 'end'], not ['steps']"
    ]


# --------------------------------------------------------------------------- the command line


def rows_below(page, first):
    """The rows of the table whose header begins with a word."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return next(rows for _, header, rows in tables(text) if header[0] == first)


def test_the_presets_of_the_command_are_those_of_the_code():
    said = {CODE.fullmatch(row[0])[1]: row[2:] for row in rows_below("cli.md", "preset")}
    real = {
        name: [f"{sizes['batch']} x {sizes['length']}", f"{sizes['steps']:,}"]
        for name, (_, sizes) in PRESETS.items()
    }
    assert said == real


def test_options_that_the_page_of_the_command_names_exist(monkeypatch, capsys):
    made = []
    init = argparse.ArgumentParser.__init__
    monkeypatch.setattr(
        argparse.ArgumentParser,
        "__init__",
        lambda self, *args, **options: (made.append(self), init(self, *args, **options))[1],
    )
    assert command(["ops", "tanh"]) == 0
    capsys.readouterr()
    known = {option for parser in made for option in parser._option_string_actions}
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert {"--steps", "--lora", "--compare", "--json"} <= named
    assert named - known == set()
