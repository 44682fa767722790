"""Attention on a GPU against the float64 reference: every option, odd sizes, all cuts, element types, less capable devices."""

import copy
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner.codegen.simt.attention import plan as attention_plan
from darner.testing import assert_close
from tests.gpu import needs_gpu

pytestmark = needs_gpu

RNG = np.random.default_rng(7)


def run(graph, arrays, less=(), **limits):
    """The outputs on the GPU, with fewer features or lower limits than it has; every attention must have its own kernel."""
    from darner.backends.wgpu.device import opened
    from darner.backends.wgpu.program import WgpuProgram
    from darner.codegen.simt.families import template_of
    from darner.codegen.simt.machine import GRANULE
    from darner.lower.lower import lower

    device = copy.copy(opened())
    device.machine = device.machine.without(*less, **limits)
    plan = lower(graph, target="gpu", alignment=GRANULE, keeps=True)
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


def stages_of(graph, **limits):
    """The dispatches of a graph's attention."""
    from darner.backends.wgpu.device import opened
    from darner.codegen.simt.families import written
    from darner.lower.lower import lower

    machine = opened().machine.without(**limits)
    plan = lower(graph, target="gpu")
    (spec,) = [spec for spec in plan.specs.values() if spec.kind == "attention"]
    return written(spec, machine).stages


def ops_with_kept(graph):
    """The ops of each attention of a graph, which all keep or read what is kept."""
    from darner.lower.kept import keeps_anything
    from darner.lower.lower import lower

    plan = lower(graph, target="gpu", keeps=True)
    found = [spec for spec in plan.specs.values() if spec.kind == "attention"]
    assert all(keeps_anything(spec.body) for spec in found)
    return [spec.ops for spec in found]


def shared_bytes(text):
    """The memory that a workgroup declares."""
    total = 0
    for kind in re.findall(r"var<workgroup> \w+: (.*);", text):
        count = int(re.search(r", (\d+)>", kind).group(1)) if kind.startswith("array") else 1
        total += count * (8 if "f64" in kind else 4) * (4 if "vec4" in kind else 1)
    return total


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
    empty=False,
    **options,
):
    """An attention or its gradients, and values for its inputs; ``mask``, ``bias`` and ``offset`` are shapes."""
    graph = darner.Graph()
    arrays = {}

    def given_as(name, shape, kind=dtype):
        node = graph.input(name, shape, kind)
        if empty:
            return node
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


@pytest.mark.parametrize("queries", [33, 3], ids=["blocks", "parts"])
def test_gradients_read_what_the_forward_pass_keeps(queries):
    given = {"kv_heads": 1, "causal": True, "softcap": 2.0, "layout": "bshd"}
    graph, arrays = attention_graph(2, 2, queries, 250, 12, backward=True, **given)
    q, k, v = (graph.inputs[name] for name in "qkv")
    attrs = {"causal": True, "softcap": 2.0, "layout": "bshd"}
    graph.set_outputs([graph.scaled_dot_attention(q, k, v, **attrs) * 2.0, *graph.outputs])
    assert len(ops_with_kept(graph)) == 2
    check(graph, arrays, run(graph, arrays), "f32", 250)


