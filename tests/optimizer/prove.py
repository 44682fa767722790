"""Proof by instances: both sides of a rewrite rule have one type and one value.

``prove(rule)`` tries a rule on instances made from its pattern alone, ``prove_match`` on what a match in some graph bound. A rule that
gives another type, cannot be built, or computes something else is refuted with the instance in full. Run as a module, it prints how many instances each
rule had:

    python -m tests.optimizer.prove [family or rule ...]
"""

import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from darner import Graph
from darner.graph.dims import bind_dim
from darner.graph.edit import copy_graph
from darner.graph.errors import DarnerError
from darner.graph.node import Node
from darner.graph.types import TensorType, TupleType
from darner.interpreter import compute
from darner.optimizer.declare import RULES, Rule
from darner.optimizer.match import Match, Value, build, match_node, node_value
from darner.testing import tolerance
from darner.transforms.expand import expansion, in_float64
from tests.optimizer.instances import generate, instantiate

STYLES = ("plain", "mixed", "positive", "coarse", "far")
"""How values are drawn: around zero, of all magnitudes, above zero, small whole numbers (with ties and zeros), all
close to one large number (what is squared before it is subtracted is lost there)."""


LOSS = 1e-12
"""What a right side may lose by rounding where its left side does not, relative to the largest operand (at least 1): the
tail of one form of a function may be less exact than that of another, but only so much."""


class Refuted(AssertionError):
    """A rule's two sides differ."""


@dataclass
class Tally:
    """What became of the instances of one rule.

    Attributes:
        tried: seeds.
        matched: instances of the pattern that type-check.
        produced: those to which the rule applies; the types of all of them were compared.
        proved: those whose values were compared, at finite ones.
    """

    tried: int = 0
    matched: int = 0
    produced: int = 0
    proved: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.tried + other.tried,
            self.matched + other.matched,
            self.produced + other.produced,
            self.proved + other.proved,
        )

    def __str__(self) -> str:
        return f"{self.tried:6}{self.matched:9}{self.produced:9}{self.proved:8}"


def prove(rule: Rule, seeds: int = 120, enough: int = 12) -> Tally:
    """Try a rule on generated instances until ``enough`` are proved; raises ``Refuted``."""
    tally = Tally()
    start = zlib.crc32(rule.name.encode())
    for seed in range(start, start + seeds):
        if tally.proved >= enough:
            break
        tally.tried += 1
        made = generate(rule.pattern, seed)
        if made is not None:
            narrow = any(_is_narrow(node) for node in made[0].nodes)
            tally += prove_at(rule, *made, seed, values=not narrow)
    return tally


def _is_narrow(node: Node) -> bool:
    """Whether constants beside it are rounded more than f64 rounds them."""
    return isinstance(node.type, TensorType) and node.dtype.is_float and node.dtype.bits < 64


def prove_match(rule: Rule, match: Match, seed: int = 0) -> Tally:
    """Try a rule on fresh operands of the types that a match bound.

    Types are compared as they are, values with every float in f64, so that no constant is rounded; a rule about narrow
    floats alone is run as it stands.
    """
    found = dict(match._found)
    narrow, wide = (instantiate(rule.pattern, found, widen) for widen in (False, True))
    if narrow is None:
        return Tally()
    tally = prove_at(rule, *narrow, seed, values=False)
    if wide is not None:
        widened = prove_at(rule, *wide, seed)
        tally.proved += widened.proved
        if widened.produced:
            return tally
    if tally.produced:
        tally.proved += prove_at(rule, *narrow, seed).proved
    return tally


def prove_at(rule: Rule, graph: Graph, root: Node, seed: int, values: bool = True) -> Tally:
    """Try a rule wherever it matches one node of a graph; ``values=False`` compares types alone."""
    tally = Tally()
    if not _binds(graph):
        return tally
    for match in match_node(rule.pattern, root):
        tally.matched += 1
        mark = graph.mark()
        right = right_side(rule, graph, match)
        if right is None:
            continue
        tally.produced += 1
        if values:
            tally.proved += _same_values(rule, graph, root, right, seed)
        graph.rollback(mark)
    return tally


def _binds(graph: Graph) -> bool:
    """Whether sizes can take the place of the symbols, and make of every type what it says."""
    if not graph.dynamic_symbols():
        return True
    sizes = {name: 3 + i for i, name in enumerate(graph.dynamic_symbols())}
    try:
        bound = _bound(graph)
        return all(
            [bind_dim(size, sizes) for size in before.shape] == list(after.shape)
            for before, after in zip(graph.nodes, bound.nodes, strict=True)
            if isinstance(before.type, TensorType)
        )
    except DarnerError:
        return False


def _bound(graph: Graph) -> Graph:
    symbols = graph.dynamic_symbols()
    return graph.bind({name: 3 + i for i, name in enumerate(symbols)}) if symbols else graph


