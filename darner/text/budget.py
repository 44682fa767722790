"""What a chat template may cost: steps, and characters, both counted, so that the same template always ends in the same way.

A template comes with a model, and may be made to run for ever, or to fill the memory. Jinja's sandbox keeps it from the machine
but not from that. So everything that can take long is charged here before it is done: each turn of a loop and each call of a
macro as many steps as its body has nodes, and whatever looks at all of a value as many as there are elements in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

STEPS = 1_000_000
"""Steps of any template, however little it is given. A usual one takes a few hundred for a message."""
CHARACTERS = 4 << 20
"""Characters that any template may write."""
BITS = 1 << 14
"""Of whole numbers."""
DEPTH = 64
"""How deep lists and tables stand in one another."""
_PER_ELEMENT, _PER_CHARACTER = 200, 16
"""What is added for each element and each character of what a template is given."""
_DIRECTIVE = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")
_FIELD = re.compile(r"\{[^{}]*:([^{}]*)\}")
_DIGITS = re.compile(r"\d+")


class TooMuchError(Exception):
    """A template asks for more than a chat takes."""


class Budget:
    """The steps and characters that are left to a template.

    >>> budget = Budget({"messages": []})
    >>> budget.power(2, 10**9)
    Traceback (most recent call last):
    darner.text.budget.TooMuchError: a number of more than 16,384 bits
    """

    def __init__(self, given: Any) -> None:
        self.steps, self.characters = 1 << 60, 1 << 60
        elements, characters = self.extent(given)
        self.steps = self._most = STEPS + _PER_ELEMENT * elements + _PER_CHARACTER * characters
        self.characters = self._longest = CHARACTERS + _PER_CHARACTER * characters

    # ------------------------------------------------------------- charging

    def step(self, count: int) -> bool:
        """Take so many steps."""
        self.steps -= count
        if self.steps < 0:
            raise TooMuchError(f"more than {self._most:,} steps")
        return True

    def text(self, length: int) -> None:
        """Write so many characters."""
        self.characters -= length
        self.step(1 + (length >> 6))
        if self.characters < 0:
            raise TooMuchError(f"more than {self._longest:,} characters")

    def make(self, length: int) -> None:
        """Make a text of so many characters, or a list of so many elements."""
        if length > self._longest:
            raise TooMuchError(f"a text or a list of more than {self._longest:,} elements")
        self.step(1 + (length >> 4))

    def number(self, bits: int) -> None:
        """Make a whole number of so many bits."""
        if bits > BITS:
            raise TooMuchError(f"a number of more than {BITS:,} bits")

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """Values, each for some steps."""
        for value in values:
            self.step(8)
            yield value

    def look(self, value: Any) -> Any:
        """Look at the whole of a value: compare it, sort it, write it as text. It is returned."""
        kind = type(value)
        if kind is str:
            self.step(1 + (len(value) >> 6))
        elif kind is int or kind is bool or value is None or kind is float:
            self.step(1)
        else:
            self.extent(value)
        return value

    def glance(self, value: Any) -> Any:
        """Look at a value's elements, and not into them: copy it. It is returned."""
        size = len(value) if isinstance(value, str | bytes | list | tuple | Mapping | Set) else 0
        self.step(1 + (size >> 4))
        return value

    def extent(self, value: Any) -> tuple[int, int]:
        """How many elements a value has, and about how many characters as text; what is in it twice counts twice."""
        elements, characters = 0, 0
        # Depth by depth: what is in a list follows behind all that is beside the list.
        level: list[Any] = [value]
        for _ in range(DEPTH):
            below: list[Any] = []
            for item in level:
                if type(item) is str:
                    characters += len(item)
                elif type(item) is list or type(item) is tuple:
                    below += item
                else:
                    more, inside = _looked_into(item)
                    characters += more
                    below += inside
                if len(below) > self.steps:
                    break
            elements += len(level)
            characters += 4 * len(level)
            self.step(2 * len(level))
            level = below
            if not level:
                self.step(characters >> 6)
                return elements, characters
        raise TooMuchError(f"lists and tables more than {DEPTH} deep")

    # ------------------------------------------------------------- what makes large things of small ones

    def result(self, value: Any) -> Any:
        """What a function gave; it is returned."""
        if isinstance(value, str | bytes | list | tuple):
            self.make(len(value))
        elif isinstance(value, int):
            self.number(value.bit_length())
        elif isinstance(value, Iterator):
            return self.counted(value)
        return value

    def add(self, left: Any, right: Any) -> None:
        """``left + right``."""
        if isinstance(left, str | bytes | list | tuple) and hasattr(right, "__len__"):
            self.make(len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            self.number(max(left.bit_length(), right.bit_length()))

    def multiply(self, left: Any, right: Any) -> None:
        """``left * right``."""
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | bytes | list | tuple) and isinstance(other, int):
                self.make(len(one) * max(other, 0))
        if isinstance(left, int) and isinstance(right, int):
            self.number(left.bit_length() + right.bit_length())

    def power(self, left: Any, right: Any) -> None:
        """``left ** right``."""
        if isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
            self.number(left.bit_length() * max(right, 0))

    def percent(self, text: Any, values: Any) -> None:
        """``text % values``."""
        if not isinstance(text, str | bytes):
            return
        found = _DIRECTIVE.findall(str(text))
        if any("*" in pair for pair in found):
            raise TooMuchError("a format whose width is a value")
        self._formatted(len(text), [digits for pair in found for digits in pair], values)

    def format(self, text: str, values: Any) -> None:
        """``text.format(values)``."""
        plain = text.replace("{{", "").replace("}}", "")
        fields = _FIELD.findall(plain)
        if re.search(r"\{[^{}]*\{", plain):
            raise TooMuchError("a format within a format")
        widths = [digits for field in fields for digits in _DIGITS.findall(field)]
        self._formatted(len(text), [*widths, *[""] * plain.count("{")], values)

    def _formatted(self, length: int, widths: list[str], values: Any) -> None:
        if any(len(digits) > 6 for digits in widths):
            raise TooMuchError(f"a format as wide as {max(widths, key=len)[:20]}")
        longest = self.extent(values)[1]
        self.make(length + sum(longest + int(digits or 0) for digits in widths))

    def replaced(self, text: Any, old: Any, new: Any) -> None:
        """``text.replace(old, new)``."""
        if all(isinstance(one, str | bytes) for one in (text, old, new)):
            self.make(len(text))
            self.make(len(text) + text.count(old) * len(new))

    def joined(self, between: Any, values: Any) -> list[Any]:
        """``between.join(values)``; the values are returned, as they may come only once."""
        found = list(values if isinstance(values, Iterator) else self.counted(values))
        size = len(between) if isinstance(between, str | bytes) else 0
        self.make(len(found) * size + self.extent(found)[1])
        return found


def _looked_into(item: Any) -> tuple[int, Iterable[Any]]:
    """About how many characters something takes as text, without what is in it; and what is."""
    if isinstance(item, str | bytes):
        return len(item), ()
    if isinstance(item, int):
        return 2 + item.bit_length() // 3, ()
    if isinstance(item, range):
        return 0, item
    if isinstance(item, Mapping):
        return 0, [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | Set):
        return 0, item
    if type(item).__name__ == "Namespace":  # Jinja's own table
        return 24, getattr(item, "_Namespace__attrs", {}).values()
    return 24, ()
