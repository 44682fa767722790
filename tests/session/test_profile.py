"""Profiles: the work of kernels against hand counts, times against a scripted clock, and traces that load."""

import io
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.reference.program import ReferenceProgram
from darner.graph.errors import ArgumentError, RunError
from darner.lower.lower import lower
from darner.lower.work import KernelWork, kernel_work
from darner.optim import Adam, training_step
from darner.optimizer.targets import Target
from darner.session import recorder as recording
from darner.session.memory_map import memory_map
from darner.session.recorder import Recorder, profile
from tests.conformance import examples
from tests.cpu.running import compiled, run_program
from tests.zoo import llama, trained, values

MACHINE = Target("toy", flops=1e9, bandwidth=1e9, launch=0.0, vector=0.5)


def work_of(graph, whole=("dot_general",), target="cpu"):
    plan = lower(graph, target=target, whole=whole)
    return [kernel_work(plan, k) for k in range(len(plan.kernels))]


def mlp(batch=16, inner=24, wide=32):
    g = Graph("mlp")
    x = g.input("x", (batch, inner))
    h = (x @ g.parameter("w", (inner, wide)) + g.parameter("b", (wide,))).relu(label="hidden")
    y = h @ g.parameter("v", (wide, 3))
    g.set_outputs([y.log_softmax().square().mean(label="loss")])
    return g


@pytest.fixture(scope="module")
def trained_program():
    graph = training_step(mlp(), Adam(1e-2))
    program = compiled(graph, whole={"dot_general"}, threads=2)
    inputs, params, _ = values(graph)
    run_program(program, inputs, params)
    yield program
    program.close()


# --------------------------------------------------------------------------- work


@settings(max_examples=examples(20), deadline=None)
@given(m=st.integers(1, 40), n=st.integers(1, 40), k=st.integers(1, 40))
def test_a_matmul_is_two_flops_for_each_product_and_moves_each_operand_once(m, n, k):
    g = Graph()
    g.set_outputs([g.input("x", (m, k)) @ g.parameter("w", (k, n))])
    (work,) = work_of(g)
    assert work.contraction_flops == work.flops == 2 * m * n * k
    assert work.read == 4 * (m * k + k * n)
    assert work.written == 4 * m * n


def test_what_is_fused_adds_flops_and_no_traffic():
    g = Graph()
    y = g.input("x", (5, 7)) @ g.parameter("w", (7, 3)) + g.parameter("b", (3,))
    g.set_outputs([y.relu()])
    (work,) = work_of(g)
    assert work.contraction_flops == 2 * 5 * 7 * 3
    assert work.other_flops == 2 * 5 * 3
    assert work.bytes == 4 * (5 * 7 + 7 * 3 + 3 + 5 * 3)


def test_a_batch_of_bf16_products_moves_two_bytes_an_element():
    g = Graph()
    a, b = g.input("a", (4, 5, 6), "bf16"), g.input("b", (4, 6, 7), "bf16")
    batched = {"a_contract": (2,), "b_contract": (1,), "a_batch": (0,), "b_batch": (0,)}
    g.set_outputs([g.dot_general(a, b, **batched)])
    (work,) = work_of(g)
    assert work.flops == 2 * 4 * 5 * 6 * 7
    assert work.bytes == 2 * (4 * 5 * 6 + 4 * 6 * 7 + 4 * 5 * 7)
    assert work.half
    twice = Target("twice", flops=1e9, bandwidth=1e12, launch=0.0, half=2.0)
    assert work.seconds(twice) == pytest.approx(work.flops / 2e9)


def test_a_convolution_counts_every_tap():
    g = Graph()
    g.set_outputs([g.conv2d(g.input("x", (2, 3, 8, 9)), g.parameter("w", (4, 3, 3, 2)))])
    works = work_of(g, whole=("conv",), target="reference")
    assert sum(work.contraction_flops for work in works) == 2 * (2 * 4 * 6 * 8) * (3 * 3 * 2)


def test_an_operand_counts_once_however_often_it_is_read():
    g = Graph()
    x = g.input("x", (100,))
    g.set_outputs([x * x + x])
    (work,) = work_of(g)
    assert (work.read, work.written, work.flops) == (400, 400, 200)


def test_a_sum_works_on_every_element_it_reads():
    g = Graph()
    g.set_outputs([g.input("x", (6, 50)).sum(axis=1)])
    (work,) = work_of(g)
    assert (work.flops, work.read, work.written) == (300, 1200, 24)


