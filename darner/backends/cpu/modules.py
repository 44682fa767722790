"""A module of LLVM IR as several, which are compiled side by side and linked again when they are loaded.

Functions that are never inlined, such as the tiles of products, are compiled once, whoever calls them. Those that always are inlined are copied to where they
are called, and so are constants; functions that share a variable stay together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

_NAME = re.compile(r'@"((?:[^"\\]|\\.)*)"')
_INLINED = "alwaysinline"

PART = 40_000
"""Characters of IR that are worth a module of their own: they take tens of milliseconds to compile."""


@dataclass
class _Text:
    """What a module's text consists of, by name."""

    head: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    inlined: set[str] = field(default_factory=set)


def parts(text: str, optimised: Collection[str], count: int) -> list[tuple[str, bool]]:
    """Modules that are a module together, and whether LLVM's optimiser is to run on each.

    Args:
        text: as llvmlite writes it.
        optimised: the functions for which it is; what only they call goes with them.
        count: how many of either kind there may be.

    >>> text = '''
    ... define void @"a"()
    ... {
    ...   call void @"tile"()
    ...   ret void
    ... }
    ... define internal void @"tile"() noinline
    ... {
    ...   ret void
    ... }
    ... '''
    >>> [(part.count("define"), passes) for part, passes in parts(text, ["a"], 1)]
    [(2, True)]
    """
    found = _read(text)
    uses = {name: set(_NAME.findall(body)) - {name} for name, body in found.functions.items()}
    known = {*found.functions, *found.declared, *found.constants, *found.variables}
    for names in uses.values():
        names &= known
    groups = _groups(found, uses)
    plain = _reachable(
        [n for n in found.functions if n not in optimised and _is_open(found, n)], uses
    )
    result = []
    for passes in (False, True):
        chosen = [group for group in groups if passes == plain.isdisjoint(group)]
        for bin_ in _bins(chosen, found.functions, count):
            result.append((_written(found, uses, bin_), passes))
    return result


def _read(text: str) -> _Text:
    found = _Text()
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith("define "):
            name, body = _name(line), [line]
            for more in lines:
                body.append(more)
                if more == "}":
                    break
            found.functions[name] = "\n".join(body)
            if _INLINED in line.split():
                found.inlined.add(name)
        elif line.startswith("declare "):
            found.declared[_name(line)] = line
        elif line.startswith("@"):
            name, kind = _name(line), line.split("=", 1)[1].split()
            table = found.constants if "constant" in kind[:4] else found.variables
            table[name] = line
        elif line.startswith("!"):
            found.metadata.append(line)
        elif line and not line.startswith(";"):
            found.head.append(line)
    return found


def _name(line: str) -> str:
    found = _NAME.search(line)
    return found[1] if found else line


def _is_open(found: _Text, name: str) -> bool:
    """Whether a function is called from outside the module."""
    return not found.functions[name].startswith("define internal")


def _reachable(names: Iterable[str], uses: Mapping[str, set[str]]) -> set[str]:
    """These, and all that they use directly or through others."""
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += uses.get(name, ())
    return found


def _needed(names: Iterable[str], found: _Text, uses: Mapping[str, set[str]]) -> set[str]:
    """What is inlined into these functions, and whatever they and it name."""
    result: set[str] = set()
    stack = list(names)
    while stack:
        for name in uses[stack.pop()] - result:
            result.add(name)
            if name in found.inlined:
                stack.append(name)
    return result


def _groups(found: _Text, uses: Mapping[str, set[str]]) -> list[list[str]]:
    """Functions that have to be in one module; those that are inlined are left out."""
    group_of: dict[str, list[str]] = {}
    owner: dict[str, list[str]] = {}
    for name in found.functions:
        if name in found.inlined:
            continue
        group = group_of[name] = [name]
        for variable in sorted(_needed([name], found, uses) & found.variables.keys()):
            other = owner.setdefault(variable, group)
            if other is not group:
                other += group
                for member in group:
                    group_of[member] = other
                owner = {key: other if value is group else value for key, value in owner.items()}
                group = other
    return list({id(group): group for group in group_of.values()}.values())


def _bins(groups: list[list[str]], functions: Mapping[str, str], count: int) -> list[list[str]]:
    """The groups in a few bins of about the same length."""
    lengths = {id(group): sum(len(functions[name]) for name in group) for group in groups}
    wanted = max(1, min(count, sum(lengths.values()) // PART))
    bins: list[list[str]] = [[] for _ in range(wanted)]
    filled = [0] * wanted
    for group in sorted(groups, key=lambda group: -lengths[id(group)]):
        least = filled.index(min(filled))
        bins[least] += group
        filled[least] += lengths[id(group)]
    return [bin_ for bin_ in bins if bin_]


def _written(found: _Text, uses: Mapping[str, set[str]], own: list[str]) -> str:
    """A module of some functions, with what they need."""
    needed = _needed(own, found, uses)
    lines = list(found.head)
    for table in (found.constants, found.variables, found.declared):
        lines += [line for name, line in table.items() if name in needed]
    inside = set(own)
    for name, body in found.functions.items():
        if name in inside:
            # Another module may call it.
            lines.append(body.replace("define internal ", "define ", 1))
        elif name in needed and name in found.inlined:
            lines.append(body)
        elif name in needed:
            head = body.split("\n", 1)[0]
            lines.append(re.sub("^define (internal )?", "declare ", head))
    return "\n".join([*lines, *found.metadata, ""])
