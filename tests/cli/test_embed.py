"""Sentence embeddings, compared with transformers."""

import io
import json

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from darner import ArgumentError
from darner.text import Embedder

from .conftest import tokenizer_of

TEXTS = ["a cat", "a small cat that sleeps in the sun all day", "tax", "abc" * 12, "dog"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    size = tokenizer_of(folder, cls_token="[", sep_token="]")
    path = folder / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    places = [("[", inner.token_to_id("[")), ("]", inner.token_to_id("]"))]
    inner.post_processor = tokenizers.processors.TemplateProcessing("[ $0 ]", None, places)
    inner.enable_padding(length=64)
    inner.enable_truncation(64)
    inner.save(str(path))
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=48,
    )
    # A head, and no pooler: the encoder is what is wanted.
    peer = transformers.BertForMaskedLM(config).eval()
    peer.save_pretrained(folder)
    inner.no_padding()
    inner.no_truncation()
    return folder, peer, inner


def wanted(peer, inner, texts):
    rows = []
    for text in texts:
        ids = torch.tensor([inner.encode(text).ids])
        with torch.no_grad():
            mean = peer.bert(ids).last_hidden_state[0].mean(0)
        rows.append((mean / mean.norm()).numpy())
    return np.stack(rows)


def test_each_text_has_the_mean_of_its_tokens(bert):
    folder, peer, inner = bert
    embedder = Embedder.load(folder, threads=1)
    found = embedder.embed(TEXTS)
    np.testing.assert_allclose(found, wanted(peer, inner, TEXTS), atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    one = embedder.embed(TEXTS[2:3])
    np.testing.assert_allclose(one, found[2:3], atol=2e-6)
    assert embedder.embed([]).shape == (0, 32)
    embedder.close()


def test_more_texts_than_fit_at_once_keep_their_order(bert):
    folder, peer, inner = bert
    texts = [chr(97 + i % 26) * (1 + i % 11) for i in range(70)]
    embedder = Embedder.load(folder, threads=1)
    np.testing.assert_allclose(embedder.embed(texts), wanted(peer, inner, texts), atol=2e-6)
    embedder.close()


def test_a_text_that_is_too_long_is_cut_only_where_asked(bert):
    folder, peer, inner = bert
    embedder = Embedder.load(folder, threads=1)
    with pytest.raises(ArgumentError, match="text 1 has 102 tokens, and the model takes 48"):
        embedder.embed(["a", "b" * 100])
    found = embedder.embed(["b" * 100], truncate=True)
    np.testing.assert_allclose(found, wanted(peer, inner, ["b" * 46]), atol=2e-6)
    embedder.close()


# --------------------------------------------------------------------------- the command


def test_embed_writes_rows_json_and_files(bert, run, tmp_path, monkeypatch):
    folder, peer, inner = bert
    expected = wanted(peer, inner, TEXTS[:2])
    code, out, _ = run("embed", folder, *TEXTS[:2], "--threads", 1)
    assert code == 0
    rows = np.array([[float(word) for word in line.split()] for line in out.splitlines()])
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([TEXTS[0], "", TEXTS[1], ""])))
    _, out, _ = run("embed", folder, "-", "--json", "--threads", 1)
    assert json.loads(out)["texts"] == TEXTS[:2]
    np.testing.assert_allclose(json.loads(out)["embeddings"], expected, atol=1e-5)
    code, out, _ = run("embed", folder, *TEXTS[:2], "--npy", tmp_path / "rows.npy", "--threads", 1)
    assert out.startswith("wrote 2 x 32 numbers to ")
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), expected, atol=1e-5)


def test_compare_prints_cosines(bert, run):
    folder, peer, inner = bert
    code, out, _ = run("embed", folder, *TEXTS[:3], "--compare", "--threads", 1)
    assert code == 0
    expected = wanted(peer, inner, TEXTS[:3])
    cells = [line.rsplit(None, 3) for line in out.splitlines()]
    assert cells[0][0] == "a cat"
    found = [[float(cell) for cell in row[1:]] for row in cells]
    np.testing.assert_allclose(found, expected @ expected.T, atol=1e-3)


def test_another_architecture_is_refused(llama, run):
    code, _, err = run("embed", llama[0], "x")
    assert code == 1
    assert "is a llama; texts are embedded by a bert" in err
