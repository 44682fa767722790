"""Files of tokens, and windows of them."""

import numpy as np
import pytest

from darner import ArgumentError, DTypeError, FormatError, ShapeError, data


@pytest.mark.parametrize("suffix", ["npy", "bin"])
@pytest.mark.parametrize("dtype", ["u16", "u32"])
def test_pieces_of_tokens_come_back(tmp_path, suffix, dtype):
    path = tmp_path / f"tokens.{suffix}"
    high = 65_535 if dtype == "u16" else 2**32 - 1
    pieces = [[1, 2, high], np.array([], np.float64), np.arange(5, dtype=np.int64), (7,), []]
    told = []
    count = data.write_tokens(path, iter(pieces), dtype, told.append)
    assert (count, told) == (9, [3, 3, 8, 9, 9])
    found = data.open_tokens(path, dtype)
    assert found.dtype == np.dtype(dtype.replace("u16", "<u2").replace("u32", "<u4"))
    assert found.tolist() == [1, 2, high, 0, 1, 2, 3, 4, 7]
    assert not np.asarray(found).flags.writeable
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    if suffix == "npy":
        np.testing.assert_array_equal(np.load(path), found)
    else:
        np.testing.assert_array_equal(np.fromfile(path, found.dtype), found)


def test_large_pieces_are_written_whole(tmp_path):
    pieces = [np.arange(700_000) % 65_536, np.arange(3)]
    for name in ("a.npy", "a.bin"):
        data.write_tokens(tmp_path / name, pieces)
        np.testing.assert_array_equal(data.open_tokens(tmp_path / name), np.concatenate(pieces))


@pytest.mark.parametrize("name", ["a.npy", "a.bin"])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, name):
    path = tmp_path / name
    data.write_tokens(path, [[1, 2, 3]])

    def failing():
        yield [4]
        raise PermissionError(13, "no second document")

    with pytest.raises(PermissionError, match="no second document") as caught:
        data.write_tokens(path, failing())
    assert type(caught.value) is PermissionError
    with pytest.raises(
        ArgumentError,
        match=r"piece 1 has the token 65536, .* 0 to 65,535; write it with dtype='u32'",
    ):
        data.write_tokens(path, [[1], [3, 65_536]])
    with pytest.raises(ArgumentError, match="piece 0 has the token -1"):
        data.write_tokens(path, [[-1, 3]])
    with pytest.raises(ArgumentError, match=f"the token {2**32}"):
        data.write_tokens(path, [[2**32]], "u32")
    with pytest.raises(DTypeError, match="piece 0 is float64"):
        data.write_tokens(path, [[0.5]])
    with pytest.raises(ShapeError, match=r"piece 0 has the shape \(1, 2\)"):
        data.write_tokens(path, [[[1, 2]]])
    assert data.open_tokens(path).tolist() == [1, 2, 3]
    assert [each.name for each in tmp_path.iterdir()] == [name]
    with pytest.raises(OSError, match=r"cannot write '.*nowhere"):
        data.write_tokens(tmp_path / "nowhere" / name, [[1]])


def test_what_is_wrong_with_a_file_of_tokens_is_told(tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "empty.bin").write_bytes(b"")
    np.save(tmp_path / "floats.npy", np.zeros(3))
    np.save(tmp_path / "table.npy", np.zeros((3, 2), np.int32))
    with pytest.raises(FormatError, match=r"odd.bin' has 3 bytes, which are no u16 tokens"):
        data.open_tokens(tmp_path / "odd.bin")
    with pytest.raises(FormatError, match=r"empty.bin' is empty"):
        data.open_tokens(tmp_path / "empty.bin")
    with pytest.raises(DTypeError, match=r"floats.npy' is float64"):
        data.open_tokens(tmp_path / "floats.npy")
    with pytest.raises(ShapeError, match=r"table.npy' has the shape \(3, 2\)"):
        data.open_tokens(tmp_path / "table.npy")
    with pytest.raises(ArgumentError, match="'u16' or 'u32', got 'i32'"):
        data.open_tokens(tmp_path / "odd.bin", "i32")
    with pytest.raises(OSError, match=r"cannot read '.*none.bin'"):
        data.open_tokens(tmp_path / "none.bin")
    with pytest.raises(ArgumentError, match=r"end in .npy or .bin, got '.*tokens.txt'"):
        data.write_tokens(tmp_path / "tokens.txt", [[1]])


