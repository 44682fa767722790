"""How far a GPU is from exact values, in units in the last place: ``python -m tests.gpu.accuracy [f32] [f64]``.

Denormal operands and results are left out.
"""

import sys

import mpmath
import numpy as np

from darner.backends.wgpu.device import opened
from darner.graph.dtypes import dtype, f32, f64
from tests.cpu.test_math import ERROR, FULL, FUNCTIONS, distance, grid, in_parts, two
from tests.gpu.running import run


def samples(op, kind):
    """Operands for an op: numbers of every size, and for two operands pairs of them."""
    if op in ("pow", "atan2"):
        a, b = two(kind)
        generator = np.random.default_rng(5)
        far, near = np.exp(generator.uniform(-40, 40, 20_000)), generator.uniform(0.5, 2.0, 20_000)
        steps = [generator.uniform(-limit, limit, 20_000) for limit in (3, 200)]
        return [np.concatenate([a, far, near]), np.concatenate([b, *steps])]
    if op in ERROR:
        generator = np.random.default_rng(2)
        limit = 27 if kind is f64 else 10
        return [
            np.concatenate([generator.uniform(-2, 2, 2000), generator.uniform(-7, limit, 2000)])
        ]
    return [grid(kind, 20_000)]


def exact(op, *operands):
    """The values, in more bits than a result has."""
    if op in ERROR:
        with mpmath.workdps(40):
            numbers = [mpmath.mpf(float(v)) for v in operands[0]]
            return np.array([in_parts(getattr(mpmath, op)(number)) for number in numbers])
    function = {"pow": np.power, "atan2": np.arctan2}.get(op) or FUNCTIONS[op]
    return function(*(operand.astype(FULL) for operand in operands))


def worst(op, kind):
    """The largest distance; infinite where NaN or an infinity is wrong."""
    operands = [operand.astype(kind.numpy) for operand in samples(op, kind)]
    wanted = exact(op, *operands)
    off = distance(run(op, *operands), wanted)
    tiny = FULL(np.finfo(kind.numpy).tiny)
    for number in (*operands, wanted):
        size = np.abs(np.asarray(number, FULL))
        off = np.where((size < 2 * tiny) & (size > 0), 0.0, off)
    return float(off.max())


def table(names):
    """Lines of text: the GPU, then a line for each function."""
    kinds = [dtype(name) for name in names] or [f32, *([f64] if opened().machine.wide else [])]
    yield f"{opened().machine.name}, {opened().machine.driver}: {', '.join(map(str, kinds))}"
    with np.errstate(all="ignore"):
        for op in (*FUNCTIONS, *ERROR, "pow", "atan2"):
            found = [np.ceil(10 * worst(op, kind)) / 10 for kind in kinds]
            yield f"{op:8}" + "".join(f"{off:8.1f}" for off in found)


if __name__ == "__main__":
    for line in table(sys.argv[1:]):
        sys.stdout.write(f"{line}\n")
