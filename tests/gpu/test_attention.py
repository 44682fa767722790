"""Attention on a GPU against the float64 reference: every option, odd sizes, all cuts, element types, less capable devices."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner.backends.wgpu import attention_plan
from darner.testing import assert_close
from tests.gpu import needs_gpu

pytestmark = needs_gpu

RNG = np.random.default_rng(7)


def run(graph, arrays, less=(), **limits):
    """The outputs on the GPU, with fewer features or lower limits than it has; every attention must have its own kernel."""
    from darner.backends.wgpu.device import GRANULE, opened
    from darner.backends.wgpu.kernels import template_of
    from darner.backends.wgpu.program import WgpuProgram
    from darner.lower.lower import lower

    device = copy.copy(opened())
    device.machine = device.machine.without(*less, **limits)
    plan = lower(graph, target="gpu", alignment=GRANULE)
    for spec in plan.specs.values():
        if spec.kind == "attention":
            assert template_of(spec, device.machine).name == "attention"
    assert any(spec.kind == "attention" for spec in plan.specs.values())
    program = WgpuProgram(plan, device)
    try:
        for name, i in plan.leaves("input").items():
            program.bind(i, np.asarray(arrays[name]))
        program.run()
        program.sync()
        return [program.read(i) for i in plan.outputs]
    finally:
        program.close()


def attention_graph(
    batch,
    heads,
    queries,
    keys,
    width,
    *,
    kv_heads=None,
    value_width=None,
    mask=None,
    bias=None,
    offset=None,
    backward=False,
    dtype="f32",
    layout="bhsd",
    **options,
):
    """An attention or its gradients, and values for its inputs; ``mask``, ``bias`` and ``offset`` are shapes."""
    graph = darner.Graph()
    arrays = {}

    def given_as(name, shape, kind=dtype):
        node = graph.input(name, shape, kind)
        if kind == "bool":
            arrays[name] = RNG.random(shape) < 0.6
        elif kind == "i32":
            arrays[name] = RNG.integers(-2, keys, shape).astype(np.int32)
        else:
            arrays[name] = RNG.standard_normal(shape).astype(node.dtype.numpy)
        return node

    def rows(count, length, size):
        order = (batch, count, length, size)
        return order if layout == "bhsd" else (batch, length, count, size)

    kv_heads = heads if kv_heads is None else kv_heads
    value_width = width if value_width is None else value_width
    operands = [
        given_as("q", rows(heads, queries, width)),
        given_as("k", rows(kv_heads, keys, width)),
        given_as("v", rows(kv_heads, keys, value_width)),
    ]
    if backward:
        operands.append(given_as("dy", rows(heads, queries, value_width)))
    operands.append(None if mask is None else given_as("mask", mask, "bool"))
    operands.append(None if bias is None else given_as("bias", bias))
    if offset is not None:
        options["offset"] = given_as("offset", offset, "i32")
    name = "scaled_dot_attention_backward" if backward else "scaled_dot_attention"
    found = getattr(graph, name)(*operands, layout=layout, **options)
    graph.set_outputs(list(found) if backward else [found])
    return graph, arrays


def check(graph, arrays, found, dtype, length):
    wanted = darner.run(graph, arrays, float64=dtype == "f32")
    for actual, expected in zip(found, wanted, strict=True):
        assert_close(actual, expected, dtype, length)


CASES = {
    "plain": dict(batch=1, heads=2, queries=70, keys=67, width=16),
    "causal, shared keys": dict(
        *[],
        batch=2,
        heads=4,
        kv_heads=2,
        queries=33,
        keys=41,
        width=20,
        value_width=12,
        causal=True,
        layout="bshd",
    ),
    "more queries than keys": dict(
        batch=1, heads=1, queries=50, keys=19, width=7, value_width=5, causal=True, scale=-0.4
    ),
    "window": dict(
        batch=1, heads=2, queries=37, keys=150, width=6, window=9, offset=(1,), layout="bshd"
    ),
    "everything": dict(
        batch=2,
        heads=2,
        kv_heads=1,
        queries=21,
        keys=35,
        width=9,
        mask=(2, 1, 21, 35),
        bias=(2, 21, 35),
        causal=True,
        window=11,
        softcap=1.5,
        offset=(2,),
    ),
    "wide rows": dict(batch=1, heads=1, queries=18, keys=23, width=132, value_width=68),
    "bias of keys": dict(batch=2, heads=2, queries=11, keys=70, width=4, bias=(2, 1, 1, 70)),
    "bias of queries": dict(
        batch=2, heads=2, queries=37, keys=13, width=4, bias=(37, 1), mask=(13,)
    ),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("enough", [1, 10**6], ids=["large", "small"])
@pytest.mark.parametrize("case", CASES)
def test_every_option_is_what_the_reference_gives(case, enough, backward, monkeypatch):
    monkeypatch.setattr(attention_plan, "ENOUGH", enough)
    graph, arrays = attention_graph(**CASES[case], backward=backward)
    check(graph, arrays, run(graph, arrays), "f32", CASES[case]["keys"])
