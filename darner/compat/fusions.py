"""Meganeura's passes that apply one fusion wherever it is possible, whether or not it is predicted to pay."""

from __future__ import annotations

from ..graph.graph import Graph
from ..optimizer.declare import RULES
from ..optimizer.passes import apply_rules

_RMS_NORM = [name for name in RULES if name.startswith("rms_norm before ")]
_GROUP_NORM = [name for name in RULES if name.startswith("group_norm_silu")]


def apply_rms_norm_matmul_fusions(graph: Graph) -> Graph:
    """The graph with each ``matmul(rms_norm(x, w), p)`` as one op.

    The optimizer takes this op only where it is predicted to be cheaper; here it is taken everywhere.

    >>> import darner
    >>> g = darner.Graph()
    >>> x, w, p = g.input("x", (4, 8)), g.parameter("w", (8,)), g.parameter("p", (8, 2))
    >>> g.set_outputs([x.rms_norm(w) @ p])
    >>> [node.op.name for node in darner.apply_rms_norm_matmul_fusions(g).nodes][-1]
    'norm_matmul'
    """
    return apply_rules(graph, _RMS_NORM, prefer=["norm_matmul"])


def apply_group_norm_silu_fusions(graph: Graph) -> Graph:
    """The graph with each ``silu(group_norm(x, ...))`` as one op, for inference.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (1, 4, 2, 2))
    >>> g.set_outputs([x.group_norm(None, None, 2).silu()])
    >>> [node.op.name for node in darner.apply_group_norm_silu_fusions(g).nodes]
    ['input', 'group_norm_silu']
    """
    return apply_rules(graph, _GROUP_NORM, prefer=["group_norm_silu"], mode="inference")
