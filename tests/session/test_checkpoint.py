"""Checkpoints: what is saved is loaded, bit for bit; crashes, damage and misfits are found."""

import errno
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st

import darner
from darner.graph import dtypes
from darner.graph.errors import ArgumentError, DTypeError, FormatError
from darner.graph.types import TensorType
from darner.io.atomic import FileError
from darner.session.checkpoint import (
    FORMAT,
    Checkpoint,
    compare,
    fit,
    load_checkpoint,
    save_checkpoint,
)
from tests.session import crashing_writer
from tests.strategies import arrays, element_types, generators, odd_text

FP8 = (
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e8m0fnu,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2fnuz,
)
STORED = [*(t.numpy for t in dtypes.ALL), *map(np.dtype, FP8), np.dtype("u2"), np.dtype("u8")]
ROOT = Path(__file__).parents[2]


def small() -> Checkpoint:
    """A checkpoint with several element types, a scalar and an empty tensor."""
    parameters = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16),
        "a": np.array([True, False]),
        "none": np.empty((0, 4), np.float64),
        "c": np.array([2, 3], np.uint8),
    }
    states = {"step": np.array(7, np.int64), "w": np.zeros((2, 3), np.float32)}
    return Checkpoint(parameters, states, {"graph": "abc", "note": "π 🙂"})


def random_bits(dtype, shape, seed=0) -> np.ndarray:
    """An array with every kind of value, NaNs with all payloads among them."""
    count = int(np.prod(shape))
    values = np.frombuffer(
        np.random.default_rng(seed).bytes(count * dtype.itemsize), np.uint8
    ).copy()
    if dtype.kind == "b":
        values &= 1
    return values.view(dtype).reshape(shape)


def assert_same(found, expected) -> None:
    assert list(found) == sorted(expected)
    for name, array in expected.items():
        native = np.asarray(array)
        if native.dtype.byteorder == ">":
            native = native.byteswap().view(native.dtype.newbyteorder("="))
        assert found[name].dtype == native.dtype
        assert found[name].shape == native.shape
        assert found[name].tobytes() == native.tobytes()
        assert found[name].flags.c_contiguous
        assert found[name].flags.aligned


# What is saved is loaded


@pytest.mark.parametrize("dtype", STORED, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (7,), (2, 3, 5)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path, dtype, shape):
    array = random_bits(dtype, shape)
    save_checkpoint(tmp_path / "c", Checkpoint({"x": array}, {"x": array[...]}))
    loaded = load_checkpoint(tmp_path / "c")
    assert_same(loaded.parameters, {"x": array})
    assert_same(loaded.states, {"x": array})


@pytest.mark.parametrize("code", ["f2", "f4", "f8", "c8"])
def test_nan_payloads_survive_a_change_of_byte_order(tmp_path, code):
    patterns = {
        "f2": np.array([0x7C01, 0x7E00, 0xFDFF], "u2"),
        "f4": np.array([0x7F800001, 0x7FC00000, 0xFFBFFFFF], "u4"),
        "f8": np.array([0x7FF0000000000001, 0xFFF7FFFFFFFFFFFF], "u8"),
        "c8": np.array([0x7F800001, 0xFFBFFFFF], "u4"),
    }[code]
    big = patterns.byteswap().view(f">{code}")
    save_checkpoint(tmp_path / "c", Checkpoint({"x": big}))
    found = load_checkpoint(tmp_path / "c").parameters["x"]
    assert found.dtype == np.dtype(f"<{code}")
    assert found.tobytes() == patterns.tobytes()


def laid_out(array, layout):
    """The same values in another memory layout."""
    if layout == "big-endian" and array.dtype.isbuiltin == 1 and array.dtype.itemsize > 1:
        return array.byteswap().view(array.dtype.newbyteorder(">"))
    if layout == "fortran":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "strided" and array.ndim:
        wide = np.repeat(array, 2, axis=-1)
        return wide[..., ::2]
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "unaligned":
        raw = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        raw[...] = array
        return raw
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
    return array


LAYOUTS = ("as is", "big-endian", "fortran", "strided", "reversed", "unaligned", "read-only")
names = odd_text | st.sampled_from(["__metadata__", "state:w", "parameter:w", "w", "state:", ""])


@st.composite
def tables(draw):
    found = draw(st.lists(names, max_size=4, unique=True))
    return {
        name: laid_out(draw(arrays(draw(element_types))), draw(st.sampled_from(LAYOUTS)))
        for name in found
    }