def test_of_a_table_only_the_rows_that_are_looked_up_are_read():
    g = Graph()
    g.set_outputs([g.embedding(g.input("ids", (5,), "u32"), g.parameter("table", (1000, 8)))])
    works = work_of(g)
    assert sum(work.bytes for work in works) == 4 * 5 + 2 * 4 * 5 * 8
    assert sum(work.flops for work in works) == 0


def test_of_a_slice_only_its_part_is_read():
    g = Graph()
    x = g.input("x", (100, 8))
    g.set_outputs([x[10:13].exp()])
    (work,) = work_of(g)
    assert (work.read, work.written) == (4 * 24, 4 * 24)


def test_what_is_changed_in_place_moves_only_what_is_replaced():
    g = Graph()
    cache = g.state("cache", (64, 8))
    new, at = g.input("new", (1, 8)), g.input("at", (2,), "i32")
    g.set_update(cache, g.dynamic_update_slice(cache, new, at))
    g.set_outputs([new * 2.0])
    plan = lower(g, target="cpu", whole=())
    (cached,) = [k for k in range(len(plan.kernels)) if plan.kernels[k].results == (0,)]
    work = kernel_work(plan, cached)
    assert work.written == 4 * 8
    assert work.read == 4 * 8 + 4 * 2


def test_time_on_a_machine_is_that_of_the_slower_half():
    work = KernelWork(contraction_flops=2_000, other_flops=500, read=1_500, written=500)
    assert work.arithmetic_seconds(MACHINE) == pytest.approx(3e-6)
    assert work.memory_seconds(MACHINE) == pytest.approx(2e-6)
    assert work.seconds(MACHINE) == pytest.approx(3e-6)
    assert work.limit(MACHINE) == "flops"
    assert KernelWork(read=8).limit(MACHINE) == "bytes"
    assert (work + work).flops == 5_000


# --------------------------------------------------------------------------- times


class Scripted:
    """A program of two matmuls and a copy whose clock is a script."""

    threads = 2

    def __init__(self):
        g = Graph("scripted")
        x = g.input("x", (10, 10))
        held = g.state("held", (10, 10))
        y = (x @ held).exp(label="first")
        z = y @ x
        g.set_update(held, z)
        g.set_outputs([y, z])
        self.plan = lower(g, target="cpu", whole=("dot_general",))
        self.arrays = []
        self.clock = 0

    def now(self):
        return self.clock

    def bind(self, buffer, array):
        raise NotImplementedError

    def run(self, first=0, last=None, times=None):
        # Thread 0 does kernel 0 in 100 ns and thread 1 in 300; they wait; both do kernel 1 in 400; copies take 50.
        start = self.clock + 10
        script = [
            [(start, start + 100), (start, start + 300)],
            [(start + 300, start + 700), (start + 300, start + 700)],
            [(start + 700, start + 750), (start + 700, start + 750)],
        ]
        stop = 3 if last is None else last
        origin = script[first][0][0] - start if first < 3 else 0
        for row in range(first, stop):
            times[row] = np.array(script[row]) - origin
        self.clock = max((end for row in script[first:stop] for _, end in row)) - origin + 20


@pytest.fixture
def scripted(monkeypatch):
    program = Scripted()
    assert len(program.plan.kernels) == 2
    monkeypatch.setattr(recording, "_now", program.now)
    return program


def test_times_of_kernels_are_work_and_wait_and_add_up_to_the_step(scripted):
    recorder = Recorder(scripted)
    for _ in range(3):
        recorder.run()
    found = recorder.profile(MACHINE)
    first, second, copies = found.kernels
    assert found.steps == 3
    assert found.median == found.best == pytest.approx(780e-9)
    assert found.overhead == pytest.approx(30e-9)
    assert first.median == pytest.approx(300e-9)
    assert first.wait == pytest.approx(100e-9)
    assert first.imbalance == pytest.approx(300 / 200 - 1)
    assert second.median == pytest.approx(400e-9)
    assert second.wait == 0.0
    assert second.imbalance == pytest.approx(0)
    assert copies.median == pytest.approx(50e-9)
    assert copies.work.bytes == 2 * 400
    assert copies.updated == ("held",)
    assert second.gflops == pytest.approx(2 * 10**3 / 400)
    assert second.gigabytes == pytest.approx(1200 / 400)
    assert second.roofline == pytest.approx(2e-6 / 400e-9)
    assert second.limit == "flops"
    shares = sum(kernel.share for kernel in found.kernels)
    assert shares + found.overhead / found.median == pytest.approx(1)
    kinds = {group.name: group for group in found.kinds}
    assert kinds["contract"].seconds == pytest.approx(700e-9)
    assert kinds["contract"].work.contraction_flops == 4 * 10**3


