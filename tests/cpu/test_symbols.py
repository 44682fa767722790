"""Object code names nothing that a process does not have: no instruction of ours becomes a call of a compiler's own library.

LLVM makes such a call where a target has no instruction for what the IR says, and what it is can depend on the number of lanes, so
every element-wise op is compiled at lengths with tails of all kinds. Targets are named, so that the answer is the same on every machine.
"""

import struct
from dataclasses import replace

import numpy as np
import pytest

from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.backends.cpu.kernels import _modules, functions_of
from darner.backends.cpu.runtime.jit import Machine, compile_modules, host
from darner.graph.errors import DarnerError
from darner.graph.op import OPS
from darner.lower.roles import whole_ops
from darner.testing import make_case
from tests.conformance.devices import joined
from tests.conformance.test_reference import BUILTIN, UNTESTED_HERE, has_float_operand
from tests.cpu.running import compiled, run_program
from tests.cpu.test_targets import machine_of

KINDS = ("bool", "i8", "i16", "i32", "i64", "u8", "u32", "f16", "bf16", "f32", "f64")
LENGTHS = (1, 3, 15, 16, 17, 33, 64, 129)
LINUX = "x86_64-unknown-linux-gnu"
AVX512 = Machine(LINUX, "znver4", "", 64, 2)
AVX2 = Machine(LINUX, "haswell", "", 32, 2)
WITHOUT_F16C = Machine(LINUX, "nehalem", "", 16, 2)
AARCH64 = Machine("aarch64-unknown-linux-gnu", "neoverse-n1", "", 16, 2)
IN_C = {"memcpy", "memset", "memmove", "fma", "fmaf", "_GLOBAL_OFFSET_TABLE_"}
"""What every process has, of what LLVM calls: fused multiply-add is a function of the mathematical library where it is no instruction."""
OWN = {"darner_barrier"}


def symbols(code):
    """(defined, undefined) names of an ELF object."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    width, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + i * width) for i in range(count)]
    found = set(), set()
    for section in sections:
        if section[1] != 2:
            continue
        names = sections[section[6]][4]
        for at in range(section[4] + 24, section[4] + section[5], 24):
            name, _, _, index = struct.unpack_from("<IBBH", code, at)
            text = code[names + name : code.index(b"\0", names + name)].decode()
            found[index == 0].add(text)
    return found


def foreign(graph, machine):
    """The names that the object code of a graph needs from elsewhere."""
    plan = lower_for("cpu", graph)
    modules = _modules(plan, functions_of(plan, machine), machine)
    target = {"cpu": machine.cpu, "features": machine.features, "triple": machine.triple}
    tables = [symbols(code) for code in compile_modules(modules, **target)]
    own = {name for defined, _ in tables for name in defined}
    return {name for _, undefined in tables for name in undefined} - own


def emitted():
    """The names of the ops that have scalar code."""
    return [name for name, op in OPS.items() if op.builtin and op.rules.emit is not None]


def every_row(kind, lengths):
    """All element-wise code of one element type, at these lengths, and casts to every other."""
    g = Graph()
    outputs = []
    for length in lengths:
        a, b = (g.input(f"{name}{length}", (length,), kind) for name in "ab")
        mask = g.input(f"mask{length}", (length,), "bool")
        for name in sorted({*emitted()} - {"cast", "where", "stop_gradient"}):
            op = OPS[name]
            try:
                outputs.append(op(*(a, b)[: len(op.operands)]))
            except DarnerError:
                continue  # not an op of this element type
        outputs += [mask.where(a, b), *(a.cast(other) for other in KINDS if other != kind)]
    g.set_outputs(outputs)
    return g


@pytest.mark.parametrize("kind", KINDS)
def test_element_wise_code_calls_no_library(kind):
    lengths = LENGTHS if kind == "f16" else (3, 17)
    assert foreign(every_row(kind, lengths), AVX512) <= IN_C


@pytest.mark.slow
@pytest.mark.parametrize("target", [AVX2, WITHOUT_F16C, AARCH64], ids=lambda machine: machine.cpu)
@pytest.mark.parametrize("kind", ["f16", "i64"])
def test_element_wise_code_for_other_processors_calls_no_library(kind, target):
    assert foreign(every_row(kind, (3, 17)), target) <= IN_C


@pytest.mark.slow
def test_kernels_of_halves_need_no_instruction_for_halves():
    cases = []
    for op in BUILTIN:
        if op.name in UNTESTED_HERE or op.name in emitted() or not op.samples:
            continue
        given = op.samples[0]
        whole = not op.is_composite or op.name in whole_ops()
        if whole and has_float_operand([*given.args, *given.kwargs.values()]):
            case = make_case(op, 0, "f16")
            cases.append((case.graph, case.arrays, case.length, {}))
    graph, _ = joined(cases)
    assert foreign(graph, WITHOUT_F16C) <= IN_C | OWN


@pytest.mark.skipif(host().architecture != "x86_64", reason="F16C is a feature of x86")
def test_without_instructions_for_halves_every_bit_is_the_same():
    here = host()
    lesser = machine_of(min(here.vector_bytes, 32))
    lesser = replace(lesser, features=lesser.features.replace("+f16c", "-f16c"))
    assert not lesser.converts_halves
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    exact = halves.astype(np.float32)
    finite = exact[np.isfinite(exact)]
    between = (np.sort(finite)[:-1] + np.sort(finite)[1:]) / 2
    singles = np.concatenate(
        [exact, between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf)]
    ).astype(np.float32)
    singles = np.append(singles, np.array([65519.9, 65520, 1e9, 1e-9, -1e-30], np.float32))
    g = Graph()
    a, b = g.input("a", halves.shape, "f16"), g.input("b", singles.shape, "f32")
    g.set_outputs([a.cast("f32"), b.cast("f16")])
    program = compiled(g, machine=lesser)
    wide, narrow = run_program(program, {"a": halves, "b": singles})
    program.close()
    with np.errstate(over="ignore"):
        wanted = singles.astype(np.float16)
    for found, right in [(wide, exact), (narrow, wanted)]:
        nan = np.isnan(right)
        np.testing.assert_array_equal(np.isnan(found), nan)
        bits = f"u{right.itemsize}"
        np.testing.assert_array_equal(found[~nan].view(bits), right[~nan].view(bits))


HALVES = ("atan", "asin", "asinh", "atan2", "sinh", "atanh", "tan", "remainder")


@pytest.mark.parametrize("length", [17, 33, 49, 65, 129])
def test_halves_at_the_tail_of_a_vector(length):
    x = np.linspace(-0.9, 0.9, length).astype(np.float16)
    y = np.linspace(0.5, 1.0, length).astype(np.float16)
    g = Graph()
    a, b = g.input("a", x.shape, "f16"), g.input("b", y.shape, "f16")
    made = [OPS[name](*(a, b)[: len(OPS[name].operands)]) for name in HALVES]
    g.set_outputs([*made, a.cast("f64").atan().cast("f32").cast("f16")])
    program = compiled(g)
    found = run_program(program, {"a": x, "b": y})
    program.close()
    wide, other = x.astype(np.float64), y.astype(np.float64)
    wanted = [
        np.arctan(wide),
        np.arcsin(wide),
        np.arcsinh(wide),
        np.arctan2(wide, other),
        np.sinh(wide),
        np.arctanh(wide),
        np.tan(wide),
        np.remainder(wide, other),
        np.arctan(wide),
    ]
    for name, value, exact in zip([*HALVES, "casts"], found, wanted, strict=True):
        error = np.abs(value.astype(np.float64) - exact)
        assert (error <= np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)).all(), (
            name
        )
