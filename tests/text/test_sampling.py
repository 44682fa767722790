"""Choosing tokens, compared with the processors of transformers and with shares counted over many draws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from darner import ArgumentError
from darner.text import GREEDY, Sampling


def expected(scores, text, sampling):
    """The probabilities that transformers' processors leave, one after another."""
    found = torch.tensor(scores, dtype=torch.float64)[None]
    ids = torch.tensor([text], dtype=torch.long)
    if sampling.repetition_penalty != 1.0:
        found = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, found)
    found = TemperatureLogitsWarper(sampling.temperature)(ids, found)
    if sampling.top_k:
        found = TopKLogitsWarper(sampling.top_k)(ids, found)
    if sampling.top_p < 1.0:
        found = TopPLogitsWarper(sampling.top_p)(ids, found)
    if sampling.min_p:
        found = MinPLogitsWarper(sampling.min_p)(ids, found)
    return found.softmax(-1)[0].numpy()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 700),
    temperature=st.floats(0.2, 3.0),
    top_k=st.sampled_from([0, 0, 1, 3, 50, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.1, 0.6]),
    penalty=st.sampled_from([1.0, 1.3]),
)
def test_what_can_be_drawn_is_what_transformers_leaves(
    seed, size, temperature, top_k, top_p, min_p, penalty
):
    rng = np.random.default_rng(seed)
    scores = (3 * rng.standard_normal(size)).astype(np.float32)
    text = rng.integers(0, size, 5).tolist()
    sampling = Sampling(temperature, top_k, top_p, min_p, penalty)
    allowed = expected(scores, text, sampling)
    for step in range(20):
        token = int(sampling.choose(scores[None], [text], step)[0])
        assert allowed[token] > 0, (token, allowed)


def test_tokens_come_as_often_as_their_probabilities_say():
    scores = np.array([0.3, 1.7, -0.5, 1.1, 0.0, -2.0], np.float32)
    sampling = Sampling(temperature=0.8, top_k=5, top_p=0.95, min_p=0.05)
    wanted = expected(scores, [0], sampling)
    drawn = np.array([int(sampling.choose(scores[None], [[0]], s)[0]) for s in range(20_000)])
    shares = np.bincount(drawn, minlength=6) / len(drawn)
    deviation = np.sqrt(wanted * (1 - wanted) / len(drawn))
    assert (np.abs(shares - wanted) <= 4.5 * deviation + 1e-12).all()


def test_the_largest_score_wins_without_temperature_and_the_first_of_equal_ones():
    scores = np.array([[1.0, 3.0, 3.0], [2.0, 1.0, 0.0]], np.float32)
    assert GREEDY.choose(scores, [[], []], 0).tolist() == [1, 0]
    assert Sampling(top_k=1, seed=9).choose(scores, [[], []], 4).tolist() == [1, 0]


def test_a_penalty_lowers_scores_of_either_sign():
    scores = np.array([[2.0, -1.0, 1.5, -0.8]], np.float32)
    sampling = Sampling(temperature=0.0, repetition_penalty=2.0)
    assert int(sampling.choose(scores, [[0]], 0)[0]) == 2
    assert int(sampling.choose(scores[:, [1, 3]], [[1, 1]], 0)[0]) == 0
    assert scores[0, 0] == 2.0, "the caller's scores stay"


def test_draws_depend_on_seed_row_and_step_alone():
    rng = np.random.default_rng(3)
    scores = rng.standard_normal((4, 50)).astype(np.float32)
    sampling = Sampling(seed=5)
    whole = [sampling.choose(scores, [[]] * 4, step).tolist() for step in range(6)]
    again = [sampling.choose(scores, [[]] * 4, step).tolist() for step in range(6)]
    first = [sampling.choose(scores[:1], [[]], step).tolist() for step in range(6)]
    assert whole == again
    assert [row[0] for row in whole] == [row[0] for row in first]
    other = [Sampling(seed=6).choose(scores, [[]] * 4, step).tolist() for step in range(6)]
    assert other != whole


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1.0}, "temperature is at least 0, got -1.0"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top_k is a whole number, got -1"),
        ({"top_p": 0.0}, "top_p is above 0 and at most 1, got 0.0"),
        ({"min_p": 1.5}, "min_p is between 0 and 1, got 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is above 0, got 0.0"),
    ],
)
def test_impossible_settings_are_refused_by_name(wrong, words):
    with pytest.raises(ArgumentError, match=words):
        Sampling(**wrong)
