"""The rules of the architecture: each is a function from the package's modules to its offenders.

An offender has a key that stands in a baseline file and does not change when lines move, a place to click on, and a message that says
what to do.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

from .layers import Layers, layers
from .source import Function, Module, imports_of, read_package

MODULE_LINES = 600
FUNCTION_LINES = 80
PARAMETERS = 6
NAMELESS = frozenset({"do", "go", "inside", "it", "one", "some"})

Modules = Mapping[str, Module]


@dataclass(frozen=True)
class Offence:
    """What breaks a rule: its entry in a baseline file, where it is, and what to do."""

    key: str
    place: str
    message: str


Rule = Callable[[Modules], Iterator[Offence]]
RULES: dict[str, Rule] = {}
"""The rules by the name of their baseline file."""


def rule(name: str) -> Callable[[Rule], Rule]:
    """Add a rule to the table."""

    def add(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return add


@cache
def package() -> dict[str, Module]:
    """The modules of darner."""
    return read_package()


@rule("imports")
def imports_between_layers(modules: Modules, table: Layers | None = None) -> Iterator[Offence]:
    """Layers import downwards only."""
    table = table or layers()
    for module in modules.values():
        importer = table.layer_of(module.name)
        if importer is None:
            yield Offence(
                module.name, module.path, "no row of tests/house/layers.toml has this module"
            )
            continue
        for found in imports_of(module, modules):
            imported = table.layer_of(found.target)
            if imported and (why := table.why_forbidden(importer, imported)):
                key = f"{module.name} -> {found.target}"
                advice = "move what both need to a lower layer, or pass it in"
                yield Offence(
                    key,
                    f"{module.path}:{found.line}",
                    f"{key.partition('-> ')[2]}: {why}; {advice}",
                )


@rule("cycles")
def cycles_of_modules(modules: Modules) -> Iterator[Offence]:
    """Modules that import each other, at their start, in a circle."""
    graph = {
        name: {i.target for i in imports_of(module, modules) if i.at_start} - {name}
        for name, module in modules.items()
    }
    for component in components(graph):
        if len(component) > 1:
            names = sorted(component)
            yield Offence(
                " ".join(names),
                modules[names[0]].path,
                "these import each other in a circle; move what both need to a module of its own",
            )


@rule("cycles_of_rooms")
def cycles_of_rooms(modules: Modules) -> Iterator[Offence]:
    """Rooms of ``ops`` import each other without a circle: a reader walks through them in one order."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        room = _room(module.name)
        if room:
            targets = {_room(i.target) for i in imports_of(module, modules) if i.at_start}
            graph.setdefault(room, set()).update(targets - {room, ""})
    for component in components(graph):
        if len(component) > 1:
            names = sorted(component)
            yield Offence(
                " ".join(names),
                names[0].replace(".", "/"),
                "these rooms import each other in a circle; move what both need to one before them",
            )


def _room(name: str) -> str:
    """The room of ``ops`` that a module stands in."""
    parts = name.split(".")
    return ".".join(parts[:3]) if parts[1:2] == ["ops"] and len(parts) > 3 else ""


