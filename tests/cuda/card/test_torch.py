"""A card that darner and PyTorch share in one process: tensors go to and fro where they lie."""

import numpy as np
import pytest

import darner
from darner import Graph
from tests.cuda.card import needs_card

pytestmark = needs_card


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    return found


def session_of(shape=(64, 128)):
    g = Graph("shared")
    x = g.input("x", shape)
    g.set_outputs([x.mul(2.0, label="twice")])
    return darner.build(g, mode="infer", device="cuda", cache=None)


def test_tensors_of_torch_are_inputs_and_outputs_are_tensors_of_torch(torch):
    with session_of() as session:
        x = torch.randn(64, 128, device="cuda")
        for _ in range(4):
            # Work that torch has only started is waited for.
            busy = torch.randn(2048, 2048, device="cuda")
            for _ in range(10):
                busy = busy @ busy * 1e-3
            x = x + 0.0 * busy[:64, :128].nan_to_num()
            found = session.run({"x": x})["twice"]
            np.testing.assert_array_equal(found, 2 * x.cpu().numpy())
            there = torch.from_dlpack(session.output_on_device("twice"))
            assert there.is_cuda
            assert torch.equal(there, 2 * x)
            x = there * 0.5


def test_a_tensor_outlives_the_session_it_came_from(torch):
    with session_of() as session:
        x = torch.ones(64, 128, device="cuda")
        session.run({"x": x})
        there = torch.from_dlpack(session.output_on_device("twice"))
    del session
    assert float(there.sum()) == 2 * 64 * 128


def test_what_is_not_contiguous_is_refused(torch):
    with session_of() as session:
        x = torch.ones(128, 64, device="cuda").t()
        with pytest.raises(darner.ArgumentError, match=r"not contiguous; write \.contiguous\(\)"):
            session.run({"x": x})
