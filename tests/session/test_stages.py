"""The stage lir: a graph with its plan, which sessions are built of."""

import copy
import json

import numpy as np
import pytest

import darner
from darner import CompilePipeline, FormatError, Graph, GraphModule, LirModule, LowerError, optim
from tests.session import opening

X = np.arange(32, dtype=np.float32).reshape(4, 8) / 16
W = np.cos(np.arange(64, dtype=np.float32)).reshape(8, 8) / 4


def mlp(name="mlp"):
    g = Graph(name)
    x, w, b = g.input("x", (4, 8)), g.parameter("w", (8, 8)), g.parameter("b", (8,))
    g.set_outputs([((x @ w + b).relu() @ (w * w)).square().mean(label="loss")])
    return g


def lowered(**options):
    return mlp().module().lower(**{**opening.CODE, **options})


def loss():
    hidden = np.maximum(X.astype("f8") @ W.astype("f8"), 0)
    return np.square(hidden @ np.square(W.astype("f8"))).mean()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_an_inference_session_runs_a_module_as_it_was_planned(device, saved, monkeypatch):
    module = lowered(device=device)
    assert module.setup is not None  # w * w is computed once
    if saved:
        module = GraphModule.from_json(module.to_json())
    monkeypatch.setattr("darner.session.pipeline.Pipeline.plans", None)  # nothing is planned again
    with darner.build_inference_session(module, **opening.CODE) as session:
        session.set_parameter("w", W)
        np.testing.assert_allclose(session.run({"x": X})["loss"], loss(), rtol=1e-5)
        session.set_parameter("w", 2 * W)
        np.testing.assert_allclose(session.run({"x": X})["loss"], 64 * loss(), rtol=1e-5)
        assert session.plan().digest() == module.plan.digest()
        assert session.device == device


@pytest.mark.parametrize("saved", [False, True])
def test_a_training_session_of_a_module_learns_as_one_of_its_graph(saved, monkeypatch):
    adam = optim.AdamW(1e-2, decay_filter=optim.matrices_only, multipliers={"b": 0.5})
    with darner.build_session(mlp(), optimizer=adam, **opening.CODE) as session:
        session.set_parameter("w", W)
        wanted = [float(session.run({"x": X})["loss"]) for _ in range(4)]
        weights = session.get_parameter("w")
    module = lowered(mode="train", optimizer=adam)
    if saved:
        module = GraphModule.from_json(module.to_json())
        assert module.config.optimizer == adam
    with darner.build_session(module, **opening.CODE) as session:
        with monkeypatch.context() as patch:
            patch.setattr("darner.session.pipeline.Pipeline.plans", None)
            session.set_parameter("w", W)
            assert [float(session.run({"x": X})["loss"]) for _ in range(4)] == wanted
            np.testing.assert_array_equal(session.get_parameter("w"), weights)
            session.set_learning_rate(0.0)  # a number, for which nothing is planned
            session.run({"x": X})
            np.testing.assert_array_equal(session.get_parameter("w"), weights)
        session.set_optimizer(optim.SGD(0.5))  # another plan, made as for any session
        session.run({"x": X})
        assert not np.array_equal(session.get_parameter("w"), weights)


def test_a_module_without_an_optimizer_leaves_gradients():
    module = GraphModule.from_json(lowered(mode="train").to_json())
    with darner.build_session(module, **opening.CODE) as session:
        session.set_parameter("w", W)
        session.run({"x": X})
        found = session.read_param_grad("w")
    values = {"x": X, "w": W, "b": np.zeros(8, np.float32)}
    wanted = darner.run(darner.grad(mlp()), {"x": values.pop("x")}, values)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_runs_that_share_an_update_are_planned_where_they_are_needed():
    module = lowered(mode="train", optimizer=optim.SGD(0.1, accumulate=2))
    with darner.build_session(module, **opening.CODE) as session:
        session.set_parameter("w", W)
        session.run({"x": X})
        np.testing.assert_array_equal(session.get_parameter("w"), W)
        session.run({"x": X})
        assert not np.array_equal(session.get_parameter("w"), W)


