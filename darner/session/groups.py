"""Which parameters a training session stores side by side, and why not others.

A group is weights of products that share an operand. It is stored so where the optimizer can update it as one parameter, and where a step is predicted to get
shorter (``optimizer.groups``) or the session was asked for it (``side_by_side=True``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.dtypes import DType
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.parts import Parts
from ..graph.types import TensorType
from ..optim.base import Optimizer
from ..optim.step import Summing, update_of_elements

if TYPE_CHECKING:
    from ..optimizer.targets import Target

Groups = tuple[tuple[str, ...], ...]
"""Parameters that stand side by side, each group by name and in order."""

NAMED = "gradients that are read have names of their own"
LARGE = "a block of them would be larger than a piece of the device's memory"
SLOWER = "it is not predicted to be faster"
DECLINED = "its products were found to be cheaper apart"


@dataclass(frozen=True)
class Fate:
    """A group of weights, why it is not stored side by side (None where it is), and the seconds that a step is predicted to be shorter with it."""

    names: tuple[str, ...]
    fault: str | None
    saving: float


@dataclass(frozen=True)
class Wishes:
    """What became of all groups of a graph."""

    fates: tuple[Fate, ...] = ()

    @property
    def granted(self) -> Groups:
        """The groups that may be stored side by side."""
        return tuple(fate.names for fate in self.fates if fate.fault is None)

    def notes(self, stored: Groups) -> list[str]:
        """A line for all groups of one fate, with the first of them; ``stored`` are those of which the optimizer made one product."""
        kinds: dict[str | None, list[Fate]] = {}
        for fate in self.fates:
            made = fate.fault is not None or fate.names in stored
            kinds.setdefault(fate.fault if made else DECLINED, []).append(fate)
        return [_line(fault, found) for fault, found in kinds.items()]


# many parameters: the last three are options, by name.
def wishes_of(
    graph: Graph,
    target: Target,
    optimizer: Optimizer | None,
    trained: Sequence[str],
    *,
    keep: bool,
    everywhere: bool,
    largest: int,
) -> Wishes:
    """What may be stored side by side in a session, and what may not and why.

    Args:
        graph: of the session.
        target: the roofline by which it is decided what pays.
        optimizer: what updates parameters in each step.
        trained: the parameters that have gradients.
        keep: whether gradients are among a step's outputs.
        everywhere: whether what is not predicted to pay is stored so too.
        largest: bytes of a block at most.
    """
    from ..optimizer.groups import shared_operands

    rules = None if optimizer is None or keep else _Rules(optimizer, trained)
    fates: list[Fate] = []
    for wish in shared_operands(graph):
        leaves = [graph.nodes[i] for i in wish.weights]
        alike = [(leaves, NAMED)] if rules is None else rules.alike(leaves, wish.axis)
        for some, reason in alike:
            saving = wish.of(some).saving(target)
            slower = None if saving > 0 or everywhere else SLOWER
            large = LARGE if sum(int(leaf.type.nbytes) for leaf in some) > largest else None
            fault = reason or large or slower
            fates.append(Fate(tuple(str(x.name) for x in some), fault, saving))
    return Wishes(tuple(fates))


def _line(fault: str | None, found: Sequence[Fate]) -> str:
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    state = "stored side by side" if fault is None else f"not stored side by side, as {fault}"
    saving = sum(fate.saving for fate in found) * 1e3
    effect = f"{abs(saving):.3g} ms a step {'less' if saving >= 0 else 'more'}"
    return f"{'+'.join(found[0].names)}{more}: {state} (predicted: {effect} side by side)"


class _Rules:
    """What an optimizer does to parameters: which of them it may update as one."""

    def __init__(self, optimizer: Optimizer, trained: Sequence[str]) -> None:
        of = optimizer.of if isinstance(optimizer, Summing) else None
        self._optimizer = of or optimizer
        self._trained = frozenset(trained)
        kind = type(self._optimizer)
        # A rule of the user's may look at the name; darner's own look at nothing but what the name decides.
        self._own = kind.__module__.startswith("darner.") and not hasattr(kind, "rule")
        self._known: dict[object, str | None] = {}

    def alike(self, leaves: Sequence[Node], axis: int) -> Iterator[tuple[list[Node], str | None]]:
        """The leaves in groups of those that are updated by one rule, each with the reason why it can be none."""
        name = type(self._optimizer).__name__
        groups: dict[tuple[DType, str | None], list[Node]] = {}
        for leaf in leaves:
            groups.setdefault((leaf.dtype, self._rule(leaf, leaves, axis)), []).append(leaf)
        for (_, rule), some in groups.items():
            if rule is None:
                yield some, f"{name} does not update each element by itself"
            elif len(some) > 1:
                yield some, None
            else:
                yield [*leaves], f"'{some[0].name}' is not updated like the others"

    def _rule(self, leaf: Node, group: Sequence[Node], axis: int) -> str | None:
        """What is computed for each element of a leaf, as text; nothing where it is not trained."""
        optimizer, name = self._optimizer, str(leaf.name)
        if name not in self._trained:
            return ""
        parts = Parts(axis, tuple((str(one.name), one.shape[axis]) for one in group))
        type_ = TensorType((*leaf.shape[:axis], parts.size, *leaf.shape[axis + 1 :]), leaf.dtype)
        decided = (optimizer.multiplier(name), optimizer.decays(name, leaf.shape))
        key = (decided if self._own else name, type_)
        if key not in self._known:
            self._known[key] = update_of_elements(optimizer, (name, leaf.shape), type_)
        return self._known[key]
