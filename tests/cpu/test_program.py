"""Plans as native code: the numbers of the reference, on any number of threads, in one call a step."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.lower.roles import whole_ops
from tests.cpu.running import check, compiled, one, run_both, run_program
from tests.zoo import gpt2, llama, mlp, mlp_step, resnet, trained, unet, values, vit

MODELS = {
    "mlp": lambda: mlp(),
    "mlp, training": lambda: trained(mlp),
    "mlp, a step of adam": lambda: mlp_step(optimizer="adam"),
    "mlp with dropout": lambda: trained(mlp, layers=3, dropout=0.25),
    "llama": lambda: llama(),
}
LARGE = {
    "llama, training": lambda: trained(llama),
    "gpt2 in primitives, training": lambda: trained(gpt2, spelling="primitive"),
    "vit, training": lambda: trained(vit),
    "unet": lambda: unet(),
    "resnet, training": lambda: trained(resnet),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_the_reference_computes(name):
    check(MODELS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_larger_model_computes_what_the_reference_computes(name):
    check(LARGE[name]())


def test_an_optimized_step_trains_by_native_code():
    graph = darner.optimize(mlp_step(optimizer="adam"))
    inputs, params, states = values(graph)
    program = compiled(graph, threads=2)
    losses = [float(run_program(program, inputs, params, states)[0][0])]
    losses += [float(run_program(program, inputs)[0][0]) for _ in range(20)]
    program.close()
    wanted_state = dict(values(graph).states)
    wanted = []
    for _ in range(21):
        given = {**params, **{k: v for k, v in wanted_state.items() if k in params}}
        (loss,) = darner.run(graph, inputs, given, state=wanted_state)
        wanted.append(float(loss[0]))
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)


def test_results_are_bit_equal_on_any_number_of_threads():
    graph = trained(mlp)
    first, *others = (run_both(graph, threads)[0] for threads in (1, 2, 3))
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
PLACES = np.array([3, 0, 3, 1], np.int32)


@pytest.mark.parametrize(
    "make",
    [
        lambda g, x, i: x.pad([(1, 2), (0, 3)], 7.0),
        lambda g, x, i: g.concat([x, x[:2], x[:, :].exp()], axis=0),
        lambda g, x, i: x[::-1, 1::2] if False else x[1:, ::2],
        lambda g, x, i: x.flip(1),
        lambda g, x, i: g.gather(x, i, 0),
        lambda g, x, i: g.scatter_add(i, x, 5),
        lambda g, x, i: x.cumsum(1, exclusive=True),
        lambda g, x, i: x.cumsum(0, reverse=True),
        lambda g, x, i: x.cummax(1),
        lambda g, x, i: x.argmax(1),
        lambda g, x, i: [x.max(0), x.min((0, 1)), (x > 0).any(1), x.prod(1)],
        lambda g, x, i: x.reshape((2, 2, 6)).transpose((2, 0, 1)).reshape((3, 8)),
        lambda g, x, i: g.random_bits((5, 3), seed=11, stream=2),
        lambda g, x, i: x.reshape((1, 1, 4, 6)).conv2d(x[:, :3].reshape((1, 1, 4, 3)), padding=1),
        lambda g, x, i: [x.cast("bf16") * 3.0, x.cast("f16").exp(), x.cast("i32") // 2],
        lambda g, x, i: [x.layer_norm(), x.log_softmax(0), x.gelu()],
        lambda g, x, i: g.dynamic_slice(x, i[:2], (2, 3)),
        lambda g, x, i: [x.sum(1).exp() @ x, x[:0] @ x.transpose(), x.transpose()[:, :0] @ x[:0]],
    ],
)
def test_ops_compute_what_the_reference_computes(make):
    one(make, X, PLACES)


def test_convolutions_and_attention_share_a_module_and_nothing_else():
    g = Graph()
    x, w = g.input("x", (2, 16, 4, 4)), g.parameter("w", (16, 16, 3, 3))
    tokens = x.conv2d(w, padding=1).reshape((2, 1, 16, 16))
    seen = g.scaled_dot_attention(tokens, tokens, tokens * 0.5)
    again = seen.reshape((2, 16, 4, 4)).conv2d(w, padding=1)
    g.set_outputs([(again * again).sum()])
    check(darner.value_and_grad(g, ["w", "x"]), whole=whole_ops())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_panels_are_claimed_anew_in_every_repetition(threads):
    g = Graph()
    h = g.state("h", (40, 500))
    g.set_update(h, h @ g.input("w", (500, 500)) + 1.0)
    program = compiled(g, threads=threads)
    w = np.random.default_rng(0).standard_normal((500, 500)).astype(np.float32) * 0.01
    program.arrays[program.plan.leaves("input")["w"]][...] = w
    program._steps.repeated(4).run()
    program.run()
    wanted = np.zeros((40, 500))
    for _ in range(5):
        wanted = wanted @ w.astype(np.float64) + 1.0
    np.testing.assert_allclose(program.storage["h"], wanted, rtol=1e-4, atol=1e-4)
    program.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_repeated_in_one_call_are_steps_one_after_the_other(threads):
    g = Graph()
    count = g.state("count", (40, 3))
    g.set_update(count, count * 2.0 + g.input("x", (40, 3)).sum(0))
    program = compiled(g, threads=threads)
    x = values(g)[0]["x"]
    program.arrays[program.plan.leaves("input")["x"]][...] = x
    times = np.zeros((5, len(program._steps), threads, 2), np.int64)
    program._steps.repeated(5).run(times=times)
    wanted = np.zeros((40, 3))
    for _ in range(5):
        wanted = 2 * wanted + x.astype(np.float64).sum(0)
    np.testing.assert_allclose(program.storage["count"], wanted, rtol=1e-5)
    # Each time all threads have ended before any begins the next.
    assert (times[1:, 0, :, 0].min(1) >= times[:-1, -1, :, 1].max(1)).all()
    program.run()
    np.testing.assert_allclose(program.storage["count"], 2 * wanted + x.sum(0), rtol=1e-5)
    program.close()