CASES = {
    "plain": {"batch": 1, "heads": 2, "queries": 70, "keys": 67, "width": 16},
    "causal, shared keys": {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "queries": 33,
        "keys": 41,
        "width": 20,
        "value_width": 12,
        "causal": True,
        "layout": "bshd",
    },
    "more queries than keys": {
        "batch": 1,
        "heads": 1,
        "queries": 50,
        "keys": 19,
        "width": 7,
        "value_width": 5,
        "causal": True,
        "scale": -0.4,
    },
    "window": {
        "batch": 1,
        "heads": 2,
        "queries": 37,
        "keys": 150,
        "width": 6,
        "window": 9,
        "offset": (1,),
        "layout": "bshd",
    },
    "everything": {
        "batch": 2,
        "heads": 2,
        "kv_heads": 1,
        "queries": 21,
        "keys": 35,
        "width": 9,
        "mask": (2, 1, 21, 35),
        "bias": (2, 21, 35),
        "causal": True,
        "window": 11,
        "softcap": 1.5,
        "offset": (2,),
    },
    "wide rows": {
        "batch": 1,
        "heads": 1,
        "queries": 18,
        "keys": 23,
        "width": 132,
        "value_width": 68,
    },
    "bias of keys": {
        "batch": 2,
        "heads": 2,
        "queries": 17,
        "keys": 70,
        "width": 4,
        "bias": (2, 1, 1, 70),
        "mask": (17, 1),
    },
}
DECODING = {
    "one query": {"batch": 1, "heads": 2, "queries": 1, "keys": 300, "width": 16},
    "shared keys, a cache": {
        "batch": 2,
        "heads": 6,
        "kv_heads": 2,
        "queries": 1,
        "keys": 700,
        "width": 20,
        "value_width": 12,
        "causal": True,
        "offset": (2,),
        "layout": "bshd",
    },
    "few queries, everything": {
        "batch": 1,
        "heads": 2,
        "queries": 3,
        "keys": 333,
        "width": 7,
        "value_width": 5,
        "causal": True,
        "softcap": 1.5,
        "bias": (2, 1, 333),
        "mask": (3, 333),
    },
    "wide rows, a window": {
        "batch": 1,
        "heads": 1,
        "queries": 2,
        "keys": 399,
        "width": 130,
        "value_width": 70,
        "window": 200,
    },
}


def check_case(options, **changes):
    options = {**options, **changes}
    graph, arrays = attention_graph(**options)
    dtype = options.get("dtype", "f32")
    check(graph, arrays, run(graph, arrays), dtype, options["keys"])


@pytest.mark.parametrize(("cut", "case"), list(enumerate(CASES)), ids=str)
def test_every_option_is_what_the_reference_gives(cut, case, monkeypatch):
    # The widest rows fit the last cut, and every cut has its turn.
    monkeypatch.setattr(attention_plan, "CUTS", attention_plan.CUTS[cut : cut + 1])
    if case == "wide rows":
        monkeypatch.undo()
    check_case(CASES[case])


@pytest.mark.parametrize("case", ["everything", "causal, shared keys", "bias of keys"])
def test_gradients_are_what_the_reference_gives(case):
    check_case(CASES[case], backward=True)


@pytest.mark.slow
@pytest.mark.parametrize(("cut", "case"), [(1 + i % 6, case) for i, case in enumerate(CASES)])
def test_gradients_of_every_cut_are_what_the_reference_gives(cut, case, monkeypatch):
    # Where rows are too wide for a cut, the smaller ones take over.
    monkeypatch.setattr(attention_plan, "CUTS", attention_plan.CUTS[cut:])
    monkeypatch.setattr(attention_plan, "_cost", lambda cut, *_: -cut.rows * cut.columns)
    check_case(CASES[case], backward=True)


@pytest.mark.parametrize("case", DECODING)
def test_a_few_queries_over_many_keys(case):
    check_case(DECODING[case])


def test_few_blocks_of_queries_take_parts_of_the_keys():
    options = {"batch": 1, "heads": 1, "queries": 19, "keys": 1503, "width": 8, "causal": True}
    assert len(stages_of(attention_graph(**options)[0])) == 2
    check_case(options, value_width=10, offset=())


def test_a_part_of_the_keys_sees_nothing_and_parts_are_put_together():
    graph, arrays = attention_graph(
        2, 2, 1, 1000, 8, causal=True, offset=(2,), bias=(2, 1, 1, 1000)
    )
    arrays["offset"] = np.array([3, 700], np.int32)
    arrays["bias"][1] = -np.inf
    (found,) = run(graph, arrays)
    check(graph, arrays, [found], "f32", 1000)
    assert not found[1].any()
    assert found[0].all()


def test_queries_that_see_nothing_give_zeros_and_have_no_gradient():
    graph, arrays = attention_graph(1, 1, 20, 30, 4, mask=(20, 30), backward=True)
    arrays["mask"][:7] = False
    found = run(graph, arrays)
    check(graph, arrays, found, "f32", 30)
    assert not found[0][0, 0, :7].any()


