"""Derivatives of every op, over every sample, in the middle of a graph and with random cotangents.

In float64: vjp and jvp against central differences, against each other (they are adjoint), and the same of the
derivatives themselves. In f32 and bf16: vjp against PyTorch's autograd over the rows of ``rows_*.py``.
"""

import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import darner
from darner.ops.samples import Spec
from darner.testing import make_case, tolerance
from darner.transforms.reverse import NO_GRADIENT
from tests import conformance
from tests.conformance.differentiable_rows import row_gradients
from tests.conformance.test_reference import BUILTIN

STEP = 1e-5
"""Half the distance of a central difference, which then errs by about 1e-10 of the third derivative."""

UNDEFINED = {("var", 8): "one element less one: 0 / 0"}
"""Samples whose results are NaN by definition: nothing can be said of their derivatives."""

AT_A_KINK = {("max_pool_backward", 7): "every element of a window is equal"}
"""Samples where the derivative jumps: a difference across the jump means nothing."""

STRAIGHT_THROUGH = {"fake_quantize", "reduce_precision"}
"""Ops whose derivative is, on purpose, not that of their steps; PyTorch says what it is."""

READS_HALF = {"cholesky"}
"""Ops of symmetric matrices: they read one triangle, so matrices move and gradients compare as symmetric ones."""


def specs_of(value):
    """The tensors of a sample in the order in which ``make_case`` names them."""
    if isinstance(value, list | tuple):
        return [spec for item in value for spec in specs_of(item)]
    return [value] if isinstance(value, Spec) else []


def moving_operands(op, index):
    """The names of the float operands; whole numbers in a float type are labels, and stay."""
    sample = op.samples[index]
    specs = specs_of([*sample.args, *sample.kwargs.values()])
    return tuple(f"arg{i}" for i, spec in enumerate(specs) if spec.kind in ("float", "definite"))


@dataclass(frozen=True)
class Probe:
    """An op between two element-wise nodes, and values for its leaves."""

    graph: darner.Graph
    arrays: dict
    moving: tuple
    """The names of the inputs that have a derivative."""
    symmetric: bool

    def random(self, names, salt):
        """A direction in which some inputs move."""
        rng = np.random.default_rng(zlib.crc32(f"{self.graph.name}/{salt}".encode()))
        found = {name: rng.uniform(-1, 1, np.shape(self.arrays[name])) for name in names}
        if self.symmetric:
            found = {name: value + value.swapaxes(-1, -2) for name, value in found.items()}
        return found


def placed_mid_graph(case, moving, *, symmetric=False):
    """The case's op with halved operands and a halved result: factors that no float type rounds."""
    graph = darner.Graph(case.graph.name)
    mapped = {}
    arrays = dict(case.arrays)
    for node in case.graph.nodes:
        operands = [mapped[i] for i in node.inputs]
        placed = graph.insert(node.op, operands, node.slots, node.attrs)
        if node.name in moving:
            arrays[node.name] = (2 * arrays[node.name]).astype(node.dtype.numpy)
            placed = placed * 0.5
        mapped[node.id] = placed
    results = [mapped[node.id] for node in case.graph.outputs]
    graph.set_outputs([node * 0.5 if node.dtype.is_float else node for node in results])
    return Probe(graph, arrays, moving, symmetric)


def probe_of(op, index):
    case = make_case(op, index, "f64")
    case.graph = darner.in_float64(case.graph)
    moving = moving_operands(op, index)
    return placed_mid_graph(case, moving, symmetric=op.name in READS_HALF)


def calls(wanted):
    return [
        (op, index)
        for op in conformance.ops_to_differentiate(BUILTIN)
        for index in conformance.sample_indices(op)
        if moving_operands(op, index) and wanted(op, index)
    ]


@cache
def is_differentiable(op, index):
    """Whether a sample has a float result that follows its operands."""
    if NO_GRADIENT in op.traits or (op.name, index) in UNDEFINED:
        return False
    return any(node.dtype.is_float for node in make_case(op, index).graph.outputs)


def is_complex(op, index):
    """Whether a sample has a complex result: tests/pure/test_complex.py has the derivatives of such."""
    return any(node.dtype.kind == "complex" for node in make_case(op, index).graph.outputs)


