"""Places in a source: from any of them, a source that is restored goes on as it would have."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darner import ArgumentError, FormatError, data


class Failing(data.Epochs):
    """Its batch 2 fails as long as ``broken``."""

    broken = True

    def __len__(self):
        return 4

    def batch_at(self, epoch, position):
        if self.broken and position == 2:
            raise KeyError("batch 2")
        return {"x": np.array([epoch, position])}


def augmented(batch, random):
    return {**batch, "x": batch["x"] + random.integers(0, 1000, batch["x"].shape)}


@st.composite
def sources(draw):
    """A function that makes equal sources, of any kind and any options."""
    batch, seed = draw(st.integers(1, 5)), draw(st.integers(0, 2**64 - 1))
    drop_last = draw(st.booleans())
    if draw(st.booleans()):
        rows, shuffle = draw(st.integers(batch, 23)), draw(st.booleans())
        options = {"batch": batch, "shuffle": shuffle, "seed": seed, "drop_last": drop_last}
        options["augment"] = draw(st.sampled_from([None, augmented]))
        part = draw(st.booleans()) and rows >= 2 * batch + 2

        def make():
            x = {"x": np.arange(rows), "y": np.arange(2 * rows).reshape(rows, 2)}
            source = data.Arrays(x, **options)
            return source.split(0.5, seed=seed)[1] if part else source
    else:
        length = draw(st.integers(1, 4))
        count = draw(st.integers(batch * length + 1, 60))
        order = draw(st.sampled_from(["random", "sequential", "shuffled"]))

        def make():
            tokens = np.arange(count)
            return data.TokenWindows(tokens, length, batch, seed, order, drop_last)

    depth = draw(st.sampled_from([0, 0, 1, 3]))
    return (lambda: data.prefetch(make(), depth)) if depth else make


def taken(source, count):
    """The next batches, over as many epochs as it takes."""
    batches = []
    while len(batches) < count:
        batches += islice(source, count - len(batches))
    return batches


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


@given(sources(), st.integers(0, 30), st.integers(0, 30))
def test_a_restored_source_goes_on_exactly(make, before, ahead):
    source = make()
    taken(source, before)
    state = json.loads(json.dumps(source.state()))
    assert (state["epoch"], state["position"]) == divmod(before, len(source))
    following = taken(source, 2 * len(source) + 1)
    # Another source, wherever it is, and the same one again.
    other = make()
    taken(other, ahead)
    for restored in (other, source):
        restored.restore(state)
        assert restored.state() == state
        assert_same(taken(restored, 2 * len(source) + 1), following)


@given(sources(), st.integers(0, 12))
def test_an_epoch_is_its_length_and_the_rest_of_one_follows_a_break(make, left):
    source, whole = make(), make()
    wanted = list(whole)
    assert len(wanted) == len(source)
    left = min(left, len(source) - 1)
    first = list(islice(source, left))
    assert_same([*first, *source], wanted)
    assert source.state() == whole.state()
    assert source.state()["epoch"] == 1


def test_two_iterators_share_an_epoch():
    source = data.Arrays({"x": np.arange(6)}, batch=1, shuffle=False)
    one, other = iter(source), iter(source)
    found = [next(one), next(other), next(one), *other]
    assert [int(batch["x"][0]) for batch in found] == [0, 1, 2, 3, 4, 5]
    assert list(one) == []
    assert source.state()["epoch"] == 1


def test_a_batch_that_failed_comes_next():
    source = Failing()
    found = []
    with pytest.raises(KeyError):
        found.extend(batch["x"].tolist() for batch in source)
    assert found == [[0, 0], [0, 1]]
    assert source.state()["position"] == 2
    source.broken = False
    assert [batch["x"].tolist() for batch in source] == [[0, 2], [0, 3]]


def test_the_seed_is_part_of_the_place():
    one, other = (data.Arrays({"x": np.arange(50)}, batch=10, seed=seed) for seed in (1, 2))
    next(iter(one))
    state = one.state()
    rest = list(one)
    assert not np.array_equal(rest[0]["x"], taken(other, 2)[1]["x"])
    other.restore(state)
    assert_same(list(other), rest)


def philox(counter, key):
    """Philox 4x64-10 as its authors wrote it (Salmon et al. 2011), in whole numbers of Python."""
    word = 2**64
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, word)
        high1, low1 = divmod(0xCA5A826395121157 * c2, word)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % word, (k1 + 0xBB67AE8584CAA73B) % word
    return c0, c1, c2, c3


@pytest.mark.parametrize(
    ("seed", "epoch", "wanted"),
    [(0, 0, [0, 2, 1, 5, 4, 3, 6, 7]), (2**64 - 1, 3, [3, 2, 0, 1, 6, 5, 4, 7])],
)
def test_the_order_of_an_epoch_is_the_same_everywhere(seed, epoch, wanted):
    assert data.random_order(8, seed, epoch).tolist() == wanted
    keys = [*philox((1, 0, 0, 0), (seed, epoch)), *philox((2, 0, 0, 0), (seed, epoch))]
    assert sorted(range(8), key=keys.__getitem__) == wanted


@given(st.integers(0, 300), st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_an_order_has_every_number_once(count, seed, epoch):
    order = data.random_order(count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))


def test_orders_are_even():
    """Each number is at each place about equally often, over many epochs."""
    counts = np.zeros((5, 5))
    for epoch in range(2000):
        counts[np.arange(5), data.random_order(5, 7, epoch)] += 1
    assert abs(counts - 400).max() < 5 * np.sqrt(400 * 0.8)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"epoch": 0, "position": 0}, "has no seed and no batches"),
        (
            {"epoch": 0, "position": 0, "seed": 0, "batches": 3},
            "3 batches an epoch, this one has 5",
        ),
        ({"epoch": 0, "position": 5, "seed": 0, "batches": 5}, "position .* from 0 to 4, got 5"),
        ({"epoch": -1, "position": 0, "seed": 0, "batches": 5}, "epoch .* got -1"),
        ({"epoch": 0, "position": 0, "seed": "a", "batches": 5}, "seed .* got 'a'"),
    ],
)
def test_states_that_do_not_fit_are_refused_and_change_nothing(state, message):
    source = data.Arrays({"x": np.arange(10)}, batch=2, seed=3)
    next(iter(source))
    before = source.state()
    with pytest.raises((FormatError, ArgumentError), match=message):
        source.restore(state)
    assert source.state() == before


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, None])
def test_seeds_are_whole_numbers_of_64_bits(seed):
    with pytest.raises(ArgumentError, match="seed is a whole number"):
        data.Arrays({"x": np.arange(3)}, batch=1, seed=seed)


def test_sources_fit_the_protocol():
    arrays = data.Arrays({"x": np.arange(3)}, batch=1)
    windows = data.TokenWindows(np.arange(9), length=2, batch=1)
    assert all(isinstance(each, data.Batches) for each in (arrays, windows, data.prefetch(arrays)))
    assert not isinstance([{"x": np.arange(3)}], data.Batches)
