"""Rounded copies of weights: training steps read them and keep them up to date, whoever else writes the weights."""

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.session.copies import PREFIX, with_copies
from tests.session.opening import CODE, opened
from tests.session.precise import perceptron, values_of

OPTIMIZERS = {
    "adamw": optim.AdamW(1e-2),
    "sgd": optim.SGD(0.1),
    "clipped": optim.Adam(1e-2, clip_norm=0.5),
    "accumulating": optim.AdamW(1e-2, accumulate=3),
    "frozen": optim.AdamW(1e-2, multipliers={"w2": 0.0}),
}

CASES = [("adamw", "cpu"), ("accumulating", "cpu"), ("clipped", "cpu"), ("adamw", "cuda:emulated")]
"""Of devices that compile."""


def rounded(value, dtype):
    """An f32 array in 16 bits, as f32."""
    g = Graph("rounded")
    g.set_outputs([g.input("x", value.shape).cast(dtype).cast("f32")])
    return darner.run(g, {"x": value})[0]


def copies_of(session):
    """What steps of a session read in place of its weights, as f32, by the names of these."""
    found = {}
    (copies,) = session._values._copies.values()
    loaded = session._runner.last.loaded
    for buffer, value in enumerate(loaded.program.plan.buffers):
        name = str(value.name)
        if value.place == "state" and name in copies.arrays:
            found[name.split("/", 2)[2]] = np.array(loaded.program.read(buffer), np.float32)
    return found


def assert_copies(session, names=("w1", "w2", "w3"), dtype="bf16"):
    """Every copy is its weight, rounded."""
    found = copies_of(session)
    assert sorted(found) == sorted(names)
    for name, copy in found.items():
        np.testing.assert_array_equal(copy, rounded(session.parameters()[name], dtype), name)


def trained(optimizer=None, steps=0, **options):
    """A session of a perceptron, with its inputs set, after some steps."""
    graph = options.pop("graph", None) or perceptron()
    inputs, parameters = values_of(graph)
    wanted = {"device": "cpu", "precision": "bf16", "params": parameters, **options}
    session = opened(graph, optimizer=optimizer or optim.AdamW(1e-2), **wanted)
    for name, value in inputs.items():
        session.set_input(name, value)
    for _ in range(steps):
        session.step()
    return session


def again(session, steps=1, **options):
    """The loss of a new session that begins with the weights and states of another, after some steps."""
    with trained(session.optimizer, **options) as other:
        other.parameters().update(dict(session.parameters()))
        other.state().update(dict(session.state()))
        for _ in range(steps):
            other.step()
        return other.read_loss(), dict(other.parameters())


def assert_goes_on_as_new(session, **options):
    """The next steps of a session are those of a new one with its weights: it reads no copy of others."""
    loss, parameters = again(session, 2, **options)
    session.step()
    session.step()
    assert session.read_loss() == loss
    for name, value in parameters.items():
        np.testing.assert_array_equal(session.parameters()[name], value)


# --------------------------------------------------------------------------- what a step does


@pytest.mark.parametrize(
    ("name", "device"), [*((name, "reference") for name in OPTIMIZERS), *CASES]
)
def test_a_step_leaves_copies_of_the_weights_it_leaves(name, device):
    with trained(OPTIMIZERS[name], steps=4, device=device) as session:
        before = values_of(session.graph)[1]["w1"]
        assert (session.parameters()["w1"] != before).any()
        assert_copies(session)


def test_the_kernel_that_updates_a_weight_writes_its_copy_and_no_weight_is_cast_in_a_step():
    with trained() as session:
        plan = session.plan()
        for kernel in plan.kernels:
            written = {plan.buffers[i].name for i in kernel.results}
            if "w2" in written:
                assert written == {"w2", "w2/mean", "w2/variance", f"{PREFIX}bf16/w2"}
                assert plan.spec(kernel).kind == "contract"
            read = [plan.buffers[i].place for i in kernel.operands]
            assert not (plan.spec(kernel).ops == ("cast",) and "parameter" in read)


def test_the_report_says_what_has_copies():
    with trained(OPTIMIZERS["frozen"]) as session:
        said = "3 weights of 984 elements are read as copies of 16 bits; updates write 2 of them"
        assert said in str(session.report)


def test_a_step_that_overflows_leaves_copies_too():
    with trained(steps=2, precision="f16") as session:
        before = copies_of(session)
        session.run({**values_of(session.graph)[0], "x": np.full((16, 12), 1e30)})
        assert session.loss_scale == 2.0**15
        for name, copy in copies_of(session).items():
            np.testing.assert_array_equal(copy, before[name])
        assert_copies(session, dtype="f16")


