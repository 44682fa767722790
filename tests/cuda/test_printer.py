"""What the SIMT builder's code is as LLVM IR for a card, and what it refuses. What it computes is tested on the emulated device."""

import re

import pytest

from darner import Graph
from darner.backends.cuda.code import parsed, to_ptx
from darner.backends.cuda.machine import Machine
from darner.codegen.simt.dispatch import Dispatch
from darner.graph.dtypes import bf16, f32, f64, u32
from darner.graph.errors import InternalError, UnsupportedError
from darner.lower.plan import Spec

CARD = Machine.without_card("sm_90a")


@pytest.fixture
def dispatch():
    graph = Graph()
    graph.set_outputs([graph.input("0", (64,)) + graph.input("1", (64,))])
    return Dispatch(Spec("map", graph), CARD, threads=64)


@pytest.fixture
def b(dispatch):
    return dispatch.builder


def test_only_buffers_that_are_read_or_written_are_bound_in_the_order_of_the_kernel(dispatch):
    dispatch.results[0][dispatch.builder.thread] = dispatch.operands[1][dispatch.builder.thread]
    stage = dispatch.finish(3)
    assert [(x.what, x.number) for x in stage.bindings] == [("operand", 1), ("result", 0)]
    assert (stage.groups, stage.threads) == ((3, 1, 1), 64)
    (head,) = [line for line in stage.ir.splitlines() if line.startswith("define")]
    assert head.startswith('define ptx_kernel void @"kernel"(ptr addrspace(1) align 16 %"operand1"')
    assert '"nvvm.maxntid"="64"' in head
    parsed(stage.ir)


def test_what_changes_nothing_takes_no_code(b):
    for value in (b.local + 0, b.local * 1, b.local // 1, b.local >> 0, 0 + b.local):
        assert value is b.local
    assert b.min(3, 5) == 3


def test_integers_go_by_their_sign_and_floats_by_ieee_754(b):
    def instruction(value):
        return str(value.value).split(" = ")[1].split()[0:2]

    three = b.variable(b.local, "three")
    assert instruction(b.local // three)[0] == "udiv"
    assert instruction(b.as_signed(b.local) // three)[0] == "sdiv"
    assert instruction(b.as_signed(b.local) >> 1)[0] == "ashr"
    assert instruction(b.local < 3) == ["icmp", "ult"]
    x = b.variable(1.0, "x", f32)
    assert instruction(x != x) == ["fcmp", "une"]
    assert instruction(x < 2.0) == ["fcmp", "olt"]


def test_vectors_are_read_and_written_as_one(dispatch):
    b = dispatch.builder
    four = dispatch.as_vectors(dispatch.operands[0], 4)
    wide = dispatch.scratch(0, 256, f64, vector=4)
    wide[b.thread] = b.constant(1.0, f64, 4)
    dispatch.scratch(4096, 64, f32)[b.thread] = four[b.thread][2]
    text = dispatch.finish(1).ir
    assert "load <4 x float>" in text
    # No memory is known to lie at more than 16 bytes.
    assert "store <4 x double>" in text
    assert "align 16" in text
    assert "align 32" not in text


def test_elements_of_two_bytes_are_written_without_their_neighbours(dispatch):
    b = dispatch.builder
    halves = dispatch.scratch(0, 64, bf16)
    b.store(b.of_bits(b.local, bf16), halves.singles, b.thread)
    text = dispatch.finish(1).ir
    assert "store i16" in text
    assert "atomicrmw" not in text


def test_what_is_on_trial_leaves_nothing_behind(dispatch, b):
    x = dispatch.scratch(0, 64, f32)

    def body():
        total = b.variable(0.0, "total", f32)
        with b.for_(0, 4) as i, b.if_(i < b.local):
            total += x[i]
        x[b.thread] = total

    assert b.trial(body) > 5
    x[b.thread] = 1.0
    stage = dispatch.finish(1)
    assert stage.ir.count("br ") == 1
    assert "alloca" not in stage.ir


def test_else_follows_its_if(b):
    with b.if_(b.local < 8):
        b.barrier()
    b.barrier()
    with pytest.raises(InternalError, match="follows"), b.else_():
        pass


def test_a_launch_asks_for_the_largest_shared_memory_where_code_cannot_declare_all(dispatch):
    b = dispatch.builder
    tile, rest = b.shared(f32, (128, 97), "tile"), b.shared(f32, 64, "rest")
    tile[b.local, 0] = 1.0
    rest[b.local] = 2.0
    stage = dispatch.finish(1)
    assert stage.shared == 4 * 128 * 97
    text = to_ptx(stage.ir, "sm_90a")
    assert re.search(r"\.extern \.shared \.align 16 \.b8 tile\[\]", text)
    assert re.search(r"\.shared \.align 16 \.b8 rest\[256\]", text)


def test_more_shared_memory_than_there_is_is_refused(dispatch):
    b = dispatch.builder
    tile = b.shared(f32, (600, 97), "tile")
    tile[b.local, 0] = 1.0
    with pytest.raises(UnsupportedError, match="232,800 bytes of memory, of 232,448"):
        dispatch.finish(1)


def test_shared_memory_that_gets_no_items_is_left_out(dispatch):
    b = dispatch.builder
    held, other = b.shared(u32, 0, "held"), b.shared(u32, 0, "other")
    other[b.local] = 1
    b.resize(other, 64)
    b.resize(held, 0)
    text = dispatch.finish(1).ir
    assert "[64 x i32]" in text
    assert "held" not in text


def test_more_blocks_than_a_grid_has_are_refused(dispatch):
    with pytest.raises(UnsupportedError, match="blocks is more than a GPU runs"):
        dispatch.finish(1 << 31)


def test_known_numbers_need_no_name_and_values_have_no_truth(b):
    with pytest.raises(InternalError, match="needs no name"):
        b.let(3)
    with pytest.raises(InternalError, match="if_"):
        bool(b.local == 3)
    with pytest.raises(InternalError, match="no vector"):
        b.local.x
