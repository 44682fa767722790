"""One op or two of every family of kernels, whose samples are what printers and the emulated device are tried with."""

from functools import cache

from darner.backends.base.lowering import written_specs
from darner.backends.cuda.machine import Machine
from darner.codegen.simt.families import template_of, written
from darner.testing import make_case
from tests.conformance.test_reference import BUILTIN
from tests.cuda.running import MACHINE, lowered

OPS = {op.name: op for op in BUILTIN}

FAMILIES = {
    "elements": ("pow", "remainder", "cos", "cast", "dropout"),
    "complex": ("complex",),
    "contract": ("matmul", "q_matmul"),
    "attention": ("scaled_dot_attention",),
    "scatters": ("scatter_add",),
    "updates": ("cache_update",),
    "rows": ("softmax", "argmax", "layer_norm"),
    "scans": ("cumsum",),
    "conv": ("conv",),
    "solving": ("cholesky",),
    "state space": ("selective_scan", "gated_delta_net"),
    "sorting": ("top_k",),
    "fft": ("fft",),
    "element loops": ("loop",),
    "pooling": ("max_pool", "avg_pool_backward"),
    "splats": ("splat_blend",),
}
"""Ops whose first samples are kernels of a family, by its template."""

ALL = [name for names in FAMILIES.values() for name in names]


@cache
def stages(name, arch="sm_90a", dtype="f32"):
    """The launches of an op's first sample on a card of an architecture."""
    machine = Machine.without_card(arch)
    case = make_case(OPS[name], 0, dtype)
    plan = lowered(case.graph, machine)
    return [
        stage
        for _, spec in written_specs(plan)
        if spec.inner is None
        for stage in written(spec, machine).stages
    ]


def reached():
    """The names of the templates that the families' ops have kernels of."""
    found = set()
    for name in ALL:
        plan = lowered(make_case(OPS[name], 0, "f32").graph)
        found |= {template_of(spec, MACHINE).name for _, spec in written_specs(plan)}
    return found
