"""Graphs as users write them, on which the rules of epilogues, convolutions and inference fire."""

from tests.optimizer.firing import table

FIRES, fires = table()

ACTIVATIONS = (
    *("relu", "relu6", "gelu", "gelu_approx", "quick_gelu", "silu", "tanh", "sigmoid"),
    *("softplus", "hard_silu", "leaky_relu", "elu"),
)


# --------------------------------------------------------------------------- matrix products


def rows(g, d, width, name="x"):
    """A matrix, or a batch of them, with rows of ``width``."""
    return g.input(name, (*d.shape(1, 2), width), d.float)


def product(g, d, op="matmul"):
    inner, columns = d.size(1), d.size(1)
    if op == "matmul_at":
        lead = d.shape(0, 1)
        x = g.input("x", (*lead, inner, d.size()), d.float)
        return x.matmul_at(g.input("y", (*lead, inner, columns), d.float))
    shape = (inner, columns) if op == "matmul" else (columns, inner)
    return getattr(rows(g, d, inner), op)(g.parameter("w", shape, d.float))


def bias_of(g, d, y, name="b"):
    return g.parameter(name, y.shape[-1:], d.float)


def same_as(g, y, name="residual"):
    return g.input(name, y.shape, y.dtype)


def _matrix_rules(op):
    @fires(f"{op} + residual")
    def _(g, d):
        y = product(g, d, op)
        return y + same_as(g, y) if d.flag() else same_as(g, y) + y

    @fires(f"{op} + bias")
    def _(g, d):
        y = product(g, d, op)
        return y + bias_of(g, d, y)

    @fires(f"{op} + bias")
    def _(g, d):
        y = product(g, d, op)
        return y + bias_of(g, d, y).reshape((*(1,) * d.integer(0, y.rank - 1), -1))

    if op == "matmul_at":
        return

    @fires(f"{op} + repeated bias")
    def _(g, d):
        y = product(g, d, op)
        return y + bias_of(g, d, y).broadcast_to(y.shape)

    for act in ACTIVATIONS:

        @fires(f"{act} of {op}")
        def _(g, d, act=act):
            return getattr(product(g, d, op), act)()

    @fires(f"rms_norm before {op}")
    def _(g, d):
        inner, columns = d.size(1), d.size(1)
        x, gamma = rows(g, d, inner), g.parameter("gamma", (inner,), d.float)
        shape = (inner, columns) if op == "matmul" else (columns, inner)
        return getattr(x.rms_norm(gamma, 1e-6), op)(g.parameter("w", shape, d.float))

    def gated(g, d, unit):
        inner, columns = d.size(1), d.size()
        h = rows(g, d, inner)
        shape = (inner, columns) if op == "matmul" else (columns, inner)
        gate, up = (g.parameter(name, shape, d.float) for name in ("gate", "up"))
        return unit(getattr(h, op)(gate), getattr(h, op)(up))

    @fires(f"swiglu of {op} and {op}")
    def _(g, d):
        return gated(g, d, lambda gate, up: gate.swiglu(up))

    @fires(f"glu of {op} and {op}")
    def _(g, d):
        return gated(g, d, lambda gate, up: gate.sigmoid() * up)


for _op in ("matmul", "matmul_at", "matmul_bt"):
    _matrix_rules(_op)


def _product_activation(act):
    @fires(f"{act} of a product and bias")
    def _(g, d):
        y = product(g, d, d.choice(("matmul", "matmul_bt")))
        return getattr(y + bias_of(g, d, y), act)()


for _act in ACTIVATIONS:
    _product_activation(_act)


@fires("product and bias + residual")
def _(g, d):
    y = product(g, d)
    biased = y + bias_of(g, d, y)
    return (biased.gelu() if d.flag() else biased) + same_as(g, y)


@fires("product and bias + residual")
def _(g, d):
    x = rows(g, d, 3)
    y = x.fused_matmul(g.parameter("w", (3, 5), d.float), g.parameter("b", (5,), d.float))
    return y + same_as(g, y) if d.flag() else same_as(g, y) + y


@fires("activation of a product + residual")
def _(g, d):
    y = product(g, d)
    return y.silu() + same_as(g, y)


@fires("product and residual + bias")
def _(g, d):
    y = product(g, d)
    return (y + same_as(g, y)) + bias_of(g, d, y)


@fires("fused_matmul_bias_act")
def _(g, d):
    inner, columns = d.size(1), d.size(1)
    weight, bias = (
        g.parameter("w", (inner, columns), d.float),
        g.parameter("b", (columns,), d.float),
    )
    return rows(g, d, inner).fused_matmul_bias_act(weight, bias, d.choice(("gelu", None)))


# --------------------------------------------------------------------------- convolutions


def image(g, d, channels, least=3, axes=2, name="x"):
    """[batch, channels, *spatial] of odd and even sizes."""
    return g.input(name, (d.size(), channels, *(d.size(least) for _ in range(axes))), d.float)


