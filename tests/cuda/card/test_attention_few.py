"""Attention of few queries over many keys on a card, in clusters and in parts, against float64; the same bits twice."""

import numpy as np
import pytest

import darner
from darner.backends.cuda import kernels
from darner.backends.cuda.attention.few import few_cuts, write_few
from darner.backends.cuda.attention.problem import tensor_attention
from tests.cuda.attentions import assert_near
from tests.cuda.card import needs_card
from tests.cuda.test_attention_few import CASES, decoding, placed

pytestmark = needs_card
LONG = [
    decoding(32, 4, 1, 8192, 64),
    decoding(9, 3, 1, 512, 64, batch=2),
    decoding(16, 2, 2, 4096, 128),
    decoding(4, 2, 1, 1000, 256, dtype="f16"),
    decoding(32, 4, 1, 32768, 64),
    decoding(8, 8, 2, 300, 80, options={"window": 100}),
]


@pytest.mark.parametrize("case", [*(case for case, _ in CASES), *LONG], ids=str)
def test_result_is_the_reference(case, monkeypatch):
    arrays = placed(case.arrays(), case.keys)
    common, taken = kernels.written, []
    for number in range(3):

        def written(spec, machine, number=number):
            problem = tensor_attention(spec, few=True) if spec.kind == "attention" else None
            if problem is None:
                return common(spec, machine)
            ways = few_cuts(problem, machine)
            taken.append(ways[number % len(ways)])
            return write_few(spec, machine, problem, taken[-1])

        monkeypatch.setattr(kernels, "written", written)
        with darner.build(case.graph(), device="cuda", mode="infer", cache=None) as session:
            found = [list(session.run(arrays).values()) for _ in range(2)]
        for first, second in zip(*found, strict=True):
            np.testing.assert_array_equal(first, second)
        assert_near(case, found[0], arrays)
    assert taken
