"""A row of the table: something bad, and the error it must be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from darner import DarnerError


@dataclass(frozen=True)
class Row:
    """Something bad.

    Attributes:
        name: what is wrong, in a few words.
        subject: what it is done to: a name of ``subjects.SUBJECTS``.
        action: does it; a function of the subject.
        error: the class that is raised, or several.
        phrase: words of the error's text.
    """

    name: str
    subject: str
    action: Callable[[Any], Any]
    error: type[BaseException] | tuple[type[BaseException], ...]
    phrase: str


class Table(list[Row]):
    """Rows done to one subject: ``bad = Table("graph")``, and then ``bad("name", action, error, phrase)``."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self.subject = subject

    def __call__(
        self, name: str, action: Callable[[Any], Any], error: Any = DarnerError, phrase: str = ""
    ) -> None:
        """Add a row."""
        self.append(Row(name, self.subject, action, error, phrase))

    def on(self, subject: str) -> "Table":
        """A table of another subject."""
        return Table(subject)
