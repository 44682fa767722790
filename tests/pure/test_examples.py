"""Every example runs, and says what it promises."""

import re
import runpy
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import darner
from darner import data, load, models

HERE = Path(__file__).parents[2] / "examples"

EXAMPLES = {
    "diffusion_toy.py": (
        ["--quick", "--points", "500"],
        [
            "after 400 steps",
            "\nlearnt: ",
            "% of the points are within 0.1 of the ring",
            "the picture is diffusion_toy.svg",
        ],
    ),
    "embed_search.py": (
        ["--best", "1", "a recipe for bread", "the ferry in a storm"],
        [
            "no --model: a small BERT",
            "8 sentences as vectors of 64 numbers",
            "A recipe for bread needs flour",
            "The ferry across the lake",
        ],
    ),
    "finetune_lora.py": (
        [
            *("--base-steps", "30", "--steps", "40", "--length", "32", "--tokens", "16"),
            *("--rank", "4", "--save", "adapter"),
        ],
        [
            "the base model's loss is",
            "14,592 numbers are trained beside 234,144 that stay as they are",
            "before:\nFriday: ",
            "after, with the adapter read again:\nFriday: ",
        ],
    ),
    "image_classify.py": (
        ["--steps", "60", "--best", "1"],
        ["loss 0.", "drawn here: ring", "%  disc", "%  stripes"],
    ),
    "mnist.py": (
        ["--synthetic", "--drawn", "12000", "--epochs", "2"],
        [
            "digits drawn here: 12,000 to learn from",
            "% of the test images are right, after 374 steps",
        ],
    ),
    "mnist_graph.py": (
        ["--batch", "4"],
        ["graph @mnist {", "fused_matmul", "ShapeError: matmul 'oops'"],
    ),
    "shakespeare.py": (
        ["--steps", "12", "--width", "32", "--batch", "2", "--letters", "30", "--out", "run"],
        [
            "parameters reads 1,003,854 letters of Shakespeare",
            "loss on text that it never saw: ",
            "ROMEO:",
            "--sample",
        ],
    ),
    "splats.py": (
        ["--splats", "60", "--steps", "40", "--size", "32", "--out", "fitted.png"],
        ["step     0  error 0.", "step    40  error 0.0", " dB  ", "the last try are fitted.png"],
    ),
    "optimize_llama.py": (
        ["--layers", "2"],
        ["=== Optimization Report ===", "MatMul+Add→FusedMatMulAdd x4", "layer1.gate+layer1.up"],
    ),
}


def test_every_example_is_listed():
    assert sorted(EXAMPLES) == sorted(path.name for path in HERE.glob("*.py"))