def convolved(g, d, kernel=None, **options):
    """A convolution over odd and even sizes, of one or two spatial axes."""
    axes = d.choice((2, 1))
    inside, outside = d.size(1), d.size(1)
    kernel = d.choice((3, 2, 1)) if kernel is None else kernel
    x = image(g, d, inside, kernel, axes)
    w = g.parameter("w", (outside, inside, *(kernel,) * axes), d.float)
    options = {"padding": d.integer(0, 2), "stride": d.choice((1, 2)), **options}
    return x.conv(w, **options)


def channels_of(g, y, name):
    """A parameter with one number for each channel of ``y``, shaped to broadcast over it."""
    return g.parameter(name, (y.shape[1],), y.dtype).reshape((y.shape[1], *(1,) * (y.rank - 2)))


@fires("conv + bias")
def _(g, d):
    y = convolved(g, d)
    return y + channels_of(g, y, "b")


@fires("conv + bias")
def _(g, d):
    y = convolved(g, d)
    return y + g.parameter("b", (1, y.shape[1], *(1,) * (y.rank - 2)), y.dtype)


@fires("conv + residual")
def _(g, d):
    y = convolved(g, d)
    return y + same_as(g, y)


@fires("conv and bias + residual")
def _(g, d):
    y = convolved(g, d)
    biased = y + channels_of(g, y, "b")
    return same_as(g, y) + (biased.relu() if d.flag() else biased)


@fires("activation of a conv + residual")
def _(g, d):
    y = convolved(g, d)
    return y.silu() + same_as(g, y)


@fires("conv and residual + bias")
def _(g, d):
    y = convolved(g, d)
    return (y + same_as(g, y)) + channels_of(g, y, "b")


def _conv_activation(act):
    @fires(f"{act} of conv")
    def _(g, d):
        return getattr(convolved(g, d), act)()

    @fires(f"{act} of a conv and bias")
    def _(g, d):
        y = convolved(g, d)
        return getattr(y + channels_of(g, y, "b"), act)()


for _act in ACTIVATIONS:
    _conv_activation(_act)


def _spelled(first):
    @fires(f"conv, the {first} first", "conv of a padded input")
    def _(g, d):
        axes = d.choice((2, 1))
        inside, outside, kernel = d.size(1), d.size(1), d.choice((3, 2))
        x = image(g, d, inside, 3, axes)
        w = g.parameter("w", (outside, inside, *(kernel,) * axes), d.float)
        around = x.pad(((0, 0), (0, 0), *((d.integer(0, 2), 1) for _ in range(axes))))
        windows = around.windows((kernel,) * axes, (d.choice((2, 1)),) * axes)
        of_kernel, of_windows = (1, *range(2, 2 + axes)), (1, *range(2 + axes, 2 + 2 * axes))
        if first == "kernel":
            y = g.dot_general(w, windows, of_kernel, of_windows)
            return y.transpose((1, 0, *range(2, 2 + axes)))
        y = g.dot_general(windows, w, of_windows, of_kernel)
        return y.transpose((0, 1 + axes, *range(1, 1 + axes)))


for _first in ("kernel", "windows"):
    _spelled(_first)


@fires("conv of a padded input")
def _(g, d):
    x = image(g, d, d.size(1))
    w = g.parameter("w", (d.size(1), x.shape[1], 3, 3), d.float)
    around = x.pad(((0, 0), (0, 0), (1, d.integer(0, 2)), (0, 1)))
    return around.conv(w, padding=d.choice((0, 1)), stride=d.choice((1, 2)))


@fires("conv of size 1")
def _(g, d):
    return convolved(g, d, 1, padding=0, stride=1)


@fires("conv_input_grad of size 1")
def _(g, d):
    inside, outside = d.size(1), d.size(1)
    dy = image(g, d, outside, 1)
    w = g.parameter("w", (outside, inside, 1, 1), d.float)
    return dy.conv_input_grad(w, sizes=dy.shape[2:])


@fires("conv_weight_grad of size 1")
def _(g, d):
    x = image(g, d, d.size(1), 1)
    dy = g.input("dy", (x.shape[0], d.size(1), *x.shape[2:]), d.float)
    return x.conv_weight_grad(dy, kernel=1)


@fires("conv by Winograd's tiles")
def _(g, d):
    inside, outside = d.size(1), d.size(1)
    x, w = image(g, d, inside), g.parameter("w", (outside, inside, 3, 3), d.float)
    return x.conv2d(w, padding=d.integer(0, 2))


@fires("conv * scale")
def _(g, d):
    y = convolved(g, d)
    return y * (channels_of(g, y, "s") if d.flag() else 0.5)


@fires("conv * scale")
def _(g, d):
    groups, each = d.choice((2, 3)), d.size(1)
    w = g.parameter("w", (2 * groups, each, 3, 3), d.float)
    y = image(g, d, groups * each).conv(w, groups=groups, padding=1)
    return y * channels_of(g, y, "s")


# --------------------------------------------------------------------------- inference


