"""From the user's graph to plans: optimize, differentiate, attach the optimizer, lower.

The loss and its gradients are optimized together, once for each set of trained parameters; an optimizer is attached to the result, so that another
one costs no second search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..backends.base.lowering import lower_for
from ..backends.base.registry import backend_of
from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.parts import Parts
from ..graph.precision import Precision
from ..lower.plan import Plan
from ..lower.strided import Multipliers, contractions
from ..ops.random.bits import STEP
from ..optim.base import Optimizer
from ..optim.loss_scale import (
    add_scaled_updates,
    all_finite,
    guard,
    is_scaled,
    value_and_scaled_grad,
    with_loss_scale,
)
from ..optim.step import add_updates, trained_parameters
from ..transforms.expand import expand
from ..transforms.gradients import select, value_and_grad
from ..transforms.precision import Rounded, rounded_products
from .config import SessionConfig
from .copies import with_copies
from .groups import Wishes, wishes_of
from .setup import split
from .side_by_side import stored

if TYPE_CHECKING:
    from ..optimizer import OptimizeReport
    from ..optimizer.targets import Target

GRADIENT = "gradient/"
"""Before the names of the inputs of ``update_graph``."""

KEY = "key"
"""Among a plan's options: a hash of all that the plan was made from."""


class Timed(Protocol):
    """Something that measures phases: ``with timed("lower"): ...``."""

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Measure what is done inside."""


@dataclass(frozen=True)
class Plans:
    """The plans of a session for one choice of sizes.

    Attributes:
        step: what each step runs.
        setup: what runs when parameters have changed, where there is such a thing.
        setup_names: the inputs of ``step`` that the outputs of ``setup`` are, in order.
        copies: the states of ``step`` that are rounded copies of parameters, which ``setup`` updates too.
        outputs: how many of the step's outputs are the user's.
        gradients: the parameters whose gradients are the outputs that follow.
        told: says what the optimizer did.
        saved: what the programs of ``step`` and ``setup`` saved, where they were compiled before.
    """

    step: Plan
    setup: Plan | None = None
    setup_names: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    outputs: int = 0
    gradients: tuple[str, ...] = ()
    told: Callable[[], OptimizeReport] = lambda: _nothing()
    saved: tuple[bytes, ...] = ()

    @property
    def report(self) -> OptimizeReport:
        """What the optimizer did."""
        return self.told()


def _nothing() -> OptimizeReport:
    from ..optimizer import OptimizeReport

    return OptimizeReport([])


def trained_names(graph: Graph, optimizer: Optimizer | None) -> tuple[str, ...]:
    """The parameters that have gradients: those the optimizer trains, or all floats where there is none."""
    if optimizer is None:
        nodes = select(graph, None)
    else:
        nodes = trained_parameters(graph, optimizer, None)
    return tuple(str(node.name) for node in nodes)


def keeps_gradients(config: SessionConfig, optimizer: Optimizer | None) -> bool:
    """Whether gradients are among a step's outputs."""
    return optimizer is None if config.keep_gradients is None else config.keep_gradients


def update_graph(graph: Graph, optimizer: Optimizer) -> Graph:
    """The optimizer's part of a step alone: from gradients, which are inputs ``gradient/<name>``.

    It says which states the optimizer has, and what ``sgd_step`` and ``adam_step`` run.
    """
    result = Graph(f"{graph.name}.update")
    leaves, gradients = [], []
    for name in trained_names(graph, optimizer):
        leaf = result.insert_like(graph.parameters[name], [])
        leaves.append(leaf)
        gradients.append(result.input(GRADIENT + name, leaf.shape, leaf.dtype))
    add_updates(result, optimizer, leaves, gradients, due=True)
    if is_scaled(graph):
        guard(result, all_finite(result, gradients))
    return result.toposort()


def attach(full: Graph, optimizer: Optimizer | None, names: Sequence[str], keep: bool) -> Graph:
    """A graph of outputs and gradients with the updates of an optimizer; gradients stay outputs if kept."""
    graph = full.copy()
    count = len(full.outputs) - len(names)
    outputs, gradients = list(graph.outputs[:count]), list(graph.outputs[count:])
    leaves = [graph.parameters[name] for name in names]
    gradients = add_scaled_updates(graph, optimizer, leaves, gradients)
    graph.set_outputs([*outputs, *gradients] if keep else outputs)
    return graph.toposort()


