"""State spaces by native code: against mambapy and transformers, odd sizes, views, and threads."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import darner
from darner import Graph
from darner.lower.roles import whole_ops
from darner.testing import assert_close
from tests.cpu.running import compiled, run_program
from tests.cpu.test_targets import WIDTHS, machine_of
from tests.pure.test_state_space import graph_of, net_arrays, scan_arrays

RNG = np.random.default_rng(11)
SCANS = [(2, 9, 5, 4), (1, 70, 33, 17), (1, 3, 1, 40), (3, 20, 300, 8), (1, 33, 16, 16)]
NETS = [
    (2, 9, 2, 4),
    (1, 70, 1, 33),
    (1, 1, 2, 40),
    (1, 35, 1, 80),
    (2, 33, 3, 16),
    (1, 40, 1, 100),
]


def run(graph, arrays, threads=2):
    """The outputs, each computed by a kernel of its own op."""
    with darner.build_inference_session(graph, device="cpu", threads=threads) as session:
        plan = session.plan()
        return list(session.run(arrays).values()), [plan.spec(k).ops for k in plan.kernels]


def both_ways(arrays, forward, backward, cotangents):
    graph, leaves = graph_of({**arrays, **cotangents})
    operands = leaves[: len(arrays)]
    made = forward(graph, *operands)
    outputs = list(made) if isinstance(made, tuple) else [made]
    graph.set_outputs([*outputs, *backward(graph, *leaves)])
    return graph, {**arrays, **cotangents}


def scan_case(sizes, dtype=np.float32):
    arrays = {name: a.astype(dtype) for name, a in scan_arrays(*sizes).items()}
    dy = {"dy": RNG.normal(size=arrays["x"].shape).astype(dtype)}
    return both_ways(
        arrays, lambda g, *x: g.selective_scan(*x), lambda g, *x: g.selective_scan_backward(*x), dy
    )


def net_case(sizes, dtype=np.float32):
    arrays = {name: a.astype(dtype) for name, a in net_arrays(*sizes).items()}
    batch, _, heads, width = sizes
    state, dstate = RNG.normal(size=(2, batch, heads, width, width)).astype(dtype)
    arrays["state"] = state
    given = {"dy": RNG.normal(size=arrays["q"].shape).astype(dtype), "dstate": dstate}

    def backward(graph, q, k, v, g, beta, state, dy, dstate):
        return graph.gated_delta_net_backward(q, k, v, g, beta, dy, state, dstate)

    return both_ways(arrays, lambda g, *x: g.gated_delta_net_final(*x), backward, given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "case", [(scan_case, sizes) for sizes in SCANS] + [(net_case, sizes) for sizes in NETS]
)
def test_odd_sizes_give_what_the_reference_gives_with_any_number_of_threads(case, dtype):
    make, sizes = case
    graph, arrays = make(sizes, dtype)
    found, ops = run(graph, arrays, threads=1)
    again, _ = run(graph, arrays, threads=3)
    assert len(ops) == 2
    for a, b, wanted in zip(found, again, darner.run(graph, arrays, float64=True), strict=True):
        np.testing.assert_array_equal(a, b)
        assert_close(a, wanted, np.dtype(dtype).name.replace("float", "f"), sizes[1] * sizes[3])


def test_heads_before_the_sequence_are_read_where_they_lie():
    arrays = net_arrays(2, 7, 3, 8)
    graph = Graph()
    leaves = []
    for name, array in arrays.items():
        swapped = np.swapaxes(array, 1, 2)
        leaf = graph.input(name, swapped.shape, array.dtype)
        leaves.append(leaf.transpose((0, 2, 1, *range(3, leaf.rank))))
    graph.set_outputs([graph.gated_delta_net(*leaves)])
    given = {name: np.ascontiguousarray(np.swapaxes(a, 1, 2)) for name, a in arrays.items()}
    (found,), ops = run(graph, given)
    # The gates alone, a number for each row, are copied.
    assert [names[-1] for names in ops] == ["transpose", "transpose", "gated_delta_net"]
    assert_close(found, darner.run(graph, given, float64=True)[0], "f32", 56)


def test_tokens_of_a_session_are_the_sequence_at_once():
    arrays = net_arrays(1, 6, 2, 24)
    graph = Graph()
    leaves = [graph.input(n, (1, 1, *a.shape[2:]), a.dtype) for n, a in arrays.items()]
    graph.set_outputs([graph.gated_delta_net_carry(*leaves, graph.state("m", (1, 2, 24, 24)))])
    whole, operands = graph_of(arrays)
    whole.set_outputs([whole.gated_delta_net(*operands)])
    with darner.build_inference_session(graph, device="cpu") as session:
        rows = [
            session.run({name: array[:, t : t + 1] for name, array in arrays.items()})["output0"]
            for t in range(6)
        ]
    assert_close(np.concatenate(rows, 1), run(whole, arrays)[0][0], "f32", 144)


def test_a_gate_of_minus_infinity_forgets_in_gradients_too():
    graph, arrays = net_case((1, 40, 2, 8))
    arrays["g"][:, 20] = -np.inf
    found, _ = run(graph, arrays)
    for a, wanted in zip(found, darner.run(graph, arrays, float64=True), strict=True):
        assert np.isfinite(a).all()
        assert_close(a, wanted, "f32", 320)


def compared(found, answer, leaves, cotangent):
    gradients = torch.autograd.grad(answer, leaves, torch.from_numpy(cotangent))
    for a, b in zip(found, [answer, *gradients], strict=True):
        assert_close(a, b.numpy(force=True), str(a.dtype).replace("float", "f"), 4096)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scans_are_those_of_mambapy(dtype):
    mamba = pytest.importorskip("mambapy.mamba", reason="mambapy is not installed")
    graph, arrays = scan_case((2, 37, 24, 5), dtype)
    leaves = [torch.from_numpy(a).requires_grad_() for n, a in arrays.items() if n != "dy"]
    block = SimpleNamespace(config=SimpleNamespace(d_inner=24, d_state=5))
    skip = torch.zeros(24, dtype=leaves[0].dtype)
    answer = mamba.MambaBlock.selective_scan_seq(block, *leaves, skip)
    compared(run(graph, arrays)[0], answer, leaves, arrays["dy"])


def test_the_rule_is_that_of_transformers():
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    arrays = net_arrays(2, 37, 3, 20)
    state = RNG.normal(size=(2, 3, 20, 20)).astype(np.float32)
    dy = RNG.normal(size=arrays["q"].shape).astype(np.float32)
    graph, leaves = graph_of({**arrays, "state": state, "dy": dy})
    o, final = graph.gated_delta_net_carry(*leaves[:6], return_state=True)
    gradients = graph.gated_delta_net_backward(*leaves[:5], leaves[6], leaves[5])
    graph.set_outputs([final, o, *gradients])
    (found, *rest), _ = run(graph, {**arrays, "state": state, "dy": dy})
    given = [torch.from_numpy(a).requires_grad_() for a in (*arrays.values(), state)]
    q, k, v, g, beta, start = given
    answer, last = qwen.torch_recurrent_gated_delta_rule(
        q, k, v, g=g, beta=beta, initial_state=start, output_final_state=True
    )
    assert_close(found, last.numpy(force=True), "f32", 740)
    compared(rest, answer, given, dy)


@pytest.mark.slow
@pytest.mark.parametrize("vector_bytes", WIDTHS)
@pytest.mark.parametrize("case", [(scan_case, (2, 19, 21, 11)), (net_case, (1, 40, 2, 37))])
def test_narrower_vectors_give_the_same(case, vector_bytes):
    make, sizes = case
    graph, arrays = make(sizes)
    machine = machine_of(vector_bytes)
    program = compiled(graph, whole=whole_ops(), machine=machine, threads=2)
    try:
        found = run_program(program, arrays)
    finally:
        program.close()
    for a, wanted in zip(found, darner.run(graph, arrays, float64=True), strict=True):
        assert_close(a, wanted, "f32", sizes[1] * sizes[3])
