"""What the SIMT builder's code looks like as WGSL, and what it refuses."""

import pytest

from darner import Graph
from darner.backends.wgpu.access import Shelf, Windows
from darner.backends.wgpu.machine import Machine
from darner.backends.wgpu.printer import item_of
from darner.codegen.ir.math import emit
from darner.codegen.simt.builder import Memory, Operators, ScalarBuilder, Simt
from darner.codegen.simt.dispatch import Dispatch
from darner.graph.dtypes import bf16, bool_, f16, f32, f64, i32, u32
from darner.graph.errors import InternalError
from darner.lower.plan import Spec

GPU = Machine("some", "DiscreteGPU", "Vulkan", "")


@pytest.fixture
def b():
    return GPU.builder(64)


def lines(b, ways=None):
    return [line if isinstance(line, str) else line.text(ways or {}) for line in b.lines]


# --------------------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda b: (b.local + 3) * 4 + 1, "(local + 3u) * 4u + 1u"),
        (lambda b: b.local - (b.group - 1), "local - (group - 1u)"),
        (lambda b: b.local * (b.group % 5), "local * (group % 5u)"),
        (lambda b: b.local % 5 * b.group, "local % 5u * group"),
        (lambda b: (b.local + 1) >> 2, "(local + 1u) >> 2u"),
        (lambda b: b.local << 2 << 3, "(local << 2u) << 3u"),
        (lambda b: b.local & 3 & b.group, "local & 3u & group"),
        (lambda b: b.local & 3 | b.group, "(local & 3u) | group"),
        (lambda b: ~(b.local ^ 1), "~(local ^ 1u)"),
        (lambda b: (b.local + 1 < 8) & (b.group == 0), "local + 1u < 8u && group == 0u"),
        (
            lambda b: (b.local < 8) & ((b.group == 0) | (b.group > 7)),
            "local < 8u && (group == 0u || group > 7u)",
        ),
        (lambda b: ~(b.local < 8), "!(local < 8u)"),
        (lambda b: 7 - b.local // 2, "7u - local / 2u"),
        (lambda b: b.as_signed(b.local) - 5, "i32(local) - 5i"),
        (lambda b: b.as_signed(b.local) > -5, "i32(local) > (-5i)"),
        (lambda b: b.min(b.local + 1, 9), "min(local + 1u, 9u)"),
        (lambda b: b.choose(b.local < 2, b.local, 0), "select(0u, local, local < 2u)"),
    ],
)
def test_parentheses_stand_where_wgsl_needs_them(b, write, text):
    assert write(b).whole == text


