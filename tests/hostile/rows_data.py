"""Sources of batches made wrongly, or put where they never were."""

import numpy as np

from darner import ArgumentError, DTypeError, FormatError, ShapeError, data
from tests.hostile.rows import Table

bad = Table("values")
ROWS = bad
X = np.arange(12.0).reshape(6, 2)


def arrays(**options):
    """Six rows."""
    return data.Arrays({"x": X}, **{"batch": 2, **options})


def windows(tokens=range(20), **options):
    """Windows of a few tokens."""
    return data.TokenWindows(np.array(tokens), **{"length": 4, "batch": 2, **options})


def restored(**changes):
    """Put a source where a changed state says; it must stay where it is."""
    source = arrays()
    next(iter(source))
    before = source.state()
    state = {**before, **changes}
    try:
        source.restore({k: v for k, v in state.items() if v is not None})
    finally:
        assert source.state() == before


# fmt: off
bad("arrays of nothing", lambda v: data.Arrays({}, batch=1), ArgumentError, "no arrays")
bad("arrays of different lengths", lambda v: data.Arrays({"x": X, "y": X[:3]}, batch=1), ShapeError, "3")
bad("arrays by a number", lambda v: data.Arrays({3: X}, batch=1), ArgumentError, "3")
bad("arrays of one number", lambda v: data.Arrays({"x": 3.0}, batch=1), ShapeError, "rows")
bad("arrays of objects", lambda v: data.Arrays({"x": np.array([None])}, batch=1), (ShapeError, DTypeError), "'x'")
bad("arrays that are a number", lambda v: data.Arrays(3, batch=1), ArgumentError, "arrays")
bad("arrays that are a list", lambda v: data.Arrays([X], batch=1), ArgumentError, "arrays")
bad("batch of none", lambda v: arrays(batch=0), ArgumentError, "batch")
bad("batch of a half", lambda v: arrays(batch=1.5), ArgumentError, "batch")
bad("batch of text", lambda v: arrays(batch="2"), ArgumentError, "batch")
bad("batch larger than all rows", lambda v: arrays(batch=7), ArgumentError, "7")
bad("arrays by a seed below 0", lambda v: arrays(seed=-1), ArgumentError, "seed")
bad("arrays by a seed of 65 bits", lambda v: arrays(seed=2**64), ArgumentError, "seed")
bad("split of more than all", lambda v: arrays().split(1.5), ArgumentError, "1.5")
bad("split of nothing", lambda v: arrays().split(0.0), ArgumentError, "0")
bad("split of NaN", lambda v: arrays().split(float("nan")), ArgumentError, "nan")
bad("split with an option that is none", lambda v: arrays().split(0.5, bacth=1), ArgumentError, "batch")
bad("transform that returns nothing", lambda v: next(iter(arrays(transform=lambda batch: None))), ArgumentError, "NoneType")
bad("augment that returns a list", lambda v: next(iter(arrays(augment=lambda batch, rng: [1]))), ArgumentError, "list")
bad("examples that are no rows", lambda v: data.DataLoader(np.arange(7), np.arange(3), 2, 1, batch=1), ShapeError, "7")
bad("examples of no size", lambda v: data.DataLoader(np.arange(6), np.arange(3), 0, 1, batch=1), ArgumentError, "sample_size")
bad("windows longer than the text", lambda v: windows(length=20), ArgumentError, "20")
bad("windows of no length", lambda v: windows(length=0), ArgumentError, "length")
bad("windows in another order", lambda v: windows(order="backwards"), ArgumentError, "order")
bad("windows of fractions", lambda v: windows(tokens=[0.5] * 20), DTypeError, "whole")
bad("windows of a matrix", lambda v: data.TokenWindows(np.zeros((3, 9), int), 2, 1), ShapeError, "row")
bad("windows of tokens below 0", lambda v: next(iter(windows(tokens=[-1] * 20))), ArgumentError, "-1")
bad("windows of tokens beyond 31 bits", lambda v: next(iter(windows(tokens=[2**40] * 20))), ArgumentError, "token")
bad("windows of no tokens", lambda v: windows(tokens=[]), (ArgumentError, DTypeError), "tokens")
bad("put behind the last batch", lambda v: restored(position=3), (ArgumentError, FormatError), "position")
bad("put before the first batch", lambda v: restored(position=-1), (ArgumentError, FormatError), "position")
bad("put at half a batch", lambda v: restored(position=0.5), (ArgumentError, FormatError), "position")
bad("put in an epoch of text", lambda v: restored(epoch="1"), (ArgumentError, FormatError), "epoch")
bad("put by a seed of text", lambda v: restored(seed="x"), (ArgumentError, FormatError), "seed")
bad("put where a source of another length was", lambda v: restored(batches=99), FormatError, "99")
bad("put without a place", lambda v: restored(position=None), FormatError, "position")
bad("put by a list", lambda v: arrays().restore([1, 2]), (ArgumentError, FormatError), "state")
bad("put by nothing", lambda v: arrays().restore(None), (ArgumentError, FormatError), "state")
bad("prefetched by none", lambda v: data.prefetch(arrays(), depth=0), ArgumentError, "depth")
bad("prefetched from a list", lambda v: data.prefetch([1, 2]), (ArgumentError, TypeError), "list")
bad("prefetched with a mistake inside", lambda v: next(iter(data.prefetch(arrays(transform=lambda batch: 3)))), ArgumentError, "int")
bad("digits of none", lambda v: data.drawn_digits(0), ArgumentError, "count")
bad("digits of a half", lambda v: data.drawn_digits(2.5), ArgumentError, "count")
# fmt: on
