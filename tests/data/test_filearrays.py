"""Arrays in files: rows as NumPy has them, and an error where the file is cut short or is made to fill the memory."""

import gzip
import io
import os
import zipfile

import numpy as np
import pytest

from darner import ArgumentError, FormatError, data
from darner.data import filearrays
from darner.io.atomic import FileError


@pytest.fixture(params=["kept", "read"])
def kept(request, monkeypatch):
    """Both ways: small files that are read once, and large ones of which rows are read."""
    if request.param == "read":
        monkeypatch.setattr(filearrays, "KEPT", -1)


INDICES = [
    3,
    -1,
    np.int64(2),
    slice(None),
    slice(2, 7),
    slice(7, 2),
    slice(-3, None),
    slice(0, 10, 3),
    slice(None, None, -1),
    [5, 2, 2],
    [3, 4, 5, 9, 8],
    [-1, 0],
    [],
    np.array([[0, 1], [8, 9]], np.uint8),
    np.arange(10) % 3 == 0,
    (slice(2, 5), 0),
    (4, slice(1)),
    ([1, 2], slice(None), 0),
]


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_those_of_numpy(tmp_path, kept, index, order):
    x = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
    np.save(tmp_path / "x.npy", np.asarray(x, order=order))
    found = data.open_array(tmp_path / "x.npy")
    wanted = x[index]
    np.testing.assert_array_equal(found[index], wanted)
    assert np.asarray(found[index]).shape == wanted.shape


def test_it_is_what_an_array_is(tmp_path, kept):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.int16))
    found = data.open_array(tmp_path / "x.npy")
    assert (len(found), found.shape, found.ndim, found.size, found.nbytes) == (6, (6,), 1, 6, 12)
    assert found.tolist() == list(found) == [0, 1, 2, 3, 4, 5]
    assert np.asarray(found, np.float64).sum() == 15.0
    assert found[2] == 2
    assert found[2].ndim == 0
    assert found.take([4, 0]).tolist() == [4, 0]
    for wrong in (6, -7, [0, 6], 1.5, "a", [0.5]):
        with pytest.raises(ArgumentError, match="rows"):
            found[wrong]


def test_batches_of_a_file_are_those_of_its_array(tmp_path, kept):
    x = np.random.default_rng(0).normal(size=(37, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    for options in ({}, {"shuffle": False}, {"drop_last": False}):
        found = data.Arrays({"x": tmp_path / "x.npy"}, batch=8, seed=3, **options)
        wanted = data.Arrays({"x": x}, batch=8, seed=3, **options)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one["x"], other["x"])
            one["x"][0] = 0  # batches are copies
        for one, other in zip(found.split(0.5)[1], wanted.split(0.5)[1], strict=True):
            np.testing.assert_array_equal(one["x"], other["x"])


@pytest.mark.parametrize("order", ["random", "sequential", "shuffled"])
def test_windows_of_a_file_are_those_of_its_tokens(tmp_path, kept, order):
    tokens = np.random.default_rng(1).integers(0, 60_000, 500)
    data.write_tokens(tmp_path / "t.bin", [tokens])
    found = data.TokenWindows(tmp_path / "t.bin", 7, 4, order=order)
    wanted = data.TokenWindows(tokens, 7, 4, order=order)
    opened = data.TokenWindows(data.open_tokens(tmp_path / "t.bin"), 7, 4, order=order)
    for one, two, three in zip(found, wanted, opened, strict=True):
        for name in ("tokens", "labels"):
            np.testing.assert_array_equal(one[name], two[name])
            np.testing.assert_array_equal(three[name], two[name])


def test_a_file_that_is_cut_while_batches_are_made_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(filearrays, "KEPT", -1)
    data.write_tokens(tmp_path / "t.bin", [np.arange(50_000)])
    np.save(tmp_path / "x.npy", np.zeros((10_000, 3)))
    windows = data.TokenWindows(tmp_path / "t.bin", 100, 4, order="sequential")
    arrays = data.Arrays({"x": tmp_path / "x.npy"}, batch=100, shuffle=False)
    windows.batch_at(0, 100), arrays.batch_at(0, 90)
    os.truncate(tmp_path / "t.bin", 5000)
    os.truncate(tmp_path / "x.npy", 5000)
    assert windows.batch_at(0, 0)["tokens"][0, 5] == 5
    with pytest.raises(
        FormatError,
        match=r"t.bin' was cut short while it was open: .* 202 bytes .*, and 0 are there",
    ):
        windows.batch_at(0, 100)
    with pytest.raises(FormatError, match=r"x.npy' was cut short while it was open"):
        arrays.batch_at(0, 90)


def npy(descr, shape, data=b"", order=False):
    stream = io.BytesIO()
    text = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    stream.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data)
    return stream.getvalue()