def test_a_step_in_two_parts_leaves_the_pause_between_them_out(scripted):
    recorder = Recorder(scripted)
    recorder.run(0, 2)
    scripted.clock += 5_000
    recorder.run(2, None)
    found = recorder.profile(MACHINE)
    assert found.steps == 1
    assert found.kernels[1].median <= 440e-9
    assert found.median < 1_000e-9
    total = sum(kernel.median for kernel in found.kernels) + found.overhead
    assert total == pytest.approx(found.median)


def test_a_recorder_keeps_the_last_steps_in_their_order(scripted):
    recorder = Recorder(scripted, keep=3)
    for _ in range(5):
        recorder.run()
    found = recorder.profile(MACHINE)
    assert found.steps == 3
    assert (np.diff(found.calls[:, 0]) > 0).all()
    assert found.calls[-1, 1] == scripted.clock
    recorder.clear()
    with pytest.raises(RunError, match="no step was recorded"):
        recorder.profile(MACHINE)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_profiling_changes_no_parameter_state_or_output(threads):
    graph = training_step(mlp(), Adam(1e-2))
    program = compiled(graph, whole={"dot_general"}, threads=threads)
    inputs, params, _ = values(graph)
    run_program(program, inputs, params)
    before = {name: array.tobytes() for name, array in program.storage.items()}
    outputs = [program.arrays[i].tobytes() for i in program.plan.outputs]
    found = profile(program, 4, warmup=1, machine=MACHINE)
    assert {name: array.tobytes() for name, array in program.storage.items()} == before
    assert [program.arrays[i].tobytes() for i in program.plan.outputs] == outputs
    assert found.threads == threads
    assert found.steps == 4
    assert 0 < found.best <= found.median
    assert all(kernel.median >= kernel.best >= 0 for kernel in found.kernels)
    # Forward and for the gradients of both weights, and once more for the gradient of the hidden values.
    first, second = 2 * 16 * 24 * 32, 2 * 16 * 32 * 3
    assert found.work.contraction_flops == 2 * (first + second) + second
    program.close()


def test_the_reference_is_profiled_against_a_declared_machine():
    graph = mlp()
    program = ReferenceProgram(lower(graph))
    inputs, params, _ = values(graph)
    run_program(program, inputs, params)
    found = profile(program, 2)
    assert not found.measured
    assert found.machine.name == "cpu"
    assert "as declared" in str(found)
    assert len(found.kernels) == len(program.plan.kernels)


def test_without_a_machine_this_one_is_measured(trained_program):
    found = profile(trained_program, 1)
    assert found.measured
    assert found.machine.flops > 1e9
    assert found.machine.bandwidth > 1e8
    assert "this machine with 2 threads, measured" in str(found)


def test_the_text_names_labels_lines_and_kinds(trained_program):
    text = str(profile(trained_program, 2, machine=MACHINE))
    assert text.startswith("profile of 'mlp': ")
    assert "on 2 threads, 2 steps" in text
    assert "hidden" in text
    assert "test_profile.py:" in text
    assert "=> w and 2 more" in text
    assert "by kind" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    header = next(line for line in text.splitlines() if line.strip().startswith("kernel"))
    words = [word for word in header.split() if word != "wait"]
    assert words[:7] == ["kernel", "kind", "ops", "label", "line", "time", "share"]
    assert words[7:] == ["GFLOP/s", "GB/s", "roofline", "bound"]


