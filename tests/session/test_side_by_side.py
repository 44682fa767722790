"""Weights that a training session stores side by side: computed with as one, and read, written, saved, shared and updated by their own names."""

import gc
import weakref

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.backends.base.blocks import Block
from darner.backends.base.mirrors import mirrors_of
from darner.backends.cpu.runtime import stored
from tests.session.opening import opened
from tests.zoo import bert, gpt2, llama, values


def training(graph, params, joined=True, optimizer="adam", **options):
    options = {"device": "cpu", "threads": 1, **options}
    made = OPTIMIZERS.get(optimizer, optimizer)
    return opened(
        graph, mode="train", optimizer=made, params=params, side_by_side=joined, **options
    )


OPTIMIZERS = {
    "sgd": optim.SGD(0.05),
    "momentum": optim.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": optim.Adam(0.01, epsilon=1e-3),
    "amsgrad": optim.Adam(0.01, epsilon=1e-3, amsgrad=True),
    "adamw": optim.AdamW(0.01, epsilon=1e-3, decay_filter=optim.matrices_only),
    "clipped": optim.AdamW(0.01, epsilon=1e-3, clip_norm=0.05, schedule=optim.warmup(3)),
    "clipped by value": optim.SGD(0.05, clip_value=0.001),
    "accumulated": optim.Adam(0.01, epsilon=1e-3, accumulate=2),
    "rule": optim.custom(lambda p, g, learning_rate: p - learning_rate * g, 0.05),
}

MODELS = {
    "llama": lambda **o: llama(2, **o),
    "llama, weights (out, in)": lambda **o: llama(1, stored="out_in", **o),
    "llama, one key head of four": lambda **o: llama(1, kv_heads=1, inner=37, **o),
    "gpt2": lambda **o: gpt2(1, **o),
    "bert": lambda **o: bert(1, **o),
}


def narrow(rows=8, depth=24, columns=(3, 5, 2), dtype="f32"):
    """A wide operand of several narrow weights, the products of which are read apart."""
    g = Graph("narrow")
    x = g.input("x", (rows, depth), dtype)
    hidden = (x @ g.parameter("in", (depth, depth), dtype)).tanh()
    outputs = [
        hidden @ g.parameter(f"w{i}", (depth, size), dtype) for i, size in enumerate(columns)
    ]
    g.set_outputs([sum((y.sin() * (i + 1)).square().mean() for i, y in enumerate(outputs))])
    return g


def blocks(session):
    """The parameters of each block of a session's plan."""
    plan = session.plan()
    return [tuple(b.parts) for b in plan.buffers if b.parts is not None and b.place == "parameter"]


def everything(session):
    found = {name: np.array(value) for name, value in session.parameters().items()}
    return found | {name: np.array(value) for name, value in session.state().items()}


