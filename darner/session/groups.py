"""Which parameters a training session stores side by side, and why not others.

A group is the weights of products that share an operand. It is stored so where the optimizer can update it as one parameter and the graph's optimizer predicts that
a step gets shorter, or where the session was asked for it (``side_by_side=True``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.parts import Parts
from ..graph.types import TensorType
from ..optim.base import KnownAs, Optimizer
from ..optim.step import Summing, update_of_elements

if TYPE_CHECKING:
    from ..optimizer.targets import Target

Groups = tuple[tuple[str, ...], ...]
"""Parameters that stand side by side, each group by name and in order."""


def granted(
    graph: Graph,
    target: Target,
    optimizer: Optimizer | None,
    trained: Sequence[str],
    *,
    keep: bool,
    everywhere: bool,
) -> tuple[Groups, list[str]]:
    """The groups that a session stores side by side, and lines for its report about each kind that was wished for.

    Args:
        graph: of the session.
        target: the roofline by which it is decided what pays.
        optimizer: what updates parameters in each step.
        trained: the parameters that have gradients.
        keep: whether gradients are among a step's outputs.
        everywhere: whether what is not predicted to pay is stored so too.
    """
    from ..optimizer.groups import shared_operands

    wishes = shared_operands(graph)
    if not wishes:
        return (), []
    together = None if optimizer is None else Together(optimizer)
    found, lines = [], []
    for wish in wishes:
        leaves = [graph.nodes[i] for i in wish.weights]
        names = tuple(str(leaf.name) for leaf in leaves)
        saved = wish.saving(target)
        if together is None:
            fault = "without an optimizer gradients are read by their own names"
        elif keep:
            fault = "gradients that are kept are read by their own names"
        else:
            fault = together.fault(leaves, trained, wish.axis)
        if fault is None and saved <= 0 and not everywhere:
            fault = "that is not predicted to be faster"
        lines.append((names, fault, saved))
        if fault is None:
            found.append(names)
    return tuple(found), _told(lines)


def _told(lines: Sequence[tuple[tuple[str, ...], str | None, float]]) -> list[str]:
    """One line for all groups of one fate, with the first of them."""
    kinds: dict[str | None, list[tuple[tuple[str, ...], float]]] = {}
    for names, fault, saved in lines:
        kinds.setdefault(fault, []).append((names, saved))
    told = []
    for fault, groups in kinds.items():
        more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
        total = sum(saved for _, saved in groups) * 1e6
        effect = f"{abs(total):.0f} us a step {'less' if total > 0 else 'more'}"
        state = "are stored side by side" if fault is None else "are stored apart"
        reason = "" if fault is None else f"{fault}; "
        told.append(f"{'+'.join(groups[0][0])}{more} {state}: {reason}side by side is predicted {effect}")
    return told


class Together:
    """Says whether an optimizer may update several parameters as one."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = (optimizer.of or optimizer) if isinstance(optimizer, Summing) else optimizer
        kind = type(self._optimizer)
        # A rule of the user's may look at the name; darner's own look at what the name decides.
        self._own = kind.__module__.startswith("darner.") and not hasattr(kind, "rule")
        self._known: dict[object, str | None] = {}

    def fault(self, leaves: Sequence[Node], trained: Sequence[str], axis: int) -> str | None:
        """Why these parameters cannot be updated as one; None where they can be."""
        optimizer, names = self._optimizer, [str(leaf.name) for leaf in leaves]
        count = len(set(names).intersection(trained))
        if not count:
            return None
        if count < len(names):
            still = next(name for name in names if name not in trained)
            return f"'{still}' is not trained"
        if len({leaf.dtype for leaf in leaves}) > 1:
            return "their element types differ"
        parts = Parts(axis, tuple((str(leaf.name), leaf.shape[axis]) for leaf in leaves))
        shape = (*leaves[0].shape[:axis], parts.size, *leaves[0].shape[axis + 1 :])
        rules = {self._rule((str(x.name), x.shape), TensorType(shape, x.dtype)) for x in leaves}
        if None in rules:
            return f"{type(optimizer).__name__} does not update each element by itself"
        return None if len(rules) == 1 else f"{type(optimizer).__name__} updates them differently"

    def _rule(self, known_as: KnownAs, type_: TensorType) -> str | None:
        name, shape = known_as
        optimizer = self._optimizer
        decided = (optimizer.multiplier(name), optimizer.decays(name, shape))
        key = (decided if self._own else name, type_)
        if key not in self._known:
            self._known[key] = update_of_elements(optimizer, known_as, type_)
        return self._known[key]