def test_labels_are_the_next_tokens():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 60_000, 1000).astype(np.uint16)
    starts = {tuple(tokens[i : i + 9].tolist()): i for i in range(1000 - 8)}
    source = data.TokenWindows(tokens, length=8, batch=3, seed=1)
    assert len(source) == 1000 // 24
    seen = []
    for batch in (*source, *source):
        assert batch["tokens"].dtype == batch["labels"].dtype == np.int32
        assert batch["tokens"].shape == batch["labels"].shape == (3, 8)
        np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
        windows = np.concatenate([batch["tokens"], batch["labels"][:, -1:]], axis=1)
        seen += [starts[tuple(window)] for window in windows.tolist()]
    # Nearly all of 246 random places differ, and they reach from end to end.
    assert len(set(seen)) > 190
    assert min(seen) < 20
    assert max(seen) > 970


def test_random_windows_reach_the_first_and_the_last_place():
    source = data.TokenWindows(np.arange(5), length=3, batch=64)
    (batch,) = source
    assert set(batch["tokens"][:, 0].tolist()) == {0, 1}
    assert set(batch["labels"][:, -1].tolist()) == {3, 4}


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize(("count", "windows"), [(12, 3), (13, 4), (14, 4), (4, 1)])
def test_windows_side_by_side_come_once_each(order, count, windows):
    source = data.TokenWindows(np.arange(count), 3, 1, order=order)
    assert len(source) == source.windows == windows
    first = [int(batch["tokens"][0, 0]) for batch in source]
    wanted = [3 * i for i in range(windows)]
    assert sorted(first) == wanted
    if order == "sequential":
        assert first == wanted == [int(batch["tokens"][0, 0]) for batch in source]


def test_shuffled_windows_change_from_epoch_to_epoch():
    source = data.TokenWindows(np.arange(100), 3, 1, order="shuffled", seed=2)
    one, other = ([int(batch["tokens"][0, 0]) for batch in source] for _ in range(2))
    assert one != other
    assert one == [3 * i for i in data.random_order(33, seed=2, epoch=0)]


def test_the_last_batch_is_filled_up_with_what_does_not_count():
    tokens = np.arange(1, 12)
    assert len(data.TokenWindows(tokens, 2, 3, order="sequential")) == 1
    source = data.TokenWindows(tokens, 2, 3, order="sequential", drop_last=False)
    _, last = source
    assert last["tokens"].tolist() == [[7, 8], [9, 10], [0, 0]]
    assert last["labels"].tolist() == [[8, 9], [10, 11], [-100, -100]]


def test_windows_of_files(tmp_path):
    tokens = np.arange(70_000)
    data.write_tokens(tmp_path / "a.bin", [tokens], "u32")
    data.write_tokens(tmp_path / "a.npy", [tokens], "u32")
    for path, options in ((tmp_path / "a.bin", {"dtype": "u32"}), (str(tmp_path / "a.npy"), {})):
        found = next(iter(data.TokenWindows(path, 16, 4, seed=3, **options)))
        wanted = next(iter(data.TokenWindows(tokens, 16, 4, seed=3)))
        for name in ("tokens", "labels"):
            np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize(
    ("tokens", "options", "error", "message"),
    [
        (np.arange(4), {"length": 4}, ArgumentError, "4 tokens have no window of 4 .*length of 3"),
        (np.arange(9.0), {}, DTypeError, "what was given is float64"),
        (np.zeros((3, 3), int), {}, ShapeError, r"the shape \(3, 3\)"),
        (
            np.arange(9),
            {"order": "sorted"},
            ArgumentError,
            "random, sequential, shuffled, got 'sorted'",
        ),
        (
            np.arange(9),
            {"order": "shuffled", "batch": 5},
            ArgumentError,
            "4 windows do not fill one batch of 5",
        ),
        (np.arange(9), {"length": 0}, ArgumentError, "length is a whole number, at least 1"),
    ],
)
def test_what_is_wrong_with_windows_is_told(tokens, options, error, message):
    with pytest.raises(error, match=message):
        data.TokenWindows(tokens, **{"length": 2, "batch": 1, **options})


@pytest.mark.parametrize("wrong", [2**31, -1])
def test_tokens_that_do_not_fit_are_told(wrong):
    source = data.TokenWindows(np.array([1, wrong, 3]), 2, 1)
    with pytest.raises(ArgumentError, match=f"has the token {wrong}; tokens are from 0"):
        next(iter(source))
