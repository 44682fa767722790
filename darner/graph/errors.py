"""What darner raises, and how an error finds the user's line.

Every message has one form, so that a reader knows where to look:

    matmul 'ffn.up': x is (32, 784) but w is (512, 128): inner sizes 784 and 512 differ (train.py:41)

A rule raises one of the classes below with the last part only ("inner sizes 784 and 512 differ");
the code that ran the rule knows the op, the label, the operands and the line, and adds them once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from types import FrameType, TracebackType
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Frames that are never the user's: darner's own, and those that run its context managers.
_INSIDE = (PACKAGE, contextlib.__file__)


@dataclass(frozen=True, slots=True)
class Source:
    """A place in the user's own code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


def caller() -> Source | None:
    """The nearest frame outside darner: the line the user would look at."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_INSIDE):
            return Source(file, frame.f_lineno)
        frame = frame.f_back
    return None


class DarnerError(Exception):
    """Base of everything darner raises on purpose.

    Attributes:
        rule: what was broken, without its context.
        op: the op or builder that was called, when there is one.
        label: the node's label, when it has one.
        operands: the operands as the message shows them.
        source: the user's file and line.
        hint: the likely fix, when there is one.
    """

    def __init__(self, rule: str, *, hint: str | None = None) -> None:
        super().__init__(rule)
        self.rule = rule
        self.hint = hint
        self.op: str | None = None
        self.label: str | None = None
        self.operands: str = ""
        self.source: Source | None = None

    def located(
        self, op: str, label: str | None, operands: str, source: Source | None
    ) -> DarnerError:
        """Add the context of the call that failed. The innermost call to do so is kept."""
        if self.op is None:
            self.op, self.label, self.operands = op, label, operands
        if self.label is None:
            self.label = label
        if self.source is None:
            self.source = source
        return self

    def called(self, op: str, operands: str, *, builtin: bool) -> DarnerError:
        """Put the function that the user called in place of the op in it that failed.

        Of darner's own that is all a user needs; a function that was declared elsewhere has its author among its users.
        """
        if not builtin:
            self.within("it")
        self.op, self.operands = op, operands
        return self

    def within(self, part: str) -> DarnerError:
        """Say in which part of a call an op failed, before the call itself adds its context."""
        parts = [text for text in (self.op, self.operands, self.rule) if text]
        self.rule = f"in {part}, {': '.join(parts)}"
        self.args = (self.rule,)
        self.op, self.operands = None, ""
        return self

    def in_expansion_of(
        self, op: str, label: str | None, operands: str, source: Source | None
    ) -> DarnerError:
        """Put the context of a composite in place of that of the part of it that failed."""
        parts = [part for part in (self.op, self.operands, self.rule) if part]
        self.rule = f"in its expansion, {': '.join(parts)}" if self.op else self.rule
        self.args = (self.rule,)
        self.op, self.label, self.operands, self.source = op, label, operands, source
        return self

    def __str__(self) -> str:
        head = "" if self.op is None else self.op
        if self.label:
            head = f"{head} '{self.label}'" if head else f"'{self.label}'"
        parts = [part for part in (head, self.operands, self.rule) if part]
        text = ": ".join(parts)
        if self.hint:
            text += f"; {self.hint}"
        if self.source is not None:
            text += f" ({self.source})"
        return text


LESS_MEMORY = "a smaller batch, remat, or a type of fewer bits such as bf16 takes less"
"""The hint of whoever finds no memory."""


class Calling:
    """Adds the method and the user's line to errors: ``with Calling("set_outputs"): ...``."""

    __slots__ = ("_method",)

    def __init__(self, method: str) -> None:
        self._method = method

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if isinstance(error, DarnerError):
            error.located(self._method, None, "", caller())
        elif isinstance(error, MemoryError):
            # NumPy's says how much, and for an array of which shape.
            fault = OutOfMemoryError(str(error) or "there is no memory left", hint=LESS_MEMORY)
            raise fault.located(self._method, None, "", caller()) from error


class ShapeError(DarnerError, ValueError):
    """Sizes or ranks that do not fit."""