def assert_alike(found, wanted, close=2e-5):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        scale = max(1e-3, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(found[name], value, rtol=0, atol=close * scale, err_msg=name)


def both(graph, optimizer="adam", **options):
    """Two sessions on the same values, one with weights side by side; and inputs."""
    inputs, params, states = values(graph)
    sessions = [training(graph, params, flag, optimizer, **options) for flag in (True, False)]
    for session in sessions:
        session.state().update(states)
    assert blocks(sessions[0])
    assert not blocks(sessions[1])
    return *sessions, inputs


# --------------------------------------------------------------------------- steps


@pytest.mark.parametrize("model", MODELS)
def test_steps_are_those_of_weights_stored_apart(model):
    graph = MODELS[model](loss=True, dtype="f64")
    if model == "gpt2":
        inputs, params, _ = values(graph)
        session = training(graph, params)
        assert blocks(session) == []  # its queries, keys and values are one weight already
        return
    joined, apart, inputs = both(graph)
    for _ in range(3):
        losses = [session.run(inputs) for session in (joined, apart)]
    (found,), (wanted,) = (loss.values() for loss in losses)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    assert_alike(everything(joined), everything(apart), 1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_that_works_element_by_element_updates_a_block_as_its_parts(optimizer):
    joined, apart, inputs = both(narrow(dtype="f64"), optimizer)
    assert blocks(joined) == [("w0", "w1", "w2")]
    for _ in range(4):
        joined.run(inputs)
        apart.run(inputs)
    assert_alike(everything(joined), everything(apart), 1e-9)


def test_steps_in_panels_are_those_of_weights_stored_apart(monkeypatch):
    monkeypatch.setattr(stored, "LEAST", 0.0)
    graph = llama(1, tokens=48, width=64, inner=80)
    joined, apart, inputs = both(graph, cache=None)
    joined.run(inputs)
    apart.run(inputs)
    (special,) = joined._runner.kept.values()
    assert "layer0.gate.weight+layer0.up.weight/mean" in special.program._native.panels
    gate = np.array(joined.read_param("layer0.gate.weight"))
    for session in (joined, apart):
        session.set_parameter("layer0.gate.weight", gate * 2)
        session.run(inputs)
    assert_alike(everything(joined), everything(apart))


def test_one_thread_gives_the_bits_of_two():
    graph = narrow(40, 64, (48, 80, 17))
    inputs, params, _ = values(graph)
    found = []
    for threads in (1, 2):
        session = training(graph, params, threads=threads)
        session.run(inputs)
        session.run(inputs)
        found.append(everything(session))
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


def test_a_joint_product_is_one_kernel_forward_and_two_backward():
    joined, apart, _ = both(llama(1))
    products = [
        sum(session.plan().spec(kernel).kind == "contract" for kernel in session.plan().kernels)
        for session in (joined, apart)
    ]
    assert products[1] - products[0] == 3 * (2 + 1)


def test_weights_that_a_graph_joins_itself_are_stored_so_without_being_asked_for():
    g = Graph("joined")
    x = g.input("x", (6, 4))
    both = g.concat([g.parameter("a", (4, 3)), g.parameter("b", (4, 2))], 1)
    g.set_outputs([(x @ both).sin().square().mean()])
    inputs, params, _ = values(g)
    session, apart = training(g, params, None, "adamw"), training(g, params, False, "adamw")
    assert blocks(session) == [("a", "b")]
    assert not any("concat" in spec.ops for spec in session.plan().specs.values())
    for _ in range(3):
        session.run(inputs)
        apart.run(inputs)
    assert_alike(everything(session), everything(apart))


@pytest.mark.parametrize(("depth", "expected"), [(9000, [("a", "b", "c")]), (90, [])])
def test_narrow_weights_of_a_wide_operand_are_stored_so_without_being_asked_for(depth, expected):
    g = Graph("wide")
    x = g.input("x", (40, depth)) * g.parameter("scale", (depth,))
    products = [x @ g.parameter(name, (depth, 3)) for name in "abc"]
    g.set_outputs([sum(y.sin().square().mean() for y in products)])
    session = training(g, {}, None, init="xavier")
    assert blocks(session) == expected
    assert "stored side by side" in noted(session)
    assert "predicted" in noted(session)


# --------------------------------------------------------------------------- what cannot be


def noted(session):
    return "\n".join(session.report.passes[-1].notes)


def test_an_optimizer_that_reduces_over_a_parameter_has_each_by_itself():
    graph = narrow()
    _, params, _ = values(graph)
    session = training(graph, params, True, optim.Adafactor(0.01))
    apart = training(graph, params, False, optim.Adafactor(0.01))
    assert blocks(session) == []
    assert "w0+w1+w2: not stored side by side, as Adafactor does not update each" in noted(session)
    assert session.plan().digest() == apart.plan().digest()


def test_a_rule_of_the_users_that_reduces_is_seen():
    rule = optim.custom(lambda p, g, learning_rate: p - learning_rate * g / g.abs().max(), 0.1)
    session = training(narrow(), {}, True, rule, init="xavier")
    assert blocks(session) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"multipliers": {"w1": 0.0}}, [("w0", "w2")]),
        ({"multipliers": {"w1": 0.5}}, [("w0", "w2")]),
        ({"multipliers": {"w*": 0.5}}, [("w0", "w1", "w2")]),
        ({"decay_filter": lambda name, shape: name != "w2"}, [("w0", "w1")]),
        ({"multipliers": {"w0": 0.0, "w1": 0.0}}, [("w0", "w1")]),
    ],
    ids=["frozen", "slower", "all slower", "one does not decay", "frozen together"],
)
def test_only_parameters_with_one_rule_stand_together(options, expected):
    graph = narrow(dtype="f64")
    inputs, params, _ = values(graph)
    optimizer = optim.AdamW(0.01, epsilon=1e-3, weight_decay=0.5, **options)
    joined, apart = (training(graph, params, flag, optimizer) for flag in (True, False))
    assert blocks(joined) == expected
    if len(expected[0]) < 3:
        assert "is not updated like the others" in noted(joined)
    for _ in range(3):
        joined.run(inputs)
        apart.run(inputs)
    assert_alike(everything(joined), everything(apart), 1e-9)
    for name, factor in options.get("multipliers", {}).items():
        if not factor:
            np.testing.assert_array_equal(joined.read_param(name), params[name])


