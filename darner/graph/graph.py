"""The graph: what a user writes, and what every pass reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .attributes import as_text
from .binding import DimBinding
from .data import Data, as_data
from .dims import as_dim
from .dtypes import DType
from .errors import (
    ArgumentError,
    Calling,
    NameTakenError,
    ShapeError,
    Source,
    UnknownNameError,
    caller,
    did_you_mean,
)
from .methods import GraphMethods
from .node import Node, change_node, make_node
from .nodelist import NodeList
from .op import Op, get_op
from .regions import RematPolicy, as_policy
from .stages.methods import Stages
from .types import TensorType, Type

LEAVES = ("input", "parameter", "state")


class Graph(Stages, GraphMethods):
    """A computation: nodes in topological order, outputs, and updates of its state.

    >>> import darner
    >>> g = darner.Graph("mlp")
    >>> x = g.input("x", (4, 784))
    >>> w = g.parameter("w", (784, 10))
    >>> y = (x @ w).relu()
    >>> g.set_outputs([y])
    >>> print(g)
    graph @mlp {
      %0 = input(name="x") : f32[4, 784]
      %1 = parameter(name="w") : f32[784, 10]
      %2 = matmul(%0, %1) : f32[4, 10]
      %3 = relu(%2) : f32[4, 10]
      return %3
    }
    """

    def __init__(self, name: str = "graph") -> None:
        with Calling("Graph"):
            self.name = as_text(name, "a graph's name")
        self._nodes: list[Node] = []
        self._users: list[list[int]] = []
        self._outputs: list[int] = []
        self._updates: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._literals: dict[Data, int] = {}
        self._scopes: list[str] = []
        self._origin: Node | None = None
        self._streams = 0
        self._remat: dict[str, RematPolicy] = {}
        self._frozen = False
        self._digest: str | None = None

    @classmethod
    def new(cls, name: str = "graph") -> Graph:
        """An empty graph."""
        return cls(name)

    # ------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self._nodes)

    def len(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True

    def is_empty(self) -> bool:
        """True when there is no node."""
        return not self._nodes

    @property
    def nodes(self) -> NodeList:
        """All nodes; ids are their positions."""
        return NodeList(self._nodes)

    @property
    def outputs(self) -> NodeList:
        """The results, in the order they were set."""
        return NodeList([self._nodes[i] for i in self._outputs])

    @property
    def updates(self) -> dict[Node, Node]:
        """For each state leaf that a run changes, the node that is its next value."""
        return {self._nodes[leaf]: self._nodes[value] for leaf, value in self._updates.items()}

    @property
    def inputs(self) -> dict[str, Node]:
        """The inputs by name, in the order they were declared."""
        return self._leaves("input")

    @property
    def parameters(self) -> dict[str, Node]:
        """The parameters by name, in the order they were declared."""
        return self._leaves("parameter")

    @property
    def states(self) -> dict[str, Node]:
        """The state leaves by name, in the order they were declared."""
        return self._leaves("state")

    def leaf(self, name: str) -> Node | None:
        """The input, parameter or state of a name (the full one, scope included), if there is one."""
        found = self._names.get(name)
        return None if found is None else self._nodes[found]

    def _leaves(self, kind: str) -> dict[str, Node]:
        found = ((name, self._nodes[i]) for name, i in self._names.items())
        return {name: node for name, node in found if node.op.name == kind}

    def node(self, id: int | Node) -> Node:
        """The node of an id. A node of this graph is returned as it is."""
        if isinstance(id, Node):
            return id if id.graph is self else self.adopt(id)
        if isinstance(id, bool) or not hasattr(id, "__index__"):
            raise ArgumentError(f"a node's id is an integer, got {id!r}")
        if not 0 <= int(id) < len(self._nodes):
            raise UnknownNameError(
                f"graph '{self.name}' has no node {id}: it has {len(self._nodes)} nodes"
            )
        return self._nodes[int(id)]

    def adopt(self, node: Node) -> Node:
        """What stands here for a node of another graph: there is such a node in bodies alone (``graph.capture``)."""
        raise ArgumentError(
            f"%{node.id} is a node of graph '{node.graph.name}', not of '{self.name}'"
        )

    def is_inside(self, other: Graph) -> bool:
        """Whether this is a body written inside ``other``, which reads its nodes."""
        return False

    def shape(self, id: int | Node) -> Type:
        """The sizes and the element type of a node, as RLX's shapes have both; ``node.shape`` is the sizes alone.

        >>> import darner
        >>> g = darner.Graph()
        >>> x = g.input("x", (2, 3))
        >>> g.shape(x) == darner.Shape.new([2, 3], darner.DType.F32), g.shape(x).rank, g.shape(x).dtype
        (True, 2, f32)
        """
        return self.node(id).type

    def users(self, id: int | Node) -> NodeList:
        """The distinct nodes that read a node, in order."""
        return NodeList([self._nodes[i] for i in self._users[self.node(id).id]])

    def use_count(self, id: int | Node) -> int:
        """How many distinct nodes read a node."""
        return len(self._users[self.node(id).id])

    def is_output(self, id: int | Node) -> bool:
        """True when a node is one of the outputs."""
        return self.node(id).id in self._outputs

    def topo_order(self) -> NodeList:
        """Nodes with every input before its users: the order of ids."""
        return self.nodes

    def reverse_topo(self) -> NodeList:
        """Nodes with every user before its inputs."""
        return NodeList(self._nodes[::-1])

    # ------------------------------------------------------------- writing

    def set_outputs(self, outputs: Any) -> None:
        """State the results: a node, or a list of nodes or ids."""
        with Calling("set_outputs"):
            self._must_be_open()
            single = isinstance(outputs, Node) or not isinstance(outputs, Iterable)
            chosen = [outputs] if single else outputs
            nodes = [self.node(item) for item in chosen]
            for node in nodes:
                if not isinstance(node.type, TensorType):
                    raise ArgumentError(f"%{node.id} has several results: project one first")
            self._outputs = [node.id for node in nodes]

    def set_update(self, leaf: Node | int, value: Node | int, *, replace: bool = False) -> None:
        """State that after a run a state leaf takes the value of a node.

        A leaf has one update; a second is an error unless it is to ``replace`` the first.
        """
        with Calling("set_update"):
            self._must_be_open()
            target, source = self.node(leaf), self.node(value)
            if target.op.name not in ("state", "parameter"):
                raise ArgumentError(f"%{target.id} is {target.op.name}, not a state or parameter")
            if target.id in self._updates and not replace:
                raise ArgumentError(
                    f"'{target.name}' is already updated by %{self._updates[target.id]}",
                    hint="chain the writes: give the second one the result of the first",
                )
            if target.type != source.type:
                raise ShapeError(
                    f"'{target.name}' is {target.type}, but its update is {source.type}"
                )
            if target.id in self._updates:
                self._updates = dict(self._updates)  # a mark may hold the old one
            self._updates[target.id] = source.id

    @contextmanager
    def scope(self, name: str) -> Iterator[Graph]:
        """Prefix the names and labels made inside with ``name.``; scopes nest."""
        with Calling("scope"):
            as_text(name, "a scope", empty=False)
        self._scopes.append(name)
        try:
            yield self
        finally:
            self._scopes.pop()

    @contextmanager
    def remat(self, name: str, policy: Any = None) -> Iterator[Graph]:
        """A scope whose values a backward pass computes again instead of keeping them.

        Values that other scopes read are kept, and so is what ``policy`` says: names of ops whose results are kept, a
        number of bytes up to which values are, or a ``RematPolicy`` of both. Gradients are the same, bit for bit.
        """
        with Calling("remat"), self.scope(name):
            path, chosen = ".".join(self._scopes), as_policy(policy)
            if self._remat.setdefault(path, chosen) != chosen:
                raise ArgumentError(f"'{path}' is already recomputed under another policy")
        with self.scope(name):
            yield self

    def inherit(self, source: Graph) -> None:
        """Take over what a graph has beside its nodes: the count of random streams, scopes to recompute."""
        self._streams, self._remat = source._streams, dict(source._remat)

    @property
    def current_scope(self) -> str:
        """The prefix in force, without its last dot."""
        return ".".join(self._scopes) if self._origin is None else self._origin.scope

    @contextmanager
    def derived_from(self, node: Node) -> Iterator[None]:
        """Give the nodes made inside the scope and the source line of ``node``; passes use it."""
        before, self._origin = self._origin, node
        try:
            yield
        finally:
            self._origin = before

    def source_of_call(self) -> Source | None:
        """The line a node made now belongs to."""
        return caller() if self._origin is None else self._origin.source

    def labelled(self, label: str | None) -> str | None:
        """A label with the current scope in front."""
        if label is None:
            return None
        return ".".join([*self._scopes, as_text(label, "a label", empty=False)])

    def relabel(self, id: int | Node, label: str | None) -> None:
        """Give a node another label (the full one, scope included)."""
        with Calling("relabel"):
            self._must_be_open()
            if label is not None:
                as_text(label, "a label", empty=False)
            change_node(self.node(id), label=label)

    def insert(  # many parameters: the fields of a node
        self,
        op: Op | str,
        operands: Sequence[Node | int],
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        *,
        label: str | None = None,
        scope: str | None = None,
        source: Source | None = None,
        type: Type | None = None,
    ) -> Node:
        """Append a node from canonical parts, checking it by the op's shape rule.

        This is the way of passes; users call the op. Nothing is promoted or cast here. A pass that copies what was
        checked already gives its ``type``, which is then believed.
        """
        self._must_be_open()
        record = op if isinstance(op, Op) else get_op(op)
        nodes = [self.node(item) for item in operands]
        if type is None:
            type, attrs = record.infer_type(tuple([n.type for n in nodes]), slots, attrs)
        return self._append(record, nodes, slots, attrs, type, label, scope, source)

    def insert_like(
        self, node: Node, operands: Sequence[Node | int], attrs: dict[str, Any] | None = None
    ) -> Node:
        """Append a copy of a node, of this graph or another, on other operands (and attributes)."""
        nodes, old = [self.node(item) for item in operands], node.graph._nodes
        # The same call on the same types has the same type.
        if attrs is None and [n.type for n in nodes] == [old[i].type for i in node.inputs]:
            self._must_be_open()
            known = node.op, nodes, node.slots, node.attrs, node.type
            return self._append(*known, node.label, node.scope, node.source)
        return self.insert(
            node.op,
            nodes,
            node.slots,
            node.attrs if attrs is None else attrs,
            label=node.label,
            scope=node.scope,
            source=node.source,
        )

    def _append(  # many parameters: the fields of a node
        self,
        op: Op,
        operands: Sequence[Node],
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        type: Type,
        label: str | None,
        scope: str | None,
        source: Source | None,
    ) -> Node:
        index = len(self._nodes)
        if op.name in LEAVES:
            name = attrs["name"]
            if name in self._names:
                known = self._nodes[self._names[name]]
                raise NameTakenError(
                    f"the name '{name}' is taken by the {known.op.name} %{known.id}"
                )
            self._names[name] = index
        inputs = tuple([n.id for n in operands])
        scope = self.current_scope if scope is None else scope
        node = make_node(attrs, self, index, inputs, label, op, scope, slots, source, type)
        # Streams that the user numbered are passed over; the count never gets to very large ones.
        if isinstance(stream := attrs.get("stream"), int) and stream < 2**31:
            self._streams = max(self._streams, stream + 1)
        self._nodes.append(node)
        self._users.append([])
        for operand in operands:
            users = self._users[operand.id]
            if not users or users[-1] != index:
                users.append(index)
        return node

    def literal(self, value: Any, dtype: DType | None, source: Source | None = None) -> Node:
        """The node of a bare number or array; equal ones are shared."""
        data = as_data(value, dtype)
        known = self._literals.get(data)
        if known is not None:
            return self._nodes[known]
        node = self.insert("constant", [], (), {"values": data}, scope="", source=source)
        self._literals[data] = node.id
        return node

    def add_node(
        self, op: Op | str, inputs: Sequence[Node | int], shape: Any = None, /, **attrs: Any
    ) -> Any:
        """Add any op by its record or name: ``g.add_node("tanh", [x])``; RLX's names (``"RmsNorm"``) are known too."""
        from .build import call_by_name

        return call_by_name(self, "add_node", op, inputs, shape, attrs)

    def append_node(
        self,
        op: Op | str,
        inputs: Sequence[Node | int],
        shape: Any = None,
        /,
        name: str | None = None,
        **attrs: Any,
    ) -> Any:
        """Like ``add_node``, with a label (for a leaf, its name)."""
        from .build import call_by_name

        return call_by_name(self, "append_node", op, inputs, shape, attrs, name)

    def set_inputs(self, id: int | Node, inputs: Sequence[Node | int]) -> None:
        """Replace a node's operands, re-checking it and everything after it."""
        with Calling("set_inputs"):
            from .edit import replace_inputs

            self._must_be_open()
            replace_inputs(self, self.node(id), [self.node(item) for item in inputs])

    def node_mut(self, id: int | Node) -> Any:
        """An editor of one node: ``set_inputs``, ``set_attrs``, ``set_label``, each checked."""
        from .edit import NodeEditor

        return NodeEditor(self.node(id))

    def nodes_mut(self) -> list[Any]:
        """An editor for every node, in order."""
        return [self.node_mut(node) for node in self._nodes]

    def freeze(self) -> Graph:
        """Refuse changes from now on; inner graphs of other nodes are frozen."""
        self._frozen = True
        return self

    def next_stream(self) -> int:
        """A number no other random op of this graph has."""
        self._streams += 1
        return self._streams - 1

    def mark(self) -> tuple[int, int, dict[int, int], int]:
        """A point to return to if what follows fails."""
        return len(self._nodes), self._streams, self._updates, len(self._updates)

    def rollback(self, mark: tuple[int, int, dict[int, int], int]) -> None:
        """Forget everything after a mark."""
        length, self._streams, self._updates, updates = mark
        while len(self._updates) > updates:
            self._updates.popitem()
        if len(self._nodes) == length:
            return
        for node in self._nodes[length:]:
            for operand in node.inputs:
                users = self._users[operand]
                while users and users[-1] >= length:
                    users.pop()
        del self._nodes[length:], self._users[length:]
        self._names = {name: i for name, i in self._names.items() if i < length}
        self._literals = {data: i for data, i in self._literals.items() if i < length}

    def _must_be_open(self) -> None:
        if self._frozen:
            raise ArgumentError(f"graph '{self.name}' is frozen", hint="copy() it to change it")

    # ------------------------------------------------------------- comparing, printing, saving

    def __eq__(self, other: object) -> bool:
        """Same nodes in the same order, same outputs and updates; names of graphs, labels and lines aside."""
        if not isinstance(other, Graph):
            return NotImplemented
        if self is other:
            return True
        if len(self) != len(other) or self.digest() != other.digest():
            return False
        # A name may have been given to another op since.
        return all(a.op is b.op for a, b in zip(self.nodes, other.nodes, strict=True))

    def __hash__(self) -> int:
        return int(self.digest()[:15], 16)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and deep-copied as JSON, so nodes in other places follow to the copy."""
        return _restored, (self.to_json(), self._frozen)

    def digest(self) -> str:
        """A hash of the structure, the same in every process and on every machine."""
        from .text.dump import digest

        if self._digest is not None:
            return self._digest
        found = digest(self)
        if self._frozen:
            self._digest = found
        return found

    def __str__(self) -> str:
        from .text.dump import to_text

        return to_text(self, data=False)

    def __repr__(self) -> str:
        return f"<Graph '{self.name}': {len(self)} nodes, {len(self._outputs)} outputs>"

    def to_text(self) -> str:
        """The exact text form, constants included; ``Graph.from_text`` reads it."""
        from .text.dump import to_text

        return to_text(self, data=True)

    @staticmethod
    def from_text(text: str) -> Graph:
        """The graph that ``to_text`` wrote."""
        from .text.parse import from_text

        with Calling("from_text"):
            return from_text(text)

    def to_json(self) -> str:
        """The graph as JSON, constants, labels and source lines included."""
        from .text.json import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Graph:
        """The graph that ``to_json`` wrote; everything is checked."""
        from .text.json import from_json

        with Calling("from_json"):
            return from_json(text)

    def verify(self) -> Graph:
        """Check every rule a graph keeps; returns the graph, or raises naming the fault."""
        from .verify import verify

        return verify(self)

    def inspect(self) -> str:
        """An annotated dump: op counts, bytes, one line a node with labels and source lines."""
        from .text.annotated import inspect_graph

        return inspect_graph(self)

    # ------------------------------------------------------------- whole-graph operations

    def copy(self, name: str | None = None) -> Graph:
        """A graph of the same nodes that can be changed on its own."""
        from .edit import copy_graph

        return copy_graph(self, name=name)

    clone = copy

    def toposort(self) -> Graph:
        """A graph without the nodes that nothing needs; all named leaves stay. Ids are dense."""
        from .edit import without_dead_nodes

        return without_dead_nodes(self)

    def has_dynamic_dims(self) -> bool:
        """True when some size is a symbol."""
        return bool(self.dynamic_symbols())

    def dynamic_symbols(self) -> list[str]:
        """The names of all symbolic sizes, sorted."""
        found: set[str] = set()
        for type_ in {node.type for node in self._nodes}:
            found |= type_.symbols
        for node in self._nodes:
            for value in node.attrs.values():
                if isinstance(value, Graph):
                    found.update(value.dynamic_symbols())
        return sorted(found)

    def bind(self, bindings: Mapping[str, Any] | None = None, **sizes: Any) -> Graph:
        """A graph with sizes in place of symbols: ``g.bind(seq=128)``; a ``DimBinding`` may have symbols of others."""
        from .edit import bind_graph

        with Calling("bind"):
            if bindings is not None and not isinstance(bindings, Mapping):
                raise ArgumentError(
                    f"sizes are given by name, got {type(bindings).__name__}",
                    hint="bind(seq=128), or bind({'seq': 128})",
                )
            known = self.dynamic_symbols()
            if isinstance(bindings, DimBinding):  # it may be for several graphs
                bindings = {name: size for name, size in bindings.items() if name in known}
            wanted = {**(bindings or {}), **sizes}
            for name in wanted:
                if name not in known:
                    hint = did_you_mean(name, known) or (
                        f"its symbols are {', '.join(known)}" if known else "it has no symbols"
                    )
                    raise UnknownNameError(f"graph '{self.name}' has no symbol '{name}'", hint=hint)
            return bind_graph(self, {name: as_dim(size) for name, size in wanted.items()})


def _restored(document: str, frozen: bool) -> Graph:
    graph = Graph.from_json(document)
    return graph.freeze() if frozen else graph


def check_graph(value: Any) -> Graph:
    """A graph, or an error that says what was given instead."""
    if not isinstance(value, Graph):
        # Of a module, whose classes are defined after graphs.
        hint = "module.into_graph() gives it" if hasattr(value, "into_graph") else None
        raise ArgumentError(f"a Graph is needed, got {type(value).__name__}", hint=hint)
    return value
