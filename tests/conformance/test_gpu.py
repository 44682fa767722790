"""Every op on a GPU against the float64 reference: the samples, derivatives and element types that the CPU is tested with.

They run on whatever adapter there is: a software one will do (Mesa's lavapipe).
"""

import numpy as np
import pytest

from darner.backends.protocol import compile_for, lower_for
from tests.conformance.test_cpu import PROGRAMS, check_parts, joined, parts_of
from tests.gpu import needs_gpu

pytestmark = needs_gpu


def run_on_gpu(graph, arrays):
    program = compile_for("gpu", lower_for("gpu", graph))
    try:
        for name, i in program.plan.leaves("input").items():
            program.bind(i, np.asarray(arrays[name]))
        program.run()
        program.sync()
        return [program.read(i) for i in program.plan.outputs]
    finally:
        program.close()


@pytest.mark.parametrize(("op", "dtype"), PROGRAMS)
def test_every_sample_and_its_derivatives_equal_the_reference(op, dtype):
    parts = list(parts_of(op, dtype))
    graph, arrays = joined(parts)
    check_parts(parts, run_on_gpu(graph, arrays), dtype)
