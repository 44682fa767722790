"""The cheapest form in a saturated e-graph, as a recipe that is followed wherever the region occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.op import Op
from ..graph.types import Type
from .blocks import Region
from .declare import RULES, Mode
from .extract import Choice, Extraction, extract
from .price import FREE, Price, Pricer
from .region import Block
from .saturate import Budget, EGraph, ENode


@dataclass(frozen=True, slots=True)
class Step:
    """One node to make.

    Attributes:
        op: None for a value from outside, which is then input number ``origin``.
        text: the attributes as text, by which equal calls are found.
        operands: earlier steps.
        rule: the rule that made it, None for what the region had.
        origin: the position in the region of the node that it comes from.
        credit: the fusion that it is, by its label.
    """

    op: Op | None
    slots: tuple[str, ...]
    attrs: dict[str, Any]
    text: str
    type: Type
    operands: tuple[int, ...]
    rule: str | None
    origin: int
    credit: str | None


@dataclass(frozen=True)
class Recipe:
    """How to make a region's outputs from its inputs.

    Attributes:
        outputs: for each output (a position in the region) the step that makes it.
        cost: predicted seconds of one instance; ``before`` those of the region as it was.
        declined: (label, position) of fusions that were found and would have cost more.
    """

    steps: tuple[Step, ...]
    outputs: dict[int, int]
    cost: float
    before: float
    extraction: Extraction
    declined: tuple[tuple[str, int], ...]


def choose(block: Block, region: Region, pricer: Pricer, mode: Mode, budget: Budget) -> Recipe:
    """Extract the cheapest form of a region."""
    egraph = block.egraph
    members = egraph.members()
    numbers = {name: number for number, name in enumerate(members)}
    free = _free(egraph, members, mode)
    roots = [egraph.classes[handle] for handle in block.outputs]
    waits = _waits(block, region, roots)
    classes: list[list[Choice]] = []
    incumbent: dict[int, int] = {}
    before = 0.0
    for name, found in members.items():
        choices = []
        for index, i in enumerate(found):
            node = egraph.nodes[i]
            price = _price(egraph, node, free, pricer)
            kids = [egraph.classes[kid] for kid in node.children]
            extra = waits.get(name, []) if node.op is None else []
            children = dict.fromkeys(numbers[kid] for kid in (*kids, *extra))
            choices.append(Choice(price.seconds, tuple(children)))
            if node.rule is None:
                before += price.seconds
                incumbent.setdefault(numbers[name], index)
        classes.append(choices)
    found_roots = [numbers[root] for root in roots]
    extraction = extract(classes, found_roots, incumbent=incumbent, seconds=budget.extract_seconds)
    names = list(members)
    picked = {
        names[number]: members[names[number]][index] for number, index in extraction.chosen.items()
    }
    steps, at = _steps(egraph, picked, roots)
    outputs = {position: at[root] for position, root in zip(region.outputs, roots, strict=True)}
    return Recipe(steps, outputs, extraction.cost, before, extraction, _declined(egraph, picked))


def _waits(block: Block, region: Region, roots: Sequence[int]) -> dict[int, list[int]]:
    """For each late input, by class, the outputs that must not be computed from it: it needs them, so to say."""
    ends = dict(zip(region.outputs, roots, strict=True))
    waits: dict[int, list[int]] = {}
    for source, position in region.late:
        if source in block.inputs:
            name = block.egraph.classes[block.inputs[source]]
            waits.setdefault(name, []).append(ends[position])
    return waits


def _price(egraph: EGraph, node: ENode, free: _Free, pricer: Pricer) -> Price:
    if node.op is None:
        return FREE
    if free.covers(egraph, node):
        kids = [egraph.classes[kid] for kid in node.children]
        side_by_side = node.op.name == "concat" and free.parameters.issuperset(kids)
        return FREE if side_by_side else pricer.kept(node.type)
    types = tuple([egraph.nodes[kid].type for kid in node.children])
    return pricer.price(node.op, node.slots, node.attrs, types, node.type)


@dataclass(frozen=True)
class _Free:
    """What a step does not pay for.

    In inference all that is computed from stored values alone is computed once. In training weights change, and
    only their places in memory can be chosen once: a concat of parameters is how they are stored together.
    """

    mode: Mode
    parameters: frozenset[int]
    stored: frozenset[int]

    def covers(self, egraph: EGraph, node: ENode) -> bool:
        if node.op is None or not node.children:
            return False
        if self.mode == "train" and node.op.name != "concat":
            return False
        if node.op.traits & {"random", "barrier"}:
            return False
        return all(egraph.classes[kid] in self.stored for kid in node.children)


def _free(egraph: EGraph, members: Mapping[int, Sequence[int]], mode: Mode) -> _Free:
    parameters = frozenset(
        name
        for name, found in members.items()
        if any(egraph.nodes[i].op is None and egraph.leaf(i) == "parameter" for i in found)
    )
    if mode == "train":
        return _Free(mode, parameters, parameters)
    stored = set(parameters)
    for name, found in members.items():
        if any(_is_constant(egraph.nodes[i]) for i in found):
            stored.add(name)
    grown = True
    while grown:
        grown = False
        free = _Free(mode, parameters, frozenset(stored))
        for name, found in members.items():
            if name not in stored and any(free.covers(egraph, egraph.nodes[i]) for i in found):
                stored.add(name)
                grown = True
    return free


def _is_constant(node: ENode) -> bool:
    return node.op is not None and node.op.name == "constant"


def _steps(
    egraph: EGraph, picked: Mapping[int, int], roots: Sequence[int]
) -> tuple[tuple[Step, ...], dict[int, int]]:
    """The chosen e-nodes in an order in which they can be made."""
    steps: list[Step] = []
    at: dict[int, int] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        name, ready = stack.pop()
        if name in at:
            continue
        node = egraph.nodes[picked[name]]
        kids = [egraph.classes[kid] for kid in node.children]
        if not ready:
            stack.append((name, True))
            stack += [(kid, False) for kid in reversed(kids) if kid not in at]
            continue
        at[name] = len(steps)
        steps.append(
            Step(
                node.op,
                node.slots,
                node.attrs,
                node.text,
                node.type,
                tuple([at[kid] for kid in kids]),
                node.rule,
                node.origin,
                node.credit,
            )
        )
    return tuple(steps), at


def _declined(egraph: EGraph, picked: Mapping[int, int]) -> tuple[tuple[str, int], ...]:
    """Fusions that were found where the graph stays as it was: label and position."""
    chosen = [egraph.nodes[i] for i in picked.values()]
    as_it_was = {node.origin for node in chosen if node.rule is None and _is_call(node)}
    found: dict[tuple[str, int], None] = {}
    for node in egraph.nodes:
        if node.op is None or node.rule is None or node.origin not in as_it_was:
            continue
        if is_fusion(node.rule):
            found[str(RULES[node.rule].fusion), node.origin] = None
    return tuple(found)


def _is_call(node: ENode | Step) -> bool:
    return node.op is not None and "leaf" not in node.op.traits


def unchanged(recipe: Recipe) -> set[int]:
    """The positions of nodes that a recipe makes as they were."""
    return {step.origin for step in recipe.steps if step.rule is None and _is_call(step)}


def is_fusion(name: str | None) -> bool:
    """Whether a rule counts as a fusion."""
    rule = RULES.get(name) if name is not None else None
    return rule is not None and rule.fusion is not None
