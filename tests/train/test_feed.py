"""Batches one after another, and where an epoch ends."""

import pytest

import darner
from darner.train.feed import Feed


class Counting:
    """Numbers 0, 1, 2 of each epoch; ``rolls``: whether its state is of the next epoch once the last was handed out."""

    def __init__(self, rolls):
        self.rolls, self.epoch, self.position = rolls, 0, 0

    def __len__(self):
        return 3

    def __iter__(self):
        while self.position < 3:
            self.position += 1
            found = {"x": (self.epoch, self.position - 1)}
            if self.rolls and self.position == 3:
                self.epoch, self.position = self.epoch + 1, 0
                yield found
                return
            yield found
        self.epoch, self.position = self.epoch + 1, 0

    def state(self):
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state):
        self.epoch, self.position = state["epoch"], state["position"]


def taken(feed, count):
    found = []
    while len(found) < count:
        batch = feed.next()
        if batch is not None:
            found.append((feed.epoch, batch["x"]))
            feed.ended()
    return found


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("before", range(8))
def test_a_feed_goes_on_from_anywhere(rolls, before):
    wanted = taken(Feed(Counting(rolls)), 9)
    first = Feed(Counting(rolls))
    taken(first, before)
    second = Feed(Counting(rolls))
    second.restore(first.state())
    assert taken(second, 9 - before) == wanted[before:]
    assert [epoch for epoch, _ in wanted] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_source_that_was_left_behind_its_last_batch_begins_the_next_epoch():
    source = Counting(rolls=False)
    source.restore({"epoch": 4, "position": 3})
    assert Feed(source).next() == {"x": (5, 0)}


def test_an_end_that_is_only_met_is_told_once():
    class Plain:
        def __iter__(self):
            yield from ({"x": 1}, {"x": 2})

    feed = Feed(Plain())
    assert not feed.resumable
    found = []
    for _ in range(6):
        found.append(feed.next())
        assert not feed.ended()
    assert found == [{"x": 1}, {"x": 2}, None, {"x": 1}, {"x": 2}, None]
    assert feed.epoch == 2


def test_tuples_are_named():
    assert Feed([(1, 2)], ("a", "b")).next() == {"a": 1, "b": 2}
    with pytest.raises(
        darner.ArgumentError, match=r"one array for each of \['a', 'b'\]; got tuple"
    ):
        Feed([(1, 2, 3)], ("a", "b")).next()
