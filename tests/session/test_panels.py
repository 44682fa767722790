"""Weights that a training step keeps in panels, with their moments: computed with, read, written, saved and shared as if they were not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darner import Graph, optim
from darner.backends.base.memory import aligned
from darner.backends.cpu.emit.panels import Panels
from darner.backends.cpu.runtime import stored
from darner.backends.cpu.runtime.program import CpuProgram
from tests.cpu.running import run_program
from tests.cpu.test_targets import machine_of
from tests.session.opening import opened

OPTIMIZERS = {
    "sgd": optim.SGD(0.05),
    "momentum": optim.SGD(0.05, momentum=0.9),
    "adam": optim.Adam(0.01, epsilon=1e-3),
    "adamw": optim.AdamW(0.01, epsilon=1e-3),
}


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(stored, "LEAST_BYTES", 1)


def network(rows=9, inside=37, outside=70):
    """A weight as it is and one transposed, a bias that is no matrix, and a loss."""
    g = Graph("network")
    x, y = g.input("x", (rows, inside)), g.input("y", (rows, inside))
    up, down = g.parameter("up", (inside, outside)), g.parameter("down", (inside, outside))
    hidden = (x @ up + g.parameter("bias", (outside,))).tanh()
    g.set_outputs([((hidden @ down.T) - y).square().mean()])
    return g


def drawn(graph, seed=0):
    rng = np.random.default_rng(seed)
    leaves = {**graph.inputs, **graph.parameters}
    values = {
        name: (rng.standard_normal(leaf.shape) / 3).astype(np.float32)
        for name, leaf in leaves.items()
    }
    inputs = {name: values[name] for name in graph.inputs}
    return inputs, {name: values[name] for name in graph.parameters}


def training(graph, params, device="cpu", optimizer="adam", **options):
    # Without a cache: what was built before for an equal graph may not have been for any size.
    options = {"cache": None, "optimizer": OPTIMIZERS.get(optimizer, optimizer), **options}
    return opened(graph, mode="train", device=device, params=params, **options)


def in_panels(session):
    (special,) = session._kept.values()
    return set(special.program._native.panels)


def everything(session):
    values = {name: np.array(value) for name, value in session.parameters().items()}
    return values | {name: np.array(value) for name, value in session.state().items()}


def assert_alike(found, wanted, close=2e-5):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(
            found[name].astype(np.float64), value, rtol=0, atol=close * scale, err_msg=name
        )


# --------------------------------------------------------------------------- steps


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.integers(8, 70),
    st.integers(2, 130),
    st.integers(2, 130),
    st.sampled_from(sorted(OPTIMIZERS)),
    st.integers(1, 2),
)
def test_steps_are_those_of_the_reference_for_any_size(rows, inside, outside, optimizer, threads):
    graph = network(rows, inside, outside)
    inputs, params = drawn(graph)
    found, wanted = (
        training(graph, params, device, optimizer, threads=threads)
        for device in ("cpu", "reference")
    )
    for _ in range(3):
        for session in (found, wanted):
            session.run(inputs)
    assert_alike(everything(found), everything(wanted))
    found.close()
    wanted.close()


@pytest.mark.parametrize(
    ("rows", "inside", "outside"),
    [(128, 96, 144), (1100, 50, 97), (40, 65, 2065), (33, 700, 64), (2100, 48, 48)],
    ids=lambda size: str(size),
)
def test_weights_and_moments_are_in_panels_and_one_thread_gives_the_bits_of_two(
    rows, inside, outside
):
    graph = network(rows, inside, outside)
    inputs, params = drawn(graph)
    found = []
    for threads in (1, 2):
        session = training(graph, params, threads=threads)
        assert {"up", "up/mean", "up/variance"} <= in_panels(session)
        for _ in range(2):
            session.run(inputs)
        found.append(everything(session))
        session.close()
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name], err_msg=name)
    reference = training(graph, params, "reference")
    for _ in range(2):
        reference.run(inputs)
    assert_alike(found[0], everything(reference))


@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_panels_of_narrower_vectors(vector_bytes):
    graph = network(19, 45, 83)
    inputs, params = drawn(graph)
    session = training(graph, params)
    (special,) = session._kept.values()
    found = {name: np.array(value) for name, value in session.state().items()}
    program = CpuProgram(special.plans.step, threads=2, machine=machine_of(vector_bytes))
    assert set(program._native.panels) == in_panels(session)
    run_program(program, inputs, params, found)
    program.close()
    session.run(inputs)
    wanted = everything(session)
    assert {"up", "down", "up/mean"} <= found.keys()
    assert_alike(found, {name: wanted[name] for name in found})


# --------------------------------------------------------------------------- who else reads and writes them


def test_what_is_written_between_steps_is_what_the_next_step_begins_with():
    graph = network()
    inputs, params = drawn(graph)
    session, wanted = training(graph, params), training(graph, params, "reference")
    for number in range(3):
        for one in (session, wanted):
            one.run(inputs)
            one.parameters()["up"] = params["up"] * (number + 1)
            one.state()["down/mean"] = np.full(params["down"].shape, 0.1 * number, np.float32)
        np.testing.assert_array_equal(session.read_param("up"), params["up"] * (number + 1))
    assert_alike(everything(session), everything(wanted))


@pytest.mark.slow
def test_a_checkpoint_goes_on_where_it_was_whatever_the_order_in_memory(tmp_path, monkeypatch):
    graph = network()
    inputs, params = drawn(graph)
    session = training(graph, params)
    session.run(inputs)
    session.save_checkpoint(tmp_path / "one")
    for _ in range(2):
        session.run(inputs)
    again = training(graph, {})
    again.load_checkpoint(tmp_path / "one")
    monkeypatch.setattr(stored, "LEAST_BYTES", 1 << 40)
    plain = training(graph, {})
    plain.load_checkpoint(tmp_path / "one")
    assert in_panels(again)
    assert not in_panels(plain)
    for one in (again, plain):
        for _ in range(2):
            one.run(inputs)
    for name, value in everything(session).items():
        np.testing.assert_array_equal(
            again.read_param(name) if name in params else again.state()[name], value, err_msg=name
        )
    assert_alike(everything(plain), everything(session))


def test_a_session_that_shares_weights_sees_every_step_and_may_change_them():
    graph = network()
    forward = Graph("forward")
    x = forward.input("x", (9, 37))
    hidden = (x @ forward.parameter("up", (37, 70)) + forward.parameter("bias", (70,))).tanh()
    forward.set_outputs([hidden @ forward.parameter("down", (37, 70)).T])
    inputs, params = drawn(graph)
    session = training(graph, params)
    reader = opened(forward, mode="infer", device="cpu", cache=None)
    reader.share_parameters(session)

    def check():
        up, bias, down = (session.read_param(name) for name in ("up", "bias", "down"))
        wanted = np.tanh(inputs["x"] @ up + bias) @ down.T
        (found,) = reader.run({"x": inputs["x"]}).values()
        np.testing.assert_allclose(found, wanted, atol=1e-5)

    check()
    for _ in range(2):
        session.run(inputs)
        check()
    reader.parameters()["down"] = params["down"] + 1.0
    check()
    session.run(inputs)
    assert np.abs(session.read_param("down") - params["down"] - 1.0).max() < 0.1
    check()
    session.close()
    (found,) = reader.run({"x": inputs["x"]}).values()
    assert np.isfinite(found).all()
    assert np.abs(reader.read_param("down") - params["down"] - 1.0).max() < 0.1


def test_looking_into_a_step_changes_nothing():
    graph = network()
    inputs, params = drawn(graph)
    session = training(graph, params)
    session.run(inputs)
    before = everything(session)
    for name, value in inputs.items():
        session.set_input(name, value)
    traced = str(session.trace_dispatches())
    assert "kernels of" in traced
    for name, value in everything(session).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_the_memory_of_a_weight_is_given_back_while_it_is_in_panels():
    graph = network(16, 700, 900)
    inputs, params = drawn(graph)
    session = training(graph, params)
    session.run(inputs)
    inner = session._storage["up"].reshape(-1)[2048:-2048]
    assert not inner.any()
    found = session.read_param("up")
    assert found.any(axis=0).all()
    np.testing.assert_array_equal(session._storage["up"], found)
    session.run(inputs)
    assert not inner.any()
    assert np.abs(session.read_param("up") - found).max() > 0


def test_another_optimizer_takes_weights_over_that_were_in_panels():
    graph = network()
    inputs, params = drawn(graph)
    session, wanted = training(graph, params), training(graph, params, "reference")
    for one in (session, wanted):
        one.run(inputs)
        one.set_optimizer(optim.AdamW(0.01, clip_norm=0.5))
        one.run(inputs)
    assert not in_panels(session)
    assert_alike(everything(session), everything(wanted))


# --------------------------------------------------------------------------- what stays as it is


@pytest.mark.parametrize(
    "reason", ["clipped", "accumulated", "read otherwise", "few rows", "output"]
)
def test_a_weight_stays_row_by_row_where_something_wants_it_so(reason):
    rows = 3 if reason == "few rows" else 9
    graph = network(rows)
    optimizer = {
        "clipped": optim.Adam(0.01, clip_norm=1.0),
        "accumulated": optim.Adam(0.01, accumulate=2),
    }.get(reason, "adam")
    up = graph.parameters["up"]
    if reason == "read otherwise":
        graph.set_outputs([graph.outputs[0] + up.square().mean()])
    if reason == "output":
        graph.set_outputs([graph.outputs[0], up])
    inputs, params = drawn(graph)
    session = training(graph, params, optimizer=optimizer)
    wanted = training(graph, params, "reference", optimizer)
    assert "up" not in in_panels(session)
    for _ in range(3):
        for one in (session, wanted):
            one.run(inputs)
    assert_alike(everything(session), everything(wanted))


# --------------------------------------------------------------------------- the order itself


@given(st.integers(1, 40), st.integers(1, 200), st.sampled_from([4, 12, 48]), st.booleans())
def test_what_is_packed_is_read_as_it_was(rows, columns, width, turned):
    lanes = width // 3 if width % 3 == 0 else width
    last = -(-(columns % width) // lanes) * lanes
    panels = Panels(rows, columns, width, last, turned)
    matrix = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    operand = np.ascontiguousarray(matrix.T) if turned else matrix
    packed = aligned(panels.elements * 4)
    panels.pack(operand, packed)
    np.testing.assert_array_equal(panels.unpacked(packed, like=operand), operand)
    first = packed.view(np.float32)[: rows * min(width, panels.elements // rows)]
    np.testing.assert_array_equal(
        first.reshape(rows, -1)[:, : min(width, columns)], matrix[:, :width]
    )
