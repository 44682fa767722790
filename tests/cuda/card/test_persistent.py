"""Chains as one kernel on a card: the numbers of the CPU, and launches of several sessions at a time that all come to an end."""

import threading

import numpy as np
import pytest

from tests.cuda.card import needs_card
from tests.cuda.test_persistent import CASES, filled

pytestmark = needs_card


@pytest.mark.parametrize("name", CASES)
def test_a_step_of_decoding_is_one_kernel_with_the_numbers_of_the_cpu(name):
    decoder, precision = CASES[name]
    found, states, notes = filled(decoder.graph(), "cuda", precision)
    wanted, kept, _ = filled(decoder.graph(), "cpu", precision)
    assert "blocks that stay" in notes[0]
    close = 2e-4 if precision == "f32" else 3e-2
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=close * max(1.0, np.abs(other).max()))
    for leaf, value in states.items():
        np.testing.assert_allclose(value, kept[leaf], rtol=0, atol=close)


def test_chains_of_several_sessions_at_a_time_all_come_to_an_end():
    decoder, precision = CASES["one token"]
    wanted, _, _ = filled(decoder.graph(), "cuda", precision, steps=30)
    results = {}

    def run(number):
        results[number] = filled(decoder.graph(), "cuda", precision, steps=30)[0]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2]
    for found in results.values():
        np.testing.assert_array_equal(found, wanted)
