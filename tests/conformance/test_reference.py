"""Every op's reference against PyTorch (or NumPy and SciPy), over every sample.

The rows stand in ``rows_*.py``: for each op, what someone who knows computes. Operands come as float64
copies of the values that darner gets, so the comparison holds for every element type, to its rounding.
"""

import importlib
import pkgutil

import ml_dtypes
import numpy as np
import torch

import darner
from darner.graph import dtypes
from darner.graph.op import OPS
from darner.ops.samples import Spec
from darner.testing import assert_close, make_case
from tests import conformance

UNTESTED_HERE = {"input", "parameter", "state", "project"}  # leaves: tests/pure/test_leaves.py


def load_rows():
    rows = {}
    for module in pkgutil.iter_modules(conformance.__path__):
        if module.name.startswith("rows_"):
            found = importlib.import_module(f"tests.conformance.{module.name}").ROWS
            assert not rows.keys() & found.keys()
            rows.update(found)
    return rows


ROWS = load_rows()
BUILTIN = [op for op in OPS.values() if op.builtin]
CALLS = [(op, i) for op in BUILTIN for i in conformance.sample_indices(op)]


def has_float_operand(value):
    if isinstance(value, list | tuple):
        return any(map(has_float_operand, value))
    return isinstance(value, Spec) and value.kind in ("float", "definite") and value.dtype is None


TYPED_CALLS = [
    (op, i, dtype)
    for op in BUILTIN
    for i in conformance.sample_indices(op)
    for dtype in conformance.element_types("f64", "f32", "f16", "bf16")
    if dtype == "f32" or has_float_operand([*op.samples[i].args, *op.samples[i].kwargs.values()])
]


def to_torch(value):
    if isinstance(value, np.ndarray):
        if value.dtype == ml_dtypes.bfloat16 or value.dtype.kind == "f":
            return torch.from_numpy(np.array(value, np.float64, order="C"))
        if value.dtype == np.uint32:
            return torch.from_numpy(value.astype(np.int64))
        return torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, list):
        return [to_torch(item) for item in value]
    return value


def to_numpy(value):
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def expected_of(op, case):
    answer = ROWS[op.name](
        *map(to_torch, case.args), **{k: to_torch(v) for k, v in case.kwargs.items()}
    )
    answers = answer if isinstance(answer, tuple | list) else [answer]
    return [to_numpy(item) for item in answers]


def test_every_op_has_a_row_and_samples():
    missing = [op.name for op in BUILTIN if op.name not in ROWS and op.name not in UNTESTED_HERE]
    assert missing == []
    bare = [op.name for op in BUILTIN if not op.samples and op.name not in UNTESTED_HERE]
    assert bare == []
    assert not ROWS.keys() - OPS.keys()


@conformance.per_op(TYPED_CALLS)
def test_reference_agrees_with_torch(op, index, dtype):
    case = make_case(op, index, dtype)
    floats = [a for a in case.arrays.values() if dtypes.dtype(a.dtype).is_float]
    results = case.run()
    for node, found, wanted in zip(case.graph.outputs, results, expected_of(op, case), strict=True):
        assert found.dtype == node.dtype.numpy
        # The narrowest type on the way bounds the precision.
        narrow = dtype if node.dtype.is_float and floats else node.dtype
        if node.dtype.is_half and not dtypes.dtype(narrow).is_half:
            narrow = node.dtype
        assert_close(found, wanted, narrow, case.length)


@conformance.per_op(CALLS)
def test_layout_of_operands_does_not_matter(op, index):
    plain, strided = make_case(op, index), make_case(op, index, contiguous=False)
    for a, b in zip(plain.run(), strided.run(), strict=True):
        np.testing.assert_array_equal(a, b)


@conformance.per_op(CALLS)
def test_float64_run_agrees_with_own_types(op, index):
    case = make_case(op, index, "f32")
    for node, found, wanted in zip(
        case.graph.outputs, case.run(), case.run(float64=True), strict=True
    ):
        narrow = node.dtype if node.dtype.is_half else "f32"
        assert_close(found, wanted, narrow if node.dtype.is_float else node.dtype, case.length)


@conformance.per_op(CALLS)
def test_calls_verify_print_and_round_trip(op, index):
    graph = make_case(op, index).graph
    graph.verify()
    for again in (
        darner.Graph.from_text(graph.to_text()),
        darner.Graph.from_json(graph.to_json()),
    ):
        assert again == graph
        assert again.to_text() == graph.to_text()
    again = darner.Graph.from_json(graph.to_json())
    assert again.to_json() == graph.to_json()


@conformance.per_op([call for call in CALLS if call[0].is_composite])
def test_composites_expand_to_primitives_with_the_same_result(op, index):
    case = make_case(op, index, "f64")
    expanded = darner.expand(case.graph).verify()
    assert not any(node.op.is_composite for node in expanded.nodes)
    for a, b in zip(darner.run(expanded, case.arrays), case.run(), strict=True):
        np.testing.assert_array_equal(a, b)
