"""Random instances of a pattern: leaves and attributes chosen so that the calls are legal.

A pattern is grown from its innermost calls outwards. Where a call has a variable that is not bound yet, its type is proposed from
what stands beside it (the same shape, one that broadcasts, one that shares a size), from the op's own samples, or at
random from the few sizes of this instance; a proposal that the op's shape rule refuses is replaced by another.
"""

import ast
import random
from functools import cache
from typing import Any

import numpy as np

from darner import Graph
from darner.graph import dtypes
from darner.graph.attributes import Attribute
from darner.graph.check import canonical, settle_axes
from darner.graph.data import Data
from darner.graph.dims import symbol
from darner.graph.dtypes import DType
from darner.graph.errors import DarnerError
from darner.graph.node import Node
from darner.graph.op import REQUIRED, Op, Param
from darner.graph.types import TensorType
from darner.optimizer.pattern import Number, Pattern, Term, Variable
from darner.testing import make_case

ATTEMPTS = 14
"""Proposals for one call before the instance is given up."""

NUMBERS = (0.0, 0.0, 1.0, 1.0, 1.0, -1.0, 2.0, 0.5, 3.0, -0.0, 0.1, 1e-5)
ELEMENT_TYPES = ("f64",) * 15 + ("i32",) * 2 + ("bool", "f32", "bf16", "bf16")