def test_a_failed_step_leaves_copies():
    g = Graph("failing")
    x, which = g.input("x", (4, 8)), g.input("which", (4,))
    h = x @ g.parameter("w", (8, 6))
    taken = g.take_along_axis(h, which.cast("i32").reshape((4, 1)), 1)
    g.set_outputs([taken.square().mean()])
    inputs, parameters = values_of(g)
    inputs["which"] = np.arange(4, dtype=np.float32)
    options = {"precision": "bf16", "optimizer": optim.AdamW(0.1), "params": parameters}
    with opened(g, device="cpu", **options) as session:
        session.run(inputs)
        with pytest.raises(darner.DarnerError):
            session.run({**inputs, "which": np.full(4, 99.0)})
        assert_copies(session, ["w"])
        before = session.parameters()["w"]
        session.run(inputs)
        assert (session.parameters()["w"] != before).any()
        assert_copies(session, ["w"])


def test_a_table_that_is_looked_up_and_multiplied_has_one_copy():
    g = Graph("tied")
    tokens, labels = g.input("tokens", (6,), "i32"), g.input("labels", (6,), "i32")
    table = g.parameter("table", (10, 8))
    h = g.gather(table, tokens) @ g.parameter("w", (8, 8))
    logits = h.tanh() @ table.transpose((1, 0))
    g.set_outputs([logits.cross_entropy_loss(labels)])
    _, parameters = values_of(g)
    inputs = {"tokens": np.arange(6, dtype=np.int32), "labels": np.arange(6, dtype=np.int32) + 3}
    options = {"precision": "bf16", "optimizer": optim.AdamW(1e-2), "params": parameters}
    found = {}
    for device in ("cpu", "reference"):
        with opened(g, device=device, **options) as session:
            for _ in range(3):
                session.run(inputs)
            assert_copies(session, ["table", "w"])
            found[device] = session.parameters()["table"]
    np.testing.assert_allclose(found["cpu"], found["reference"], atol=2e-3)


def test_weights_side_by_side_have_one_copy():
    g = Graph("gates")
    x = g.input("x", (4, 8))
    gate, up = (x @ g.parameter(name, (8, 6)) for name in ("gate", "up"))
    g.set_outputs([gate.swiglu(up).square().mean(label="loss")])
    with trained(graph=g, side_by_side=True, steps=2) as session:
        (copy,) = copies_of(session).values()
        weights = [session.parameters()[name] for name in ("gate", "up")]
        np.testing.assert_array_equal(copy, rounded(np.concatenate(weights, 1), "bf16"))
        session.parameters()["up"] = weights[1] * 2
        assert_goes_on_as_new(session, graph=g, side_by_side=True)


def test_copies_are_no_states_that_anybody_sees(tmp_path):
    with trained(steps=1) as session:
        assert not any("copy" in name for name in session.state())
        with trained(precision="f32") as other:
            more = session.memory_summary().num_buffers - other.memory_summary().num_buffers
        assert more >= 3
        session.save_checkpoint(tmp_path / "model.safetensors")
        size = (tmp_path / "model.safetensors").stat().st_size
    with trained(steps=1, precision="f32") as session:
        session.save_checkpoint(tmp_path / "model.safetensors")
        assert (tmp_path / "model.safetensors").stat().st_size == size


def test_names_of_copies_are_none_of_the_graphs():
    g = Graph("taken")
    x = g.input("x", (2, 3)) @ g.parameter("copy/bf16/w", (3, 3))
    g.set_outputs([x @ g.parameter("w", (3, 4))])
    made = with_copies(darner.with_precision(g, "bf16"), ["dot_general"])
    assert made.names == ("_copy/bf16/copy/bf16/w", "_copy/bf16/w")


def test_what_is_rounded_for_no_product_has_no_copy():
    g = Graph("looked up")
    table = g.parameter("table", (9, 4))
    g.set_outputs([g.gather(table.cast("bf16"), g.input("tokens", (3,), "i32")).sum()])
    assert with_copies(g, ["dot_general"]).setup is None


# --------------------------------------------------------------------------- who else writes weights


def test_weights_that_are_set_are_copied_before_the_next_step():
    with trained(steps=3) as session:
        session.parameters()["w2"] = session.parameters()["w2"] * -1.5
        assert_goes_on_as_new(session)
        session.initialize("kaiming", seed=3)
        assert_goes_on_as_new(session)
        assert_copies(session)


