"""Indices outside their axis: told with the op, the label and the user's line, by whoever knows first."""

import numpy as np
import pytest

import darner
from darner import Graph
from tests.cpu.running import compiled, run_program

X = np.arange(20, dtype=np.float32).reshape(4, 5)


def fault_of(make, indices, threads=2):
    g = Graph()
    x, i = g.input("x", X.shape), g.input("i", indices.shape, "i32")
    # Not the input itself: what is computed can only be checked while it runs.
    g.set_outputs([make(g, x, i + g.input("zero", (), "i32"))])
    program = compiled(g, threads=threads)
    given = {"x": X, "i": indices, "zero": 0}
    try:
        with pytest.raises(darner.RunError) as caught:
            run_program(program, given)
        good = {**given, "i": np.zeros_like(indices)}
        found = run_program(program, good)[0]
        np.testing.assert_array_equal(found, darner.run(g, good)[0])
    finally:
        program.close()
    return str(caught.value)


CASES = {
    "gather": (lambda g, x, i: g.gather(x, i, 0, label="rows"), [0, 7, 1], "7 is outside 0..3"),
    "gather of columns": (
        lambda g, x, i: g.gather(x, i, 1, label="columns"),
        [0, 4, -1],
        "-1 is outside 0..4",
    ),
    "take_along_axis": (
        lambda g, x, i: g.take_along_axis(x, i.reshape((4, 1)), 1, label="picked"),
        [0, 1, 5, 2],
        "5 is outside 0..4",
    ),
    "scatter_add": (
        lambda g, x, i: g.scatter_add(i, x, 6, label="sums"),
        [0, 1, 6, 2],
        "6 is outside 0..5",
    ),
    "scatter_add with what follows": (
        lambda g, x, i: (
            g.scatter_add(i, x.reshape((4, 5, 1)).broadcast_to((4, 5, 40)), 6, label="sums") * 2.0
        ).tanh(label="after"),
        [0, 1, 2, -3],
        "-3 is outside 0..5",
    ),
    "scatter_add_along_axis": (
        lambda g, x, i: g.scatter_add_along_axis(
            i.reshape((4, 1)).broadcast_to((4, 5)), x, 3, axis=0, label="places"
        ),
        [0, 1, 3, 2],
        "3 is outside 0..2",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_index_outside_is_an_error_that_names_op_label_and_line(name):
    make, indices, message = CASES[name]
    text = fault_of(make, np.array(indices, np.int32))
    label = {"gather of columns": "columns", "gather": "rows", "take_along_axis": "picked"}
    label |= {"scatter_add": "sums", "scatter_add with what follows": "sums"}
    assert f"index {message}" in text
    assert name.split()[0] in text
    assert label.get(name, "places") in text
    assert "test_faults_of_data.py" in text


def test_a_session_refuses_wrong_tokens_before_anything_changes():
    g = Graph()
    tokens = g.input("tokens", (3,), "i32")
    table = g.parameter("table", (10, 4))
    g.set_outputs([g.embedding(tokens, table).square().sum()])
    with darner.build_session(g, init="normal") as session:
        session.set_learning_rate(0.1)
        before = session.parameters()["table"]
        with pytest.raises(darner.RunError, match=r"input 'tokens' has the index 10, which is out"):
            session.run({"tokens": np.array([1, 10, 2], np.int32)})
        np.testing.assert_array_equal(session.parameters()["table"], before)
        session.run({"tokens": np.array([1, 9, 2], np.int32)})
        assert not np.array_equal(session.parameters()["table"], before)
