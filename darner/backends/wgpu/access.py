"""Reads and writes of buffers that a dispatch has bound: how each is written depends on what else is bound.

A buffer is bound by itself, in several windows where it has more bytes than one binding shows, or as a part of another (a shelf) where there are more buffers than bindings. That is known only
when a kernel is written to its end, so a listing keeps an ``Access`` for each, and its text is made last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .expressions import PLAIN, Text


@dataclass(frozen=True)
class Shelf:
    """A buffer that is a part of another: of ``name``, from item ``start`` on."""

    name: str
    start: int


@dataclass
class Windows:
    """A buffer of which each binding shows ``size`` items.

    Attributes:
        name: what its bindings, ``name_0`` and so on, and functions are called.
        item: the type of its items.
        size: of a window, in items.
        count: windows.
        atomics: the atomic functions that are called for it.
    """

    name: str
    item: str
    size: int
    count: int
    atomics: set[str] = field(default_factory=set)

    def functions(self) -> str:
        """What reads and writes items, whichever window they are in."""
        if self.item.startswith("atomic"):
            return "".join(self._atomic(name) for name in sorted(self.atomics))
        item = self.item
        found = self._function("at", "", f"-> {item} ", "return {0};")
        found += self._function("put", f", value: {item}", "", "{0} = value; return;")
        if item.startswith("vec"):
            part = f", part: u32, value: {item[5:-1]}"
            found += self._function("put_part", part, "", "{0}[part] = value; return;")
        return found

    def _atomic(self, name: str) -> str:
        if name == "atomicLoad":
            return self._function(name, "", "-> u32 ", "return atomicLoad(&{0});")
        if name == "atomicStore":
            return self._function(name, ", value: u32", "", "atomicStore(&{0}, value); return;")
        return self._function(name, ", value: u32", "-> u32 ", f"return {name}(&{{0}}, value);")

    def _function(self, name: str, arguments: str, result: str, act: str) -> str:
        lines = [f"fn {self.name}_{name}(i: u32{arguments}) {result}{{\n"]
        for k in range(self.count):
            done = act.format(f"{self.name}_{k}[i - {k * self.size}u]")
            last = k == self.count - 1
            lines.append(
                f"  {done}\n" if last else f"  if (i < {(k + 1) * self.size}u) {{ {done} }}\n"
            )
        return "".join([*lines, "}\n"])


Ways: TypeAlias = Mapping[str, Shelf | Windows]
"""How buffers are bound that are not bound by themselves, by their names."""


@dataclass(frozen=True)
class Access:
    """One read or write of a buffer.

    Attributes:
        memory: the buffer's name.
        index: of the item.
        part: of the item, where it is a vector of which one part is meant.
        value: what is written; empty where it is read.
        name: of what is read.
        op: an atomic function's name, where it is one.
        indent: spaces before it.
    """

    memory: str
    index: Text
    part: str = ""
    value: str = ""
    name: str = ""
    op: str = ""
    indent: str = ""

    def text(self, ways: Ways) -> str:
        """The statement."""
        return f"{self.indent}{self._statement(ways)}"

    def _statement(self, ways: Ways) -> str:
        way, index = ways.get(self.memory), self.index.raw
        if isinstance(way, Windows):
            return self._windowed(way, index)
        place = f"{self.memory}[{index}]"
        if way is not None:
            moved = self.index
            if way.start:
                plain = Text(moved.type, moved.raw, PLAIN, moved.level)
                moved = PLAIN.operate("+", plain, way.start)
            place = f"{way.name}[{moved.raw}]"
        if self.op:
            value = f", {self.value}" if self.value else ""
            call = f"{self.op}(&{place}{value})"
            return f"let {self.name} = {call};" if self.name else f"{call};"
        if self.part:
            place += f"[{self.part}]"
        return f"let {self.name} = {place};" if self.name else f"{place} = {self.value};"

    def _windowed(self, way: Windows, index: str) -> str:
        if self.op:
            way.atomics.add(self.op)
            value = f", {self.value}" if self.value else ""
            call = f"{way.name}_{self.op}({index}{value})"
            return f"let {self.name} = {call};" if self.name else f"{call};"
        if self.name:
            part = f"[{self.part}]" if self.part else ""
            return f"let {self.name} = {way.name}_at({index}){part};"
        if self.part:
            return f"{way.name}_put_part({index}, {self.part}, {self.value});"
        return f"{way.name}_put({index}, {self.value});"


Line: TypeAlias = str | Access
"""A line of a shader: text, or what becomes text when it is known how buffers are bound."""
