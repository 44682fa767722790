"""Code for other processors: narrower vectors run here, other architectures compile."""

import dataclasses

import numpy as np
import pytest

import darner
from darner.backends.cpu.kernels import emit_module, functions_of
from darner.backends.cpu.runtime.jit import Machine, compile_module, host
from darner.lower.lower import lower
from tests.cpu.running import compiled, run_program
from tests.zoo import llama, mlp_step, resnet, trained, values

MODELS = {
    "llama, training": lambda: trained(llama),
    "resnet, training": lambda: trained(resnet),
    "mlp, a step of adam": lambda: mlp_step(optimizer="adam"),
}
WIDTHS = {32: "avx2,fma", 16: "sse4.2,fma"}


def machine_of(vector_bytes):
    """This machine, or what it would be with vectors of fewer bytes."""
    here = host()
    if here.architecture != "x86_64" or vector_bytes >= here.vector_bytes:
        return dataclasses.replace(here, vector_bytes=vector_bytes)
    names = [item[1:] for item in here.features.split(",")]
    missing = (
        ("avx512", "avx10", "amx") if vector_bytes == 32 else ("avx512", "avx10", "amx", "avx2")
    )
    features = ",".join(
        f"-{name}" if name.startswith(missing) else item
        for name, item in zip(names, here.features.split(","), strict=True)
    )
    return dataclasses.replace(here, features=features, vector_bytes=vector_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("vector_bytes", WIDTHS)
@pytest.mark.parametrize("name", MODELS)
def test_narrower_vectors_compute_what_the_reference_computes(name, vector_bytes):
    graph = MODELS[name]()
    inputs, params, states = values(graph)
    program = compiled(graph, threads=2, machine=machine_of(vector_bytes))
    found = run_program(program, inputs, params, dict(states))
    program.close()
    wanted = darner.run(graph, inputs, params, state=dict(states), float64=True)
    scale = max(float(np.abs(array).max(initial=1.0)) for array in wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize(
    "machine",
    [
        Machine("aarch64-unknown-linux-gnu", "neoverse-n1", "", 16, 4),
        Machine("arm64-apple-darwin", "apple-m1", "", 16, 4),
        Machine("x86_64-pc-windows-msvc", "haswell", "", 32, 4),
    ],
    ids=lambda machine: machine.cpu,
)
def test_other_architectures_get_object_code(machine):
    plan = lower(mlp_step(optimizer="adam"), target="cpu")
    functions = functions_of(plan, machine)
    module = emit_module(plan, functions, machine)
    code = compile_module(module, cpu=machine.cpu, triple=machine.triple, passes=True)
    assert len(code) > 4096
    for name in functions.all:
        assert name.encode() in code