def test_what_changes_nothing_takes_no_code(b):
    for value in (b.local + 0, b.local * 1, b.local // 1, b.local >> 0, 0 + b.local):
        assert value is b.local
    assert (b.local % 1).whole == (b.local * 0).whole == "0u"
    assert b.min(3, 5) == 3


def test_vectors_meet_scalars(b):
    four = b.let(b.constant(1.5, f32, 4), "four")
    assert (four * b.constant(2.0, f32)).whole == "four * 2.0f"
    assert (four < b.constant(2.0, f32)).whole == "four < vec4<f32>(2.0f)"
    assert b.fma(four, four.x, four).whole == "fma(four, vec4<f32>(four.x), four)"
    assert b.call("dot", four, four).width == 1
    assert [part.whole for part in four.parts] == ["four.x", "four.y", "four.z", "four.w"]
    assert b.of_bits(b.bits(four), f32).whole == "bitcast<vec4<f32>>(bitcast<vec4<u32>>(four))"
    with pytest.raises(InternalError, match="no vector"):
        b.local.x


def test_values_of_every_type_pass_through_words(b):
    wide = b.let(b.constant(1.0, f64), "wide")
    low, high = b.words(wide)
    assert b.lines[-1].endswith("= bitcast<u64>(wide);")
    b.of_words([low, high], f64)
    assert "bitcast<f64>(" in b.lines[-1]
    (truth,) = b.words(b.local < 3)
    assert truth.whole == "u32(local < 3u)"
    assert b.of_bits(truth, bool_).whole == "u32(local < 3u) != 0u"
    assert b.half_bits(b.constant(1.0, f32)).whole == "pack2x16float(vec2<f32>(1.0f, 0.0f))"


def test_a_value_has_no_truth_while_it_is_written(b):
    with pytest.raises(InternalError, match="if_"):
        bool(b.local == 3)


# --------------------------------------------------------------------------- variables


def test_a_variable_is_read_where_it_stands(b):
    total = b.variable(0, "total", u32)
    total += b.local
    total.set(total * 2)
    assert lines(b) == [
        "  var total = 0u;",
        "  total = total + local;",
        "  total = total * 2u;",
    ]


def test_an_expression_of_what_a_variable_was_needs_a_name(b):
    total = b.variable(0, "total", u32)
    before, named = total + 1, b.let(total + 1)
    total.set(5)
    assert (named + 1).whole == "v1 + 1u"
    with pytest.raises(InternalError, match="needs a name"):
        b.let(before)


def test_an_expression_from_before_a_loop_that_sets_its_variable_needs_a_name(b):
    total = b.variable(0, "total", u32)
    before = total + 1
    with b.for_(0, 8):
        b.let(before)
        with pytest.raises(InternalError, match="needs a name"):
            total.set(3)


# --------------------------------------------------------------------------- blocks


def test_blocks(b):
    whole = b.for_(b.local, 100, b.threads, name="at")
    with b.if_(b.local < 8, None, b.group == 0), whole as at:
        b.let(at + 1, "next")
        b.break_()
    with b.else_():
        b.return_()
    with b.if_(None):
        b.barrier(buffers=True)
    with b.iterate(32, lambda half: half > 0, lambda half: half >> 1, "half"):
        b.barrier()
    assert lines(b) == [
        "  if (local < 8u && group == 0u) {",
        "    for (var at = local; at < 100u; at += 64u) {",
        "      let next = at + 1u;",
        "      break;",
        "    }",
        "  } else {",
        "    return;",
        "  }",
        "  storageBarrier();",
        "  workgroupBarrier();",
        "  for (var half = 32u; half > 0u; half = half >> 1u) {",
        "    workgroupBarrier();",
        "  }",
    ]


def test_else_follows_its_if(b):
    with b.if_(b.local < 8):
        b.barrier()
    b.barrier()
    with pytest.raises(InternalError, match="follows"), b.else_():
        pass


def test_a_loop_of_a_variable_and_a_switch(b):
    left = b.variable(b.local, "left")
    with b.while_(lambda: left > 0):
        left.set(left >> 1)
    b.switch(b.group % 3, 3, lambda k: left.set(k))
    assert lines(b)[1] == "  while (left > 0u) {"
    assert [line.strip() for line in lines(b) if ":" in line] == [
        "case 0u: {",
        "case 1u: {",
        "default: {",
    ]


def test_names_are_words_that_wgsl_leaves_free(b):
    assert [b.let(b.local, name).whole for name in ("row", "row", "loop", "min", "v", "v")] == [
        "row",
        "row_2",
        "loop_2",
        "min_2",
        "v1",
        "v2",
    ]


def test_what_is_on_trial_leaves_nothing_behind(b):
    assert b.trial(lambda: [b.barrier(), b.barrier()]) == 2
    assert not b.lines


def test_a_function_is_written_once_and_reads_buffers():
    spec = Spec("map", Graph())
    dispatch = Dispatch(spec, GPU)
    b, memory = dispatch.builder, dispatch.scratch(0, 64, f32)
    read = b.function(
        "read", [("at", u32, 1)], lambda inner, at: inner.load(memory, inner.min(at, 63))
    )
    memory[b.thread] = read(b.thread) + read(b.thread + 1)
    text = dispatch.finish(1).text
    assert text.count("fn read(at: u32) -> f32 {") == 1
    assert "= scratch0[min(at, 63u)];" in text
    assert "scratch0[thread] = read(thread) + read(thread + 1u);" in text


def test_a_function_that_hides_where_numbers_come_from_has_a_zero_of_its_own():
    dispatch = Dispatch(Spec("map", Graph()), GPU)
    b, memory = dispatch.builder, dispatch.scratch(0, 64, f32)
    tanh = b.function(
        "tanh_of", [("x", f32, 1)], lambda inner, x: emit("tanh", inner, [x], [f32], f32)
    )
    memory[b.thread] = tanh(memory[b.thread])
    text = dispatch.finish(1).text
    assert "var<private> hidden_zero: u32;" in text
    assert "  hidden_zero = workgroup.z;" in text
    assert "op_tanh_f32_f32(x, hidden_zero)" in text


# --------------------------------------------------------------------------- memory


def test_only_buffers_that_are_read_or_written_are_bound():
    graph = Graph()
    graph.set_outputs([graph.input("0", (4,)) + graph.input("1", (4,))])
    dispatch = Dispatch(Spec("map", graph), GPU)
    b = dispatch.builder
    with b.if_(b.thread < 4):
        dispatch.results[0][b.thread] = dispatch.operand(graph.inputs["1"])[b.thread]
    stage = dispatch.finish(1)
    assert [(x.what, x.number) for x in stage.bindings] == [("operand", 1), ("result", 0)]
    with pytest.raises(InternalError, match="no input"):
        dispatch.operand(graph.outputs[0])


def test_shared_memory_of_several_axes_and_of_truths(b):
    tile = b.shared(f32, (16, 9), "tile", width=4)
    tile[3, b.local // 4, b.local % 4] = tile[b.local, 2].x
    seen = b.shared(bool_, 64, "seen")
    seen[b.local] = b.group == 0
    b.let(seen[0])
    assert lines(b)[:4] == [
        "  let v1 = tile[local][2u];",
        "  tile[3u][local / 4u][local % 4u] = v1.x;",
        "  seen[local] = u32(group == 0u);",
        "  let v2 = seen[0u];",
    ]
    assert b.finish(1, []).text.startswith(
        "var<workgroup> tile: array<array<vec4<f32>, 9>, 16>;\nvar<workgroup> seen: array<u32, 64>;"
    )
    with pytest.raises(InternalError, match="takes 2 indices"):
        tile[0]


def test_a_shared_item_that_all_threads_have(b):
    start = b.shared(i32, (), "start", signed=True)
    with b.if_(b.local == 0):
        start[()] = b.as_signed(b.group) - 3
    found = b.uniform(start) + b.vector([0, 4], like=start[()])
    assert found.whole == "v1 + vec2<i32>(0i, 4i)"
    assert "workgroupUniformLoad(&start);" in b.finish(1, []).text
    assert "var<workgroup> start: i32;" in b.finish(1, []).text


@pytest.mark.parametrize(
    ("dtype", "vector", "kind"),
    [(f32, 1, "f32"), (f32, 4, "vec4<f32>"), (bf16, 4, "vec2<u32>"), (f16, 2, "u32")],
)
def test_items_of_buffers(dtype, vector, kind):
    assert item_of(Memory("x", dtype, vector=vector)) == kind


def test_accesses_go_by_how_a_buffer_is_bound(b):
    x = Memory("x", f32, vector=4, builder=b)
    x[b.local + 1] = x[b.local]
    x[b.local, 2] = x[b.local, b.group].whole and 1.0
    flags = Memory("flags", bool_, atomic=True, builder=b)
    b.atomic("or", flags, b.local >> 2, 1)
    assert lines(b) == [
        "  let v1 = x[local];",
        "  x[local + 1u] = v1;",
        "  let v2 = x[local][group];",
        "  x[local][2u] = 1.0f;",
        "  atomicOr(&flags[local >> 2u], 1u);",
    ]
    assert lines(b, {"x": Shelf("shelf0", 64), "flags": Shelf("shelf1", 0)}) == [
        "  let v1 = shelf0[local + 64u];",
        "  shelf0[local + 1u + 64u] = v1;",
        "  let v2 = shelf0[local + 64u][group];",
        "  shelf0[local + 64u][2u] = 1.0f;",
        "  atomicOr(&shelf1[local >> 2u], 1u);",
    ]
    windows = Windows("flags", "atomic<u32>", 64, 2)
    assert lines(b, {"x": Windows("x", "vec4<f32>", 64, 2), "flags": windows}) == [
        "  let v1 = x_at(local);",
        "  x_put(local + 1u, v1);",
        "  let v2 = x_at(local)[group];",
        "  x_put_part(local, 2u, 1.0f);",
        "  flags_atomicOr(local >> 2u, 1u);",
    ]
    assert "fn flags_atomicOr(i: u32, value: u32) -> u32 {" in windows.functions()
    assert "if (i < 64u) { return atomicOr(&flags_0[i - 0u], value); }" in windows.functions()
    assert "\n  return atomicOr(&flags_1[i - 64u], value);\n}" in windows.functions()


def test_the_printer_has_all_that_a_builder_has(b):
    protocols = (Simt, Operators, ScalarBuilder)
    names = {name for protocol in protocols for name in vars(protocol) if name[0] != "_"}
    assert names > {"for_", "operate", "fadd"}
    assert not [name for name in names if not hasattr(b, name)]
    assert all(hasattr(b, name) for name in Simt.__annotations__)
