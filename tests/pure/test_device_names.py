"""Devices are rows of a registry: outside of ``darner/backends`` nothing compares with the name of one, chooses by it, or imports from its folder."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import darner
from darner.backends.base.registry import BUILT_IN, built_in

PACKAGE = Path(darner.__file__).parent
FOLDERS = frozenset(BUILT_IN.values())
NAMES = frozenset({*BUILT_IN, *FOLDERS, *(row.target for row in built_in())})

ALLOWED = {
    # What PyTorch, JAX and Keras call their devices and methods, and what to write here instead.
    "graph/habits/of_tensors.py": {"cpu", "cuda"},
    "graph/habits/table.py": {"cpu", "cuda", "wgpu"},
    # A rule of ops that has this name too.
    "cli/facts.py": {"reference"},
}
"""Words of a module that are no devices there."""

CHOOSING = {"startswith", "endswith", "removeprefix", "partition", "split", "get", "pop"}
"""Methods that choose by a text which they are given."""


def device_in(node):
    """The device that a text is the name of, or begins with as ``gpu:1`` does; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value.partition(":")[0]
        return name if name in NAMES and (name == node.value or ":" in node.value) else None
    return None


def texts(node):
    """The parts of a literal: itself, or those of a tuple, list or set."""
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def chosen_by(node):
    """The expressions that a node compares with or chooses by."""
    match node:
        case ast.Compare():
            yield from (part for side in (node.left, *node.comparators) for part in texts(side))
        case ast.Dict():
            yield from (key for key in node.keys if key is not None)
        case ast.Subscript():
            yield node.slice
        case ast.MatchValue():
            yield node.value
        case ast.Call():
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "device")
            if isinstance(node.func, ast.Attribute) and node.func.attr in CHOOSING:
                yield from (part for given in node.args for part in texts(given))
        case ast.arguments():
            named = [*node.posonlyargs, *node.args]
            defaults = node.defaults
            pairs = [*zip(named[len(named) - len(defaults) :], defaults, strict=True)]
            pairs += zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from (value for name, value in pairs if name.arg == "device" and value)
        case ast.AnnAssign(target=ast.Name(id="device"), value=ast.expr() as value):
            yield value
        case ast.Assign(targets=[ast.Name(id="device")], value=value):
            yield value
        case ast.Tuple() | ast.List() | ast.Set() if all(map(device_in, node.elts)):
            yield from node.elts  # a table of devices


def folder_in(node):
    """The device whose folder an import is from; None for any other."""
    if isinstance(node, ast.ImportFrom):
        paths = [f"{node.module or ''}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        paths = [node.value]  # for import_module
    else:
        return None
    for path in paths:
        parts = path.split(".")
        for before, folder in pairwise(parts):
            if before == "backends" and folder in FOLDERS:
                return folder
    return None


def devices_in(text):
    """The devices that code knows, with their lines."""
    return {
        (device, getattr(part, "lineno", 0))
        for node in ast.walk(ast.parse(text))
        for part, device in [(node, folder_in(node)), *((p, device_in(p)) for p in chosen_by(node))]
        if device is not None
    }


@pytest.mark.parametrize(
    "code",
    [
        "if device == 'gpu': pass",
        "if target in ('cpu', 'other'): pass",
        "if device != 'gpu:1': pass",
        "if device.startswith('gpu'): pass",
        "if device.startswith(('gpu:', 'npu')): pass",
        "PEAKS = {'cpu': 1, 'other': 2}",
        "PEAKS['wgpu']",
        "PEAKS.get('reference')",
        "def build(graph, device='cpu'): pass",
        "def build(*, graph=None, device: str = 'cpu'): pass",
        "class Config:\n    device: str = 'cpu'",
        "DEVICES = ('cpu', 'reference')",
        "for device in ['cpu']: pass",
        "match device:\n    case 'gpu': pass",
        "build(graph, device='reference')",
        "from ..backends.cpu.jit import host",
        "from ..backends import wgpu",
        "import darner.backends.wgpu.device",
        "import_module('darner.backends.wgpu.device')",
    ],
)
def test_code_that_knows_a_device_is_found(code):
    assert len(devices_in(code)) >= 1


@pytest.mark.parametrize(
    "code",
    [
        "'''Runs on the cpu, gpu or reference; see ``backends.cpu``.'''",
        "hint = 'write device=\"gpu\"'",
        "rule = self._attach('reference', rule)",
        "RULES = ('reference', 'vjp')",
        "if part == 'gpus': pass",
        "if text.startswith('cpus'): pass",
        "target('cpu', flops=1.0)",
        "def optimize(graph, target='cpu'): pass",
        "from ..backends.base.registry import backend_of",
        "reference = 'x'",
    ],
)
def test_code_that_knows_none_is_not(code):
    assert devices_in(code) == set()


def words_of(module):
    """The words that are no devices in a module."""
    return ALLOWED.get(module, set())


def test_no_module_outside_of_the_backends_knows_a_device():
    found, excused = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module.startswith("backends/") and not module.startswith("backends/base/"):
            continue
        if module == "backends/base/registry.py":  # the rows themselves
            continue
        for device, line in devices_in(path.read_text(encoding="utf-8")):
            if device in words_of(module):
                excused.add((module, device))
            else:
                found.append(f"{module}:{line}: {device}")
    assert found == []
    # An excuse that nothing needs any more is taken out.
    assert excused >= {(module, word) for module, words in ALLOWED.items() for word in words}
