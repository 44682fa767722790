"""darner train: a text becomes a folder that writes; stopped training goes on exactly."""

import json
import signal

import numpy as np
import pytest

from darner import data, load, text, train
from darner.cli import main
from darner.train.folder_lock import LOCK, FolderLock

WORDS = "the cat sat on the mat and the dog ran to the cat\n"
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
FAST = ("--threads", 1, "--length", 16, "--batch", 4, "--rate", 0.02)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(WORDS * 40)
    return path


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"model_type": "llama", "num_attention_heads": 2, **SIZES}))
    return path


def test_a_text_becomes_a_folder_that_writes_like_it(corpus, config, run, tmp_path):
    out = tmp_path / "out"
    asked = ("--text", corpus, "--model", config, "--out", out, "--steps", 150, "--sample", 8)
    code, sample, err = run("train", *asked, *FAST)
    assert code == 0
    assert sample.startswith("the cat ")
    assert len(sample) == 8 + 8 + 1
    assert "validation loss" in err
    assert f"darner generate {out} 'the cat' --temperature 0.8" in err
    assert f"darner train --resume {out} --steps 300" in err
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "model.safetensors", "vocabulary.json", "train.json", "checkpoints")
    }
    inside = {path.name for path in (out / "checkpoints").iterdir()}
    assert {"best.safetensors", "curve.svg", "log.jsonl", "step-00000150.safetensors"} <= inside
    lines = (out / "checkpoints" / "log.jsonl").read_text().splitlines()
    losses = [
        json.loads(line)["loss"] for line in lines if json.loads(line)["kind"] == "validation"
    ]
    assert len(losses) == 10
    assert losses[-1] < 0.5 < 0.8 < losses[0]
    assert data.CharVocabulary.load(out / "vocabulary.json").characters == "".join(
        sorted(set(WORDS))
    )
    code, written, _ = run("generate", out, "the ", "--max-new-tokens", 6, "--threads", 1)
    assert code == 0
    assert written.startswith("the ")
    assert written.strip() in WORDS * 2


def test_a_precision_is_kept_with_the_training_and_passed_on(corpus, config, run, tmp_path):
    out = tmp_path / "out"
    asked = ("--text", corpus, "--model", config, "--out", out, "--steps", 30, "--sample", 0)
    code, _, _ = run("train", *asked, *FAST, "--precision", "f16")
    assert code == 0
    assert json.loads((out / "train.json").read_text())["precision"] == "f16"
    code, _, _ = run("train", "--resume", out, "--steps", 32, "--sample", 0)
    assert code == 0
    code, written, _ = run("generate", out, "the ", "--max-new-tokens", 2, "--precision", "bf16")
    assert (code, written[:4]) == (0, "the ")
    with pytest.raises(SystemExit, match="2"):
        run("generate", out, "the ", "--precision", "half")


