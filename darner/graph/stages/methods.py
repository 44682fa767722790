"""The stages of a graph as methods of it: modules made of graphs, and graphs of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ..errors import Calling

if TYPE_CHECKING:
    from ..graph import Graph
    from .module import GraphModule, HirModule, MirModule, Outputs


class Stages:
    """Gives a graph what makes modules of it; ``darner.graph.stages.module`` says what these are."""

    @staticmethod
    def define(name: str, build: Callable[[Graph], Outputs]) -> HirModule:
        """A module at the hir stage from a function that adds nodes and returns the outputs."""
        module = Stages.hir(name)
        module.set_outputs(build(module.graph))
        return module

    @staticmethod
    def hir(name: str = "graph") -> HirModule:
        """An empty module at the hir stage."""
        from ..graph import Graph
        from .module import HirModule

        return HirModule(Graph(name))

    def module(self) -> MirModule:
        """The graph as a module at the mir stage."""
        from .module import MirModule

        return MirModule(cast("Graph", self))

    def to_mir(self) -> MirModule:
        """The graph as a module at the mir stage."""
        return self.module()

    @staticmethod
    def from_hir(module: HirModule) -> Graph:
        """The graph that a module at the hir stage lowers to, or a ``LowerError``."""
        from .module import graph_at

        with Calling("from_hir"):
            return graph_at(module, "hir")

    @staticmethod
    def from_mir(module: MirModule) -> Graph:
        """The graph of a module at the mir stage."""
        from .module import graph_at

        with Calling("from_mir"):
            return graph_at(module, "mir")

    @staticmethod
    def from_lir(module: GraphModule) -> Graph:
        """The graph that a module at the lir stage was planned from."""
        from .module import graph_at

        with Calling("from_lir"):
            return graph_at(module, "lir")

    @staticmethod
    def try_from(module: GraphModule) -> Graph:
        """The graph of a module at any stage; one at hir is lowered, which may be a ``LowerError``."""
        from .module import graph_of

        with Calling("try_from"):
            return graph_of(module)

    @staticmethod
    def inspect_module(module: GraphModule) -> str:
        """A dump of a module that says its stage."""
        from .module import check_module

        with Calling("inspect_module"):
            return check_module(module).inspect()
