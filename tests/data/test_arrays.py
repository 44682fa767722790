"""Batches of arrays: which rows, in which order, from memory and from files."""

import numpy as np
import pytest

from darner import ArgumentError, DarnerError, DTypeError, FormatError, ShapeError, data


def rows(source, name="x"):
    return [batch[name].tolist() for batch in source]


def test_rows_in_their_order_and_the_last_batch():
    arrays = {"x": np.arange(7), "y": np.arange(7) * 10}
    full = data.Arrays(arrays, batch=3, shuffle=False)
    assert (len(full), rows(full)) == (2, [[0, 1, 2], [3, 4, 5]])
    whole = data.Arrays(arrays, batch=3, shuffle=False, drop_last=False)
    assert (len(whole), rows(whole, "y")) == (3, [[0, 10, 20], [30, 40, 50], [60]])


def test_shuffled_rows_stay_together_and_come_once_an_epoch():
    arrays = {"x": np.arange(20), "y": np.arange(20) + 100}
    source = data.Arrays(arrays, batch=4, seed=5)
    epochs = []
    for _ in range(2):
        batches = list(source)
        for batch in batches:
            np.testing.assert_array_equal(batch["x"] + 100, batch["y"])
        epochs.append(np.concatenate([batch["x"] for batch in batches]).tolist())
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]
    assert epochs[0] == data.random_order(20, seed=5, epoch=0).tolist()


def test_batches_are_copies():
    x = np.arange(6)
    for shuffle in (False, True):
        source = data.Arrays({"x": x}, batch=2, shuffle=shuffle)
        for batch in source:
            batch["x"][:] = -1
    np.testing.assert_array_equal(x, np.arange(6))


def test_transform_comes_after_augment():
    def augment(batch, random):
        return {"x": batch["x"] + random.integers(1, 100, 2)}

    def transform(batch):
        return {"doubled": 2 * batch["x"]}

    def make():
        x = np.zeros(4, np.int64)
        return data.Arrays({"x": x}, batch=2, seed=3, augment=augment, transform=transform)

    found = [batch["doubled"].tolist() for source in [make()] for _ in range(2) for batch in source]
    assert len({tuple(each) for each in found}) == 4
    assert all(value % 2 == 0 and 2 <= value < 200 for each in found for value in each)
    assert found == [
        each["doubled"].tolist() for source in [make()] for _ in range(2) for each in source
    ]


@pytest.mark.parametrize("option", ["transform", "augment"])
def test_functions_that_return_no_batch_are_told(option):
    source = data.Arrays({"x": np.arange(3)}, batch=1, **{option: lambda *batch: None})
    with pytest.raises(ArgumentError, match=f"{option} returned a NoneType, not a table"):
        next(iter(source))


def test_a_split_has_every_row_once_and_depends_on_its_seed_alone():
    source = data.Arrays({"x": np.arange(10)}, batch=1, shuffle=False, seed=4)
    parts = source.split(0.7, seed=1)
    found = [[row for batch in rows(part) for row in batch] for part in parts]
    assert [len(part) for part in found] == [7, 3]
    assert sorted(found[0] + found[1]) == list(range(10))
    assert found[0] == sorted(found[0])
    again = source.with_options(seed=9, shuffle=True).split(0.7, seed=1)
    assert [sorted(row for batch in rows(part) for row in batch) for part in again] == found
    other = source.split(0.7, seed=2)
    assert rows(other[0]) != rows(source.split(0.7, seed=1)[0])
    assert rows(source.split(0.7, seed=1, batch=5, drop_last=False)[1]) == [found[1]]
    # Parts of parts are rows of the whole.
    first, second = parts[0].split(0.5)
    assert sorted(row for batch in rows(first) + rows(second) for row in batch) == found[0]


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, 0.01, 0.99, float("nan")])
def test_splits_without_rows_are_refused(fraction):
    with pytest.raises(ArgumentError, match=r"does not part 5 rows in two"):
        data.Arrays({"x": np.arange(5)}, batch=1).split(fraction)


def test_other_options():
    source = data.Arrays({"x": np.arange(6)}, batch=2, transform=lambda batch: {"x": -batch["x"]})
    next(iter(source))
    plain = source.with_options(shuffle=False, transform=None, batch=4, drop_last=False)
    assert rows(plain) == [[0, 1, 2, 3], [4, 5]]
    assert source.state()["position"] == 1
    with pytest.raises(ArgumentError, match="no option 'shufle'; did you mean 'shuffle'"):
        source.with_options(shufle=False)