def test_a_bias_that_is_the_same_for_all_keys_has_no_gradient():
    graph, arrays = attention_graph(2, 1, 19, 13, 4, bias=(19, 1), backward=True)
    found = run(graph, arrays)
    wanted = darner.run(graph, arrays, float64=True)
    for actual, expected in zip(found[:3], wanted[:3], strict=True):
        assert_close(actual, expected, "f32", 13)
    np.testing.assert_allclose(found[3], 0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_other_element_types(dtype):
    check_case(CASES["everything"], dtype=dtype, width=8, value_width=6)
    check_case(DECODING["one query"], dtype=dtype, value_width=7)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_gradients_of_other_element_types(dtype):
    check_case(CASES["causal, shared keys"], dtype=dtype, backward=True)


def test_a_small_device_has_smaller_blocks():
    limits = {"max_compute_workgroup_storage_size": 16384}
    less = ("subgroup", "subgroup-barrier", "shader-f16", "shader-f64", "shader-int64")
    for options in (CASES["wide rows"], DECODING["wide rows, a window"]):
        graph, arrays = attention_graph(**options)
        check(graph, arrays, run(graph, arrays, less, **limits), "f32", options["keys"])


@pytest.mark.parametrize("limit", [16384, 32768, 49152])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_shared_memory_is_never_more_than_there_is(limit, dtype):
    for width, value_width in ((64, 64), (128, 128), (20, 300), (576, 512), (1, 3)):
        for queries, keys in ((1, 2000), (4, 300), (100, 1000), (4096, 4096)):
            sizes = {"heads": 8, "queries": queries, "keys": keys, "width": width}
            for backward in (False, True):
                graph, _ = attention_graph(
                    1, **sizes, value_width=value_width, dtype=dtype, backward=backward, empty=True
                )
                for stage in stages_of(graph, max_compute_workgroup_storage_size=limit):
                    assert shared_bytes(stage.text) <= limit
                    assert stage.text.count("\n") < 1500


def test_nothing_to_see_and_nobody_who_looks():
    for queries, keys in ((3, 0), (0, 3)):
        graph, arrays = attention_graph(1, 2, queries, keys, 4, backward=True)
        for actual, node in zip(run(graph, arrays), graph.outputs, strict=True):
            np.testing.assert_array_equal(actual, np.zeros(node.shape, np.float32))


@pytest.mark.parametrize("width", [8, 6])
def test_views_are_read_where_they_lie_and_what_follows_is_computed_on_the_way(width):
    graph = darner.Graph()
    qkv = graph.input("qkv", (2, 19, 3, 2, width))
    residual = graph.input("residual", (2, 19, 2, width))
    q, k, v = (qkv[:, :, i] for i in range(3))
    found = graph.scaled_dot_attention(q, k, v, layout="bshd", causal=True)
    raised = (found + residual).relu()
    graph.set_outputs([raised, raised > 0.5])
    arrays = {
        "qkv": RNG.standard_normal((2, 19, 3, 2, width)).astype(np.float32),
        "residual": RNG.standard_normal((2, 19, 2, width)).astype(np.float32),
    }
    actual = run(graph, arrays)
    wanted = darner.run(graph, arrays, float64=True)
    assert_close(actual[0], wanted[0], "f32", 19)
    near = np.abs(wanted[0] - 0.5) < 1e-4
    np.testing.assert_array_equal(actual[1] | near, wanted[1] | near)


@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_any_sizes(data):
    size = st.integers(1, 40)
    kv_heads = data.draw(st.integers(1, 2))
    options = {
        "batch": data.draw(st.integers(1, 2)),
        "heads": kv_heads * data.draw(st.integers(1, 2)),
        "kv_heads": kv_heads,
        "queries": data.draw(size),
        "keys": data.draw(size),
        "width": data.draw(size),
        "value_width": data.draw(size),
        "causal": data.draw(st.booleans()),
        "layout": data.draw(st.sampled_from(["bhsd", "bshd"])),
        "window": data.draw(st.none() | st.integers(1, 20)),
    }
    check_case(options)
