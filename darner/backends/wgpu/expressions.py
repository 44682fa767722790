"""Expressions of a shader, that have parentheses only where WGSL needs them: what the values of the SIMT builder are here."""

from __future__ import annotations

from ...codegen.simt.builder import Operand, Type, Value, Variable
from ...graph.errors import InternalError
from .spelling import element, integer, number, spelled, vector, width

ATOM, UNARY, PRODUCT, SUM, SHIFT, RELATION, LOWEST = range(7, 0, -1)
"""How tightly an expression holds together: names and calls most of all."""
CHAINS = {"&": -1, "|": -2, "^": -3, "&&": -4, "||": -5}
"""Operators that WGSL mixes with no others: each has a level of its own, below all of these."""
BINDS = {
    "*": (PRODUCT, PRODUCT, UNARY),
    "/": (PRODUCT, PRODUCT, UNARY),
    "%": (PRODUCT, PRODUCT, UNARY),
    "+": (SUM, SUM, PRODUCT),
    "-": (SUM, SUM, PRODUCT),
    "<<": (SHIFT, UNARY, UNARY),
    ">>": (SHIFT, UNARY, UNARY),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), (RELATION, SUM, SUM)),
    "&": (CHAINS["&"], UNARY, UNARY),
    "|": (CHAINS["|"], UNARY, UNARY),
    "^": (CHAINS["^"], UNARY, UNARY),
    "&&": (CHAINS["&&"], RELATION, RELATION),
    "||": (CHAINS["||"], RELATION, RELATION),
}
"""The level of what an operator makes, and those from which on its operands need no parentheses."""
COMPARES = frozenset({"<", "<=", ">", ">=", "==", "!="})
OF_VECTORS = COMPARES | {"<<", ">>", "&", "|", "^"}
"""Operators that WGSL has of two vectors, and not of a vector and a scalar."""


class Text(Value):
    """A value of a shader: its IR type, and an expression that costs nothing to repeat.

    Attributes:
        raw: the expression.
        level: how tightly it holds together.
        reads: the variables that it reads, as they were; see ``Cell``.
    """

    __slots__ = ("level", "raw", "reads")

    def __init__(
        self,
        type_: Type,
        text: str,
        builder: Expressions | None = None,
        level: int = ATOM,
        signed: bool = False,
        reads: tuple[Read, ...] = (),
    ) -> None:
        super().__init__(builder or PLAIN, type_, signed)
        self.raw = text
        self.level = level
        self.reads = reads

    def __repr__(self) -> str:
        return f"<{self.type} {self.raw}>"

    def __str__(self) -> str:
        return self.text

    @property
    def whole(self) -> str:
        """The expression, where anything may stand."""
        for read in self.reads:
            read.check()
        return self.raw

    @property
    def text(self) -> str:
        """The expression, where a name may stand."""
        return self.whole if self.level == ATOM else f"({self.whole})"

    def above(self, level: int) -> str:
        """The expression, where what holds together as tightly as that may stand."""
        return self.whole if self.level >= level else f"({self.whole})"


class Cell(Text, Variable):
    """A variable of a shader.

    WGSL reads a variable where the expression stands, not where it was written down in Python. So an expression of a variable that was set since, or is set in a loop that it
    comes from outside of, is an error.

    Attributes:
        owner: what writes its shader.
        version: how often it was set.
        used: the loops in which an expression is used that was made before them.
    """

    __slots__ = ("owner", "used", "version")

    def __init__(self, type_: Type, text: str, builder: Expressions, signed: bool = False) -> None:
        super().__init__(type_, text, builder, signed=signed)
        self.owner = builder
        self.version = 0
        self.used: set[int] = set()

    def change(self) -> None:
        """It is set."""
        if not self.used.isdisjoint(self.owner.loops):
            raise InternalError(
                f"'{self.raw}' is set in a loop that uses an expression of it from before: that needs a name"
            )
        self.version += 1


class Read:
    """A variable as it was when an expression was made."""

    __slots__ = ("cell", "loops", "version")

    def __init__(self, cell: Cell) -> None:
        self.cell, self.version = cell, cell.version
        self.loops = tuple(cell.owner.loops)

    def check(self) -> None:
        """See that it still is so."""
        cell = self.cell
        if cell.version != self.version:
            raise InternalError(
                f"an expression of '{cell.raw}' is used after that was set: it needs a name"
            )
        cell.used.update(loop for loop in cell.owner.loops if loop not in self.loops)


