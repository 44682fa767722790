"""Digits that are drawn: the same for the same seed, and each more like its own kind than like any other."""

import numpy as np
import pytest

import darner
from darner import data


def test_equal_seeds_draw_equal_digits():
    first, again, other = (data.drawn_digits(20, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.images, again.images)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert np.abs(first.images - other.images).max() > 0.5


def test_digits_have_the_form_of_mnist():
    digits = data.drawn_digits(1500, seed=0)
    assert digits.images.shape == (1500, 28, 28)
    assert digits.images.dtype == np.float32
    assert digits.labels.dtype == np.int32
    assert digits.images.min() == 0.0
    assert digits.images.max() == 1.0
    assert np.bincount(digits.labels, minlength=10).min() > 100


def test_the_nearest_mean_tells_most_digits_apart():
    learned, tested = data.drawn_digits(3000, seed=1), data.drawn_digits(500, seed=2)
    means = np.stack([learned.images[learned.labels == digit].mean(0) for digit in range(10)])
    distances = np.square(tested.images[:, None] - means[None]).sum((2, 3))
    assert (distances.argmin(1) == tested.labels).mean() > 0.6


def test_no_digits_are_refused():
    with pytest.raises(darner.ArgumentError, match="count"):
        data.drawn_digits(0)
