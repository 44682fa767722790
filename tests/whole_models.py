"""Whole models on a device, whichever it is: outputs, gradients and steps of training are those of the reference in f64."""

import numpy as np

import darner
from darner.backends.base.lowering import compile_for, lower_for
from darner.backends.base.registry import backend_of
from tests.zoo import bert, gpt2, llama, mlp, mlp_step, resnet, trained, unet, values, vit

MODELS = {
    "mlp, a step of adam": lambda: mlp_step(optimizer="adam"),
    "mlp with dropout": lambda: trained(mlp, layers=3, dropout=0.25),
    "llama, training": lambda: trained(llama),
    "gpt2 in primitives, training": lambda: trained(gpt2, spelling="primitive"),
    "bert, training": lambda: trained(bert),
    "vit, training": lambda: trained(vit),
    "unet": lambda: unet(),
    "resnet, training": lambda: trained(resnet),
}


def check_model(name, device):
    """Assert that a model, optimized for a device, is computed there as the reference does."""
    backend = backend_of(device)
    target = backend.target_model(backend.machine(device))
    graph = darner.optimize(MODELS[name](), target=target)
    inputs, params, states = values(graph)
    wanted_state = dict(states)
    wanted = darner.run(graph, inputs, params, state=wanted_state, float64=True)
    program = compile_for(device, lower_for(device, graph))
    try:
        for place, given in (("input", inputs), ("parameter", params), ("state", states)):
            for leaf, buffer in program.plan.leaves(place).items():
                program.write(buffer, np.asarray(given[leaf]))
        program.run()
        program.sync()
        found = [program.read(i) for i in program.plan.outputs]
        kept = program.plan.leaves("state")
        after = {name: program.read(buffer) for name, buffer in kept.items()}
    finally:
        program.close()
    scale = max(float(np.abs(array).max(initial=0.0)) for array in wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * max(scale, 1.0))
    for name, value in after.items():
        np.testing.assert_allclose(value, wanted_state[name], rtol=1e-4, atol=1e-5)