def adapted(rows=8, depth=24, rank=2):
    """Low-rank changes of two frozen weights of one operand."""
    g = Graph("adapted")
    x = g.input("x", (rows, depth))
    x = (x @ g.parameter("in.weight", (depth, depth))).tanh()
    outputs = []
    for name in ("q", "v"):
        plain = x @ g.parameter(f"{name}.weight", (depth, depth))
        low = x @ g.parameter(f"{name}.lora_A", (depth, rank))
        outputs.append(plain + low @ g.parameter(f"{name}.lora_B", (rank, depth)))
    g.set_outputs([(outputs[0].sin() * outputs[1]).square().mean()])
    return g


def test_adapters_stand_together_and_their_frozen_weights_too():
    graph = adapted()
    inputs, params, _ = values(graph)
    frozen = {f"{name}.weight": 0.0 for name in ("in", "q", "v")}
    optimizer = optim.Adam(0.01, epsilon=1e-3, multipliers=frozen)
    session, apart = (training(graph, params, flag, optimizer) for flag in (True, False))
    assert sorted(blocks(session)) == [("q.lora_A", "v.lora_A"), ("q.weight", "v.weight")]
    for _ in range(3):
        session.run(inputs)
        apart.run(inputs)
    assert_alike(everything(session), everything(apart))
    for name in frozen:
        np.testing.assert_array_equal(session.read_param(name), params[name])
    assert np.abs(session.read_param("q.lora_A") - params["q.lora_A"]).max() > 1e-3


def test_without_an_optimizer_or_with_kept_gradients_each_is_stored_by_itself():
    graph = narrow()
    inputs, params, _ = values(graph)
    plain = training(graph, params, True, None)
    kept = training(graph, params, True, keep_gradients=True)
    for session in (plain, kept):
        assert blocks(session) == []
        assert "gradients that are read have names of their own" in noted(session)
        session.run(inputs)
        assert list(session.gradients()) == ["in", "w0", "w1", "w2"]


def test_no_other_device_stores_so():
    session = training(narrow(), {}, True, device="reference")
    assert blocks(session) == []


def test_where_nothing_is_to_be_joined_the_plan_is_the_same():
    graph = gpt2(1)
    digests = {training(graph, {}, flag).plan().digest() for flag in (None, True, False)}
    assert len(digests) == 1


def test_the_option_is_true_false_or_none():
    with pytest.raises(darner.ArgumentError, match="side_by_side is True, False or None"):
        opened(narrow(), mode="train", side_by_side="yes")


# --------------------------------------------------------------------------- names, files, sharing


def test_parameters_and_states_have_their_own_names_types_and_order():
    joined, apart, _ = both(llama(1))
    for kind in ("parameters", "state"):
        found, wanted = getattr(joined, kind)(), getattr(apart, kind)()
        assert list(found) == list(wanted)
        assert {n: v.shape for n, v in found.items()} == {n: v.shape for n, v in wanted.items()}