@pytest.mark.parametrize("stage", ["hir", "mir"])
def test_builders_take_modules_of_every_stage(stage, tmp_path):
    def define(g):
        x, w = g.input("x", (4, 8)), g.parameter("w", (8, 8))
        return (x @ w).square().mean(label="loss")

    module = Graph.define("model", define)
    module = module if stage == "hir" else module.lower()
    options = {**opening.CODE, "level": 1}
    made = [
        darner.build(module, **options),
        darner.build_session(module, **options),
        darner.build_inference_session(module, **options),
        darner.build_session_cached(module, tmp_path / "model.plan", **options),
        darner.build_session_unoptimized(module, **opening.CODE),
        darner.build_session_with_report(module, **options)[0],
    ]
    for session in made:
        with session:
            session.set_parameter("w", W)
            wanted = np.square(X @ W).mean()
            np.testing.assert_allclose(session.run({"x": X})["loss"], wanted, rtol=1e-5)


def test_the_module_shows_its_kernels_and_its_arena():
    module = lowered()
    assert repr(module) == "<LirModule 'mlp' for cpu: infer, 3 kernels, arena 256 B>"
    text = str(module)
    assert text.startswith(f"stage lir\n{module.plan}\nsetup, when parameters have changed\n")
    assert text.endswith(str(module.setup))
    found = Graph.inspect_module(module)
    assert found == f"{module}\n{module.graph.inspect()}"
    assert "kernels: 3 of 3 distinct specs" in found
    assert "arena: 256 B, naive 320 B" in found
    assert module.report.nodes_before == 6


def test_modules_are_equal_to_what_was_saved_and_to_nothing_else():
    module = lowered()
    found = GraphModule.from_json(module.to_json())
    assert isinstance(found, LirModule)
    assert found == module == copy.deepcopy(module)
    assert hash(found) == hash(module)
    assert found.inspect() == module.inspect()
    assert found.to_json() == module.to_json()
    assert module != lowered(level=0)
    assert module != mlp().module()
    assert Graph.from_lir(found) == Graph.try_from(found) == mlp()
    assert module.stage() == "lir"


def test_a_module_is_the_last_stage_and_does_not_change():
    module = lowered()
    with pytest.raises(LowerError, match="module 'mlp' is at stage lir, which is the last"):
        module.lower()
    with pytest.raises(LowerError, match="is at stage lir: its sizes are known"):
        module.bind(seq=3)
    with pytest.raises(darner.ArgumentError, match="graph 'mlp' is frozen"):
        module.set_outputs([0])
    graph = mlp()
    again = graph.module().lower(**opening.CODE)
    graph.parameter("late", (3,))
    assert list(again.graph.parameters) == ["w", "b"]


@pytest.mark.parametrize(
    ("build", "options", "text"),
    [
        (darner.build_session, {}, "was lowered with mode='infer', not 'train'"),
        (darner.build_inference_session, {"level": 3}, "was lowered with level=2, not 3"),
        (
            darner.build_inference_session,
            {"device": "reference"},
            "build_inference_session: module 'mlp' was lowered with device='cpu', not 'reference'",
        ),
        (darner.build, {"config": darner.SessionConfig()}, "lowered with mode='infer'"),
    ],
)
def test_a_session_is_not_what_its_module_is_not(build, options, text):
    with pytest.raises(LowerError) as caught:
        build(lowered(), **options)
    assert text in str(caught.value)


def test_a_module_of_another_machine_is_refused():
    document = json.loads(lowered().to_json())
    module = GraphModule.from_json(json.dumps({**document, "machine": "an abacus"}))
    with pytest.raises(LowerError, match="was lowered for another machine: an abacus, not "):
        darner.build_inference_session(module)
    with pytest.raises(darner.ArgumentError, match="'mlp' has its plan; keep it with"):
        darner.build_session_cached(module, "model.plan")


