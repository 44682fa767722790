"""What lowering has to know of a device."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from sys import maxsize

from ...graph.graph import Graph
from ...graph.node import Node
from ...lower.again import Price
from ...lower.groups import PLAIN, Fusing
from ...lower.plan import ALIGNMENT, Plan, Spec
from ...lower.strided import Multipliers


def _any_spec(spec: Spec) -> bool:
    return True


def _fits(plan: Plan, graph: Graph) -> None:
    return


@dataclass(frozen=True)
class LowerRules:
    """What lowering has to know of a device; as it stands, the rules of one that runs everything.

    Attributes:
        runs: whether it has code for a spec.
        alignment: where every value of the arena begins at a multiple of, in bytes.
        largest: bytes of its largest piece of memory; a larger arena lies in several.
        ended: the ops by index whose kernels may end with what is element-wise after them.
        fusing: what its kernels can do besides; a plan in which a product cannot read halves in pairs has none that does.
        keeps: whether its kernels keep what gradients read of the forward pass (``lower.kept``).
        side_by_side: whether its programs keep several parameters in one buffer, each known by its own name (``Buffer.parts``).
        multipliers: which contractions read operands of fewer bits than f32 where they lie; all that there are, when left out.
        channels_last: which convolutions it computes better with channels last in memory.
        again: what computing a value again costs beside storing and reading it; None where all that several kernels read is stored.
        check: raises where a value of a plan, made of a graph, is more than the device can hold.
    """

    runs: Callable[[Spec], bool] = _any_spec
    alignment: int = ALIGNMENT
    largest: int = maxsize
    ended: Collection[str] = ()
    fusing: Fusing = PLAIN
    keeps: bool = False
    side_by_side: bool = False
    multipliers: Multipliers | None = None
    channels_last: Callable[[Node], bool] | None = None
    again: Price | None = None
    check: Callable[[Plan, Graph], None] = _fits