def test_what_is_written_between_steps_is_what_the_next_step_begins_with():
    joined, apart, inputs = both(narrow(dtype="f64"))
    up, moment = joined.read_param("w1") * 2, np.full((24, 2), 0.25)
    for number in range(3):
        for session in (joined, apart):
            session.run(inputs)
            session.set_parameter("w1", up * (number + 1))
            session.state()["w2/mean"] = moment
        np.testing.assert_array_equal(joined.read_param("w1"), up * (number + 1))
        np.testing.assert_array_equal(joined.state()["w2/mean"], moment)
    assert_alike(everything(joined), everything(apart), 1e-9)


def test_reading_between_steps_changes_nothing():
    joined, apart, inputs = both(narrow(dtype="f64"))
    for _ in range(3):
        joined.run(inputs)
        apart.run(inputs)
        everything(joined)
    assert_alike(everything(joined), everything(apart), 1e-9)


def test_files_are_the_same_and_go_both_ways(tmp_path):
    graph = narrow(dtype="f64")
    joined, apart, inputs = both(graph)
    joined.save_checkpoint(tmp_path / "start of one")
    apart.save_checkpoint(tmp_path / "start of other")
    starts = [(tmp_path / f"start of {which}").read_bytes() for which in ("one", "other")]
    assert starts[0] == starts[1]
    joined.run(inputs)
    apart.run(inputs)
    joined.save_checkpoint(tmp_path / "joined")
    apart.save_checkpoint(tmp_path / "apart")
    for path, flag, first in (("joined", False, joined), ("apart", True, apart)):
        other = training(graph, {}, flag)
        other.load_checkpoint(tmp_path / path)
        assert_alike(everything(other), everything(first), 0)
        for session in (first, other):
            session.run(inputs)
        assert_alike(everything(other), everything(first), 1e-9)


def test_the_same_memory_serves_training_and_inference():
    graph = llama(1, tokens=8)
    forward = llama(1, tokens=8, loss=False)
    inputs, params, _ = values(graph)
    session, apart = training(graph, params), training(graph, params, False)
    readers = []
    for one in (session, apart):
        reader = darner.build_inference_session(
            forward, share=one, device="cpu", threads=1, cache=None
        )
        readers.append(reader)
    tokens = {"tokens": inputs["tokens"]}
    for _ in range(3):
        (found,), (wanted,) = (reader.run(tokens).values() for reader in readers)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        session.run(inputs)
        apart.run(inputs)
    for reader in readers:
        reader.set_parameter("layer0.k.weight", params["layer0.k.weight"] * 2)
    np.testing.assert_array_equal(
        session.read_param("layer0.k.weight"), params["layer0.k.weight"] * 2
    )
    session.run(inputs)
    apart.run(inputs)
    assert_alike(everything(session), everything(apart))
    session.close()
    (found,), (wanted,) = (reader.run(tokens).values() for reader in readers)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_training_sessions_with_other_blocks_share_parameters(monkeypatch):
    monkeypatch.setattr(stored, "LEAST", 0.0)
    graph = narrow(32, 40, (16, 32, 16))
    inputs, params, _ = values(graph)
    optimizers = [
        optim.SGD(0.05),
        optim.SGD(0.05, multipliers={"w0": 0.5}),
        optim.SGD(0.05, multipliers={"w2": 0.25}),
    ]
    sessions = [training(graph, params, True, optimizers[0], cache=None)]
    alone = [training(graph, params, False, optimizer) for optimizer in optimizers]
    for optimizer in optimizers[1:]:
        sessions.append(training(graph, {}, True, optimizer, share=sessions[0], cache=None))
    assert [blocks(one) for one in sessions] == [
        [("w0", "w1", "w2")],
        [("w1", "w2")],
        [("w0", "w1")],
    ]
    for _ in range(2):
        for one, other in zip(sessions, alone, strict=True):
            one.run(inputs)
            other.parameters().update(params)
            other.run(inputs)
            params = {name: np.array(value) for name, value in other.parameters().items()}
            assert_alike(dict(one.parameters()), params)
    sessions[1].close()
    for one in (sessions[0], sessions[2]):
        assert_alike(dict(one.parameters()), params)


