"""Low-rank changes in the folders of PEFT."""

import json

import numpy as np
import pytest
import safetensors.numpy

import darner
from darner import load, nn
from darner.graph.errors import ArgumentError, FormatError, ShapeError
from darner.io.atomic import FileError
from tests.load.standin import CONFIG, Chain, logits, values

TOKENS = np.array([[3, 1]], np.int32)
PEFT = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 6,
    "lora_dropout": 0.1,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": "org/base",
}


def matrices(seed=1):
    """The changes as PEFT stores them."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in range(2):
        name = f"base_model.model.model.layers.{i}.q_proj"
        found[f"{name}.lora_A.weight"] = rng.normal(size=(2, 8)).astype(np.float32)
        found[f"{name}.lora_B.weight"] = rng.normal(size=(8, 2)).astype(np.float32)
    return found


def write(folder, tensors=None, **config):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**PEFT, **config}))
    safetensors.numpy.save_file(tensors or matrices(), folder / "adapter_model.safetensors")
    return folder


def merged(scale, tensors=None):
    found, changes = values(), tensors or matrices()
    for i in range(2):
        a, b = (changes[f"base_model.model.model.layers.{i}.q_proj.lora_{w}.weight"] for w in "AB")
        found[f"model.layers.{i}.q_proj.weight"] = (
            found[f"model.layers.{i}.q_proj.weight"] + scale * b @ a
        )
    return found


def session_of(lora):
    graph = Chain(CONFIG, linear=lora.linear).inference_graph(1, 2)
    session = darner.build_inference_session(graph, device="reference")
    load.load(session, values())
    return session


@pytest.mark.parametrize(("config", "scale"), [({}, 3.0), ({"use_rslora": True}, 6 / 2**0.5)])
def test_an_adapter_of_peft_changes_the_model_as_it_says(tmp_path, config, scale):
    adapter = load.adapter(write(tmp_path / "a", **config))
    assert adapter.base == "org/base"
    assert (adapter.lora.rank, adapter.lora.dropout) == (2, 0.1)
    assert next(iter(adapter.weights)) == "model.layers.0.q_proj.lora_A.weight"
    assert adapter.weights.info("model.layers.0.q_proj.lora_A.weight").shape == (2, 8)
    with session_of(adapter.lora) as session:
        plain = session.run({"tokens": TOKENS})["logits"]
        found = adapter.load(session)
        changed = session.run({"tokens": TOKENS})["logits"]
    assert len(found.sources) == 4
    np.testing.assert_allclose(plain, logits(values(), TOKENS), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(changed, logits(merged(scale), TOKENS), rtol=1e-4, atol=1e-4)


def test_what_is_saved_is_what_peft_would_read(tmp_path):
    lora = nn.LoRA(rank=2, alpha=6.0, dropout=0.25, targets=("*q_proj",))
    with session_of(lora) as session:
        for name, array in matrices().items():
            session.parameters()[name.removeprefix("base_model.model.")] = array
        files = load.save_adapter(
            tmp_path / "a", session, lora, base="org/base", config={"task_type": "CAUSAL_LM"}
        )
    assert [path.name for path in files] == ["adapter_config.json", "adapter_model.safetensors"]
    stored = safetensors.numpy.load_file(files[1])
    assert sorted(stored) == sorted(matrices())
    assert all((stored[name] == array).all() for name, array in matrices().items())
    assert json.loads(files[0].read_text()) == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "org/base",
        "r": 2,
        "lora_alpha": 6,
        "lora_dropout": 0.25,
        "target_modules": ["q_proj"],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    again = load.adapter(tmp_path / "a")
    assert again.lora == nn.LoRA(rank=2, alpha=6.0, dropout=0.25, targets=("q_proj", "*.q_proj"))


def test_parameters_that_were_trained_whole_come_along(tmp_path):
    tensors = matrices() | {"base_model.model.model.norm.bias": np.full(8, 7.0, np.float32)}
    adapter = load.adapter(write(tmp_path / "a", tensors, modules_to_save=["norm"]))
    with session_of(adapter.lora) as session:
        adapter.load(session)
        assert session.parameters()["model.norm.bias"].tolist() == [7.0] * 8
        assert (session.parameters()["model.norm.weight"] == values()["model.norm.weight"]).all()


def test_changes_that_do_not_fit_are_listed_and_leave_the_session_alone(tmp_path):
    adapter = load.adapter(write(tmp_path / "a"))
    wide = nn.LoRA(rank=2, targets=("*_proj",))
    with session_of(nn.LoRA(rank=4, targets=("q_proj",))) as session:
        with pytest.raises(load.MismatchError, match=r"layers.\{0,1\}.q_proj.lora_A.weight \(2\)"):
            adapter.load(session)
        assert (session.parameters()["model.layers.0.q_proj.lora_B.weight"] == 0).all()
    half = {name: array for name, array in matrices().items() if ".layers.0." in name}
    with (
        session_of(wide) as session,
        pytest.raises(load.MismatchError, match=r"2 missing.*\n  model.layers.1.q_proj.lora_A"),
    ):
        load.adapter(write(tmp_path / "half", half)).load(session)
    with (
        session_of(nn.LoRA(targets=())) as session,
        pytest.raises(load.MismatchError, match=r"4 unexpected"),
    ):
        adapter.load(session)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "of the kind 'IA3'"),
        ({"use_dora": True}, "use_dora=True"),
        ({"rank_pattern": {"q_proj": 3}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa_niter_4"}, "started by 'pissa_niter_4'"),
        ({"r": 3}, r"says rank 3, but '.*lora_A.weight' has the shape \(2, 8\)"),
        ({"r": 0}, "r=0"),
        ({"r": "2"}, "r='2'"),
        ({"lora_alpha": "x"}, "lora_alpha='x'"),
        ({"lora_dropout": None}, "lora_dropout=None"),
    ],
)
def test_adapters_that_mean_something_else_are_refused(tmp_path, config, message):
    with pytest.raises(FormatError, match=rf"adapter_config\.json' .*{message}"):
        load.adapter(write(tmp_path / "a", **config))


def test_folders_that_are_no_adapters_are_told(tmp_path):
    with pytest.raises(FileError, match=r"cannot read '.*adapter_config.json'"):
        load.adapter(tmp_path)
    with pytest.raises(FormatError, match="holds no lora_A and lora_B"):
        load.adapter(write(tmp_path / "a", {"w": np.ones(2)}))
    with pytest.raises(ArgumentError, match="no low-rank changes among the parameters"):
        load.save_adapter(tmp_path / "b", {"w": np.ones(2)}, nn.LoRA())
    assert not (tmp_path / "b").exists()


def test_merged_matrices_compute_the_same_as_the_changes(tmp_path):
    adapter = load.adapter(write(tmp_path / "a"))
    with session_of(adapter.lora) as session:
        adapter.load(session)
        changed = session.run({"tokens": TOKENS})["logits"]
        whole = load.merged(session, adapter.lora)
        assert list(whole) == [name for name in session.parameters() if ".lora_" not in name]
        means = {name: array for name, array in session.state().items() if "running" in name}
        load.save(tmp_path / "m", CONFIG, {**whole, **means})
    graph = Chain(CONFIG).inference_graph(1, 2)
    with darner.build_inference_session(graph, device="reference") as session:
        load.load(session, tmp_path / "m")
        again = session.run({"tokens": TOKENS})["logits"]
    np.testing.assert_allclose(again, changed, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(again, logits(merged(3.0), TOKENS), rtol=1e-4, atol=1e-4)


def test_matrices_stored_the_other_way_round_are_merged_so():
    rng = np.random.default_rng(0)
    weight, a, b = rng.normal(size=(3, 5)), rng.normal(size=(2, 3)), rng.normal(size=(5, 2))
    values = {"c_attn.weight": weight, "c_attn.lora_A.weight": a, "c_attn.lora_B.weight": b}
    lora = nn.LoRA(rank=2, alpha=2.0)
    found = load.merged(values, lora, transposed=("*c_attn.weight",))
    np.testing.assert_allclose(found["c_attn.weight"], weight + (b @ a).T)
    with pytest.raises(ShapeError, match=r"'c_attn.weight' is \(3, 5\), but its change .*\(5, 3\)"):
        load.merged(values, lora)["c_attn.weight"]
    with pytest.raises(KeyError, match="merged into its matrix"):
        found["c_attn.lora_A.weight"]
