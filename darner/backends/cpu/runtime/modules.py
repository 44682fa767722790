"""A module of LLVM IR as several, which are compiled side by side and linked again when they are loaded.

Functions that are never inlined, such as the tiles of products, are compiled once, whoever calls them. Those that always are inlined are copied to where they
are called, and so are constants; functions that share a variable stay together. A module is cut while it is being written: what is there already is compiled
meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ....graph.errors import InternalError

_NAME = re.compile(r'@"((?:[^"\\]|\\.)*)"')
_INLINED = "alwaysinline"


PART = 60_000
"""Characters of IR that are worth a module of their own: they take a tenth of a second to compile."""

WRITTEN_OUT = ("darner.tile.", "darner.pack.")
"""How the names of functions begin that are vectors throughout: LLVM's optimiser takes long over their shuffles, and makes them no faster."""


@dataclass
class _Text:
    """What a module's text consists of, by name."""

    metadata: dict[str, None] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    inlined: set[str] = field(default_factory=set)
    uses: dict[str, set[str]] = field(default_factory=dict)


class Parts:
    """A module that is given as it is written, and taken as modules that are it together.

    Args:
        optimised: the functions on which LLVM's optimiser is to run; what only they call goes with them, unless it is ``WRITTEN_OUT``.

    >>> parts = Parts(["a"])
    >>> parts.add('''
    ... define void @"a"()
    ... {
    ...   call void @"tile"()
    ...   ret void
    ... }
    ... define internal void @"tile"() noinline
    ... {
    ...   ret void
    ... }
    ... ''')
    >>> [(part.count("define"), passes) for part, passes in parts.taken()]
    [(2, True)]
    """

    def __init__(self, optimised: Collection[str]) -> None:
        self._optimised = optimised
        self._found = _Text()
        self._taken: set[str] = set()
        self._names: dict[bytes, str] = {}
        self.waiting = 0
        """Characters of IR that were added and not taken yet."""

    def add(self, text: str) -> None:
        """Whole functions, variables and declarations, as llvmlite writes them."""
        for name, body in _read(text, self._found).items():
            same = name
            if body.startswith("define void "):
                # Two specs may be the same code, as a product of a tensor and one of the same tensor reshaped.
                digest = hashlib.sha256(body.replace(f'@"{name}"', "").encode()).digest()
                same = self._names.setdefault(digest, name)
            body = body if same == name else _jump(body, same)
            self._found.functions[name] = body
            self.waiting += len(body)

    def taken(self) -> list[tuple[str, bool]]:
        """Modules of what was added since the last time, and whether LLVM's optimiser is to run on each; all that it calls was added."""
        found, self.waiting = self._found, 0
        uses = found.uses
        known = {*found.functions, *found.declared, *found.constants, *found.variables}
        new = {name: found.functions[name] for name in found.functions if name not in self._taken}
        for name, body in new.items():
            uses[name] = (set(_NAME.findall(body)) - {name}) & known
        open_ = [name for name in new if name not in self._optimised and _is_open(found, name)]
        plain = _reachable(open_, uses)
        plain.update(name for name in new if name.startswith(WRITTEN_OUT))
        chosen: dict[bool, list[str]] = {False: [], True: []}
        for group in _groups(found, new):
            chosen[plain.isdisjoint(group)] += group
        made = [(_written(found, names), passes) for passes, names in chosen.items() if names]
        self._forget(new)
        return made

    def _forget(self, taken: Collection[str]) -> None:
        """Of functions that are in a module, keep what later ones need: the head, or all where it is inlined."""
        found = self._found
        shared = _needed(taken, found) & found.variables.keys()
        if not shared.isdisjoint(self._taken):
            raise InternalError(f"functions of two parts share {', '.join(sorted(shared))}")
        self._taken.update(taken, shared)
        for name in taken:
            if name not in found.inlined:
                found.functions[name] = found.functions[name].split("\n", 1)[0]


def _read(text: str, found: _Text) -> dict[str, str]:
    """Sort what a text consists of into what was found before; its functions are returned."""
    functions = {}
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith("define "):
            name, body = _name(line), [line]
            for more in lines:
                body.append(more)
                if more == "}":
                    break
            functions[name] = "\n".join(body)
            if _INLINED in line.split():
                found.inlined.add(name)
        elif line.startswith("declare "):
            found.declared[_name(line)] = line
        elif line.startswith("@"):
            name, kind = _name(line), line.split("=", 1)[1].split()
            table = found.constants if "constant" in kind[:4] else found.variables
            table[name] = line
        elif line.startswith("!"):
            found.metadata[line] = None
    return functions


def _jump(body: str, target: str) -> str:
    """A function that calls another one of its kind and does nothing else."""
    head = body.split("\n", 1)[0]
    arguments = head[head.index("(") : head.index(")") + 1]
    return f'{head}\n{{\n  tail call void @"{target}"{arguments}\n  ret void\n}}'


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


def _needed(names: Iterable[str], found: _Text) -> set[str]:
    """What is inlined into these functions, and whatever they and it name."""
    result: set[str] = set()
    stack = list(names)
    while stack:
        for name in found.uses[stack.pop()] - result:
            result.add(name)
            if name in found.inlined:
                stack.append(name)
    return result


def _groups(found: _Text, names: Iterable[str]) -> list[list[str]]:
    """Functions that have to be in one module; those that are inlined are left out."""
    group_of: dict[str, list[str]] = {}
    owner: dict[str, list[str]] = {}
    for name in names:
        if name in found.inlined:
            continue
        group = group_of[name] = [name]
        for variable in sorted(_needed([name], found) & found.variables.keys()):
            other = owner.setdefault(variable, group)
            if other is not group:
                other += group
                for member in group:
                    group_of[member] = other
                owner = {key: other if value is group else value for key, value in owner.items()}
                group = other
    return list({id(group): group for group in group_of.values()}.values())


def _written(found: _Text, own: list[str]) -> str:
    """A module of some functions, with what they need."""
    needed = _needed(own, found)
    lines = []
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
