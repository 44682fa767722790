"""What stands around a contraction, done where its operands are read or its result is written.

Residuals, biases and activations become part of the product or convolution before them, and the norm before a product part of the
product. All of these are late: what a product and a sum receive as gradients is simpler than what the fused op would.
"""

from __future__ import annotations

from ...graph.dims import Shape
from ...graph.types import TensorType
from ...ops.layers.fused import PRODUCTS
from ...ops.spatial.conv import conv
from ..declare import Condition, condition, is_float, rewrite, rule, same_type, stored_together
from ..match import Match, Value
from ..pattern import Pattern, T, variables
from .convolution import is_channel_vector, with_attributes

a, b, c, x, w = variables("a b c x w")
bias, residual, gamma, gate, up, h = variables("bias residual gamma gate up h")
form, activation, eps, A, shape = variables("form activation eps A shape")

FORMS = {
    "nn": ("matmul", "MatMul"),
    "tn": ("matmul_at", "MatMulAT"),
    "nt": ("matmul_bt", "MatMulBT"),
}
ACTIVATIONS = {
    "relu": "Relu",
    "relu6": "Relu6",
    "gelu": "Gelu",
    "gelu_approx": "GeluApprox",
    "quick_gelu": "QuickGelu",
    "silu": "Silu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "hard_silu": "HardSilu",
    "leaky_relu": "LeakyRelu",
    "elu": "Elu",
}
"""The activations that a contraction may end with, with their names in labels."""


# --------------------------------------------------------------------------- matrix products


def is_row(value: Value, shape: Shape) -> bool:
    """Whether a value has one number for each column of a matrix of this shape: [N], or [1, N]."""
    return (
        1 <= value.rank <= len(shape)
        and len(shape) > 1
        and value.shape[-1] == shape[-1]
        and all(size == 1 for size in value.shape[:-1])
    )


def _vector(value: Value, size: object) -> Pattern:
    """A row or a channel vector without its axes of size 1."""
    return value if value.rank == 1 else T.reshape(value, shape=(size,))


def _product(m: Match, form: str) -> TensorType:
    found: TensorType = PRODUCTS[form].infer(m.a.tensor, m.b.tensor)
    return found


def _adds(form: str | None, bias: bool) -> Condition:
    """The sum has the product's type, and ``c`` is a row of it or as large."""

    def holds(m: Match) -> bool:
        product = _product(m, m.form if form is None else form)
        if m.root.type != product or not m.a.dtype.is_float:
            return False
        if bias:
            return m.c.type != product and is_row(m.c, product.shape)
        return bool(m.c.type == product)

    what = "has one number for each column" if bias else "has the product's shape"
    return Condition(f"c {what} of floats", holds)


for _form, (_name, _label) in FORMS.items():
    product = getattr(T, _name)(a, b)

    rule(
        f"{_name} + residual",
        product + c,
        T.fused_matmul(a, b, residual=c, form=_form),
        when=_adds(_form, bias=False),
        fusion=f"{_label}+Add→Fused{_label}Add",
        late=True,
    )

    @rewrite(
        f"{_name} + bias",
        product + c,
        when=_adds(_form, bias=True),
        fusion=f"{_label}+Bias→Fused{_label}Bias",
        late=True,
    )
    def _(m: Match, form: str = _form) -> Pattern:
        return T.fused_matmul(m.a, m.b, bias=_vector(m.c, m.root.shape[-1]), form=form)

    if _form == "tn":  # the gradient of a weight: nothing but another gradient is added to it
        continue

    @rewrite(
        f"{_name} + repeated bias",
        product + T.broadcast_to(c, shape=shape),
        when=_adds(_form, bias=True),
        fusion=f"{_label}+Bias→Fused{_label}Bias",
        late=True,
    )
    def _(m: Match, form: str = _form) -> Pattern:
        return T.fused_matmul(m.a, m.b, bias=_vector(m.c, m.root.shape[-1]), form=form)

    for _act, _shown in ACTIVATIONS.items():
        rule(
            f"{_act} of {_name}",
            getattr(T, _act)(product),
            T.fused_matmul(a, b, form=_form, activation=_act),
            when=is_float(a),
            fusion=f"{_label}+{_shown}→Fused{_label}{_shown}",
            late=True,
        )

# What a product already has is kept, and its form with it.
_biased = T.fused_matmul(a, b, bias=bias, form=form)

for _act, _shown in ACTIVATIONS.items():
    rule(
        f"{_act} of a product and bias",
        getattr(T, _act)(_biased),
        T.fused_matmul(a, b, bias=bias, form=form, activation=_act),
        fusion=f"FusedMatMulBias+{_shown}→FusedMatMulBias{_shown}",
        late=True,
    )

rule(
    "product and bias + residual",
    T.fused_matmul(a, b, bias=bias, form=form, activation=activation) + c,
    T.fused_matmul(a, b, bias=bias, residual=c, form=form, activation=activation),
    when=_adds(None, bias=False),
    fusion="FusedMatMulBias+Add→FusedMatMulBiasAdd",
    late=True,
)
rule(
    "activation of a product + residual",
    T.fused_matmul(a, b, form=form, activation=activation) + c,
    T.fused_matmul(a, b, residual=c, form=form, activation=activation),
    when=_adds(None, bias=False),
    fusion="FusedMatMulActivation+Add→FusedMatMulActivationAdd",
    late=True,
)