def has_slopes(op, index):
    """Whether differences say what a derivative must be."""
    return (op.name, index) not in AT_A_KINK and op.name not in STRAIGHT_THROUGH


CALLS = calls(is_differentiable)
BLOCKED = calls(
    lambda op, index: (
        not (is_differentiable(op, index) or is_complex(op, index))
        and (op.name, index) not in UNDEFINED
    )
)


def cotangents(graph, salt=0):
    """Random values for the inputs that a vjp added."""
    rng = np.random.default_rng(zlib.crc32(f"{graph.name}/cotangent/{salt}".encode()))
    return {
        name: rng.uniform(-1, 1, node.shape)
        for name, node in graph.inputs.items()
        if "_output" in name
    }


def tangents(values):
    return {f"tangent_{name}": value for name, value in values.items()}


def floats_of(graph, arrays):
    """The float outputs of a graph."""
    found = darner.run(graph, arrays)
    return [a for node, a in zip(graph.outputs, found, strict=True) if node.dtype.is_float]


def difference(graph, arrays, direction):
    """How the float outputs change as inputs move along a direction."""
    after, before = (
        floats_of(graph, {**arrays, **{k: arrays[k] + s * STEP * v for k, v in direction.items()}})
        for s in (1, -1)
    )
    # An infinity, or the NaN of an empty mean, does not move.
    still = [(a == b) | np.isnan(a) for a, b in zip(after, before, strict=True)]
    with np.errstate(invalid="ignore"):
        moved = [(a - b) / (2 * STEP) for a, b in zip(after, before, strict=True)]
    return [np.where(mask, 0.0, slope) for mask, slope in zip(still, moved, strict=True)]


def assert_near(found, wanted, values):
    """Agreement to what central differences of ``values`` can tell."""
    largest = max((np.abs(v[np.isfinite(v)]).max(initial=0.0) for v in values), default=0.0)
    for one, other in zip(found, wanted, strict=True):
        scale = np.abs(other).max() if other.size else 0.0
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * scale + 1e-9 * largest)


def inner_product(left, right):
    """A sum of products, and how large its terms are."""
    terms = [a * b for a, b in zip(left, right, strict=True)]
    return sum(np.sum(t) for t in terms), sum(np.sum(np.abs(t)) for t in terms)


def assert_adjoint(moved, weights, directions, gradients):
    one, size = inner_product(moved, weights)
    other, other_size = inner_product(directions, gradients)
    assert np.isfinite(one)
    assert abs(one - other) <= 1e-10 * max(size, other_size) + 1e-15


def assert_directional(gradients, weights, probe):
    """Gradients against differences, one operand after another."""
    values = floats_of(probe.graph, probe.arrays)
    noise = 1e-9 * sum(np.abs(v[np.isfinite(v)]).sum() for v in values)
    for name, gradient in zip(probe.moving, gradients, strict=True):
        direction = probe.random([name], name)
        slope = difference(probe.graph, probe.arrays, direction)
        wanted, size = inner_product(slope, weights.values())
        found = np.sum(gradient * direction[name])
        assert abs(found - wanted) <= 1e-6 * size + noise, f"the vjp by {name}"


def constants_of(graph):
    return {node.attrs["values"] for node in graph.nodes if node.op.name == "constant"}


def assert_lean(graph, original):
    """No node is idle, and no array of ones or zeros is stored: a number that is broadcast does."""
    for node in graph.nodes:
        used = graph.use_count(node) or graph.is_output(node) or node.name is not None
        assert used, f"nothing reads {node}"
    for constant in constants_of(graph) - constants_of(darner.expand(original)):
        values = constant.array
        assert values.size == 1 or np.any(values != values.flat[0]), "one number, stored many times"


@conformance.per_op(CALLS)
def test_vjp_and_jvp_agree_with_differences_and_each_other(op, index):
    probe = probe_of(op, index)
    count = len(probe.graph.outputs)
    forward = darner.jvp(probe.graph, probe.moving).verify()
    reverse = darner.vjp(probe.graph, probe.moving).verify()
    assert_lean(forward, probe.graph)
    assert_lean(reverse, probe.graph)
    direction, weights = probe.random(probe.moving, "direction"), cotangents(reverse)
    moved = darner.run(forward, {**probe.arrays, **tangents(direction)})[count:]
    gradients = darner.run(reverse, {**probe.arrays, **weights})[count:]
    assert_adjoint(moved, weights.values(), direction.values(), gradients)
    if has_slopes(op, index):
        assert_directional(gradients, weights, probe)
        slope = difference(probe.graph, probe.arrays, direction)
        assert_near(moved, slope, floats_of(probe.graph, probe.arrays))


