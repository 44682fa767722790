"""``optimize``: a graph in, an equal and cheaper graph out."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

from ..graph.errors import ArgumentError, Calling, did_you_mean
from ..graph.garbage import without_collection
from ..graph.graph import Graph, check_graph
from ..graph.node import Node
from ..transforms.gradients import value_and_grad
from .blocks import Partition, Region, describe, partition
from .bodies import optimize_loops
from .canonical import canonicalise, without_useless
from .choose import Recipe, choose, is_fusion, unchanged
from .declare import RULES, Mode
from .engine import Engine
from .joint import join_products
from .layout import Layouts, SideBySide, plan_layouts
from .price import Pricer
from .rebuild import Rebuilt, rebuild
from .region import make_block, whole
from .report import BlockReport, OptimizeReport, PassReport, Work
from .saturate import USUAL, Budget, EGraph
from .seams import disjoint, find_borders, members
from .targets import Target, find_target
from .work import computes, graph_work

LEVELS = (0, 1, 2, 3)
COVERED = 0.95
"""Below this share of repeated nodes the graph is also optimized in one piece, and the cheaper result taken."""

TAKEN_OVER = (
    "simplified",
    "rules_fired",
    "rule_seconds",
    "declined",
    "blocks",
    "coverage",
    "programs",
)
"""What a pass reports of the candidate that it chose."""

LARGEST = 3000
"""Nodes up to which a graph may be optimized in one piece."""


@overload
def optimize(  # many parameters: they are the user's options, by name
    graph: Graph,
    *,
    target: str | Target = ...,
    level: int = ...,
    mode: Mode = ...,
    before_gradient: bool = ...,
    side_by_side: bool | SideBySide = ...,
    budget: Budget = ...,
    report: Literal[False] = ...,
) -> Graph: ...
@overload
def optimize(  # many parameters: they are the user's options, by name
    graph: Graph,
    *,
    target: str | Target = ...,
    level: int = ...,
    mode: Mode = ...,
    before_gradient: bool = ...,
    side_by_side: bool | SideBySide = ...,
    budget: Budget = ...,
    report: Literal[True],
) -> tuple[Graph, OptimizeReport]: ...
def optimize(  # many parameters: they are the user's options, by name
    graph: Graph,
    *,
    target: str | Target = "cpu",
    level: int = 2,
    mode: Mode = "train",
    before_gradient: bool = False,
    side_by_side: bool | SideBySide = True,
    budget: Budget = USUAL,
    report: bool = False,
) -> Graph | tuple[Graph, OptimizeReport]:
    """An equal graph that is cheaper on a target.

    Args:
        graph: what to optimize. It is not changed; leaves keep their names, used or not.
        target: the machine, by its name ("cpu", "wgpu", "cuda", or one declared with ``target``).
        level: 0 only drops what nothing needs; 1 makes the canonical form; 2 saturates it block by block;
            3 saturates it in one piece besides, and takes the cheaper.
        mode: "train", where parameters change between runs, or "inference", where they do not, dropout does nothing, and
            what is computed from parameters alone is computed once.
        before_gradient: the graph is to be differentiated: forms that have a worse gradient are left for later.
        side_by_side: whoever runs it can store parameters side by side, so that a ``concat`` of them costs nothing: all of them (True), none,
            or these groups of names. In inference it never costs anything.
        budget: how far saturation and extraction may go.
        report: also return an ``OptimizeReport``.

    >>> import darner
    >>> g = darner.Graph()
    >>> x, w, b = g.input("x", (8, 4)), g.parameter("w", (4, 3)), g.parameter("b", (3,))
    >>> h = x @ w + b
    >>> g.set_outputs([h * h.sigmoid()])
    >>> print(darner.optimize(g))
    graph @graph {
      %0 = input(name="x") : f32[8, 4]
      %1 = parameter(name="w") : f32[4, 3]
      %2 = parameter(name="b") : f32[3]
      %3 = fused_matmul(%0, %1, bias=%2, activation="silu") : f32[8, 3]
      return %3
    }
    """
    with Calling("optimize"):
        check_graph(graph)
        if level not in LEVELS:
            raise ArgumentError(f"there is no level {level!r}", hint="0, 1, 2 or 3")
        if mode not in ("train", "inference"):
            raise ArgumentError(f"mode must be 'train' or 'inference', not {mode!r}")
        machine = find_target(target)
    work = _Pass(machine, level, mode, before_gradient, budget, side_by_side)
    with without_collection():
        result = work.run(graph)
    return (result, OptimizeReport([work.report])) if report else result


def optimize_training(  # many parameters: they are the user's options, by name
    graph: Graph,
    wrt: Any = None,
    *,
    target: str | Target = "cpu",
    level: int = 2,
    side_by_side: bool | SideBySide = True,
    budget: Budget = USUAL,
    differentiate: Callable[[Graph], Graph] | None = None,
) -> tuple[Graph, OptimizeReport]:
    """The graph of a loss and its gradients, optimized before and after differentiation.

    Before, so that the gradient is that of the better form (one wide product has one wide gradient); after, for what
    only the whole shows. The result's outputs are those of ``value_and_grad``, or of ``differentiate`` where that is given in its place. ``side_by_side``
    as in ``optimize``.
    """
    options: dict[str, Any] = {"target": target, "level": level, "budget": budget, "report": True}
    options["side_by_side"] = side_by_side
    with without_collection():
        forward, first = optimize(graph, before_gradient=True, **options)
        both = value_and_grad(forward, wrt) if differentiate is None else differentiate(forward)
        result, second = optimize(both, **options)
    first.passes[0].name = "forward"
    second.passes[0].name = "training"
    return result, OptimizeReport([*first.passes, *second.passes])


def optimize_inference(
    graph: Graph, *, target: str | Target = "cpu", level: int = 2, budget: Budget = USUAL
) -> tuple[Graph, OptimizeReport]:
    """The graph optimized for runs in which no parameter changes."""
    return optimize(graph, target=target, level=level, mode="inference", budget=budget, report=True)


def apply_rules(
    graph: Graph,
    names: Iterable[str],
    *,
    prefer: Iterable[str] = (),
    target: str | Target = "cpu",
    mode: Mode = "train",
) -> Graph:
    """An equal graph found by a few rules alone, given by their names in ``RULES``.

    The ops in ``prefer`` are taken wherever a rule makes them, whatever their price. The graph is brought to the canonical form besides.

    >>> import darner
    >>> from darner.optimizer import apply_rules
    >>> g = darner.Graph()
    >>> x = g.input("x", (2, 4))
    >>> g.set_outputs([x * x.sigmoid()])
    >>> [node.op.name for node in apply_rules(g, ["silu"]).nodes]
    ['input', 'silu']
    """
    with Calling("apply_rules"):
        check_graph(graph)
        unknown = [name for name in names if name not in RULES]
        if unknown:
            raise ArgumentError(
                f"there is no rule '{unknown[0]}'", hint=did_you_mean(unknown[0], RULES)
            )
        machine = find_target(target)
    machine = replace(machine, slow={**machine.slow, **dict.fromkeys(prefer, 0.0)})
    work = _Pass(machine, 2, mode, False, USUAL)
    work.rules = tuple(RULES[name] for name in names if RULES[name].runs(mode, False))
    work.extra = []
    with without_collection():
        return work.run(graph)


def dump_egglog_program(graph: Graph, **options: Any) -> str:
    """The egglog program that an optimization of the graph runs, with all that the rules added."""
    options["report"] = True
    _, report = optimize(graph, **options)
    return report.egglog_program


# --------------------------------------------------------------------------- one pass


@dataclass
class _Candidate:
    """A graph made from recipes."""

    rebuilt: Rebuilt
    report: PassReport


class _Pass:
    """The phases of one optimization, timed."""

    def __init__(
        self,
        target: Target,
        level: int,
        mode: Mode,
        before_gradient: bool,
        budget: Budget,
        side_by_side: bool | SideBySide = True,
    ) -> None:
        self.level = level
        self.side_by_side = side_by_side
        self.mode = mode
        self.before_gradient = before_gradient
        self.budget = budget
        self.pricer = Pricer(target)
        self.rules = tuple(rule for rule in RULES.values() if rule.runs(mode, before_gradient))
        self.extra = [join_products]
        name = "inference" if mode == "inference" else "forward" if before_gradient else "graph"
        self.report = PassReport(name, target.name)
        self.inside: list[PassReport] = []
        """What was done inside loops."""

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            phases = self.report.phases
            phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - start

    def run(self, graph: Graph) -> Graph:
        report = self.report
        if self.level:
            with self._timed("loops"):
                graph = optimize_loops(graph, self._body)
        if self.level < 2:
            with self._timed("price"):
                report.nodes_before, report.before = self._work(graph)
        if self.level == 1:
            with self._timed("canonicalise"):
                result, report.simplified = canonicalise(
                    graph, self.mode, before_gradient=self.before_gradient
                )
        else:
            with self._timed("dead nodes"):
                result = without_useless(graph)
            if self.level >= 2:
                result = self._saturated(result)
        for found in self.inside:
            report.fusions += found.fusions
            report.blocks += found.blocks
            report.rules_fired += found.rules_fired
            report.simplified += found.simplified
        with self._timed("verify"):
            result = graph.copy() if result is graph else result
            result.verify()
        with self._timed("price"):
            report.nodes_after, report.after = self._work(result)
        return result

    def _body(self, body: Graph) -> Graph:
        """The body of a loop, optimized as graphs are."""
        alone = _Pass(self.pricer.target, self.level, self.mode, self.before_gradient, self.budget)
        alone.rules, alone.extra = self.rules, self.extra
        result = alone.run(body)
        found, report = alone.report, self.report
        report.notes.append(
            f"the body of loop '{body.name}': {found.nodes_before} nodes, {found.nodes_after} optimized"
        )
        report.notes += found.notes
        self.inside.append(found)
        return result

    def _layouts(self, graph: Graph) -> Layouts:
        if self.side_by_side is True or self.mode == "inference":
            return plan_layouts(graph)
        allowed = self.side_by_side or ()
        return (plan_layouts(graph) if allowed else Layouts()).only(graph, allowed)

    def _work(self, graph: Graph) -> tuple[int, Work]:
        return graph_work(graph, self.pricer, self.mode)

    def _saturated(self, graph: Graph) -> Graph:
        with self._timed("blocks"):
            layouts = self._layouts(graph)
            blocks = partition(graph, lambda leaf: _tag(leaf, layouts), rest_as_one=True)
        with self._timed("price"):
            counts = {
                id: len(regions) for regions in blocks.by_key.values() for id in regions[0].nodes
            }
            self.report.nodes_before, self.report.before = graph_work(
                graph, self.pricer, self.mode, counts
            )
        self.report.notes += layouts.conflicts
        candidates = [self._candidate(graph, blocks, layouts)]
        one_piece = len(blocks.regions) > 1 and (self.level == 3 or blocks.coverage < COVERED)
        nodes = sum(len(region.nodes) for region in blocks.regions)
        if one_piece and nodes <= LARGEST:
            alone = Partition((whole(graph),), 0.0)
            candidates.append(self._candidate(graph, alone, layouts))
        elif one_piece:
            self.report.notes.append(
                f"only {100 * blocks.coverage:.0f}% of the nodes repeat, and {nodes} are "
                f"too many to optimize in one piece ({LARGEST})"
            )
        best = candidates[0]
        if len(candidates) > 1:
            best = min(candidates, key=lambda c: self._work(c.rebuilt.graph)[1].seconds)
        self._describe(best)
        return best.rebuilt.graph

    def _candidate(self, graph: Graph, blocks: Partition, layouts: Layouts) -> _Candidate:
        recipes: dict[Hashable, Recipe] = {}
        found = PassReport(self.report.name, self.report.target, coverage=blocks.coverage)
        for key, regions in blocks.by_key.items():
            start = time.perf_counter()
            recipe, egraph = self._recipe(graph, regions, layouts, found)
            recipes[key] = recipe
            found.blocks.append(
                BlockReport(
                    nodes=len(regions[0].nodes),
                    instances=len(regions),
                    classes=len(set(egraph.classes)),
                    enodes=len(egraph.nodes),
                    iterations=egraph.iterations,
                    exact=recipe.extraction.exact,
                    method=recipe.extraction.method,
                    limit=egraph.limit,
                    seconds=time.perf_counter() - start,
                )
            )
        with self._timed("rebuild"):
            rebuilt = rebuild(graph, blocks.regions, recipes)
        if len(blocks.regions) > 1:
            rebuilt = self._across_borders(rebuilt, blocks.regions, found)
        return _Candidate(rebuilt, found)

    def _across_borders(
        self, rebuilt: Rebuilt, regions: Sequence[Region], found: PassReport
    ) -> Rebuilt:
        """What rules find where blocks meet."""
        graph = rebuilt.graph
        with self._timed("borders"):
            keys = [region.key for region in regions]
            kinds = find_borders(graph, rebuilt.home, keys, self.rules)
            layouts = self._layouts(graph) if kinds else Layouts()
        useful = []
        for borders in kinds:
            first = members(graph, rebuilt.home, borders[0])
            sample = describe(graph, [first], lambda leaf: _tag(leaf, layouts))
            recipe, _ = self._recipe(graph, sample, layouts, found)
            if recipe.cost < recipe.before * (1 - 1e-9):
                useful += [members(graph, rebuilt.home, border) for border in borders]
        if not useful:
            return rebuilt
        with self._timed("borders"):
            again = describe(graph, disjoint(useful), lambda leaf: _tag(leaf, layouts))
        recipes = {
            key: self._recipe(graph, equal, layouts, found)[0]
            for key, equal in Partition(again, 0.0).by_key.items()
        }
        with self._timed("borders"):
            second = rebuild(graph, again, recipes)
        second.fusions += rebuilt.fusions
        found.notes.append(f"{len(again)} borders between blocks were improved")
        return second

    def _recipe(
        self, graph: Graph, regions: Sequence[Region], layouts: Layouts, report: PassReport
    ) -> tuple[Recipe, EGraph]:
        """Saturate one region and extract its cheapest form, for all that are equal to it."""
        region = regions[0]
        with self._timed("canonicalise"):
            engine = Engine(self.rules)
            block = make_block(
                engine,
                graph,
                region,
                self.mode,
                before_gradient=self.before_gradient,
                layouts=shared_layouts(regions, layouts),
            )
        egraph = block.egraph
        with self._timed("saturate"):
            egraph.saturate(self.budget, self.extra)
        with self._timed("extract"):
            recipe = choose(block, region, self.pricer, self.mode, self.budget)
        report.simplified += block.simplified
        report.rules_fired += egraph.applied()
        for name, tally in egraph.tallies.items():
            report.rule_seconds[name] = report.rule_seconds.get(name, 0.0) + tally.seconds
        report.programs.append("\n".join([f"; {len(region.nodes)} nodes", *engine.program]))
        for name, count in egraph.stopped.items():
            report.notes.append(
                f"rule '{name}' was stopped after {count} finds in a block of {len(region.nodes)} nodes"
            )
        kept = unchanged(recipe)
        fused = {step.origin for step in recipe.steps if is_fusion(step.rule)}
        for (name, origin), why in egraph.refused.items():
            if origin in kept - fused:
                self._decline(
                    report, graph, region, origin, str(RULES[name].fusion), f"needs that {why}"
                )
        for label, origin in recipe.declined:
            why = "another form is predicted to be cheaper"
            self._decline(report, graph, region, origin, label, why)
        return recipe, egraph

    @staticmethod
    def _decline(
        report: PassReport, graph: Graph, region: Region, origin: int, label: str, why: str
    ) -> None:
        report.declined.append((label, _place(graph.nodes[region.nodes[origin]]), why))

    def _describe(self, best: _Candidate) -> None:
        """Take over what the chosen candidate reports."""
        report, found = self.report, best.report
        for name in TAKEN_OVER:
            setattr(report, name, getattr(found, name))
        report.notes += found.notes
        report.fusions = [
            (label, _place(like)) for label, node, like in best.rebuilt.fusions if computes(node)
        ]


def shared_layouts(regions: Sequence[Region], layouts: Layouts) -> list[tuple[int, int] | None]:
    """For each input of equal regions its place in a stored block, where that is the same in all of them."""

    def relative(region: Region) -> list[tuple[int, int] | None]:
        first: dict[int, int] = {}
        result: list[tuple[int, int] | None] = []
        for position, id in enumerate(region.inputs):
            place = layouts.places.get(id)
            if place is None:
                result.append(None)
            else:
                result.append((first.setdefault(place[0], position), place[1]))
        return result

    shared = relative(regions[0])
    for region in regions[1:]:
        shared = [a if a == b else None for a, b in zip(shared, relative(region), strict=True)]
    return shared


def _tag(leaf: Node, layouts: Layouts) -> Hashable:
    place = layouts.places.get(leaf.id)
    return None if place is None else (len(layouts.blocks[place[0]]), place[1])


def _place(node: Node) -> str:
    where = f" ({node.source})" if node.source is not None else ""
    return f"{node.label or node.scope or node.op.name}{where}"
