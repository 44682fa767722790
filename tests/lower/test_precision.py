"""How operands of fewer bits are lowered: read where they lie by contractions that can, rounded where they are computed for others."""

import darner
from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.lower.lower import lower
from darner.lower.strided import Multipliers, contractions


def layer(precision):
    """A layer between two products, in a precision."""
    g = Graph("layer")
    x, w, v = g.input("x", (8, 16)), g.parameter("w", (16, 16)), g.parameter("v", (16, 4))
    h = (x @ w).tanh()
    g.set_outputs([h @ v, h.sum()])
    return darner.with_precision(g, precision)


def ops_of(plan, kind="contract"):
    return [plan.spec(kernel).ops for kernel in plan.kernels if plan.spec(kernel).kind == kind]


def types_between(plan):
    """The types of what the last contraction reads."""
    last = [kernel for kernel in plan.kernels if plan.spec(kernel).kind == "contract"][-1]
    return [str(plan.buffers[i].type.dtype) for i in last.operands]


def test_what_others_read_too_is_written_in_both_types_by_one_kernel():
    plan = lower_for("cpu", layer("bf16"))
    first, second = ops_of(plan)
    assert first == ("cast", "cast", "dot_general", "tanh", "cast")
    assert second == ("cast", "cast", "dot_general")
    assert types_between(plan) == ["bf16", "bf16"]
    # Beside them: the casts of the input and of both weights, and the sum.
    assert [ops for ops in ops_of(plan, "map") if ops != ("cast",)] == []
    assert len(ops_of(plan, "map")) == 3


def test_tf32_is_rounded_by_contractions_that_say_so_and_elsewhere_where_it_is_computed():
    native = lower_for("reference", layer("tf32"))
    assert [ops.count("reduce_precision") for ops in ops_of(native)] == [2, 2]
    assert ops_of(native, "map") == []
    usual = lower_for("cpu", layer("tf32"))
    first, second = ops_of(usual)
    assert first == ("dot_general", "tanh", "reduce_precision")
    assert second == ("dot_general",)


def test_a_target_says_which_contractions_read_16_bits():
    g = Graph("both")
    x, w = g.input("x", (2, 3, 8)), g.parameter("w", (4, 3, 3))
    g.set_outputs([g.conv(x, w).reshape((2, 24)) @ g.parameter("v", (24, 5))])
    rounded = darner.with_precision(g, "f16")
    everything = lower(rounded, multipliers=Multipliers(contractions()))
    assert ops_of(everything)[0][:2] == ("cast", "cast")
    products = lower(rounded, multipliers=Multipliers(frozenset(["dot_general"])))
    convolution, product = ops_of(products)
    assert convolution[0] == "conv"
    assert product[:3] == ("cast", "reshape", "cast")
    assert ("cast", "cast") in ops_of(products, "map")  # what is f32 in memory, with f16's digits


def test_operands_of_two_types_are_made_one_in_memory():
    g = Graph("mixed")
    x, w = g.input("x", (4, 8), "bf16"), g.input("w", (8, 2), "f16")
    g.set_outputs([x.cast("f32") @ w.cast("f32")])
    plan = lower_for("cpu", g)
    assert types_between(plan) == ["f32", "f32"]
