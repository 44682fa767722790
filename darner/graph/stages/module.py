"""A graph together with the stage it has reached.

``hir`` is what the user wrote, ``mir`` what will be computed (nothing dead, verified), ``lir`` a plan over memory for one
device. A module prints its stage, is saved as JSON, and moves on by ``lower``, one stage at a time:

    >>> from darner import Graph
    >>> module = Graph.define("ffn", lambda g: g.input("x", (2, 4)).relu())
    >>> module, module.lower()
    (<HirModule 'ffn': 2 nodes, 1 output>, <MirModule 'ffn': 2 nodes, 1 output>)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import ClassVar, TypeAlias, cast

from ..dims import Dim
from ..errors import ArgumentError, Calling, DarnerError, FormatError, LowerError, listed
from ..graph import Graph, check_graph
from ..node import Node

FORMAT = "darner.module"
VERSION = 1
"""The version of a module's saved form."""

STAGES = {"hir": "graph.module", "mir": "graph.module", "lir": "session.stages"}
"""The stages in their order, each with the module of this package that has its class."""

_CLASSES: dict[str, type[GraphModule]] = {}
"""The classes of stages that are loaded."""

Outputs: TypeAlias = "Node | int | Iterable[Node | int]"
"""What ``set_outputs`` takes."""


class GraphModule:
    """A graph at a stage: a ``HirModule``, a ``MirModule`` or a ``LirModule``.

    A subclass says of which stage it is, ``class MirModule(GraphModule, stage="mir")``, and how it is made of the stage before.
    """

    _stage: ClassVar[str] = ""

    def __init_subclass__(cls, *, stage: str = "") -> None:
        if stage:
            cls._stage = stage
            _CLASSES[stage] = cls

    def __init__(self, graph: Graph) -> None:
        with Calling(type(self).__name__):
            if not self._stage:
                raise ArgumentError(
                    "a module is at a stage", hint="write HirModule(graph) or MirModule(graph)"
                )
            self.graph = check_graph(graph)

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.graph.name

    def stage(self) -> str:
        """``"hir"``, ``"mir"`` or ``"lir"``."""
        return self._stage

    def set_outputs(self, outputs: Outputs) -> None:
        """State the results of the graph."""
        self.graph.set_outputs(outputs)

    def lower(self, **options: object) -> GraphModule:
        """The next stage.

        From ``hir``: dead nodes are removed and every rule is verified. From ``mir``: the graph is optimized and planned
        as ``options`` say, which are fields of ``SessionConfig``; without any, for inference on the CPU.
        """
        with Calling("lower"):
            later = list(STAGES)[list(STAGES).index(self._stage) + 1 :]
            if not later:
                raise LowerError(
                    f"module '{self.name}' is at stage {self._stage}, which is the last",
                    hint="build(module) runs it",
                )
            return class_of(later[0]).lowered(self, options)

    @classmethod
    def lowered(cls, module: GraphModule, options: Mapping[str, object]) -> GraphModule:
        """A module of this stage from one of the stage before it."""
        raise LowerError(f"nothing is lowered to stage {cls._stage}")

    def bind(self, bindings: Mapping[str, Dim] | None = None, **sizes: Dim) -> GraphModule:
        """A module of the same stage with sizes in place of symbols; see ``Graph.bind``."""
        return type(self)(self.graph.bind(bindings, **sizes))

    def into_graph(self) -> Graph:
        """The graph itself."""
        return self.graph

    # ------------------------------------------------------------- printing, comparing, saving

    def inspect(self) -> str:
        """The graph's dump under its stage."""
        return f"stage {self._stage}\n{self.graph.inspect()}"

    def __str__(self) -> str:
        return f"stage {self._stage}\n{self.graph}"

    def __repr__(self) -> str:
        count, outputs = len(self.graph), len(self.graph.outputs)
        nodes = f"{count} node{'' if count == 1 else 's'}"
        ends = f"{outputs} output{'' if outputs == 1 else 's'}"
        return f"<{type(self).__name__} '{self.name}': {nodes}, {ends}>"

    def __eq__(self, other: object) -> bool:
        """The same stage of equal graphs."""
        if not isinstance(other, GraphModule):
            return NotImplemented
        return type(self) is type(other) and self.graph == other.graph and self.same_plan(other)

    def same_plan(self, other: GraphModule) -> bool:
        """Whether what a module has beside its graph is the same in another of its stage."""
        return True

    def __hash__(self) -> int:
        return hash((self._stage, self.graph))

    def __reduce__(self) -> tuple[Callable[[str], GraphModule], tuple[str]]:
        """Pickled and copied as JSON."""
        return GraphModule.from_json, (self.to_json(),)

    def to_json(self) -> str:
        """The module as one JSON document."""
        head = {"format": FORMAT, "version": VERSION, "stage": self._stage}
        graph = json.loads(self.graph.to_json())
        document = {**head, "graph": graph, **self.written()}
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def written(self) -> dict[str, object]:
        """What a module has beside its graph, as JSON has it."""
        return {}

    @staticmethod
    def from_json(text: str) -> GraphModule:
        """The module that ``to_json`` wrote, at its stage; the graph is checked as ``Graph.from_json`` does."""
        with Calling("GraphModule.from_json"):
            document = _parsed(text)
            graph = Graph.from_json(json.dumps(document.get("graph")))
            return class_of(document.get("stage")).read(graph, document)

    @classmethod
    def read(cls, graph: Graph, document: Mapping[str, object]) -> GraphModule:
        """A module of this stage from its graph and what ``written`` gave."""
        return cls(graph)