def test_a_stopped_training_goes_on_to_the_same_weights(corpus, config, run, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    asked = ("--text", corpus, "--model", config, "--steps", 14, "--validate-every", 6, *FAST)
    assert run("train", *asked, "--out", whole, "--quiet")[0] == 0

    counted = data.TokenWindows.batch_at
    calls = []

    def interrupting(self, epoch, position):
        calls.append(position)
        if len(calls) == 8:
            signal.raise_signal(signal.SIGINT)
        return counted(self, epoch, position)

    monkeypatch.setattr(data.TokenWindows, "batch_at", interrupting)
    code, out, err = run("train", *asked, "--out", parts, "--quiet")
    monkeypatch.undo()
    assert (code, out) == (130, "")
    assert f"to go on: darner train --resume {parts}" in err
    assert not (parts / "model.safetensors").exists()
    latest = train.latest(parts / "checkpoints")
    assert 0 < int(latest.stem.rpartition("-")[2]) < 14

    code, _, err = run("train", "--resume", parts, "--quiet")
    assert (code, err) == (0, "")
    ours, theirs = load.weights(parts), load.weights(whole)
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_a_second_interrupt_says_how_to_go_on_too(corpus, config, run, tmp_path, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(train.Trainer, "train", interrupted)
    asked = ("--text", corpus, "--model", config, "--out", tmp_path / "a b", *FAST, "--quiet")
    code, _, err = run("train", *asked)
    assert code == 130
    assert err.endswith(f"saved last: darner train --resume '{tmp_path / 'a b'}'\n")


def test_training_goes_on_for_more_steps_where_asked(corpus, config, run, tmp_path):
    asked = ("--text", corpus, "--model", config, "--steps", 4, "--out", tmp_path / "out", *FAST)
    assert run("train", *asked, "--quiet")[0] == 0
    code, out, _ = run("train", "--resume", tmp_path / "out", "--steps", 6, "--quiet")
    assert code == 0
    assert out.startswith("the cat ")
    last = train.latest(tmp_path / "out" / "checkpoints")
    assert last.name == "step-00000006.safetensors"
    code, _, err = run("train", "--resume", tmp_path / "out", "--steps", 5)
    assert (code, err.count("\n")) == (1, 1)
    assert "has made 6 steps already, more than --steps 5; to go on: darner train --resume" in err
    code, _, err = run("train", *asked)
    assert code == 1
    assert "has a training already; darner train --resume" in err
    corpus.write_text("something else" * 99)
    code, _, err = run("train", "--resume", tmp_path / "out", "--steps", 9)
    assert code == 1
    assert "is not what it was when training began" in err


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "nano"])
def test_a_preset_trains(corpus, run, tmp_path, preset):
    asked = ("--preset", preset, "--steps", 2, "--batch", 1, "--held-out", 0, "--length", 32)
    out = tmp_path / "out"
    code, _, _ = run("train", "--text", corpus, "--out", out, *asked, "--threads", 1, "--quiet")
    assert code == 0
    assert load.config(out)["model_type"] == {"tiny": "llama", "nano": "gpt2"}[preset]
    assert "best.safetensors" not in {path.name for path in (out / "checkpoints").iterdir()}


def test_a_tokenizer_takes_the_place_of_characters(corpus, config, run, tmp_path, llama):
    corpus.write_text(WORDS.replace("\n", " ") * 20)
    asked = ("--tokenizer", llama[0] / "tokenizer.json", "--steps", 2, "--out", tmp_path / "out")
    code, _, _ = run("train", "--text", corpus, "--model", config, *asked, *FAST, "--quiet")
    assert code == 0
    assert load.config(tmp_path / "out")["vocab_size"] == 93
    found = text.generate(tmp_path / "out", "the", max_new_tokens=3, threads=1)
    assert len(found.tokens) == 3


def test_a_pretrained_model_is_tuned(corpus, run, tmp_path, llama):
    corpus.write_text(WORDS.replace("\n", " ") * 20)
    out = tmp_path / "out"
    asked = ("--finetune", llama[0], "--steps", 30, "--out", out, "--sample", 0, "--quiet")
    code, sample, _ = run("train", "--text", corpus, *asked, *FAST)
    assert (code, sample) == (0, "")
    lines = (out / "checkpoints" / "log.jsonl").read_text().splitlines()
    losses = [
        json.loads(line)["loss"] for line in lines if json.loads(line)["kind"] == "validation"
    ]
    assert losses[-1] < losses[0] - 0.5
    before, after = load.weights(llama[0]), load.weights(out)
    assert set(before) == set(after)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not np.array_equal(before[name], after[name])
    with text.closing(text.load(out, threads=1)) as generator:
        assert isinstance(generator.vocabulary, text.Tokenizer)


