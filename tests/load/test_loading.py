"""Weights into sessions: all compared first, converted without loss, run, trained and saved."""

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import darner
from darner import load, nn, optim
from darner.graph.errors import ArgumentError
from tests.load import standin
from tests.load.standin import CONFIG, Chain, values

TOKENS = np.array([[1, 4, 10], [0, 2, 2]], np.int32)


@pytest.fixture(autouse=True)
def _models(monkeypatch):
    monkeypatch.setattr(darner.models, "from_config", standin.from_config, raising=False)


@pytest.fixture
def folder(tmp_path):
    load.save(tmp_path / "chain", CONFIG, values())
    (tmp_path / "chain" / "tokenizer.json").write_text("{}")
    return tmp_path / "chain"


def inference(**options):
    graph = Chain(CONFIG, **options).inference_graph(2, 3)
    return darner.build_inference_session(graph, device="reference")


def everything(session):
    return {**session.parameters(), **session.state()}


# load.load


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_session_computes_what_the_weights_say(dtype):
    stored = values(dtype=dtype)
    with inference() as session:
        found = load.load(session, stored, Chain(CONFIG))
        out = session.run({"tokens": TOKENS})["logits"]
    assert found.ignored == ()
    assert found.kept == ()
    np.testing.assert_allclose(out, standin.logits(stored, TOKENS), rtol=1e-4, atol=1e-4)


def test_a_file_a_folder_and_bare_names_do_as_well(folder):
    bare = {name.removeprefix("model."): array for name, array in values().items()}
    bare["rotary.inv_freq"] = np.ones(2)
    bare["lm_head.weight"] = bare["embed.weight"]
    for weights in (folder, str(folder / "model.safetensors"), load.weights(folder), bare):
        with inference() as session:
            load.load(session, weights, Chain(CONFIG))
            assert all((everything(session)[n] == values()[n]).all() for n in everything(session))


def test_with_any_mismatch_nothing_changes():
    stored = values()
    stored["model.statistics.running_var"] = np.ones(9, np.float32)
    with inference() as session:
        before = everything(session)
        with pytest.raises(load.MismatchError, match=r"running_var  needs \(8,\)  stored \(9,\)"):
            load.load(session, stored, Chain(CONFIG), strict=False)
        after = everything(session)
    assert all((before[name] == after[name]).all() for name in before)


def test_running_means_are_needed_and_counters_are_not():
    stored = values()
    del stored["model.statistics.num_batches_tracked"]
    graph = Chain(CONFIG).training_graph(2, 3)
    with darner.build_session(graph, device="reference") as session:
        found = load.load(session, stored)
        assert found.kept == ("model.statistics.num_batches_tracked",)
        assert session.state()["model.statistics.num_batches_tracked"] == 0
        load.load(session, values())
        assert session.state()["model.statistics.num_batches_tracked"] == 5
        del stored["model.statistics.running_mean"]
        with pytest.raises(load.MismatchError, match=r"missing.*\n  model.statistics.running_mean"):
            load.load(session, stored)


def test_a_cache_is_a_state_that_no_checkpoint_has():
    graph = darner.Graph("cached")
    x = nn.Linear("fc", 2, 2, bias=False)(graph.input("x", (1, 2)))
    kept = graph.state("cache.0.key", (1, 2))
    graph.set_update(kept, kept + x)
    graph.set_outputs([kept + x])
    with darner.build_inference_session(graph, device="reference") as session:
        found = load.load(session, {"fc.weight": np.ones((2, 2), np.float32)})
        assert found.kept == ("cache.0.key",)
        assert session.run({"x": [[1.0, 2.0]]})["output0"].tolist() == [[3.0, 3.0]]


def test_the_count_of_runs_is_no_weight(tmp_path):
    graph = darner.Graph("flat")
    x = graph.input("x", (2,)) * graph.parameter("w", (2,))
    graph.set_outputs([x.dropout(0.5).sum(label="loss")])
    with darner.build_session(graph, device="reference") as session:
        assert "random_step" in session.state()
        stored = {"w": np.ones(2, np.float32)}
        flat = load.Pretrained(None, load.Weights.of(stored), tmp_path, {"model_type": "flat"})
        assert load.load(session, stored).kept == ("random_step",)
        flat.save(tmp_path / "m", session)
    assert list(load.weights(tmp_path / "m")) == ["w"]


