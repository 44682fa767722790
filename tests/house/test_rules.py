"""The rules themselves: on small packages that are written for them, they find what they are for and nothing else."""

import pytest

from tests.house import baseline
from tests.house.layers import Layers
from tests.house.rules import (
    Offence,
    count,
    cycles_of_modules,
    cycles_of_rooms,
    imports_between_layers,
    long_functions,
    long_modules,
    many_parameters,
    nameless_functions,
)
from tests.house.source import Module, imports_of, read_package

TABLE = Layers([["low"], ["left", "right"], ["high"], ["__init__"]], {}, {"high": ["low"]})


def package_of(files):
    """Modules from their names and texts; a name that ends in a dot is a package's ``__init__``."""
    return {
        name.rstrip("."): Module(
            name.rstrip("."), name.replace(".", "/") + ".py", name.endswith("."), text
        )
        for name, text in files.items()
    }


def keys(rule, text, name="darner.low.a"):
    return [offence.key for offence in rule(package_of({name: text}))]


def test_imports_are_found_wherever_they_stand(tmp_path):
    (tmp_path / "darner/low").mkdir(parents=True)
    (tmp_path / "darner/__init__.py").write_text("")
    (tmp_path / "darner/low/__init__.py").write_text("from . import a\nfrom .a import x\n")
    (tmp_path / "darner/low/a.py").write_text(
        "from __future__ import annotations\n"
        "import os, darner.low\n"
        "from typing import TYPE_CHECKING\n"
        "from importlib import import_module\n"
        "if TYPE_CHECKING:\n    from ..high import b\n"
        "else:\n    from ..right import c\n"
        "def f():\n    from .. import left\n    import_module('darner.high.d')\n"
        "class C:\n    from darner.low.e import x\n"
    )
    modules = read_package(tmp_path)
    assert list(modules) == ["darner", "darner.low", "darner.low.a"]
    found = {(i.target, i.line, i.at_start) for i in imports_of(modules["darner.low.a"], modules)}
    assert found == {
        ("darner.low", 2, True),
        ("darner.high", 6, False),
        ("darner.right", 8, True),
        ("darner", 10, False),
        ("darner.high.d", 11, False),
        ("darner.low.e", 13, True),
    }
    assert {i.target for i in imports_of(modules["darner.low"], modules)} == {"darner.low.a"}


@pytest.mark.parametrize(
    ("importer", "imported", "why"),
    [
        ("low", "high", "high lies above low"),
        ("left", "right", "left and right know nothing of each other"),
        ("high", "left", "high may import low only"),
        ("high", "low", None),
        ("left", "low", None),
        ("left", "left", None),
    ],
)
def test_layers_import_downwards_only(importer, imported, why):
    assert TABLE.why_forbidden(importer, imported) == why
    modules = package_of(
        {f"darner.{importer}.a": f"def f():\n    from darner.{imported}.b import x\n"}
    )
    found = list(imports_between_layers(modules, TABLE))
    assert [o.key for o in found] == (
        [f"darner.{importer}.a -> darner.{imported}.b"] if why else []
    )
    assert all(why in o.message and o.place.endswith("/a.py:2") for o in found)


def test_a_module_without_a_row_is_an_offender():
    (found,) = imports_between_layers(package_of({"darner.attic.a": ""}), TABLE)
    assert found.key == "darner.attic.a"


def test_circles_of_modules_are_found_and_late_imports_are_none():
    files = {
        "darner.a": "from . import b",
        "darner.b": "from . import c",
        "darner.c": "from .a import x",
        "darner.d": "from . import e",
        "darner.e": "def f():\n    from . import d",
    }
    assert [o.key for o in cycles_of_modules(package_of(files))] == ["darner.a darner.b darner.c"]


def test_circles_of_rooms_are_found_though_no_module_is_in_one():
    files = {
        "darner.ops.axes": "",
        "darner.ops.a.low": "from ..axes import x",
        "darner.ops.a.high": "from ..b.low import x",
        "darner.ops.b.low": "from .. import axes",
        "darner.ops.b.high": "from ..a.low import x",
    }
    assert [o.key for o in cycles_of_rooms(package_of(files))] == ["darner.ops.a darner.ops.b"]
    files["darner.ops.b.high"] = "def f():\n    from ..a.low import x"
    assert list(cycles_of_rooms(package_of(files))) == []


def test_lines_of_modules_and_functions():
    body = "    x = 1\n" * 80
    assert keys(long_functions, f"def f():\n{body}") == ["darner/low/a.py::f"]
    assert keys(long_functions, f"def f():\n{body[:-10]}") == []
    assert keys(long_functions, f"def f():\n    '''Says\n    much.\n    '''\n{body[:-10]}") == []
    assert keys(long_functions, f"# long: one table\ndef f():\n{body}") == []
    assert keys(long_functions, f"# long: one table\n@late\ndef f():\n{body}") == []
    assert keys(long_functions, f"def f():  # long: one table\n{body}") == []
    assert keys(long_functions, f"def f():  # long:\n{body}") == ["darner/low/a.py::f"]
    assert keys(long_functions, f"# long: of g\ndef g(): ...\ndef f():\n{body}") != []
    assert keys(long_modules, "x = 1\n" * 600) == []
    assert keys(long_modules, "x = 1\n" * 601) == ["darner/low/a.py"]


def test_parameters():
    text = "class C:\n    def f(self, a, b, c, d, *e, f{}): ...\n"
    assert keys(many_parameters, text.format("")) == []
    assert keys(many_parameters, text.format(", **g")) == ["darner/low/a.py::C.f"]
    reason = "def f(  # many parameters: they are the user's\n    a, b, c, d, e, f, g\n): ...\n"
    assert keys(many_parameters, reason) == []
    op = "@primitive(family='x')\ndef f(a, b, c, d, e, f, g): ...\n"
    assert keys(many_parameters, op, "darner.ops.a") == []
    assert keys(many_parameters, op) == ["darner/low/a.py::f"]


def test_names_of_functions():
    text = "def f():\n    def one(): ...\n    def some_of(): ...\ndef _it(): ...\n"
    assert keys(nameless_functions, text) == ["darner/low/a.py::f.one", "darner/low/a.py::_it"]


def test_what_is_counted():
    text = (
        "from typing import Any\n"
        "def f(x: Any, y: 'int') -> dict[str, Any]:\n"
        "    n = -(-x // y) + int(str(x))  # type: ignore[operator] # it is one\n"
        "    return -x // y\n"
        "def ceil_div(a, b):\n    return -(-a // b)\n"
        "'noqa'\n"
    )
    found = count(package_of({"darner.low.a": text})["darner.low.a"])
    assert +found == {"Any": 2, "ceil_div by hand": 1, "int(str())": 1, "type: ignore": 1}


def test_a_new_offender_and_an_entry_that_offends_no_more_are_said():
    found = {"a": Offence("a", "a.py:3", "is long"), "b": Offence("b", "b.py:1", "is long")}
    assert baseline.complaints("x", found, {"a", "b"}) == []
    assert baseline.complaints("x", found, {"b", "c"}) == [
        "a.py:3: is long",
        "tests/house/baseline/x.txt: remove this line, it offends no more: c",
    ]
    assert baseline.count_complaints({"low": 2}, {"low": 2}) == []
    assert "low has 3, and had 2" in baseline.count_complaints({"low": 3}, {"low": 2})[0]
    assert baseline.COMMAND in baseline.count_complaints({}, {"low": 2})[0]