SLOW = {"diffusion_toy.py", "finetune_lora.py", "image_classify.py", "mnist.py", "shakespeare.py"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXAMPLES]
)
def test_an_example_runs(name, monkeypatch, capsys, tmp_path):
    arguments, promised = EXAMPLES[name]
    monkeypatch.delenv("DARNER_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # for what an example writes
    printed = run(name, arguments, monkeypatch, capsys)
    for text in promised:
        assert text in printed
    if name in AFTERWARDS:
        AFTERWARDS[name](printed, tmp_path)


def check_digits(printed, folder):
    """The digits that were drawn are learned."""
    assert share_right(printed) > 95.0


def check_adapter(printed, folder):
    """It is one of PEFT's, of the rank that was asked for, and the loss falls."""
    before, after = re.search(r"loss ([\d.]+) before, ([\d.]+) after", printed).groups()
    assert float(after) < float(before) - 0.3
    adapter = load.adapter(folder / "adapter")
    assert adapter.lora.rank == 4
    assert len(adapter.weights) == 2 * 2 * 7  # A and B of seven matrices in two layers
    assert np.abs(adapter.weights["model.layers.1.mlp.down_proj.lora_B.weight"]).max() > 0


def check_fitted(printed, folder):
    """Splats look like the picture, and the file has three pictures beside each other."""
    errors = [float(found) for found in re.findall(r"error ([\d.]+)", printed)]
    assert errors[-1] < errors[0] / 5
    file = (folder / "fitted.png").read_bytes()
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", file[16:24]) == (3 * 32, 32)


AFTERWARDS = {
    "finetune_lora.py": check_adapter,
    "mnist.py": check_digits,
    "splats.py": check_fitted,
}
"""What is to be true of what an example did."""


def run(name, arguments, monkeypatch, capsys):
    """What an example prints."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    try:
        runpy.run_path(str(HERE / name), run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    return capsys.readouterr().out


def share_right(printed):
    return float(re.search(r"([\d.]+) % of the test images are right", printed).group(1))


@pytest.mark.slow
def test_mnist_reads_more_than_98_percent(monkeypatch, capsys):
    try:
        folder = data.mnist_folder()
    except FileNotFoundError as error:
        pytest.skip(f"MNIST itself is not here: {error}")
    arguments = ["--data", folder, "--epochs", 1, "--batch", 32]  # a third of the time, and enough
    assert share_right(run("mnist.py", arguments, monkeypatch, capsys)) > 98.0


def test_mnist_says_when_the_folder_that_is_named_has_no_files(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match=f"MNIST .* is not in '{tmp_path}'"):
        run("mnist.py", ["--data", tmp_path], monkeypatch, capsys)


def save_words(folder, words):
    """A tokenizer of whole words, in the form of HuggingFace."""
    tokenizers = pytest.importorskip("tokenizers")
    ids = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.save(str(folder / "tokenizer.json"))
    return len(ids)


@pytest.mark.slow
def test_lora_takes_a_folder_and_its_tokenizer(tmp_path, monkeypatch, capsys):
    count = save_words(tmp_path, ["one", "two", "three"])
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = {"model_type": "llama", "vocab_size": count, "num_attention_heads": 2, **sizes}
    model = models.from_config({**config, "max_position_embeddings": 64})
    graph = model.inference_graph(batch=1, length=4)
    with darner.build_inference_session(graph, seed=0, threads=1) as session:
        load.save(tmp_path, model.config.to_hf(), session.parameters(), tied=model.tied)
    (tmp_path / "subject.txt").write_text("one two three " * 100)
    arguments = ["--model", tmp_path, "--text", tmp_path / "subject.txt", "--prompt", "one two"]
    arguments += ["--steps", 60, "--length", 16, "--tokens", 2, "--save", tmp_path / "adapter"]
    printed = run("finetune_lora.py", arguments, monkeypatch, capsys)
    assert "no --model" not in printed
    before, after = re.search(r"loss ([\d.]+) before, ([\d.]+) after", printed).groups()
    assert float(after) < float(before) - 0.3
    assert load.adapter(tmp_path / "adapter").base == str(tmp_path)


def test_search_reads_a_folder_and_its_tokenizer(tmp_path, monkeypatch, capsys):
    count = save_words(tmp_path, ["red", "blue", "cars", "boats"])
    sizes = {
        "vocab_size": count,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = models.from_config({"model_type": "bert", **sizes, "intermediate_size": 32})
    graph = model.inference_graph(batch=1, length=4)
    with darner.build_inference_session(graph, seed=0, threads=1) as session:
        load.save(tmp_path, model.config.to_hf(), session.parameters())
    (tmp_path / "lines.txt").write_text("red cars\n\nblue boats\n")
    arguments = [
        "--model",
        tmp_path,
        "--sentences",
        tmp_path / "lines.txt",
        "--best",
        1,
        "boats blue",
    ]
    printed = run("embed_search.py", arguments, monkeypatch, capsys)
    assert "no --model" not in printed
    assert re.search(r"boats blue\n  0\.9\d+  blue boats\n$", printed)


def test_pictures_are_read_from_both_kinds_of_file(tmp_path):
    classify = runpy.run_path(str(HERE / "image_classify.py"))
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    np.save(tmp_path / "a.npy", picture)
    (tmp_path / "b.ppm").write_bytes(b"P6\n# a comment\n3 2\n255\n" + picture.tobytes())
    np.testing.assert_array_equal(classify["read"](tmp_path / "a.npy"), picture)
    np.testing.assert_array_equal(classify["read"](tmp_path / "b.ppm"), picture)
    (tmp_path / "c.ppm").write_bytes(b"P5\n3 2\n255\n" + picture.tobytes())
    with pytest.raises(SystemExit, match="form P6"):
        classify["read"](tmp_path / "c.ppm")
    middle = classify["pixels"](picture, 2, [0.0] * 3, [1.0 / 255] * 3)
    np.testing.assert_allclose(middle, picture[:, :2].transpose(2, 0, 1), rtol=1e-5)
