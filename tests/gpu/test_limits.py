"""What a GPU cannot have bound, hold or count: done in another way where that is possible, refused by name where it is not.

The limits of the adapter at hand are lowered for it, so that small tensors meet them.
"""

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.backends.base.lowering import compile_for, lower_for
from darner.backends.wgpu.bindings import fitted, item_bytes
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.machine import segment_of
from darner.backends.wgpu.program import WgpuProgram
from darner.backends.wgpu.tuning import tune
from darner.codegen.simt.families import written
from darner.graph import dtypes
from darner.graph.errors import InternalError, UnsupportedError
from tests.gpu import needs_gpu

pytestmark = needs_gpu

BUFFERS = "max_storage_buffers_per_shader_stage"
BOUND = "max_storage_buffer_binding_size"
BYTES = "max_buffer_size"
GROUPS = "max_compute_workgroups_per_dimension"


@pytest.fixture
def limited(monkeypatch):
    """The adapter with lower limits, for all that is made in a test."""

    def lower(**limits):
        device = opened()
        monkeypatch.setattr(device, "machine", device.machine.without(**limits))
        return device.machine

    return lower


def ran(graph, arrays=None, before=None):
    """The outputs of a graph on the GPU, and what it ran."""
    program = compile_for("gpu", lower_for("gpu", graph))
    try:
        for name, i in program.plan.leaves("input").items():
            program.bind(i, np.asarray(arrays[name]))
        if before is not None:
            before(program)
        program.run()
        program.sync()
        return [program.read(i) for i in program.plan.outputs], program
    finally:
        program.close()


def stages(program):
    return [stage for kernel in program._written.values() for stage in kernel.stages]


def check(graph, arrays, tolerance=1e-5):
    """Values against the reference; returns the program."""
    found, program = ran(graph, arrays)
    wanted = darner.run(graph, arrays, float64=True)
    wanted = wanted.values() if isinstance(wanted, dict) else wanted
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(other), tolerance, tolerance
        )
    return program


def random(shape, seed=0, dtype=np.float32):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values * 10).astype(dtype) if np.dtype(dtype).kind in "iu" else values.astype(dtype)


# ------------------------------------------------------------- items


def test_types_have_the_bytes_that_arrays_of_them_take():
    types = ("u32", "f32", "u64", "f64", "atomic<u32>", "vec2<f32>", "vec4<u32>", "vec4<f64>")
    assert [item_bytes(item) for item in types] == [4, 4, 8, 8, 4, 8, 16, 32]


# ------------------------------------------------------------- many buffers


def joined(count, shape=(5, 7)):
    g = Graph("joined")
    inputs = [g.input(f"x{i}", shape) for i in range(count)]
    g.set_outputs([g.concat(inputs, 1) * 2.0])
    return g, {f"x{i}": random(shape, i) for i in range(count)}


@pytest.mark.parametrize("most", [3, 4, 8])
def test_a_concat_of_more_pieces_than_a_shader_can_have_bound(limited, most):
    limited(**{BUFFERS: most})
    program = check(*joined(21))
    assert max(len(stage.bindings) for stage in stages(program)) <= most
    assert any(stage.moves for stage in stages(program))


def test_only_as_much_is_copied_as_has_to_be(limited):
    limited(**{BUFFERS: 6})
    g, arrays = joined(5)
    assert not any(stage.moves for stage in stages(check(g, arrays)))
    g, arrays = joined(6)
    (stage,) = stages(check(g, arrays))
    assert len(stage.moves) == 2
    assert {move.binding.what for move in stage.moves} == {"operand"}


def test_buffers_of_many_types_are_packed_by_type(limited):
    g = Graph("types")
    kinds = [dtypes.f32, dtypes.i32, dtypes.f16, dtypes.bf16, dtypes.i8, dtypes.bool_] * 2
    parts = [g.input(f"x{i}", (3, 11), dtype=kind) for i, kind in enumerate(kinds)]
    g.set_outputs([sum((part.cast(dtypes.f32) for part in parts[1:]), parts[0]), parts[0] > 0])
    arrays = {
        f"x{i}": (random((3, 11), i) * 4).astype(np.float32).astype(kind.numpy)
        for i, kind in enumerate(kinds)
    }
    limited(**{BUFFERS: 4})
    program = check(g, arrays)
    assert any(stage.moves for stage in stages(program))


