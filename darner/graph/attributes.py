"""The kinds of arguments an op can declare.

An op is declared by a Python function, and the annotations of its parameters say what each one
is. Operand annotations (``Tensor``, ``Float``, ``Index`` ...) stand for nodes; the others
(``int``, ``Axis``, ``Sizes`` ...) are attributes, kept on the node in one canonical form that can be
hashed, written as JSON and read back.
"""

from __future__ import annotations

import base64
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from . import dtypes
from .data import Data, as_data
from .dims import Dim, SymbolicDim, as_dim, as_shape, bind_dim
from .dtypes import DType
from .errors import ArgumentError, DarnerError, FormatError
from .types import TensorType

if TYPE_CHECKING:
    from .graph import Graph


@dataclass(frozen=True, slots=True)
class Operand:
    """A parameter that is a node.

    Attributes:
        promotes: whether it takes part in finding the common element type.
        lowest: the least kind it may have; promoting operands are cast up to it.
        allows_complex: whether c64 is accepted.
        exact: a kind it must have, without any cast ("int", "bool", "tuple").
    """

    name: str
    promotes: bool = True
    lowest: str = "bool"
    allows_complex: bool = True
    exact: str | None = None


@dataclass(frozen=True, slots=True)
class Attribute:
    """A parameter that is a value stored on the node."""

    name: str
    coerce: Callable[[Any], Any]
    encode: Callable[[Any, Pool], Any]
    decode: Callable[[Any, Pool], Any]
    bind: Callable[[Any, Mapping[str, Dim]], Any] = lambda value, bindings: value
    axes: bool = False
    """True when the value names axes of the first operand; several are a set, kept in ascending order."""


class Pool:
    """Constants and inner graphs met while writing or reading a document, each stored once."""

    def __init__(self) -> None:
        self.data: dict[str, Data] = {}
        self.graphs: dict[str, Graph] = {}
        self.unread: dict[str, Callable[[], Graph]] = {}
        """Inner graphs still to be read, by key."""

    def add_data(self, key: str, document: Any) -> None:
        """Read a stored constant, whose key is the hash of its content."""
        data = Data.from_json(document)
        if data.digest != key:
            raise FormatError(f"constant {key} is damaged: its content is now {data.digest}")
        self.data[key] = data

    def take_data(self, key: str) -> Data:
        """The constant stored under ``key``."""
        if key not in self.data:
            raise FormatError(
                f"constant {key} is not in the document",
                hint="str(graph) leaves large constants out; write graph.to_text()",
            )
        return self.data[key]

    def take_graph(self, key: str) -> Graph:
        """The inner graph stored under ``key``, read now if it has not been."""
        if key in self.unread:
            read = self.unread.pop(key)
            try:
                graph = read().freeze()
            except FormatError as error:
                raise FormatError(f"inner graph {key}: {error}") from error
            if graph.digest() != key:
                raise FormatError(f"inner graph {key} is damaged: it is now {graph.digest()}")
            self.graphs[key] = graph
        if key not in self.graphs:
            raise FormatError(f"inner graph {key} is not in the document")
        return self.graphs[key]


# --------------------------------------------------------------------------- coercions