def reads_of(*values: Operand) -> tuple[Read, ...]:
    """The variables that some values read."""
    found: tuple[Read, ...] = ()
    for value in values:
        if isinstance(value, Cell):
            found = (*found, Read(value))
        elif isinstance(value, Text):
            found = (*found, *value.reads)
    return found


class Expressions:
    """Operators of values, as WGSL."""

    loops: tuple[int, ...] | list[int] = ()

    def literal(self, value: Operand, like: Text) -> Text:
        """Another operand: a value, a constant, or a number of Python in the type of ``like``."""
        if isinstance(value, Text):
            return value
        constant = getattr(value, "constant", None)
        if constant is None:
            if not isinstance(value, int | float):
                raise InternalError(f"{value!r} is no value of a shader")
            constant = value
        return Text(
            element(like.type),
            self.constant_text(constant, element(like.type), like.signed),
            self,
            signed=like.signed,
        )

    def constant_text(self, value: float, type_: Type, signed: bool = False) -> str:
        """A constant as WGSL."""
        return number(value, type_, signed)

    def operate(self, sign: str, a: Operand, b: Operand) -> Text:
        """``a sign b``."""
        if isinstance(a, Text):
            known = b if type(b) is int else None
            if (
                known is not None
                and (same := _unchanged(self, sign, a, known, right=True)) is not None
            ):
                return same
            left, right = a, self._distance(b) if sign in ("<<", ">>") else self.literal(b, a)
        else:
            if type(a) is int and (same := _unchanged(self, sign, b, a, right=False)) is not None:
                return same
            left, right = self.literal(a, b), b
        type_ = left.type if left.width >= right.width else right.type
        if sign in OF_VECTORS and left.width != right.width:
            left, right = (self._spread(x, type_) for x in (left, right))
        truths = width(element(type_)) == 1
        if truths and left.width == 1 and sign in ("&", "|"):
            sign *= 2
        elif truths and sign == "^":
            sign = "!="
        level, least_left, least_right = BINDS["/" if sign == "//" else sign]
        before = left.whole if left.level == level and sign in CHAINS else left.above(least_left)
        text = f"{before} {'/' if sign == '//' else sign} {right.above(least_right)}"
        if sign in COMPARES:
            type_ = integer(1) if left.width == 1 else vector(integer(1), left.width)
        return Text(type_, text, self, level, left.signed, reads_of(left, right))

    def _distance(self, value: Operand) -> Text:
        """How far bits are moved: a u32, whatever is moved."""
        word = integer(32)
        if not isinstance(value, Text):
            return self.literal(value, Text(word, "", self))
        if width(element(value.type)) == 64:
            return Text(word, f"u32({value.whole})", self, reads=reads_of(value))
        return value

    def _spread(self, value: Text, type_: Type) -> Text:
        if value.width > 1:
            return value
        kind = vector(element(value.type), type_.count)
        text = f"{spelled(kind, value.signed)}({value.whole})"
        return Text(kind, text, self, signed=value.signed, reads=reads_of(value))

    def apply(self, sign: str, a: Operand) -> Text:
        """``-a`` or ``~a``; not ``a``, of truths."""
        if sign == "~" and width(element(a.type)) == 1:
            sign = "!"
        text = f"{sign}{a.above(ATOM)}"
        return Text(a.type, text, self, UNARY, a.signed, reads_of(a))

    def part(self, a: Operand, which: Operand) -> Text:
        """A part of a vector."""
        if a.width == 1:
            raise InternalError(f"{a!r} is no vector")
        at = "xyzw"[which] if isinstance(which, int) else ""
        text = f"{a.text}.{at}" if at else f"{a.text}[{which.whole}]"
        return Text(element(a.type), text, self, signed=a.signed, reads=reads_of(a, which))


def _unchanged(
    builder: Expressions, sign: str, value: Text, known: int, *, right: bool
) -> Text | None:
    """What an operation with a known integer leaves of a value, where that takes no code."""
    if width(value.type) < 32:
        return None
    if known == 0 and (sign in "+|^" or (right and sign in ("-", "<<", ">>"))):
        return value
    if known == 1 and (sign == "*" or (right and sign == "//")):
        return value
    if (known == 0 and sign in "*&") or (known == 1 and right and sign == "%"):
        return Text(value.type, number(0, value.type, value.signed), builder, signed=value.signed)
    return None


PLAIN = Expressions()
"""What continues expressions of values that belong to no shader."""
