"""Graphs run by native code, and compared with the reference."""

import numpy as np

import darner
from darner import Graph
from darner.backends.base.mirrors import changed
from darner.backends.cpu.runtime.program import CpuProgram
from darner.lower.groups import Fusing
from darner.lower.lower import lower
from tests.zoo import values


def compiled(graph, *, whole=None, **options):
    """The program of a graph; ``whole`` names the composites that keep a kernel of their own, none by default."""
    plan = lower(graph, target="cpu", whole=whole or (), fusing=Fusing(places_parts=True))
    return CpuProgram(plan, **options)


def run_program(program, inputs=None, params=None, state=None):
    """The outputs for these values; what is not given keeps the value it has. ``state`` takes what is updated."""
    plan = program.plan
    leaves = {place: plan.leaves(place) for place in ("input", "parameter", "state")}
    leaves["state"] = {**leaves["parameter"], **leaves["state"]}
    for place, given in (("input", inputs), ("parameter", params), ("state", state)):
        for name, value in (given or {}).items():
            target = program.arrays[leaves[place][name]]
            target[...] = np.asarray(value).astype(target.dtype)
            changed(target)
    program.run()
    if state is not None:
        kept = {*plan.leaves("state").values(), *(old for old, _ in plan.updates)}
        state |= {str(plan.buffers[i].name): np.array(program.arrays[i]) for i in kept}
    return [np.array(program.arrays[i]) for i in plan.outputs]


def run_both(graph, threads=2, whole=None):
    """Outputs and states by native code, and by the reference in f64."""
    inputs, params, states = values(graph)
    found_state, wanted_state = dict(states), dict(states)
    program = compiled(graph, threads=threads, whole=whole)
    try:
        found = run_program(program, inputs, params, found_state)
    finally:
        program.close()
    wanted = darner.run(graph, inputs, params, state=wanted_state, float64=True)
    names = sorted(wanted_state)
    found += [found_state[name] for name in names]
    wanted += [wanted_state[name] for name in names]
    return found, wanted


def check(graph, threads=2, whole=None):
    """Assert that native code gives what the reference gives, relative to the largest value."""
    found, wanted = run_both(graph, threads, whole)
    scale = max(float(np.abs(array).max(initial=0.0)) for array in wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=0, atol=2e-5 * max(scale, 1.0))


def one(make, *arrays, whole=None, threads=2, rtol=2e-6, atol=1e-6):
    """Assert that what ``make(graph, *nodes)`` builds over these arrays computes what the reference computes."""
    g = Graph()
    nodes = [g.input(str(i), array.shape, array.dtype) for i, array in enumerate(arrays)]
    made = make(g, *nodes)
    g.set_outputs(made if isinstance(made, list) else [made])
    given = {str(i): array for i, array in enumerate(arrays)}
    program = compiled(g, threads=threads, whole=whole)
    try:
        found = run_program(program, given)
    finally:
        program.close()
    for a, b in zip(found, darner.run(g, given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=rtol, atol=atol)
