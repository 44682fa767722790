"""Attention on a card's tensor cores, against the float64 reference: what the emulated device and PTX in Python cannot show."""

import numpy as np
import pytest

import darner
from tests.cuda.attentions import Case, assert_near
from tests.cuda.card import needs_card

pytestmark = needs_card
DEVICE = "cuda"

CAUSAL = {"causal": True}
CASES = [
    Case(9, 3, 512, 512, 64, batch=2, options=CAUSAL),
    Case(4, 4, 1000, 1000, 64, options=CAUSAL),
    Case(6, 2, 130, 130, 64, options=CAUSAL),
    Case(2, 2, 333, 777, 64),
    Case(2, 1, 777, 333, 64, options=CAUSAL),
    Case(4, 2, 500, 500, 80, dtype="f16", options=CAUSAL),
    Case(4, 2, 500, 500, 96, options={"causal": True, "window": 100}),
    Case(4, 1, 300, 300, 72, options={"window": 50, "layout": "bshd"}),
    Case(8, 2, 600, 600, 128, options=CAUSAL),
    Case(3, 3, 400, 400, 128, options={"layout": "bshd"}),
    Case(2, 2, 300, 300, 64, value_width=128, options=CAUSAL),
    Case(2, 1, 511, 511, 256, options=CAUSAL),
    Case(12, 1, 200, 200, 64, options=CAUSAL),
    Case(2, 2, 200, 200, 64, batch=3, options={"causal": True, "offset": True}),
    Case(2, 2, 200, 200, 64, mask=(1, 2, 200, 200), options={"softcap": 20.0}),
    Case(40, 40, 640, 640, 64, batch=2, options=CAUSAL),
]
FORWARD_ONLY = [
    Case(2, 2, 200, 200, 64, bias=(2, 200, 200)),
    Case(2, 2, 200, 200, 64, finish=True, options=CAUSAL),
]


TF32 = [
    Case(9, 3, 512, 512, 64, batch=2, dtype="tf32", options=CAUSAL),
    Case(2, 2, 333, 777, 80, dtype="tf32"),
    Case(4, 1, 300, 300, 128, dtype="tf32", options={"window": 50, "layout": "bshd"}),
    Case(2, 1, 211, 211, 256, dtype="tf32", options=CAUSAL),
    Case(2, 1, 777, 333, 36, dtype="tf32", mask=(1, 2, 1, 333), options=CAUSAL),
]


def with_gradient(case):
    return Case(**{**vars(case), "backward": True})


def with_kept(case):
    """The result and its gradients, which read what it keeps."""
    return Case(**{**vars(case), "kept": True})


def results(case):
    """The outputs of a session on the card, twice."""
    arrays = case.arrays()
    with darner.build(case.graph(), device=DEVICE, mode="infer", cache=None) as session:
        found = [[np.array(x) for x in session.run(arrays).values()] for _ in range(2)]
    return found, arrays


@pytest.mark.parametrize(
    "case",
    [
        *(with_kept(case) for case in (*CASES, *TF32)),
        *(*TF32, *CASES, *FORWARD_ONLY),
        *(with_gradient(case) for case in (*CASES, *TF32)),
    ],
    ids=str,
)
def test_attention_is_the_reference_and_the_same_bits_each_time(case):
    (first, second), arrays = results(case)
    assert_near(case, first, arrays)
    assert [x.tobytes() for x in first] == [x.tobytes() for x in second]
