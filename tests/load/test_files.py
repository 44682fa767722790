"""Weights of files and folders: lazily read, checked, and refused with reasons."""

import json
import random

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from darner import load
from darner.graph.errors import ArgumentError, DarnerError, DTypeError, FormatError
from darner.io.atomic import FileError
from darner.load.saving import write_tensors
from tests.strategies import arrays, element_types, generators

CONFIG = {"model_type": "line"}


def values() -> dict[str, np.ndarray]:
    """Tensors of several types."""
    rng = np.random.default_rng(0)
    return {
        "a.weight": rng.normal(size=(4, 6)).astype(np.float32),
        "b.weight": rng.normal(size=(3, 5)).astype(np.float16),
        "c.weight": rng.normal(size=(7,)).astype(ml_dtypes.bfloat16),
        "d.ids": np.arange(3, dtype=np.int8),
        "e.flag": np.array([True, False, True]),
    }


def write(path, tensors):
    kinds = {name: load.TensorInfo.of(array) for name, array in tensors.items()}
    write_tensors(path, kinds, tensors)


def sharded(folder, tensors=None, limit=60):
    load.save(folder, CONFIG, tensors or values(), max_shard=limit)
    return folder / "model.safetensors.index.json"


def edit(path, change):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


# What is there


@pytest.mark.parametrize(("limit", "files"), [("5GB", 1), (1, 5), (60, 2), (110, 2), (45, 3)])
def test_a_folder_gives_back_what_was_saved_whole_or_in_shards(tmp_path, limit, files):
    load.save(tmp_path / "m", CONFIG, values(), max_shard=limit)
    weights = load.weights(tmp_path / "m")
    assert sorted(weights) == sorted(values())
    for name, array in values().items():
        assert weights[name].dtype == array.dtype
        assert weights[name].tobytes() == array.tobytes()
        assert not weights[name].flags.writeable
    assert len(weights.files) == files
    assert weights.nbytes == sum(array.nbytes for array in values().values())
    assert weights.metadata == {"format": "pt"}