@given(tables(), tables(), st.dictionaries(odd_text, odd_text | st.just(""), max_size=3))
@example({"__metadata__": np.ones(1), "a": np.zeros(1)}, {}, {})
@example({"parameter:state:w": np.ones(1), "state:w": np.zeros(1)}, {"w": np.ones(2)}, {})
def test_any_names_values_and_layouts_come_back(parameters, states, metadata):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "c.safetensors")
        save_checkpoint(path, Checkpoint(parameters, states), metadata=metadata)
        loaded = load_checkpoint(path)
        assert_same(loaded.parameters, parameters)
        assert_same(loaded.states, states)
        own = {"darner.format": str(FORMAT), "darner.version": darner.__version__}
        assert loaded.metadata == {**metadata, **own}
        with safetensors.safe_open(path, "np") as file:
            assert len(file.keys()) == len(parameters) + len(states)


def test_equal_content_gives_equal_bytes_whatever_its_order_and_layout(tmp_path):
    first, second = small(), small()
    turned = Checkpoint(
        {name: np.asfortranarray(a) for name, a in reversed(second.parameters.items())},
        dict(reversed(second.states.items())),
        dict(reversed(second.metadata.items())),
    )
    save_checkpoint(tmp_path / "a", first)
    save_checkpoint(tmp_path / "b", turned)
    save_checkpoint(tmp_path / "again", load_checkpoint(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "again").read_bytes()


def test_metadata_of_the_call_wins_over_that_of_the_checkpoint(tmp_path):
    save_checkpoint(tmp_path / "c", small(), metadata={"note": "new", "step": "9"})
    metadata = load_checkpoint(tmp_path / "c").metadata
    assert (metadata["graph"], metadata["note"], metadata["step"]) == ("abc", "new", "9")


@pytest.mark.parametrize(
    ("checkpoint", "kind", "words"),
    [
        (Checkpoint({"x": [1.0]}), ArgumentError, "'x' is a list, not an array"),
        (Checkpoint({"x": np.array(["a"])}), DTypeError, "'x' is given text (<U1), not numbers"),
        (Checkpoint({"x": np.array([None])}), DTypeError, "'x' is given objects of Python"),
        (Checkpoint({}, {"x": np.ones(2, complex)}), DTypeError, "'x' is complex128"),
        (Checkpoint({3: np.ones(2)}), ArgumentError, "a parameter's name is text, not 3"),
        (Checkpoint({}, {"\ud800": np.ones(2)}), ArgumentError, "not valid Unicode"),
        (Checkpoint({}, {}, {"step": 3}), ArgumentError, "metadata is text, but 'step' is 3"),
        (Checkpoint({}, {}, {"s": "\udfff"}), ArgumentError, "not valid Unicode"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    tmp_path, checkpoint, kind, words
):
    save_checkpoint(tmp_path / "c", small())
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(kind) as raised:
        save_checkpoint(tmp_path / "c", checkpoint)
    assert words in str(raised.value)
    assert (tmp_path / "c").read_bytes() == before
    assert os.listdir(tmp_path) == ["c"]


# Other programs


def test_the_safetensors_package_reads_parameters_under_their_own_names(tmp_path):
    parameters = {"a.w": random_bits(np.dtype("f4"), (3, 5)), "b": random_bits(np.dtype("i2"), ())}
    states = {"m": np.arange(4, dtype=np.uint32)}
    save_checkpoint(tmp_path / "c", Checkpoint(parameters, states, {"mine": "yes"}))
    found = safetensors.numpy.load_file(tmp_path / "c")
    assert_same(dict(sorted(found.items())), {**parameters, "state:m": states["m"]})
    with safetensors.safe_open(tmp_path / "c", "np") as file:
        assert file.metadata()["mine"] == "yes"


@pytest.mark.parametrize("dtype", STORED, ids=lambda dtype: dtype.name)
def test_files_of_the_safetensors_package_load_as_parameters(tmp_path, dtype):
    tensors = {"state:x": random_bits(dtype, (2, 3)), "y": random_bits(dtype, ())}
    safetensors.numpy.save_file(tensors, tmp_path / "c", {"adam_step": "5"})
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.is_foreign
    assert loaded.metadata == {"adam_step": "5"}
    assert loaded.states == {}
    for name, array in tensors.items():
        assert loaded.parameters[name].dtype == dtype
        assert loaded.parameters[name].tobytes() == array.tobytes()


def raw_file(header, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_tensor_at_an_unaligned_place_is_copied_to_an_aligned_one(tmp_path):
    header = {
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "b": {"dtype": "F64", "shape": [2], "data_offsets": [3, 19]},
    }
    data = bytes([1, 2, 3]) + np.array([0.5, -4.0]).tobytes()
    (tmp_path / "c").write_bytes(raw_file(header, data))
    found = load_checkpoint(tmp_path / "c").parameters["b"]
    assert found.flags.aligned
    assert not found.flags.writeable
    assert found.tolist() == [0.5, -4.0]


# The file and its arrays


def test_arrays_are_read_only_and_outlive_the_file_they_came_from(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, Checkpoint({"w": np.full(50_000, 1.0, np.float32)}))
    old = load_checkpoint(path, verify=False).parameters["w"]
    with pytest.raises(ValueError, match="read-only"):
        old[0] = 3
    save_checkpoint(path, Checkpoint({"w": np.full(70_000, 2.0, np.float32)}))
    assert load_checkpoint(path).parameters["w"].tolist() == [2.0] * 70_000
    path.unlink()
    assert old.tolist() == [1.0] * 50_000


def test_a_checkpoint_can_be_saved_over_the_file_it_is_from(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, small())
    loaded = load_checkpoint(path)
    save_checkpoint(path, loaded, metadata={"again": "yes"})
    assert_same(load_checkpoint(path).parameters, small().parameters)
    assert load_checkpoint(path).metadata["again"] == "yes"


# Damage


def saved_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(f"{folder}/c", small())
        return Path(folder, "c").read_bytes()


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    whole = saved_bytes()
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="is not a whole safetensors file") as raised:
            load_checkpoint(path, verify=False)
        assert str(path) in str(raised.value)
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match="its tensors take 66 bytes of data, but 67 are there"):
        load_checkpoint(path)


def test_a_changed_bit_anywhere_is_found(tmp_path):
    whole = saved_bytes()
    path = tmp_path / "flipped"
    bits = random.Random(5)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bits.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(FormatError) as raised:
            load_checkpoint(path)
        assert str(path) in str(raised.value)


def test_the_damaged_tensor_is_named_and_can_be_loaded_unverified(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, Checkpoint({"a": np.zeros(8, np.float64), "b": np.zeros(8, np.float32)}))
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 0x80
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match="damaged: the data of 'b' does not match its checksum"):
        load_checkpoint(path)
    assert np.signbit(load_checkpoint(path, verify=False).parameters["b"]).tolist() == [0] * 7 + [1]


@given(st.binary(max_size=64), generators)
def test_random_damage_raises_only_format_errors(noise, generator):
    whole = bytearray(saved_bytes())
    start = generator.randrange(len(whole))
    whole[start : start + generator.randrange(64)] = noise
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "c").write_bytes(whole)
        try:
            loaded = load_checkpoint(f"{folder}/c")
        except FormatError:
            return
        assert_same(loaded.parameters, small().parameters)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it has 0 bytes"),
        (b"not a checkpoint", "its first bytes give a header of"),
        (raw_file(b"[1, 2]", b""), "does not begin with '{'"),
        (raw_file(b"{" + b"[" * 100_000, b""), "its header has lists and tables more than 64"),
        (raw_file(b'{"a": \xff}', b""), "its header is no text in UTF-8"),
        (raw_file(b'{"a": NaN}', b""), "the entry of 'a' is not"),
        (raw_file(b'{"a": 1, "a": 2}', b""), "has 'a' twice"),
        (raw_file({"__metadata__": {"a": 1}}, b""), "metadata is not a table of text"),
        (raw_file({"x": 3}, b""), "the entry of 'x' is not"),
        (raw_file({"x": {**ENTRY, "more": 1}}, b""), "the entry of 'x' is not"),
        (raw_file({"x": {**ENTRY, "dtype": "F4"}}, b"." * 8), "element type 'F4'"),
        (raw_file({"x": {**ENTRY, "dtype": [1]}}, b"." * 8), "element type"),
        (raw_file({"x": {**ENTRY, "shape": [-2]}}, b"." * 8), "has the shape [-2]"),
        (raw_file({"x": {**ENTRY, "shape": [True]}}, b"." * 8), "has the shape [True]"),
        (raw_file({"x": {**ENTRY, "shape": [1] * 65}}, b"." * 8), "has the shape"),
        (raw_file({"x": {**ENTRY, "shape": [0, 10**30]}}, b""), "has the shape"),
        (raw_file({"x": {**ENTRY, "shape": [0, 1 << 31, 1 << 31]}}, b""), "has the shape"),
        (raw_file(b'{"\\ud800": 1}', b""), "its header is not JSON"),
        (
            raw_file({"x": {**ENTRY, "dtype": "BOOL", "shape": [8]}}, b"\0\1" * 3 + b"\0\2"),
            "'x' is BOOL",
        ),
        (raw_file({"x": {**ENTRY, "shape": [3]}}, b"." * 8), "needs 12 bytes for F32[3]"),
        (raw_file({"x": {**ENTRY, "data_offsets": [8, 0]}}, b"." * 8), "offsets leave -8"),
        (raw_file({"x": {**ENTRY, "data_offsets": [0]}}, b"." * 8), "should be two positions"),
        (raw_file({"x": {**ENTRY, "data_offsets": [8, 16]}}, b"." * 16), "begins at byte 8"),
        (raw_file({"x": ENTRY, "y": ENTRY}, b"." * 8), "the tensor before it ends at 8"),
        (raw_file({"x": ENTRY}, b"." * 4), "take 8 bytes of data, but 4 are there"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_a_file_that_is_not_safetensors_is_refused_with_its_fault(tmp_path, content, words):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(FormatError) as raised:
        load_checkpoint(tmp_path / "c")
    assert words in str(raised.value)
    assert str(tmp_path / "c") in str(raised.value)


def test_a_newer_format_is_refused_by_its_number(tmp_path):
    header = {"__metadata__": {"darner.format": "99", "darner.digest": "?"}}
    (tmp_path / "c").write_bytes(raw_file(header, b""))
    with pytest.raises(FormatError, match=f"of format 99; this darner reads up to {FORMAT}; load"):
        load_checkpoint(tmp_path / "c")


def test_a_missing_file_and_a_folder_are_named_with_the_cause(tmp_path):
    with pytest.raises(FileError, match=r"cannot read '.*nothing': No such file") as raised:
        load_checkpoint(tmp_path / "nothing")
    assert isinstance(raised.value, OSError)
    assert raised.value.filename == str(tmp_path / "nothing")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.errno, copy.filename) == (
        str(raised.value),
        errno.ENOENT,
        str(tmp_path / "nothing"),
    )
    with pytest.raises(FileError, match=f"cannot read '{tmp_path}': it is a folder"):
        load_checkpoint(tmp_path)
    with pytest.raises(FileError, match=f"cannot write '{tmp_path}': it is a folder"):
        save_checkpoint(tmp_path, small())
    with pytest.raises(FileError, match=r"cannot write '.*none/c': No such file"):
        save_checkpoint(tmp_path / "none" / "c", small())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="it is not a regular file"):
        load_checkpoint(tmp_path / "pipe")