@rewrite(
    "product and residual + bias",
    T.fused_matmul(a, b, residual=residual, form=form) + c,
    when=_adds(None, bias=True),
    fusion="FusedMatMulAdd+Bias→FusedMatMulBiasAdd",
    late=True,
)
def _(m: Match) -> Pattern:
    row = _vector(m.c, m.root.shape[-1])
    return T.fused_matmul(m.a, m.b, bias=row, residual=m.residual, form=m.form)


rule(
    "fused_matmul_bias_act",
    T.fused_matmul_bias_act(a, b, bias, activation=activation),
    T.fused_matmul(a, b, bias=bias, activation=activation),
    late=True,
)

# --------------------------------------------------------------------------- what precedes a product


@condition("x is rows and w one matrix")
def _rows_and_matrix(m: Match) -> bool:
    return m.x.rank > 1 and m.w.rank == 2


for _form, (_name, _label) in FORMS.items():
    if _form == "tn":
        continue
    rule(
        f"rms_norm before {_name}",
        getattr(T, _name)(T.rms_norm(x, gamma, eps=eps), w),
        T.norm_matmul(x, gamma, w, eps=eps, form=_form),
        when=_rows_and_matrix,
        fusion=f"RmsNorm+{_label}→FusedRmsNorm{_label}",
        late=True,
    )

# --------------------------------------------------------------------------- two products of a gated unit


@condition("they are matrices")
def _matrices(m: Match) -> bool:
    return m.gate.rank == 2


_joinable = stored_together(gate, up) & same_type(gate, up) & _matrices

# Not late: one product also has one product for each of its gradients.
for _name, _label, _axis in (("matmul", "MatMul", -1), ("matmul_bt", "MatMulBT", 0)):
    _times = getattr(T, _name)
    rule(
        f"swiglu of {_name} and {_name}",
        T.swiglu(_times(h, gate), _times(h, up)),
        T.swiglu_concat(_times(h, T.concat([gate, up], axis=_axis))),
        when=_joinable,
        fusion=f"SwiGLU({_label},{_label})→SwiGLUConcat({_label})",
    )
    rule(
        f"glu of {_name} and {_name}",
        _times(h, up) * T.sigmoid(_times(h, gate)),
        T.glu(_times(h, T.concat([up, gate], axis=_axis))),
        when=_joinable & is_float(gate),
        fusion=f"Sigmoid({_label})+Mul→GLU({_label})",
    )

# --------------------------------------------------------------------------- convolutions


def _convolved(m: Match) -> TensorType | None:
    """The type of the convolution itself, of floats."""
    if not m.x.dtype.is_float:
        return None
    attrs = {name: value for name, value in m.A.items() if name != "activation"}
    found = conv.infer(m.x.tensor, m.w.tensor, **attrs).type
    return found if isinstance(found, TensorType) else None


@condition("c has the convolution's shape, of floats")
def _fills_convolution(m: Match) -> bool:
    return bool(m.c.type == m.root.type == _convolved(m))


@condition("c has one number for each channel of floats")
def _is_channel_bias(m: Match) -> bool:
    return m.x.dtype.is_float and is_channel_vector(m.c, m.w.shape[0], m.x.rank)


_conv = T.conv(x, w, rest=A)
_bare = T.fused_conv(x, w, rest=A)
_channels = T.fused_conv(x, w, bias=bias, activation=None, rest=A)


@rewrite(
    "conv + bias",
    _conv + c,
    when=_is_channel_bias,
    fusion="Conv+Bias→FusedConvBias",
    late=True,
)
def _(m: Match) -> Pattern:
    vector = _vector(m.c, m.w.shape[0])
    return with_attributes(T.fused_conv, m.A, m.x, m.w, bias=vector)


@rewrite(
    "conv + residual",
    _conv + c,
    when=_fills_convolution,
    fusion="Conv+Add→FusedConvAdd",
    late=True,
)
def _(m: Match) -> Pattern:
    return with_attributes(T.fused_conv, m.A, m.x, m.w, residual=m.c)


rule(
    "conv and bias + residual",
    T.fused_conv(x, w, bias=bias, rest=A) + c,
    T.fused_conv(x, w, bias=bias, residual=c, rest=A),
    when=_fills_convolution,
    fusion="FusedConvBias+Add→FusedConvBiasAdd",
    late=True,
)
rule(
    "activation of a conv + residual",
    _bare + c,
    T.fused_conv(x, w, residual=c, rest=A),
    when=_fills_convolution,
    fusion="FusedConvActivation+Add→FusedConvActivationAdd",
    late=True,
)


@rewrite(
    "conv and residual + bias",
    T.fused_conv(x, w, residual=residual, activation=None, rest=A) + c,
    when=_is_channel_bias,
    fusion="FusedConvAdd+Bias→FusedConvBiasAdd",
    late=True,
)
def _(m: Match) -> Pattern:
    vector = _vector(m.c, m.w.shape[0])
    return with_attributes(T.fused_conv, m.A, m.x, m.w, bias=vector, residual=m.residual)


for _act, _shown in ACTIVATIONS.items():
    _call = getattr(T, _act)
    rule(
        f"{_act} of conv",
        _call(_conv),
        T.fused_conv(x, w, activation=_act, rest=A),
        when=is_float(x),
        fusion=f"Conv+{_shown}→FusedConv{_shown}",
        late=True,
    )
    rule(
        f"{_act} of a conv and bias",
        _call(_channels),
        T.fused_conv(x, w, bias=bias, activation=_act, rest=A),
        fusion=f"FusedConvBias+{_shown}→FusedConvBias{_shown}",
        late=True,
    )
