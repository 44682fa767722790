"""Where the rules of epilogues, convolutions and inference must not fire, and what they come to together."""

import dataclasses

import numpy as np
import pytest

import darner
from darner import Graph
from darner.optimizer.declare import RULES
from darner.optimizer.targets import find_target
from tests.optimizer.firing import fired

FAMILIES = ("epilogues", "convolution", "inference")
OWN = tuple(name for name, rule in RULES.items() if rule.family in FAMILIES)


def found(*outputs):
    """The rules of these families that fire in the graph of some nodes."""
    graph = outputs[0].graph
    graph.set_outputs(list(outputs))
    return set(fired(graph, OWN))


def ops_of(graph):
    return [node.op.name for node in graph.nodes]


# --------------------------------------------------------------------------- labels and modes


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("matmul + residual", "MatMul+Add→FusedMatMulAdd"),
        ("matmul_at + residual", "MatMulAT+Add→FusedMatMulATAdd"),
        ("matmul_bt + residual", "MatMulBT+Add→FusedMatMulBTAdd"),
        ("swiglu of matmul and matmul", "SwiGLU(MatMul,MatMul)→SwiGLUConcat(MatMul)"),
        ("rms_norm before matmul", "RmsNorm+MatMul→FusedRmsNormMatMul"),
        ("conv by Winograd's tiles", "Conv2d(3x3)→WinogradConv2d"),
    ],
)
def test_fusions_are_reported_under_their_labels(name, label):
    assert RULES[name].fusion == label


def test_epilogues_wait_for_the_gradient_and_gated_units_do_not():
    early = {
        name
        for name in OWN
        if RULES[name].family == "epilogues" and RULES[name].runs("train", before_gradient=True)
    }
    assert early == {
        *(
            f"{unit} of {op} and {op}"
            for unit in ("swiglu", "glu")
            for op in ("matmul", "matmul_bt")
        )
    }


def test_what_is_settled_at_inference_is_left_alone_in_training():
    for name in OWN:
        if RULES[name].family == "inference":
            assert not RULES[name].runs("train", before_gradient=False), name
    assert not RULES["conv by Winograd's tiles"].runs("train", before_gradient=False)


# --------------------------------------------------------------------------- matrix products


def matrix(g, shape=(5, 3), columns=2, dtype="f32"):
    return g.input("x", shape, dtype) @ g.parameter("w", (shape[-1], columns), dtype)


def test_a_sum_that_repeats_the_product_is_not_its_epilogue():
    g = Graph()
    assert found(matrix(g, columns=1) + g.parameter("b", (4,))) == set()
    g = Graph()
    assert found(matrix(g, (1, 3)) + g.input("r", (5, 2))) == set()
    g = Graph()
    assert found(matrix(g) + g.input("r", (4, 5, 2))) == set()


def test_a_number_or_a_column_is_no_bias():
    for shape in ((), (5, 1), (1, 1)):
        g = Graph()
        assert found(matrix(g) + g.parameter("b", shape)) == set()


def test_products_of_integers_have_no_epilogue():
    g = Graph()
    y = matrix(g, dtype="i32")
    assert found(y + g.input("r", y.shape, "i32"), y.relu()) == set()


def test_the_product_of_two_vectors_has_no_bias():
    g = Graph()
    y = g.input("x", (3,)) @ g.input("w", (3,))
    assert found(y + g.parameter("b", (1,))) == set()


def test_a_residual_after_a_residual_stays_a_sum():
    g = Graph()
    y = matrix(g)
    first, second = (g.input(name, y.shape) for name in "rs")
    assert found((y + first) + second) == {"matmul + residual"}


def test_a_bias_after_an_activation_stays_a_sum():
    g = Graph()
    y = matrix(g).gelu()
    assert found(y + g.parameter("b", y.shape[-1:])) == {"gelu of matmul"}


