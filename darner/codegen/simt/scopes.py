"""What every printer of the SIMT builder does alike: scopes, conditions that hold together, and how a variable gets its type."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import reduce
from typing import cast

from ...graph.dtypes import DType
from ...graph.errors import InternalError
from .builder import Operand, Value


class Scopes:
    """A part of a printer; see ``builder.Simt``.

    Attributes:
        scopes: what is entered with every block.
    """

    scopes: list[Callable[[], AbstractContextManager[None]]]

    @abstractmethod
    def constant(self, number: float, dtype: DType, width: int = 1) -> Value:
        """See ``Simt``."""

    @abstractmethod
    def operate(self, sign: str, a: Operand, b: Operand) -> Value:
        """See ``Operators``."""

    @contextmanager
    def scope(self) -> Iterator[None]:
        """See ``Simt``."""
        with ExitStack() as stack:
            for scope in list(self.scopes):
                stack.enter_context(scope())
            yield

    def test_of(self, conditions: Sequence[Operand]) -> Operand:
        """All of the conditions as one; None where there is none, or all are None."""
        left = [condition for condition in conditions if condition is not None]
        return reduce(lambda a, b: self.operate("&", a, b), left) if left else None

    def first_value(self, initial: Operand, dtype: DType | None, width: int) -> Operand:
        """What a variable begins with, as something that has a type."""
        if dtype is not None and not isinstance(initial, Value):
            initial = self.constant(
                cast(float, getattr(initial, "constant", initial)), dtype, width
            )
        if not hasattr(initial, "type"):
            raise InternalError(f"a variable that begins with {initial!r} needs a type")
        return initial
