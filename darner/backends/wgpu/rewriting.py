"""Accesses of buffers in the text of a shader, written over: ``name[index]`` read, written, or passed to an atomic function.

>>> rewritten("let x = operand1[i + operand2[j]];", {"operand2": Shelf("shelf0", 64)})
'let x = operand1[i + shelf0[u32(j) + 64u]];'
>>> rewritten("a[i][2] = a[j].x + 1.0f;", {"a": Windows("a", "vec4<f32>", 1024, 2)})
'a_put_part(u32(i), u32(2), a_at(u32(j)).x + 1.0f);'
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...graph.errors import InternalError
from .access import Shelf, Windows

OPEN, CLOSED = "([{", ")]}"
PARTS = "xyzw"
ASSIGNED = re.compile(r"\s*([-+*/&|^%]|<<|>>)?=(?!=)\s*")
PART = re.compile(r"\.([xyzw])(?!\w)")
ATOMIC = re.compile(r"\b(atomic(?:Load|Store|Add|Sub|Max|Min|And|Or|Xor|Exchange))\(\s*&\s*$")


def rewritten(text: str, ways: Mapping[str, Shelf | Windows]) -> str:
    """A text with every access of some buffers written in another way."""
    if not ways:
        return text
    # Longer names first: of two that begin alike, the whole one is meant.
    names = "|".join(sorted(map(re.escape, ways), key=len, reverse=True))
    return _Rewriter(re.compile(rf"(?<![\w.])({names})(?!\w)"), ways).all(text)


class _Rewriter:
    def __init__(self, found: re.Pattern[str], ways: Mapping[str, Shelf | Windows]) -> None:
        self.found = found
        self.ways = ways

    def all(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        while match := self.found.search(text, at):
            name, start = match[1], match.end()
            if text[start : start + 1] != "[":
                raise InternalError(f"a shader has '{name}' other than as '{name}[index]'")
            end = _end(text, start)
            index = f"u32({self.all(text[start + 1 : end - 1])})"
            before, way = text[at : match.start()], self.ways[name]
            if isinstance(way, Shelf):
                parts += [before, f"{way.name}[{index} + {way.start}u]"]
                at = end
            else:
                at = self._window(way, index, before, text, end, parts)
        return "".join([*parts, text[at:]])

    def _window(
        self, way: Windows, index: str, before: str, text: str, end: int, parts: list[str]
    ) -> int:
        """One access of a buffer in windows; returns from where on the text is as it was."""
        if way.item.startswith("atomic"):
            called = ATOMIC.search(before)
            if called is None:
                raise InternalError(f"a shader has '{way.name}' other than in an atomic function")
            way.atomics.add(called[1])
            parts += [before[: called.start()], f"{way.name}_{called[1]}({index}"]
            return end
        part, after = "", end
        if text[end : end + 1] == "[":
            after = _end(text, end)
            part = self.all(text[end + 1 : after - 1])
        elif letter := PART.match(text, end):
            after, part = letter.end(), str(PARTS.index(letter[1]))
        assigned = ASSIGNED.match(text, after)
        read = f"{way.name}_at({index})"
        if assigned is None:
            parts += [before, read]
            return end
        stop = text.index(";", assigned.end())
        value = self.all(text[assigned.end() : stop])
        if assigned[1]:
            old = f"{read}[u32({part})]" if part else read
            value = f"{old} {assigned[1]} ({value})"
        call = f"put_part({index}, u32({part}), {value})" if part else f"put({index}, {value})"
        parts += [before, f"{way.name}_{call}"]
        return stop


def _end(text: str, start: int) -> int:
    """The place after the bracket that closes the one at ``start``."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in OPEN:
            depth += 1
        elif text[at] in CLOSED:
            depth -= 1
            if not depth:
                return at + 1
    raise InternalError("a shader has a bracket that is not closed")