def test_another_optimizer_takes_over_what_was_side_by_side():
    joined, apart, inputs = both(narrow(dtype="f64"))
    for session in (joined, apart):
        session.run(inputs)
        session.set_lr_multiplier("w1", 0.0)
        session.run(inputs)
        session.set_lr_multiplier("w1", 1.0)
        session.set_optimizer(optim.Adam(0.01, epsilon=1e-3, clip_norm=0.5))
        session.run(inputs)
        session.set_learning_rate(0.1)
        session.run(inputs)
    assert_alike(everything(joined), everything(apart), 1e-9)
    assert blocks(joined) == [("w0", "w1", "w2")]
    joined.set_optimizer(optim.Adafactor(0.01))
    assert blocks(joined) == []
    joined.run(inputs)
    assert np.isfinite(joined.read_loss())


def test_the_memory_of_a_weight_is_given_back_while_it_is_in_a_block():
    graph = narrow(8, 700, (300, 500))
    inputs, params, _ = values(graph)
    session = training(graph, params)
    session.run(inputs)
    inner = session._values.arrays["w1"].reshape(-1)[2048:-2048]
    assert not inner.any()
    found = session.read_param("w1")
    assert found.any(axis=0).all()
    session.run(inputs)
    assert not inner.any()
    assert np.abs(session.read_param("w1") - found).max() > 0


def test_looking_into_a_step_changes_nothing():
    joined, _, inputs = both(llama(1))
    joined.run(inputs)
    before = everything(joined)
    for name, value in inputs.items():
        joined.set_input(name, value)
    assert "kernels of" in str(joined.trace_dispatches())
    assert_alike(everything(joined), before, 0)


def test_a_step_that_fails_leaves_all_parts_as_they_were():
    g = Graph("failing")
    at, x = g.input("at", (4,), "i32"), g.input("x", (4, 5))
    rows = g.gather(g.parameter("table", (6, 5)), at + 1)
    both = [(rows * x) @ g.parameter(name, (5, 3)) for name in "ab"]
    g.set_outputs([(both[0].sin() * both[1]).square().mean()])
    _, params, _ = values(g)
    session = training(g, params)
    assert blocks(session) == [("a", "b")]
    good = {"at": np.array([0, 1, 2, 3], np.int32), "x": np.ones((4, 5), np.float32)}
    session.run(good)
    before = everything(session)
    for _ in range(2):
        with pytest.raises(darner.RunError, match="outside"):
            session.run({**good, "at": np.array([0, 1, 5, 3], np.int32)})
        assert_alike(everything(session), before, 0)
    session.run(good)
    assert np.abs(session.read_param("a") - before["a"]).max() > 0


# --------------------------------------------------------------------------- plans and modules


def test_a_plan_with_blocks_is_written_and_read_back(tmp_path):
    graph = llama(1)
    inputs, params, _ = values(graph)
    options = {"device": "cpu", "threads": 1, "optimizer": optim.Adam(0.01), "side_by_side": True}
    found = []
    for _ in range(2):
        session = darner.build_session_cached(graph, tmp_path / "plan", **options)
        assert sorted(map(len, blocks(session))) == [2, 3]
        session.parameters().update(params)
        session.run(inputs)
        found.append(everything(session))
    assert_alike(found[1], found[0], 0)
    plan = session.plan()
    again = type(plan).from_json(plan.to_json())
    assert again.digest() == plan.digest()
    assert again.buffers == plan.buffers
    assert "side by side along axis 1" in str(plan)


def test_a_build_that_was_kept_has_its_blocks(tmp_path):
    graph = llama(1)
    inputs, params, _ = values(graph)
    found = []
    for _ in range(2):
        session = training(graph, params, cache=tmp_path)
        assert sorted(map(len, blocks(session))) == [2, 3]
        session.run(inputs)
        found.append(everything(session))
    assert session.report.cached
    assert_alike(found[1], found[0], 0)
    assert blocks(training(graph, params, False, cache=tmp_path)) == []


