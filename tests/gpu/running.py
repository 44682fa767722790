"""One element-wise op on a GPU, to be called with arrays; also as if the GPU could do less."""

import copy
from functools import cache

import numpy as np

from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.program import WgpuProgram
from darner.graph import dtypes
from darner.graph.build import call
from darner.graph.op import OPS

NARROW = ("shader-f64", "shader-int64")
"""What many GPUs lack: those of Apple and Intel, and most phones."""


@cache
def device(*lacking):
    """The GPU, without some of its features."""
    found = copy.copy(opened())
    found.machine = found.machine.without(*lacking)
    return found


def run_graph(graph, arrays, lacking=()):
    """The outputs of a graph, lowered for a GPU without some features."""
    program = WgpuProgram(lower_for("gpu", graph), device(*lacking))
    try:
        for name, i in program.plan.leaves("input").items():
            program.bind(i, np.asarray(arrays[name]))
        program.run()
        program.sync()
        return [np.array(program.read(i)) for i in program.plan.outputs]
    finally:
        program.close()


def run_ops(names, *arrays, lacking=(), **attributes):
    """What several ops make of the same arrays."""
    graph = Graph()
    nodes = [graph.input(str(i), array.shape, array.dtype) for i, array in enumerate(arrays)]
    graph.set_outputs([call(OPS[name], graph, nodes, dict(attributes)) for name in names])
    return run_graph(graph, {str(i): array for i, array in enumerate(arrays)}, lacking)


def run(op, *arrays, result=None, lacking=()):
    """What an op makes of arrays; ``result`` is what a cast casts to."""
    attributes = {"to": dtypes.dtype(result)} if op == "cast" else {}
    return run_ops([op], *arrays, lacking=lacking, **attributes)[0]