def test_results_in_the_memory_of_operands_stay_right(limited):
    limited(**{BUFFERS: 3})

    def session(device):
        g = Graph("sgd")
        x = g.input("x", (4, 6))
        weights = [g.parameter(f"w{i}", (6, 6)) for i in range(5)]
        for w in weights:
            x = (x @ w).tanh()
        g.set_outputs([x.square().mean(label="loss")])
        return darner.build_session(
            g, device=device, optimizer=optim.Adam(0.05), init="kaiming", cache=None
        )

    arrays = {"x": random((4, 6))}
    found = {}
    for device in ("cpu", "gpu"):
        with session(device) as made:
            for _ in range(5):
                made.run(arrays)
            found[device] = {**made.parameters(), "loss": made.read_loss()}
            if device == "gpu":
                program = made._runner.last.program
                assert any(stage.moves for stage in stages(program))
                assert max(len(stage.bindings) for stage in stages(program)) <= 3
    for name, value in found["cpu"].items():
        np.testing.assert_allclose(found["gpu"][name], value, 2e-4, 2e-5)


def test_a_cache_that_is_written_in_place_keeps_what_is_not_written(limited):
    limited(**{BUFFERS: 2})
    g = Graph("cache")
    new, at = g.input("new", (2, 1, 4)), g.input("at", (), dtype=dtypes.i32)
    cache = g.state("cache", (2, 8, 4))
    updated = g.cache_update(cache, new, at, axis=1)
    g.set_update(cache, updated)
    g.set_outputs([updated.sum()])
    program = compile_for("gpu", lower_for("gpu", g))
    wanted = np.zeros((2, 8, 4), np.float32)
    inputs, (state,) = program.plan.leaves("input"), program.plan.leaves("state").values()
    for i in (3, 0, 7):
        value = random((2, 1, 4), i)
        program.bind(inputs["new"], value)
        program.bind(inputs["at"], np.array(i, np.int32))
        program.run()
        wanted[:, i : i + 1] = value
        np.testing.assert_array_equal(program.read(state), wanted)
    program.close()


def test_faults_are_told_by_packed_kernels_too(limited):
    limited(**{BUFFERS: 2})
    g = Graph("rows")
    table, rows = g.input("table", (5, 4)), g.input("rows", (3,), dtype=dtypes.i32)
    g.set_outputs([g.gather(table, rows)])
    arrays = {"table": random((5, 4)), "rows": np.array([1, 0, 4], np.int32)}
    check(g, arrays)
    with pytest.raises(darner.RunError, match="index 5 is outside"):
        ran(g, {**arrays, "rows": np.array([1, 5, 4], np.int32)})


def test_more_buffers_than_can_be_packed_are_refused_by_name(limited):
    limited(**{BUFFERS: 1})
    g = Graph("two types")
    g.set_outputs([(g.input("x", (4,)) + g.input("y", (4,))).cast(dtypes.i32, label="rounded")])
    with pytest.raises(UnsupportedError) as caught:
        ran(g, {"x": random(4), "y": random(4)})
    text = str(caught.value)
    assert "'rounded'" in text
    assert "test_limits.py" in text
    assert "3 buffers of 48 bytes" in text
    assert "allows 1 (max-storage-buffers-per-shader-stage)" in text


def test_what_was_saved_of_a_packed_program_makes_an_equal_one(limited):
    limited(**{BUFFERS: 4})
    g, arrays = joined(9)
    plan = lower_for("gpu", g)
    first = compile_for("gpu", plan)
    again = compile_for("gpu", plan, saved=first.saved)
    assert again._written == first._written
    for name, i in plan.leaves("input").items():
        again.bind(i, arrays[name])
    again.run()
    wanted = np.concatenate(list(arrays.values()), axis=1) * np.float32(2)
    np.testing.assert_array_equal(again.read(plan.outputs[0]), wanted)
    first.close()
    again.close()


def test_a_kernel_that_fits_is_left_as_it_is():
    g, _ = joined(3)
    plan, machine = lower_for("gpu", g), opened().machine
    (spec,) = plan.specs.values()
    kernel = written(spec, machine)
    assert fitted(kernel, spec, machine) is kernel