class HirModule(GraphModule, stage="hir"):
    """A graph as the user wrote it; ``Graph.define`` and ``Graph.hir`` make one.

    >>> module = HirModule(Graph("twice"))
    >>> x = module.graph.input("x", (2,))
    >>> unused = x.exp()
    >>> module.set_outputs(x * 2.0)
    >>> len(module.graph), len(module.lower().graph)
    (4, 3)
    """


class MirModule(GraphModule, stage="mir"):
    """A graph that is what will be computed: any graph is one, by ``graph.module()``."""

    @classmethod
    def lowered(cls, module: GraphModule, options: Mapping[str, object]) -> MirModule:
        """The graph without dead nodes, after every rule is verified."""
        if options:
            raise ArgumentError(
                f"lowering from hir takes no {listed(options)}",
                hint="lower().lower(...) plans for a device",
            )
        try:
            return cls(module.graph.toposort().verify())
        except DarnerError as error:
            fault = LowerError(error.rule, hint=error.hint)
            place = error.op or "lower", error.label, error.operands, error.source
            raise fault.located(*place) from error


def class_of(stage: object) -> type[GraphModule]:
    """The class of a stage's modules, loaded when it is first asked for."""
    if not isinstance(stage, str) or stage not in STAGES:
        raise FormatError(f"a stage is one of {', '.join(STAGES)}, not {stage!r}")
    if stage not in _CLASSES:
        import_module(f"{__name__.partition('.')[0]}.{STAGES[stage]}")
    return _CLASSES[stage]


def _parsed(text: str) -> dict[str, object]:
    """The document of a module, whose graph is still to be read."""
    try:
        document = json.loads(text)
    except (ValueError, TypeError) as error:
        raise FormatError(f"not JSON: {error}") from None
    except RecursionError:
        raise FormatError("not a module: the JSON is nested too deeply") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise FormatError(f"not a module: the format is {found!r}, not '{FORMAT}'")
    if document.get("version") != VERSION:
        raise FormatError(
            f"version {document.get('version')!r} of modules is not known here: this darner reads version {VERSION}"
        )
    return cast("dict[str, object]", document)


def check_module(value: object) -> GraphModule:
    """A module, or an error that says what was given instead."""
    if not isinstance(value, GraphModule):
        raise LowerError(f"expected a module, got {type(value).__name__}")
    return value


def graph_of(module: GraphModule) -> Graph:
    """The graph that a module of any stage computes: of one at hir, what it lowers to."""
    return module.lower().graph if check_module(module).stage() == "hir" else module.graph


def graph_at(module: GraphModule, stage: str) -> Graph:
    """The graph of a module that must be at a stage."""
    found = module.stage() if isinstance(module, GraphModule) else type(module).__name__
    if found != stage:
        raise LowerError(f"expected a module at stage {stage}, got {found}")
    return graph_of(module)
