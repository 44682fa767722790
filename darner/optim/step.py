"""From the graph of a loss to the graph of a step of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph import dtypes
from ..graph.dtypes import DType
from ..graph.errors import ArgumentError, Calling, nearest
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType
from ..transforms.gradients import Wrt, check_paths, differentiated, has_path, quoted, select
from ..transforms.remat import Remat
from .base import (
    GRADIENT_NORM,
    GRADIENT_SUM,
    Clock,
    KnownAs,
    Optimizer,
    Slot,
    as_dtype,
    fits,
    runs_so_far,
)
from .clipping import clip_by_norm, clip_by_value, global_norm


def training_step(
    loss: Graph,
    optimizer: Optimizer,
    *,
    wrt: Wrt = None,
    gradients: bool = False,
    remat: Remat = None,
) -> Graph:
    """A graph that computes a loss and its gradients, and updates parameters and the optimizer's states.

    Args:
        loss: its first output is the loss, one float.
        optimizer: how parameters follow from gradients.
        wrt: the parameters to train, by name or node; all float parameters by default.
        gradients: add the gradients of this run to the outputs, as they are before clipping, in the order of the
            trained parameters.
        remat: scopes whose values the backward pass computes again; see ``darner.grad``.

    The outputs are those of ``loss``, and its own updates stay. ``darner.run(step, inputs, params, state=state)``
    leaves the updated parameters and states in ``state``.
    """
    with Calling("training_step"):
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(f"the optimizer is one of darner.optim's, got {optimizer!r}")
        chosen = trained_parameters(loss, optimizer, wrt)
        full, found, leaves = differentiated(loss, chosen, remat)
        outputs = [*full.outputs, *found] if gradients else [*full.outputs]
        add_updates(full, optimizer, leaves, found)
        full.set_outputs(outputs)
        return full.toposort()


def trained_parameters(graph: Graph, optimizer: Optimizer, wrt: Wrt) -> list[Node]:
    """The parameters that are updated: those asked for that no multiplier freezes."""
    for prefix in optimizer.multipliers:
        if not any(fits(prefix, name) for name in graph.parameters):
            raise ArgumentError(
                f"graph '{graph.name}' has no parameter or scope '{prefix}', which has a multiplier",
                hint=nearest(prefix, [*graph.parameters, *_scopes(graph)]),
            )
    chosen, updated = [], {leaf.id for leaf in graph.updates}
    for node in select(graph, wrt):
        name = str(node.name or node.label or f"%{node.id}")
        if node.op.name != "parameter":
            raise ArgumentError(f"'{name}' is {node.op.name}: only parameters are trained")
        if optimizer.multiplier(name) == 0.0:
            continue
        _check(node, name, node.id in updated, optimizer)
        chosen.append(node)
    if not chosen:
        raise ArgumentError(
            f"graph '{graph.name}' has no parameter to train",
            hint="all are frozen by multipliers of 0.0" if graph.parameters else None,
        )
    loss = graph.outputs[:1]
    check_paths(graph, chosen, loss)
    if not has_path(graph, chosen, loss):
        raise ArgumentError(
            f"the loss of '{graph.name}' depends on no parameter that is trained: {quoted(chosen)}",
            hint="the first output is the loss; stop_gradient, integers and comparisons pass no gradient",
        )
    return chosen


def _check(node: Node, name: str, updated: bool, optimizer: Optimizer) -> None:
    if node.dtype.kind == "complex" and not optimizer.takes_complex:
        raise ArgumentError(
            f"'{name}' is {node.dtype}: {type(optimizer).__name__} trains real floats",
            hint="train two real parameters and use complex(re, im), or take SGD without clipping",
        )
    if not node.dtype.is_float and node.dtype.kind != "complex":
        raise ArgumentError(f"'{name}' is {node.dtype}: only floats are trained")
    if node.attrs["storage"] != "dense":
        raise ArgumentError(
            f"'{name}' is stored as {node.attrs['storage']}, which cannot take small steps",
            hint=f"freeze it: multipliers={{'{name}': 0.0}}",
        )
    if updated:
        raise ArgumentError(
            f"'{name}' is already updated by this graph",
            hint="give the graph of the loss, or leave the parameter out by wrt",
        )


def _scopes(graph: Graph) -> list[str]:
    found: dict[str, None] = {}
    for name in graph.parameters:
        parts = name.split(".")
        found.update((".".join(parts[:length]), None) for length in range(1, len(parts)))
    return list(found)


@dataclass(frozen=True)
class Summing(Optimizer):
    """The part of any optimizer with ``accumulate`` in the runs that make no update: gradients are added up.

    Whoever knows before a run whether it is the last of those that share an update runs one of two graphs, this one
    and that of ``add_updates(due=True)``. Neither reads what it does not change.
    """

    learning_rate: float = 0.0
    of: Optimizer | None = None
    """Whose runs without an update they are: gradients lie in memory as it has parameters."""

    @classmethod
    def before(cls, optimizer: Optimizer) -> Summing:
        """What runs before the updates of an optimizer: it depends on which parameters are trained, and on which it has side by side."""
        factors = {name: float(f > 0) for name, f in optimizer.multipliers.items()}
        return cls(multipliers=factors, of=optimizer)


# many parameters: the last three are options, by name.
def add_updates(
    graph: Graph,
    optimizer: Optimizer,
    leaves: Sequence[Node],
    gradients: Sequence[Node],
    *,
    due: bool = False,
    known_as: Mapping[str, KnownAs] | None = None,
    checked: Callable[[list[Node]], list[Node]] | None = None,
) -> None:
    """Add to a graph what an optimizer makes of parameters and their gradients.

    With ``accumulate`` the graph finds out itself whether a run makes an update, and computes it in every run; if every
    run of the graph is known to make one, it is ``due``. A leaf that stands for several parameters has the options of the one that it is
    ``known_as``. The gradients of an update, the mean over the runs that share it, pass through ``checked`` before they are clipped.
    """
    wide = [as_dtype(gradient, _computed(gradient.dtype)) for gradient in gradients]
    if isinstance(optimizer, Summing):
        counted = runs_so_far(graph)
        graph.set_update(counted, counted + 1)
        for leaf, gradient in zip(leaves, wide, strict=True):
            graph.set_update(*_summed(graph, leaf, gradient))
        return
    widest = dtypes.f64 if any(leaf.dtype is dtypes.f64 for leaf in leaves) else dtypes.f32
    clock = Clock(graph, optimizer, widest, due)
    means = [_mean(clock, *pair) for pair in zip(leaves, wide, strict=True)]
    limited = _clipped(clock, means if checked is None else checked(means))
    for leaf, gradient in zip(leaves, limited, strict=True):
        # What updates a parameter belongs to its place in the model and its line in the user's code.
        with graph.derived_from(leaf):
            value, master = _value(optimizer, leaf)
            slot = Slot(clock, leaf, value, gradient, (known_as or {}).get(str(leaf.name)))
            slot.finish(optimizer.update(slot), master)


def update_of_elements(optimizer: Optimizer, known_as: KnownAs, type_: TensorType) -> str | None:
    """What an optimizer computes for each element of a parameter, as text; None where that depends on other elements too.

    The parameter has the options of the one that it is ``known_as``. Equal texts mean that parameters may be updated as one.

    >>> from darner import optim
    >>> matrix = TensorType.new((2, 3))
    >>> [update_of_elements(rule, ("w", matrix.shape), matrix) is None for rule in (optim.Adam(), optim.Adafactor())]
    [False, True]
    """
    graph = Graph("update")
    leaf = graph.parameter("leaf", type_.shape, type_.dtype)
    gradient = graph.input("gradient", type_.shape, type_.dtype)
    # A norm of all gradients is the same however they are stored.
    alone = replace(optimizer, clip_norm=None)
    add_updates(graph, alone, [leaf], [gradient], due=True, known_as={"leaf": known_as})
    own = [node for name, node in graph.states.items() if name.startswith("leaf/")]
    reached = {leaf.id, gradient.id, *(state.id for state in own)}
    alike = all(state.shape == leaf.shape for state in own)
    for node in graph.nodes:
        if reached.intersection(node.inputs):
            alike &= "elementwise" in node.op.traits and node.shape == leaf.shape
            reached.add(node.id)
        alike &= "random" not in node.op.traits
    return str(graph) if alike else None


def _computed(dtype: DType) -> DType:
    """The dtype in which a parameter's update is computed and its states are kept."""
    return dtypes.f32 if dtype.is_half else dtype


