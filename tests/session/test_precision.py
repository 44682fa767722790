"""Sessions whose contractions multiply in fewer bits: the same on every device, what they store, and that they learn."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import darner
from darner import Graph, optim
from darner.graph.precision import PRECISIONS
from darner.models.llama import Llama, LlamaConfig
from tests.session.opening import CODE, opened
from tests.session.precise import DIGITS, MODELS, assert_alike, found_by, perceptron, values_of

LOWER = [name for name in PRECISIONS if name != "f32"]
STORED = {"bf16": "bf16", "f16": "f16"}


def llama(layers=2):
    """A Llama small enough for a test."""
    return Llama(
        LlamaConfig(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


# --------------------------------------------------------------------------- values


@pytest.mark.parametrize("precision", LOWER)
@pytest.mark.parametrize("name", MODELS)
def test_the_cpu_computes_what_the_reference_does(name, precision):
    graph = MODELS[name]()
    wanted = found_by(graph, "reference", precision)
    assert_alike(found_by(graph, "cpu", precision), wanted, precision)
    # And that is not what f32 gives.
    exact = found_by(graph, "reference", "f32")
    least = {
        key: np.abs(exact[key] - wanted[key]).max() / np.abs(exact[key]).max() for key in exact
    }
    assert max(least.values()) > DIGITS[precision] / 8
    assert max(least.values()) < 100 * DIGITS[precision]


@pytest.mark.parametrize("level", [0, 1, 3])
def test_every_level_of_optimization_rounds_the_same(level):
    graph = MODELS["attention"]()
    wanted = found_by(graph, "reference", "bf16", level=2)
    # Where nothing is fused, the weights of attention are operands of a product too.
    assert_alike(found_by(graph, "reference", "bf16", level=level), wanted, "bf16")


@st.composite
def layered(draw):
    """A random stack of contractions and what stands between them."""
    g = Graph("layered")
    rows, width = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    x = g.input("x", (rows, width))
    count = draw(st.integers(1, 4))
    for i in range(count):
        kind = draw(st.sampled_from(["product", "transposed", "gram", "norm", "heads", "sum"]))
        if kind == "product":
            x = x @ g.parameter(f"w{i}", (x.shape[1], draw(st.integers(1, 9))))
        elif kind == "transposed":
            x = x @ g.parameter(f"w{i}", (draw(st.integers(1, 9)), x.shape[1])).transpose((1, 0))
        elif kind == "gram":
            x = (x @ x.transpose((1, 0))).tanh() @ x
        elif kind == "norm":
            x = (x * 0.5).rms_norm().tanh()
        elif kind == "sum":
            x = x + x.sum(0, keepdims=True).tanh()
        else:
            weight = g.parameter(f"w{i}", (2, x.shape[1], 3))
            x = g.einsum("rw,hwk->rhk", x, weight).reshape((x.shape[0], 6))
    assume(any(node.op.facts.multiplies for node in g.nodes) and g.parameters)
    # Small enough that no cotangent is too large for f16, times the first scale.
    g.set_outputs([x.tanh().square().mean() * 2.0**-8, x])
    return g


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(layered(), st.sampled_from(LOWER), st.integers(0, 99))
def test_random_graphs_of_contractions_agree_on_the_cpu_and_the_reference(graph, precision, seed):
    wanted = found_by(graph, "reference", precision, seed, level=1)
    found = found_by(graph, "cpu", precision, seed, level=1, **CODE)
    # A value on a border is rounded to either side, and each layer has some.
    assert_alike(found, wanted, precision, digits=8.0)


# --------------------------------------------------------------------------- what is stored


def kernels_of(session):
    """Each kernel's kind and ops, and the types of what it reads and writes."""
    plan = session.plan()
    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        reads, writes = (
            [plan.buffers[i] for i in side] for side in (kernel.operands, kernel.results)
        )
        yield spec, reads, writes


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("model", ["perceptron", "llama"])
def test_contractions_read_and_write_16_bits_and_nothing_is_cast_apart(model, precision):
    graph = perceptron() if model == "perceptron" else llama().training_graph(batch=2, length=8)
    with opened(graph, device="cpu", precision=precision, optimizer=optim.AdamW(1e-3)) as session:
        leaves = ("input", "parameter")
        for spec, reads, writes in kernels_of(session):
            ops = [name for name in spec.ops if name not in ("reshape", "transpose", "slice")]
            if any(name in ("dot_general", "scaled_dot_attention") for name in ops):
                multiplied = [buffer for buffer in reads if buffer.type.dtype.is_half]
                assert len(multiplied) >= 2, ops
                assert {str(buffer.type.dtype) for buffer in multiplied} == {precision}
            # What is cast by itself is an input, a weight, or the gradient of values that attention hands on.
            if set(ops) == {"cast"}:
                assert all(buffer.place in leaves or buffer.type.rank == 4 for buffer in reads)
                assert str(writes[0].type.dtype) == precision


