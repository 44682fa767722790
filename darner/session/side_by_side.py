"""Parameters side by side in the graph of a training step: which may stand so, and the step in which they do.

A product of one value with several weights (queries, keys and values; gate and up) is one product with the weights side by side, and so is its gradient, at whose end
the whole block is updated. The plan then has one leaf for the block, and says what it is made of (``Buffer.parts``); so it has for every state that an optimizer
keeps of its parameters. The session knows the parameters and their states by their own names alone: types, values, checkpoints and sharing are as they were.

A block is updated as one parameter, which is right where each element is updated by itself and all parts by the same rule: same multiplier, same decay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.parts import Parts
from ..graph.types import TensorType
from ..optim.base import KnownAs, Optimizer
from ..optim.loss_scale import add_scaled_updates


@dataclass
class Stored:
    """The graph of a loss and its gradients in which parameters stand side by side.

    Attributes:
        graph: with one parameter for each block, in place of its parts.
        trained: the parameters and blocks that are trained.
        gradients: theirs, in the same order.
        outputs: of the user's.
        kept: the gradients of the parameters by their own names.
        parts: what blocks are made of, by name, and the states that are made with them.
    """

    graph: Graph
    trained: list[Node]
    gradients: list[Node]
    outputs: list[Node]
    kept: list[Node]
    parts: dict[str, Parts] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The parameters of each block."""
        return tuple(tuple(parts) for parts in self.parts.values())

    def attached(self, optimizer: Optimizer, keep: bool) -> Graph:
        """The graph with the updates of an optimizer; gradients are outputs if they are kept."""
        graph, blocks = self.graph, dict(self.parts)
        known: dict[str, KnownAs] = {}
        leaves = graph.parameters
        for name, parts in blocks.items():
            leaf = leaves[name]
            first = next(iter(parts.types(TensorType(leaf.shape, leaf.dtype)).items()))
            known[name] = (first[0], first[1].shape)
        add_scaled_updates(graph, optimizer, self.trained, self.gradients, known)
        for state in graph.states:
            for name, parts in blocks.items():
                if state.startswith(f"{name}/"):
                    self.parts[state] = parts.with_suffix(state.removeprefix(name))
        graph.set_outputs([*self.outputs, *self.kept] if keep else self.outputs)
        return graph.toposort()


def stored(full: Graph, names: Sequence[str], groups: Sequence[tuple[str, ...]]) -> Stored:
    """A graph of outputs and the gradients of ``names``, with the concats of these groups of parameters as parameters of their own."""
    return _Storing(full, groups).run(names)


class _Storing:
    """The making of a graph with blocks."""

    def __init__(self, full: Graph, groups: Sequence[tuple[str, ...]]) -> None:
        self.full = full
        self.result = Graph(full.name)
        self.made: dict[int, Node] = {}
        self.leaves: dict[str, Node] = {}
        self.blocks: dict[str, Parts] = {}
        self.of_concat: dict[int, str] = {}
        self.of_part: dict[str, str] = {}
        taken = {*full.inputs, *full.parameters, *full.states}
        for node in full.nodes:
            group = tuple(str(operand.name) for operand in node.operands)
            if node.op.name != "concat" or group not in groups:
                continue
            axis = node.attrs["axis"]
            parts = Parts(axis, tuple((str(x.name), x.shape[axis]) for x in node.operands))
            known = next((name for name, other in self.blocks.items() if other == parts), None)
            if known is not None:
                self.of_concat[node.id] = known
            elif not self.of_part.keys() & set(group):
                name = "+".join(group)
                while any(other == name or other.startswith(f"{name}/") for other in taken):
                    name = f"_{name}"
                self.blocks[name] = parts
                self.of_concat[node.id] = name
                self.of_part.update(dict.fromkeys(group, name))

    def run(self, names: Sequence[str]) -> Stored:
        """The graph, and the gradients of what it has."""
        full, result, made = self.full, self.result, self.made
        for node in full.nodes:
            if node.op.name not in LEAVES:
                continue
            block = self.of_part.get(str(node.name)) if node.op.name == "parameter" else None
            if block is None:
                made[node.id] = self.leaves[str(node.name)] = result.insert_like(node, [])
            elif block not in self.leaves:
                self._add_block(block, node)
        for node in full.nodes:
            if node.id not in made:
                made[node.id] = self._made(node)
        count = len(full.outputs) - len(names)
        ends = [made[node.id] for node in full.outputs]
        gradients = dict(zip(names, ends[count:], strict=True))
        for leaf, value in full.updates.items():
            result.set_update(made[leaf.id], made[value.id])
        result.inherit(full)
        done: dict[str, Node] = {}
        for name in names:
            block = self.of_part.get(name, name)
            if block not in done:
                done[block] = self._gradient(block, gradients)
        trained = [self.leaves[name] for name in done]
        return Stored(result, trained, [*done.values()], ends[:count], ends[count:], self.blocks)

    def _add_block(self, name: str, part: Node) -> None:
        parts = self.blocks[name]
        shape = list(part.shape)
        shape[parts.axis] = parts.size
        attrs = {**part.attrs, "name": name, "shape": tuple(shape), "init": None}
        self.leaves[name] = self.result.insert(
            "parameter", [], (), attrs, scope=part.scope, source=part.source
        )

    def _made(self, node: Node) -> Node:
        if node.op.name == "parameter":
            return self._part(self.of_part[str(node.name)], str(node.name))
        if node.id in self.of_concat:
            return self.leaves[self.of_concat[node.id]]
        return self.result.insert_like(node, [self.made[i] for i in node.inputs])

    def _part(self, block: str, name: str) -> Node:
        """A parameter, for whoever uses it alone."""
        whole = self.leaves[block]
        starts, stops = self.blocks[block].bounds(name, whole.shape)
        return whole.slice(starts, stops)

    def _gradient(self, block: str, gradients: dict[str, Node]) -> Node:
        """The gradient of a parameter, or of a block: what its parts are slices of, or the parts put together."""
        parts = self.blocks.get(block)
        if parts is None:
            return gradients[block]
        found, leaf = [gradients[name] for name in parts], self.leaves[block]
        if found[0].op.name == "slice":
            whole = found[0].operands[0]
            places = [parts.bounds(name, leaf.shape) for name in parts]
            if whole.type == leaf.type and all(map(_is_slice_of(whole), found, places)):
                return whole
        with self.result.derived_from(leaf):
            return self.result.concat(found, parts.axis)


def _is_slice_of(whole: Node) -> Callable[[Node, tuple[list[int], list[int]]], bool]:
    """Whether a node is the slice of ``whole`` within bounds."""

    def check(node: Node, bounds: tuple[list[int], list[int]]) -> bool:
        if node.op.name != "slice" or node.operands[0].id != whole.id:
            return False
        starts, stops = (list(node.attrs[name]) for name in ("starts", "stops"))
        steps = node.attrs["steps"]
        return (starts, stops) == bounds and (steps is None or set(steps) == {1})

    return check