def test_an_activation_with_another_attribute_is_no_epilogue():
    g = Graph()
    assert found(matrix(g).leaky_relu(0.5)) == set()
    g = Graph()
    assert found(matrix(g).elu(2.0)) == set()


def test_a_norm_over_two_axes_or_with_a_bias_is_not_part_of_the_product():
    g = Graph()
    x, w = g.input("x", (2, 5, 3)), g.parameter("w", (3, 2))
    assert found(x.rms_norm(g.parameter("gamma", (5, 3)), axis=1) @ w) == set()
    g = Graph()
    x, w = g.input("x", (5, 3)), g.parameter("w", (3, 2))
    gamma, beta = g.parameter("gamma", (3,)), g.parameter("beta", (3,))
    assert found(x.rms_norm(gamma, beta) @ w) == set()


def test_a_norm_before_a_batch_of_matrices_is_not_part_of_the_product():
    g = Graph()
    x, w = g.input("x", (4, 5, 3)), g.parameter("w", (4, 3, 2))
    assert found(x.rms_norm(g.parameter("gamma", (3,))) @ w) == set()


@pytest.mark.parametrize("leaf", ["input", "computed"])
def test_gated_units_are_joined_only_of_parameters(leaf):
    g = Graph()
    h = g.input("h", (5, 3))
    gate, up = (g.input(name, (3, 2)) for name in ("gate", "up"))
    if leaf == "computed":
        gate, up = gate.exp(), up.exp()
    assert found((h @ gate).swiglu(h @ up)) == set()


def test_gated_units_of_two_inputs_are_not_joined():
    g = Graph()
    h, other = g.input("h", (5, 3)), g.input("other", (5, 3))
    gate, up = (g.parameter(name, (3, 2)) for name in ("gate", "up"))
    assert found((h @ gate).swiglu(other @ up)) == set()


# --------------------------------------------------------------------------- convolutions


def image(g, channels=4, out=6, kernel=3, dtype="f32", groups=1, **options):
    x = g.input("x", (2, channels, 7, 6), dtype)
    w = g.parameter("w", (out, channels // groups, kernel, kernel), dtype)
    return x.conv(w, groups=groups, **options)


@pytest.mark.parametrize("shape", [(4,), (5, 1), (2, 6, 1, 1), (6, 5, 1), (1, 1, 1), ()])
def test_only_one_number_for_each_channel_is_the_bias_of_a_convolution(shape):
    g = Graph()
    y = image(g, kernel=3)
    assert y.shape == (2, 6, 5, 4)
    assert "conv + bias" not in found(y + g.parameter("b", shape))


def test_a_sum_that_repeats_the_convolution_is_not_its_epilogue():
    g = Graph()
    y = image(g, out=1)
    names = found(y + g.parameter("b", (6, 1, 1)), y + g.input("r", (2, 6, 5, 4)))
    assert not names & {"conv + bias", "conv + residual"}


def test_convolutions_of_integers_have_no_epilogue():
    g = Graph()
    y = image(g, dtype="i32")
    assert found(y.relu(), y + g.input("r", y.shape, "i32")) == set()


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1}, {"groups": 2}, {"kernel": 2}])
def test_what_is_not_pointwise_is_no_product(options):
    g = Graph()
    assert "conv of size 1" not in found(image(g, **{"kernel": 1, **options}))


def test_a_pointwise_convolution_of_integers_is_a_product():
    g = Graph()
    assert found(image(g, kernel=1, dtype="i8")) == {"conv of size 1"}


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"kernel": 5},
        {"dtype": "f16"},
        {"dtype": "i32"},
    ],
)
def test_winograds_tiles_are_for_plain_kernels_of_size_3(options):
    g = Graph()
    assert found(image(g, **options)) == set()


def test_a_scale_of_anything_but_output_channels_stays_where_it_is():
    for shape in ((4,), (5, 4), (2, 1, 1, 1), (1, 1, 1, 1)):
        g = Graph()
        y = image(g, stride=1)
        assert "conv * scale" not in found(y * g.parameter("s", shape))