def _bool(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ArgumentError(f"expected True or False, got {value!r}")


def _int(value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(f"expected an integer, got {value!r}")
    return number


def _float(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool | str) and np.ndim(value) == 0:
            return float(value)
    raise ArgumentError(f"expected a number, got {value!r}")


def as_text(value: Any, what: str = "it", *, empty: bool = True) -> str:
    """Text that can be written to a file, or an error that says ``what`` it was for."""
    if not isinstance(value, str):
        raise ArgumentError(f"{what} must be text, got {value!r}")
    if not value and not empty:
        raise ArgumentError(f"{what} must be non-empty text, got {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"{what} cannot be {value!r}: {error.reason}") from None
    return value


def _str(value: Any) -> str:
    return as_text(value.value if isinstance(value, Enum) else value)


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise ArgumentError(
        f"expected bytes, got {type(value).__name__}",
        hint="text is bytes by .encode(), numbers are by struct.pack" if value else None,
    )


def _write_bytes(value: bytes, pool: Pool) -> str:
    return base64.b64encode(value).decode("ascii")


def _read_bytes(value: object, pool: Pool) -> bytes:
    try:
        return base64.b64decode(str(value).encode("ascii"), validate=True)
    except ValueError:
        raise FormatError(f"expected bytes in base64, got {value!r}") from None


def _name(value: Any) -> str:
    return as_text(value, "a name", empty=False)


def _floats(value: object) -> tuple[float, ...]:
    """Scales: numbers of which there may be one or several."""
    if isinstance(value, Iterable) and not isinstance(value, str) and _is_sequence(value):
        return tuple(_float(item) for item in value)
    return (_float(value),)


def _ints(value: Any) -> tuple[int, ...]:
    """Steps, paddings, axes: numbers that code computes with."""
    items = (value,) if isinstance(value, str) or not _is_sequence(value) else value
    found = tuple(_int(item) for item in items)
    for number in found:
        if not -(1 << 63) <= number < 1 << 63:
            raise ArgumentError(f"{number} does not fit a signed integer of 64 bits")
    return found


def _is_sequence(value: Any) -> bool:
    return hasattr(value, "__iter__") and not (isinstance(value, np.ndarray) and value.ndim == 0)


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    """Padding-like values: (low, high) for each axis; one integer stands for both."""
    pairs = []
    for item in value if _is_sequence(value) else (value,):
        both = _ints(item)
        if len(both) == 1:
            both = both * 2
        if len(both) != 2:
            raise ArgumentError(f"expected (low, high) pairs, got {value!r}")
        pairs.append((both[0], both[1]))
    return tuple(pairs)


def _signed_dim(value: Any) -> Dim:
    """A size, or a negative integer with a meaning of its own (-1 to infer, -2 from the end)."""
    if isinstance(value, str | SymbolicDim):
        return as_dim(value)
    return _int(value)


def _sizes(value: Any) -> tuple[Dim, ...]:
    if isinstance(value, TensorType):
        return value.shape
    if isinstance(value, str) or not _is_sequence(value):
        return (_signed_dim(value),)
    return tuple(_signed_dim(size) for size in value)


def _shape(value: Any) -> tuple[Dim, ...]:
    return value.shape if isinstance(value, TensorType) else as_shape(value)


def _as_is(value: Any, pool: Pool) -> Any:
    return value


def _write_float(value: float, pool: Pool) -> Any:
    """JSON has no infinities and no NaN: these are written as text."""
    return value if math.isfinite(value) else str(value)


def _read_float(value: Any, pool: Pool) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value


def _write_floats(value: tuple[float, ...], pool: Pool) -> list[object]:
    return [_write_float(item, pool) for item in value]


def _read_floats(value: object, pool: Pool) -> object:
    if not isinstance(value, list):
        return value
    return tuple(_read_float(item, pool) for item in value)


def _listed(value: Any, pool: Pool) -> Any:
    return [_listed(item, pool) for item in value] if isinstance(value, tuple) else value


def _tupled(value: Any, pool: Pool) -> Any:
    return tuple(_tupled(item, pool) for item in value) if isinstance(value, list) else value


def _write_dim(value: Any, pool: Pool) -> Any:
    if isinstance(value, tuple):
        return [_write_dim(item, pool) for item in value]
    return str(value) if isinstance(value, SymbolicDim) else value


def _read_dim(value: Any, pool: Pool) -> Any:
    if isinstance(value, list):
        return tuple(_read_dim(item, pool) for item in value)
    return as_dim(value) if isinstance(value, str) else value


def _bind_dims(value: Any, bindings: Mapping[str, Dim]) -> Any:
    if isinstance(value, tuple):
        return tuple(_bind_dims(item, bindings) for item in value)
    return bind_dim(value, bindings) if isinstance(value, SymbolicDim) else value


def _write_data(value: Data, pool: Pool) -> Any:
    """Up to 16 finite elements stand in the text; other constants go to the document's table."""
    if value.array.size <= 16 and (literal := value.literal()) is not None:
        return literal
    pool.data[value.digest] = value
    return {"constant": value.digest}


def _read_data(value: Any, pool: Pool) -> Any:
    if isinstance(value, dict):
        return pool.take_data(str(value.get("constant")))
    return value  # a literal: the node's own type says how to read it


def _graph(value: Any) -> Any:
    from .graph import Graph

    if not isinstance(value, Graph):
        raise ArgumentError(f"expected a Graph, got {type(value).__name__}")
    return value.freeze()


def _write_graph(value: Any, pool: Pool) -> Any:
    key = value.digest()
    pool.graphs[key] = value
    return {"graph": key}


def _read_graph(value: Any, pool: Pool) -> Any:
    if not isinstance(value, dict):
        raise FormatError(f"expected a reference to an inner graph, got {value!r}")
    return pool.take_graph(str(value.get("graph")))


def _bind_graph(value: Any, bindings: Mapping[str, Dim]) -> Any:
    from .edit import bind_graph

    return bind_graph(value, bindings).freeze()


def _write_dtype(value: DType, pool: Pool) -> str:
    return value.name


BOOL = Attribute("bool", _bool, _as_is, _as_is)
INT = Attribute("int", _int, _as_is, _as_is)
FLOAT = Attribute("float", _float, _write_float, _read_float)
BYTES = Attribute("bytes", _bytes, _write_bytes, _read_bytes)
FLOATS = Attribute("numbers", _floats, _write_floats, _read_floats)
TEXT = Attribute("text", _str, _as_is, _as_is)
NAME = Attribute("name", _name, _as_is, _as_is)
INTS = Attribute("integers", _ints, _listed, _tupled)
PAIRS = Attribute("(low, high) pairs", _pairs, _listed, _tupled)
DTYPE = Attribute(
    "element type", dtypes.dtype, _write_dtype, lambda value, pool: dtypes.dtype(value)
)
SIZE = Attribute("size", _signed_dim, _write_dim, _read_dim, _bind_dims)
SIZES = Attribute("sizes", _sizes, _write_dim, _read_dim, _bind_dims)
SHAPE = Attribute("shape", _shape, _write_dim, _read_dim, _bind_dims)
AXIS = Attribute("axis", _int, _as_is, _as_is, axes=True)
AXES = Attribute("axes", _ints, _listed, _tupled, axes=True)
DATA = Attribute("values", as_data, _write_data, _read_data)
GRAPH = Attribute("graph", _graph, _write_graph, _read_graph, _bind_graph)

# --------------------------------------------------------------------------- annotations
# Operands. The static type is what a shape rule receives.

Tensor = Annotated[TensorType, Operand("tensor")]
Number = Annotated[TensorType, Operand("number", lowest="int")]
Real = Annotated[TensorType, Operand("real", allows_complex=False)]
RealNumber = Annotated[TensorType, Operand("real number", lowest="int", allows_complex=False)]
Float = Annotated[TensorType, Operand("float", lowest="float", allows_complex=False)]
Analytic = Annotated[TensorType, Operand("float or complex", lowest="float")]
Free = Annotated[TensorType, Operand("any", promotes=False)]
Index = Annotated[TensorType, Operand("integer", promotes=False, exact="int")]
Mask = Annotated[TensorType, Operand("bool", promotes=False, exact="bool")]
Tuple = Annotated[Any, Operand("tuple", promotes=False, exact="tuple")]

# Attributes.
Axis = Annotated[int, AXIS]
Axes = Annotated[tuple[int, ...], AXES]
Ints = Annotated[tuple[int, ...], INTS]
Pairs = Annotated[tuple[tuple[int, int], ...], PAIRS]
Floats = Annotated[tuple[float, ...], FLOATS]
Size = Annotated[Dim, SIZE]
Sizes = Annotated[tuple[Dim, ...], SIZES]
ShapeOf = Annotated[tuple[Dim, ...], SHAPE]
Name = Annotated[str, NAME]
Values = Annotated[Data, DATA]
Body = Annotated[Any, GRAPH]

_PLAIN: dict[Any, Attribute] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: TEXT,
    bytes: BYTES,
    DType: DTYPE,
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one annotation says: the kind, and whether it may be absent or repeated."""

    kind: Operand | Attribute
    optional: bool = False
    variadic: bool = False


def parse_annotation(hint: Any) -> Parsed:
    """Read a parameter's annotation."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        kind = typing.get_args(hint)[1]
        if isinstance(kind, Operand | Attribute):
            return Parsed(kind)
    if hint in _PLAIN:
        return Parsed(_PLAIN[hint])
    if origin is Literal:
        return Parsed(_choice(typing.get_args(hint)))
    if origin in (typing.Union, types.UnionType):
        inner = [item for item in typing.get_args(hint) if item is not type(None)]
        if len(inner) == 1:
            parsed = parse_annotation(inner[0])
            return Parsed(parsed.kind, optional=True, variadic=parsed.variadic)
    if origin is list:
        parsed = parse_annotation(typing.get_args(hint)[0])
        if isinstance(parsed.kind, Operand):
            return Parsed(parsed.kind, variadic=True)
    raise ArgumentError(f"an op cannot declare a parameter of type {hint!r}")


def _choice(options: tuple[Any, ...]) -> Attribute:
    def coerce(value: Any) -> str:
        text = _str(value)
        if text not in options:
            raise ArgumentError(f"expected one of {', '.join(map(repr, options))}, got {text!r}")
        return text

    return Attribute(" or ".join(map(repr, options)), coerce, _as_is, _as_is)


def normalize_axes(value: Any, rank: int) -> Any:
    """Axes counted from the front, checked against ``rank``; several are kept distinct."""
    if isinstance(value, tuple):
        result = tuple(normalize_axes(axis, rank) for axis in value)
        if len(set(result)) != len(result):
            raise ArgumentError(f"axes {list(value)} name one axis twice")
        return result
    if not -rank <= value < rank:
        if rank == 0:
            raise ArgumentError(f"axis {value} does not exist in a scalar")
        raise ArgumentError(f"axis {value} is outside -{rank}..{rank - 1}")
    return value % rank


def explain(name: str, error: DarnerError) -> DarnerError:
    """Say which argument an attribute's own error is about."""
    error.rule = f"{name}: {error.rule}"
    error.args = (error.rule,)
    return error
