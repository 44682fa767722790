"""What the optimizer did, to be printed and to be read by programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SHOWN = 20
"""Rules that a printed report names."""


@dataclass(frozen=True)
class Work:
    """What a graph is predicted to take at every run."""

    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    launches: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.seconds + other.seconds,
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.launches + other.launches,
        )


@dataclass(frozen=True)
class BlockReport:
    """One distinct block.

    Attributes:
        nodes: nodes of one instance, and ``instances`` of it.
        classes, enodes, iterations: the size of its e-graph, and the rounds until nothing new was found.
        exact: whether the cheapest form was proved to be that; ``method`` says how it was found otherwise.
        limit: the budget that was reached, or None.
    """

    nodes: int
    instances: int
    classes: int
    enodes: int
    iterations: int
    exact: bool
    method: str
    limit: str | None
    seconds: float


@dataclass
class PassReport:
    """One run of the optimizer.

    Attributes:
        name: "forward", "training" or "inference"; "graph" where it is not known.
        rules_fired: for each rule, how often it found something new, in one instance of every block.
        rule_seconds: the time spent in each rule's guard and result.
        fusions: (label, place) for each fusion that is in the result.
        declined: (label, place, why) for each that is not.
        phases: seconds of each phase, in order.
        programs: the egglog program of every distinct block.
    """

    name: str
    target: str
    nodes_before: int = 0
    nodes_after: int = 0
    before: Work = Work()
    after: Work = Work()
    rules_fired: Counter[str] = field(default_factory=Counter)
    rule_seconds: dict[str, float] = field(default_factory=dict)
    simplified: Counter[str] = field(default_factory=Counter)
    fusions: list[tuple[str, str]] = field(default_factory=list)
    declined: list[tuple[str, str, str]] = field(default_factory=list)
    blocks: list[BlockReport] = field(default_factory=list)
    coverage: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)

    @property
    def classes(self) -> int:
        """E-classes of all distinct blocks."""
        return sum(block.classes for block in self.blocks)

    @property
    def enodes(self) -> int:
        """E-nodes of all distinct blocks."""
        return sum(block.enodes for block in self.blocks)

    @property
    def fusion_counts(self) -> Counter[str]:
        """How many fusions of each kind the result has."""
        return Counter(label for label, _ in self.fusions)

    @property
    def budgets_hit(self) -> list[str]:
        """Which budgets were reached."""
        return [block.limit for block in self.blocks if block.limit is not None]

    @property
    def is_hurried(self) -> bool:
        """Whether the clock ended a search: on another day it may find something better."""
        hurried = (limit.endswith("seconds") for limit in self.budgets_hit)
        return any(hurried) or not all(block.exact for block in self.blocks)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PassReport:
        """The report whose fields these are."""
        return cls(
            **{
                **values,
                "before": Work(**values["before"]),
                "after": Work(**values["after"]),
                "rules_fired": Counter(values["rules_fired"]),
                "simplified": Counter(values["simplified"]),
                "fusions": [(label, place) for label, place in values["fusions"]],
                "declined": [(label, place, why) for label, place, why in values["declined"]],
                "blocks": [BlockReport(**block) for block in values["blocks"]],
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the programs, as plain values."""
        return {
            "name": self.name,
            "target": self.target,
            "eclasses": self.classes,
            "enodes": self.enodes,
            "iterations": max((block.iterations for block in self.blocks), default=0),
            "rules_fired": dict(self.rules_fired),
            "rule_seconds": dict(self.rule_seconds),
            "simplified": dict(self.simplified),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "before": vars(self.before).copy(),
            "after": vars(self.after).copy(),
            "fusions": [list(item) for item in self.fusions],
            "declined": [list(item) for item in self.declined],
            "blocks": [vars(block).copy() for block in self.blocks],
            "coverage": self.coverage,
            "phases": dict(self.phases),
            "budgets_hit": self.budgets_hit,
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The pass as it prints."""
        saturation = 1e3 * self.phases.get("saturate", 0.0)
        extraction = 1e3 * self.phases.get("extract", 0.0)
        yield (
            f"Egglog saturation: {saturation:.1f}ms ({self.classes} e-classes, {self.enodes} e-nodes)"
        )
        for block in self.blocks:
            proof = "exact" if block.exact else f"not proved ({block.method})"
            limit = f", stopped by its budget of {block.limit}" if block.limit else ""
            yield (
                f"  block of {block.nodes} nodes x{block.instances}: {block.enodes} e-nodes, "
                f"{block.iterations} iterations, {proof}{limit}"
            )
        fired = self.rules_fired + self.simplified
        if fired:
            yield "Rules fired:"
            width = max(map(len, fired))
            ranked = sorted(fired.items(), key=lambda item: (-item[1], item[0]))
            for name, count in ranked[:SHOWN]:
                yield f"  {name:{width}}  x{count}"
            if len(ranked) > SHOWN:
                yield f"  and {len(ranked) - SHOWN} more (see to_dict)"
        gone = self.nodes_before - self.nodes_after
        yield f"Graph: {self.nodes_before} nodes -> {self.nodes_after} active nodes ({gone} fused away)"
        if self.fusions:
            shown = ", ".join(f"{label} x{n}" for label, n in self.fusion_counts.items())
            yield f"Fusions: {shown}"
        yield f"Extract time: {extraction:.1f}ms"
        yield from self._work_lines()
        for label, place, why in _condensed(self.declined):
            yield f"Not fused: {label} @{place}: {why}"
        for note in self.notes:
            yield f"Note: {note}"
        parts = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in self.phases.items())
        yield f"Time per phase (ms): {parts}"

    def _work_lines(self) -> Iterator[str]:
        before, after = self.before, self.after
        yield f"Predicted on {self.target}:"
        rows = (
            ("time", before.seconds * 1e3, after.seconds * 1e3, "ms"),
            ("memory traffic", before.bytes / 1e6, after.bytes / 1e6, "MB"),
            ("arithmetic", before.flops / 1e9, after.flops / 1e9, "GFLOP"),
            ("kernels", before.launches, after.launches, ""),
        )
        for name, old, new, unit in rows:
            change = 100 * (1 - new / old) if old else 0.0
            saved = f"{abs(change):5.1f}% {'less' if change >= 0 else 'more'}" if old else ""
            yield f"  {name:14} {old:10.2f} -> {new:10.2f} {unit:5} {saved}".rstrip()


def _condensed(declined: list[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Equal ones in one line, with the first place and how many more."""
    groups: dict[tuple[str, str], list[str]] = {}
    for label, place, why in declined:
        groups.setdefault((label, why), []).append(place)
    for (label, why), places in groups.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield label, places[0] + more, why


@dataclass
class OptimizeReport:
    """What the optimizer did, in each of its passes.

    ``print(report)`` shows it; ``to_dict`` has everything as plain values; ``egglog_program`` is what egglog ran, to be replayed.

    Attributes:
        passes: one after the other.
        cached: whether it is of an earlier build, whose plan was kept: nothing was searched this time, and times are of that day.
    """

    passes: list[PassReport] = field(default_factory=list)
    cached: bool = False

    @classmethod
    def empty(cls) -> OptimizeReport:
        """A report of nothing."""
        return cls()

    def with_notes(self, notes: Sequence[str]) -> OptimizeReport:
        """The same with more to say, in the last pass."""
        if not notes or not self.passes:
            return self
        last = self.passes[-1]
        more = replace(last, notes=[*last.notes, *notes])
        return OptimizeReport([*self.passes[:-1], more], self.cached)

    @property
    def egglog_program(self) -> str:
        """The egglog programs of all blocks, to be run one after the other in one e-graph.

        Each begins with ``(push)`` and is undone before the next, so that the last one is left to be looked at.
        """
        programs = [program for item in self.passes for program in item.programs]
        return "\n(pop)\n".join(f"(push)\n{program}" for program in programs)

    @property
    def num_eclasses(self) -> int:
        """E-classes of all passes."""
        return sum(item.classes for item in self.passes)

    @property
    def num_enodes(self) -> int:
        """E-nodes of all passes."""
        return sum(item.enodes for item in self.passes)

    @property
    def rules_fired(self) -> list[tuple[str, int]]:
        """Each rule and how often it found something new, most often first."""
        total: Counter[str] = Counter()
        for item in self.passes:
            total += item.rules_fired + item.simplified
        return sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))

    @property
    def nodes_before(self) -> int:
        """Nodes that went into the first pass."""
        return self.passes[0].nodes_before if self.passes else 0

    @property
    def nodes_after(self) -> int:
        """Nodes that came out of the last."""
        return self.passes[-1].nodes_after if self.passes else 0

    @property
    def fusions_applied(self) -> list[tuple[str, str]]:
        """(label, place) of every fusion, pass after pass."""
        return [pair for item in self.passes for pair in item.fusions]

    @property
    def egglog_time(self) -> float:
        """Seconds of saturation."""
        return sum(item.phases.get("saturate", 0.0) for item in self.passes)

    @property
    def extract_time(self) -> float:
        """Seconds of extraction."""
        return sum(item.phases.get("extract", 0.0) for item in self.passes)

    @property
    def seconds(self) -> float:
        """Seconds of everything."""
        return sum(sum(item.phases.values()) for item in self.passes)

    @property
    def is_hurried(self) -> bool:
        """Whether the clock ended a search in one of the passes."""
        return any(item.is_hurried for item in self.passes)

    def to_json(self) -> str:
        """All of it, the programs included, as text that ``from_json`` reads."""
        return json.dumps(
            [
                {
                    **vars(item),
                    "before": vars(item.before),
                    "after": vars(item.after),
                    "blocks": [vars(block) for block in item.blocks],
                }
                for item in self.passes
            ]
        )

    @classmethod
    def from_json(cls, text: str, *, cached: bool = False) -> OptimizeReport:
        """The report that ``to_json`` wrote."""
        return cls([PassReport.from_dict(values) for values in json.loads(text)], cached)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, ready for JSON; the programs are left out."""
        return {
            "cached": self.cached,
            "num_eclasses": self.num_eclasses,
            "num_enodes": self.num_enodes,
            "rules_fired": [list(pair) for pair in self.rules_fired],
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "egglog_time": self.egglog_time,
            "extract_time": self.extract_time,
            "seconds": self.seconds,
            "passes": [item.to_dict() for item in self.passes],
        }

    def __str__(self) -> str:
        lines = ["=== Optimization Report ==="]
        if self.cached:
            lines.append("Of the build that made the cached plan: nothing was searched this time.")
        for item in self.passes:
            if len(self.passes) > 1:
                lines.append(f"--- {item.name} ---")
            lines += item.lines()
        return "\n".join(lines)