def test_kernels_that_move_their_operands_are_timed_like_all(limited):
    limited(**{BUFFERS: 4})
    g, arrays = joined(9)
    found = g.outputs[0].sum(axis=1)
    g.set_outputs([found.exp()])

    def timed(program):
        if "timestamp-query-inside-passes" in opened().machine.features:
            times = np.zeros((len(program.plan.kernels), 1, 2), np.int64)
            program.run(times=times)
            assert (np.diff(times[:, 0], axis=1) >= 0).all()
            assert (times > 0).all()

    (value,), _ = ran(g, arrays, timed)
    joined_up = np.concatenate(list(arrays.values()), axis=1).astype(np.float64) * 2
    np.testing.assert_allclose(value, np.exp(joined_up.sum(1)), 1e-4)


# ------------------------------------------------------------- windows


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "bool", "f64", "i64"])
def test_tensors_larger_than_a_binding_are_seen_in_windows(limited, dtype):
    machine = opened().machine
    if dtype in ("f64", "i64") and not machine.wide:
        pytest.skip("the adapter has no numbers of 64 bits")
    limited(**{BOUND: 1024})
    kind = dtypes.dtype(dtype)
    g = Graph("windows")
    x, y = g.input("x", (33, 40), dtype=kind), g.input("y", (40,), dtype=kind)
    g.set_outputs([g.where(x > y, x, y).transpose() if dtype != "bool" else x.logical_or(y)])
    arrays = {"x": random((33, 40), 1), "y": random(40, 2)}
    arrays = {name: (a * 3).astype(kind.numpy) for name, a in arrays.items()}
    program = check(g, arrays)
    assert any(binding.offset for stage in stages(program) for binding in stage.bindings)


def test_windows_and_packed_buffers_in_one_kernel(limited):
    limited(**{BOUND: 4096, BUFFERS: 8})
    g = Graph("both")
    large = g.input("large", (48, 50))
    rows = [g.input(f"row{i}", (50,)) for i in range(9)]
    g.set_outputs([sum(rows, large)])
    arrays = {"large": random((48, 50)), **{f"row{i}": random(50, i) for i in range(9)}}
    program = check(g, arrays)
    (stage,) = stages(program)
    assert stage.moves
    assert any(binding.offset for binding in stage.bindings)
    assert len(stage.bindings) <= 8


@pytest.mark.slow
def test_a_model_runs_with_little_bound_at_a_time(limited):
    """Products, softmax and a normalisation, and what their gradients are, with 2 KiB a binding."""
    machine = limited(**{BOUND: 2048})
    g = Graph("model")
    x = g.input("x", (24, 32))
    hidden = (x @ g.parameter("w", (32, 48))).gelu()
    found = (hidden @ g.parameter("v", (48, 32))).softmax()
    g.set_outputs([(found * x).sum(label="loss")])
    found = {}
    for device in ("cpu", "gpu"):
        with darner.build_session(
            g, device=device, optimizer=optim.SGD(0.1), init="kaiming", cache=None
        ) as made:
            for _ in range(3):
                made.run({"x": random((24, 32))})
            found[device] = {**made.parameters(), "loss": made.read_loss()}
            if device == "gpu":
                bound = [b for stage in stages(made._runner.last.program) for b in stage.bindings]
                assert any(binding.offset for binding in bound)
                assert all(binding.nbytes <= machine.most_bound for binding in bound)
    for name, value in found["cpu"].items():
        np.testing.assert_allclose(found["gpu"][name], value, 2e-4, 2e-5)


def test_only_kernels_that_fit_as_they_are_are_timed(limited):
    g = Graph("product")
    g.set_outputs([g.input("x", (40, 48)) @ g.input("y", (48, 64))])
    plan = lower_for("gpu", g)
    limited(**{BOUND: 2048})
    found = tune(plan, opened())
    assert (found.choices, found.times) == ({}, {})


@pytest.mark.slow
def test_a_tensor_larger_than_the_adapters_own_binding():
    """136 MiB where Vulkan promises 128."""
    machine = opened().machine
    count = (128 << 20) // 4 + (2 << 20)
    if machine.most_bound > 4 * count:
        pytest.skip("the adapter sees it at once")
    g = Graph("large")
    g.set_outputs([g.input("x", (count,), dtype=dtypes.i32) + 7])
    x = np.arange(count, dtype=np.int32)
    (found,), program = ran(g, {"x": x})
    assert len(stages(program)[0].bindings) == 4
    assert np.array_equal(found, x + 7)


# ------------------------------------------------------------- segments