def test_files_are_mapped_and_give_the_same_batches(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(9, 3)), np.arange(9, dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    np.savez_compressed(tmp_path / "packed.npz", x=x, y=y)
    wanted = list(data.Arrays({"x": x, "y": y}, batch=4, seed=1))
    mapped = {"x": tmp_path / "x.npy", "y": str(tmp_path / "y.npy")}
    for arrays in (mapped, tmp_path / "both.npz", tmp_path / "packed.npz"):
        found = list(data.Arrays(arrays, batch=4, seed=1))
        for one, other in zip(found, wanted, strict=True):
            assert type(one["x"]) is np.ndarray
            assert one["y"].dtype == np.uint8
            np.testing.assert_array_equal(one["x"], other["x"])
            np.testing.assert_array_equal(one["y"], other["y"])
    opened = data.open_array(tmp_path / "x.npy")
    assert not np.asarray(opened).flags.writeable


def test_what_is_wrong_with_a_file_is_told(tmp_path):
    good = tmp_path / "good.npy"
    np.save(good, np.arange(1000))
    np.savez(tmp_path / "pair.npz", x=np.arange(100), y=np.arange(100))
    (tmp_path / "cut.npy").write_bytes(good.read_bytes()[:500])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "pair.npz").read_bytes()[:700])
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("cut.npy", "empty.npy", "objects.npy"):
        with pytest.raises(FormatError, match=f"{name}' is not a whole NumPy file"):
            data.Arrays({"x": tmp_path / name}, batch=1)
    with pytest.raises(FormatError, match=r"cut.npz' is not a whole NumPy file"):
        data.Arrays(tmp_path / "cut.npz", batch=1)
    damaged = bytearray((tmp_path / "pair.npz").read_bytes())
    damaged[300] ^= 0xFF
    (tmp_path / "damaged.npz").write_bytes(damaged)
    with pytest.raises(FormatError, match=r"damaged.npz' is not a whole NumPy file"):
        data.Arrays(tmp_path / "damaged.npz", batch=1)
    with pytest.raises(FormatError, match=r"pair.npz' is no .npy file but a collection"):
        data.Arrays({"x": tmp_path / "pair.npz"}, batch=1)
    with pytest.raises(FormatError, match=r"holds one array without a name; give arrays as"):
        data.Arrays(good, batch=1)
    with pytest.raises(OSError, match=r"cannot read '.*none.npy': No such file"):
        data.Arrays({"x": tmp_path / "none.npy"}, batch=1)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.filterwarnings("ignore")  # NumPy warns of headers that look like those of Python 2
def test_damage_of_any_kind_is_told(tmp_path, suffix, compressed):
    """Bytes changed at random: the file is read, or refused by an error of darner's own."""
    path, rng = tmp_path / f"file.{suffix}", np.random.default_rng(0)
    save = np.save if suffix == "npy" else np.savez_compressed if compressed else np.savez
    save(path, np.arange(40))
    whole, refused = path.read_bytes(), []
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 2):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            data.open_array(path) if suffix == "npy" else data.open_arrays(path)
        except DarnerError as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert all(f"file.{suffix}'" in message for message in refused)


@pytest.mark.parametrize(
    ("arrays", "options", "error", "message"),
    [
        ({}, {}, ArgumentError, "there are no arrays"),
        ({"x": np.arange(3), "y": np.arange(4)}, {}, ShapeError, "'x' has 3, 'y' has 4"),
        ({"x": np.float32(1)}, {}, ShapeError, r"'x' is float32\[\], which has no rows"),
        ({"x": np.array(["a", None])}, {}, DTypeError, "'x' is given objects of Python"),
        ({"x": np.empty((0, 3))}, {}, ArgumentError, "there are no rows"),
        (
            {"x": np.arange(3)},
            {"batch": 4},
            ArgumentError,
            "3 rows do not fill one batch of 4; take",
        ),
        ({"x": np.arange(3)}, {"batch": 0}, ArgumentError, "batch is a whole number, at least 1"),
        ({3: np.arange(3)}, {}, ArgumentError, "names of a graph's inputs, got 3"),
    ],
)
def test_what_is_wrong_with_arrays_is_told(arrays, options, error, message):
    with pytest.raises(error, match=message):
        data.Arrays(arrays, **{"batch": 1, **options})


def test_a_loader_takes_numbers_end_to_end():
    loader = data.DataLoader(np.arange(12.0), np.arange(6), 4, 2, 3, shuffle=False)
    assert len(loader) == 1
    (batch,) = loader
    np.testing.assert_array_equal(batch["x"], np.arange(12.0).reshape(3, 4))
    np.testing.assert_array_equal(batch["labels"], [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(ShapeError, match="the 12 numbers of 'x' are no rows of 5"):
        data.DataLoader(np.arange(12.0), np.arange(6), 5, 2, 3)
    with pytest.raises(ShapeError, match="'x' has 3, 'labels' has 6"):
        data.DataLoader(np.arange(12.0), np.arange(6), 4, 1, 3)