def test_low_rank_changes_leave_other_matrices_alone(corpus, run, tmp_path, llama):
    corpus.write_text(WORDS.replace("\n", " ") * 20)
    out = tmp_path / "out"
    asked = ("--finetune", llama[0], "--lora", 2, "--steps", 10, "--out", out, "--sample", 4)
    code, _, _ = run("train", "--text", corpus, *asked, *FAST, "--quiet")
    assert code == 0
    before, after = load.weights(llama[0]), load.weights(out)
    assert set(before) == set(after)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {
        f"model.layers.{i}.self_attn.{which}_proj.weight" for i in (0, 1) for which in "qv"
    }
    adapter = load.adapter(out / "adapter")
    assert (adapter.base, adapter.lora.rank) == (str(llama[0]), 2)
    name = "model.layers.1.self_attn.v_proj"
    product = (
        adapter.weights[f"{name}.lora_B.weight"] @ adapter.weights[f"{name}.lora_A.weight"] * 2.0
    )
    change = after[f"{name}.weight"] - before[f"{name}.weight"]
    np.testing.assert_allclose(change, product, atol=1e-6)


def test_a_folder_that_another_training_uses_is_left_alone(corpus, config, run, tmp_path):
    out = tmp_path / "out"
    held = FolderLock(out, "--out")
    held.hold()
    code, _, err = run("train", "--text", corpus, "--model", config, "--out", out, *FAST)
    assert (code, err.count("\n")) == (1, 1)
    assert f"'{out}' is in use by another trainer of this process" in err
    assert {path.name for path in out.iterdir()} == {LOCK}
    code, _, err = run("train", "--resume", out)
    assert (code, err.count("\n")) == (1, 1)
    assert "is in use by" in err
    held.release()
    assert not out.exists()


# --------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([], "one of the arguments --text --resume is required"),
        (["--text", "x", "--resume", "y"], "not allowed with"),
        (["--text", "x", "--lora", "4"], "needs --finetune"),
        (["--text", "x", "--finetune", "y", "--tokenizer", "z"], "the tokenizer of its folder"),
        (["--text", "x", "--rate", "-1"], "is not a number above 0"),
        (["--text", "x", "--held-out", "1"], "--held-out is a share"),
        (["--resume", "x", "--batch", "3"], "--batch: a training goes on as it began"),
    ],
)
def test_wrong_usage_is_told(wrong, said, capsys):
    with pytest.raises(SystemExit) as found:
        main(["train", *wrong])
    assert found.value.code == 2
    assert said in capsys.readouterr().err


def test_what_cannot_be_trained_leaves_no_folder(corpus, config, run, tmp_path):
    out = tmp_path / "out"
    asked = ("--text", corpus, "--out", out)
    code, _, err = run("train", *asked, "--length", 5000)
    assert code == 1
    assert "too few for a length of 5000" in err
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 99, **SIZES}))
    code, _, err = run("train", *asked, "--model", config)
    assert code == 1
    assert "a vocabulary of 99, but there are 14 different tokens" in err
    code, _, err = run("train", "--text", tmp_path / "none.txt", "--out", out)
    assert code == 3
    assert "none.txt" in err
    code, _, err = run("train", "--resume", tmp_path)
    assert code == 3
    assert "it is no training of darner train" in err
    assert not out.exists()


def test_a_model_that_is_there_is_not_replaced(corpus, run, llama):
    before = (llama[0] / "model.safetensors").read_bytes()
    code, _, err = run("train", "--text", corpus, "--finetune", llama[0], "--out", llama[0])
    assert code == 1
    assert "has a model already, which would be replaced; name another folder: --out" in err
    assert (llama[0] / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_changes_of_matrices_stored_the_other_way_are_added_as_they_were_trained(
    corpus, config, run, tmp_path
):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "bias": False}
    config.write_text(json.dumps({"model_type": "gpt2", "n_positions": 32, **sizes}))
    base, out = tmp_path / "base", tmp_path / "out"
    asked = ("--text", corpus, "--steps", 20, "--quiet", *FAST)
    assert run("train", *asked, "--model", config, "--out", base)[0] == 0
    tuned = ("--finetune", base, "--lora", 2, "--out", out, "--sample", 12)
    code, sample, _ = run("train", *asked, *tuned)
    assert code == 0
    before, after = load.weights(base), load.weights(out)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"transformer.h.0.attn.c_attn.weight"}
    drawn = {"temperature": 0.8, "top_k": 40, "max_new_tokens": 12}
    assert text.generate(out, "the cat ", threads=1, **drawn).text == sample[8:-1]
