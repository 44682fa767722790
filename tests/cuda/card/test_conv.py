"""Convolutions on a card against float64: by every form, with the same bits twice."""

import numpy as np
import pytest

import darner
from tests.cuda.card import needs_card
from tests.cuda.test_tensor_contract import assert_near, nearest_tf32
from tests.cuda.test_tensor_conv import GEOMETRIES, oracle, three

pytestmark = needs_card

LARGER = {
    "channels of whole boxes": ((3, 64, 14, 14), (128, 64, 3, 3), {"padding": 1}),
    "channels of whole boxes, strided": (
        (2, 128, 15, 15),
        (64, 128, 3, 3),
        {"padding": 1, "stride": 2},
    ),
    "channels of whole boxes, dilated": (
        (2, 64, 12, 12),
        (72, 64, 3, 3),
        {"padding": 2, "dilation": 2},
    ),
    "channels of whole boxes, uneven": (
        (2, 64, 9, 14),
        (64, 64, 3, 2),
        {"padding": ((1, 1), (0, 1)), "stride": (1, 2)},
    ),
}


def check(x, w, attrs, kind):
    graph = three(x, w, kind, attrs)
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal([int(n) for n in node.shape]).astype(node.dtype.numpy)
        for name, node in graph.inputs.items()
    }
    session = darner.build(graph, device="cuda", mode="infer", cache=None)
    found, again = (list(session.run(arrays).values()) for _ in range(2))
    given = {n: nearest_tf32(v) for n, v in arrays.items()} if kind == "tf32" else arrays
    for own, same, wanted in zip(found, again, oracle(x, w, attrs, given), strict=True):
        np.testing.assert_array_equal(own, same)
        assert_near(own, wanted, 3e-6)


@pytest.mark.parametrize("kind", ["bf16", "f16", "tf32", "f32"])
@pytest.mark.parametrize("name", [*GEOMETRIES, *LARGER])
def test_every_geometry(name, kind):
    check(*{**GEOMETRIES, **LARGER}[name], kind)