# What fits


TYPES = {"w": TensorType.new((2, 3)), "b": TensorType.new(("n",), "bf16")}
TYPES |= {"none": TensorType.new((0, 4), "f64")}
TYPES |= {"a": TensorType.new((2,), "bool"), "c": TensorType.new((2,), "u8")}
STATES = {"step": TensorType.new((), "i64"), "w": TensorType.new((2, 3))}


def test_a_checkpoint_that_fits_has_no_mismatches():
    assert compare(small(), TYPES, STATES) == []


def test_every_mismatch_is_told_in_words():
    types = {"W": TYPES["w"], "b": TensorType.new((3, 1)), "new": TYPES["w"]}
    types |= {name: TYPES[name] for name in ("none", "a", "c")}
    states = {"step": TensorType.new((), "i32"), "w": TensorType.new((3, 2))}
    wrong = [
        "parameter 'b' has the shape (3,), but (3, 1) is needed",
        "parameter 'b' is bf16, but f32 is needed",
        "state 'step' is i64, but i32 is needed",
        "state 'w' has the shape (2, 3), but (3, 2) is needed",
    ]
    names = [
        "parameter 'W' is missing",
        "parameter 'new' is missing",
        "parameter 'w' is unexpected",
    ]
    assert compare(small(), types, states) == names + wrong
    assert compare(small(), types, states, strict=False) == wrong