def test_rounding_is_only_done_when_allowed():
    graph = darner.Graph("narrow")
    graph.set_outputs([graph.input("x", (2,), "bf16") * graph.parameter("w", (2,), "bf16")])
    exact, rounded = np.float32([0.1, 3.0]), np.float32([0.1, 3.0]).astype(ml_dtypes.bfloat16)
    with darner.build_inference_session(graph, device="reference") as session:
        with pytest.raises(load.MismatchError, match=r"allow_rounding=True rounds"):
            load.load(session, {"w": exact})
        assert session.parameters()["w"].tolist() == [0.0, 0.0]
        load.load(session, {"w": exact}, allow_rounding=True)
        assert session.parameters()["w"].tolist() == rounded.tolist()
        with pytest.raises(load.MismatchError, match="numbers too large for bfloat16"):
            load.load(session, {"w": np.float64([1e300, 0.0])}, allow_rounding=True)
        load.load(session, {"w": np.float64([np.inf, np.nan])}, allow_rounding=True)
        assert session.parameters()["w"][0] == np.inf


def test_loading_and_saving_hold_one_tensor_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(load.loading, "_AT_ONCE", 1 << 16)
    count, side = 12, 256
    graph = darner.Graph("wide")
    parts = [graph.parameter(f"h.{i}.w", (side, side)).sum() for i in range(count)]
    graph.set_outputs([sum(parts[1:], parts[0])])
    stored = {f"h.{i}.w": np.full((side, side), i, ml_dtypes.bfloat16) for i in range(count)}
    load.save(tmp_path / "m", CONFIG, stored)
    largest = 4 * side * side
    with darner.build_inference_session(graph, device="reference") as session:
        weights = load.weights(tmp_path / "m")
        peaks = []
        for act in (
            lambda: load.load(session, weights),
            lambda: load.save(tmp_path / "n", CONFIG, session.parameters(), max_shard="1MB"),
        ):
            tracemalloc.start()
            act()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert [int(session.parameters()[name].max()) for name in stored] == list(range(count))
    assert peaks[0] < 2 * largest
    assert peaks[1] < 3 * largest
    assert (load.weights(tmp_path / "n")["h.7.w"] == 7.0).all()


# Pretrained


def test_a_pretrained_model_infers_trains_and_is_saved(folder, tmp_path):
    chain = load.pretrained(folder)
    assert (chain.folder, chain.config) == (folder, load.config(folder))
    with chain.inference_session(batch=2, length=3, threads=1) as session:
        out = session.run({"tokens": TOKENS})["logits"]
    np.testing.assert_allclose(out, standin.logits(values(), TOKENS), rtol=1e-4, atol=1e-4)
    with chain.training_session(batch=2, length=3, threads=1, optimizer=optim.SGD(0.1)) as session:
        session.run({"tokens": TOKENS, "target": np.zeros((2, 3, 11), np.float32)})
        chain.save(tmp_path / "tuned", session)
        learned = everything(session)
    assert not (learned["model.embed.weight"] == values()["model.embed.weight"]).all()
    assert learned["model.statistics.num_batches_tracked"] == 6
    saved = load.weights(tmp_path / "tuned")
    assert set(saved) == set(values())
    assert all((saved[name] == learned[name]).all() for name in saved)
    assert load.config(tmp_path / "tuned") == {**CONFIG, "dtype": "float32"}
    assert (tmp_path / "tuned" / "tokenizer.json").read_text() == "{}"
    again = load.pretrained(tmp_path / "tuned")
    with again.inference_session(batch=2, length=3, device="reference") as session:
        out = session.run({"tokens": TOKENS})["logits"]
    np.testing.assert_allclose(out, standin.logits(saved, TOKENS), rtol=1e-4, atol=1e-4)


def test_a_model_can_be_saved_over_itself(folder):
    chain = load.pretrained(folder)
    with chain.inference_session(batch=1, length=1, device="reference") as session:
        session.parameters()["model.norm.bias"] = np.full(8, 7.0, np.float32)
        chain.save(folder, session, max_shard=100)
    assert load.weights(folder)["model.norm.bias"].tolist() == [7.0] * 8
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert (chain.weights["model.norm.bias"] == values()["model.norm.bias"]).all()


def test_a_session_that_shares_keeps_what_it_shares(folder):
    chain = load.pretrained(folder)
    with chain.training_session(batch=2, length=3, device="reference") as session:
        session.parameters()["model.norm.bias"] = np.full(8, 7.0, np.float32)
        with chain.inference_session(batch=1, length=1, share=session, device="reference") as other:
            assert other.parameters()["model.norm.bias"].tolist() == [7.0] * 8
            assert (other.state()["model.statistics.running_mean"] != 0).all()


