"""Folders are written whole or not at all, equal content as equal bytes."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from darner import load
from darner.graph.errors import ArgumentError, DTypeError
from darner.io.atomic import FileError
from darner.load import saving

CONFIG = {"model_type": "line", "sizes": [1, 2]}


def content(folder) -> dict[str, bytes]:
    """All files under a folder, and above it what a failed save could have left."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()
    }


def values(seed=0):
    rng = np.random.default_rng(seed)
    return {f"h.{i}.w": rng.normal(size=(4, i + 1)).astype(np.float32) for i in range(4)}


def test_equal_content_gives_equal_bytes(tmp_path):
    for name, config in (("a", CONFIG), ("b", dict(reversed(CONFIG.items())))):
        load.save(tmp_path / name, config, values(), max_shard="100B")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert len(content(tmp_path / "a")) == 4


@pytest.mark.parametrize(
    ("size", "expected"),
    [("5GB", 5 * 10**9), ("1.5 MB", 1_500_000), ("2GiB", 2**31), ("7", 7), ("1kb", 1000), (9, 9)],
)
def test_sizes_are_read(size, expected):
    assert saving._bytes(size) == expected


@pytest.mark.parametrize("size", ["", "GB", "-1GB", "5 apples", 0, -3, True, None, 1.5, "0MB"])
def test_sizes_that_are_none_are_refused(tmp_path, size):
    with pytest.raises(ArgumentError, match="max_shard is a size"):
        load.save(tmp_path / "m", CONFIG, values(), max_shard=size)
    assert not (tmp_path / "m").exists()


def test_the_index_says_where_everything_is(tmp_path):
    load.save(tmp_path / "m", CONFIG, values(), max_shard="100B")
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 160, "total_parameters": 40}
    assert index["weight_map"] == {
        "h.0.w": "model-00001-of-00002.safetensors",
        "h.1.w": "model-00001-of-00002.safetensors",
        "h.2.w": "model-00001-of-00002.safetensors",
        "h.3.w": "model-00002-of-00002.safetensors",
    }


def test_a_smaller_save_removes_the_shards_of_a_larger_one_and_nothing_else(tmp_path):
    load.save(tmp_path / "m", CONFIG, values(), max_shard=1)
    (tmp_path / "m" / "notes.md").write_text("mine")
    (tmp_path / "m" / "model.onnx").write_text("other")
    load.save(tmp_path / "m", CONFIG, values(1))
    names = sorted(path.name for path in (tmp_path / "m").iterdir())
    assert names == ["config.json", "model.onnx", "model.safetensors", "notes.md"]
    assert (load.weights(tmp_path / "m")["h.3.w"] == values(1)["h.3.w"]).all()


def test_floats_are_written_as_asked_and_the_config_says_so(tmp_path):
    tensors = {"w": np.float32([0.1, 2.0]), "n": np.array([3])}
    load.save(tmp_path / "m", {**CONFIG, "torch_dtype": "float32"}, tensors, dtype="bf16")
    weights = load.weights(tmp_path / "m")
    assert weights["w"].tolist() == tensors["w"].astype(ml_dtypes.bfloat16).tolist()
    assert weights.info("n").dtype == np.int64
    assert load.config(tmp_path / "m")["torch_dtype"] == "bfloat16"
    assert "dtype" not in load.config(tmp_path / "m")
    with pytest.raises(DTypeError, match=r"'w' is float32, with numbers too large for float16"):
        load.save(tmp_path / "x", CONFIG, {"w": np.float32([1e30])}, dtype="f16")
    with pytest.raises(ArgumentError, match=r"dtype is an element type of floats"):
        load.save(tmp_path / "x", CONFIG, tensors, dtype="i32")
    assert sorted(os.listdir(tmp_path)) == ["m"]


def test_tied_names_are_left_out_if_they_are_equal(tmp_path):
    tied = {"head": "embed"}
    tensors = {"embed": np.ones(3), "head": np.ones(3)}
    load.save(tmp_path / "m", CONFIG, tensors, tied=tied)
    assert list(load.weights(tmp_path / "m")) == ["embed"]
    load.save(tmp_path / "m", CONFIG, {"head": np.ones(3)}, tied=tied)
    assert list(load.weights(tmp_path / "m")) == ["head"]
    with pytest.raises(ArgumentError, match=r"'head' is tied to 'embed', but their values differ"):
        load.save(tmp_path / "m", CONFIG, {**tensors, "head": np.zeros(3)}, tied=tied)


def test_extra_files_are_copied(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    files = load.save(tmp_path / "m", CONFIG, values(), extra_files=[tmp_path / "tokenizer.json"])
    assert [path.name for path in files] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "m" / "tokenizer.json").read_text() == "{}"
    with pytest.raises(FileError, match=r"cannot copy '.*none.json'"):
        load.save(tmp_path / "m", CONFIG, values(), extra_files=[tmp_path / "none.json"])


# Failures


def failing(error):
    """Parameters that can be looked at, but not read a second time: writing them fails halfway."""

    class Failing(dict):
        reads = 0

        def __getitem__(self, name):
            self.reads += 1
            if self.reads > len(self) + 2:
                raise error
            return super().__getitem__(name)

    return Failing(values(1))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_while_writing_leaves_what_was_there(tmp_path, error, exists):
    if exists:
        load.save(tmp_path / "m", CONFIG, values(), max_shard=50)
    before = content(tmp_path)
    with pytest.raises((FileError, KeyboardInterrupt)):
        load.save(tmp_path / "m", CONFIG, failing(error), max_shard=50)
    assert content(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == int(exists)


@pytest.mark.parametrize("count", range(7))
def test_a_failure_while_files_are_moved_puts_the_old_ones_back(tmp_path, monkeypatch, count):
    load.save(tmp_path / "m", CONFIG, values(), max_shard=50)
    before = content(tmp_path)
    real, left, raised = os.replace, [count], []

    def replace(source, place):
        if f"{os.sep}m{os.sep}" in f"{source}{place}" and not raised:
            left[0] -= 1
            if left[0] < 0:
                raised.append(place)
                raise OSError(5, "Input/output error")
        real(source, place)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(FileError, match=r"cannot write '.*m': Input/output error"):
        load.save(tmp_path / "m", CONFIG, values(1))
    assert raised
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("config", "parameters", "kind", "message"),
    [
        ({"model_type": object()}, values(), ArgumentError, "'config.json' is no JSON"),
        (CONFIG, {"w": [1.0]}, ArgumentError, "'w' is a list, not an array"),
        (CONFIG, {"w": np.array(["x"])}, DTypeError, r"'w' is given text \(<U1\), not numbers"),
        (CONFIG, {"__metadata__": np.ones(1)}, ArgumentError, "a parameter cannot be called"),
    ],
)
def test_what_cannot_be_written_is_named_and_nothing_is_left(
    tmp_path, config, parameters, kind, message
):
    with pytest.raises(kind, match=message):
        load.save(tmp_path / "m", config, parameters)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_and_a_folder_that_is_not_there_are_told(tmp_path):
    (tmp_path / "m").write_text("x")
    with pytest.raises(FileError, match=r"cannot write '.*m': it is a file"):
        load.save(tmp_path / "m", CONFIG, values())
    with pytest.raises(FileError, match=r"cannot write '.*none.m': No such file"):
        load.save(tmp_path / "none" / "m", CONFIG, values())


def test_an_empty_model_is_a_folder_too(tmp_path):
    load.save(tmp_path / "m", CONFIG, {})
    assert len(load.weights(tmp_path / "m")) == 0
