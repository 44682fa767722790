"""Every op on an NVIDIA GPU against the float64 reference, on the emulated device; ``tests/cuda/card`` has the same for a card.

Kernels are those of a card, printed for the host's processor. All ops and types take minutes: of them one in twelve ops runs in each type by default, the rest where slow tests do.
"""

import pytest

from tests.conformance.devices import FIRST_TIER, PROGRAMS, check_on

DEVICE = "cuda:emulated"
FIRST = [program for i, program in enumerate(PROGRAMS) if i // 4 % FIRST_TIER == 0]
REST = [program for program in PROGRAMS if program not in FIRST]


@pytest.mark.parametrize(("op", "dtype"), FIRST)
def test_every_sample_and_its_derivatives_equal_the_reference(op, dtype):
    check_on(DEVICE, op, dtype, tangents_of=1)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), REST)
def test_every_sample_of_all_other_ops_equals_the_reference(op, dtype):
    check_on(DEVICE, op, dtype, tangents_of=1)