def test_hints_stop_where_the_lists_are_long():
    types = {f"layers.{i}.up": TensorType.new((2,)) for i in range(300)}
    found = Checkpoint({f"layers.{i}.upp": np.ones(2, np.float32) for i in range(300)})
    told = compare(found, types, {})
    assert len(told) == 600
    assert 0 < sum("did you mean" in line for line in told) <= 20


def test_a_misspelt_name_is_recognised():
    found = Checkpoint({"layers.0.ffn.up": np.ones(2, np.float32)})
    assert compare(found, {"layers.0.fnn.up": TensorType.new((2,))}, {}) == [
        "parameter 'layers.0.fnn.up' is missing; did you mean 'layers.0.ffn.up'?",
        "parameter 'layers.0.ffn.up' is unexpected",
    ]


def test_an_element_type_darner_does_not_compute_in_is_a_mismatch():
    found = Checkpoint({"x": np.ones(2, np.uint16)})
    assert compare(found, {"x": TensorType.new((2,), "u32")}, {}) == [
        "parameter 'x' is uint16, but u32 is needed"
    ]


def test_flat_tensors_of_the_older_layout_take_their_shapes(tmp_path):
    flat = {name: np.arange(6, dtype=np.float32) for name in ("w", "adam_m.w")}
    flat["loss_scale"] = np.array([4.0], np.float32)
    safetensors.numpy.save_file(flat, tmp_path / "c", {"adam_step": "12"})
    types = {"w": TensorType.new((2, 3)), "loss_scale": TensorType.new(())}
    found = fit(load_checkpoint(tmp_path / "c"), types, {"adam_m.w": TensorType.new((3, 2))})
    assert found.reshaped == ("loss_scale", "w", "adam_m.w")
    assert found.mismatches == ()
    assert found.checkpoint.parameters["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.checkpoint.parameters["loss_scale"].shape == ()
    assert found.checkpoint.states["adam_m.w"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found.checkpoint.metadata["adam_step"] == "12"


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (np.ones(7, np.float32), TensorType.new((2, 3))),
        (np.ones((3, 2), np.float32), TensorType.new((2, 3))),
        (np.ones(6, np.float64), TensorType.new((2, 3))),
        (np.ones(6, np.float32), TensorType.new((2, 3), "bf16")),
        (np.ones(6, np.float32), TensorType.new((2, "n"))),
    ],
)
def test_nothing_else_is_reshaped(array, type_):
    found = fit(Checkpoint({"w": array}), {"w": type_}, {})
    assert found.reshaped == ()
    assert found.mismatches
    assert found.checkpoint.parameters["w"] is array


