"""What the pages say about installing agrees with pyproject.toml, the locks and the Makefile; and darner runs on the other Pythons that are here."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from bench import install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
VERSIONS = [
    line.rpartition(" :: ")[2]
    for line in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", line)
]
SMOKE = ROOT / "tests/smoke.py"


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def direct():
    return {
        canonicalize_name(r.name): r.specifier for r in map(Requirement, PROJECT["dependencies"])
    }


def locked(name):
    lines = page(f"requirements/{name}.lock").splitlines()
    pins = (line.partition(";")[0].strip() for line in lines if re.match(r"[\w.-]+==", line))
    pairs = (pin.split("==") for pin in pins)
    return {canonicalize_name(package): version for package, version in pairs}


def tables(text):
    """The rows of all tables of a page, as lists of cells."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_of_installing_names_and_counts_the_direct_dependencies():
    text = page("docs/install.md")
    counted = NUMBERS[len(direct())]
    assert f"{counted.capitalize()} packages of the index" in text
    assert f"its {counted} dependencies" in text
    assert f"the {counted} run-time dependencies" in text
    listed = re.search(r"packages of the index \((.+?)\)", text).group(1)
    assert {canonicalize_name(name) for name in re.split(r", | and ", listed)} == set(direct())


def test_the_counts_of_the_page_of_installing_add_up_and_other_pages_repeat_them():
    text = page("docs/install.md")
    packages, size = map(int, re.search(r"installs (\d+) packages, (\d+) MB", text).groups())
    sizes = [int(row[1]) for row in tables(text)[1:]]
    assert abs(sum(sizes) - size) <= len(sizes) / 2
    unused, fewer = (
        int(re.search(p, text).group(1))
        for p in (r"(\d+) that egglog names", r"is (\d+) packages, 515 MB")
    )
    assert fewer == len(locked("runtime")) + 1
    assert packages == fewer + unused
    for name in ("README.md", "docs/quickstart.md"):
        assert f"{packages} packages, {size} MB" in page(name), name
    assert f"{packages} in all with darner itself, {size} MB" in page("docs/dependencies.md")


def test_the_lock_has_what_darner_needs_within_the_ranges_that_users_get():
    lock = locked("runtime")
    assert {name for name in direct() if lock[name] not in direct()[name]} == set()
    named = {name: install.needs(distribution(name)) for name in lock}
    assert set(lock) - set(direct()) == install.reached_from("rich", named) - {"rich"}


def test_the_page_of_dependencies_has_each_at_the_version_that_is_tested():
    lock = {**locked("runtime"), **locked("dev")}
    found = {}
    for row in tables(page("docs/dependencies.md")):
        cells = row[1:] if row[0].startswith("`") else row
        names = [canonicalize_name(name.split(" ")[0]) for name in cells[0].split(", ")]
        versions = cells[1].split(", ")
        if len(names) == len(versions):
            found |= dict(zip(names, versions, strict=True))
    known = {name: version for name, version in found.items() if name in lock}
    assert set(direct()) | {"wgpu", "tokenizers", "jinja2", "huggingface-hub"} <= set(known)
    assert {name: lock[name] for name in known} == known


@pytest.mark.parametrize("name", ["tools", "release"])
def test_the_page_has_every_tool_that_is_installed_for_one_target(name):
    text = page("docs/dependencies.md")
    found = set()
    for row in tables(text):
        names, versions = row[0].split(", "), row[1].split(", ")
        if len(names) == len(versions):
            pairs = zip(names, versions, strict=True)
            found |= {(canonicalize_name(tool), version) for tool, version in pairs}
    assert locked(name).items() - found == set()


def test_tools_that_are_locked_twice_have_one_version():
    locks = [locked(name) for name in ("runtime", "dev", "tools", "release")]
    for first in locks:
        for second in locks:
            shared = first.keys() & second.keys()
            assert {k: first[k] for k in shared} == {k: second[k] for k in shared}


def test_hosted_machines_test_the_same_pythons():
    workflow = page(".github/workflows/ci.yml")
    listed = ", ".join(f'"{version}"' for version in VERSIONS)
    assert f"python: [{listed}]" in workflow


def test_every_place_names_the_same_pythons():
    first, last = VERSIONS[0], VERSIONS[-1]
    minors = [int(version[2:]) for version in VERSIONS]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(
        f">={first},<3.{minors[-1] + 1}"
    )
    listed = f"Python {', '.join(VERSIONS[:-1])} or {last}"
    for name in ("README.md", "docs/install.md", "docs/quickstart.md", "Makefile"):
        assert listed in page(name), name
    makefile = page("Makefile")
    assert f"Python {first} to {last}" in makefile
    assert f"(3, {minors[0]}) <= sys.version_info[:2] <= (3, {minors[-1]})" in makefile
    assert " ".join(f"python{version}" for version in reversed(VERSIONS)) in makefile


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_darner_runs_on_every_python_that_is_here(version):
    """On others than the one that tests run on, where they have what darner runs on; ``.ci/run`` installs it for those it finds."""
    here = ".".join(map(str, sys.version_info[:2])) == version
    python = sys.executable if here else shutil.which(f"python{version}")
    modules = sorted(name.replace("-", "_") for name in direct())
    look = (
        f"from importlib.util import find_spec\nprint(*(m for m in {modules} if not find_spec(m)))"
    )
    looked = python and subprocess.run([python, "-c", look], capture_output=True, text=True)
    if not looked or looked.returncode:  # a version manager's stand-in is found, and runs nothing
        pytest.skip(f"there is no python{version} on this machine")
    if missing := looked.stdout.split():
        pytest.skip(f"python{version} has no {', '.join(missing)}")
    finished = subprocess.run(
        [python, "-W", "error", str(SMOKE)], capture_output=True, text=True, cwd=ROOT
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert f"works on Python {version}." in finished.stdout


def test_what_a_package_brings_is_found_through_all_that_it_names():
    named = {"a": ["b", "absent"], "b": ["c"], "c": ["a"], "d": []}
    assert install.reached_from("a", named) == {"a", "b", "c"}
    assert install.name_of("typing_extensions; python_version < '3.10'") == "typing_extensions"
    assert install.canonical("Typing_Extensions") == "typing-extensions"
