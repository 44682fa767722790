"""Graphs on the emulated device, before any program of a device: each kernel's launches on NumPy's memory, one after another."""

from functools import cache

import numpy as np

from darner import Graph
from darner.backends.base.lowering import written_specs
from darner.backends.cuda.emulator.launch import compile
from darner.backends.cuda.machine import Machine
from darner.codegen.simt.dispatch import FAULT_BYTES, Dispatch
from darner.codegen.simt.families import template_of, written
from darner.graph import dtypes
from darner.lower.faults import raised
from darner.lower.groups import Fusing
from darner.lower.lower import lower
from darner.lower.plan import Spec
from darner.lower.roles import whole_ops

MACHINE = Machine.without_card("sm_90a", emulated=True)
UNWRITTEN = 0xFF
"""What memory holds before anything is written: NaN, in every float."""


def lowered(graph, machine=MACHINE):
    """The plan of a graph, as a device would have it that runs what templates have code for."""
    whole = set(whole_ops())
    while True:
        plan = lower(
            graph,
            target="cuda",
            whole=whole,
            ended=set(),
            alignment=256,
            fusing=Fusing(beside=True),
        )
        specs = [spec for _, spec in written_specs(plan)]
        lacking = {name for spec in specs if not template_of(spec, machine) for name in spec.ops}
        if not lacking & whole:
            assert not lacking, lacking
            return plan
        whole -= lacking


@cache
def launches(spec, machine=MACHINE):
    """A spec's stages, with what runs each, and bytes of scratch memory."""
    found = written(spec, machine)
    return [(stage, compile(stage)) for stage in found.stages], found.scratch


def room(nbytes):
    """Memory at a multiple of 256 bytes, as a card gives it, which nobody wrote."""
    found = np.full(nbytes + 512, UNWRITTEN, np.uint8)
    start = -found.ctypes.data % 256
    return found[start : start + nbytes]


def held(nbytes):
    """A value's memory: whole words."""
    return room(-(-max(nbytes, 1) // 16) * 16)


class Kernels:
    """A plan whose kernels run by themselves, on memory of their own each."""

    def __init__(self, plan, arrays, machine=MACHINE):
        self.plan = plan
        self.machine = machine
        self.values = []
        arena = room(plan.arena_bytes + 16)
        for buffer in plan.buffers:
            if buffer.place == "arena":
                start, stop = buffer.range
                self.values.append(arena[start : start + -(-max(stop - start, 1) // 4) * 4])
                continue
            self.values.append(held(buffer.nbytes))
            if buffer.place == "constant":
                self.write(len(self.values) - 1, plan.constants[str(buffer.name)].array)
        for place in ("input", "parameter", "state"):
            for name, number in plan.leaves(place).items():
                if name in arrays:
                    self.write(number, arrays[name])
                else:
                    # States begin at 0.
                    self.values[number][:] = 0

    def write(self, number, array):
        """Give a buffer a value."""
        dtype = self.plan.buffers[number].type.dtype.numpy
        data = np.ascontiguousarray(np.asarray(array).astype(dtype))
        self.values[number][: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, number):
        """A buffer's value."""
        kind = self.plan.buffers[number].type
        shape = tuple(int(size) for size in kind.shape)
        count = int(np.prod(shape)) * kind.dtype.itemsize
        return self.values[number][:count].view(kind.dtype.numpy).reshape(shape)

    def run(self):
        """All kernels; returns the outputs."""
        for number, kernel in enumerate(self.plan.kernels):
            self.run_kernel(number, kernel)
        return [self.read(i) for i in self.plan.outputs]

    def run_kernel(self, number, kernel):
        """One of them."""
        stages, scratch = launches(self.plan.spec(kernel), self.machine)
        scratch, fault = room(scratch + 256), room(FAULT_BYTES)
        fault[:] = 0

        def bound(binding):
            if binding.what == "fault":
                return fault
            if binding.what == "scratch":
                return scratch[binding.number : binding.number + binding.nbytes]
            buffers = kernel.operands if binding.what == "operand" else kernel.results
            whole = self.values[buffers[binding.number]]
            if not binding.nbytes:
                return whole
            return whole[binding.offset : binding.offset + binding.nbytes]

        for stage, launch in stages:
            given = [bound(binding) for binding in stage.bindings]
            launch(stage.groups, [(x.ctypes.data, x.nbytes) for x in given])
        words = fault.view(np.int32)
        if words[0]:
            raise raised(self.plan, number, [int(word) for word in words[:3]])


def run_graph(graph, arrays, machine=MACHINE):
    """The outputs of a graph."""
    return Kernels(lowered(graph, machine), arrays, machine).run()


def run_code(write, count, threads=64, groups=1, dtype=dtypes.u32, given=None):
    """What ``write(b, out, x)`` writes to ``out``, of ``count`` elements; ``x`` are those that are given."""
    dispatch = Dispatch(Spec("map", Graph()), MACHINE, threads=threads)
    given = np.arange(count, dtype=np.uint32) if given is None else np.asarray(given)
    out = dispatch.scratch(0, count, dtype)
    x = dispatch.scratch(1 << 20, len(given), dtypes.dtype(given.dtype))
    write(dispatch.builder, out, x)
    stage = dispatch.finish(groups)
    memory = held(count * dtype.itemsize), held(given.nbytes)
    memory[1][: given.nbytes] = given.view(np.uint8)
    compile(stage)(
        stage.groups,
        [
            (room.ctypes.data, nbytes)
            for room, nbytes in zip(memory, (count * dtype.itemsize, given.nbytes), strict=True)
        ],
    )
    return memory[0][: count * dtype.itemsize].view(dtype.numpy)
