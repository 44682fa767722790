"""Element-wise kernels on a GPU: vectors, broadcasts, words that elements share, and results over operands."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.codegen.simt.families import template_of
from tests.conformance.devices import run_on
from tests.gpu import needs_gpu

pytestmark = needs_gpu

RNG = np.random.default_rng(0)


def check(make, **arrays):
    graph = darner.Graph()
    nodes = [graph.input(name, array.shape, array.dtype) for name, array in arrays.items()]
    made = make(graph, *nodes)
    graph.set_outputs(made if isinstance(made, list) else [made])
    found = run_on("gpu", graph, arrays)
    for one, other in zip(found, darner.run(graph, arrays, float64=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("shape", [(64, 128), (63, 127), (4096,), (4099,), (3, 5, 1024), (1,), ()])
def test_every_size_of_map_is_right(shape):
    x, y = (RNG.standard_normal(shape).astype(np.float32) for _ in range(2))
    check(lambda g, x, y: [x * y + 1.0, (x - y).tanh()], x=x, y=y)


def test_what_is_broadcast_along_rows_and_columns_is_found_at_its_place():
    x = RNG.standard_normal((48, 256)).astype(np.float32)
    row, column = x[:1] + 1, x[:, :1] + 2
    check(lambda g, x, r, c: x * r + c + x.exp(), x=x, r=row, c=column)


def test_an_operand_that_is_also_turned_is_not_read_as_a_vector():
    x = RNG.standard_normal((64, 64)).astype(np.float32)
    check(lambda g, x: x + x.transpose((1, 0)) * 2.0, x=x)
    check(lambda g, x: x.flip((1,)) - x, x=x)


@pytest.mark.parametrize("size", [4096, 4100, 4098, 4097, 7])
def test_results_of_one_two_and_four_bytes_stand_beside_each_other(size):
    x = RNG.standard_normal(size).astype(np.float32)
    check(
        lambda g, x: [x > 0.0, (x * 4.0).cast("i8"), (x * 4.0).cast("i32"), x.abs()],
        x=x,
    )
    graph = darner.Graph()
    node = graph.input("x", x.shape)
    graph.set_outputs([node.cast("f16"), node.cast("bf16"), node * 2.0])
    found = run_on("gpu", graph, {"x": x})
    for one, other in zip(found, darner.run(graph, {"x": x}), strict=True):
        np.testing.assert_array_equal(one.astype(np.float32), other.astype(np.float32))


def test_values_of_eight_bytes_are_their_own_units():
    x = RNG.standard_normal(5000)
    check(lambda g, x: [x * 2.0, x.cast("f32") + 1.0], x=x)


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((130, 150), (1, 0)),
        ((3, 70, 90), (0, 2, 1)),
        ((64, 5, 64), (2, 1, 0)),
        ((40, 33, 17), (1, 2, 0)),
    ],
)
def test_an_operand_is_turned_in_squares(shape, order):
    x = RNG.standard_normal(shape).astype(np.float32)
    bias = RNG.standard_normal(shape[order[-1]]).astype(np.float32)
    graph = darner.Graph()
    a, b = graph.input("x", shape), graph.input("b", bias.shape)
    graph.set_outputs([a.transpose(order) * 2.0 + b, a.transpose(order)[..., ::-1].flip((-1,))])
    plan = lower_for("gpu", graph)
    machine = opened().machine
    names = {template_of(spec, machine).name for spec in plan.specs.values()}
    assert "turned" in names
    found = run_on("gpu", graph, {"x": x, "b": bias})
    for one, other in zip(found, darner.run(graph, {"x": x, "b": bias}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