def right_side(rule: Rule, graph: Graph, match: Match) -> Node | None:
    """Build what the rule says into the graph, and compare the types; None where the rule does not apply."""
    try:
        result = rule.produce(match)
    except Exception as error:
        what = f"the rule itself fails: {error!r}"
        raise Refuted(_story(rule, graph, match.root.handle, what)) from error
    if result is None:
        return None

    def add(op: Any, slots: Any, attrs: Any, operands: Any) -> Value:
        return node_value(graph.insert(op, [value.handle for value in operands], slots, attrs))

    try:
        right = build(result, match, add).handle
    except DarnerError as error:
        raise Refuted(_story(rule, graph, match.root.handle, f"cannot be built: {error}")) from None
    if right.type != match.root.type:
        what = f"makes {right.type} of {match.root.type}"
        raise Refuted(_story(rule, graph, match.root.handle, what))
    return right


def _story(rule: Rule, graph: Graph, root: Node, what: str) -> str:
    return f"{rule!r}\n{what}\nin this graph, at %{root.id}:\n{graph.to_text()}"


# --------------------------------------------------------------------------- values


def _same_values(rule: Rule, graph: Graph, left: Node, right: Node, seed: int) -> bool:
    """Run both sides on several draws of values; True when a finite number was compared."""
    try:
        concrete = _bound(graph)
    except DarnerError as error:
        raise Refuted(_story(rule, graph, left, f"right side %{right.id}: {error}")) from None
    if rule.mode == "inference":
        concrete = copy_graph(concrete, attrs=_nothing_dropped)
    wide = in_float64(concrete)
    compared = False
    for turn in range(2):
        style = STYLES[(seed + turn) % len(STYLES)]
        rng = np.random.default_rng([seed, turn])
        leaves = {node.id: _leaf_values(node, style, rng) for node in _leaves(wide)}
        try:
            wanted = _parts(_evaluate(wide, left.id, leaves), left)
        except Exception:  # whatever the left side cannot compute is no instance
            continue
        try:
            found = _parts(_evaluate(wide, right.id, leaves), right)
        except Exception as error:
            raise Refuted(_story(rule, graph, left, f"right side %{right.id}: {error}")) from error
        for part, (a, b) in enumerate(zip(wanted, found, strict=True)):
            trial = _Trial(wide, concrete, leaves, part)
            fault = trial.difference(left, right, a, b)
            if fault is not None:
                with np.printoptions(threshold=12):
                    given = "\n".join(f"%{id} = {value!r}" for id, value in leaves.items())
                    what = f"right side %{right.id}: {fault}\nleft {a!r}\nright {b!r}\n{given}"
                raise Refuted(_story(rule, graph, left, what))
            compared |= bool(a.size and (a.dtype.kind != "f" or np.isfinite(a).any()))
    return compared


def _nothing_dropped(node: Node) -> dict[str, Any]:
    """What dropout means at inference."""
    return {**node.attrs, "rate": 0.0} if node.op.name == "dropout" else node.attrs


def _parts(value: Any, node: Node) -> list[Any]:
    return [np.asarray(part) for part in value] if isinstance(node.type, TupleType) else [value]


def _leaves(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if node.name is not None and "leaf" in node.op.traits)


def _leaf_values(node: Node, style: str, rng: np.random.Generator) -> Any:
    shape = tuple(int(size) for size in node.shape)
    if node.dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if node.dtype.kind == "int":
        values = rng.integers(0, _index_limit(node), shape)
        if style == "mixed" and not _indexes(node):
            values = rng.integers(*node.dtype.limits, shape, endpoint=True)
        elif not _indexes(node):
            values = rng.integers(-4 if node.dtype.signed else 0, 5, shape)
        return values.astype(node.dtype.numpy)
    values = rng.normal(size=shape)
    if style == "mixed":
        values = np.sign(values) * 10 ** rng.uniform(-4, 4, shape)
    elif style == "positive":
        values = np.abs(values) + 0.1
    elif style == "coarse":
        values = np.rint(values)
    elif style == "far":
        values = values + 1e6
    return np.asarray(values).astype(node.dtype.numpy)


def _indexes(node: Node) -> bool:
    """Whether some op takes the value as an index."""
    return any(
        getattr(user.op.by_name[slot].kind, "exact", None) == "int"
        for user in node.graph.users(node)
        for slot, operand in zip(user.slots, user.operands, strict=True)
        if operand is node
    )


def _index_limit(node: Node) -> int:
    """An index below this is inside whatever it is used on."""
    sizes = [
        int(size)
        for user in node.graph.users(node)
        for operand in user.operands
        if operand is not node and isinstance(operand.type, TensorType)
        for size in operand.shape
        if size != 0
    ]
    return min(sizes, default=2)