def test_symbolic_sizes_share_blocks():
    g = Graph("symbolic")
    x = g.input("x", ("n", 24))
    hidden = (x @ g.parameter("in", (24, 24))).tanh()
    both = [hidden @ g.parameter(name, (24, 5)) for name in "ab"]
    g.set_outputs([(both[0].sin() * both[1]).square().mean()])
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=leaf.shape) for name, leaf in g.parameters.items()}
    joined, apart = training(g, params), training(g, params, False)
    for rows in (3, 7, 3, 5):
        data = {"x": rng.normal(size=(rows, 24)).astype(np.float32)}
        joined.run(data)
        apart.run(data)
        assert blocks(joined) == [("a", "b")]
    assert_alike(everything(joined), everything(apart), 1e-4)


def test_a_block_is_freed_with_the_session():
    joined, _, inputs = both(narrow())
    joined.run(inputs)
    block = weakref.ref(blocks_of(joined)[0])
    gc.disable()
    try:
        joined.close()
        del joined
        assert block() is None
    finally:
        gc.enable()


def blocks_of(session):
    """What holds the memory of blocks."""
    owners = [one.owner for array in session._values.arrays.values() for one in mirrors_of(array)]
    return list({id(one): one for one in owners if isinstance(one, Block)}.values())


def test_inference_reads_the_block_of_a_training_session_where_it_lies():
    graph = llama(1, tokens=8)
    inputs, params, _ = values(graph)
    session = training(graph, params)
    session.run(inputs)
    reader = darner.build_inference_session(
        llama(1, tokens=8, loss=False), share=session, device="cpu", threads=1
    )
    short = darner.build_inference_session(
        llama(1, tokens=1, loss=False), share=session, device="cpu", threads=1
    )
    tokens = {"tokens": inputs["tokens"]}
    for _ in range(2):
        (found,) = reader.run(tokens).values()
        (first,) = short.run({"tokens": inputs["tokens"][:1]}).values()
        np.testing.assert_allclose(first, found[:1], atol=2e-5)
        wanted = darner.run(
            llama(1, tokens=8, loss=False), tokens, dict(session.parameters()), float64=True
        )[0]
        np.testing.assert_allclose(found, wanted, atol=2e-5)
        session.run(inputs)
    (special,) = reader._runner.kept.values()
    loaded = special.loaded
    joined = [
        loaded.setup.arrays[kernel.results[0]]
        for kernel in loaded.setup.plan.kernels
        if loaded.setup.plan.spec(kernel).ops == ("concat",)
    ]
    assert len(joined) == 2
    assert not any(array.any() for array in joined)  # nothing was ever put side by side
    found = {id(loaded.program.arrays[i]) for i in special.setup_inputs}
    assert {id(one.array) for one in blocks_of(session)} & found
    session.close()
    reader.set_parameter("layer0.up.weight", params["layer0.up.weight"])
    (found,) = reader.run(tokens).values()
    wanted = darner.run(
        llama(1, tokens=8, loss=False), tokens, dict(reader.parameters()), float64=True
    )[0]
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_all_sizes_of_a_symbol_have_parameters_in_the_same_memory():
    """Of few rows the operand lies in a cache, of many it does not; what pays is decided once for both."""

    def found(*sizes):
        g = Graph("sizes")
        x = g.input("x", (sizes[0] if len(sizes) == 1 else "n", 100)) * g.parameter("c", (100,))
        products = [x @ g.parameter(name, (100, 2)) for name in "ab"]
        g.set_outputs([sum(y.sin().square().mean() for y in products)])
        session = training(g, {}, None, init="xavier")
        for rows in sizes:
            session.run({"x": np.ones((rows, 100), np.float32)})
            yield blocks(session)

    assert [*found(2), *found(3000)] == [[], [("a", "b")]]
    assert [*found(2, 3000)] == [[], []]
