"""State spaces on a GPU: odd sizes, both float types, and states that stay there."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.testing import assert_close
from tests.cpu.test_state_space import net_case, scan_case
from tests.pure.test_state_space import net_arrays


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "case",
    [
        (scan_case, (2, 9, 5, 4)),
        (scan_case, (1, 21, 70, 19)),
        (net_case, (2, 9, 2, 5)),
        (net_case, (1, 21, 1, 70)),
    ],
)
def test_odd_sizes_give_what_the_reference_gives(case, dtype):
    make, sizes = case
    graph, arrays = make(sizes, dtype)
    with darner.build_inference_session(graph, device="gpu") as session:
        plan = session.plan()
        found = list(session.run(arrays).values())
    forward, backward = (plan.spec(kernel).ops[0] for kernel in plan.kernels)
    name = "selective_scan" if make is scan_case else "gated_delta_net"
    assert forward.startswith(name)
    assert backward == f"{name}_backward"
    for a, wanted in zip(found, darner.run(graph, arrays, float64=True), strict=True):
        assert_close(a, wanted, np.dtype(dtype).name.replace("float", "f"), sizes[1] * sizes[3])


def test_tokens_of_a_session_are_the_sequence_at_once():
    arrays = net_arrays(1, 4, 2, 24)
    graph, whole = Graph(), Graph()
    leaves = [graph.input(n, (1, 1, *a.shape[2:]), a.dtype) for n, a in arrays.items()]
    graph.set_outputs([graph.gated_delta_net_carry(*leaves, graph.state("m", (1, 2, 24, 24)))])
    operands = [whole.input(n, a.shape, a.dtype) for n, a in arrays.items()]
    whole.set_outputs([whole.gated_delta_net(*operands)])
    with darner.build_inference_session(graph, device="gpu") as session:
        assert [old == new for old, new in session.plan().updates] == [True]
        rows = [
            session.run({name: array[:, t : t + 1] for name, array in arrays.items()})["output0"]
            for t in range(4)
        ]
    assert_close(np.concatenate(rows, 1), darner.run(whole, arrays)[0], "f32", 96)
