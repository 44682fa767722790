"""A node: one value of a graph, and the handle by which users compute with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from .dims import Dim, Shape
from .dtypes import DType
from .errors import (
    ArgumentError,
    CallError,
    Calling,
    DarnerError,
    DTypeError,
    Source,
    caller,
)
from .habits import hints
from .habits.table import OPERATORS, UFUNCS
from .methods import NodeMethods
from .op import BUILDERS, OPS, Op, get_op
from .types import TensorType, TupleType, Type

if TYPE_CHECKING:
    from .graph import Graph


class _Count(int):
    """A number of elements. PyTorch calls it for the shape, and so the call says what to write."""

    def __call__(self, axis: int | None = None) -> NoReturn:
        wanted = "x.shape" if axis is None else f"x.shape[{axis}]"
        error = CallError("size is the number of elements", hint=f"write {wanted}")
        raise error.located("size", None, "", caller())


class Node(NodeMethods):
    """One value in a graph. There is one ``Node`` object per id, so ``is`` compares them.

    Python's operators build nodes: ``x @ w + b``, ``x[:, 1:]``, ``-x``, ``x == y`` (which is a node too,
    of type bool). Every op that takes a node first is a method: ``x.softmax(axis=-1)``.

    Attributes:
        graph: the graph it belongs to.
        id: its place in the graph; inputs always have smaller ids.
        op: the op record.
        inputs: ids of the operands, in order.
        slots: for each operand, the name of the parameter it fills.
        attrs: the op's attributes in canonical form.
        type: shape and element type.
        label: the name the user gave it, scope included, or None.
        scope: the scope it was made in.
        source: the user's line that made it.
    """

    __slots__ = (
        "attrs",
        "graph",
        "id",
        "inputs",
        "label",
        "op",
        "scope",
        "slots",
        "source",
        "type",
    )

    graph: Graph
    id: int
    op: Op
    inputs: tuple[int, ...]
    slots: tuple[str, ...]
    attrs: dict[str, Any]
    type: Type
    label: str | None
    scope: str
    source: Source | None

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise ArgumentError(
            f"a node's {name} cannot be assigned", hint="use graph.set_inputs or graph.node_mut"
        ).located(self.op.name, self.label, "", caller())

    def __delattr__(self, name: str) -> NoReturn:
        raise ArgumentError(f"a node's {name} cannot be removed").located(
            self.op.name, self.label, "", caller()
        )

    # ------------------------------------------------------------- what it is

    @property
    def shape(self) -> Shape:
        """The sizes of its axes."""
        return self._tensor.shape

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self._tensor.dtype

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self._tensor.shape)

    @property
    def ndim(self) -> int:
        """The number of its axes, as NumPy calls it."""
        return self.rank

    @property
    def size(self) -> Dim:
        """The number of its elements."""
        size = self._tensor.size
        return _Count(size) if isinstance(size, int) else size

    @property
    def name(self) -> str | None:
        """The name of an input, parameter or state; None for other nodes."""
        name = self.attrs.get("name")
        return name if isinstance(name, str) else None

    @property
    def operands(self) -> tuple[Node, ...]:
        """The nodes it reads, in order."""
        nodes = self.graph.nodes
        return tuple(nodes[i] for i in self.inputs)

    @property
    def _tensor(self) -> TensorType:
        if isinstance(self.type, TupleType):
            raise ArgumentError(f"%{self.id} has {len(self.type.items)} results: project one first")
        return self.type

    # ------------------------------------------------------------- operators

    def __add__(self, other: Any) -> Node:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Node:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Node:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Node:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Node:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Node:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Node:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return _binary("div", other, self)

    def __floordiv__(self, other: Any) -> Node:
        return _binary("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Node:
        return _binary("floor_divide", other, self)

    def __mod__(self, other: Any) -> Node:
        return _binary("remainder", self, other)

    def __rmod__(self, other: Any) -> Node:
        return _binary("remainder", other, self)

    def __pow__(self, other: Any) -> Node:
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> Node:
        return _binary("pow", other, self)

    def __matmul__(self, other: Any) -> Node:
        return _binary("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Node:
        return _binary("matmul", other, self)

    def __and__(self, other: Any) -> Node:
        return _binary("logical_and", self, other)

    def __rand__(self, other: Any) -> Node:
        return _binary("logical_and", other, self)

    def __or__(self, other: Any) -> Node:
        return _binary("logical_or", self, other)

    def __ror__(self, other: Any) -> Node:
        return _binary("logical_or", other, self)

    def __xor__(self, other: Any) -> Node:
        return _binary("logical_xor", self, other)

    def __rxor__(self, other: Any) -> Node:
        return _binary("logical_xor", other, self)

    def __invert__(self) -> Node:
        return self.logical_not()

    def __neg__(self) -> Node:
        return self.neg()

    def __pos__(self) -> Node:
        return self

    def __abs__(self) -> Node:
        return self.abs()

    def __lt__(self, other: Any) -> Node:
        return _binary("lt", self, other)

    def __le__(self, other: Any) -> Node:
        return _binary("le", self, other)

    def __gt__(self, other: Any) -> Node:
        return _binary("gt", self, other)

    def __ge__(self, other: Any) -> Node:
        return _binary("ge", self, other)

    def __eq__(self, other: object) -> Node:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Node:  # type: ignore[override]
        return _binary("ne", self, other)

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _node_of, (self.graph, self.id)

    def __getitem__(self, key: Any) -> Node:
        return self.getitem(key)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar node has no length")
        with Calling("len"):
            return int(self.shape[0])

    def __iter__(self) -> Iterator[Node]:
        for i in range(len(self)):
            yield self[i]

    def __contains__(self, value: object) -> NoReturn:
        raise ArgumentError(
            "whether a node contains a value is not known until the graph runs",
            hint="reduce (x == value) with any()",
        ).located(self.op.name, self.label, "", caller())

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a node has no truth value: it has no numbers until the graph runs",
            hint="use where(condition, a, b) to choose by value, 'is' to compare nodes",
        ).located(self.op.name, self.label, "", caller())

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ArgumentError(
            "a node is not an array: it has no numbers until the graph runs",
            hint="darner.run(graph, inputs, params) computes it",
        ).located(self.op.name, self.label, "", caller())

    def __float__(self) -> NoReturn:
        raise self._no_number("float")

    def __int__(self) -> NoReturn:
        raise self._no_number("int")

    def __complex__(self) -> NoReturn:
        raise self._no_number("complex")

    def _no_number(self, wanted: str) -> DarnerError:
        return DTypeError(
            f"{wanted}() takes a number, and a node has none until the graph runs",
            hint="functions of numbers are methods of nodes (x.sin() for math.sin(x)); darner.run(graph, ...) computes",
        ).located(self.op.name, self.label, "", caller())

    def __round__(self, digits: int | None = None) -> Node:
        if digits:
            raise ArgumentError(
                f"round to {digits} digits is not an op", hint="(x * 100).round() / 100"
            ).located("round", None, "", caller())
        return self.round()

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Node:
        """NumPy's element-wise functions, and operators with an array on the left, are ops."""
        name = UFUNCS.get(function.__name__)
        with Calling(f"numpy.{function.__name__}"):
            if name is None or method != "__call__" or options:
                how = f"{function.__name__}.{method}" if method != "__call__" else function.__name__
                given = f" with {', '.join(options)}" if options else ""
                found = hints.hint("argument", next(iter(options)), OPS) if options else None
                raise DTypeError(
                    f"numpy.{how}{given} is not an op on nodes",
                    hint=found or hints.hint("tensor", how, OPS),
                )
            if name.startswith("bitwise_") and self.dtype.kind == "bool":
                name = name.replace("bitwise", "logical")  # as the operators of truth values are
            result: Node = get_op(name)(*inputs)
            return result

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> NoReturn:
        """NumPy's other functions are refused with the op in their place."""
        raise _not_an_array("numpy", function)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), options: Any = None
    ) -> Node:
        """A tensor of PyTorch on the left leaves operators to the node; its functions are refused."""
        name = OPERATORS.get(function.__name__.strip("_"))
        if name is None or options:
            raise _not_an_array("torch", function)
        result: Node = get_op(name)(*args)
        return result

    @property
    def T(self) -> Node:
        """The transpose: axes in reverse order."""
        return self.transpose()

    def __repr__(self) -> str:
        label = f" '{self.label}'" if self.label else ""
        return f"<%{self.id} = {self.op.name}{label} : {self.type}>"


_SETTERS = [vars(Node)[name].__set__ for name in Node.__slots__]


def make_node(*fields: Any) -> Node:
    """A node with the fields of ``Node.__slots__``, in that order; only graphs call this."""
    node = object.__new__(Node)
    for put, value in zip(_SETTERS, fields, strict=True):
        put(node, value)
    return node


def change_node(node: Node, **fields: Any) -> None:
    """Replace fields of a node; only graphs call this."""
    for name, value in fields.items():
        object.__setattr__(node, name, value)


def _node_of(graph: Graph, id: int) -> Node:
    """How a pickled node finds itself in its pickled graph."""
    return graph.node(id)


def _not_an_array(library: str, function: Any) -> DarnerError:
    name = function.__name__
    found = hints.hint("tensor", name, [*OPS, *BUILDERS])
    if name in OPS or name in BUILDERS:
        found = f"write g.{name}(...), a method of graphs and nodes"
    error = DTypeError("a node is not an array: it has no numbers until the graph runs", hint=found)
    return error.located(f"{library}.{name}", None, "", caller())


def _binary(name: str, a: Any, b: Any) -> Node:
    result: Node = get_op(name)(a, b)
    return result