def _evaluate(
    graph: Graph, target: int, leaves: dict[int, Any], noise: "_Noise | None" = None
) -> Any:
    """The value of one node, in NumPy; with ``noise``, every number on the way is a little off."""
    needed = {target}
    for node in graph.reverse_topo():
        if node.id in needed:
            needed.update(node.inputs)
    values: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.id in needed:
                value = leaves.get(node.id)
                if value is None:
                    value = _value(node, [values[i] for i in node.inputs], noise)
                values[node.id] = value if noise is None else noise.on(node, value)
    return values[target]


def _value(node: Node, operands: list[Any], noise: "_Noise | None") -> Any:
    """One node's value; noise reaches into composites, whose parts round too."""
    if noise is None or not node.op.is_composite or isinstance(node.type, TupleType):
        return compute(node, operands)
    body = expansion(node)
    leaves = {leaf.id: operands[int(str(leaf.name))] for leaf in _leaves(body)}
    return _evaluate(body, body.outputs[0].id, leaves, noise.inside(body))


class _Noise:
    """Rounding as an experiment: how far the left side's own rounding can move its result.

    Constants were rounded to the element type of the graph; unless they are short numbers such as 0.5, they are as uncertain
    as that type says.
    """

    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        self._graph = graph
        self._rng = rng

    def inside(self, body: Graph) -> "_Noise":
        """The same experiment in a composite's body."""
        return _Noise(body, self._rng)

    def on(self, node: Node, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.on(node, part) for part in value)
        if not isinstance(value, np.ndarray | np.floating) or value.dtype.kind != "f":
            return value
        amount = np.finfo(np.float64).eps
        if node.op.name == "constant":
            short = np.frexp(value)[0] * 32 % 1 == 0
            own = float(ml_dtypes.finfo(self._graph.nodes[node.id].dtype.numpy).eps)
            amount = np.where(short, 0.0, own)
        return value * (1 + amount * self._rng.choice([-1.0, 1.0], np.shape(value)))


@dataclass(frozen=True)
class _Trial:
    """Both sides on one draw of values; of nodes with several results, one part.

    Attributes:
        graph: both sides, in float64.
        original: both sides in their own element types, which say how uncertain constants are.
    """

    graph: Graph
    original: Graph
    leaves: dict[int, Any]
    part: int

    def difference(self, left: Node, right: Node, wanted: Any, found: Any) -> str | None:
        """What is wrong with the right side's value; where the left side is not finite, anything goes."""
        if wanted.dtype.kind != "f":
            return None if np.array_equal(wanted, found) else "values differ"
        finite = np.isfinite(wanted)
        if not finite.any():
            return None
        length = max([value.size for value in self.leaves.values()] + [wanted.size])
        scale = float(np.abs(wanted[finite]).max())
        with np.errstate(all="ignore"):
            apart = np.where(finite, np.abs(found - wanted), 0.0)
        allowed = np.full(wanted.shape, tolerance("f64", length) * scale)
        if (apart <= allowed).all():
            return None
        sizes = [float(np.abs(value).max()) for value in self.leaves.values() if value.size]
        loss = np.minimum(self._spread(right, found), LOSS * max([*sizes, 1.0]))
        allowed = np.maximum(allowed, np.maximum(self._spread(left, wanted), loss))
        if (apart <= allowed).all():
            return None
        return f"differ by {apart.max()}" if np.isfinite(apart).all() else "not finite"

    def _spread(self, side: Node, value: Any) -> Any:
        """How far rounding on the way to a side's value may move it."""
        spread = np.zeros(value.shape)
        for seed in range(4):
            noise = _Noise(self.original, np.random.default_rng(seed))
            moved = _parts(_evaluate(self.graph, side.id, self.leaves, noise), side)[self.part]
            with np.errstate(all="ignore"):
                change = 64 * np.abs(moved - value)
            # Where rounding alone may leave the finite numbers, nothing is known.
            spread = np.maximum(spread, np.where(np.isfinite(change), change, np.inf))
        return spread


# --------------------------------------------------------------------------- figures


def main(names: list[str]) -> int:
    """Print what became of the instances of each rule, generated and from the graphs that users write."""
    import darner.optimizer.rules  # noqa: F401
    from tests.optimizer.test_rules import prove_written

    write = sys.stdout.write
    head = f"{'tried':>6}{'matched':>9}{'applied':>9}{'proved':>8}"
    write(f"{'':44}{'from the pattern':^32} | {'from graphs':^32}\n{'rule':44}{head} | {head}\n")
    faults = 0
    for rule in list(RULES.values()):
        if names and rule.family not in names and rule.name not in names:
            continue
        columns = []
        for proof in (prove, prove_written):
            try:
                columns.append(str(proof(rule)))
            except AssertionError as error:
                faults += 1
                verdict = "REFUTED" if isinstance(error, Refuted) else "DOES NOT FIRE"
                columns.append(f"{verdict:>32}")
                write(f"--- {error}\n")
        write(f"{rule.name[:43]:44}{columns[0]} | {columns[1]}\n")
    write(f"{faults} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