def components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan), without recursion.

    >>> sorted(map(sorted, components({"a": {"b"}, "b": {"a"}, "c": {"a"}})))
    [['a', 'b'], ['c']]
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    held: set[str] = set()
    found = []
    for root in graph:
        if root in order:
            continue
        path = [(root, iter(sorted(graph[root])))]
        order[root] = low[root] = len(order)
        stack.append(root)
        held.add(root)
        while path:
            node, rest = path[-1]
            for other in rest:
                if other not in graph:
                    continue
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    held.add(other)
                    path.append((other, iter(sorted(graph[other]))))
                    break
                if other in held:
                    low[node] = min(low[node], order[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    cut = stack.index(node)
                    found.append(stack[cut:])
                    held.difference_update(stack[cut:])
                    del stack[cut:]
    return found


@rule("long_modules")
def long_modules(modules: Modules) -> Iterator[Offence]:
    """A module past 600 lines is two concepts."""
    for module in modules.values():
        if len(module.lines) > MODULE_LINES:
            message = f"{len(module.lines)} lines, more than {MODULE_LINES}: part it in two"
            yield Offence(module.path, module.path, message)


@rule("long_functions")
def long_functions(modules: Modules) -> Iterator[Offence]:
    """A function is at most 80 lines, its docstring left out, or says why not: ``# long: reason``."""
    for module in modules.values():
        for name, function in module.functions():
            lines = length(function)
            if lines > FUNCTION_LINES and not has_reason(module, function, "long"):
                yield Offence(
                    f"{module.path}::{name}",
                    f"{module.path}:{function.lineno}",
                    f"{lines} lines, more than {FUNCTION_LINES}: part it,"
                    " or write `# long: reason` above it or behind its def",
                )


def length(function: Function) -> int:
    """Lines of a function, without those of its decorators and docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


@rule("many_parameters")
def many_parameters(modules: Modules) -> Iterator[Offence]:
    """A function has at most six parameters, or says why not: ``# many parameters: reason``.

    The declaration of an op is left out: its parameters are the op's.
    """
    for module in modules.values():
        for name, function in module.functions():
            count = parameters(function)
            if count <= PARAMETERS or is_declaration(module, function):
                continue
            if not has_reason(module, function, "many parameters"):
                yield Offence(
                    f"{module.path}::{name}",
                    f"{module.path}:{function.lineno}",
                    f"{count} parameters, more than {PARAMETERS}: make a dataclass of those that belong together,"
                    " or write `# many parameters: reason` above it or behind its def",
                )


def parameters(function: Function) -> int:
    """How many parameters a function has, ``self`` and ``cls`` left out."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    stars = (arguments.vararg is not None) + (arguments.kwarg is not None)
    return len(names) - (names[:1] in (["self"], ["cls"])) + stars


def is_declaration(module: Module, function: Function) -> bool:
    """Whether a function declares an op or is one of its rules: its parameters are those of the op."""
    return bool(function.decorator_list) and module.name.split(".")[1:2] in (["ops"], ["compat"])


def has_reason(module: Module, function: Function, word: str) -> bool:
    """Whether a comment with a reason stands in the lines of the ``def``, or right above it."""
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)]) - 1
    while first > 0 and module.lines[first - 1].lstrip().startswith("#"):
        first -= 1
    last = function.body[0].lineno - 1
    mark = f"# {word}:"
    return any(
        line.partition(mark)[2].strip() for line in module.lines[first : max(last, first + 1)]
    )


@rule("nameless_functions")
def nameless_functions(modules: Modules) -> Iterator[Offence]:
    """A function is named after what it does or returns."""
    for module in modules.values():
        for name, function in module.functions():
            if function.name.strip("_") in NAMELESS:
                yield Offence(
                    f"{module.path}::{name}",
                    f"{module.path}:{function.lineno}",
                    f"{function.name!r} says nothing: name it after its role, as in emit_tile or body",
                )


COUNTS = ("Any", "ceil_div by hand", "int(str())", "type: ignore", "noqa")
"""What ``ratchet.toml`` counts for each layer."""


def count(module: Module) -> Counter[str]:
    """How often a module has what may only become rarer."""
    found: Counter[str] = Counter()
    functions = [function for _, function in module.functions()]
    shared = {id(n) for f in functions if f.name == "ceil_div" for n in ast.walk(f)}
    for node in ast.walk(module.tree):
        if (isinstance(node, ast.Name) and node.id == "Any") or (
            isinstance(node, ast.Attribute) and node.attr == "Any"
        ):
            found["Any"] += 1
        elif is_ceiling(node) and id(node) not in shared:
            found["ceil_div by hand"] += 1
        elif is_call(node, "int") and is_call(node.args[0], "str"):
            found["int(str())"] += 1
    if "type: ignore" not in module.text and "noqa" not in module.text:
        return found
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            found["type: ignore"] += "type: ignore" in token.string
            found["noqa"] += "noqa" in token.string
    return found


def is_ceiling(node: ast.AST) -> bool:
    """Whether a node is ``-(-a // b)``."""
    if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)):
        return False
    quotient = node.operand
    return (
        isinstance(quotient, ast.BinOp)
        and isinstance(quotient.op, ast.FloorDiv)
        and isinstance(quotient.left, ast.UnaryOp)
        and isinstance(quotient.left.op, ast.USub)
    )


def is_call(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    """Whether a node calls a builtin with arguments."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and bool(node.args)
    )


def counts(modules: Modules) -> dict[str, dict[str, int]]:
    """What ``ratchet.toml`` has, of the source as it is: how often, for each layer."""
    found: dict[str, Counter[str]] = {name: Counter() for name in COUNTS}
    for module in modules.values():
        layer = layers().layer_of(module.name) or module.name
        for name, number in count(module).items():
            found[name][layer] += number
    return {name: {k: v for k, v in sorted(by.items()) if v} for name, by in found.items()}