@fires("dropout")
def _(g, d):
    return g.input("x", d.shape(), d.float).dropout(0.25)


def _batch_norm(name, weight, bias):
    def normalise(g, d, x):
        vectors = {
            "mean": g.parameter("mean", x.shape[1:2], d.float),
            "var": g.parameter("var", x.shape[1:2], d.float),
        }
        if weight:
            vectors["weight"] = g.parameter("gamma", x.shape[1:2], d.float)
        if bias:
            vectors["bias"] = g.parameter("beta", x.shape[1:2], d.float)
        # A large eps: a root for most numbers that may stand for a variance.
        return x.batch_norm(**vectors, eps=16.0)

    @fires(f"batch_norm by parameters as scale and shift{name}")
    def _(g, d):
        y = convolved(g, d, 3)
        return normalise(g, d, y + channels_of(g, y, "b") if d.flag() else y)

    @fires(f"batch_norm by parameters as scale and shift{name}")
    def _(g, d):
        inner, columns = d.size(1), d.size(1)
        x = g.input("x", (d.size(), inner), d.float)
        return normalise(g, d, x @ g.parameter("w", (inner, columns), d.float))


for _words, _weight, _bias in (
    ("", True, True),
    (", without weight", False, True),
    (", without bias", True, False),
    (", without both", False, False),
):
    _batch_norm(_words, _weight, _bias)


@fires("(conv + bias) * scale")
def _(g, d):
    y = convolved(g, d)
    return (y + channels_of(g, y, "b")) * channels_of(g, y, "s")


@fires("(conv - shift) * scale", "conv - shift")
def _(g, d):
    y = convolved(g, d)
    return (y - channels_of(g, y, "b")) * channels_of(g, y, "s")


@fires("conv + bias + shift")
def _(g, d):
    y = convolved(g, d)
    return (y + channels_of(g, y, "b")) + channels_of(g, y, "s")


@fires("conv of a scaled input")
def _(g, d):
    x = image(g, d, d.size(1))
    w = g.parameter("w", (d.size(1), x.shape[1], 3, 3), d.float)
    return (x * channels_of(g, x, "s")).conv(w, padding=1, stride=d.choice((1, 2)))


@fires("conv of a shifted input")
def _(g, d):
    x = image(g, d, d.size(1))
    w = g.parameter("w", (d.size(1), x.shape[1], 3, 3), d.float)
    return (x * channels_of(g, x, "s") + channels_of(g, x, "t")).conv(w)


def _inference_of_products(op):
    def parts(g, d):
        y = product(g, d, op)
        return y, bias_of(g, d, y), bias_of(g, d, y, "s")

    @fires(f"{op} * number")
    def _(g, d):
        return product(g, d, op) * 0.5

    @fires(f"{op} * scale")
    def _(g, d):
        y, _, s = parts(g, d)
        return y * (s if d.flag() else s.reshape((1, -1)))

    @fires(f"({op} + bias) * scale")
    def _(g, d):
        y, b, s = parts(g, d)
        return (y + b) * s

    @fires(f"({op} - shift) * scale", f"{op} - shift")
    def _(g, d):
        y, b, s = parts(g, d)
        return (y - b) * s

    @fires(f"{op} + bias + shift")
    def _(g, d):
        y, b, s = parts(g, d)
        return (y + b) + s

    def into(g, d):
        inner, columns = d.size(1), d.size(1)
        shape = (inner, columns) if op == "matmul" else (columns, inner)
        w = g.parameter("w", shape, d.float)
        return rows(g, d, inner), g.parameter("s", (inner,), d.float), w

    @fires(f"{op} of a scaled input")
    def _(g, d):
        x, s, w = into(g, d)
        return getattr(x * s, op)(w)

    @fires(f"{op} of a shifted input")
    def _(g, d):
        x, s, w = into(g, d)
        return getattr(x + (s if d.flag() else s.reshape((1, -1))), op)(w)


for _op in ("matmul", "matmul_bt"):
    _inference_of_products(_op)


def adapted(g, d):
    inner, rank, columns = d.size(1), d.size(1), d.size(1)
    shapes = {"w": (inner, columns), "a": (inner, rank), "b": (rank, columns)}
    parameters = (g.parameter(name, shape, d.float) for name, shape in shapes.items())
    return rows(g, d, inner), *parameters


@fires("lora_matmul merged")
def _(g, d):
    return g.lora_matmul(*adapted(g, d), scale=0.5)


@fires("adapter merged")
def _(g, d):
    x, w, a, b = adapted(g, d)
    return x @ w + (x @ a) @ b


@fires("adapter merged, scaled inside")
def _(g, d):
    x, w, a, b = adapted(g, d)
    return x @ w + ((x @ a) * 2.0) @ b


@fires("adapter merged, scaled outside")
def _(g, d):
    x, w, a, b = adapted(g, d)
    return x @ w + ((x @ a) @ b) * g.parameter("alpha", (), d.float)