class Pipeline:
    """Makes plans of one graph; what is costly and needed again is kept.

    Args:
        graph: with sizes that are all known.
        config: of the session.
        unbound: the graph as it is for all sizes, by which it is decided what is stored side by side: parameters lie in one way whatever the sizes.
    """

    def __init__(self, graph: Graph, config: SessionConfig, unbound: Graph | None = None) -> None:
        self.graph = graph
        self.config = config
        self._unbound = graph if unbound is None else unbound
        self._optimized: dict[object, tuple[Graph, OptimizeReport]] = {}

    @property
    def target(self) -> Target:
        """The roofline that the optimizer reads."""
        backend = backend_of(self.config.device)
        return backend.target_model(backend.machine(self.config.device))

    def plans(self, optimizer: Optimizer | None, timed: Timed, key: str | None = None) -> Plans:
        """The plans of a session with this optimizer."""
        options: dict[str, Any] = {"mode": self.config.mode, "level": self.config.level}
        if key is not None:
            options[KEY] = key
        if self.config.trains:
            return self._training(optimizer, timed, options)
        return self._inference(timed, options)

    def _training(
        self, optimizer: Optimizer | None, timed: Timed, options: dict[str, Any]
    ) -> Plans:
        from ..optimizer import optimize_training

        config = self.config
        names = trained_names(self.graph, optimizer)
        keep = keeps_gradients(config, optimizer)
        with timed("optimize"):
            wishes = self._wishes(optimizer, names, keep)
            groups = wishes.granted
            if (names, groups) not in self._optimized:
                gradient = _Gradient(config.precision, list(names))
                found = optimize_training(
                    self.graph,
                    list(names),
                    level=config.level,
                    target=self.target,
                    side_by_side=groups,
                    differentiate=gradient,
                )
                self._optimized = {(names, groups): gradient.told(*found)}
        full, plain = self._optimized[names, groups]
        with timed("lower"):
            parts: dict[str, Parts] = {}
            if optimizer is not None and groups:
                joined = stored(full, names, groups)
                report = plain.with_notes(wishes.notes(joined.groups))
                graph, parts = joined.attached(optimizer, keep), joined.parts
            else:
                report = plain.with_notes(wishes.notes(()))
                graph = attach(full, optimizer, names, keep)
            copied = with_copies(_labelled(graph, self.graph), self._multipliers.halves)
            step = lower_for(config.device, copied.step, options, parts)
            first = copied.setup
            setup = None if first is None else lower_for(config.device, first, options, parts)
        kept = names if keep else ()
        count, told = len(self.graph.outputs), report.with_notes(copied.notes)
        return Plans(step, setup, (), copied.names, count, kept, lambda: told)

    @property
    def _multipliers(self) -> Multipliers:
        """Which contractions of the device read operands of fewer bits where they lie."""
        backend = backend_of(self.config.device)
        found = backend.rules(backend.machine(self.config.device)).multipliers
        return Multipliers(contractions()) if found is None else found

    def _wishes(self, optimizer: Optimizer | None, names: Sequence[str], keep: bool) -> Wishes:
        """The parameters that this session may store side by side, and the others that would like it."""
        config = self.config
        backend = backend_of(config.device)
        rules = backend.rules(backend.machine(config.device))
        if config.side_by_side is False or config.level < 2 or not rules.side_by_side:
            return Wishes()
        return wishes_of(
            self._unbound,
            self.target,
            optimizer,
            names,
            keep=keep,
            everywhere=config.side_by_side is True,
            largest=rules.largest,
        )

    def _inference(self, timed: Timed, options: dict[str, Any]) -> Plans:
        from ..optimizer import optimize_inference

        with timed("optimize"):
            graph, report = optimize_inference(
                without_dropout(self.graph), level=self.config.level, target=self.target
            )
            rounded = rounded_products(graph, self.config.precision)
            graph, report = _told(rounded, rounded.graph, report)
        with timed("lower"):
            multipliers = self._multipliers
            if self.config.precision == "tf32" and multipliers.tf32:
                # What reads a weight, and along which axes, is known of primitives.
                graph = expand(graph, keep=lambda node: node.op.facts.whole)
            first, rest, names = split(_labelled(graph, self.graph), multipliers)
            step = lower_for(self.config.device, rest, options)
            setup = None if first is None else lower_for(self.config.device, first, options)
        return Plans(step, setup, names, (), len(self.graph.outputs), (), lambda: report)