WRONG = [
    npy("<f4", (3,), b"12345678"),
    npy("<f4", (-3,), b"123456781234"),
    npy("<f4", (True,), b"1234"),
    npy("<f4", (2.0,), b"12345678"),
    npy("<f4", (10**30,), b""),
    npy("<f4", (0, 10**30), b""),
    npy("<f4", (0,) * 100, b""),
    npy("<U0", (10**15,), b""),
    npy("|V0", (10**15,), b""),
    npy("|O", (1,), b"12345678"),
    npy("nonsense", (1,), b"12345678"),
    npy(3, (1,), b"12345678"),
    npy([("a", "<f4"), ("a", "<f4")], (1,), b"12345678"),
    b"\x93NUMPY\x01\x00" + (60000).to_bytes(2, "little") + b"(" * 60000,
    b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000,
    b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"-" * 9000,
    b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little"),
    b"\x93NUMPY\x09\x00" + b"{}" * 50,
    b"",
    b"\x93NUM",
    npy("<f4", (3,), b"123456781234")[:50],
]


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
@pytest.mark.filterwarnings("ignore")
def test_a_header_that_no_array_has_is_refused(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(FormatError, match=r"x.npy' is not a whole NumPy file") as caught:
        data.open_array(tmp_path / "x.npy")
    assert "\n" not in str(caught.value)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("a.npy", content)
    with pytest.raises(FormatError, match=r"x.npz' is not a whole NumPy file"):
        data.open_arrays(tmp_path / "x.npz")


def test_a_single_number_has_no_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.float32(3))
    with pytest.raises(FormatError, match="holds a single float32, which has no rows"):
        data.open_array(tmp_path / "x.npy")


def test_a_packed_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(filearrays, "MOST_UNPACKED", 100_000)
    monkeypatch.setattr(data.idx, "MOST_UNPACKED", 100_000)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1_000_000))
    with pytest.raises(FormatError, match=r"x.npz' has [\d,]+ bytes and unpacks to 8,000,\d+"):
        data.open_arrays(tmp_path / "x.npz")
    with gzip.open(tmp_path / "x.gz", "wb") as file:
        file.write(b"\0" * 10_000_000)
    for read in (data.read_text, data.read_idx):
        with pytest.raises(FormatError, match="more than 64 times as many"):
            read(tmp_path / "x.gz")


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    (tmp_path / "folder.npy").mkdir()
    readers = (data.open_array, data.open_arrays, data.open_tokens, data.read_idx, data.read_text)
    for read in readers:
        for name in ("pipe.npy", "zero.npy", "folder.npy", "none.npy"):
            with pytest.raises(FileError, match=f"cannot read '.*{name}'"):
                read(tmp_path / name)


def test_a_text_larger_than_memory_is_refused(tmp_path):
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 43)
    for read in (data.read_text, data.read_idx):
        with pytest.raises(FormatError, match="half of this machine's memory"):
            read(tmp_path / "hole")


def test_an_idx_file_of_too_many_axes_is_refused(tmp_path):
    for rank, sizes in ((255, [0] * 255), (3, [0, 2**32 - 1, 2**32 - 1])):
        content = bytes([0, 0, 8, rank]) + np.array(sizes, ">u4").tobytes()
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(FormatError, match="is not a whole IDX file"):
            data.read_idx(tmp_path / "x")