def chain(length=6, size=1000):
    """Values that are all needed at the end."""
    g = Graph("chain")
    x = g.input("x", (size,))
    made = [x]
    for _ in range(length):
        made.append((made[-1] * 1.5).softmax())
    g.set_outputs(made[1:])
    return g, {"x": random(size)}


def test_an_arena_larger_than_a_buffer_lies_in_several(limited):
    """Each holds two values of 4,000 bytes, and is no larger than a buffer may be."""
    machine = limited(**{BYTES: 8448})
    assert segment_of(machine) == 8192
    g, arrays = chain()
    program = check(g, arrays)
    plan = program.plan
    assert plan.arena_bytes > machine.most_bytes
    buffers = {id(program._regions[i].buffer) for i in plan.outputs}
    assert len(buffers) >= 3
    for buffer in plan.buffers:
        if buffer.place == "arena":
            first, end = buffer.range
            assert first // 8192 == (end - 1) // 8192
    assert all(region.buffer.size <= 8448 for region in program._owned)


def test_a_tensor_larger_than_a_buffer_is_refused_by_name(limited):
    limited(**{BYTES: 4096})
    g = Graph("large")
    x = g.input("x", (1024,))
    g.set_outputs([g.concat([x, x], 0, label="twice")])
    with pytest.raises(UnsupportedError) as caught:
        lower_for("gpu", g)
    text = str(caught.value)
    assert "'twice'" in text
    assert "test_limits.py" in text
    assert "2048 takes 8,192 bytes" in text
    assert "3,840 at most (max-buffer-size)" in text
    assert "smaller batch" in text


@pytest.mark.parametrize("leaf", ["input", "parameter", "state"])
def test_a_leaf_larger_than_a_buffer_is_refused_by_name(limited, leaf):
    limited(**{BYTES: 4096})
    g = Graph("large")
    x = getattr(g, leaf)("big", (40, 50))
    g.set_outputs([x.sum()])
    with pytest.raises(UnsupportedError) as caught:
        lower_for("gpu", g)
    text = str(caught.value)
    assert f"{leaf} 'big'" in text
    assert "test_limits.py" in text
    assert "8,000 bytes" in text


def test_building_a_session_refuses_too(limited):
    limited(**{BYTES: 4096})
    g = Graph("large")
    g.set_outputs([(g.input("x", (2, 40)) @ g.parameter("w", (40, 50))).sum()])
    with pytest.raises(UnsupportedError, match="parameter 'w'"):
        darner.build_inference_session(g, device="gpu", cache=None)


# ------------------------------------------------------------- counts


@pytest.mark.parametrize("most", [3, 16])
def test_more_workgroups_than_one_dimension_has(limited, most):
    limited(**{GROUPS: most})
    g = Graph("groups")
    g.set_outputs([g.input("x", (7, 310)).exp()])
    program = check(g, {"x": random((7, 310))})
    (across, down), *_ = [stage.groups for stage in stages(program)]
    assert across <= most
    assert down <= most
    assert across * down >= 9
    assert down == (3 if most == 3 else 1)


def test_more_workgroups_than_two_dimensions_have_are_refused_by_name(limited):
    limited(**{GROUPS: 2})
    g = Graph("groups")
    g.set_outputs([g.input("x", (7, 310)).exp(label="many")])
    with pytest.raises(UnsupportedError) as caught:
        ran(g, {"x": random((7, 310))})
    assert "'many'" in str(caught.value)
    assert "9 workgroups" in str(caught.value)


def test_more_elements_than_32_bits_count_are_refused_by_name(limited):
    limited(**{BYTES: 1 << 50})
    g = Graph("count")
    x = g.input("x", (1 << 16,), dtype=dtypes.i8)
    g.set_outputs([g.add(x.reshape((1 << 16, 1)), x, label="many")])
    with pytest.raises(UnsupportedError) as caught:
        lower_for("gpu", g)
    text = str(caught.value)
    assert "65536x65536 has 4,294,967,296 elements" in text
    assert "test_limits.py" in text
    assert "counts 2,147,483,648" in text


def test_a_program_that_is_told_to_use_another_adapters_plan_is_refused(limited):
    g, _arrays = chain()
    plan = lower_for("gpu", g)
    limited(**{BYTES: 9000})
    with pytest.raises(InternalError, match="lower"):
        WgpuProgram(plan, opened())
