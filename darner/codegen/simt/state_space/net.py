"""The gated delta rule: a thread goes along the sequence for one column of a head's matrix, which needs no others."""

from __future__ import annotations

from ....graph.node import Node
from ....lower.plan import Spec
from ...problems.state_space import NET_FINAL, Net
from ..dispatch import Written
from ..machine import Machine
from .scan import Threads


def write_net(spec: Spec, machine: Machine, node: Node) -> Written:
    """The stage of a rule; none where it has no elements."""
    net = Net.of(node)
    count = net.batch * net.heads * net.width
    if not count:
        return Written(())
    t = Threads(spec, machine, node)
    b = t.b
    with b.if_(b.thread < count):
        column = b.let(b.thread % net.width, "column")
        head = b.let(b.thread // net.width % net.heads, "head")
        batch = b.let(b.thread // (net.width * net.heads), "batch")
        matrix = t.states(net.width, "matrix")
        if net.has_state:
            with b.for_(0, net.width, name="row") as row:
                matrix[row] = t.read("state", batch, head, row, column)
        with b.for_(0, net.steps, name="step") as step:
            kept = b.let(t.exp(t.read("g", batch, step, head)), "kept")
            known = b.variable(t.zero(), "known")
            with b.for_(0, net.width, name="row") as row:
                known.set(b.fma(matrix[row], t.read("k", batch, step, head, row), known))
            missed = t.read("v", batch, step, head, column) - kept * known
            written = b.let(t.read("beta", batch, step, head) * missed, "written")
            found = b.variable(t.zero(), "found")
            with b.for_(0, net.width, name="row") as row:
                left = kept * matrix[row]
                new = b.let(b.fma(t.read("k", batch, step, head, row), written, left), "new")
                matrix[row] = new
                found.set(b.fma(t.read("q", batch, step, head, row), new, found))
            t.put(0, node.operands[0], found * net.scale, batch, step, head, column)
        if node.op.name == NET_FINAL:
            with b.for_(0, net.width, name="row") as row:
                t.put(1, node.operands[5], matrix[row], batch, head, row, column)
    return Written((t.finish(count),))
