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


KERNELS = {
    "map": lambda g, rows: rows.tanh(),
    "rows": lambda g, rows: rows.softmax(),
    "columns": lambda g, rows: rows.sum(0),
    "epilogue of a product": lambda g, rows: (g.input("a", (6, 3)) @ g.input("b", (3, 8))) * rows,
    "operand of a product": lambda g, rows: rows @ g.input("b", (8, 3)),
    "transposed": lambda g, rows: rows.T.exp(),
    "sort": lambda g, rows: rows.sort(1),
    "argsort": lambda g, rows: rows.argsort(0),
    "top_k": lambda g, rows: rows.top_k(2)[0],
    "cumsum": lambda g, rows: rows.cumsum(1),
    "scatter_add": lambda g, rows: g.scatter_add(g.arange(6), rows, 6) * rows,
    "dynamic_update_slice": lambda g, rows: g.dynamic_update_slice(
        g.input("whole", (9, 8)), rows, g.input("at", (2,), "i32")
    ),
    "conv": lambda g, rows: g.conv2d(rows.reshape((1, 1, 6, 8)), g.input("k", (2, 1, 3, 3))),
    "epilogue of a conv": lambda g, rows: (
        g.conv2d(g.input("y", (1, 1, 6, 8)), g.input("k", (1, 1, 3, 3)), padding=1)
        * rows.reshape((1, 1, 6, 8))
    ),
    "max_pool": lambda g, rows: g.max_pool2d(rows.reshape((1, 1, 6, 8)), 2, 2),
    "attention": lambda g, rows: g.scaled_dot_attention(*[rows.reshape((1, 1, 6, 8))] * 3),
    "bias of attention": lambda g, rows: g.scaled_dot_attention(
        *[g.input("q", (1, 1, 6, 8))] * 2,
        g.input("v", (1, 1, 6, 8)),
        bias=rows[:, :6].reshape((1, 1, 6, 6)),
    ),
    "matrix": lambda g, rows: rows[:, :6].inverse(),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_an_index_outside_is_told_of_whichever_kernel_looks_it_up(kind):
    g = Graph()
    table, i = g.input("table", (7, 8)), g.input("i", (6,), "i32")
    rows = g.gather(table, i + g.input("zero", (), "i32"), 0, label="rows")
    made = KERNELS[kind](g, rows)
    g.set_outputs([made])
    rng = np.random.default_rng(0)
    given = {name: rng.random(leaf.shape, np.float32) for name, leaf in g.inputs.items()}
    given |= {"zero": 0, "at": np.zeros(2, np.int32)} if "at" in given else {"zero": 0}
    program = compiled(g, threads=2)
    try:
        run_program(program, {**given, "i": np.array([3, 1, 4, 6, 5, 2], np.int32)})
        with pytest.raises(darner.RunError, match=r"gather 'rows': .*7 is outside 0\.\.6"):
            run_program(program, {**given, "i": np.array([3, 1, 4, 1, 7, 2], np.int32)})
    finally:
        program.close()
