"""darner inspect, of folders, configurations and files."""

import json

import numpy as np
import pytest

from darner import optim, train

SIZES = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "tie_word_embeddings": True,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SIZES))
    return path


def test_a_configuration_is_counted(config, run):
    code, out, _ = run("inspect", config, "--json", "--batch", 2, "--length", 8)
    found = json.loads(out)
    assert code == 0
    layer = 4 * 16 * 16 + 3 * 16 * 24 + 2 * 16
    assert found["parameters"]["count"] == 64 * 16 + 3 * layer + 16
    assert found["parameters"]["bytes"] == 4 * found["parameters"]["count"]
    assert found["parameters"]["tensors"] == 1 + 3 * 9 + 1
    assert found["inputs"] == {"tokens": "i32[2, 8]"}
    assert found["outputs"] == [{"name": "logits", "type": "f32[2, 8, 64]"}]
    assert sum(found["ops"].values()) == found["nodes"]
    assert found["ops"]["scaled_dot_attention"] == 3
    products = 2 * 16 * (3 * (4 * 16 * 16 + 3 * 16 * 24) + 64 * 16)
    assert products < found["flops"] < 2 * products


def test_layers_are_folded_for_people(config, run):
    code, out, _ = run("inspect", config)
    assert code == 0
    assert out.startswith("7,664 parameters in 29 tensors, 30.7 kB\n")
    rows = [line.split() for line in out.splitlines()]
    assert ["model.layers.{0..2}.self_attn.q_proj.weight", "(3)", "f32[16,", "16]"] in rows
    assert "graph llama.inference:" in out


def test_a_folder_with_its_caches(llama, run):
    code, out, _ = run("inspect", llama[0], "--graph", "cached", "--cache", 64, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["parameters"]["count"] == sum(v.numel() for v in llama[1].parameters())
    assert found["states"] == {"tensors": 4, "bytes": 4 * 64 * 2 * 8 * 4}


def test_the_plan_and_the_report_are_those_of_a_session(config, run):
    asked = ("--length", 4, "--report", "--plan", "--threads", 1)
    code, out, _ = run("inspect", config, "--graph", "training", "--json", *asked)
    found = json.loads(out)
    assert code == 0
    assert found["plan"]["kernels"] == sum(found["plan"]["kinds"].values()) > 20
    assert found["plan"]["arena_bytes"] > 0
    assert "adam state" in found["plan"]["memory"]
    assert found["report"]
    code, out, _ = run("inspect", config, *asked)
    assert code == 0
    assert "kernels: " in out
    assert "Egglog saturation" in out


def test_a_checkpoint_says_what_it_holds(run, tmp_path):
    import darner

    g = darner.Graph("line")
    x = g.input("x", (4,))
    g.set_outputs([(x * g.parameter("layers.0.w", (4,)) - 1.0).square().mean()])
    batches = [{"x": np.ones(4, np.float32)}]
    options = {"optimizer": optim.Adam(0.1), "steps": 2, "checkpoint": tmp_path, "threads": 1}
    with train.Trainer(g, batches, **options) as trainer:
        trainer.train()
    path = train.latest(tmp_path)
    code, out, _ = run("inspect", path, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["parameters"]["list"] == [{"name": "layers.0.w", "dtype": "float32", "shape": [4]}]
    assert found["states"]["tensors"] >= 3
    assert found["metadata"]["darner.version"] == darner.__version__
    code, out, _ = run("inspect", path)
    assert "4 parameters in 1 tensors, 16 B" in out


def test_what_a_model_has_not_is_named(config, tmp_path, run):
    code, _, err = run("inspect", config, "--cache", 8)
    assert code == 1
    assert "the inference graph of a llama has no cache" in err
    other = tmp_path / "resnet.json"
    other.write_text(json.dumps({"model_type": "resnet"}))
    code, _, err = run("inspect", other, "--graph", "cached")
    assert (code, err) == (1, "darner inspect: a resnet has no cached graph\n")
    other.write_text(json.dumps({"model_type": "lama"}))
    code, _, err = run("inspect", other)
    assert code == 1
    assert "there is no architecture 'lama'" in err
