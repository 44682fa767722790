"""What is made of weights before steps of inference in tf32: rounded, and in the order that products read, which still know that it is rounded."""

from darner import Graph
from tests.session.opening import opened
from tests.session.precise import assert_alike, values_of


def two_layers(turned=False):
    """A layer whose weight is used as it is and one whose weight is used transposed."""
    g = Graph("layers")
    h = (g.input("x", (16, 24)) @ g.parameter("w", (24, 32))).tanh()
    v = g.parameter("v", (12, 32))
    y = h @ v.transpose((1, 0))
    # With both uses no order is better than the other.
    g.set_outputs([y, y @ v] if turned else [y])
    return g


def products(session):
    """Of each product of a step, the ops of its kernel and the shapes of what it reads of the setup."""
    plan = session.plan()
    for kernel in plan.kernels:
        if plan.spec(kernel).kind == "contract":
            read = [plan.buffers[i] for i in kernel.operands]
            made = [b.type.shape for b in read if str(b.name).startswith("setup/")]
            yield plan.spec(kernel).ops, made


def test_weights_in_tf32_are_rounded_once_and_lie_along_what_is_summed():
    graph = two_layers()
    inputs, parameters = values_of(graph)
    options = {"mode": "infer", "precision": "tf32", "params": parameters}
    found = {}
    for device in ("reference", "cuda:emulated"):
        with opened(graph, device=device, **options) as session:
            found[device] = session.run(inputs)
            if device == "reference":
                continue
            (first, w), (second, v) = products(session)
            assert first.count("reduce_precision") == second.count("reduce_precision") == 2
            assert [w, v] == [[(32, 24)], [(12, 32)]]
            session.parameters()["w"] = parameters["w"] * 0
            assert not session.run(inputs)["output0"].any()
    assert_alike(found["cuda:emulated"], found["reference"], "tf32")


def test_a_weight_that_is_read_both_ways_stays_as_it_is():
    graph = two_layers(turned=True)
    with opened(graph, device="cuda:emulated", mode="infer", precision="tf32") as session:
        found = list(products(session))
    assert [made for _, made in found] == [[(32, 24)], [(12, 32)], [(12, 32)]]
    assert all(ops.count("reduce_precision") == 2 for ops, _ in found)


def test_devices_that_do_not_multiply_in_tf32_round_weights_before_steps():
    with opened(two_layers(), device="cpu", mode="infer", precision="tf32") as session:
        rounded = [ops.count("reduce_precision") for ops, _ in products(session)]
        assert rounded == [1, 0]  # what the second reads, where the first computes it
        assert [made for _, made in products(session)] == [[(24, 32)], [(12, 32)]]
