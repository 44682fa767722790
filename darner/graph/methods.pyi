"""Every op and builder of darner as a method of graphs and nodes.

Generated from the registry; do not edit. To bring it up to date: python -m darner.cli.generate
"""

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from .dims import SymbolicDim
from .dtypes import DType
from .graph import Graph
from .node import Node
from .op import Builder, Op
from .types import TensorType

NodeLike: TypeAlias = (
    Node | int | float | bool | complex | npt.NDArray[Any] | np.generic | Sequence[Any]
)
DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]
DimLike: TypeAlias = int | str | SymbolicDim
ShapeLike: TypeAlias = DimLike | Sequence[DimLike] | TensorType

def takes_node_first(item: Op | Builder) -> bool: ...

class GraphMethods:
    # Ops declared elsewhere are found at run time.
    def __getattr__(self, name: str) -> Callable[..., Any]: ...
    def abs(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The absolute value |x|."""
    def acos(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse cosine."""
    def acosh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of cosh."""
    def add(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a + b."""
    def all(
        self,
        x: NodeLike,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Whether all elements over ``axes`` are True; True for none."""
    def any(
        self,
        x: NodeLike,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Whether any element over ``axes`` is True; False for none."""
    def argmax(
        self,
        x: NodeLike,
        axis: int | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The index (i32) of the first largest element along ``axis``, or in the flattened tensor."""
    def argmin(
        self,
        x: NodeLike,
        axis: int | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The index (i32) of the first smallest element along ``axis``, or in the flattened tensor."""
    def argsort(
        self,
        x: NodeLike,
        axis: int = -1,
        descending: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The indices (i32) that put the elements along ``axis`` in order."""
    def asin(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse sine."""
    def asinh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse hyperbolic sine."""
    def atan(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse tangent."""
    def atan2(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """The angle of the point (b, a)."""
    def atanh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of tanh."""
    def binary(
        self, op: Any, lhs: NodeLike, rhs: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """A binary op by its kind: add, sub, mul, div, max, min or pow."""
    def bitwise_and(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """The bits set in both integers."""
    def bitwise_or(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """The bits set in either."""
    def bitwise_xor(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """The bits set in one."""
    def broadcast_to(self, x: NodeLike, shape: ShapeLike, *, label: str | None = None) -> Node:
        """``x`` repeated along axes of size 1, and along new axes in front, to fill ``shape``."""
    def cast(
        self, x: NodeLike, to: DTypeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """``x`` with another element type."""
    def ceil(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The smallest integer not below x."""
    def clip(
        self,
        x: NodeLike,
        low: NodeLike | None = None,
        high: NodeLike | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """``x`` kept between ``low`` and ``high``; either may be left out."""
    def compare(
        self, op: Any, lhs: NodeLike, rhs: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """A comparison by its kind: eq, ne, lt, le, gt or ge."""
    @overload
    def concat(
        self,
        inputs: Sequence[NodeLike],
        axis: int = 0,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Tensors one after another along ``axis``; other sizes must be equal."""
    @overload
    def concat(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def constant(self, values: Any, shape: Any = None, *, label: str | None = None) -> Node:
        """A tensor whose values are part of the graph: ``g.constant(data, shape=None, dtype=None)``."""
    @overload
    def constant(self, *args: Any, **kwargs: Any) -> Node: ...
    def cos(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The cosine."""
    def cosh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic cosine."""
    def cummax(
        self,
        x: NodeLike,
        axis: int = -1,
        shape: Any = None,
        *,
        reverse: bool = False,
        label: str | None = None,
    ) -> Node:
        """Running maxima along ``axis``."""
    def cummin(
        self,
        x: NodeLike,
        axis: int = -1,
        shape: Any = None,
        *,
        reverse: bool = False,
        label: str | None = None,
    ) -> Node:
        """Running minima along ``axis``."""
    def cumprod(
        self,
        x: NodeLike,
        axis: int = -1,
        shape: Any = None,
        *,
        reverse: bool = False,
        label: str | None = None,
    ) -> Node:
        """Running products along ``axis``."""
    def cumsum(
        self,
        x: NodeLike,
        axis: int = -1,
        exclusive: bool = False,
        shape: Any = None,
        *,
        reverse: bool = False,
        label: str | None = None,
    ) -> Node:
        """Running sums along ``axis``; ``exclusive`` leaves each element out of its own sum."""
    def div(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a / b."""
    def dot_general(
        self,
        a: NodeLike,
        b: NodeLike,
        a_contract: int | Sequence[int],
        b_contract: int | Sequence[int],
        a_batch: int | Sequence[int] = (),
        b_batch: int | Sequence[int] = (),
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Products summed over the contracted axes, separately for each index of the batch axes."""
    def dynamic_slice(
        self,
        x: NodeLike,
        starts: NodeLike,
        sizes: ShapeLike,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """A block of fixed ``sizes`` at a position computed in the graph (one entry of ``starts`` an axis)."""
    def dynamic_update_slice(
        self,
        x: NodeLike,
        update: NodeLike,
        starts: NodeLike,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """``x`` with a block replaced at a position computed in the graph; see ``dynamic_slice``."""
    def eq(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a == b, as bool."""
    def erf(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The error function."""
    def erfc(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 - erf(x), exact for large x."""
    def exp(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """e to the power x."""
    def exp2(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """2 to the power x."""
    def expm1(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """exp(x) - 1, exact near 0."""
    def flip(
        self,
        x: NodeLike,
        axes: int | Sequence[int] | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """``x`` with the order of elements along some axes (all by default) reversed."""
    def floor(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The largest integer not above x."""
    def floor_divide(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """floor(a / b), as Python's ``//``."""
    def fold(
        self,
        x: NodeLike,
        sizes: ShapeLike,
        stride: int | Sequence[int] = (1,),
        dilation: int | Sequence[int] = (1,),
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Windows added back to where they came from: the transpose of ``windows`` over axes of ``sizes``."""
    def gather(
        self,
        table: NodeLike,
        indices: NodeLike,
        axis: int = 0,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Slices of ``table`` along ``axis``, one for each index; the indices' axes take that axis' place."""
    def ge(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a >= b, as bool."""
    def greater(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """1 where ``a > b``, else 0, in the operands' element type."""
    def gt(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a > b, as bool."""
    @overload
    def input(
        self, name: str, shape: ShapeLike, dtype: DTypeLike = ..., *, label: str | None = None
    ) -> Node:
        """A tensor given at every run, by its name."""
    @overload
    def input(self, *args: Any, **kwargs: Any) -> Node: ...
    def input_u32(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """An input of u32, such as token ids."""
    def iota(
        self, shape: ShapeLike, axis: int = 0, dtype: DTypeLike = ..., *, label: str | None = None
    ) -> Node:
        """0, 1, 2, ... along ``axis``, repeated along the others."""
    def is_finite(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is neither infinite nor NaN."""
    def is_inf(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is infinite."""
    def is_nan(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is NaN."""
    def le(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a <= b, as bool."""
    def log(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The natural logarithm; -inf at 0, NaN below."""
    def log10(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 10."""
    def log1p(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """log(1 + x), exact near 0."""
    def log2(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 2."""
    def logical_and(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """a and b."""
    def logical_not(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """not x."""
    def logical_or(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """a or b."""
    def logical_xor(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """Exactly one of a and b."""
    def lt(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a < b, as bool."""
    def max(
        self,
        x: NodeLike,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The largest element over ``axes`` (all by default); NaN if there is one."""
    def maximum(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """The larger of a and b; NaN if either is."""
    def min(
        self,
        x: NodeLike,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The smallest element over ``axes`` (all by default); NaN if there is one."""
    def minimum(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """The smaller of a and b; NaN if either is."""
    def mul(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a * b."""
    def ne(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a != b, as bool."""
    def neg(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """-x."""
    def pad(
        self,
        x: NodeLike,
        padding: int | Sequence[int | Sequence[int]],
        value: float = 0.0,
        shape: Any = None,
        *,
        interior: int | Sequence[int] | None = None,
        label: str | None = None,
    ) -> Node:
        """``x`` with ``value`` around it: (low, high) for every axis, or one number for all."""
    def param(self, name: str, shape: Any, dtype: Any = None, *, label: str | None = None) -> Node:
        """RLX's spelling of ``parameter``."""
    @overload
    def parameter(
        self,
        name: str,
        shape: ShapeLike,
        dtype: DTypeLike = ...,
        *,
        storage: Literal["dense", "q4", "q8"] = "dense",
        label: str | None = None,
    ) -> Node:
        """A trained tensor, kept between runs and saved by its name."""
    @overload
    def parameter(self, *args: Any, **kwargs: Any) -> Node: ...
    def parameter_f16(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """A parameter stored as f16; arithmetic with f32 casts it."""
    def parameter_q4(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """A matrix kept as 4-bit blocks of 32 rows; see ``parameter``."""
    def parameter_q8(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """A matrix kept as 8-bit blocks of 32 rows; see ``parameter``."""
    def pow(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a to the power b."""
    def prod(
        self,
        x: NodeLike,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The product over ``axes`` (all by default). bool and integers below 32 bits widen to i32."""
    def project(
        self, source: NodeLike, index: int, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """One result of a node that has several."""
    def random_bits(
        self,
        shape: ShapeLike,
        seed: int = 0,
        stream: int = 0,
        step: NodeLike | None = None,
        *,
        label: str | None = None,
    ) -> Node:
        """32 random bits an element (u32): Philox 4x32-10, a pure function of its arguments."""
    def recip(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / x."""
    def remainder(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """a - b * floor(a / b), as Python's ``%``: the sign is b's."""
    def reshape(self, x: NodeLike, shape: ShapeLike, *, label: str | None = None) -> Node:
        """The same elements, in the same order, under another shape."""
    def round(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The nearest integer; halves go to the even one."""
    def rsqrt(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / sqrt(x)."""
    def scalar(self, value: float, dtype: Any = "f32", *, label: str | None = None) -> Node:
        """A constant of shape [1]."""
    def scatter_add(
        self,
        indices: NodeLike,
        src: NodeLike,
        size: DimLike,
        shape: Any = None,
        *,
        axis: int = 0,
        label: str | None = None,
    ) -> Node:
        """Slices of ``src`` added up by index into a tensor of zeros with ``size`` entries along ``axis``."""
    def scatter_add_along_axis(
        self,
        indices: NodeLike,
        src: NodeLike,
        size: DimLike,
        axis: int = -1,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Each element of ``src`` added to zeros at the place along ``axis`` that its index gives."""
    def shift_left(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """a moved b bits up; b is below the width."""
    def shift_right(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """a moved b bits down, keeping the sign."""
    def sign(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """-1, 0 or 1 by the sign of x."""
    def sin(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The sine."""
    def sinh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic sine."""
    def slice(
        self,
        x: NodeLike,
        starts: ShapeLike,
        stops: ShapeLike,
        steps: int | Sequence[int] | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Elements ``start, start + step, ...`` before ``stop`` along every axis; bounds are checked."""
    def solve(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """The ``x`` with ``a @ x = b``, for each matrix of a batch."""
    def sort(
        self,
        x: NodeLike,
        axis: int = -1,
        descending: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The elements along ``axis`` in order; NaN sorts above everything."""
    def sqrt(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The square root; NaN below 0."""
    def square(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x * x."""
    @overload
    def state(
        self,
        name: str,
        shape: ShapeLike,
        dtype: DTypeLike = ...,
        *,
        init: float = 0.0,
        label: str | None = None,
    ) -> Node:
        """A tensor kept between runs and changed by them (a cache, a running mean), never trained."""
    @overload
    def state(self, *args: Any, **kwargs: Any) -> Node: ...
    def stop_gradient(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x``, through which no gradient passes."""
    def sub(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a - b."""
    def sum(
        self,
        x: NodeLike,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The sum over ``axes`` (all by default). bool and integers below 32 bits sum to i32."""
    def take_along_axis(
        self,
        x: NodeLike,
        indices: NodeLike,
        axis: int = -1,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """For each position, the element of ``x`` whose place along ``axis`` the index gives."""
    def tan(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The tangent."""
    def tanh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic tangent."""
    def top_k(
        self, x: NodeLike, k: int, axis: int = -1, shape: Any = None, *, label: str | None = None
    ) -> tuple[Node, ...]:
        """The ``k`` largest elements along ``axis``, largest first, and their indices (i32)."""
    def transpose(
        self,
        x: NodeLike,
        perm: int | Sequence[int] | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Axes in another order: axis ``i`` of the result is axis ``perm[i]`` of ``x``; reversed by default."""
    def triangular_solve(
        self,
        a: NodeLike,
        b: NodeLike,
        shape: Any = None,
        *,
        lower: bool = True,
        unit_diagonal: bool = False,
        label: str | None = None,
    ) -> Node:
        """Like ``solve``, reading only one triangle of ``a`` (and taking its diagonal as 1 if asked)."""
    def trunc(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x without its fraction."""
    def where(
        self,
        condition: NodeLike,
        a: NodeLike,
        b: NodeLike,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """``a`` where the condition holds, else ``b``."""
    def windows(
        self,
        x: NodeLike,
        window: int | Sequence[int],
        stride: int | Sequence[int] = (1,),
        dilation: int | Sequence[int] = (1,),
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Sliding windows over the last axes: their counts stay in place, and window axes are added at the end."""

class NodeMethods:
    # Ops declared elsewhere are found at run time.
    def __getattr__(self, name: str) -> Callable[..., Any]: ...
    def abs(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The absolute value |x|."""
    def acos(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse cosine."""
    def acosh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of cosh."""
    def add(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a + b."""
    def all(
        self,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Whether all elements over ``axes`` are True; True for none."""
    def any(
        self,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Whether any element over ``axes`` is True; False for none."""
    def argmax(
        self,
        axis: int | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The index (i32) of the first largest element along ``axis``, or in the flattened tensor."""
    def argmin(
        self,
        axis: int | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The index (i32) of the first smallest element along ``axis``, or in the flattened tensor."""
    def argsort(
        self,
        axis: int = -1,
        descending: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The indices (i32) that put the elements along ``axis`` in order."""
    def asin(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse sine."""
    def asinh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse hyperbolic sine."""
    def atan(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse tangent."""
    def atan2(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The angle of the point (b, a)."""
    def atanh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of tanh."""
    def bitwise_and(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in both integers."""
    def bitwise_or(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in either."""
    def bitwise_xor(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in one."""
    def broadcast_to(self, shape: ShapeLike, *, label: str | None = None) -> Node:
        """``x`` repeated along axes of size 1, and along new axes in front, to fill ``shape``."""
    def cast(self, to: DTypeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with another element type."""
    def ceil(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The smallest integer not below x."""
    def clip(
        self,
        low: NodeLike | None = None,
        high: NodeLike | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """``x`` kept between ``low`` and ``high``; either may be left out."""
    def cos(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The cosine."""
    def cosh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic cosine."""
    def cummax(
        self, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None
    ) -> Node:
        """Running maxima along ``axis``."""
    def cummin(
        self, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None
    ) -> Node:
        """Running minima along ``axis``."""
    def cumprod(
        self, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None
    ) -> Node:
        """Running products along ``axis``."""
    def cumsum(
        self,
        axis: int = -1,
        exclusive: bool = False,
        shape: Any = None,
        *,
        reverse: bool = False,
        label: str | None = None,
    ) -> Node:
        """Running sums along ``axis``; ``exclusive`` leaves each element out of its own sum."""
    def div(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a / b."""
    def dot_general(
        self,
        b: NodeLike,
        a_contract: int | Sequence[int],
        b_contract: int | Sequence[int],
        a_batch: int | Sequence[int] = (),
        b_batch: int | Sequence[int] = (),
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Products summed over the contracted axes, separately for each index of the batch axes."""
    def dynamic_slice(
        self, starts: NodeLike, sizes: ShapeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """A block of fixed ``sizes`` at a position computed in the graph (one entry of ``starts`` an axis)."""
    def dynamic_update_slice(
        self, update: NodeLike, starts: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """``x`` with a block replaced at a position computed in the graph; see ``dynamic_slice``."""
    def eq(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a == b, as bool."""
    def erf(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The error function."""
    def erfc(self, shape: Any = None, *, label: str | None = None) -> Node:
        """1 - erf(x), exact for large x."""
    def exp(self, shape: Any = None, *, label: str | None = None) -> Node:
        """e to the power x."""
    def exp2(self, shape: Any = None, *, label: str | None = None) -> Node:
        """2 to the power x."""
    def expm1(self, shape: Any = None, *, label: str | None = None) -> Node:
        """exp(x) - 1, exact near 0."""
    def flip(
        self,
        axes: int | Sequence[int] | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """``x`` with the order of elements along some axes (all by default) reversed."""
    def floor(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The largest integer not above x."""
    def floor_divide(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """floor(a / b), as Python's ``//``."""
    def fold(
        self,
        sizes: ShapeLike,
        stride: int | Sequence[int] = (1,),
        dilation: int | Sequence[int] = (1,),
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Windows added back to where they came from: the transpose of ``windows`` over axes of ``sizes``."""
    def gather(
        self, indices: NodeLike, axis: int = 0, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """Slices of ``table`` along ``axis``, one for each index; the indices' axes take that axis' place."""
    def ge(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a >= b, as bool."""
    def greater(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 where ``a > b``, else 0, in the operands' element type."""
    def gt(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a > b, as bool."""
    def is_finite(self, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is neither infinite nor NaN."""
    def is_inf(self, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is infinite."""
    def is_nan(self, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is NaN."""
    def le(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a <= b, as bool."""
    def log(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The natural logarithm; -inf at 0, NaN below."""
    def log10(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 10."""
    def log1p(self, shape: Any = None, *, label: str | None = None) -> Node:
        """log(1 + x), exact near 0."""
    def log2(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 2."""
    def logical_and(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a and b."""
    def logical_not(self, shape: Any = None, *, label: str | None = None) -> Node:
        """not x."""
    def logical_or(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a or b."""
    def logical_xor(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Exactly one of a and b."""
    def lt(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a < b, as bool."""
    def max(
        self,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The largest element over ``axes`` (all by default); NaN if there is one."""
    def maximum(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The larger of a and b; NaN if either is."""
    def min(
        self,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The smallest element over ``axes`` (all by default); NaN if there is one."""
    def minimum(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The smaller of a and b; NaN if either is."""
    def mul(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a * b."""
    def ne(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a != b, as bool."""
    def neg(self, shape: Any = None, *, label: str | None = None) -> Node:
        """-x."""
    def pad(
        self,
        padding: int | Sequence[int | Sequence[int]],
        value: float = 0.0,
        shape: Any = None,
        *,
        interior: int | Sequence[int] | None = None,
        label: str | None = None,
    ) -> Node:
        """``x`` with ``value`` around it: (low, high) for every axis, or one number for all."""
    def pow(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a to the power b."""
    def prod(
        self,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The product over ``axes`` (all by default). bool and integers below 32 bits widen to i32."""
    def project(self, index: int, shape: Any = None, *, label: str | None = None) -> Node:
        """One result of a node that has several."""
    def recip(self, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / x."""
    def remainder(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a - b * floor(a / b), as Python's ``%``: the sign is b's."""
    def reshape(self, shape: ShapeLike, *, label: str | None = None) -> Node:
        """The same elements, in the same order, under another shape."""
    def round(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The nearest integer; halves go to the even one."""
    def rsqrt(self, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / sqrt(x)."""
    def scatter_add(
        self,
        src: NodeLike,
        size: DimLike,
        shape: Any = None,
        *,
        axis: int = 0,
        label: str | None = None,
    ) -> Node:
        """Slices of ``src`` added up by index into a tensor of zeros with ``size`` entries along ``axis``."""
    def scatter_add_along_axis(
        self,
        src: NodeLike,
        size: DimLike,
        axis: int = -1,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Each element of ``src`` added to zeros at the place along ``axis`` that its index gives."""
    def shift_left(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a moved b bits up; b is below the width."""
    def shift_right(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a moved b bits down, keeping the sign."""
    def sign(self, shape: Any = None, *, label: str | None = None) -> Node:
        """-1, 0 or 1 by the sign of x."""
    def sin(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The sine."""
    def sinh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic sine."""
    def slice(
        self,
        starts: ShapeLike,
        stops: ShapeLike,
        steps: int | Sequence[int] | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Elements ``start, start + step, ...`` before ``stop`` along every axis; bounds are checked."""
    def solve(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The ``x`` with ``a @ x = b``, for each matrix of a batch."""
    def sort(
        self,
        axis: int = -1,
        descending: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The elements along ``axis`` in order; NaN sorts above everything."""
    def sqrt(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The square root; NaN below 0."""
    def square(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x * x."""
    def stop_gradient(self, shape: Any = None, *, label: str | None = None) -> Node:
        """``x``, through which no gradient passes."""
    def sub(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a - b."""
    def sum(
        self,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """The sum over ``axes`` (all by default). bool and integers below 32 bits sum to i32."""
    def take_along_axis(
        self, indices: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """For each position, the element of ``x`` whose place along ``axis`` the index gives."""
    def tan(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The tangent."""
    def tanh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic tangent."""
    def top_k(
        self, k: int, axis: int = -1, shape: Any = None, *, label: str | None = None
    ) -> tuple[Node, ...]:
        """The ``k`` largest elements along ``axis``, largest first, and their indices (i32)."""
    def transpose(
        self,
        perm: int | Sequence[int] | None = None,
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Axes in another order: axis ``i`` of the result is axis ``perm[i]`` of ``x``; reversed by default."""
    def triangular_solve(
        self,
        b: NodeLike,
        shape: Any = None,
        *,
        lower: bool = True,
        unit_diagonal: bool = False,
        label: str | None = None,
    ) -> Node:
        """Like ``solve``, reading only one triangle of ``a`` (and taking its diagonal as 1 if asked)."""
    def trunc(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x without its fraction."""
    def where(
        self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None
    ) -> Node:
        """``a`` where the condition holds, else ``b``."""
    def windows(
        self,
        window: int | Sequence[int],
        stride: int | Sequence[int] = (1,),
        dilation: int | Sequence[int] = (1,),
        shape: Any = None,
        *,
        label: str | None = None,
    ) -> Node:
        """Sliding windows over the last axes: their counts stay in place, and window axes are added at the end."""