def test_activations_between_contractions_take_half_of_the_memory():
    sizes = {}
    for precision in ("f32", "bf16"):
        g = Graph("deep")
        x = g.input("x", (512, 64))
        for i in range(6):
            x = (x @ g.parameter(f"w{i}", (64, 64))).tanh()
        g.set_outputs([x.square().mean()])
        with opened(g, device="cpu", precision=precision, mode="infer") as session:
            sizes[precision] = session.plan().arena_bytes
    assert sizes["bf16"] <= 0.76 * sizes["f32"]  # the last one is f32, as nothing multiplies it


def test_inference_rounds_its_weights_once():
    g = Graph("once")
    g.set_outputs([(g.input("x", (3, 8)) @ g.parameter("w", (8, 5))).tanh()])
    with opened(g, device="cpu", mode="infer", precision="bf16") as session:
        specs = [spec.ops for spec, _, _ in kernels_of(session)]
        assert len(specs) == 2  # the input's rounding and the product
        (x, w) = (
            np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((3, 8), (8, 5))
        )
        session.parameters()["w"] = w
        first = session.run({"x": x})["output0"]
        np.testing.assert_array_equal(session.parameters()["w"], w)  # f32 masters
        session.parameters()["w"] = 2 * w
        assert np.abs(session.run({"x": x})["output0"]).sum() > np.abs(first).sum()


def test_f32_plans_are_what_they_were():
    graph = llama(1).training_graph(batch=1, length=8)
    with opened(graph, optimizer=optim.Adam(1e-3)) as usual:
        with opened(graph, optimizer=optim.Adam(1e-3), precision="f32") as said:
            assert usual.plan().digest() == said.plan().digest()
            assert not any("precision" in note for note in said.report.passes[-1].notes)
        assert not any(spec.ops == ("cast",) for spec, _, _ in kernels_of(usual))


# --------------------------------------------------------------------------- learning


@pytest.mark.parametrize("precision", LOWER)
def test_a_small_model_learns_as_well_as_in_f32(precision):
    losses = {}
    for name in ("f32", precision):
        graph = perceptron(batch=32)
        inputs, parameters = values_of(graph, seed=4)
        inputs["target"] = np.tanh(inputs["x"][:, :5] * 1.5)
        options = {"optimizer": optim.AdamW(3e-3), "precision": name, "device": "cpu"}
        with opened(graph, params=parameters, **options) as session:
            losses[name] = []
            for _ in range(150):
                session.run(inputs)
                losses[name].append(session.read_loss())
    assert losses["f32"][0] > 0.5
    assert losses["f32"][-1] < 0.02
    assert losses[precision][-1] < 1.25 * losses["f32"][-1] + 1e-4
    # It is the same path, step by step.
    np.testing.assert_allclose(losses[precision][:20], losses["f32"][:20], rtol=0.02)


# --------------------------------------------------------------------------- builders and reports


@pytest.mark.parametrize("precision", LOWER)
def test_the_report_says_what_is_computed_in_what(precision):
    with opened(perceptron(), precision=precision) as session:
        assert session.config.precision == precision
        (note,) = [note for note in session.report.passes[-1].notes if "precision" in note]
        # Three forward, three for weights, two for what is before them.
        assert note == (
            f"precision {precision}: 8 contractions multiplied in {precision} and added in f32; the rest is in f32"
        )
        assert note in str(session.report)