def session_graph(graph: Graph, config: SessionConfig) -> Graph:
    """The graph that a session has of the user's: a copy, and with f16 in training the states of loss scaling in it."""
    if config.precision == "f16" and config.trains:
        return with_loss_scale(graph).freeze()
    return graph.copy().freeze()


class _Gradient:
    """Outputs and gradients of an optimized loss, with contractions that multiply in the precision of a session.

    Rounding comes after differentiation, so that gradients are sums in f32 too, and before the graph is optimized once more. With f16 the cotangent of
    the loss is scaled, and so are the gradients.
    """

    def __init__(self, precision: Precision, names: list[str]) -> None:
        self.precision = precision
        self.names = names
        self.rounded: Rounded | None = None

    def __call__(self, forward: Graph) -> Graph:
        both = value_and_scaled_grad if is_scaled(forward) else value_and_grad
        self.rounded = rounded_products(both(forward, self.names), self.precision)
        return self.rounded.graph

    def told(self, graph: Graph, report: OptimizeReport) -> tuple[Graph, OptimizeReport]:
        """What the optimizer made of it, and its report with a line on precision."""
        return graph, report if self.rounded is None else _told(self.rounded, graph, report)[1]


def _told(rounded: Rounded, graph: Graph, report: OptimizeReport) -> tuple[Graph, OptimizeReport]:
    """A graph, and the report with a line on what it computes in what, if that is not f32."""
    notes = [] if rounded.precision == "f32" else [rounded.note]
    return graph, report.with_notes(notes)


def without_dropout(graph: Graph) -> Graph:
    """The graph in which dropout passes on what it gets, as it does in inference at every level.

    Where nothing else is drawn, runs are no longer counted: a training session that shares its states goes on undisturbed.

    >>> g = Graph()
    >>> g.set_outputs([g.input("x", (3,)).dropout(0.5).relu()])
    >>> [node.op.name for node in without_dropout(g).nodes]
    ['input', 'state', 'relu']
    """
    if not any(node.op.name == "dropout" for node in graph.nodes):
        return graph
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op.name == "dropout":
            made[node.id] = made[node.inputs[0]]
        else:
            made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
    result.set_outputs([made[node.id] for node in graph.outputs])
    counts = {made[leaf.id]: made[value.id] for leaf, value in graph.updates.items()}
    for leaf, value in counts.items():
        idle = [*result.users(leaf)] == [value] and not [*result.users(value)]
        if leaf.name != STEP or not idle or result.is_output(value):
            result.set_update(leaf, value)
    result.inherit(graph)
    return result.toposort()


def _labelled(graph: Graph, original: Graph) -> Graph:
    """The graph with outputs called as the user called them, whatever became of their nodes."""
    for new, old in zip(graph.outputs, original.outputs, strict=False):
        if old.label and new.label != old.label and "leaf" not in new.op.traits:
            graph.relabel(new, old.label)
    return graph


def output_names(graph: Graph) -> tuple[str, ...]:
    """What results are called: by their label where it is theirs alone, else ``output0``, ``output1``, ..."""
    labels = [
        node.label or (node.name if "leaf" in node.op.traits else None) for node in graph.outputs
    ]
    return tuple(
        label if label and labels.count(label) == 1 else f"output{i}"
        for i, label in enumerate(labels)
    )


def check_leaves(graph: Graph) -> None:
    """Refuse what cannot be kept between runs of different sizes."""
    if not graph.outputs and not graph.updates:
        raise ArgumentError(f"graph '{graph.name}' has no output", hint="call set_outputs first")
    for leaf in (*graph.parameters.values(), *graph.states.values()):
        if leaf.type.symbols:
            symbols = ", ".join(sorted(leaf.type.symbols))
            raise ArgumentError(
                f"{leaf.op.name} '{leaf.name}' has the size {symbols}, but it is kept between runs",
                hint="bind the graph first: graph.bind(...)",
            )