def windowed(g, contract_kernel=(1, 2, 3), contract_windows=(1, 4, 5), perm=(1, 0, 2, 3)):
    windows = g.input("x", (2, 3, 6, 6)).windows((3, 3), (1, 1))
    w = g.parameter("w", (4, 3, 3, 3))
    return g.dot_general(w, windows, contract_kernel, contract_windows).transpose(perm)


def test_windows_and_a_contraction_in_another_order_are_no_convolution():
    name = "conv, the kernel first"
    assert name in found(windowed(Graph()))
    assert name in found(windowed(Graph(), (3, 1, 2), (5, 1, 4)))
    assert name not in found(windowed(Graph(), (1, 3, 2)))
    assert name not in found(windowed(Graph(), perm=(1, 0, 3, 2)))


@pytest.mark.parametrize(
    ("padding", "value"),
    [
        (((0, 0), (0, 0), (1, 1), (1, 1)), 1.0),
        (((0, 0), (0, 0), (-1, 0), (0, 0)), 0.0),
        (((0, 1), (0, 0), (0, 0), (0, 0)), 0.0),
    ],
)
def test_only_zeros_around_the_image_are_padding_of_a_convolution(padding, value):
    g = Graph()
    around = g.input("x", (2, 3, 6, 6)).pad(padding, value)
    assert "conv of a padded input" not in found(around.conv(g.parameter("w", (4, 3, 3, 3))))


# --------------------------------------------------------------------------- inference


def channels(g, size, *names):
    return [g.parameter(name, (size,)) for name in names]


def test_a_norm_by_computed_statistics_is_no_scale_and_shift():
    g = Graph()
    x = g.input("x", (2, 3, 4, 5))
    mean, var = x.mean((0, 2, 3)), g.parameter("var", (3,))
    assert found(x.batch_norm(mean, var)) == set()


def test_a_shift_goes_through_a_convolution_only_without_padding():
    for padding, fires in ((0, True), (1, False)):
        g = Graph()
        x, w = g.input("x", (2, 3, 6, 6)), g.parameter("w", (4, 3, 3, 3))
        shift = g.parameter("t", (3, 1, 1))
        assert ("conv of a shifted input" in found((x + shift).conv(w, padding=padding))) == fires


def test_a_scale_does_not_go_into_the_kernel_of_groups():
    g = Graph()
    x, w = g.input("x", (2, 4, 6, 6)), g.parameter("w", (4, 2, 3, 3))
    assert "conv of a scaled input" not in found(
        (x * g.parameter("s", (4, 1, 1))).conv(w, groups=2)
    )


def test_a_scale_that_repeats_the_input_does_not_go_into_the_weight():
    g = Graph()
    x, w = g.input("x", (5, 1)), g.parameter("w", (3, 2))
    assert found((x * g.parameter("s", (3,))) @ w) == set()
    g = Graph()
    x, w = g.input("x", (2, 1, 6, 6)), g.parameter("w", (4, 3, 5, 5))
    assert found((x * g.parameter("s", (3, 1, 1))).conv(w)) == set()


def test_a_scale_of_rows_does_not_go_into_the_weight():
    g = Graph()
    assert found(matrix(g) * g.parameter("s", (5, 1))) == set()


def test_an_adapter_that_is_computed_is_not_merged():
    g = Graph()
    x, w, a, b = (
        g.input(n, s) for n, s in zip("xwab", ((5, 3), (3, 2), (3, 1), (1, 2)), strict=True)
    )
    names = found(x.lora_matmul(w, a, b), x @ w + (x @ a) @ b)
    assert not [name for name in names if "merged" in name]


# --------------------------------------------------------------------------- all together