def test_a_function_and_modules_take_a_precision():
    x, w = (np.random.default_rng(1).normal(size=s).astype(np.float32) for s in ((3, 40), (40, 4)))
    exact = darner.function(device="reference")(lambda a, b: a @ b)(x, w)
    found = darner.function(device="reference", precision="bf16")(lambda a, b: a @ b)(x, w)
    assert 1e-4 < np.abs(found - exact).max() < 0.2
    g = Graph("module")
    g.set_outputs([g.input("x", (3, 40)) @ g.input("w", (40, 4))])
    module = g.module().lower(device="reference", precision="bf16")
    again = type(module).from_json(module.to_json())
    with darner.build_inference_session(again) as session:
        assert session.config.precision == "bf16"
        np.testing.assert_array_equal(session.run({"x": x, "w": w})["output0"], found)
    with pytest.raises(darner.DarnerError, match="was lowered with precision='bf16', not 'f16'"):
        darner.build_inference_session(again, precision="f16")


def test_a_module_for_training_in_f16_has_its_scale():
    module = (
        perceptron()
        .module()
        .lower(device="reference", mode="train", precision="f16", optimizer=optim.SGD(0.1))
    )
    again = type(module).from_json(module.to_json())
    with darner.build_session(again, init="kaiming") as session:
        session.run(values_of(perceptron())[0])
        assert session.loss_scale == 2.0**16
        assert session.state()["loss_scale/good_steps"] == 1


def test_builds_of_two_precisions_are_two_in_the_cache(tmp_path):
    x = np.random.default_rng(2).normal(size=(3, 40)).astype(np.float32)
    found = {}
    for _ in range(2):
        for precision in ("f32", "bf16"):
            g = Graph("cached")
            g.set_outputs([g.input("x", (3, 40)) @ g.parameter("w", (40, 4))])
            options = {"device": "cpu", "mode": "infer", "cache": tmp_path, "init": "normal"}
            with darner.build(g, precision=precision, **options) as session:
                found.setdefault(precision, []).append(session.run({"x": x})["output0"])
                cached = session.report.cached
    assert cached
    for first, second in found.values():
        np.testing.assert_array_equal(first, second)
    assert (found["f32"][0] != found["bf16"][0]).any()


def test_sessions_of_two_precisions_share_parameters():
    graph, answer = perceptron(), Graph("answer")
    x = answer.input("x", (16, 12))
    answer.set_outputs([x @ answer.parameter("w1", (12, 24))])
    inputs, parameters = values_of(graph)
    options = {"device": "cpu", "precision": "f16", "optimizer": optim.SGD(0.1)}
    with opened(graph, params=parameters, **options) as trained:
        reader = darner.build_inference_session(answer, share=trained, device="cpu", **CODE)
        with reader:
            before = reader.run({"x": inputs["x"]})["output0"]
            trained.run(inputs)
            after = reader.run({"x": inputs["x"]})["output0"]
        np.testing.assert_allclose(after, inputs["x"] @ trained.parameters()["w1"], atol=1e-5)
        assert (before != after).any()


@pytest.mark.parametrize("side_by_side", [True, False])
def test_weights_side_by_side_train_in_f16_as_apart(side_by_side):
    g = Graph("gates")
    x = g.input("x", (4, 8))
    gate, up = (x @ g.parameter(name, (8, 6)) for name in ("gate", "up"))
    g.set_outputs([gate.swiglu(up).square().mean(label="loss")])
    inputs, parameters = values_of(g)
    options = {"precision": "f16", "optimizer": optim.Adam(1e-2), "side_by_side": side_by_side}
    with opened(g, params=parameters, device="cpu", **options) as session:
        assert any(buffer.parts for buffer in session.plan().buffers) == side_by_side
        for _ in range(3):
            session.run(inputs)
        session.run({"x": np.full((4, 8), 1e30, np.float32)})
        found = {**session.parameters(), "scale": session.loss_scale}
    with opened(g, params=parameters, **{**options, "side_by_side": False}) as session:
        for _ in range(3):
            session.run(inputs)
        wanted = session.parameters()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, atol=1e-4)
    assert found["scale"] == 2.0**15
