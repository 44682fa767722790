"""The benchmark of splats: both engines draw the same picture and find the same gradients."""

import time

from bench import splats


def test_splats_of_both_engines_are_the_same_picture_before_they_are_timed():
    row = splats.measure(splats.Case(20, 13, 30, 0.2), 1, 1, time.process_time)
    assert row.part == 1
    assert row.off < 0.01
    assert row.gradients_off < 1e-3
    assert min(*row.forward, *row.both) > 0