def test_sizes_must_be_known_and_options_must_exist():
    g = Graph("rows")
    g.set_outputs([g.input("x", ("batch", 3)) * 2.0])
    with pytest.raises(LowerError, match=r"not known: batch; bind them first: module.bind\(batch"):
        g.module().lower()
    found = g.module().bind(batch=2).lower(**opening.CODE)
    with darner.build(found, **opening.CODE) as session:
        np.testing.assert_array_equal(session.run({"x": np.ones((2, 3))})["output0"], 2.0)
    with pytest.raises(darner.ArgumentError, match=r"SessionConfig has no 'devise'; did you mean"):
        mlp().module().lower(devise="cpu")
    with pytest.raises(darner.ArgumentError, match="graph 'empty' has no output"):
        Graph("empty").module().lower()


def test_optimizers_that_are_code_are_not_written():
    module = lowered(mode="train", optimizer=optim.SGD(0.1, schedule=optim.constant(1.0)))
    with pytest.raises(FormatError, match="SGD cannot be written: its schedule is code; lower wi"):
        module.to_json()
    own = optim.custom(lambda parameter, gradient: parameter - gradient, 0.1)
    with pytest.raises(FormatError, match="Custom cannot be written: a class of your own is code"):
        lowered(mode="train", optimizer=own).to_json()


def change(document, path, value):
    *folders, last = path
    for name in folders:
        document = document[name]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["step"], None, "not a plan"),
        (["step", "plan", "name"], "other", "the plan is damaged"),
        (["setup"], None, "the step reads 1 values that nothing computes before it"),
        (["setup_names"], ["y"], "the plan is of another graph: it has the input 'setup/0'"),
        (["setup_names"], [3], "expected names, got"),
        (["outputs"], 2, "the outputs of the plan are"),
        (["outputs"], -1, "expected a number of outputs, got -1"),
        (["gradients"], ["w"], "the plan has 1 outputs, not 2"),
        (["options"], {"device": "gqu"}, "there is no device 'gqu'"),
        (["options", "device"], "reference", "the plan is for cpu, but 'reference' is reference"),
        (["options", "cache"], "/tmp", "a plan is not made by cache"),
        (["options"], [], "the options of a plan are given by name, not []"),
        (["machine"], 3, "the machine of a module is text, not 3"),
        (["optimizer"], {"class": "Slot", "values": {}}, "there is no optimizer 'Slot'"),
        (["optimizer"], {"class": "SGD", "values": {"rate": 1}}, "SGD has no 'rate'"),
        (["optimizer"], 3, "an optimizer is a class and its values, not 3"),
        (["graph", "nodes", 1, "attrs", "name"], "v", "parameter 'v' is f32[8, 8], and is not in"),
    ],
)
def test_documents_that_do_not_fit_are_refused(path, value, text):
    document = json.loads(lowered().to_json())
    change(document, path, value)
    with pytest.raises(darner.DarnerError) as caught:
        GraphModule.from_json(json.dumps(document))
    assert text in str(caught.value)


def test_a_plan_of_another_graph_is_refused():
    g = Graph("other")
    x, w, b = g.input("x", (4, 8)), g.parameter("w", (8, 4)), g.parameter("b", (8,))
    g.set_outputs([(x @ w).sum() + b.sum()])
    with pytest.raises(FormatError, match=r"parameter 'w' is f32\[8, 4\], and is f32\[8, 8\] in"):
        LirModule(g, lowered().plans, lowered().config)


def test_a_pipeline_takes_everything_down_to_lir():
    pipeline = CompilePipeline(sizes=darner.DimBinding(batch=4, seq=9), **opening.CODE)
    assert repr(pipeline) == "<CompilePipeline for cpu: infer, level 2>"
    assert CompilePipeline.new("reference").config.device == "reference"
    module = Graph.define("rows", lambda g: g.input("x", ("batch", 8)).sum(-1))
    found = pipeline.compile_module(module)
    with darner.build(found, **opening.CODE) as session:
        np.testing.assert_allclose(session.run({"x": X})["output0"], X.sum(-1), rtol=1e-6)
    assert [step.stage() for step in pipeline.stages(mlp())] == ["mir", "lir"]
    assert pipeline.compile(mlp()) == lowered()
    assert pipeline.compile(found) is found
    with pytest.raises(LowerError, match="compile: module 'rows' was lowered with level=2, not 1"):
        CompilePipeline(level=1).compile(found)
    with pytest.raises(LowerError, match="expected a module, got int"):
        pipeline.compile(3)