def values_of(graph):
    """Values above 0, for inputs and for parameters."""
    random = np.random.default_rng(0)
    return [
        {
            name: (np.abs(random.standard_normal(leaf.shape)) + 0.1).astype(np.float32)
            for name, leaf in leaves.items()
        }
        for leaves in (graph.inputs, graph.parameters)
    ]


def same_results(graph, optimized):
    wanted, result = (darner.run(each, *values_of(graph)) for each in (graph, optimized))
    np.testing.assert_allclose(result[0], wanted[0], rtol=2e-4, atol=2e-4)


def test_a_norm_behind_a_convolution_is_gone_at_inference():
    g = Graph()
    x = g.input("x", (2, 3, 9, 7))
    y = x.conv2d(g.parameter("w", (8, 3, 3, 3)), bias=g.parameter("b", (8,)), stride=2, padding=1)
    g.set_outputs([y.batch_norm(*channels(g, 8, "mean", "var", "gamma", "beta")).relu()])
    optimized = darner.optimize(g, mode="inference")
    assert not {"batch_norm", "batch_norm_training"} & set(ops_of(optimized))
    same_results(g, optimized)
    assert "batch_norm" in ops_of(darner.optimize(g, mode="train"))


def test_norms_around_a_linear_layer_are_gone_at_inference():
    g = Graph()
    x = g.input("x", (5, 3)).batch_norm(*channels(g, 3, "m", "v", "c", "d"))
    y = x.linear(g.parameter("w", (4, 3)), g.parameter("b", (4,)))
    g.set_outputs([y.batch_norm(*channels(g, 4, "mean", "var", "gamma", "beta"))])
    optimized = darner.optimize(g, mode="inference")
    assert "batch_norm" not in ops_of(optimized)
    same_results(g, optimized)


def test_adapters_and_dropout_are_gone_at_inference():
    g = Graph()
    x, w = g.input("x", (64, 32)), g.parameter("w", (32, 48))
    a, b = g.parameter("a", (32, 4)), g.parameter("b", (4, 48))
    g.set_outputs([x.dropout(0.5).lora_matmul(w, a, b, 0.5)])
    optimized = darner.optimize(g, mode="inference")
    assert not {"dropout", "lora_matmul"} & set(ops_of(optimized))
    inputs, parameters = values_of(g)
    wanted = inputs["x"] @ (parameters["w"] + 0.5 * parameters["a"] @ parameters["b"])
    result = darner.run(optimized, inputs, parameters)
    np.testing.assert_allclose(result[0], wanted, rtol=1e-4)


def is_by_winograd(channels, target):
    """Whether a convolution of so many channels becomes Winograd's on a target."""
    g = Graph()
    x, w = g.input("x", (1, channels, 28, 28)), g.parameter("w", (channels, channels, 3, 3))
    g.set_outputs([x.conv2d(w, padding=1)])
    return "winograd_conv" in ops_of(darner.optimize(g, mode="inference", target=target))


def test_winograds_tiles_are_chosen_for_many_channels_alone():
    assert [is_by_winograd(count, "wgpu") for count in (4, 16, 256)] == [False, False, True]


def test_winograds_tiles_are_not_chosen_where_convolutions_are_products_on_tensor_cores():
    assert not is_by_winograd(256, "cuda")


def test_a_target_without_a_kernel_for_winograds_tiles_does_not_choose_them():
    cpu = find_target("cpu")
    assert "winograd_conv" in cpu.slow
    assert not is_by_winograd(256, cpu)
    assert is_by_winograd(256, dataclasses.replace(cpu, slow={}))


def test_a_norm_is_computed_with_the_product_where_that_is_narrow():
    for columns, chosen in ((64, True), (16384, False)):
        g = Graph()
        x, gamma = g.input("x", (512, 512)), g.parameter("gamma", (512,))
        g.set_outputs([x.rms_norm(gamma, 1e-6) @ g.parameter("w", (512, columns))])
        assert ("norm_matmul" in ops_of(darner.optimize(g, target="wgpu"))) == chosen
