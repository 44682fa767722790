"""What code is made for is in every key, code is made of nothing else, and it keeps to its scratch on any number of threads."""

import dataclasses
import sys
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

import darner
from darner import Graph, SessionConfig
from darner.backends.base.cache import ObjectCache
from darner.backends.base.keys import Keyed, kept_key
from darner.backends.cpu.kernels import _modules, functions_of
from darner.backends.cpu.runtime import native as native_module
from darner.backends.cpu.runtime import program as program_module
from darner.backends.cpu.runtime.jit import Machine, host
from darner.backends.cpu.runtime.object_key import object_key
from darner.backends.wgpu.machine import Machine as Gpu
from darner.graph.errors import InternalError
from darner.lower.lower import lower
from darner.session import buildkey
from darner.session.buildkey import build_key
from tests.cpu.running import compiled, run_program
from tests.zoo import llama, resnet, trained, values

CPU = Machine("x86_64-unknown-linux-gnu", "znver4", "+avx2", 32, 2, 1 << 15, 1 << 20, 1 << 25, 8)
GPU = Gpu("some", "DiscreteGPU", "Vulkan", "1.0", frozenset({"subgroup"}), {"max-buffer-size": 256})


def another(value):
    """A value of the same kind that is not this one."""
    if isinstance(value, bool | int):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, frozenset):
        return value | {"x"}
    if isinstance(value, dict):
        return {**value, "x": 1}
    return (*value, 1)


EACH_FIELD = [
    pytest.param(machine, item.name, id=f"{type(machine).__module__.split('.')[2]}-{item.name}")
    for machine in (CPU, GPU)
    for item in fields(machine)
]


@pytest.mark.parametrize(("machine", "name"), EACH_FIELD)
def test_a_machine_that_differs_in_one_field_has_another_key(machine, name):
    other = replace(machine, **{name: another(getattr(machine, name))})
    assert other.key() != machine.key()
    assert replace(other, **{name: getattr(machine, name)}).key() == machine.key()
    assert hash(machine) == hash(dataclasses.replace(machine))


def test_a_field_that_is_added_is_in_the_key():
    @dataclass(frozen=True)
    class Machine(type(CPU)):
        nodes: int = 1

    values = {item.name: getattr(CPU, item.name) for item in fields(CPU)}
    keys = {CPU.key(), Machine(**values).key(), Machine(**values, nodes=2).key()}
    assert len(keys) == 3


def test_a_field_that_has_no_text_of_its_own_is_refused():
    @dataclass(frozen=True)
    class Machine(Keyed):
        what: object

    with pytest.raises(InternalError, match="a key cannot hold"):
        Machine(object()).key()


def test_what_a_set_or_mapping_was_made_in_the_order_of_changes_no_key():
    limits = {"a": 1, "b": 2}
    turned = dict(reversed(limits.items()))
    assert replace(GPU, limits=limits).key() == replace(GPU, limits=turned).key()
    assert hash(replace(GPU, limits=limits)) == hash(replace(GPU, limits=turned))


@pytest.mark.parametrize("name", [item.name for item in fields(CPU)])
def test_every_key_of_the_cpu_has_the_machine_in_it(monkeypatch, name):
    other = replace(CPU, **{name: another(getattr(CPU, name))})
    assert object_key("code", CPU) != object_key("code", other)
    g = Graph()
    g.set_outputs([g.input("x", (3,)) + 1.0])

    def key(machine):
        monkeypatch.setattr("darner.backends.cpu.runtime.jit.host", lambda: machine)
        return build_key(g, SessionConfig(mode="infer"), None).text

    assert key(CPU) != key(other)
    assert key(CPU) == key(replace(CPU))


def test_what_is_tuned_is_keyed_by_all_of_a_gpu_and_what_is_measured_by_what_is_known_before():
    measured = replace(GPU, processors=7)
    assert kept_key("tuned", measured) != kept_key("tuned", GPU)
    assert measured.unmeasured == GPU


def test_the_build_key_of_a_gpu_is_that_of_the_machine_code_is_made_for(monkeypatch):
    class Opened:
        machine = GPU

    monkeypatch.setattr("darner.backends.wgpu.device.opened", lambda name: Opened)
    assert buildkey._machine("gpu:1") == GPU.key()


# --------------------------------------------------------------------------- code is made of nothing else


def without_this_machine(monkeypatch):
    """Let everybody who asks what this machine is fail."""

    def refused():
        raise AssertionError("code was made of what is known of this machine")

    for module in list(sys.modules.values()):
        if getattr(module, "host", None) is host:
            monkeypatch.setattr(module, "host", refused)
    for name in ("cpu_count", "sched_getaffinity", "process_cpu_count"):
        if hasattr(darner.backends.cpu.runtime.jit.os, name):
            monkeypatch.setattr(darner.backends.cpu.runtime.jit.os, name, lambda *_: refused())