def test_weights_of_a_checkpoint_are_copied(tmp_path):
    with trained(steps=3) as session:
        session.save_checkpoint(tmp_path / "model.safetensors")
        session.step()
        session.step()
        wanted = session.read_loss(), dict(session.parameters())
        session.load_checkpoint(tmp_path / "model.safetensors")
        session.step()
        session.step()
        assert session.read_loss() == wanted[0]
        for name, value in wanted[1].items():
            np.testing.assert_array_equal(session.parameters()[name], value)
        assert_copies(session)


def test_updates_apart_from_steps_are_copied():
    graph = perceptron()
    inputs, parameters = values_of(graph)
    with opened(graph, device="cpu", precision="bf16", params=parameters) as session:
        for _ in range(2):
            session.run(inputs)
            session.sgd_step(0.1)
        session.run(inputs)
        assert_copies(session)


def test_sessions_that_share_weights_each_see_what_the_other_learns():
    with trained(steps=1) as one, trained(steps=2) as other:
        other.share_parameters(one)
        for session in (other, one, one, other):
            session.step()
            assert_copies(session)
        assert_goes_on_as_new(one)
        assert_goes_on_as_new(other)


def test_inference_that_shares_weights_reads_what_is_trained():
    graph, answer = perceptron(), Graph("answer")
    answer.set_outputs([answer.input("x", (16, 12)) @ answer.parameter("w1", (12, 24))])
    inputs, _ = values_of(graph)
    options = {"device": "cpu", "precision": "bf16", **CODE}
    frozen = optim.AdamW(1e-2, multipliers={"w1": 0.0})
    for optimizer in (optim.AdamW(1e-2), frozen):
        session = trained(optimizer, steps=1)
        reader = darner.build_inference_session(answer, share=session, **options)
        with session, reader:
            reader.run({"x": inputs["x"]})
            reader.parameters()["w1"] = reader.parameters()["w1"] * 2
            session.step()
            found = reader.run({"x": inputs["x"]})["output0"]
            assert_copies(session)
            weight = rounded(session.parameters()["w1"], "bf16")
            np.testing.assert_allclose(found, rounded(inputs["x"], "bf16") @ weight, rtol=1e-4)


def test_another_optimizer_goes_on_with_the_same_weights():
    with trained(steps=2) as session:
        session.set_optimizer(optim.SGD(0.05))
        session.step()
        assert_copies(session)
        session.set_learning_rate(0.01)
        session.step()
        assert_copies(session)


def test_steps_of_other_sizes_share_copies():
    g = Graph("sizes")
    x = g.input("x", (darner.symbol("rows"), 8))
    g.set_outputs([(x @ g.parameter("w", (8, 6))).square().mean()])
    _, parameters = values_of(g.bind(rows=2))
    options = {"precision": "bf16", "optimizer": optim.AdamW(0.1), "params": parameters}
    with opened(g, device="cpu", **options) as session:
        for rows in (2, 5, 2, 5):
            session.run({"x": np.ones((rows, 8), np.float32)})
            assert_copies(session, ["w"])
        assert len(session._values._copies) == 1


def test_a_trace_leaves_copies():
    with trained(steps=1) as session:
        session.trace_dispatches()
        session.step()
        assert_copies(session)


# --------------------------------------------------------------------------- plans that are kept


def test_plans_that_are_kept_know_their_copies(tmp_path):
    losses = []
    for number in range(2):
        with trained(steps=3, cache=tmp_path / "cache") as session:
            assert session.report.cached == (number == 1)
            assert_copies(session)
            losses.append(session.read_loss())
    for _ in range(2):
        graph = perceptron()
        inputs, parameters = values_of(graph)
        with darner.build_session_cached(
            graph,
            tmp_path / "model.plan",
            optimizer=optim.AdamW(1e-2),
            precision="bf16",
            cache=None,
        ) as session:
            session.parameters().update(parameters)
            for _ in range(3):
                session.run(inputs)
            losses.append(session.read_loss())
            assert_copies(session)
    module = (
        perceptron()
        .module()
        .lower(device="cpu", mode="train", precision="bf16", optimizer=optim.AdamW(1e-2))
    )
    read = type(module).from_json(module.to_json())
    with darner.build_session(read, cache=None) as session:
        session.parameters().update(parameters)
        for _ in range(3):
            session.run(inputs)
        losses.append(session.read_loss())
        assert_copies(session)
    assert len(set(losses)) == 1