def test_what_fits_already_is_left_alone():
    found = fit(small(), TYPES, STATES)
    assert (found.reshaped, found.mismatches) == ((), ())
    assert found.checkpoint.parameters["w"] is not None


# Crashes


@pytest.fixture
def writer(tmp_path):
    """Gives orders to a process that is killed as it saves, and says how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.session.crashing_writer", str(tmp_path / "c")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )

    def order(text: str) -> str:
        process.stdin.write(text + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    yield order
    process.stdin.close()
    process.wait()
    process.stdout.close()


def survivor(path) -> int:
    """Which complete version is at the path."""
    loaded = load_checkpoint(path)
    number = int(loaded.metadata["step"])
    expected = crashing_writer.version(number)
    assert_same(loaded.parameters, expected.parameters)
    assert_same(loaded.states, expected.states)
    return number


def test_a_save_killed_before_any_call_to_the_system_leaves_the_old_or_the_new(tmp_path, writer):
    path = tmp_path / "c"
    save_checkpoint(path, crashing_writer.version(0))
    replaced, left_behind = [], 0
    for call in range(1, 200):
        ended = writer(f"at {call}")
        replaced.append(survivor(path) == call)
        left_behind += len(os.listdir(tmp_path)) > 1
        assert len(os.listdir(tmp_path)) <= 2  # each save clears away what the one before left
        if ended == f"{call} finished":
            break
        assert ended == f"{call} killed"
        if replaced[-1]:  # so that the next number can be told from this one
            save_checkpoint(path, crashing_writer.version(0))
    assert replaced == sorted(replaced)  # old up to the rename, new from then on
    assert 10 < replaced.count(False) < len(replaced)
    assert replaced.count(True) > 1
    assert left_behind > 10
    assert os.listdir(tmp_path) == ["c"]


def check_random_kills(tmp_path, writer, trials: int) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, crashing_writer.version(0))
    choose = random.Random(trials)
    versions = [0]
    for trial in range(1, trials + 1):
        assert writer(f"after {choose.randrange(1, 120)}") == f"{trial} killed"
        number = survivor(path)
        assert number == versions[-1] or number // 1_000_000 == trial
        versions.append(number)
    assert len(set(versions)) > trials // 4
    save_checkpoint(path, crashing_writer.version(1))
    assert os.listdir(tmp_path) == ["c"]


def test_a_writer_killed_at_random_moments_leaves_a_complete_checkpoint(tmp_path, writer):
    check_random_kills(tmp_path, writer, 80)


@pytest.mark.slow
def test_a_writer_killed_hundreds_of_times_leaves_a_complete_checkpoint(tmp_path, writer):
    check_random_kills(tmp_path, writer, 300)