class DTypeError(DarnerError, TypeError):
    """An element type the op cannot take, or two with no common type."""


class ArgumentError(DarnerError, ValueError):
    """A wrong attribute, axis, number of arguments or keyword."""


class NameTakenError(DarnerError, ValueError):
    """A second leaf with a name already in use."""


class UnknownNameError(DarnerError, KeyError):
    """A name (input, parameter, op, symbol, node id) that nothing has."""

    __str__ = DarnerError.__str__


class MissingNameError(DarnerError, AttributeError):
    """An attribute that nothing has. Tools look for attributes all the time, so its hint is found when it is read."""

    def __init__(self, rule: str, find_hint: Callable[[], str | None] | None = None) -> None:
        self._find_hint = find_hint
        super().__init__(rule)

    @property
    def hint(self) -> str | None:
        """The likely fix, when there is one."""
        return None if self._find_hint is None else self._find_hint()

    @hint.setter
    def hint(self, value: str | None) -> None:
        if value is not None:
            self._find_hint = partial(str, value)


class CallError(ArgumentError, TypeError):
    """A call whose arguments do not fit the signature of a layer or an optimizer."""


class VerifyError(DarnerError, ValueError):
    """A graph that breaks a rule of its stage."""


class LowerError(ArgumentError):
    """A module that cannot be taken to the stage that was asked for."""


class FormatError(DarnerError, ValueError):
    """Text or JSON that is not a darner graph."""


class RunError(DarnerError, ValueError):
    """Values that do not fit the graph being run, or that an op cannot compute."""


class DeviceLostError(RunError):
    """A GPU is gone: its driver was reset or updated, or it was taken out. What it held is lost; what was saved is not."""


class OutOfMemoryError(DarnerError, MemoryError):
    """There is not enough memory for what was asked for. Nothing has changed."""


class DeviceMemoryError(RunError, OutOfMemoryError):
    """A GPU has not enough memory for a buffer."""


class ForkError(DarnerError, RuntimeError):
    """A forked process uses what only the process that it was forked from has: threads, or a device."""


class UnsupportedError(DarnerError):
    """A plan asks for something that a backend has no code for."""


class MissingPackageError(DarnerError, ImportError):
    """A package is not installed that only a part of darner needs."""


class InternalError(DarnerError, RuntimeError):
    """A fault in darner or in a declared op, never in the user's model."""


def optional(module: str, extra: str, what: str) -> Any:
    """A module of an optional package, or an error that says how to get it.

    >>> optional("there_is_no_such_package", "text", "a tokenizer")
    Traceback (most recent call last):
    darner.graph.errors.MissingPackageError: a tokenizer takes the package 'there_is_no_such_package', which is not installed; pip install 'darner[text]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} takes the package '{module.partition('.')[0]}', which is not installed",
            hint=f"pip install 'darner[{extra}]'",
        ) from error


_LONG, _MANY = 120, 1000
"""Comparing names takes time: that of the square of their lengths, and that of all of them."""


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming what the user probably meant, or None; of very many or very long names only some are looked at."""
    if len(name) > _LONG:
        return None
    some = [one for one in islice(known, _MANY) if len(one) <= _LONG]
    matches = get_close_matches(name, some, n=1, cutoff=0.6)
    return f"did you mean '{matches[0]}'?" if matches else None


def nearest(name: str, known: Iterable[str], begins: str = "it has") -> str:
    """A hint for an unknown name: the one probably meant, else what there is to choose from."""
    names = list(known)
    return did_you_mean(name, names) or f"{begins} {listed(names)}"


def listed(names: Iterable[str], most: int = 8, *, count: int | None = None) -> str:
    """Names for a reader: the first few, and how many more there are; ``count`` is how many in all, where these are the first.

    >>> listed(["a", "b"]), listed("abcdef", most=3), listed([])
    ('a, b', 'a, b, c and 3 more', 'none')
    """
    found = list(names)
    rest = (len(found) if count is None else count) - most
    shown = ", ".join(found[:most]) or "none"
    return shown if rest <= 0 else f"{shown} and {rest} more"