def test_a_short_listing_sums_up_the_rest(trained_program):
    found = profile(trained_program, 2, machine=MACHINE)
    text = found.text(top=2)
    table = text.split("\n\n")[1].splitlines()
    longest = sorted(found.kernels, key=lambda kernel: -kernel.median)[:2]
    assert [line.split()[0] for line in table] == [
        *("kernel", "------"),
        *(kernel.name for kernel in longest),
        "and",
    ]
    assert f"and {len(found.kernels) - 2} kernels more" in text
    listed = found.text(top=None, order="plan").split("by kind")[0]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  k")][1:]
    assert names == [f"k{i}" for i in range(len(trained_program.plan.kernels))]
    with pytest.raises(ArgumentError, match="order is 'name'"):
        found.text(order="name")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_the_same_figures(trained_program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = profile(trained_program, 1, machine=MACHINE)
    plain, terminal = io.StringIO(), Terminal()
    found.show(plain)
    found.show(terminal)
    assert plain.getvalue() == f"{found}\n"
    for word in ("hidden", "GFLOP/s", "by kind", "contract"):
        assert word in terminal.getvalue()


def test_records_are_values_that_json_has(trained_program):
    found = profile(trained_program, 1, machine=MACHINE)
    again = json.loads(json.dumps(found.records(), allow_nan=False))
    assert [row["kernel"] for row in again][:2] == ["k0", "k1"]
    assert again[0]["flops"] == found.kernels[0].work.flops
    assert again[0]["median_seconds"] == found.kernels[0].median
    assert again[0]["source"].startswith(__file__)


@pytest.mark.parametrize(("steps", "warmup"), [(0, 1), (2, -1)])
def test_a_profile_of_no_steps_is_refused(trained_program, steps, warmup):
    with pytest.raises(ArgumentError, match="cannot be recorded"):
        profile(trained_program, steps, warmup=warmup)


# --------------------------------------------------------------------------- the trace file


def test_the_trace_loads_and_holds_every_kernel_of_every_thread(trained_program, tmp_path):
    found = profile(trained_program, 3, machine=MACHINE)
    path = tmp_path / "trace.json"
    found.to_perfetto(path)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    assert document["displayTimeUnit"] in ("ns", "ms")
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "steps", 1: "thread 0", 2: "thread 1"}
    slices = [event for event in events if event["ph"] == "X"]
    for event in slices:
        assert event["dur"] >= 0
        assert event["ts"] >= 0
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
    rows = found.begin.shape[1]
    for thread in (1, 2):
        mine = [event for event in slices if event["tid"] == thread]
        assert len(mine) == 3 * rows
        for one, other in pairwise(mine):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-6
    steps = [event for event in slices if event["tid"] == 0]
    assert [event["name"] for event in steps] == ["step 0", "step 1", "step 2"]
    for event in slices:
        step = [s for s in steps if s["ts"] <= event["ts"] + 1e-6][-1]
        assert event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1e-6
    first = next(event for event in slices if event["name"] == "k0 hidden")
    assert first["args"]["label"] == "hidden"
    assert first["args"]["source"].startswith(__file__)
    assert first["args"]["flops"] == found.kernels[0].work.flops
    assert first["args"]["bytes"] == found.kernels[0].work.bytes
    assert "dot_general" in first["args"]["ops"]


# --------------------------------------------------------------------------- the memory map


def test_the_memory_map_finds_what_is_alive_when_most_is():
    plan = lower(trained(llama), target="cpu")
    found = memory_map(plan, height=8, width=40)
    lives = plan.lifetimes()
    for k in range(len(plan.kernels)):
        room = np.zeros(plan.arena_bytes, bool)
        for buffer, life in zip(plan.buffers, lives, strict=True):
            if life is not None and life[0] <= k <= life[1]:
                room[slice(*buffer.range)] = True
        assert found.alive[k] == room.sum()
    assert found.peak_bytes == max(found.alive) <= plan.arena_bytes
    assert {block.buffer for block in found.at(found.peak)} == {
        i for i, life in enumerate(lives) if life and life[0] <= found.peak <= life[1]
    }
    sizes = [block.nbytes for block in found.blocks]
    assert sizes == sorted(sizes, reverse=True)
    lines = str(found).splitlines()
    drawn = [line.partition("│")[2] for line in lines if "│" in line]
    assert len(drawn) == 8 + 1
    assert {len(line) for line in drawn[:-1]} == {40}
    assert any("A" in line for line in drawn)
    assert lines[0].startswith("arena of 'llama': ")


def test_two_values_in_turn_share_a_place_on_the_map():
    g = Graph("chain")
    x = g.input("x", (64, 64))
    for i in range(3):
        x = g.parameter(f"w{i}", (64, 64)) @ x
    g.set_outputs([x])
    found = memory_map(lower(g))
    assert found.nbytes == 2 * 64 * 64 * 4
    assert found.alive == (16384, 32768, 32768)
    assert found.peak == 1
    drawn = [line.partition("│")[2] for line in str(found).splitlines() if "│" in line]
    # The first and the third lie in one half, the second in the other.
    assert {drawn[0], drawn[11]} == {"·BB", "AAC"}


def test_a_plan_without_an_arena_has_an_empty_map():
    g = Graph("empty")
    g.set_outputs([g.input("x", (2,))])
    assert str(memory_map(lower(g))) == "arena of 'empty': 0 B"
    with pytest.raises(ArgumentError, match="cannot be drawn"):
        memory_map(lower(g), top=0)


def test_differentiated_graphs_have_the_work_of_both_passes():
    g = Graph()
    x, w = g.input("x", (8, 6)), g.parameter("w", (6, 5))
    g.set_outputs([(x @ w).square().sum()])
    full = darner.differentiate(g)
    works = work_of(full)
    assert sum(work.contraction_flops for work in works) == 2 * (2 * 8 * 6 * 5)