def _mean(clock: Clock, leaf: Node, gradient: Node) -> Node:
    """The mean of the gradients since the last update, right in runs that make one."""
    if not clock.accumulates:
        return gradient
    graph = clock.graph
    total, summed = _summed(graph, leaf, gradient)
    with graph.derived_from(leaf):
        graph.set_update(total, clock.when_due(summed.zeros_like(), summed))
        return summed / clock.optimizer.accumulate


def _summed(graph: Graph, leaf: Node, gradient: Node) -> tuple[Node, Node]:
    """The state of a parameter's gradients since the last update, and what it is with this one."""
    with graph.derived_from(leaf):
        total = graph.state(f"{leaf.name}{GRADIENT_SUM}", leaf.shape, gradient.dtype)
        return total, total + gradient


def _clipped(clock: Clock, gradients: list[Node]) -> list[Node]:
    """The gradients within the optimizer's bounds; a norm over several dtypes is taken in the widest."""
    optimizer, dtypes_ = clock.optimizer, [gradient.dtype for gradient in gradients]
    if optimizer.clip_value is None and optimizer.clip_norm is None:
        return gradients
    wide = [as_dtype(gradient, clock.dtype) for gradient in gradients]
    if optimizer.clip_value is not None:
        wide = clip_by_value(wide, clock.setting("clip_value"))
    if optimizer.clip_norm is not None:
        norm, last = global_norm(wide), clock.graph.state(GRADIENT_NORM, (), clock.dtype)
        clock.graph.set_update(last, clock.when_due(norm, last))
        wide = clip_by_norm(wide, clock.setting("clip_norm"), norm)
    return [as_dtype(gradient, dtype) for gradient, dtype in zip(wide, dtypes_, strict=True)]


def _value(optimizer: Optimizer, leaf: Node) -> tuple[Node, Node | None]:
    """What a step starts from, and the state of the master copy where there is one."""
    graph, wide = leaf.graph, as_dtype(leaf, _computed(leaf.dtype))
    if not (optimizer.master and leaf.dtype.is_half):
        return wide, None
    master = graph.state(f"{leaf.name}/master", leaf.shape, wide.dtype)
    # The copy counts where it rounds to the parameter. So it needs no special first step, and who sets the parameter
    # (a checkpoint, another model's weights) sets what is trained.
    return graph.where(master.cast(leaf.dtype).eq(leaf), master, wide), master
