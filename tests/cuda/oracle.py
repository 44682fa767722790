"""A device whose kernels are the reference's: what is left to test of a session is everything but the code of kernels.

A spec is one launch, whose source is the spec's digest; running it evaluates the spec in NumPy, on the memory that it is given.
"""

import ctypes
import re

import numpy as np

from darner.backends.base.loops import Oracle
from darner.backends.cuda.stage import Stage
from darner.codegen.simt.dispatch import Binding, Written
from darner.graph.errors import DarnerError
from darner.ops.faults import can_fail

SPECS = {}
"""What was written, by the source of its launch."""


def written(spec, machine):
    """A spec as one launch, of which nothing is known but what it computes."""
    source = f"; {spec.digest}"
    SPECS[source] = spec
    operands = [Binding("operand", i) for i in range(len(spec.inputs))]
    results = [Binding("result", i) for i in range(len(spec.body.outputs))]
    faults = [Binding("fault")] if any(map(can_fail, spec.body.nodes)) else []
    return Written((Stage(source, "oracle", 32, (1, 1, 1), (*operands, *results, *faults)),), 0)


def compiled(stage):
    """What evaluates a launch's spec."""
    spec = SPECS[stage.ir]

    def run(groups, pointers):
        nodes = [*spec.inputs, *spec.body.outputs]
        arrays = [
            _array(address, node) for (address, _), node in zip(pointers, nodes, strict=False)
        ]
        count = len(spec.inputs)
        operands = [np.array(array) for array in arrays[:count]]
        try:
            found = Oracle().compute(spec, operands, ())
        except DarnerError as error:
            if len(pointers) == len(nodes):
                raise
            _tell(spec, error, pointers[-1][0])
            return
        for array, result in zip(arrays[count:], found, strict=True):
            array[...] = result

    return run


def _array(address, node):
    shape = tuple(int(size) for size in node.shape)
    nbytes = int(node.type.nbytes)
    room = (ctypes.c_ubyte * nbytes).from_address(address) if nbytes else b""
    return np.frombuffer(room, np.uint8).view(node.dtype.numpy).reshape(shape)


def _tell(spec, error, address):
    """What a kernel writes of a fault: which node that can fail, what it met, and the size of an axis."""
    failing = [node.op.name for node in spec.body.nodes if can_fail(node)]
    words = [int(number) for number in re.findall(r"-?\d+", error.rule)]
    told = [failing.index(error.op) + 1, words[0], words[-1] + 1]
    ctypes.memmove(address, np.array(told, np.int32).ctypes.data, 12)
