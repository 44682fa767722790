"""Every op on a card against the float64 reference, in every element type."""

import pytest

from darner.backends.cuda.opening import machines
from tests.conformance.devices import PROGRAMS, check_on
from tests.cuda.card import needs_card

pytestmark = needs_card

# Where there is no card, the reason is told once and not a thousand times.
TRIED = PROGRAMS if machines() else PROGRAMS[:1]


@pytest.mark.parametrize(("op", "dtype"), TRIED)
def test_every_sample_and_its_derivatives_equal_the_reference(op, dtype):
    check_on("cuda", op, dtype, tangents_of=1)
