"""Every op on a GPU against the float64 reference: the samples, derivatives and element types that the CPU is tested with.

They run on whatever adapter there is: a software one will do (Mesa's lavapipe). Drivers take tens of milliseconds for a shader, so all ops run in f32, and every other one in one of the other
types, which take turns, and derivatives along a direction, whose kernels are those of the op and of its gradient once more, are those of one sample of each op; with the variable
``DARNER_TEST_EVERY_TYPE`` set it is all types and all samples.
"""

import os
import zlib

import pytest

from tests.conformance.devices import PROGRAMS, check_on
from tests.gpu import needs_gpu

pytestmark = needs_gpu

OTHERS = ("f64", "f16", "bf16")
EVERYTHING = "DARNER_TEST_EVERY_TYPE" in os.environ


def is_chosen(op, dtype):
    """Whether an op runs in an element type."""
    turn = zlib.crc32(op.name.encode()) % (2 * len(OTHERS))
    return dtype == "f32" or dtype in OTHERS[turn : turn + 1] or EVERYTHING


CHOSEN = [program for program in PROGRAMS if is_chosen(*program.values)]


@pytest.mark.parametrize(("op", "dtype"), CHOSEN)
def test_every_sample_and_its_derivatives_equal_the_reference(op, dtype):
    check_on("gpu", op, dtype, tangents_of=None if EVERYTHING else 1)
