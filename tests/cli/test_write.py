"""Texts from folders: by text.load, and by darner generate."""

import io
import json

import pytest

import darner
from darner import ArgumentError, data, load, models, text
from darner.cli import main

from .conftest import continued


def test_a_folder_writes_what_transformers_writes(llama):
    folder, peer = llama
    with text.closing(text.load(folder, threads=1)) as generator:
        assert generator.ends == {1}
        found = generator.generate("Hello", max_new_tokens=20)
        assert found.text == continued(peer, "Hello", 20)
        assert text.generate(generator, "Hello", max_new_tokens=20) == found
        assert "".join(text.stream(generator, "Hello", max_new_tokens=20)) == found.text
    assert text.generate(folder, "Hello", max_new_tokens=20, threads=1) == found


def test_sampling_may_be_given_by_its_names(llama):
    folder, _ = llama
    with text.closing(text.load(folder, threads=1)) as generator:
        wanted = text.Sampling(temperature=2.0, top_k=30, seed=3)
        first = generator.generate("Hi", max_new_tokens=12, sampling=wanted)
        options = {"temperature": 2.0, "top_k": 30, "max_new_tokens": 12}
        assert text.generate(generator, "Hi", seed=3, **options) == first
        assert text.generate(generator, "Hi", seed=4, **options) != first
        with pytest.raises(ArgumentError, match="takes no 'threads'"):
            text.generate(generator, "Hi", threads=2)


def test_a_folder_says_how_its_model_draws(tmp_path):
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert text.sampling_of(tmp_path) == text.Sampling(temperature=0.6, top_p=0.9)
    assert text.sampling_of(tmp_path, temperature=0.0).greedy
    settings["do_sample"] = False
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert text.sampling_of(tmp_path) == text.GREEDY
    assert text.sampling_of(tmp_path, min_p=0.1) == text.Sampling(min_p=0.1)


def test_without_a_vocabulary_prompts_are_tokens(llama, tmp_path):
    folder, _ = llama
    load.save(tmp_path / "bare", load.config(folder), load.weights(folder))
    with (
        text.closing(text.load(tmp_path / "bare", threads=1)) as bare,
        text.closing(text.load(folder, threads=1)) as whole,
    ):
        assert bare.vocabulary is None
        assert bare.ends == {1}
        tokens = whole.vocabulary.encode("Hello")
        found = bare.generate(tokens, max_new_tokens=5)
        assert found.tokens == whole.generate("Hello", max_new_tokens=5).tokens


def test_what_writes_no_text_is_refused(tmp_path):
    model = models.from_config({"model_type": "bert", "vocab_size": 8, "hidden_size": 8} | SMALL)
    graph = model.inference_graph(batch=1, length=2)
    with load_session(graph) as session:
        load.save(tmp_path / "bert", model.config.to_hf(), session.parameters())
    with pytest.raises(ArgumentError, match="is a bert, which writes no text"):
        text.load(tmp_path / "bert")


SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def load_session(graph):
    return darner.build_inference_session(graph, threads=1)


# --------------------------------------------------------------------------- the command


def test_generate_streams_prompt_and_answer_and_tells_the_speed(llama, run):
    folder, peer = llama
    code, out, err = run("generate", folder, "Hello", "--max-new-tokens", 20, "--threads", 1)
    assert code == 0
    assert out == f"Hello{continued(peer, 'Hello', 20)}\n"
    assert err.startswith("prompt: 5 tokens, ")
    assert err.endswith(" tokens/s\n")
    assert "answer: " in err


def test_generate_reads_standard_input_and_takes_several_prompts(llama, run, monkeypatch):
    folder, peer = llama
    monkeypatch.setattr("sys.stdin", io.StringIO("Say"))
    code, out, _ = run(
        "generate", folder, "-", "Hello", "--json", "--max-new-tokens", 9, "--threads", 1
    )
    assert code == 0
    found = json.loads(out)
    assert [one["prompt"] for one in found["completions"]] == ["Say", "Hello"]
    wanted = [continued(peer, "Say", 9), continued(peer, "Hello", 9)]
    assert [one["text"] for one in found["completions"]] == wanted
    assert found["prompt_tokens"] == 8
    code, out, _ = run("generate", folder, "Say", "Hello", "--max-new-tokens", 9, "--threads", 1)
    assert out == f"Say{wanted[0]}\n\nHello{wanted[1]}\n"


def test_generate_stops_at_a_text_and_draws_by_its_seed(llama, run):
    folder, peer = llama
    whole = continued(peer, "Hello", 20)
    end = whole[7:9]
    plain = ("generate", folder, "Hello", "--max-new-tokens", 20, "--threads", 1)
    _, out, _ = run(*plain, "--stop", end)
    assert out == f"Hello{whole[: whole.index(end)]}\n"
    drawn = [run(*plain, "--temperature", 2, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_generate_reads_the_vocabulary_of_characters(tmp_path, run):
    vocabulary = data.CharVocabulary("abcde ")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = {"model_type": "llama", "vocab_size": 6, "num_attention_heads": 2, **sizes}
    model = models.from_config(config)
    with load_session(model.inference_graph(batch=1, length=1)) as session:
        load.save(tmp_path / "m", model.config.to_hf(), session.parameters(), tied=model.tied)
    vocabulary.save(tmp_path / "m" / "vocabulary.json")
    code, out, _ = run("generate", tmp_path / "m", "abc", "--max-new-tokens", 5, "--threads", 1)
    assert code == 0
    assert len(out) == len("abc") + 5 + 1
    assert set(out.strip("\n")) <= set("abcde ")
    code, _, err = run("generate", tmp_path / "m", "xyz")
    assert code == 1
    assert err == (
        "darner generate: the vocabulary of 6 characters has no 'x' (line 1, column 1)\n"
    )


def test_an_interrupt_ends_it_with_130(llama, run, monkeypatch):
    def interrupted(self, *prompts, **options):
        yield "x"
        raise KeyboardInterrupt

    monkeypatch.setattr(text.Generator, "stream", interrupted)
    code, out, err = run("generate", llama[0], "Hello", "--threads", 1)
    assert (code, out, err) == (130, "Hellox", "darner generate: interrupted\n")


def test_a_failure_is_one_line_and_its_traceback_can_be_asked_for(run):
    code, out, err = run("generate", "no/such/folder", "x")
    assert (code, out) == (3, "")
    assert err.startswith("darner generate: there is no folder 'no/such/folder'")
    assert err.count("\n") == 1
    code, _, traced = run("generate", "no/such/folder", "x", "--traceback")
    assert code == 3
    assert traced.startswith("Traceback (most recent call last)")
    assert traced.endswith(err)


@pytest.mark.parametrize(
    "wrong", [["--top-k", "-1"], ["--top-p", "0"], ["--max-new-tokens", "0"], ["--temperature=-1"]]
)
def test_wrong_values_are_wrong_usage(llama, wrong, capsys):
    with pytest.raises(SystemExit) as found:
        main(["generate", str(llama[0]), "x", *wrong])
    assert found.value.code == 2
    named = wrong[0].split("=")[0].lstrip("-")
    assert named in capsys.readouterr().err.replace("_", "-")