@conformance.per_op(CALLS)
def test_second_derivatives_agree_with_differences_and_each_other(op, index):
    probe = probe_of(op, index)
    graph = darner.vjp(probe.graph, probe.moving)
    graph.set_outputs(graph.outputs[len(probe.graph.outputs) :])
    given = {**probe.arrays, **cotangents(graph)}
    count = len(graph.outputs)
    forward = darner.jvp(graph, probe.moving).verify()
    reverse = darner.vjp(graph, probe.moving).verify()
    direction = probe.random(probe.moving, "second")
    weights = {k: v for k, v in cotangents(reverse, 2).items() if k not in given}
    moved = darner.run(forward, {**given, **tangents(direction)})[count:]
    gradients = darner.run(reverse, {**given, **weights})[count:]
    assert_adjoint(moved, weights.values(), direction.values(), gradients)
    if has_slopes(op, index):
        assert_near(moved, difference(graph, given, direction), floats_of(graph, given))


# --------------------------------------------------------------------------- nothing passes


@conformance.per_op(BLOCKED)
def test_ops_without_a_derivative_pass_nothing_or_say_so(op, index):
    probe = probe_of(op, index)
    graph = probe.graph.copy()
    graph.set_outputs([node.cast("f64") for node in graph.outputs])
    if any(node.dtype.is_float for node in probe.graph.outputs):
        pulled_back = darner.vjp(graph, probe.moving)
        found = darner.run(pulled_back, {**probe.arrays, **cotangents(pulled_back)})
        assert not any(np.any(gradient) for gradient in found[-len(probe.moving) :])
    else:
        with pytest.raises(darner.ArgumentError, match="which has no derivative") as caught:
            darner.vjp(graph, probe.moving)
        assert caught.value.op == op.name
        assert f"through {op.name}, " in str(caught.value)
        assert caught.value.source is not None


# --------------------------------------------------------------------------- PyTorch


def gradient_tolerance(dtype, length, gradient, cotangents):
    """How far a gradient may be off.

    It has the roundings of a result of its size. Besides, the terms it is made of may be as large as the cotangents
    and cancel; they are computed in f32 at least.
    """
    largest = max((np.abs(value).max(initial=0.0) for value in cotangents), default=0.0)
    size = np.abs(gradient).max(initial=0.0)
    return tolerance(dtype, length) * size + tolerance("f32", length) * largest


ROUNDS_AWAY = {
    ("sigmoid", 7, "bf16"): "the result rounds to 1, and y * (1 - y) is lost",
    ("softmax", 1, "bf16"): "the same of the largest probability",
    ("hard_sigmoid", 4, "bf16"): "an operand rounds to 3, where the slope jumps",
}
"""Samples whose derivative is gone once their values are rounded."""

TYPED_CALLS = [
    (op, index, dtype)
    for dtype in conformance.element_types("f32", "bf16")
    for op, index in CALLS
    if (op.name, index, dtype) not in ROUNDS_AWAY
]


@conformance.per_op(TYPED_CALLS)
def test_vjp_agrees_with_autograd(op, index, dtype):
    case = make_case(op, index, dtype)
    probe = placed_mid_graph(case, moving_operands(op, index))
    graph = darner.vjp(probe.graph, probe.moving)
    weights = {
        name: value.astype(graph.inputs[name].dtype.numpy)
        for name, value in cotangents(graph).items()
    }
    found = darner.run(graph, {**probe.arrays, **weights})[len(probe.graph.outputs) :]
    wide = [value.astype(np.float64) for value in weights.values()]
    wanted = row_gradients(op, case, probe.moving, wide)
    for ours, theirs in zip(found, wanted, strict=True):
        ours, theirs = ours.astype(np.float64), theirs / 4
        if op.name in READS_HALF:
            ours, theirs = (g + g.swapaxes(-1, -2) for g in (ours, theirs))
        limit = gradient_tolerance(dtype, case.length, theirs, wide)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit)
