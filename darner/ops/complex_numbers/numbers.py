"""Complex numbers: their parts, made of two real tensors and taken apart again, conjugates and squares of absolute values.

Inside a graph the cotangent of a complex ``z`` is the ``c`` for which a change of ``z`` changes the loss by ``Re(c dz)``: a vjp is the plain transpose,
without conjugates. ``grad``, ``value_and_grad`` and sessions return the conjugate of that for complex leaves, the direction in which the loss grows.
"""

from __future__ import annotations

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float, Free
from ...graph.data import Array
from ...graph.dtypes import DType
from ...graph.errors import DTypeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Rule, primitive
from ...graph.types import TensorType, broadcast
from ..samples import sample, spec
from .parts import Pair

FAMILY = "complex numbers"

_SAMPLES = [
    sample(spec(*shape, kind="complex", dtype="c64"))
    for shape in ((), (1,), (0,), (3, 5), (2, 0, 3))
]


def real_type(dtype: DType) -> DType:
    """The type of the parts of a complex number."""
    return dtypes.f64 if dtype is dtypes.c128 else dtypes.f32


def complex_type(dtype: DType) -> DType:
    """The complex type whose parts are of a type."""
    return dtypes.c128 if dtype is dtypes.f64 else dtypes.c64


def _require_complex(z: TensorType) -> None:
    if z.dtype.kind != "complex":
        raise DTypeError(f"z must be complex, not {z.dtype}", hint="complex(re, im) makes one")


@primitive(family=FAMILY, traits=["elementwise"], samples=_SAMPLES)
def real(z: Free) -> TensorType:
    """The real part of each complex number."""
    _require_complex(z)
    return z.with_dtype(real_type(z.dtype))


@real.reference
def _(z: Array) -> Array:
    return z.real.copy()


@real.pairs
def _(z: Pair) -> Node:
    return z.re


@real.vjp
def _(g: Node, out: Node, z: Node) -> Node:
    return _joined(g, _zeros(g))


@primitive(family=FAMILY, traits=["elementwise"], samples=_SAMPLES)
def imag(z: Free) -> TensorType:
    """The imaginary part of each complex number."""
    _require_complex(z)
    return z.with_dtype(real_type(z.dtype))


@imag.reference
def _(z: Array) -> Array:
    return z.imag.copy()


@imag.pairs
def _(z: Pair) -> Node:
    return z.im


@imag.vjp
def _(g: Node, out: Node, z: Node) -> Node:
    return _joined(_zeros(g), -g)


def _zeros(x: Node) -> Node:
    zeros: Node = x.graph.zeros(x.shape, x.dtype)
    return zeros


@primitive(
    family=FAMILY,
    name="complex",
    traits=["elementwise"],
    samples=[
        sample(spec(3, 5, dtype="f32"), spec(3, 5, dtype="f32")),
        sample(spec(3, 1, dtype="f32"), spec(5, dtype="f16")),
        sample(spec(dtype="f32"), spec(dtype="f32")),
        sample(spec(0, 3, dtype="f32"), spec(3, dtype="f32")),
    ],
)
def complex_(re: Float, im: Float) -> TensorType:
    """Complex numbers of two real tensors, which broadcast; 16-bit floats become f32.

    The inverse of ``real`` and ``imag``.
    """
    return TensorType(broadcast(re.shape, im.shape), complex_type(re.dtype))


@complex_.spelling
def _(graph: Graph, *args: object, **kwargs: object) -> tuple[object, object]:
    for given in (*args, *kwargs.values()):
        if dtypes.f64 == getattr(given, "dtype", None):
            raise DTypeError(
                "f64 has no complex type (there is no 128-bit complex)", hint="cast to f32"
            )
    return args, kwargs


def _joined(re: Node, im: Node) -> Node:
    """``complex_`` of parts of any type: graphs in float64 have 128-bit complex numbers."""
    found: Node = re.graph.insert(complex_, [re, im], ("re", "im"), {})
    return found


@complex_.reference
def _(re: Array, im: Array) -> Array:
    wide = np.complex128 if re.dtype == np.float64 else np.complex64
    found = np.empty(np.broadcast_shapes(re.shape, im.shape), wide)
    found.real, found.imag = re, im
    return found


@complex_.pairs
def _(re: Node, im: Node) -> Pair:
    wide = dtypes.f64 if re.dtype is dtypes.f64 else dtypes.f32
    shape = broadcast(re.shape, im.shape)
    return Pair(*(part.cast(wide).broadcast_to(shape) for part in (re, im)))


@complex_.vjp
def _(g: Node, out: Node, re: Node, im: Node) -> dict[str, Rule]:
    return {"re": lambda: real(g).cast(re.dtype), "im": lambda: -imag(g).cast(im.dtype)}


@primitive(family=FAMILY, traits=["elementwise"], samples=_SAMPLES)
def conjugate(z: Free) -> TensorType:
    """The complex conjugate of each element: ``re - i im``."""
    _require_complex(z)
    return z


@conjugate.reference
def _(z: Array) -> Array:
    return np.conjugate(z)


@conjugate.pairs
def _(z: Pair) -> Pair:
    return Pair(z.re, -z.im)


@conjugate.vjp
def _(g: Node, out: Node, z: Node) -> Node:
    result: Node = conjugate(g)
    return result


@primitive(family=FAMILY, traits=["elementwise"], samples=_SAMPLES)
def complex_norm_sq(z: Free) -> TensorType:
    """The square of the absolute value of each complex number, ``re^2 + im^2``: a real loss of a complex graph."""
    _require_complex(z)
    return z.with_dtype(real_type(z.dtype))


@complex_norm_sq.reference
def _(z: Array) -> Array:
    return z.real * z.real + z.imag * z.imag


@complex_norm_sq.pairs
def _(z: Pair) -> Node:
    found: Node = z.re * z.re + z.im * z.im
    return found


@complex_norm_sq.vjp
def _(g: Node, out: Node, z: Node) -> Node:
    result: Node = (2.0 * g) * conjugate(z)
    return result


@primitive(
    family=FAMILY,
    traits=["elementwise"],
    samples=[
        sample(spec(3, 5, kind="complex", dtype="c64"), spec(3, 5, dtype="f32")),
        sample(spec(2, 3, kind="complex", dtype="c64"), spec(3, dtype="f32")),
        sample(spec(kind="complex", dtype="c64"), spec(dtype="f32")),
        sample(spec(0, 2, kind="complex", dtype="c64"), spec(0, 2, dtype="f32")),
    ],
)
def complex_norm_sq_backward(z: Free, g: Free) -> TensorType:
    """RLX's gradient of ``complex_norm_sq``: ``g * z``, the derivative by the conjugate of ``z``, which is half of what PyTorch and ``grad`` return."""
    _require_complex(z)
    if g.dtype is not real_type(z.dtype):
        raise DTypeError(f"g must be {real_type(z.dtype)}, as what z's square is, not {g.dtype}")
    return TensorType(broadcast(z.shape, g.shape), z.dtype)


@complex_norm_sq_backward.reference
def _(z: Array, g: Array) -> Array:
    return z * g


@complex_norm_sq_backward.pairs
def _(z: Pair, g: Node) -> Pair:
    return Pair(z.re * g, z.im * g)


@complex_norm_sq_backward.vjp
def _(g: Node, out: Node, z: Node, **operands: Node) -> dict[str, Rule]:
    factor = operands["g"]
    return {"z": lambda: g * factor, "g": lambda: real(g * z)}


def conjugated(value: Node) -> Node:
    """The conjugate of what is complex, else the value itself."""
    return value.conjugate() if value.dtype.kind == "complex" else value