def test_what_is_filled_is_not_made_up_first(folder, monkeypatch):
    called = []
    real = darner.session.values.initial_value
    monkeypatch.setattr(
        darner.session.values,
        "initial_value",
        lambda rule, name, *rest: (called.append((name, rule)), real(rule, name, *rest))[1],
    )
    lora = nn.LoRA(rank=2, targets=("*q_proj",))
    tuned = load.pretrained(folder, linear=lora.linear)
    with tuned.inference_session(batch=2, length=3, device="reference") as session:
        out = session.run({"tokens": TOKENS})["logits"]
        assert (session.parameters()["model.layers.1.q_proj.lora_A.weight"] != 0).all()
        with pytest.raises(ArgumentError, match=r"low-rank changes .* 3 more.*load.save_adapter"):
            tuned.save(folder, session)
    np.testing.assert_allclose(out, standin.logits(values(), TOKENS), rtol=1e-4, atol=1e-4)
    assert sorted(called) == sorted(
        (f"model.layers.{i}.q_proj.lora_{which}.weight", rule)
        for i in range(2)
        for which, rule in (("A", f"uniform({1 / math.sqrt(8)!r})"), ("B", "zeros"))
    )
    called.clear()
    tuned.inference_session(batch=1, length=1, device="reference", init="ones").close()
    assert {rule for _, rule in called} == {"ones"}


def test_weights_that_do_not_fit_are_told_before_anything_is_built(tmp_path, monkeypatch):
    stored = values()
    del stored["model.layers.1.q_proj.weight"]
    load.save(tmp_path / "part", CONFIG, {**stored, "extra": np.ones(2, np.float32)})
    monkeypatch.setattr(load.pretrained_model, "build", None)
    with pytest.raises(load.MismatchError) as caught:
        load.pretrained(tmp_path / "part").inference_session(batch=1, length=1)
    assert caught.value.match.missing == ("model.layers.1.q_proj.weight",)
    assert caught.value.match.unexpected == ("extra",)
    monkeypatch.undo()
    monkeypatch.setattr(darner.models, "from_config", standin.from_config, raising=False)
    part = load.pretrained(tmp_path / "part", strict=False)
    with part.inference_session(batch=1, length=1, device="reference") as session:
        assert (session.parameters()["model.layers.1.q_proj.weight"] != 0).any()


def test_an_unknown_option_is_named_with_the_nearest(folder):
    with pytest.raises(
        ArgumentError, match=r"neither .* Chain takes 'lenght'; did you mean 'length'\?"
    ):
        load.pretrained(folder).inference_session(batch=1, lenght=2)
    with pytest.raises(ArgumentError, match=r"missing a required argument: 'length'"):
        load.pretrained(folder).inference_session(batch=1, threads=1)


def test_a_keyword_that_a_model_passes_over_is_told(folder, monkeypatch):
    graph = Chain.inference_graph
    monkeypatch.setattr(
        Chain, "inference_graph", lambda self, batch=1, length=1, **_: graph(self, batch, length)
    )
    with pytest.raises(ArgumentError, match=r"takes 'thread'; did you mean 'threads'\?"):
        load.pretrained(folder).inference_session(batch=1, thread=1)


def test_a_part_of_a_model_takes_its_part_of_the_weights(folder):
    graph = darner.Graph("part")
    x = graph.input("x", (1, 8))
    with graph.scope("model.layers.1"):
        graph.set_outputs([nn.Linear("q_proj", 8, 8, bias=False)(x)])
    part = load.pretrained(folder)
    with part.session(graph, mode="infer", device="reference") as session:
        out = session.run({"x": np.eye(8)[:1]})["output0"]
        with pytest.raises(
            ArgumentError, match=r"only a part of the model: 8 tensors of '.*chain'"
        ):
            part.save(folder.parent / "part", session)
    np.testing.assert_allclose(out[0], values()["model.layers.1.q_proj.weight"][:, 0], rtol=1e-6)
    graph = darner.Graph("other")
    graph.set_outputs([graph.input("x", (2,)) * graph.parameter("model.other", (2,))])
    with pytest.raises(load.MismatchError, match=r"1 missing .*\n  model.other  f32\[2\]$"):
        part.session(graph, mode="infer")
