"""IDX files and the MNIST digits: what is read, and what is said of files that are damaged."""

import gzip
import os

import numpy as np
import pytest

from darner import ArgumentError, FormatError, data

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(array):
    """An array as the bytes of an IDX file."""
    code = CODES[array.dtype.str[1:]]
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return (
        bytes([0, 0, code, array.ndim])
        + sizes
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def made_up(count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count, np.uint8)


def write_set(folder, name="{part}-{kind}-idx{rank}-ubyte.gz"):
    """A small MNIST: 5 digits to learn from, 3 to be tested on."""
    sets = {"train": made_up(5, 1), "t10k": made_up(3, 2)}
    for part, (images, labels) in sets.items():
        for kind, array in (("images", images), ("labels", labels)):
            path = folder / name.format(part=part, kind=kind, rank=array.ndim)
            content = idx(array)
            path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return sets["train"], sets["t10k"]


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_of_every_type_are_read(tmp_path, kind, packed):
    wanted = (np.arange(24) * 5 - 12).astype(kind).reshape(2, 3, 4)
    content = idx(wanted)
    (tmp_path / "file").write_bytes(gzip.compress(content) if packed else content)
    found = data.read_idx(tmp_path / "file")
    assert found.dtype == np.dtype(kind)
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, wanted)


WHOLE = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 bytes, too few for a header"),
        (b"\0\0\x08", "it has 3 bytes, too few for a header"),
        (b"\x89PNG" + WHOLE, "begins with the bytes 89 50 4e 47, not with 00 00 and"),
        (b"\0\0\x07\x01" + WHOLE[4:], "begins with the bytes 00 00 07 01"),
        (WHOLE[:9], "it ends inside its header, after 9 of 12 bytes"),
        (WHOLE[:-1], r"says uint8\[2, 3\], which takes 6 bytes, but 5 follow"),
        (WHOLE + b"x", r"says uint8\[2, 3\], which takes 6 bytes, but 7 follow"),
        (WHOLE[:4] + b"\xff" * 8 + WHOLE[12:], "takes 18,446,744,065,119,617,025 bytes, but 6"),
    ],
)
def test_what_is_wrong_with_an_idx_file_is_told(tmp_path, content, message):
    for name, stored in (("plain", content), ("packed.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(stored)
        with pytest.raises(FormatError, match=f"{name}' is not a whole IDX file: .*{message}"):
            data.read_idx(tmp_path / name)


def test_what_is_wrong_with_a_gzip_file_is_told(tmp_path):
    packed = gzip.compress(WHOLE)
    for number, damaged in enumerate((packed[:-5], packed[:12], packed[:-8] + b"\0" * 8)):
        (tmp_path / f"{number}.gz").write_bytes(damaged)
        with pytest.raises(FormatError, match=f"{number}.gz' is not a whole gzip file"):
            data.read_idx(tmp_path / f"{number}.gz")
    with pytest.raises(OSError, match=r"cannot read '.*nothing': No such file"):
        data.read_idx(tmp_path / "nothing")


@pytest.mark.parametrize(
    "name",
    [
        "{part}-{kind}-idx{rank}-ubyte.gz",
        "{part}-{kind}-idx{rank}-ubyte",
        "{part}-{kind}.idx{rank}-ubyte",
        "{part}-{kind}.idx{rank}-ubyte.gz",
    ],
)
def test_mnist_under_the_names_of_its_mirrors(tmp_path, name):
    wanted = write_set(tmp_path, name)
    for (images, labels), (pictures, digits) in zip(data.mnist(tmp_path), wanted, strict=True):
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(images, pictures)
        np.testing.assert_array_equal(labels, digits)
    for (images, _), (pictures, _) in zip(data.mnist(tmp_path, dtype="f32"), wanted, strict=True):
        assert images.dtype == np.float32
        np.testing.assert_array_equal(images, (pictures / 255).astype(np.float32))
    with pytest.raises(ArgumentError, match="'u8' or 'f32', got 'f64'"):
        data.mnist(tmp_path, dtype="f64")


def test_files_that_are_missing_or_do_not_belong_together_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"MNIST .* is not in '{tmp_path}'"):
        data.mnist(tmp_path)
    (images, labels), _ = write_set(tmp_path, "{part}-{kind}-idx{rank}-ubyte")
    file = tmp_path / "train-labels-idx1-ubyte"
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"train-labels-idx1-ubyte.gz is not in"):
        data.mnist(tmp_path)
    file.write_bytes(idx(labels[:4]))
    with pytest.raises(
        FormatError, match=r"has 5 pictures, but '.*train-labels-idx1-ubyte' 4 labels"
    ):
        data.mnist(tmp_path)
    file.write_bytes(idx(labels + 5))
    with pytest.raises(
        FormatError, match=r"train-labels-idx1-ubyte' holds uint8 up to 1\d, not digits"
    ):
        data.mnist(tmp_path)
    file.write_bytes(idx(images))
    with pytest.raises(FormatError, match="its array has 3 axes, where 1 were expected"):
        data.mnist(tmp_path)
    file.write_bytes(idx(labels))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images[:, :27]))
    with pytest.raises(FormatError, match=r"holds uint8\[5, 27, 28\], not pictures of 28 by 28"):
        data.mnist(tmp_path)


def test_mnist_is_found_in_the_usual_places_or_the_error_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    write_set(folder)
    assert data.mnist_folder() == folder
    assert folder in data.mnist_places()
    monkeypatch.setattr("darner.data.places.CHECKOUT", tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    with pytest.raises(
        FileNotFoundError, match=f"{tmp_path}/home/data/mnist.*; download the four files"
    ):
        data.mnist()


def test_the_data_set_of_the_seed(tmp_path):
    (images, labels), _ = write_set(tmp_path, "{part}-{kind}-idx{rank}-ubyte")
    write_set(tmp_path)
    plain = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    packed = [f"{path}.gz" for path in plain]
    for found in (data.MnistDataset.load(*plain), data.MnistDataset.load_gz(*packed)):
        assert found.n == 5
        np.testing.assert_array_equal(
            found.images, (images / 255).astype(np.float32).reshape(5, 784)
        )
        assert found.labels.dtype == np.float32
        np.testing.assert_array_equal(found.labels, np.eye(10)[labels])
    with pytest.raises(FormatError, match="not a whole IDX file: it begins with the bytes 1f 8b"):
        data.MnistDataset.load(*packed)
    with pytest.raises(FormatError, match="not a whole gzip file"):
        data.MnistDataset.load_gz(*plain)
    loader = found.loader(2, shuffle=False)
    assert isinstance(loader, data.DataLoader)
    first, second = loader
    assert (first["x"].shape, first["labels"].shape) == ((2, 784), (2, 10))
    np.testing.assert_array_equal(second["x"], found.images[2:4])
    np.testing.assert_array_equal(second["labels"], found.labels[2:4])


def test_the_real_digits():
    try:
        train, test = data.mnist(os.environ.get("DARNER_DATA"))
    except FileNotFoundError as error:
        pytest.skip(f"the MNIST files are absent: {error}")
    assert train.images.shape == (60_000, 28, 28)
    assert test.images.shape == (10_000, 28, 28)
    assert train.images.mean() == pytest.approx(33.32, abs=0.01)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(test.labels).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
