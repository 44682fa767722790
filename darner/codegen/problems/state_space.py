"""Selective scans and gated delta rules as typed problems: which node it is, its sizes, and which of its results are wanted."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.dtypes import DType
from ...graph.node import Node
from ...lower.plan import Spec
from ...lower.specs import sizes
from ..ir.types import accumulator_type

SCAN = "selective_scan"
SCAN_BACKWARD = "selective_scan_backward"
NET = "gated_delta_net"
NET_FINAL = "gated_delta_net_final"
NET_BACKWARD = "gated_delta_net_backward"


def wanted(spec: Spec) -> dict[int, int]:
    """Which results of the node are wanted, each with its position among those of the kernel."""
    outputs = enumerate(spec.body.outputs)
    return {int(o.attrs["index"]) if o.op.name == "project" else 0: i for i, o in outputs}


@dataclass(frozen=True)
class Scan:
    """The sizes of a selective scan.

    Attributes:
        dtype: the type that is computed in.
    """

    batch: int
    steps: int
    channels: int
    size: int
    dtype: DType

    @classmethod
    def of(cls, node: Node) -> Scan:
        """Those of a scan, or of its gradients."""
        x, a = node.operands[0], node.operands[2]
        batch, steps, channels = sizes(x)
        return cls(batch, steps, channels, sizes(a)[1], accumulator_type(x.dtype))


@dataclass(frozen=True)
class Net:
    """The sizes of a gated delta rule.

    Attributes:
        dtype: the type that is computed in.
        has_state: whether it begins with a state.
    """

    batch: int
    steps: int
    heads: int
    width: int
    dtype: DType
    has_state: bool

    @classmethod
    def of(cls, node: Node) -> Net:
        """Those of a rule, or of its gradients."""
        q = node.operands[0]
        batch, steps, heads, width = sizes(q)
        kind = accumulator_type(q.dtype)
        return cls(batch, steps, heads, width, kind, "state" in node.slots)

    @property
    def scale(self) -> float:
        """What results are multiplied by."""
        return self.width**-0.5 if self.width else 1.0
