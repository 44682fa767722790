"""Weights that are cut short or written to while they are open are an error, where mapping them would end the process."""

import json
import os

import numpy as np
import pytest

import darner
from darner import FormatError, load, nn
from darner.io.atomic import FileError
from darner.io.tensorfile import open_tensors, read_tensors

VALUES = {
    "fc.weight": np.arange(40_000, dtype=np.float32).reshape(200, 200),
    "fc.bias": np.ones(200, np.float32),
}


def saved(folder, **options):
    load.save(folder, {"model_type": "line"}, VALUES, **options)
    return folder


def session():
    g = darner.Graph("line")
    g.set_outputs([nn.Linear("fc", 200, 200)(g.input("x", (1, 200)))])
    return darner.build_inference_session(g, device="reference")


def test_a_tensor_of_a_file_that_was_cut_is_named_with_its_bytes(tmp_path):
    path = saved(tmp_path / "m") / "model.safetensors"
    file = open_tensors(path)
    os.truncate(path, 1000)
    with pytest.raises(
        FormatError, match=r"safetensors' had 160,992 bytes when it was opened, and has 1,000 now"
    ):
        file.array("fc.weight")
    file.file.check_unchanged = lambda: None  # as if it were cut between looking and reading
    with pytest.raises(
        FormatError,
        match=r"was cut short while it was open: tensor 'fc.weight' takes 160,000 bytes from byte \d+ on, and 8 are there",
    ):
        file.array("fc.weight")
    with pytest.raises(FormatError, match=r"cut short while it was open: 2 tensors takes"):
        file.arrays()


def test_loading_weights_that_were_cut_leaves_the_session_as_it_was(tmp_path):
    path = saved(tmp_path / "m") / "model.safetensors"
    weights = load.weights(tmp_path / "m")
    os.truncate(path, os.path.getsize(path) - 4)
    with session() as made:
        before = made.parameters()["fc.weight"]
        with pytest.raises(FormatError, match=r"model.safetensors' had .* bytes when it was open"):
            load.load(made, weights)
        np.testing.assert_array_equal(made.parameters()["fc.weight"], before)


def test_weights_that_are_written_to_in_place_are_refused(tmp_path):
    path = saved(tmp_path / "m") / "model.safetensors"
    os.utime(path, ns=(1, 1))
    weights = load.weights(path)
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\xff\xff\xff\xff")
    with session() as made, pytest.raises(FormatError, match="was written to since it was opened"):
        load.load(made, weights)


def test_weights_that_are_replaced_whole_stay_those_that_were_opened(tmp_path):
    saved(tmp_path / "m")
    weights = load.weights(tmp_path / "m")
    other = {name: 2 * value for name, value in VALUES.items()}
    load.save(tmp_path / "m", {"model_type": "line"}, other)
    with session() as made:
        load.load(made, weights)
        np.testing.assert_array_equal(made.parameters()["fc.weight"], VALUES["fc.weight"])
        load.load(made, tmp_path / "m")
        np.testing.assert_array_equal(made.parameters()["fc.weight"], other["fc.weight"])


def test_tensors_read_at_once_are_those_read_one_by_one(tmp_path):
    path = saved(tmp_path / "m") / "model.safetensors"
    file, whole = open_tensors(path), read_tensors(path)
    room = np.zeros(VALUES["fc.weight"].nbytes, np.uint8)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(file.array(name), value)
        np.testing.assert_array_equal(whole.tensors[name], value)
    assert file.array("fc.weight", room).base is not None
    np.testing.assert_array_equal(room.view(np.float32), VALUES["fc.weight"].reshape(-1))


def header_only(folder, header, data=b""):
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


@pytest.mark.parametrize("name", ["../../x", "a\0b", "/etc/passwd", "a\nb" * 1000, ""])
def test_names_of_tensors_are_only_names(tmp_path, name):
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    folder = header_only(tmp_path / "m", {name: entry}, b"\0\0\0\0")
    assert load.weights(folder)[name].tolist() == [0.0]
    folder = header_only(tmp_path / "n", {name: {**entry, "shape": [2]}}, b"\0\0\0\0")
    with pytest.raises(FormatError, match="needs 8 bytes") as caught:
        load.weights(folder)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_a_length_of_header_beyond_every_file_is_refused(tmp_path):
    for length in (2**63, 2**64 - 1, 100_000_001):
        (tmp_path / "x.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(FormatError, match=f"give a header of {length:,} bytes"):
            load.weights(tmp_path / "x.safetensors")
    with (tmp_path / "x.safetensors").open("wb") as file:
        file.write((99_000_000).to_bytes(8, "little") + b"{")
        file.truncate(10 << 30)
    with pytest.raises(FormatError, match="its header is not JSON"):
        load.weights(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "total", ["Infinity", "-Infinity", "NaN", "-4", "1e400", "1.5", "true", '"4"', "[]", "1" * 99]
)
def test_a_total_that_is_no_number_of_bytes_is_refused(tmp_path, total):
    index = saved(tmp_path / "m", max_shard=1000) / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    old = str(table["metadata"]["total_size"])
    index.write_text(index.read_text().replace(f'"total_size": {old}', f'"total_size": {total}'))
    with pytest.raises(FormatError, match=r"says a total_size of .*, which is no number of bytes"):
        load.weights(tmp_path / "m")


@pytest.mark.parametrize(
    "shard",
    [
        "../model-00001-of-00002.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "a\0.safetensors",
        "..",
        "",
        ".",
        "x" * 300 + ".safetensors",
        "config.json",
    ],
)
def test_a_shard_outside_of_the_folder_is_refused(tmp_path, shard):
    index = saved(tmp_path / "m", max_shard=1000) / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["fc.bias"] = shard
    index.write_text(json.dumps(table))
    with pytest.raises(FormatError, match="which is no safetensors file beside it"):
        load.weights(tmp_path / "m")


def test_shards_may_be_links_to_files_elsewhere(tmp_path):
    """The hub's cache is a folder of links into another."""
    folder = saved(tmp_path / "m", max_shard=1000)
    (tmp_path / "blobs").mkdir()
    for path in folder.glob("*"):
        os.replace(path, tmp_path / "blobs" / path.name)
        path.symlink_to(f"../blobs/{path.name}")
    np.testing.assert_array_equal(load.weights(folder)["fc.weight"], VALUES["fc.weight"])
    (tmp_path / "blobs" / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(FileError, match=r"1 are not there: model-00001-of-00002.safe"):
        load.weights(folder)


@pytest.mark.parametrize(
    "text", ['{"weight_map": {}}', '{"weight_map": []}', "{}", '{"weight_map": {"a": 1}}']
)
def test_an_index_without_tensors_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(FormatError, match="weight_map"):
        load.weights(tmp_path)


def test_weights_that_are_a_pipe_or_a_folder_are_refused(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FileError, match="it is not a regular file"):
        load.weights(tmp_path)
    (tmp_path / "m" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(FileError, match="it is a folder"):
        load.weights(tmp_path / "m")
