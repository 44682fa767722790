"""The package's source as the rules see it: modules with their trees, imports and functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One module that another imports.

    Attributes:
        target: the full name of the module; a package for names that its ``__init__`` has.
        line: where.
        at_start: whether it happens when the importing module is imported.
    """

    target: str
    line: int
    at_start: bool


@dataclass(frozen=True)
class Module:
    """A module of the package.

    Attributes:
        name: as it is imported, such as ``darner.graph.op``.
        path: relative to the repository.
        is_package: whether it is an ``__init__``.
        text: its source.
    """

    name: str
    path: str
    is_package: bool
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def functions(self) -> Iterator[tuple[str, Function]]:
        """All functions, methods and inner functions with their qualified names."""
        yield from _functions(self.tree, "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            inner = f"{prefix}{child.name}."
        if isinstance(child, FUNCTIONS):
            yield inner.removesuffix("."), child
        yield from _functions(child, inner)


def read_package(root: Path = ROOT, package: str = "darner") -> dict[str, Module]:
    """All modules of a package, by name."""
    modules = {}
    for path in sorted((root / package).rglob("*.py")):
        relative = path.relative_to(root)
        parts = relative.with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, relative.as_posix(), is_package, text)
    return modules


def imports_of(module: Module, modules: Mapping[str, Module]) -> list[Import]:
    """What a module imports of its own package, functions and conditions included.

    ``import_module`` with a name that stands there counts too.
    """
    package = module.name.partition(".")[0]
    found = []
    for node, at_start in _import_nodes(module.tree, at_start=True):
        for target in _targets(node, module, modules):
            if target == package or target.startswith(f"{package}."):
                found.append(Import(target, node.lineno, at_start))
    return found


def _import_nodes(node: ast.AST, at_start: bool) -> Iterator[tuple[ast.stmt | ast.Call, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, at_start
        elif isinstance(child, ast.Call) and _name_of(child.func) == "import_module":
            yield child, False
        elif isinstance(child, ast.If) and _name_of(child.test) == "TYPE_CHECKING":
            for inner in child.body:
                yield from _import_nodes(ast.Module([inner], []), at_start=False)
            for inner in child.orelse:
                yield from _import_nodes(ast.Module([inner], []), at_start)
        else:
            yield from _import_nodes(child, at_start and not isinstance(child, FUNCTIONS))


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _targets(
    node: ast.stmt | ast.Call, module: Module, modules: Mapping[str, Module]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node.module or "", node.level, module)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield inner if inner in modules else base
    elif isinstance(node, ast.Call) and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            level = len(name.value) - len(name.value.lstrip("."))
            yield _absolute(name.value.lstrip("."), level, module)


def _absolute(name: str, level: int, module: Module) -> str:
    if not level:
        return name
    parts = module.name.split(".")
    dropped = level - 1 if module.is_package else level
    return ".".join([*parts[: len(parts) - dropped], *([name] if name else [])])
