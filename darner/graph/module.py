"""A graph together with the stage it has reached.

``hir`` is what the user wrote, ``mir`` what will be computed (nothing dead, verified), ``lir`` a plan over
memory. A module prints its stage and moves one stage at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import ArgumentError, caller
from .graph import Graph

STAGES = ("hir", "mir", "lir")


class GraphModule:
    """A graph at a stage."""

    def __init__(self, graph: Graph, stage: str) -> None:
        if stage not in STAGES:
            raise ArgumentError(f"a stage is one of {', '.join(STAGES)}, not '{stage}'")
        self.graph = graph
        self._stage = stage

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.graph.name

    def stage(self) -> str:
        """``"hir"``, ``"mir"`` or ``"lir"``."""
        return self._stage

    def set_outputs(self, outputs: Any) -> None:
        """State the results of the graph."""
        self.graph.set_outputs(outputs)

    def lower(self) -> GraphModule:
        """The next stage. From ``hir``: dead nodes are removed and every rule is verified."""
        if self._stage != "hir":
            raise ArgumentError(
                f"module '{self.name}' is at stage {self._stage}; only hir lowers to a graph",
            ).located("lower", None, "", caller())
        return GraphModule(self.graph.toposort().verify(), "mir")

    def into_graph(self) -> Graph:
        """The graph itself."""
        return self.graph

    def inspect(self) -> str:
        """The graph's dump under its stage."""
        return f"stage {self._stage}\n{self.graph.inspect()}"

    def __str__(self) -> str:
        return f"stage {self._stage}\n{self.graph}"


def define(name: str, build: Callable[[Graph], Any]) -> GraphModule:
    """A module at the hir stage from a function that adds nodes and returns the outputs."""
    graph = Graph(name)
    graph.set_outputs(build(graph))
    return GraphModule(graph, "hir")


def lower_to_graph(module: Any) -> Graph:
    """The mir graph of a hir module."""
    _require_stage("from_hir", module, "hir")
    return module.lower().graph


def graph_of_lir(module: Any) -> Graph:
    """The graph that a lir module was planned from."""
    _require_stage("from_lir", module, "lir")
    return module.graph


def _require_stage(call: str, module: Any, stage: str) -> None:
    if not isinstance(module, GraphModule) or module.stage() != stage:
        found = module.stage() if isinstance(module, GraphModule) else type(module).__name__
        raise ArgumentError(f"expected a module at stage {stage}, got {found}").located(
            call, None, "", caller()
        )