class Growth:
    """One instance as it grows: a graph, and what the variables stand for in it."""

    def __init__(self, seed: int) -> None:
        self.graph = Graph("instance")
        self.random = random.Random(seed)
        choose = self.random.choice
        self.found: dict[str, Any] = {}
        self.dtype = dtypes.dtype(choose(ELEMENT_TYPES))
        self.sizes: list[Any] = self.random.sample((2, 3, 4, 5), 2)
        if self.random.random() < 0.4:
            self.sizes.append(choose((0, 1, 1)))
        if self.random.random() < 0.1:
            self.sizes.append(symbol("n"))
        self.shapes = [self.shape(), self.shape(least=2)]
        self.leaves = choose(("input", "mixed", "mixed", "parameter", "constant"))

    def shape(self, least: int = 0, most: int = 4) -> tuple[Any, ...]:
        """A shape of this instance's sizes."""
        rank = max(least, min(most, self.random.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))))
        return tuple(self.random.choice(self.sizes) for _ in range(rank))

    # ------------------------------------------------------------- calls

    def grow(self, pattern: Pattern) -> Node | None:
        """The node of a pattern, or None where nothing legal was found."""
        if not isinstance(pattern, Term):
            raise TypeError(f"{pattern!r} is not a call")
        known: list[Any] = []
        for operand in pattern.operands:
            node = self.grow(operand) if isinstance(operand, Term) else self._bound(operand)
            if node is None and isinstance(operand, Term):
                return None
            known.append(node)
        for _ in range(ATTEMPTS):
            mark = self.graph.mark()
            before = dict(self.found)
            try:
                return self._attempt(pattern, known)
            except (DarnerError, _Misfit):
                self.graph.rollback(mark)
                self.found = before
        return None

    def _bound(self, operand: Pattern) -> Node | None:
        return self.found.get(operand.name) if isinstance(operand, Variable) else None

    def _attempt(self, term: Term, known: list[Any]) -> Node:
        operands = list(known)
        example = self._example(term, operands)
        shapes = [node.shape for node in known if isinstance(node, Node) and _is_tensor(node)]
        common = self._common(term, known)
        for i, (operand, slot) in enumerate(zip(term.operands, term.slots, strict=True)):
            if operands[i] is None and isinstance(operand, Variable):
                operands[i] = self.found.get(operand.name)
                if operands[i] is None:
                    type_ = example.get(i) or self._type(term.op.by_name[slot], shapes, common)
                    operands[i] = self.found[operand.name] = self._leaf(type_)
                shapes.append(operands[i].shape)
                if common is None and _promotes(term.op.by_name[slot]):
                    common = operands[i].dtype
        for i, operand in enumerate(term.operands):
            if isinstance(operand, Number):
                operands[i] = self._number(operand, common or self.dtype)
        attrs = self._attributes(term, operands, example.get("attrs", {}))
        types = [node.type for node in operands]
        settled = settle_axes(term.op, attrs, types)
        if "commutative" in term.op.traits and self.random.random() < 0.3:
            operands.reverse()
        node = self.graph.insert(term.op, operands, term.slots, settled)
        for name, value in term.attrs:
            if isinstance(value, Variable):
                self.found[value.name] = node.attrs[name]
        return node

    def _example(self, term: Term, operands: list[Any]) -> dict[Any, Any]:
        """Types (by position) and attributes from one of the op's samples, or nothing."""
        free = all(operand is None for operand in operands)
        examples = _examples(term.op, term.slots)
        if not examples or self.random.random() > (0.5 if free else 0.2):
            return {}
        types, attrs = self.random.choice(examples)
        return {**dict(enumerate(types)), "attrs": attrs} if free else {"attrs": attrs}

    def _common(self, term: Term, known: list[Any]) -> DType | None:
        for node, slot in zip(known, term.slots, strict=True):
            if isinstance(node, Node) and _is_tensor(node) and _promotes(term.op.by_name[slot]):
                return node.dtype
        return None

    # ------------------------------------------------------------- operands

    def _type(self, param: Param, shapes: list[Any], common: DType | None) -> TensorType:
        kind: Any = param.kind
        dtype = self.dtype if common is None or not kind.promotes else common
        if kind.exact == "int":
            dtype = dtypes.i32
        elif kind.exact == "bool":
            dtype = dtypes.bool_
        elif kind.lowest == "float" and not dtype.is_float:
            dtype = dtypes.f64
        return TensorType(self._near(shapes), dtype)

    def _near(self, shapes: list[Any]) -> tuple[Any, ...]:
        """A shape that may fit beside others."""
        choose, chance = self.random.choice, self.random.random()
        if not shapes or chance < 0.15:
            return choose(self.shapes) if chance < 0.5 else self.shape()
        near = choose(shapes)
        if chance < 0.45:
            return near
        if chance < 0.55:
            return near[-1:]
        if chance < 0.62:
            return tuple(1 if self.random.random() < 0.4 else size for size in near)
        if chance < 0.68:
            return near[self.random.randint(0, len(near)) :]
        if chance < 0.76:
            return (*near[:-2], *near[-2:][::-1])
        if chance < 0.80:
            return (choose(self.sizes), *near)
        if chance < 0.82:
            return ()
        sizes = [size for shape in shapes for size in shape] + self.sizes
        if chance < 0.92:  # as a matrix product's other side
            return (*near[:-2], near[-1] if near else 1, choose(sizes))
        return tuple(choose(sizes) for _ in range(self.random.randint(1, 4)))

    def _leaf(self, type_: TensorType) -> Node:
        if self.random.random() < 0.08:
            same = [node for node in self.graph.nodes if node.type == type_]
            if same:
                return self.random.choice(same)
        kind = self.leaves
        if kind == "mixed":
            kind = self.random.choice(("input", "parameter", "constant", "constant"))
        elif self.random.random() < 0.15:
            kind = "constant"
        if kind == "constant" and self.random.random() < 0.5:
            return self._constant(TensorType((), type_.dtype))
        if kind == "constant" and all(isinstance(size, int) for size in type_.shape):
            return self._constant(type_)
        name = f"{kind[0]}{len(self.graph)}"
        make = self.graph.parameter if kind == "parameter" else self.graph.input
        return make(name, type_.shape, type_.dtype)

    def _constant(self, type_: TensorType) -> Node:
        shape = tuple(int(size) for size in type_.shape)
        rng = np.random.default_rng(self.random.getrandbits(32))
        values = np.full(shape, self.random.choice(NUMBERS))
        if self.random.random() < 0.3:
            values = rng.normal(size=shape)
        if type_.dtype.kind != "float":
            values = np.rint(values) if type_.dtype.kind == "int" else values > 0
        data = Data(np.asarray(values).astype(type_.dtype.numpy))
        return self.graph.insert("constant", [], (), {"values": data})

    def _number(self, number: Number, dtype: DType) -> Node:
        if dtype.kind == "bool" or (dtype.kind == "int" and number.value % 1):
            raise _Misfit
        return self.graph.literal(np.asarray(number.value, dtype.numpy), dtype)

    # ------------------------------------------------------------- attributes

    def _attributes(self, term: Term, operands: list[Node], example: Any) -> dict[str, Any]:
        first = operands[0].type if operands else None
        given = dict(term.attrs)
        attrs = {}
        bound = self.found.get(term.rest.name) if term.rest is not None else None
        for param in term.op.attributes:
            value = given.get(param.name)
            if param.name not in given:
                known = (bound or {}).get(param.name, _ABSENT)
                value = self._attribute(param, first, example) if known is _ABSENT else known
            elif isinstance(value, Variable):
                value = self.found.get(value.name, _ABSENT)
                if value is _ABSENT:
                    value = self._attribute(param, first, example)
            attrs[param.name] = canonical(param, value)
        if term.rest is not None:
            self.found[term.rest.name] = {
                name: value for name, value in attrs.items() if name not in given
            }
        return attrs

    def _attribute(self, param: Param, first: Any, example: Any) -> Any:
        chance, kind = self.random.random(), param.kind
        if param.name in example and chance < 0.8:
            return example[param.name]
        if param.default is not REQUIRED and chance < 0.4:
            return param.default
        if not isinstance(kind, Attribute):
            raise TypeError(f"{param} is not an attribute")
        shape = first.shape if isinstance(first, TensorType) else ()
        drawn = self._drawn(kind, shape)
        if drawn is _ABSENT:
            if param.name in example:
                return example[param.name]
            if param.default is REQUIRED:
                raise _Misfit
            return param.default
        return drawn

    def _drawn(self, kind: Attribute, shape: tuple[Any, ...]) -> Any:
        """A value of an attribute's kind that a tensor of this shape may take."""
        rng, rank = self.random, len(shape)
        if kind.name == "bool":
            return rng.random() < 0.5
        if kind.name == "int":
            return rng.randint(-1, 4)
        if kind.name == "float":
            return rng.choice((*NUMBERS, rng.uniform(-2, 2)))
        if kind.name == "axis":
            return rng.randrange(rank) if rank else 0
        if kind.name == "axes":
            return tuple(axis for axis in range(rank) if rng.random() < 0.5)
        if kind.name == "integers":
            if rng.random() < 0.6:
                return tuple(rng.sample(range(rank), rank))
            return tuple(rng.randint(0, 3) for _ in range(rank))
        if kind.name == "(low, high) pairs":
            return tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in range(rank))
        if kind.name in ("shape", "sizes"):
            return self._new_shape(shape)
        if kind.name == "size":
            return rng.choice([*self.sizes, *shape])
        if kind.name == "element type":
            return rng.choice((dtypes.f64, dtypes.f64, dtypes.f32, dtypes.i32, dtypes.bool_))
        if " or " in kind.name:
            return rng.choice([ast.literal_eval(text) for text in kind.name.split(" or ")])
        return _ABSENT

    def _new_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """A shape to reshape or broadcast to."""
        rng, chance = self.random, self.random.random()
        if chance < 0.25:
            return (rng.choice(self.sizes), *shape)
        if chance < 0.4:
            return tuple(rng.choice(self.sizes) if size == 1 else size for size in shape)
        if chance < 0.55 and len(shape) > 1:
            at = rng.randrange(len(shape) - 1)
            return (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
        if chance < 0.7:
            at = rng.randint(0, len(shape))
            return (*shape[:at], 1, *shape[at:])
        if chance < 0.8:
            return tuple(rng.sample(shape, len(shape)))
        if chance < 0.9:
            count: Any = 1
            for size in shape:
                count = count * size
            return (count,)
        return rng.choice(self.shapes)


class _Misfit(Exception):
    """No legal proposal here."""


_ABSENT: Any = object()


def _is_tensor(node: Node) -> bool:
    return isinstance(node.type, TensorType)


def _promotes(param: Param) -> bool:
    return bool(getattr(param.kind, "promotes", False))


@cache
def _examples(op: Op, slots: tuple[str, ...]) -> list[tuple[list[TensorType], dict[str, Any]]]:
    """The operand types and attributes of the op's samples that have these operands."""
    found = []
    for index in range(len(op.samples)):
        for node in make_case(op, index, "f64").graph.nodes:
            if node.op is op and node.slots == slots:
                found.append(([operand.type for operand in node.operands], dict(node.attrs)))
    return found


def generate(pattern: Term, seed: int) -> tuple[Graph, Node] | None:
    """A graph that holds an instance of the pattern, and the instance's root; None where this seed finds none."""
    growth = Growth(seed)
    root = growth.grow(pattern)
    return None if root is None else (growth.graph, root)


def instantiate(pattern: Term, found: dict[str, Any], widen: bool) -> tuple[Graph, Node] | None:
    """An instance on fresh leaves of given types; ``widen`` makes every float f64.

    ``found`` has what a match bound: values for operands (two that are the same stay the same), attributes as they are.
    """
    graph = Graph("instance")
    types = [value.type for value in found.values() if hasattr(value, "handle")]
    floats = [t.dtype for t in types if isinstance(t, TensorType) and t.dtype.is_float]
    alone = dtypes.f64 if widen or not floats else floats[0]
    leaves: dict[Any, Node] = {}
    bound: dict[str, Any] = {}
    for name, value in found.items():
        if not hasattr(value, "handle"):
            bound[name] = _widened(value) if widen else value
            continue
        if value.handle not in leaves:
            leaves[value.handle] = _fresh(graph, value, widen)
        bound[name] = leaves[value.handle]
    try:
        return graph, _rebuild(graph, pattern, bound, alone)
    except (DarnerError, _Misfit):
        return None


def _widened(value: Any) -> Any:
    if isinstance(value, DType):
        return dtypes.f64 if value.is_float else value
    if isinstance(value, dict):
        return {name: _widened(item) for name, item in value.items()}
    return value


def _fresh(graph: Graph, value: Any, widen: bool) -> Node:
    dtype = _widened(value.dtype) if widen else value.dtype
    if value.constant is not None:
        data = Data(value.constant.array.astype(dtype.numpy))
        return graph.insert("constant", [], (), {"values": data})
    make = graph.parameter if value.leaf == "parameter" else graph.input
    return make(f"v{len(graph)}", value.shape, dtype)


def _rebuild(graph: Graph, pattern: Pattern, bound: dict[str, Any], alone: DType) -> Node:
    """The node of a pattern; ``alone`` is the element type of numbers without a neighbour."""
    if isinstance(pattern, Variable):
        return bound[pattern.name]
    if not isinstance(pattern, Term):
        raise _Misfit
    operands: list[Any] = [
        None if isinstance(item, Number) else _rebuild(graph, item, bound, alone)
        for item in pattern.operands
    ]
    tensors = (node.dtype for node in operands if node is not None and _is_tensor(node))
    dtype = next(tensors, alone)
    for i, item in enumerate(pattern.operands):
        if isinstance(item, Number):
            operands[i] = graph.literal(np.asarray(item.value, dtype.numpy), dtype)
    attrs = {name: bound[v.name] if isinstance(v, Variable) else v for name, v in pattern.attrs}
    if pattern.rest is not None:
        attrs.update(bound[pattern.rest.name])
    full = {param.name: canonical(param, attrs[param.name]) for param in pattern.op.attributes}
    settled = settle_axes(pattern.op, full, [node.type for node in operands])
    return graph.insert(pattern.op, operands, pattern.slots, settled)
