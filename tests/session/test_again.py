"""A step after a step: what is left out because nothing has happened is not left out where something has."""

import numpy as np
import pytest

import darner
from darner import Graph


def session(**options):
    g = Graph("looking up")
    table = g.parameter("table", (5, 3))
    rows = g.input("rows", (2,), "u32")
    g.set_outputs([g.embedding(rows, table) * 2.0])
    made = darner.build_inference_session(g, progress=False, **options)
    made.set_parameter("table", np.arange(15, dtype="f4").reshape(5, 3))
    made.set_input("rows", np.array([0, 4], "u4"))
    return made


def rows_of(made):
    return made.read_output_by_index(0)[:, 0].tolist()


def test_steps_that_follow_each_other_see_inputs_and_parameters_that_were_set_between_them():
    made = session()
    for _ in range(3):
        made.step()
        assert rows_of(made) == [0.0, 24.0]
    made.set_input("rows", np.array([1, 1], "u4"))
    made.step()
    assert rows_of(made) == [6.0, 6.0]
    made.set_parameter("table", np.ones((5, 3), "f4"))
    made.step()
    assert rows_of(made) == [2.0, 2.0]


def test_an_index_outside_its_axis_is_refused_after_steps_with_others():
    made = session()
    made.step()
    made.step()
    made.set_input("rows", np.array([1, 5], "u4"))
    with pytest.raises(darner.RunError, match=r"'rows' has the index 5, which is outside 0\.\.4"):
        made.step()
    with pytest.raises(darner.RunError, match="index 5"):
        made.step()
    made.set_input("rows", np.array([1, 2], "u4"))
    made.step()
    assert rows_of(made) == [6.0, 12.0]


def test_values_for_one_run_are_not_those_of_the_step_after_it():
    made = session()
    made.step()
    found = made.run({"rows": np.array([3, 3], "u4")})
    assert next(iter(found.values()))[:, 0].tolist() == [18.0, 18.0]
    made.step()
    assert rows_of(made) == [0.0, 24.0]


def test_profiling_begins_and_ends_between_steps():
    made = session()
    made.step()
    made.step()
    made.set_profiling(True)
    made.step()
    assert made.profile().steps == 1
    made.set_profiling(False)
    made.step()
    with pytest.raises(darner.ArgumentError, match="profiling was off"):
        made.profile()
    assert rows_of(made) == [0.0, 24.0]


def test_a_session_that_was_closed_refuses_the_next_step():
    made = session()
    made.step()
    made.step()
    made.close()
    for call in (made.step, made.wait, made.read_loss):
        with pytest.raises(darner.RunError, match="is closed"):
            call()