def many_kernels():
    """A graph with kernels of many templates."""
    g = Graph()
    x, index = g.input("x", (12, 70)), g.input("index", (9,), "i32")
    ordered = g.sort(x, axis=1)
    g.set_outputs(
        [
            ordered,
            g.cumsum(x, axis=0),
            x.gather(index, axis=0).softmax(),
            g.scatter_add(index, g.input("rows", (9, 70)), 12),
            x.transpose((1, 0)).exp(),
            g.argmax(x, axis=1),
            g.top_k(x, 5)[0],
            (x * x).sum(axes=(0,)),
        ]
    )
    return g


GRAPHS = {
    "llama, training": lambda: trained(llama),
    "resnet, training": lambda: trained(resnet),
    "indices, sorting, scans": many_kernels,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_code_depends_on_the_machine_that_is_given_and_not_on_this_one(monkeypatch, name):
    graph = GRAPHS[name]()
    wanted = modules_of(graph)
    without_this_machine(monkeypatch)
    assert modules_of(graph) == wanted


def modules_of(graph):
    plan = lower(graph, target="cpu")
    return list(_modules(plan, functions_of(plan, CPU), CPU))


# --------------------------------------------------------------------------- scratch

GUARD = 4096
PATTERN = 0xA5


class Guarded:
    """Memory of programs with bytes before, between and behind that nobody may write."""

    def __init__(self, monkeypatch):
        self._rooms = []
        self._programs = []
        make = native_module.native_of

        def guarded(nbytes, what=""):
            room = np.full(nbytes + 2 * GUARD + 64, PATTERN, np.uint8)
            start = -room.ctypes.data % 64 + GUARD
            self._rooms.append((room, start, start + nbytes))
            return room[start : start + nbytes]

        def spaced(*args, **options):
            found = make(*args, **options)
            self._programs.append(found.own)
            return replace(found, own=found.own + GUARD)

        monkeypatch.setattr(program_module, "aligned", guarded)
        monkeypatch.setattr(program_module, "native_of", spaced)

    def check(self, program):
        for room, first, last in self._rooms:
            assert (room[:first] == PATTERN).all()
            assert (room[last:] == PATTERN).all()
        stride = len(program._scratch) // program.threads
        own = program._scratch.reshape(program.threads, stride)[:, self._programs[-1] :]
        assert (own == PATTERN).all()


def convolution(channels=16, out=64, side=14, batch=4):
    g = Graph()
    x, w = g.input("x", (batch, channels, side, side)), g.parameter("w", (out, channels, 3, 3))
    g.set_outputs([g.conv(x, w, padding=1).relu()])
    return g


def ran(graph, machine, threads, guarded, cache=None):
    inputs, params, _ = values(graph)
    program = compiled(graph, whole={"conv"}, threads=threads, machine=machine, cache=cache)
    try:
        found = run_program(program, inputs, params)
        guarded.check(program)
        return found
    finally:
        program.close()


def assert_close(found, graph):
    inputs, params, _ = values(graph)
    for a, b in zip(found, darner.run(graph, inputs, params, float64=True), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b, atol=1e-4 * max(1, np.abs(b).max()))


def test_code_made_on_few_cores_is_not_run_in_the_scratch_of_many(monkeypatch, tmp_path):
    graph, plan = convolution(), lower(convolution(), target="cpu")
    needs = {
        cores: {
            one.scratch for one in functions_of(plan, replace(host(), cores=cores)).all.values()
        }
        for cores in (2, 8)
    }
    assert needs[2] != needs[8]
    guarded, cache = Guarded(monkeypatch), ObjectCache(tmp_path)
    for cores in (2, 8, 2):
        assert_close(ran(graph, replace(host(), cores=cores), 2, guarded, cache), graph)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "cores"),
    [
        *(("convolution", cores) for cores in (1, 2, 16)),
        *((name, 2) for name in GRAPHS),
        pytest.param("resnet, training", 16, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_threads_keeps_to_the_scratch_and_computes_the_same_bits(
    monkeypatch, tmp_path, name, cores
):
    graph = {"convolution": convolution, **GRAPHS}[name]()
    guarded, machine = Guarded(monkeypatch), replace(host(), cores=cores)
    wanted = ran(graph, machine, 1, guarded, ObjectCache(tmp_path))
    for threads in (2, 5, 8):
        found = ran(graph, machine, threads, guarded, ObjectCache(tmp_path))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
