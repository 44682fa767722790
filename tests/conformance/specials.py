"""Element-wise ops at special values: zeros of both signs, infinities, NaN, the limits of a type.

Denormal results count as zeros: a step computes without them.
"""

import numpy as np

from darner import Graph
from darner.graph import dtypes
from darner.graph.errors import DarnerError
from darner.graph.op import OPS

LARGEST = {"f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4028235e38, "f64": 1.7976931348623157e308}
SMALL = {"f16": 2.0**-14, "bf16": 1e-18, "f32": 1e-18, "f64": 1e-150}
TINY = {"f16": 0.0, "bf16": 1.2e-38, "f32": 1.2e-38, "f64": 2.3e-308}
CLOSE = {"f16": 2e-2, "bf16": 2e-2, "f32": 1e-4, "f64": 1e-12}


def special_values(kind):
    """Those of an element type."""
    dtype = dtypes.dtype(kind)
    if kind == "bool":
        return np.array([False, True])
    if dtype.is_int:
        low, high = dtype.limits
        near = [low, low + 1, -3, -2, -1] if dtype.signed else []
        return np.array([*near, 0, 1, 2, 3, 7, high - 1, high], dtype.numpy)
    positive = [0.0, SMALL[kind], 1e-3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, LARGEST[kind], np.inf]
    return np.array([*positive, *(-value for value in positive), np.nan]).astype(dtype.numpy)


POWERS = (0.0, 1.0, 2.0, 3.0, 4.0, 0.5, 1.5, -0.5, -1.0, -2.0)
BUILT = {
    "2 ** x": lambda x, a, b: 2.0**x,
    "a * b": lambda x, a, b: a * b,
    "x / 2": lambda x, a, b: x / 2.0,
    "1 / x": lambda x, a, b: 1.0 / x,
    "x * -1": lambda x, a, b: x * -1.0,
    "x - x": lambda x, a, b: x - x,
    "x / x": lambda x, a, b: x / x,
    "maximum with 0": lambda x, a, b: x.maximum(0.0),
    "maximum with -0": lambda x, a, b: x.maximum(-0.0),
    "minimum with 0": lambda x, a, b: x.minimum(0.0),
    "minimum with -0": lambda x, a, b: x.minimum(-0.0),
    "clip from 0": lambda x, a, b: x.clip(0.0, 1.0),
    "clip to -0": lambda x, a, b: x.clip(-1.0, -0.0),
    "clip": lambda x, a, b: x.clip(-1.0, 1.0),
    "minimum of maximum": lambda x, a, b: x.maximum(-1.0).minimum(1.0),
    "maximum of minimum": lambda x, a, b: x.minimum(1.0).maximum(-1.0),
    "maximum with itself": lambda x, a, b: x.maximum(x),
    "relu of relu": lambda x, a, b: x.relu().relu(),
    "relu of a negative": lambda x, a, b: (-x).relu(),
    "maximum of negatives": lambda x, a, b: (-a).maximum(-b),
    "negative maximum": lambda x, a, b: -a.maximum(b),
    "where a is greater": lambda x, a, b: (a > b).where(a, b),
    "where a is less": lambda x, a, b: (a < b).where(a, b),
    "where it is not 0": lambda x, a, b: (x != 0.0).where(x, 1.0),
    "where it is negative": lambda x, a, b: (x >= 0.0).where(x, -x),
    "where it is NaN": lambda x, a, b: x.is_nan().where(0.0, x),
    "not above": lambda x, a, b: ~(a > b),
    "abs of a negative": lambda x, a, b: (-x).abs(),
    "sign times size": lambda x, a, b: x.sign() * x.abs(),
    "product of negatives": lambda x, a, b: (-a) * (-b),
    "difference with a negative": lambda x, a, b: a - (-b),
    "recip of sqrt": lambda x, a, b: x.sqrt().recip(),
    "1 / sqrt": lambda x, a, b: 1.0 / x.sqrt(),
    "sigmoid, written out": lambda x, a, b: 1.0 / (1.0 + (-x).exp()),
    "softsign, written out": lambda x, a, b: x / (1.0 + x.abs()),
    "leaky relu by a maximum": lambda x, a, b: x.maximum(x * 0.1),
    **{f"x ** {power}": lambda x, a, b, power=power: x**power for power in POWERS},
}
"""What rules rewrite, where they keep every special value."""


def special_graph(kind):
    """(graph, values of its inputs, names of its outputs): every element-wise op at every special value, or pair of them."""
    g = Graph()
    values = special_values(kind)
    pairs = [side.reshape(-1) for side in np.meshgrid(values, values, indexing="ij")]
    x = g.input("x", values.shape, kind)
    a, b = (g.input(name, pairs[0].shape, kind) for name in "ab")
    made = {}
    for op in OPS.values():
        count = len(op.operands)
        # Integers have no powers of negative exponents.
        skipped = op.name == "pow" and not dtypes.dtype(kind).is_float
        if "elementwise" not in op.traits or count > 2 or skipped:
            continue
        try:
            made[op.name] = op(x) if count == 1 else op(a, b)
        except DarnerError:
            continue  # not an op of this element type, or one that needs more
    if dtypes.dtype(kind).is_float:
        made |= {name: build(x, a, b) for name, build in BUILT.items()}
    g.set_outputs(list(made.values()))
    return g, {"x": values, "a": pairs[0], "b": pairs[1]}, list(made)


def unlike(found, wanted, kind):
    """Where two results differ: in NaN, infinities, the sign of a zero, or by more than rounding."""
    if found.dtype.kind in "biu":
        return found != wanted
    if found.dtype.kind == "c":
        return unlike(found.real, wanted.real, kind) | unlike(found.imag, wanted.imag, kind)
    kind = dtypes.dtype(found.dtype).name
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    one, other = (np.where(np.abs(v) < TINY[kind], np.copysign(0.0, v), v) for v in (one, other))
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(one), np.abs(other))
        near = (np.abs(one - other) <= CLOSE[kind] * size) & np.isfinite(size) & (one != 0)
    same = (one == other) & (np.signbit(one) == np.signbit(other))
    return ~(same | near | (np.isnan(one) & np.isnan(other)))


def differences(names, found, wanted, values, kind):
    """The outputs that differ, each with its first operands and both answers."""
    said = []
    for name, one, other in zip(names, found, wanted, strict=True):
        places = np.flatnonzero(unlike(np.asarray(one), np.asarray(other), kind))
        for place in places[:2]:
            given = ("x",) if one.size == values["x"].size else ("a", "b")
            operands = ", ".join(str(values[key][place]) for key in given)
            said.append(f"{name}({operands}) is {one.flat[place]}, not {other.flat[place]}")
    return said