@given(st.data())
def test_every_element_type_and_shape_comes_back(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("model")
    tensors = {
        f"layers.{i}.weight": data.draw(arrays(data.draw(element_types)))
        for i in range(data.draw(st.integers(1, 4)))
    }
    limit = data.draw(st.sampled_from([1, 30, 100, "1KB"]))
    load.save(folder, CONFIG, tensors, max_shard=limit)
    weights = load.weights(folder)
    assert sorted(weights) == sorted(tensors)
    for name, array in tensors.items():
        info = weights.info(name)
        assert (info.shape, info.dtype, info.nbytes) == (array.shape, array.dtype, array.nbytes)
        assert weights[name].tobytes() == array.tobytes()


def test_a_file_of_the_safetensors_package_is_read(tmp_path):
    array = np.arange(12, dtype=np.float64).reshape(3, 4)
    safetensors.numpy.save_file({"w": array}, tmp_path / "x.safetensors")
    assert (load.weights(tmp_path / "x.safetensors")["w"] == array).all()


def test_an_index_can_be_named_and_a_home_folder_is_found(tmp_path, monkeypatch):
    index = sharded(tmp_path / "m")
    assert sorted(load.weights(index)) == sorted(values())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sorted(load.weights("~/m")) == sorted(values())


def test_nothing_is_read_for_the_shape(tmp_path):
    write(tmp_path / "x.safetensors", {"flag": np.array([True, False]), "w": np.ones(2)})
    data = bytearray((tmp_path / "x.safetensors").read_bytes())
    data[-2:] = b"\x07\x07"  # no truth values: found only by whoever reads them
    (tmp_path / "x.safetensors").write_bytes(data)
    weights = load.weights(tmp_path / "x.safetensors")
    assert weights.info("flag").shape == (2,)
    assert weights["w"].sum() == 2.0
    with pytest.raises(FormatError, match=r"x\.safetensors.*'flag' is BOOL"):
        weights["flag"]


def test_an_open_file_outlives_its_replacement(tmp_path):
    load.save(tmp_path / "m", CONFIG, {"w": np.ones(1000, np.float32)})
    weights = load.weights(tmp_path / "m")
    load.save(tmp_path / "m", CONFIG, {"w": np.zeros(3, np.float32)})
    assert weights["w"].sum() == 1000.0
    assert load.weights(tmp_path / "m")["w"].shape == (3,)


def test_an_unknown_name_tells_the_nearest(tmp_path):
    load.save(tmp_path / "m", CONFIG, values())
    weights = load.weights(tmp_path / "m")
    with pytest.raises(KeyError, match=r"no tensor 'a.wieght' in '.*m'; did you mean 'a.weight'\?"):
        weights["a.wieght"]
    assert "a.wieght" not in weights
    assert weights.get("a.wieght") is None
    assert repr(weights).endswith("5 tensors, 0.0 MB, bfloat16, bool, float16, float32, int8>")


# Meganeura's names


def test_meganeura_names(tmp_path):
    load.save(tmp_path / "m", CONFIG, values())
    model = load.SafeTensorsModel.load(tmp_path / "m")
    known = values()
    assert model.tensor_info("b.weight").shape == (3, 5)
    assert (model.tensor_f32("a.weight") == known["a.weight"]).all()
    assert (model.tensor_f32_transposed("a.weight") == known["a.weight"].T).all()
    for name in ("a.weight", "b.weight", "c.weight"):  # f32, f16, bf16
        found = model.tensor_f32_auto(name)
        assert found.dtype == np.float32
        assert (found == known[name].astype(np.float32)).all()
    found = model.tensor_f32_auto_transposed("b.weight")
    assert (found == known["b.weight"].T.astype(np.float32)).all()
    assert found.flags.c_contiguous
    with pytest.raises(DTypeError, match=r"'b.weight' is stored as float16"):
        model.tensor_f32("b.weight")
    with pytest.raises(DTypeError, match=r"'d.ids' is int8, which is not made float32"):
        model.tensor_f32_auto("d.ids")
    with pytest.raises(ArgumentError, match=r"'c.weight' has 1 axes"):
        model.tensor_f32_auto_transposed("c.weight")


# What is wrong


def test_shards_that_are_missing_are_listed(tmp_path):
    sharded(tmp_path / "m", limit=1)
    for i in (2, 4):
        (tmp_path / "m" / f"model-0000{i}-of-00005.safetensors").unlink()
    with pytest.raises(
        FileError, match=r"of the 5 shards .* 2 are not there: model-00002-of-00005"
    ):
        load.weights(tmp_path / "m")


def test_tensors_that_are_elsewhere_are_listed(tmp_path):
    index = sharded(tmp_path / "m", limit=1)
    edit(index, lambda t: t["weight_map"].update({"a.weight": t["weight_map"]["d.ids"]}))
    with pytest.raises(
        FormatError, match=r"1 tensors are not where '.*' says: 'a.weight' \(in model-"
    ):
        load.weights(tmp_path / "m")


def test_sizes_must_add_up_unless_told_otherwise(tmp_path):
    index = sharded(tmp_path / "m")
    edit(index, lambda t: t["metadata"].update(total_size=7))
    with pytest.raises(FormatError, match=r"take 146 bytes, but it says 7; .*check_total=False"):
        load.weights(tmp_path / "m")
    assert len(load.weights(tmp_path / "m", check_total=False)) == 5
    edit(index, lambda t: t.pop("metadata"))
    assert len(load.weights(tmp_path / "m")) == 5


def test_a_tensor_that_the_index_forgets_is_there(tmp_path):
    index = sharded(tmp_path / "m")
    edit(index, lambda t: (t["weight_map"].pop("c.weight"), t.pop("metadata")))
    assert load.weights(tmp_path / "m")["c.weight"].shape == (7,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("weight_map"), "has no weight_map"),
        (lambda t: t.update(weight_map=[1]), "has no weight_map"),
        (lambda t: t["weight_map"].update(x=3), "has no weight_map"),
        (lambda t: t["weight_map"].update(x="../x.safetensors"), r"names the shard '\.\./x"),
        (lambda t: t["weight_map"].update(x="/x.safetensors"), "no safetensors file beside it"),
        (lambda t: t["weight_map"].update(x="x.bin"), "is a pickle of PyTorch"),
        (lambda t: t["metadata"].update(total_size="7"), "total_size of '7'"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(tmp_path, change, message):
    edit(sharded(tmp_path / "m"), change)
    with pytest.raises(FormatError, match=message):
        load.weights(tmp_path / "m")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_refused_with_a_way_to_convert_them(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(FormatError, match=rf"{name}' is a pickle.*save_file\(torch\.load"):
            load.weights(path)


def test_a_folder_without_weights_tells_what_it_has(tmp_path):
    with pytest.raises(FileError, match=r"neither model.safetensors nor .* in it are no files"):
        load.weights(tmp_path)
    write(tmp_path / "other.safetensors", {"w": np.ones(2)})
    with pytest.raises(FileError, match=r"name the file: load.weights\('.*other.safetensors'\)"):
        load.weights(tmp_path)
    write(tmp_path / "adapter_model.safetensors", {"w": np.ones(2)})
    with pytest.raises(FileError, match=r"use load.adapter"):
        load.weights(tmp_path)
    with pytest.raises(FileError, match=r"cannot read '.*none'"):
        load.weights(tmp_path / "none")


@pytest.mark.parametrize("keep", [0, 4, 9, 60, 100, -40, -1])
def test_a_file_that_is_cut_short_is_named(tmp_path, keep):
    load.save(tmp_path / "m", CONFIG, values())
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        FormatError, match=r"'.*model\.safetensors' is not a whole safetensors file"
    ):
        load.weights(tmp_path / "m")


@given(generators)
def test_damaged_bytes_are_values_or_an_error_that_names_the_file(tmp_path_factory, rng):
    folder = tmp_path_factory.mktemp("damaged")
    sharded(folder)
    path = rng.choice(sorted(folder.glob("model*")))
    data = bytearray(path.read_bytes())
    places = rng.randrange(len(data)), rng.randrange(min(300, len(data)))
    for place in random.Random(rng.random()).sample(places, rng.randint(1, 2)):
        data[place] = rng.choice([0, 34, 57, 123, 255, data[place] ^ 1 << rng.randrange(8)])
    path.write_bytes(data)
    message, shapes = "", []
    try:
        weights = load.weights(folder)
        shapes = [(weights[name].shape, weights.info(name).shape) for name in weights]
    except DarnerError as error:
        message = str(error)
    assert f"{folder}/model" in message or (shapes and all(a == b for a, b in shapes))


# Configurations


def test_configurations_are_read_and_checked(tmp_path):
    load.save(tmp_path / "m", {"model_type": "llama", "hidden_size": 8}, {"w": np.ones(2)})
    assert load.config(tmp_path / "m") == {
        "model_type": "llama",
        "hidden_size": 8,
        "dtype": "float64",
    }
    assert load.generation_config(tmp_path / "m") == {}
    (tmp_path / "m" / "generation_config.json").write_text('{"temperature": 0.6}')
    assert load.generation_config(tmp_path / "m") == {"temperature": 0.6}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is no text in UTF-8"),
        (b"[1]", "holds a JSON list"),
        (b"{}", "has no model_type"),
        (b'{"model_type": 3}', "the model_type 3"),
        (b"[" * 100_000, "has lists and tables more than 64 deep"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path, text, message):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(FormatError, match=rf"config\.json'.*{message}"):
        load.config(tmp_path)
    with pytest.raises(FileError, match=r"cannot read '.*config.json'"):
        load.config(tmp_path / "none")
