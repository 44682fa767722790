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

NodeLike: TypeAlias = Node | int | float | bool | complex | npt.NDArray[Any] | np.generic | Sequence[Any]
DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]
DimLike: TypeAlias = int | str | SymbolicDim
ShapeLike: TypeAlias = DimLike | Sequence[DimLike] | TensorType

def takes_node_first(item: Op | Builder) -> bool: ...

class GraphMethods:
    # Ops declared elsewhere are found at run time.
    def __getattr__(self, name: str) -> Callable[..., Any]: ...
    def abs(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The absolute value |x|, of complex numbers too."""
    def acos(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse cosine; NaN outside -1..1."""
    def acosh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of cosh; NaN below 1."""
    def activation(self, kind: Any, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """An activation, or any other element-wise function of one operand, by its name or ``Activation``."""
    def activation_backward(self, kind: str, x: NodeLike, dy: NodeLike, shape: Any = None, *, alpha: float | None = None, label: str | None = None) -> Node:
        """The gradient of ``activation(kind, x)`` with respect to x, given ``dy``, that of its result."""
    def adaptive_avg_pool(self, x: NodeLike, sizes: int | Sequence[int], shape: Any = None, *, label: str | None = None) -> Node:
        """The mean over ``sizes`` windows on each spatial axis, as even as they can be."""
    def adaptive_avg_pool1d(self, x: NodeLike, output_size: Any, *, label: str | None = None) -> Node:
        """[batch, channels, length] averaged to a given size; see ``adaptive_avg_pool``."""
    def adaptive_avg_pool2d(self, x: NodeLike, output_size: Any, *, label: str | None = None) -> Node:
        """[batch, channels, height, width] averaged to a given size; see ``adaptive_avg_pool``."""
    def adaptive_avg_pool3d(self, x: NodeLike, output_size: Any, *, label: str | None = None) -> Node:
        """[batch, channels, depth, height, width] averaged to a given size; see ``adaptive_avg_pool``."""
    def add(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a + b."""
    @overload
    def all(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether all elements over ``axes`` are True; True for none."""
    @overload
    def all(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def any(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether any element over ``axes`` is True; False for none."""
    @overload
    def any(self, *args: Any, **kwargs: Any) -> Node: ...
    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, label: str | None = None) -> Node:
        """``start``, ``start + step``, ... before ``stop``; from 0 when only one number is given."""
    def argmax(self, x: NodeLike, axis: int | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The index (i32) of the first largest element along ``axis``, or in the flattened tensor."""
    def argmin(self, x: NodeLike, axis: int | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The index (i32) of the first smallest element along ``axis``, or in the flattened tensor."""
    def argsort(self, x: NodeLike, axis: int = -1, descending: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The indices (i32) that put the elements along ``axis`` in order."""
    def asin(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse sine; NaN outside -1..1."""
    def asinh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse hyperbolic sine."""
    def atan(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse tangent."""
    def atan2(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The angle of the point (b, a)."""
    def atanh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of tanh; infinite at -1 and 1, as is its derivative, and NaN beyond."""
    def attention(self, q: NodeLike, k: NodeLike, v: NodeLike, mask: NodeLike | None, num_heads: int, head_dim: int, shape: Any = None, *, layout: Any = None, label: str | None = None) -> Node:
        """Attention with a mask tensor: (batch, keys), or rank 4 broadcasting to (batch, heads, queries, keys)."""
    def attention_(self, q: NodeLike, k: NodeLike, v: NodeLike, mask: NodeLike | None, num_heads: int, head_dim: int, *, layout: Any = None, label: str | None = None) -> Node:
        """The same as ``attention``."""
    def attention_backward(self, wrt: Any, q: NodeLike, k: NodeLike, v: NodeLike, dy: NodeLike, num_heads: int, head_dim: int, mask_kind: Any, mask: NodeLike | None = None, *, layout: Any = None, score_scale: float | None = None, attn_logit_softcap: float | None = None, label: str | None = None) -> Node:
        """One of the gradients of ``attention_backward_all``: ``wrt`` is ``AttentionBwdWrt.Q``, ``K`` or ``V``, or its text."""
    def attention_backward_all(self, q: NodeLike, k: NodeLike, v: NodeLike, dy: NodeLike, num_heads: int, head_dim: int, mask_kind: Any, mask: NodeLike | None = None, *, layout: Any = None, score_scale: float | None = None, attn_logit_softcap: float | None = None, label: str | None = None) -> tuple[Node, Node, Node]:
        """The gradients of ``attention`` and its kin with respect to ``q``, ``k`` and ``v``."""
    def attention_bias(self, q: NodeLike, k: NodeLike, v: NodeLike, bias: NodeLike, num_heads: int, head_dim: int, shape: Any = None, *, layout: Any = None, label: str | None = None) -> Node:
        """Attention with ``bias``, which broadcasts to (batch, heads, queries, keys), added to the scaled scores."""
    def attention_kind(self, q: NodeLike, k: NodeLike, v: NodeLike, num_heads: int, head_dim: int, mask_kind: Any, shape: Any = None, *, layout: Any = None, label: str | None = None) -> Node:
        """Attention with a mask that needs no tensor."""
    def attention_kind_opts(self, q: NodeLike, k: NodeLike, v: NodeLike, num_heads: int, head_dim: int, mask_kind: Any, shape: Any = None, score_scale: float | None = None, attn_logit_softcap: float | None = None, *, layout: Any = None, label: str | None = None) -> Node:
        """``attention_kind`` with a scale and a softcap; see ``scaled_dot_attention``."""
    def attention_opts(self, q: NodeLike, k: NodeLike, v: NodeLike, mask: NodeLike | None, num_heads: int, head_dim: int, shape: Any = None, score_scale: float | None = None, attn_logit_softcap: float | None = None, *, layout: Any = None, label: str | None = None) -> Node:
        """``attention`` with a scale and a softcap; see ``scaled_dot_attention``."""
    def attention_statistics(self, q: NodeLike, k: NodeLike, v: NodeLike, mask: NodeLike | None = None, bias: NodeLike | None = None, shape: Any = None, *, layout: Literal['bhsd', 'bshd'] = 'bhsd', causal: bool = False, window: int | None = None, scale: float | None = None, softcap: float | None = None, offset: NodeLike | None = None, label: str | None = None) -> Node:
        """What the softmax of ``scaled_dot_attention`` divides by, for each query: (batch, heads, 2, queries), in f32 of 16-bit floats."""
    def avg_pool(self, x: NodeLike, window: int | Sequence[int], shape: Any = None, *, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., count_include_pad: bool = True, ceil_mode: bool = False, label: str | None = None) -> Node:
        """The mean of each window."""
    def avg_pool1d(self, x: NodeLike, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *, label: str | None = None) -> Node:
        """The mean of each window of [batch, channels, length]; see ``avg_pool``."""
    def avg_pool2d(self, x: NodeLike, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *, label: str | None = None) -> Node:
        """The mean of each window of [batch, channels, height, width]; see ``avg_pool``."""
    def avg_pool3d(self, x: NodeLike, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *, label: str | None = None) -> Node:
        """The mean of each window of [batch, channels, depth, height, width]; see ``avg_pool``."""
    def avg_pool_backward(self, dy: NodeLike, window: int | Sequence[int], shape: Any = None, *, sizes: ShapeLike, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., count_include_pad: bool = True, ceil_mode: bool = False, label: str | None = None) -> Node:
        """The gradient of ``avg_pool`` for an input with these spatial ``sizes``: its transpose."""
    def axial_rope2d(self, x: NodeLike, end_x: int, end_y: int, head_dim: int, num_heads: int, theta: float = 10000.0, repeat_factor: int = 1, shape: Any = None, *, inverse: bool = False, label: str | None = None) -> Node:
        """Rotary embedding of the rows of an image, (..., length, num_heads * head_dim)."""
    def batch_norm(self, x: NodeLike, mean: NodeLike, var: NodeLike, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """(batch, channels, ...) normalised by the given mean and variance of each channel: the form of inference."""
    def batch_norm_backward(self, x: NodeLike, weight: NodeLike | None, dy: NodeLike, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``batch_norm_training(x, weight, bias, eps)[0]``: of x, of the weight and of the bias."""
    def batch_norm_training(self, x: NodeLike, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """(batch, channels, ...) normalised over everything but channels; also gives mean and biased variance."""
    def batched_dense_solve(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``dense_solve`` for each matrix of a batch: a [B, N, N] and b [B, N] or [B, N, K]."""
    def bce_loss(self, pred: NodeLike, labels: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Binary cross-entropy of probabilities: the mean of -(t log p + (1 - t) log(1 - p))."""
    def bce_with_logits_loss(self, logits: NodeLike, labels: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Binary cross-entropy of sigmoid(logits), exact for logits of any size."""
    def bernoulli(self, shape: Any, p: float = 0.5, *, label: str | None = None, **source: Any) -> Node:
        """A short name of ``random_bernoulli``."""
    def bias_add(self, a: NodeLike, bias: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A vector added to every row: a [..., N] and bias [N]."""
    def binary(self, op: Any, lhs: NodeLike, rhs: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A binary op by its kind: add, sub, mul, div, max, min or pow."""
    def bitwise_and(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in both integers."""
    def bitwise_or(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in either."""
    def bitwise_xor(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in one."""
    def broadcast_add(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """One row added to every row: a [..., N] and b [1, N]."""
    def broadcast_to(self, x: NodeLike, shape: ShapeLike, *, label: str | None = None) -> Node:
        """``x`` repeated along axes of size 1, and along new axes in front, to fill ``shape``."""
    def cache_update(self, cache: NodeLike, new: NodeLike, position: NodeLike, axis: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """``cache`` with rows replaced by those of ``new``, from ``position`` (one integer) on along ``axis``."""
    def cache_write(self, new: NodeLike, cache: NodeLike, kv_pos: NodeLike, *, axis: int = 0, label: str | None = None) -> Node:
        """``cache`` with ``new`` at rows ``kv_pos``, ``kv_pos + 1``, ... along ``axis``; returns the written cache."""
    def cached_attention(self, q: NodeLike, k_cache: NodeLike, v_cache: NodeLike, kv_pos: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, window: int | None = None, scale: float | None = None, softcap: float | None = None, label: str | None = None) -> Node:
        """Attention to a cache filled so far: query ``i`` sees rows 0 to ``kv_pos + i``."""
    def cast(self, x: NodeLike, to: DTypeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with another element type."""
    def causal_attention(self, q: NodeLike, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, label: str | None = None) -> Node:
        """Attention to keys that do not come after the query."""
    def ceil(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The smallest integer not below x."""
    def celu(self, x: NodeLike, alpha: float = 1.0, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` above 0, ``alpha * (exp(x / alpha) - 1)`` below; smooth for every alpha."""
    def chain(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a * b, and 0 wherever a is 0, even if b is infinite or NaN."""
    def cholesky(self, a: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The lower triangular ``l`` with ``l @ l.T = a``, for each positive definite matrix."""
    def chunk(self, x: NodeLike, count: int, axis: int = 0, *, label: str | None = None) -> list[Node]:
        """At most ``count`` pieces along ``axis``, equal but for the last, which may be smaller."""
    def clip(self, x: NodeLike, low: NodeLike | None = None, high: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` kept between ``low`` and ``high``; either may be left out."""
    def compare(self, op: Any, lhs: NodeLike, rhs: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A comparison by its kind: eq, ne, lt, le, gt or ge."""
    @overload
    def complex(self, re: NodeLike, im: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Complex numbers of two real tensors, which broadcast; 16-bit floats become f32."""
    @overload
    def complex(self, *args: Any, **kwargs: Any) -> Node: ...
    def complex_norm_sq(self, z: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The square of the absolute value of each complex number, ``re^2 + im^2``: a real loss of a complex graph."""
    def complex_norm_sq_backward(self, z: NodeLike, g: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """RLX's gradient of ``complex_norm_sq``: ``g * z``, the derivative by the conjugate of ``z``, which is half of what PyTorch and ``grad`` return."""
    @overload
    def concat(self, inputs: Sequence[NodeLike], axis: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """Tensors one after another along ``axis``; other sizes must be equal."""
    @overload
    def concat(self, *args: Any, **kwargs: Any) -> Node: ...
    def concat_(self, inputs: list[NodeLike], axis: int, *, label: str | None = None) -> Node:
        """RLX's spelling of ``concat``."""
    def conjugate(self, z: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The complex conjugate of each element: ``re - i im``."""
    @overload
    def constant(self, values: Any, shape: Any = None, *, label: str | None = None) -> Node:
        """A tensor whose values are part of the graph: ``g.constant(data, shape=None, dtype=None)``."""
    @overload
    def constant(self, *args: Any, **kwargs: Any) -> Node: ...
    def conv(self, x: NodeLike, w: NodeLike, shape: Any = None, *, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """Convolution of ``x`` [batch, in, *spatial] with ``w`` [out, in / groups, *kernel]."""
    def conv1d(self, x: NodeLike, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Convolution of [batch, in, length] with [out, in / groups, kernel]; see ``conv2d``."""
    def conv2d(self, x: NodeLike, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Convolution of [batch, in, height, width] with [out, in / groups, *kernel]."""
    def conv2d_backward_input(self, dy: NodeLike, w: NodeLike, x_shape: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int, *, label: str | None = None) -> Node:
        """The gradient of ``conv2d`` towards an input of ``x_shape``; see ``conv_input_grad``."""
    def conv2d_backward_weight(self, x: NodeLike, dy: NodeLike, w_shape: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int, *, label: str | None = None) -> Node:
        """The gradient of ``conv2d`` towards a weight of ``w_shape``; see ``conv_weight_grad``."""
    def conv2d_grad_input(self, dy: NodeLike, kernel: NodeLike, batch: int, in_channels: int, in_h: int, in_w: int, out_channels: int, kernel_h: int, kernel_w: int, stride: int, padding: int, padding_w: int | None = None, *, label: str | None = None) -> Node:
        """The gradient of flat ``conv2d`` towards its input, flat; the integers are the same."""
    def conv2d_grad_weight(self, dy: NodeLike, x: NodeLike, batch: int, in_channels: int, in_h: int, in_w: int, out_channels: int, kernel_h: int, kernel_w: int, stride: int, padding: int, padding_w: int | None = None, *, label: str | None = None) -> Node:
        """The gradient of flat ``conv2d`` towards its kernel, flat; the integers are the same."""
    def conv2d_hw(self, x: NodeLike, kernel: NodeLike, batch: int, in_channels: int, in_h: int, in_w: int, out_channels: int, kernel_h: int, kernel_w: int, stride: int, pad_h: int, pad_w: int, *, label: str | None = None) -> Node:
        """Convolution of flat NCHW tensors, rows and columns padded apart; the result is flat."""
    def conv3d(self, x: NodeLike, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Convolution of [batch, in, depth, height, width]; see ``conv2d``."""
    def conv_input_grad(self, dy: NodeLike, w: NodeLike, shape: Any = None, *, sizes: ShapeLike, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """The transpose of ``conv`` in its first operand: the gradient towards ``x``."""
    def conv_last(self, x: NodeLike, w: NodeLike, shape: Any = None, *, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """``conv`` of ``x`` [batch, *spatial, in] with ``w`` [out, *kernel, in / groups]: [batch, *spatial, out]."""
    def conv_last_input_grad(self, dy: NodeLike, w: NodeLike, shape: Any = None, *, sizes: ShapeLike, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """The transpose of ``conv_last`` in its first operand; ``sizes`` are the spatial sizes of ``x``."""
    def conv_last_weight_grad(self, x: NodeLike, dy: NodeLike, shape: Any = None, *, kernel: int | Sequence[int], stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """``conv_weight_grad`` of images with channels last: towards a weight [out, in / groups, *kernel], as ``conv`` has it."""
    def conv_transpose1d(self, x: NodeLike, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Transposed convolution of [batch, in, length]; see ``conv_transpose2d``."""
    def conv_transpose2d(self, x: NodeLike, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Transposed convolution of [batch, in, height, width] with [in, out / groups, *kernel]."""
    def conv_transpose3d(self, x: NodeLike, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Transposed convolution of [batch, in, depth, height, width]; see ``conv_transpose2d``."""
    def conv_weight_grad(self, x: NodeLike, dy: NodeLike, shape: Any = None, *, kernel: int | Sequence[int], stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """The transpose of ``conv`` in its second operand: the gradient towards ``w``."""
    def cos(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The cosine."""
    def cosh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic cosine."""
    def cosine_similarity(self, a: NodeLike, b: NodeLike, axis: int = -1, shape: Any = None, *, eps: float = 1e-08, label: str | None = None) -> Node:
        """The cosine of the angle between ``a`` and ``b`` along ``axis`` of their broadcast shape."""
    def count_nonzero(self, x: NodeLike, axes: Any = None, keepdims: bool = False, *, label: str | None = None) -> Node:
        """How many elements over ``axes`` (all by default) are not 0, as i32."""
    def cross_attention(self, q: NodeLike, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, label: str | None = None) -> Node:
        """Attention of every row to every row of another sequence, of any length."""
    def cross_entropy_loss(self, logits: NodeLike, labels: NodeLike, shape: Any = None, *, label_smoothing: float = 0.0, ignore_index: int = -100, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Minus the log-probability that softmax(logits) gives the labels, as the mean over rows."""
    def cummax(self, x: NodeLike, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running maxima along ``axis``."""
    def cummin(self, x: NodeLike, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running minima along ``axis``."""
    def cumprod(self, x: NodeLike, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running products along ``axis``."""
    def cumsum(self, x: NodeLike, axis: int = -1, exclusive: bool = False, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running sums along ``axis``; ``exclusive`` leaves each element out of its own sum."""
    def cumsum_backward(self, dy: NodeLike, out_shape: Any = None, axis: int = -1, exclusive: bool = False, *, label: str | None = None) -> Node:
        """The derivative of ``cumsum``: running sums of ``dy`` from the end."""
    def custom_fn(self, inputs: Sequence[NodeLike], body: Graph, vjp_body: Graph | None = None, jvp_body: Graph | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """The graph ``body`` of the operands ``inputs``, matched in the order they are declared."""
    def custom_fn_multi(self, inputs: list[NodeLike], body: Graph, vjp_body: Graph | None = None, jvp_body: Graph | None = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The outputs of ``body``, whatever their number, shapes and element types; see ``custom_fn``."""
    def custom_fn_tuple(self, inputs: Sequence[NodeLike], body: Graph, vjp_body: Graph | None = None, jvp_body: Graph | None = None, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """``custom_fn`` of a body with any number of outputs; see ``custom_fn_multi``."""
    def custom_op(self, name: str, attrs: bytes, inputs: list[NodeLike], *, label: str | None = None) -> Node:
        """The op registered as ``name`` (``darner.register_op``) of the operands ``inputs``; its functions get ``attrs`` as they are."""
    def custom_op_packed(self, name: str, attrs: bytes, inputs: list[NodeLike], out_shape: TensorType, *, label: str | None = None) -> Node:
        """The op registered as ``name``, with a result of the type ``out_shape``; its ``infer_shape`` is not asked."""
    def dense_solve(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The ``x`` with ``a @ x = b``, for a [N, N] and b [N] or [N, K]."""
    def dequant_grouped_matmul(self, x: NodeLike, packed_w: NodeLike, expert: NodeLike, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """Each row times the packed matrix that its index chooses: ``y[i] = x[i] @ W[expert[i]].T``."""
    def dequant_matmul(self, x: NodeLike, w_q: NodeLike, scale: NodeLike | None, zp: NodeLike | None, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ W`` with quantised weights W [K, N], which are decoded as they are read and never stored as floats."""
    def dequant_matmul_nvfp4(self, x: NodeLike, w_q: NodeLike, block_scales: NodeLike, global_scale: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ W`` with NVFP4 weights: floats of 4 bits, a float of 8 bits for each 16 rows of a column, and one scale for all."""
    def dequant_matmul_packed(self, x: NodeLike, packed_w: NodeLike, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ W.T`` with the weights of a GGUF file as they are there: W [N, K] in blocks of bytes along K."""
    def dequant_moe_weights(self, packed_w: NodeLike, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """The matrices of all experts as f32 [E, K, N], from packed slabs [E, N, row bytes]: what ``grouped_matmul`` takes."""
    def dequantize(self, q: NodeLike, scale: float, zero_point: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """What codes stand for, ``(q - zero_point) * scale``, as f32; ``q`` is i8, or u8 with a zero point in 0..255."""
    def dequantize_blocks(self, codes: NodeLike, scales: NodeLike | None = None, offsets: NodeLike | None = None, shape: Any = None, *, scheme: str, to: DTypeLike = ..., label: str | None = None) -> Node:
        """What stored weights stand for, by ``scheme`` (a ``QuantScheme`` or its name)."""
    def dequantize_per_channel(self, q: NodeLike, axis: int, scales: float | Sequence[float], zero_points: int | Sequence[int], shape: Any = None, *, label: str | None = None) -> Node:
        """``dequantize`` with a scale and a zero point for each slice along ``axis``."""
    def det(self, a: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The determinant of each square matrix."""
    def diagonal(self, x: NodeLike, k: int = 0, *, label: str | None = None) -> Node:
        """The diagonal of the last two axes, as the last axis; ``k`` diagonals above the main one."""
    def div(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a / b."""
    def dot(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The sum of the products of two vectors, a scalar."""
    def dot_general(self, a: NodeLike, b: NodeLike, a_contract: int | Sequence[int], b_contract: int | Sequence[int], a_batch: int | Sequence[int] = (), b_batch: int | Sequence[int] = (), shape: Any = None, *, label: str | None = None) -> Node:
        """Products summed over the contracted axes, separately for each index of the batch axes."""
    @overload
    def dropout(self, x: NodeLike, rate: float = 0.5, shape: Any = None, *, seed: int = 0, stream: int | None = None, step: NodeLike | None = None, label: str | None = None) -> Node:
        """``x`` with elements set to 0 with probability ``rate``, and the others over 1 - rate."""
    @overload
    def dropout(self, *args: Any, **kwargs: Any) -> Node: ...
    def dynamic_slice(self, x: NodeLike, starts: NodeLike, sizes: ShapeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A block of fixed ``sizes`` at a position computed in the graph (one entry of ``starts`` an axis)."""
    def dynamic_update_slice(self, x: NodeLike, update: NodeLike, starts: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with a block replaced at a position computed in the graph; see ``dynamic_slice``."""
    def einsum(self, equation: str, *operands: NodeLike, label: str | None = None) -> Node:
        """Sums of products by an equation of letters, as in NumPy: ``einsum("bij,bjk->bik", a, b)``."""
    def elu(self, x: NodeLike, alpha: float = 1.0, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""
    def embedding(self, indices: NodeLike, table: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """One row of ``table`` (a matrix) for each index; the row's axis comes last."""
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
    def expand(self, x: NodeLike, shape: Any, *, label: str | None = None) -> Node:
        """``x`` repeated along axes of size 1 and new axes in front, to fill ``shape``; -1 keeps a size."""
    def expand_dims(self, x: NodeLike, axis: Any, *, label: str | None = None) -> Node:
        """NumPy's spelling of ``unsqueeze``."""
    def expm1(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """exp(x) - 1, exact near 0."""
    def eye(self, n: Any, m: Any = None, dtype: Any = 'f32', *, label: str | None = None) -> Node:
        """A matrix with ones on its diagonal and zeros elsewhere; square unless ``m`` is given."""
    def fake_quantize(self, x: NodeLike, scale: float | Sequence[float], zero_point: int | Sequence[int] = (0,), axis: int | None = None, shape: Any = None, *, bits: int = 8, label: str | None = None) -> Node:
        """``x`` as its codes stand for it, in its own type: what a model is trained with that will be quantised."""
    def fft(self, x: NodeLike, inverse: bool = False, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The discrete Fourier transform along ``axis``: ``X[k] = sum_n x[n] exp(-2 pi i k n / N)``, with a plus where it is ``inverse``."""
    def fft_axis(self, x: NodeLike, axis: int, inverse: bool = False, norm: Any = 'none', shape: object = None, *, label: str | None = None) -> Node:
        """``fft`` along any axis; of real numbers it is the one that holds real and imaginary parts."""
    def fft_batch_real(self, x: NodeLike, norm: Any = 'none', *, label: str | None = None) -> tuple[Node, Node]:
        """``fft_real``; leading axes are a batch in both."""
    def fft_conv1d(self, a: NodeLike, b: NodeLike, n_fft: int = 0, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The convolution of signals along the last axis, as ``np.convolve``: ``la + lb - 1`` elements; leading axes broadcast."""
    def fft_norm(self, x: NodeLike, inverse: bool, norm: Any, shape: object = None, *, label: str | None = None) -> Node:
        """``fft`` with its factor as the third argument: an ``FftNorm``, or a word."""
    def fft_real(self, x: NodeLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The whole spectrum of real signals along the last axis, padded with zeros to a power of two, as real and imaginary parts."""
    def fftfreq_tensor(self, n: int, *, label: str | None = None) -> Node:
        """The frequencies of a transform of n elements in turns an element, as ``np.fft.fftfreq``: f64 ``[n]``."""
    def fftn(self, x: NodeLike, axes: int | Sequence[int] | None = None, inverse: bool = False, norm: Any = 'none', *, label: str | None = None) -> Node:
        """``fft`` along several axes, all of them by default; more than one needs complex numbers."""
    def flatten(self, x: NodeLike, start: int = 0, end: int = -1, *, label: str | None = None) -> Node:
        """The axes from ``start`` to ``end`` (both included) as one; all of them by default."""
    def flip(self, x: NodeLike, axes: int | Sequence[int] | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with the order of elements along some axes (all by default) reversed."""
    def floor(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The largest integer not above x."""
    def floor_divide(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """floor(a / b), as Python's ``//``."""
    def fold(self, x: NodeLike, sizes: ShapeLike, stride: int | Sequence[int] = (1,), dilation: int | Sequence[int] = (1,), shape: Any = None, *, label: str | None = None) -> Node:
        """Windows added back to where they came from: the transpose of ``windows`` over axes of ``sizes``."""
    def full(self, shape: Any, value: Any, dtype: Any = None, *, label: str | None = None) -> Node:
        """A tensor filled with one number: a scalar constant, broadcast."""
    def full_attention(self, q: NodeLike, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, label: str | None = None) -> Node:
        """Attention of every row to every row of the same sequence."""
    def full_like(self, x: NodeLike, value: Any, dtype: Any = None, *, label: str | None = None) -> Node:
        """A tensor of ``x``'s shape (and element type, unless another is given) filled with one number."""
    def fused_conv(self, x: NodeLike, w: NodeLike, bias: NodeLike | None = None, residual: NodeLike | None = None, shape: Any = None, *, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, activation: str | None = None, label: str | None = None) -> Node:
        """``activation(conv(x, w) + bias) + residual`` as one op; 16-bit floats are rounded once, at its end."""
    def fused_matmul(self, a: NodeLike, b: NodeLike, bias: NodeLike | None = None, residual: NodeLike | None = None, shape: Any = None, *, form: Literal['nn', 'tn', 'nt'] = 'nn', activation: str | None = None, label: str | None = None) -> Node:
        """``activation(a @ b + bias) + residual`` as one op; 16-bit floats are rounded once, at its end."""
    def fused_matmul_bias_act(self, input: NodeLike, weight: NodeLike, bias: NodeLike, activation: str | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``activation(input @ weight + bias)`` as one op; 16-bit floats are rounded once, at its end."""
    def fused_residual_ln(self, x: NodeLike, residual: NodeLike, bias: NodeLike | None, gamma: NodeLike | None, beta: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """``layer_norm(x + residual + bias, gamma, beta, eps)`` over the last axis; bias may be None."""
    def fused_residual_rms_norm(self, x: NodeLike, residual: NodeLike, bias: NodeLike | None, gamma: NodeLike | None, beta: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """``rms_norm(x + residual + bias, gamma, beta, eps)`` over the last axis; bias may be None."""
    def fused_swiglu_ffn(self, x: NodeLike, up_w: NodeLike, gate_w: NodeLike, down_w: NodeLike, out_shape: Any = None, *, label: str | None = None) -> Node:
        """``swiglu_ffn`` with one product for up and gate: the weights are joined as [up | gate]."""
    def gated_delta_net(self, q: NodeLike, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """The gated delta rule from an empty state: ``M *= exp(g); M += k (beta (v - M'k))'; o = M'q / sqrt(n)`` along the sequence."""
    def gated_delta_net_backward(self, q: NodeLike, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, dy: NodeLike, state: NodeLike | None = None, dstate: NodeLike | None = None, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``gated_delta_net`` with respect to ``q``, ``k``, ``v``, ``g`` and ``beta``; from a ``state``, also with respect to that."""
    def gated_delta_net_carry(self, q: NodeLike, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, state: NodeLike, state_size: int | None = None, shape: object = None, *, return_state: bool = False, label: str | None = None) -> Node | tuple[Node, Node]:
        """``gated_delta_net`` that begins with ``state`` (batch, heads, n keys, n values): a whole prompt, or one token of it."""
    def gated_delta_net_final(self, q: NodeLike, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, state: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """``gated_delta_net`` from a ``state`` (batch, heads, n keys, n values), and the state after the last step."""
    def gather(self, table: NodeLike, indices: NodeLike, axis: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """Slices of ``table`` along ``axis``, one for each index; the indices' axes take that axis' place."""
    def gather_(self, table: NodeLike, indices: NodeLike, axis: int, *, label: str | None = None) -> Node:
        """RLX's spelling of ``gather``."""
    def gather_backward(self, dy: NodeLike, indices: NodeLike, table_shape: Any, axis: int = 0, *, label: str | None = None) -> Node:
        """The derivative of ``gather`` by its table: ``dy`` added up by index into zeros of the table's shape."""
    @overload
    def gaussian_splat_prepare(self, positions: NodeLike, scales: NodeLike, rotations: NodeLike, opacities: NodeLike, colors: NodeLike, sh_coeffs: NodeLike, meta: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, shape: Any = None, *, label: str | None = None) -> Node:
        """What ``gaussian_splat_rasterize`` makes a picture of, in one flat tensor."""
    @overload
    def gaussian_splat_prepare(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def gaussian_splat_rasterize(self, prep: NodeLike, meta: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, shape: Any = None, *, label: str | None = None) -> Node:
        """The picture of what ``gaussian_splat_prepare`` packed, with the same options; bit for bit that of ``gaussian_splat_render``."""
    @overload
    def gaussian_splat_rasterize(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def gaussian_splat_render(self, positions: NodeLike, scales: NodeLike, rotations: NodeLike, opacities: NodeLike, colors: NodeLike, sh_coeffs: NodeLike, meta: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, shape: Any = None, *, label: str | None = None) -> Node:
        """A picture of a scene of soft ellipsoids: [height * width * 4], red, green, blue and opacity of each pixel, from above."""
    @overload
    def gaussian_splat_render(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def gaussian_splat_render_backward(self, positions: NodeLike, scales: NodeLike, rotations: NodeLike, opacities: NodeLike, colors: NodeLike, sh_coeffs: NodeLike, meta: NodeLike, d_loss_rgba: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, loss_grad_clip: float = 1.0, sh_band: int = 0, max_anisotropy: float = 10.0, shape: Any = None, *, label: str | None = None) -> Node:
        """What the tensors of a scene receive from the cotangent ``d_loss_rgba`` of its picture, cut off at ``loss_grad_clip``."""
    @overload
    def gaussian_splat_render_backward(self, *args: Any, **kwargs: Any) -> Node: ...
    def gaussian_splat_render_decomposed(self, inputs: Any, params: Any = None, *, label: str | None = None) -> Node:
        """``gaussian_splat_rasterize`` of ``gaussian_splat_prepare``: bit for bit the picture of ``gaussian_splat_render``."""
    def gaussian_splat_render_meta(self, position: Sequence[float], target: Sequence[float], up: Sequence[float], fov_y_degrees: float, near: float, far: float, background: Sequence[float], params: Any = None, *, label: str | None = None) -> Node:
        """A camera at ``position`` that looks at ``target``, and the colour behind the scene, as a constant of 23 numbers."""
    def ge(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a >= b, as bool."""
    def geglu(self, gate: NodeLike, up: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """gelu(gate) * up, both of one shape."""
    def gelu(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x times the normal distribution function of x: 0.5 * x * (1 + erf(x / sqrt(2)))."""
    def gelu_approx(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """gelu through tanh: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))."""
    def getitem(self, x: NodeLike, key: Any, *, label: str | None = None) -> Node:
        """``x[key]``, as NumPy reads it."""
    def global_avg_pool(self, x: NodeLike, *geometry: int, keepdims: bool = False, label: str | None = None) -> Node:
        """The mean of each channel: [batch, channels, *spatial] becomes [batch, channels]."""
    def global_max_pool(self, x: NodeLike, *geometry: int, keepdims: bool = False, label: str | None = None) -> Node:
        """The largest element of each channel: [batch, channels, *spatial] becomes [batch, channels]."""
    def glu(self, x: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The first half of ``axis`` times the sigmoid of the second half."""
    def greater(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 where ``a > b``, else 0, in the operands' element type."""
    def greedy(self, logits: NodeLike, *, label: str | None = None) -> Node:
        """The index (i32) of the largest logit of each row, the first where several are."""
    @overload
    def group_norm(self, x: NodeLike, weight: NodeLike | None, bias: NodeLike | None, num_groups: int, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """(batch, channels, ...) normalised over each group of channels and all space; affine by channel."""
    @overload
    def group_norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def group_norm_backward_beta(self, x: NodeLike, dy: NodeLike, beta_shape: ShapeLike | None = None, num_groups: int = 1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to beta: ``dy`` summed."""
    def group_norm_backward_gamma(self, x: NodeLike, dy: NodeLike, gamma_shape: ShapeLike | None = None, num_groups: int = 1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to gamma."""
    def group_norm_backward_input(self, x: NodeLike, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, num_groups: int, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to x."""
    def group_norm_grad_input(self, dy: NodeLike, x: NodeLike, w: NodeLike, batch: int, channels: int, spatial: int, num_groups: int, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of the flat ``group_norm`` with respect to x, of the shape of x."""
    def group_norm_grad_weight_bias(self, dy: NodeLike, x: NodeLike, channels: int, spatial: int, num_groups: int, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradients of the flat ``group_norm`` with respect to weight and bias, one after the other: [2 * channels]."""
    @overload
    def group_norm_silu(self, x: NodeLike, weight: NodeLike | None, bias: NodeLike | None, num_groups: int, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """``silu(group_norm(x, weight, bias, num_groups, eps))``, flat form included."""
    @overload
    def group_norm_silu(self, *args: Any, **kwargs: Any) -> Node: ...
    def grouped_matmul(self, x: NodeLike, w: NodeLike, expert: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Each row times the matrix its index chooses: ``y[i] = x[i] @ w[expert[i]]``."""
    def gt(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a > b, as bool."""
    def hard_sigmoid(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A sigmoid of straight lines: 0 below -3, 1 above 3, x / 6 + 0.5 between."""
    def hard_silu(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x * hard_sigmoid(x), also called hardswish."""
    def hard_tanh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x kept between -1 and 1."""
    def huber_loss(self, pred: NodeLike, target: NodeLike, delta: float = 1.0, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Half the square of pred - target up to ``delta``, and beyond it a line of slope ``delta``."""
    def ifft_spectrum(self, re: NodeLike, im: NodeLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The real part of the inverse transform of a whole spectrum along the last axis."""
    def ifftn(self, x: NodeLike, axes: int | Sequence[int] | None = None, norm: Any = 'none', *, label: str | None = None) -> Node:
        """The inverse of ``fftn``, by default without a factor."""
    def imag(self, z: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The imaginary part of each complex number."""
    @overload
    def input(self, name: str, shape: ShapeLike, dtype: DTypeLike = ..., *, label: str | None = None) -> Node:
        """A tensor given at every run, by its name."""
    @overload
    def input(self, *args: Any, **kwargs: Any) -> Node: ...
    def input_u32(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """An input of u32, such as token ids."""
    def instance_norm(self, x: NodeLike, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """(batch, channels, space ...) normalised over space, for each sample and channel by itself."""
    def inverse(self, a: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of each square matrix."""
    def inverse_real_fft(self, re: NodeLike, im: NodeLike, n: DimLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The n real numbers whose spectrum begins with these ``n // 2 + 1`` along the last axis."""
    def iota(self, shape: ShapeLike, axis: int = 0, dtype: DTypeLike = ..., *, label: str | None = None) -> Node:
        """0, 1, 2, ... along ``axis``, repeated along the others."""
    def irfft(self, re: NodeLike, im: NodeLike, n: int, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """Real signals from half their spectrum along the last axis."""
    def is_finite(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is neither infinite nor NaN."""
    def is_inf(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is infinite."""
    def is_nan(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is NaN."""
    def iterate(self, step: Any, init: Any, xs: Any = None, length: int | None = None, *, reverse: bool = False, checkpoints: int | None = None, label: str | None = None) -> Any:
        """``carry, y = step(carry, x)`` for each step of ``xs``: the last carry, and all ``y`` stacked."""
    def kl_div(self, log_probs: NodeLike, target: NodeLike, shape: Any = None, *, log_target: bool = False, reduction: Literal['mean', 'batchmean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """The Kullback-Leibler divergence, target * (log(target) - log_probs) at each element."""
    def l1_loss(self, pred: NodeLike, target: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """The mean of |pred - target|."""
    def l2_normalize(self, x: NodeLike, axis: int | Sequence[int] = (-1,), eps: float = 1e-12, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` divided by its length (the root of the sum of squares) over ``axis``, or by eps where it is shorter."""
    @overload
    def layer_norm(self, x: NodeLike, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, axis: int = -1, label: str | None = None) -> Node:
        """``(x - mean) / sqrt(variance + eps) * weight + bias`` over ``axis`` and all axes after it."""
    @overload
    def layer_norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def layer_norm2d(self, x: NodeLike, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """NCHW images normalised over their channels, at every position by itself."""
    def layer_norm_backward_beta(self, dy: NodeLike, beta_shape: ShapeLike | None = None, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm`` with respect to beta: ``dy`` summed over the axes before ``axis``."""
    def layer_norm_backward_gamma(self, x: NodeLike, dy: NodeLike, gamma_shape: ShapeLike | None = None, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, gamma, beta, eps, axis=axis)`` with respect to gamma."""
    def layer_norm_backward_input(self, x: NodeLike, gamma: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, gamma, beta, eps, axis=axis)`` with respect to x."""
    def layer_norm_grad_wb(self, dy: NodeLike, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, w, b, eps)`` with respect to w, of the type of w."""
    def layer_norm_grad_x(self, dy: NodeLike, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, w, b, eps)`` with respect to x."""
    def le(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a <= b, as bool."""
    def leaky_relu(self, x: NodeLike, slope: float = 0.01, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` above 0, ``slope * x`` below."""
    def linear(self, x: NodeLike, w: NodeLike, bias: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ w.T + bias`` with PyTorch's layout of a weight: [out, in]."""
    def linear_bias(self, x: NodeLike, w: NodeLike, bias: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ w + bias`` for w [in, out] and bias [out], which may be left out."""
    def linear_bias_act(self, x: NodeLike, w: NodeLike, bias: NodeLike | None = None, activation: Any = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``activation(x @ w + bias)`` as separate ops; bias and activation may be left out."""
    def linear_fused(self, x: NodeLike, w: NodeLike, bias: NodeLike, activation: Any = None, out_shape: Any = None, *, label: str | None = None) -> Node:
        """``fused_matmul_bias_act`` by RLX's other name."""
    def linear_recurrence(self, a: NodeLike, b: NodeLike, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """``y[i] = a[i] * y[i - 1] + b[i]`` along ``axis``, from ``y[-1] = 0``; ``reverse`` starts at the end."""
    def linspace(self, start: Any, stop: Any, count: int, dtype: Any = 'f32', *, label: str | None = None) -> Node:
        """``count`` numbers at equal distances from ``start`` to ``stop``, both included."""
    def ln(self, x: NodeLike, gamma: NodeLike, beta: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """RLX's short spelling of ``layer_norm`` over the last axis."""
    def log(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The natural logarithm; -inf at 0, NaN below."""
    def log10(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 10."""
    def log1p(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """log(1 + x), exact near 0."""
    def log2(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 2."""
    def log_sigmoid(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """log(sigmoid(x)), exact where sigmoid rounds to 0 or 1."""
    def log_softmax(self, x: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm of softmax: ``x`` less the log of the sum of exp(x) along ``axis``."""
    def log_softmax_backward(self, y: NodeLike, dy: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of log_softmax for its input, from its result ``y`` and the gradient ``dy``."""
    def logdet(self, a: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm of each determinant: -inf where it is 0, NaN where it is negative."""
    def logical_and(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a and b."""
    def logical_not(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """not x."""
    def logical_or(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a or b."""
    def logical_xor(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Exactly one of a and b."""
    @overload
    def logsumexp(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm of the sum of exponentials over ``axes`` (all by default), without overflow."""
    @overload
    def logsumexp(self, *args: Any, **kwargs: Any) -> Node: ...
    def loop(self, init: Sequence[NodeLike], constants: Sequence[NodeLike], xs: Sequence[NodeLike], body: Graph, length: int, reverse: bool = False, recompute: bool = False, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """``body`` for each of ``length`` steps, from the carries ``init``; the last carries, and what the steps wrote."""
    def lora_matmul(self, x: NodeLike, w: NodeLike, a: NodeLike, b: NodeLike, scale: float = 1.0, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ w + scale * (x @ a) @ b``: a weight [K, N] with a low-rank change a [K, R], b [R, N]."""
    def lt(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a < b, as bool."""
    def masked_fill(self, x: NodeLike, mask: NodeLike, value: float, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with one number wherever ``mask`` (which broadcasts to ``x``) is True."""
    def masked_softmax(self, x: NodeLike, mask: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """Softmax over the elements where ``mask`` is True; the others get exactly 0."""
    def matmul(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Matrix product of the last two axes; the axes before them broadcast."""
    def matmul_at(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``a.T @ b`` for a [K, M] and b [K, N]: the gradient of a weight."""
    def matmul_bt(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``a @ b.T`` for a [M, K] and b [N, K]: the gradient of an input."""
    @overload
    def max(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The largest element over ``axes`` (all by default); NaN if there is one."""
    @overload
    def max(self, *args: Any, **kwargs: Any) -> Node: ...
    def max_pool(self, x: NodeLike, window: int | Sequence[int], shape: Any = None, *, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), ceil_mode: bool = False, label: str | None = None) -> Node:
        """The largest element of each window; padding never wins (it is -inf, or the least integer)."""
    def max_pool1d(self, x: NodeLike, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, *, label: str | None = None) -> Node:
        """The largest element of each window of [batch, channels, length]; see ``max_pool``."""
    def max_pool2d(self, x: NodeLike, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, *, label: str | None = None) -> Node:
        """The largest element of each window of [batch, channels, height, width]; see ``max_pool``."""
    def max_pool3d(self, x: NodeLike, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, *, label: str | None = None) -> Node:
        """The largest element of each window of [batch, channels, depth, height, width]; see ``max_pool``."""
    def max_pool_2d(self, x: NodeLike, batch: int, channels: int, in_h: int, in_w: int, kernel_h: int, kernel_w: int, stride: int, padding: int, *, label: str | None = None) -> Node:
        """The largest element of each window of a flat NCHW tensor, flat; see ``max_pool2d``."""
    def max_pool_backward(self, x: NodeLike, dy: NodeLike, window: int | Sequence[int], shape: Any = None, *, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), ceil_mode: bool = False, label: str | None = None) -> Node:
        """The gradient of ``max_pool``: ``dy`` is added where each window has its first maximum."""
    def maximum(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The larger of a and b; NaN if either is, and 0 is larger than -0."""
    def maxpool2d_backward(self, x: NodeLike, dy: NodeLike, kernel_size: Any, stride: Any, padding: Any, *, label: str | None = None) -> Node:
        """The gradient of ``max_pool2d`` towards its input; see ``max_pool_backward``."""
    @overload
    def mean(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The mean over ``axes`` (all by default)."""
    @overload
    def mean(self, *args: Any, **kwargs: Any) -> Node: ...
    def mean_all(self, x: NodeLike, *, label: str | None = None) -> Node:
        """The mean of all elements, as a tensor of shape [1]."""
    def meshgrid(self, inputs: list[NodeLike], indexing: str = 'ij', *, label: str | None = None) -> list[Node]:
        """Vectors as coordinates of a grid: each repeated along the axes of the others."""
    @overload
    def min(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The smallest element over ``axes`` (all by default); NaN if there is one."""
    @overload
    def min(self, *args: Any, **kwargs: Any) -> Node: ...
    def min_pool(self, x: NodeLike, window: Any, *, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, label: str | None = None) -> Node:
        """The least element of each window; padding never wins."""
    def minimum(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The smaller of a and b; NaN if either is, and -0 is smaller than 0."""
    def mish(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x * tanh(softplus(x))."""
    def mm(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Shorthand for ``matmul``."""
    def moveaxis(self, x: NodeLike, source: Any, destination: Any, *, label: str | None = None) -> Node:
        """``x`` with an axis (or several) moved to another place, the others in order around it."""
    def mse_loss(self, pred: NodeLike, target: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """The mean of (pred - target) squared."""
    def mul(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a * b."""
    def multi_head_attn(self, q: NodeLike, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, is_cross: bool = False, *, label: str | None = None) -> Node:
        """Attention without a mask, to a sequence of any length; ``is_cross`` is a note for the reader."""
    def narrow(self, x: NodeLike, axis: int, start: Any, length: Any, *, label: str | None = None) -> Node:
        """``length`` elements along ``axis``, from ``start`` on."""
    def narrow_(self, x: NodeLike, axis: int, start: Any, length: Any, *, label: str | None = None) -> Node:
        """RLX's spelling of ``narrow``."""
    def ne(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a != b, as bool."""
    def neg(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """-x."""
    def nll_loss(self, log_probs: NodeLike, labels: NodeLike, shape: Any = None, *, ignore_index: int = -100, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Minus the log-probability of each row's class: ``log_probs`` is [..., C], ``labels`` [...]."""
    @overload
    def norm(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, order: float = 2.0, label: str | None = None) -> Node:
        """The length of vectors over ``axes`` (all by default)."""
    @overload
    def norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def norm_matmul(self, x: NodeLike, gamma: NodeLike, w: NodeLike, eps: float = 1e-05, shape: Any = None, *, form: Literal['nn', 'nt'] = 'nn', label: str | None = None) -> Node:
        """``rms_norm(x, gamma, eps) @ w`` as one op, over the last axis of ``x`` [..., K]."""
    def one_hot(self, indices: NodeLike, depth: DimLike, dtype: DTypeLike = ..., shape: Any = None, *, label: str | None = None) -> Node:
        """For each index, a row of ``depth`` zeros with a 1 in its place; all zeros when it is outside."""
    def ones(self, shape: Any, dtype: Any = 'f32', *, label: str | None = None) -> Node:
        """A tensor of ones."""
    def ones_like(self, x: NodeLike, dtype: Any = None, *, label: str | None = None) -> Node:
        """Ones in ``x``'s shape and element type."""
    def outer(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Every product of an element of the vector ``a`` (rows) and one of ``b`` (columns)."""
    def pad(self, x: NodeLike, padding: int | Sequence[int | Sequence[int]], value: float = 0.0, shape: Any = None, *, interior: int | Sequence[int] | None = None, label: str | None = None) -> Node:
        """``x`` with ``value`` around it: (low, high) for every axis, or one number for all."""
    def pad_last_axis_to_pow2(self, x: NodeLike, *, label: str | None = None) -> Node:
        """``x`` with zeros behind its last axis, up to a power of two; ``x`` itself where it is one."""
    def pad_with(self, x: NodeLike, padding: int | Sequence[int | Sequence[int]], mode: Literal['reflect', 'edge', 'wrap'] = 'reflect', shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with values of its own around it: (low, high) for every axis, or one number for all."""
    def param(self, name: str, shape: Any, dtype: Any = None, *, label: str | None = None) -> Node:
        """RLX's spelling of ``parameter``."""
    @overload
    def parameter(self, name: str, shape: ShapeLike, dtype: DTypeLike = ..., *, storage: Literal['dense', 'q4', 'q8'] = 'dense', init: str | None = None, label: str | None = None) -> Node:
        """A trained tensor, kept between runs and saved by its name."""
    @overload
    def parameter(self, *args: Any, **kwargs: Any) -> Node: ...
    def parameter_f16(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """A parameter stored as f16; arithmetic with f32 casts it."""
    def parameter_q4(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """A matrix kept as 4-bit blocks of 32 rows; see ``parameter``."""
    def parameter_q8(self, name: str, shape: Any, *, label: str | None = None) -> Node:
        """A matrix kept as 8-bit blocks of 32 rows; see ``parameter``."""
    def pixel_shuffle(self, x: NodeLike, factor: int, *, label: str | None = None) -> Node:
        """Channels laid out as blocks: [n, c * f * f, h, w] becomes [n, c, h * f, w * f]."""
    def pixel_unshuffle(self, x: NodeLike, factor: int, *, label: str | None = None) -> Node:
        """Blocks laid out as channels: [n, c, h * f, w * f] becomes [n, c * f * f, h, w]."""
    def pool(self, x: NodeLike, kind: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *, label: str | None = None) -> Node:
        """Pooling by kind: max, mean (padding counts), sum, min or prod; any number of spatial axes."""
    def pow(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a to the power b."""
    @overload
    def prod(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The product over ``axes`` (all by default)."""
    @overload
    def prod(self, *args: Any, **kwargs: Any) -> Node: ...
    def prod_pool(self, x: NodeLike, window: Any, *, stride: Any = None, padding: Any = 0, label: str | None = None) -> Node:
        """The product of each window of [batch, channels, *spatial]; padding is ones."""
    def project(self, source: NodeLike, index: int, shape: Any = None, *, label: str | None = None) -> Node:
        """One result of a node that has several."""
    def psd(self, re: NodeLike, im: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The power spectral density of a spectrum: ``(re^2 + im^2) / N``, with N the size of the last axis."""
    def psd_real(self, x: NodeLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The power spectral density of real signals: ``(re^2 + im^2) / P`` of their ``rfft``, of length P."""
    def q_conv2d(self, x: NodeLike, w: NodeLike, bias: NodeLike | None, kernel_size: int | Sequence[int], stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, x_zp: int = 0, w_zp: int = 0, out_zp: int = 0, mult: float | Sequence[float] = ..., shape: Any = None, *, label: str | None = None) -> Node:
        """A convolution of codes as codes; as in ``q_matmul``, with the geometry of ``conv``."""
    def q_matmul(self, x: NodeLike, w: NodeLike, bias: NodeLike | None, x_zp: int = 0, w_zp: int = 0, out_zp: int = 0, mult: float | Sequence[float] = ..., shape: Any = None, *, label: str | None = None) -> Node:
        """A product of codes as codes: ``clip(round(acc * mult) + out_zp, -128, 127)`` with ``acc = bias + (x - x_zp) @ (w - w_zp)``."""
    def quantize(self, x: NodeLike, scale: float, zero_point: int = 0, shape: Any = None, *, rounding: Literal['even', 'away'] = 'even', label: str | None = None) -> Node:
        """Codes of 8 bits: ``clip(round(x / scale) + zero_point, -128, 127)`` as i8."""
    def quantize_per_channel(self, x: NodeLike, axis: int, scales: float | Sequence[float], zero_points: int | Sequence[int], shape: Any = None, *, rounding: Literal['even', 'away'] = 'even', label: str | None = None) -> Node:
        """``quantize`` with a scale and a zero point for each slice along ``axis``."""
    def quick_gelu(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x * sigmoid(1.702 * x)."""
    @overload
    def random_bernoulli(self, shape: ShapeLike, p: float = 0.5, *, seed: int = 0, stream: int | None = None, step: NodeLike | None = None, label: str | None = None) -> Node:
        """True with probability ``p``, exact to 2**-32: where ``random_bits`` is below p * 2**32."""
    @overload
    def random_bernoulli(self, *args: Any, **kwargs: Any) -> Node: ...
    def random_bits(self, shape: ShapeLike, seed: int = 0, stream: int = 0, step: NodeLike | None = None, *, label: str | None = None) -> Node:
        """32 random bits an element (u32): Philox 4x32-10, a pure function of its arguments."""
    @overload
    def random_integers(self, shape: ShapeLike, low: int, high: int, *, seed: int = 0, stream: int | None = None, dtype: DTypeLike = ..., step: NodeLike | None = None, label: str | None = None) -> Node:
        """Integers in ``low <= n < high``, at most 2**32 different ones."""
    @overload
    def random_integers(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def random_normal(self, shape: ShapeLike, mean: float = 0.0, std: float = 1.0, *, seed: int = 0, stream: int | None = None, dtype: DTypeLike = ..., step: NodeLike | None = None, label: str | None = None) -> Node:
        """Normally distributed numbers: the cosine branch of Box-Muller."""
    @overload
    def random_normal(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def random_permutation(self, n: DimLike, shape: Any = None, *, seed: int = 0, stream: int | None = None, step: NodeLike | None = None, label: str | None = None) -> Node:
        """0 to n - 1 (i32) in a random order: the order that sorts n words of ``random_bits``."""
    @overload
    def random_permutation(self, *args: Any, **kwargs: Any) -> Node: ...
    def random_step(self, *, label: str | None = None) -> Node:
        """The number of runs so far (u32), a state the graph keeps under the name ``random_step``."""
    @overload
    def random_uniform(self, shape: ShapeLike, low: float = 0.0, high: float = 1.0, *, seed: int = 0, stream: int | None = None, dtype: DTypeLike = ..., step: NodeLike | None = None, bits: int | None = None, label: str | None = None) -> Node:
        """Numbers spread evenly over ``low <= x < high``."""
    @overload
    def random_uniform(self, *args: Any, **kwargs: Any) -> Node: ...
    def real(self, z: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The real part of each complex number."""
    def real_fft(self, x: NodeLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The first ``N // 2 + 1`` numbers of the spectrum of N real ones along the last axis, as real and imaginary parts."""
    def recip(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / x."""
    def recompute_barrier(self, x: NodeLike, after: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` itself, but not before ``after`` is known."""
    def reduce(self, x: NodeLike, op: Any, axes: Any = None, keep_dim: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """A reduction by its kind: sum, mean, max, min or prod."""
    def reduce_precision(self, x: NodeLike, exponent_bits: int, mantissa_bits: int, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` rounded to a float of so many bits of exponent and mantissa, in its own type: ties to even, as JAX's op of this name."""
    def relu(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """max(x, 0)."""
    def relu6(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x kept between 0 and 6."""
    def relu_backward(self, x: NodeLike, dy: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``relu(x)``: ``dy`` where x > 0, else 0."""
    def remainder(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a - b * floor(a / b), as Python's ``%``: the sign is b's."""
    def repeat(self, x: NodeLike, count: int, axis: int | None = None, *, label: str | None = None) -> Node:
        """Each element along ``axis`` ``count`` times in a row; of the flattened tensor by default."""
    def reshape(self, x: NodeLike, shape: ShapeLike, *, label: str | None = None) -> Node:
        """The same elements, in the same order, under another shape."""
    def reshape_(self, x: NodeLike, shape: Any, *, label: str | None = None) -> Node:
        """RLX's spelling of ``reshape``."""
    def resize_bilinear(self, x: NodeLike, sizes: Any, align_corners: bool = False, *, label: str | None = None) -> Node:
        """[batch, channels, height, width] at another height and width; see ``resize_linear``."""
    def resize_linear(self, x: NodeLike, sizes: ShapeLike, shape: Any = None, *, align_corners: bool = False, label: str | None = None) -> Node:
        """``x`` at other spatial ``sizes``, linear between neighbours along every spatial axis."""
    def resize_nearest(self, x: NodeLike, sizes: ShapeLike | None = None, shape: Any = None, *, factor: int | Sequence[int] | None = None, label: str | None = None) -> Node:
        """``x`` at other spatial ``sizes``, or ``factor`` times its own, each element the nearest one."""
    def resize_nearest_2x(self, x: NodeLike, *, label: str | None = None) -> Node:
        """RLX's spelling of ``upsample_2x``."""
    def rfft(self, x: NodeLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, n: DimLike | None = None, label: str | None = None) -> tuple[Node, ...]:
        """Half the spectrum of real signals along the last axis, as real and imaginary parts: the other half are conjugates."""
    def rfftfreq_tensor(self, n: int, *, label: str | None = None) -> Node:
        """The frequencies of half a spectrum, as ``np.fft.rfftfreq``: f64 ``[n // 2 + 1]``."""
    @overload
    def rms_norm(self, x: NodeLike, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, axis: int = -1, label: str | None = None) -> Node:
        """``x / sqrt(mean(x**2) + eps) * weight + bias`` over ``axis`` and all axes after it."""
    @overload
    def rms_norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def rms_norm_backward_beta(self, x: NodeLike, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to beta: ``dy`` summed."""
    def rms_norm_backward_gamma(self, x: NodeLike, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to gamma."""
    def rms_norm_backward_input(self, x: NodeLike, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to x."""
    def rms_norm_grad_w(self, dy: NodeLike, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, w, eps)`` with respect to w."""
    def rms_norm_grad_x(self, dy: NodeLike, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, w, eps)`` with respect to x."""
    def roll(self, x: NodeLike, shift: Any, axis: Any = None, *, label: str | None = None) -> Node:
        """Elements moved ``shift`` places up along ``axis``, those that fall off coming back at the start."""
    @overload
    def rope(self, x: NodeLike, theta: float = 10000.0, head_dim: int | None = None, shape: Any = None, *, n_rot: int | None = None, offset: int = 0, layout: Literal['flat', 'shd', 'hsd'] = 'flat', interleaved: bool = False, inverse: bool = False, positions: NodeLike | None = None, label: str | None = None) -> Node:
        """``x`` with its pairs turned by ``position * theta ** (-2 * pair / n_rot)``."""
    @overload
    def rope(self, *args: Any, **kwargs: Any) -> Node: ...
    def rope_backward(self, dy: NodeLike, cos: NodeLike, sin: NodeLike, head_dim: int, n_rot: int | None = None, *, label: str | None = None) -> Node:
        """The gradient of ``rope_with_tables`` with respect to its operand: the turn back."""
    def rope_dynamic_offset(self, x: NodeLike, theta: float, offset: NodeLike, head_dim: int, *, layout: Any = 'flat', label: str | None = None) -> Node:
        """``rope`` of a sequence whose first row has the position that ``offset``, one integer of the graph, gives."""
    def rope_grad(self, dy: NodeLike, theta: float, head_dim: int, *, offset: int = 0, layout: Any = 'flat', positions: NodeLike | None = None, label: str | None = None) -> Node:
        """The gradient of ``rope`` with respect to its operand: the turn back."""
    def rope_n(self, x: NodeLike, cos: NodeLike, sin: NodeLike, head_dim: int, n_rot: int, *, label: str | None = None) -> Node:
        """``rope_with_tables`` of the first ``n_rot`` elements of each head."""
    def rope_tables(self, positions: NodeLike, n_rot: int, theta: float = 10000.0, shape: Any = None, *, dtype: DTypeLike = ..., label: str | None = None) -> tuple[Node, ...]:
        """The cosines and the sines by which each position turns each of the ``n_rot / 2`` pairs."""
    def rope_with_offset(self, x: NodeLike, theta: float, offset: int, head_dim: int, *, layout: Any = 'flat', label: str | None = None) -> Node:
        """``rope`` of a sequence whose first row has position ``offset``."""
    @overload
    def rope_with_tables(self, x: NodeLike, cos: NodeLike, sin: NodeLike, shape: Any = None, *, head_dim: int | None = None, n_rot: int | None = None, layout: Literal['flat', 'shd', 'hsd'] = 'flat', interleaved: bool = False, label: str | None = None) -> Node:
        """``x`` turned by angles whose cosines and sines are given: (..., length, pairs), one row for each of the sequence."""
    @overload
    def rope_with_tables(self, *args: Any, **kwargs: Any) -> Node: ...
    def round(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The nearest integer; halves go to the even one."""
    def rsqrt(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / sqrt(x)."""
    @overload
    def sample(self, logits: NodeLike, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0, seed: int = 0, shape: Any = None, *, min_p: float = 0.0, stream: int | None = None, step: NodeLike | None = None, label: str | None = None) -> Node:
        """One index (i32) for each row of ``logits`` [..., V], drawn by softmax(logits / temperature)."""
    @overload
    def sample(self, *args: Any, **kwargs: Any) -> Node: ...
    def scalar(self, value: float, dtype: Any = 'f32', *, label: str | None = None) -> Node:
        """A constant of shape [1]."""
    @overload
    def scaled_dot_attention(self, q: NodeLike, k: NodeLike, v: NodeLike, mask: NodeLike | None = None, bias: NodeLike | None = None, shape: Any = None, *, layout: Literal['bhsd', 'bshd'] = 'bhsd', causal: bool = False, window: int | None = None, scale: float | None = None, softcap: float | None = None, offset: NodeLike | None = None, label: str | None = None) -> Node:
        """Each query's mean of the values, weighted by the softmax of its scores with the keys."""
    @overload
    def scaled_dot_attention(self, *args: Any, **kwargs: Any) -> Node: ...
    def scaled_dot_attention_backward(self, q: NodeLike, k: NodeLike, v: NodeLike, dy: NodeLike, mask: NodeLike | None = None, bias: NodeLike | None = None, shape: Any = None, *, layout: Literal['bhsd', 'bshd'] = 'bhsd', causal: bool = False, window: int | None = None, scale: float | None = None, softcap: float | None = None, offset: NodeLike | None = None, out: NodeLike | None = None, statistics: NodeLike | None = None, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``scaled_dot_attention`` with respect to ``q``, ``k``, ``v`` and, if there is one, ``bias``."""
    def scan(self, init: NodeLike, body: Graph, length: int, *, label: str | None = None) -> Node:
        """The carry after ``length`` steps of ``body``, a graph of one input and one output."""
    def scan_backward(self, init: NodeLike, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, out_shape: object = None, *, label: str | None = None) -> Node:
        """The gradient of a scan's ``init``, by a transposed body."""
    def scan_backward_with_checkpoints(self, init: NodeLike, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, num_checkpoints: int, forward_body: Graph | None = None, out_shape: object = None, *, label: str | None = None) -> Node:
        """``scan_backward`` from ``num_checkpoints`` carries: those after steps ceil((k + 1) length / num_checkpoints) - 1."""
    def scan_backward_xs(self, init: NodeLike, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, xs_idx: int, out_shape: object = None, *, label: str | None = None) -> Node:
        """The gradient of ``xs[xs_idx]`` of a scan: [length, ...]; see ``scan_backward``."""
    def scan_backward_xs_with_checkpoints(self, init: NodeLike, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, xs_idx: int, num_checkpoints: int, forward_body: Graph | None = None, out_shape: object = None, *, label: str | None = None) -> Node:
        """``scan_backward_xs`` from ``num_checkpoints`` carries; see ``scan_backward_with_checkpoints``."""
    def scan_checkpointed(self, init: NodeLike, body: Graph, length: int, num_checkpoints: int, *, label: str | None = None) -> Node:
        """``scan``, of which a gradient keeps ``num_checkpoints`` carries and computes the steps between them again."""
    def scan_trajectory(self, init: NodeLike, body: Graph, length: int, *, label: str | None = None) -> Node:
        """The carries after each of ``length`` steps: [length, ...]."""
    def scan_with_bcasts_and_xs(self, init: NodeLike, bcasts: list[NodeLike], xs: list[NodeLike], body: Graph, length: int, *, label: str | None = None) -> Node:
        """``scan`` of a body that reads the carry, then what is the same in all steps, then one step of each of ``xs``."""
    def scan_with_xs(self, init: NodeLike, xs: list[NodeLike], body: Graph, length: int, *, label: str | None = None) -> Node:
        """``scan`` of a body that also reads one step of each of ``xs``, which are [length, ...]."""
    def scatter(self, x: NodeLike, indices: NodeLike, src: NodeLike, axis: int = 0, mode: Literal['set', 'add', 'mul', 'max', 'min'] = 'set', shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with slices along ``axis`` replaced by those of ``src``, one for each index."""
    def scatter_add(self, indices: NodeLike, src: NodeLike, size: DimLike, shape: Any = None, *, axis: int = 0, label: str | None = None) -> Node:
        """Slices of ``src`` added up by index into a tensor of zeros with ``size`` entries along ``axis``."""
    def scatter_add_along_axis(self, indices: NodeLike, src: NodeLike, size: DimLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """Each element of ``src`` added to zeros at the place along ``axis`` that its index gives."""
    def selective_scan(self, x: NodeLike, delta: NodeLike, a: NodeLike, b: NodeLike, c: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """The selective scan of Mamba: ``h = exp(delta * a) * h + delta * b * x`` from 0 along the sequence, and ``y = sum(c * h)`` over the state."""
    def selective_scan_backward(self, x: NodeLike, delta: NodeLike, a: NodeLike, b: NodeLike, c: NodeLike, dy: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``selective_scan`` with respect to ``x``, ``delta``, ``a``, ``b`` and ``c``; ``dy`` is the gradient of its result."""
    def selu(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """elu scaled so that activations keep mean 0 and variance 1."""
    def shared_matmul_pair(self, x: NodeLike, w1: NodeLike, w2: NodeLike, *, label: str | None = None) -> tuple[Node, Node]:
        """``x @ w1`` and ``x @ w2``; the optimizer makes them one product where that pays."""
    def shift_left(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a moved b bits up; b is below the width."""
    def shift_right(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a moved b bits down, keeping the sign."""
    def sigmoid(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / (1 + exp(-x)); exactly 0 and 1 far out, never NaN."""
    def sign(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """-1, 0 or 1 by the sign of x."""
    def silu(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x * sigmoid(x), also called swish."""
    def silu_grad(self, dy: NodeLike, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``silu(x)``, from that of its result."""
    def sin(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The sine."""
    def sinh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic sine."""
    def slice(self, x: NodeLike, starts: ShapeLike, stops: ShapeLike, steps: int | Sequence[int] | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """Elements ``start, start + step, ...`` before ``stop`` along every axis; bounds are checked."""
    def sliding_window_attention(self, q: NodeLike, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, window: int, *, label: str | None = None) -> Node:
        """Causal attention to the last ``window`` keys, the query's own among them."""
    def slogdet(self, a: NodeLike, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The sign of each determinant (0 for a singular matrix) and the logarithm of its absolute value."""
    def sm(self, x: NodeLike, axis: int = -1, shape: object = None, *, label: str | None = None) -> Node:
        """RLX's short name of ``softmax``."""
    def smooth_l1_loss(self, pred: NodeLike, target: NodeLike, beta: float = 1.0, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """|pred - target| less ``beta / 2``, rounded into a parabola where it is below ``beta``."""
    def softmax(self, x: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """exp(x) over its sum along ``axis``: positive numbers that add up to 1."""
    def softmax_backward(self, y: NodeLike, dy: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of softmax for its input, from its result ``y`` and the gradient ``dy``."""
    def softmax_cross_entropy_backward(self, logits: NodeLike, labels: NodeLike, d_loss: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``softmax_cross_entropy_with_logits`` for its logits."""
    def softmax_cross_entropy_with_logits(self, logits: NodeLike, labels: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The cross-entropy of each row: log(sum(exp(logits))) less the logit of the row's class."""
    def softmin(self, x: NodeLike, axis: int = -1, *, label: str | None = None) -> Node:
        """Softmax of -x: the smallest element weighs most."""
    def softplus(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """log(1 + exp(x)), without overflow."""
    def softsign(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x / (1 + |x|)."""
    def solve(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The ``x`` with ``a @ x = b``, for each matrix of a batch."""
    def sort(self, x: NodeLike, axis: int = -1, descending: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The elements along ``axis`` in order; NaN sorts above everything."""
    def splat_blend(self, features: NodeLike, lists: NodeLike, width: int, height: int, tile_size: int = 16, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, shape: Any = None, *, label: str | None = None) -> Node:
        """Colour and transmittance of each pixel, [..., height * width, 4], of splats by lists of ``splat_lists``."""
    def splat_blend_backward(self, features: NodeLike, lists: NodeLike, g: NodeLike, width: int, height: int, tile_size: int = 16, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, shape: Any = None, *, label: str | None = None) -> Node:
        """What ``features`` of ``splat_blend`` receive from the cotangent ``g`` of its result; which splats a pixel sees, and in which order, stays as it is."""
    def splat_lists(self, bounds: NodeLike, numbers: NodeLike, across: int, down: int, max_list_entries: int, shape: Any = None, *, label: str | None = None) -> Node:
        """The splats of each tile: all lists one after another, filled up with -1, and then where the list of each tile begins and ends."""
    def split(self, x: NodeLike, sections: Any, axis: int = 0, *, label: str | None = None) -> list[Node]:
        """``x`` in pieces along ``axis``: that many equal ones for a number, or of the sizes in a list."""
    def split_a(self, x: NodeLike, batch: Any, channels_a: Any, channels_b: Any, spatial: Any, *, label: str | None = None) -> Node:
        """The first ``channels_a`` channels of a flat NCHW tensor of ``channels_a + channels_b``, flat."""
    def split_b(self, x: NodeLike, batch: Any, channels_a: Any, channels_b: Any, spatial: Any, *, label: str | None = None) -> Node:
        """The last ``channels_b`` channels of a flat NCHW tensor of ``channels_a + channels_b``, flat."""
    def split_spectrum(self, spectrum: NodeLike, *, label: str | None = None) -> tuple[Node, Node]:
        """The real and the imaginary parts of a spectrum whose last axis has one after the other."""
    def sqrt(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The square root; NaN below 0."""
    def square(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x * x."""
    def squeeze(self, x: NodeLike, axis: Any = None, *, label: str | None = None) -> Node:
        """``x`` without some axes, which must have size 1; by default without all that do."""
    def stack(self, inputs: list[NodeLike], axis: int = 0, *, label: str | None = None) -> Node:
        """Tensors of one shape along a new axis."""
    @overload
    def state(self, name: str, shape: ShapeLike, dtype: DTypeLike = ..., *, init: float = 0.0, label: str | None = None) -> Node:
        """A tensor kept between runs and changed by them (a cache, a running mean), never trained."""
    @overload
    def state(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def std(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, correction: float = 0.0, label: str | None = None) -> Node:
        """The standard deviation over ``axes``: the square root of ``var``."""
    @overload
    def std(self, *args: Any, **kwargs: Any) -> Node: ...
    def stft(self, x: NodeLike, frame_len: int, hop: int, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, window: NodeLike | None = None, label: str | None = None) -> Node:
        """The short-time Fourier transform of signals ``[.., T]``: ``rfft`` of frames of ``frame_len`` elements, ``hop`` apart, each times the ``window``."""
    def stop_gradient(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x``, through which no gradient passes."""
    def sub(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a - b."""
    @overload
    def sum(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The sum over ``axes`` (all by default)."""
    @overload
    def sum(self, *args: Any, **kwargs: Any) -> Node: ...
    def sum_all(self, x: NodeLike, *, label: str | None = None) -> Node:
        """The sum of all elements, as a tensor of shape [1]."""
    def sum_pool(self, x: NodeLike, window: Any, *, stride: Any = None, padding: Any = 0, label: str | None = None) -> Node:
        """The sum of each window of [batch, channels, *spatial]; padding is zeros."""
    def sum_rows(self, x: NodeLike, *, label: str | None = None) -> Node:
        """The rows of a matrix added up: [M, N] gives [N]."""
    def swapaxes(self, x: NodeLike, axis1: int, axis2: int, *, label: str | None = None) -> Node:
        """``x`` with two axes exchanged."""
    def swiglu(self, gate: NodeLike, up: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """silu(gate) * up, both of one shape."""
    def swiglu_concat(self, x: NodeLike, shape: Any = None, *, gate_first: bool = True, label: str | None = None) -> Node:
        """The swiglu of the two halves of the last axis: [..., 2N] gives [..., N]."""
    def swiglu_concat_grad(self, dy: NodeLike, x: NodeLike, shape: Any = None, *, gate_first: bool = True, label: str | None = None) -> Node:
        """The gradient of ``swiglu_concat(x)``, of the shape of x."""
    def swiglu_ffn(self, x: NodeLike, up_w: NodeLike, gate_w: NodeLike, down_w: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A gated feed-forward block: ``(silu(x @ gate_w) * (x @ up_w)) @ down_w``."""
    def swiglu_grad_gate(self, dy: NodeLike, gate: NodeLike, up: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``swiglu(gate, up)`` with respect to the gate."""
    def swiglu_grad_up(self, dy: NodeLike, gate: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``swiglu(gate, up)`` with respect to ``up``."""
    def take(self, x: NodeLike, indices: NodeLike, axis: int | None = None, *, label: str | None = None) -> Node:
        """Slices of ``x`` along ``axis``, one for each index; elements of the flattened ``x`` by default."""
    def take_along_axis(self, x: NodeLike, indices: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """For each position, the element of ``x`` whose place along ``axis`` the index gives."""
    def tan(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The tangent."""
    def tanh(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic tangent."""
    def tile(self, x: NodeLike, reps: Any, *, label: str | None = None) -> Node:
        """``x`` side by side ``reps`` times along each axis; missing entries and axes count as 1."""
    def top_k(self, x: NodeLike, k: int, axis: int = -1, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The ``k`` largest elements along ``axis``, largest first, and their indices (i32)."""
    def trace(self, x: NodeLike, *, label: str | None = None) -> Node:
        """The sum of the diagonal of the last two axes."""
    def transpose(self, x: NodeLike, perm: int | Sequence[int] | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """Axes in another order: axis ``i`` of the result is axis ``perm[i]`` of ``x``; reversed by default."""
    def transpose_(self, x: NodeLike, perm: Any, *, label: str | None = None) -> Node:
        """RLX's spelling of ``transpose``."""
    def triangular_solve(self, a: NodeLike, b: NodeLike, shape: Any = None, *, lower: bool = True, unit_diagonal: bool = False, label: str | None = None) -> Node:
        """Like ``solve``, reading only one triangle of ``a`` (and taking its diagonal as 1 if asked)."""
    def tril(self, x: NodeLike, k: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """The lower triangle of the last two axes: zeros above diagonal ``k`` (0 the main one, 1 above it)."""
    def triu(self, x: NodeLike, k: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """The upper triangle of the last two axes: zeros below diagonal ``k`` (0 the main one, 1 above it)."""
    def trunc(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """x without its fraction."""
    def unfold(self, x: NodeLike, kernel: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, label: str | None = None) -> Node:
        """The patches a kernel sees, as columns (im2col): [batch, channels * kernel, places]."""
    def unsqueeze(self, x: NodeLike, axis: Any, *, label: str | None = None) -> Node:
        """``x`` with a new axis of size 1 (or several), counted in the result: ``unsqueeze(x, -1)``."""
    def upsample_2x(self, x: NodeLike, *geometry: int, label: str | None = None) -> Node:
        """Every element twice along each spatial axis: [n, c, h, w] becomes [n, c, 2h, 2w]."""
    def upsample_2x_grad(self, dy: NodeLike, *geometry: int, label: str | None = None) -> Node:
        """The gradient of ``upsample_2x``: the sum of each block of 2 along every spatial axis."""
    @overload
    def var(self, x: NodeLike, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, correction: float = 0.0, label: str | None = None) -> Node:
        """The variance over ``axes`` (all by default): squared distances from the mean over ``n - correction``."""
    @overload
    def var(self, *args: Any, **kwargs: Any) -> Node: ...
    def vdot(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Like ``dot``, with the conjugate of ``a`` where it is complex."""
    def where(self, condition: NodeLike, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``a`` where the condition holds, else ``b``."""
    def windows(self, x: NodeLike, window: int | Sequence[int], stride: int | Sequence[int] = (1,), dilation: int | Sequence[int] = (1,), shape: Any = None, *, label: str | None = None) -> Node:
        """Sliding windows over the last axes: their counts stay in place, and window axes are added at the end."""
    def winograd_conv(self, x: NodeLike, u: NodeLike, shape: Any = None, *, padding: int | Sequence[int | Sequence[int]] = ..., label: str | None = None) -> Node:
        """``conv(x, w, padding=padding)`` for x [batch, in, height, width] and ``u = winograd_weight(w)``."""
    def winograd_weight(self, w: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A 3x3 kernel [out, in, 3, 3] as ``winograd_conv`` takes it: [4, 4, in, out]."""
    def zeros(self, shape: Any, dtype: Any = 'f32', *, label: str | None = None) -> Node:
        """A tensor of zeros."""
    def zeros_like(self, x: NodeLike, dtype: Any = None, *, label: str | None = None) -> Node:
        """Zeros in ``x``'s shape and element type."""

class NodeMethods:
    # Ops declared elsewhere are found at run time.
    def __getattr__(self, name: str) -> Callable[..., Any]: ...
    def abs(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The absolute value |x|, of complex numbers too."""
    def acos(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse cosine; NaN outside -1..1."""
    def acosh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of cosh; NaN below 1."""
    def adaptive_avg_pool(self, sizes: int | Sequence[int], shape: Any = None, *, label: str | None = None) -> Node:
        """The mean over ``sizes`` windows on each spatial axis, as even as they can be."""
    def adaptive_avg_pool1d(self, output_size: Any, *, label: str | None = None) -> Node:
        """[batch, channels, length] averaged to a given size; see ``adaptive_avg_pool``."""
    def adaptive_avg_pool2d(self, output_size: Any, *, label: str | None = None) -> Node:
        """[batch, channels, height, width] averaged to a given size; see ``adaptive_avg_pool``."""
    def adaptive_avg_pool3d(self, output_size: Any, *, label: str | None = None) -> Node:
        """[batch, channels, depth, height, width] averaged to a given size; see ``adaptive_avg_pool``."""
    def add(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a + b."""
    @overload
    def all(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether all elements over ``axes`` are True; True for none."""
    @overload
    def all(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def any(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether any element over ``axes`` is True; False for none."""
    @overload
    def any(self, *args: Any, **kwargs: Any) -> Node: ...
    def argmax(self, axis: int | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The index (i32) of the first largest element along ``axis``, or in the flattened tensor."""
    def argmin(self, axis: int | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The index (i32) of the first smallest element along ``axis``, or in the flattened tensor."""
    def argsort(self, axis: int = -1, descending: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The indices (i32) that put the elements along ``axis`` in order."""
    def asin(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse sine; NaN outside -1..1."""
    def asinh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse hyperbolic sine."""
    def atan(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse tangent."""
    def atan2(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The angle of the point (b, a)."""
    def atanh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of tanh; infinite at -1 and 1, as is its derivative, and NaN beyond."""
    def attention(self, k: NodeLike, v: NodeLike, mask: NodeLike | None, num_heads: int, head_dim: int, shape: Any = None, *, layout: Any = None, label: str | None = None) -> Node:
        """Attention with a mask tensor: (batch, keys), or rank 4 broadcasting to (batch, heads, queries, keys)."""
    def attention_(self, k: NodeLike, v: NodeLike, mask: NodeLike | None, num_heads: int, head_dim: int, *, layout: Any = None, label: str | None = None) -> Node:
        """The same as ``attention``."""
    def attention_backward_all(self, k: NodeLike, v: NodeLike, dy: NodeLike, num_heads: int, head_dim: int, mask_kind: Any, mask: NodeLike | None = None, *, layout: Any = None, score_scale: float | None = None, attn_logit_softcap: float | None = None, label: str | None = None) -> tuple[Node, Node, Node]:
        """The gradients of ``attention`` and its kin with respect to ``q``, ``k`` and ``v``."""
    def attention_bias(self, k: NodeLike, v: NodeLike, bias: NodeLike, num_heads: int, head_dim: int, shape: Any = None, *, layout: Any = None, label: str | None = None) -> Node:
        """Attention with ``bias``, which broadcasts to (batch, heads, queries, keys), added to the scaled scores."""
    def attention_kind(self, k: NodeLike, v: NodeLike, num_heads: int, head_dim: int, mask_kind: Any, shape: Any = None, *, layout: Any = None, label: str | None = None) -> Node:
        """Attention with a mask that needs no tensor."""
    def attention_kind_opts(self, k: NodeLike, v: NodeLike, num_heads: int, head_dim: int, mask_kind: Any, shape: Any = None, score_scale: float | None = None, attn_logit_softcap: float | None = None, *, layout: Any = None, label: str | None = None) -> Node:
        """``attention_kind`` with a scale and a softcap; see ``scaled_dot_attention``."""
    def attention_opts(self, k: NodeLike, v: NodeLike, mask: NodeLike | None, num_heads: int, head_dim: int, shape: Any = None, score_scale: float | None = None, attn_logit_softcap: float | None = None, *, layout: Any = None, label: str | None = None) -> Node:
        """``attention`` with a scale and a softcap; see ``scaled_dot_attention``."""
    def attention_statistics(self, k: NodeLike, v: NodeLike, mask: NodeLike | None = None, bias: NodeLike | None = None, shape: Any = None, *, layout: Literal['bhsd', 'bshd'] = 'bhsd', causal: bool = False, window: int | None = None, scale: float | None = None, softcap: float | None = None, offset: NodeLike | None = None, label: str | None = None) -> Node:
        """What the softmax of ``scaled_dot_attention`` divides by, for each query: (batch, heads, 2, queries), in f32 of 16-bit floats."""
    def avg_pool(self, window: int | Sequence[int], shape: Any = None, *, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., count_include_pad: bool = True, ceil_mode: bool = False, label: str | None = None) -> Node:
        """The mean of each window."""
    def avg_pool1d(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *, label: str | None = None) -> Node:
        """The mean of each window of [batch, channels, length]; see ``avg_pool``."""
    def avg_pool2d(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *, label: str | None = None) -> Node:
        """The mean of each window of [batch, channels, height, width]; see ``avg_pool``."""
    def avg_pool3d(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, *, label: str | None = None) -> Node:
        """The mean of each window of [batch, channels, depth, height, width]; see ``avg_pool``."""
    def avg_pool_backward(self, window: int | Sequence[int], shape: Any = None, *, sizes: ShapeLike, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., count_include_pad: bool = True, ceil_mode: bool = False, label: str | None = None) -> Node:
        """The gradient of ``avg_pool`` for an input with these spatial ``sizes``: its transpose."""
    def axial_rope2d(self, end_x: int, end_y: int, head_dim: int, num_heads: int, theta: float = 10000.0, repeat_factor: int = 1, shape: Any = None, *, inverse: bool = False, label: str | None = None) -> Node:
        """Rotary embedding of the rows of an image, (..., length, num_heads * head_dim)."""
    def batch_norm(self, mean: NodeLike, var: NodeLike, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """(batch, channels, ...) normalised by the given mean and variance of each channel: the form of inference."""
    def batch_norm_backward(self, weight: NodeLike | None, dy: NodeLike, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``batch_norm_training(x, weight, bias, eps)[0]``: of x, of the weight and of the bias."""
    def batch_norm_training(self, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """(batch, channels, ...) normalised over everything but channels; also gives mean and biased variance."""
    def batched_dense_solve(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``dense_solve`` for each matrix of a batch: a [B, N, N] and b [B, N] or [B, N, K]."""
    def bce_loss(self, labels: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Binary cross-entropy of probabilities: the mean of -(t log p + (1 - t) log(1 - p))."""
    def bce_with_logits_loss(self, labels: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Binary cross-entropy of sigmoid(logits), exact for logits of any size."""
    def bias_add(self, bias: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A vector added to every row: a [..., N] and bias [N]."""
    def bitwise_and(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in both integers."""
    def bitwise_or(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in either."""
    def bitwise_xor(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The bits set in one."""
    def broadcast_add(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """One row added to every row: a [..., N] and b [1, N]."""
    def broadcast_to(self, shape: ShapeLike, *, label: str | None = None) -> Node:
        """``x`` repeated along axes of size 1, and along new axes in front, to fill ``shape``."""
    def cache_update(self, new: NodeLike, position: NodeLike, axis: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """``cache`` with rows replaced by those of ``new``, from ``position`` (one integer) on along ``axis``."""
    def cache_write(self, cache: NodeLike, kv_pos: NodeLike, *, axis: int = 0, label: str | None = None) -> Node:
        """``cache`` with ``new`` at rows ``kv_pos``, ``kv_pos + 1``, ... along ``axis``; returns the written cache."""
    def cached_attention(self, k_cache: NodeLike, v_cache: NodeLike, kv_pos: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, window: int | None = None, scale: float | None = None, softcap: float | None = None, label: str | None = None) -> Node:
        """Attention to a cache filled so far: query ``i`` sees rows 0 to ``kv_pos + i``."""
    def cast(self, to: DTypeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with another element type."""
    def causal_attention(self, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, label: str | None = None) -> Node:
        """Attention to keys that do not come after the query."""
    def ceil(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The smallest integer not below x."""
    def celu(self, alpha: float = 1.0, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` above 0, ``alpha * (exp(x / alpha) - 1)`` below; smooth for every alpha."""
    def chain(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a * b, and 0 wherever a is 0, even if b is infinite or NaN."""
    def cholesky(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The lower triangular ``l`` with ``l @ l.T = a``, for each positive definite matrix."""
    def chunk(self, count: int, axis: int = 0, *, label: str | None = None) -> list[Node]:
        """At most ``count`` pieces along ``axis``, equal but for the last, which may be smaller."""
    def clip(self, low: NodeLike | None = None, high: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` kept between ``low`` and ``high``; either may be left out."""
    @overload
    def complex(self, im: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Complex numbers of two real tensors, which broadcast; 16-bit floats become f32."""
    @overload
    def complex(self, *args: Any, **kwargs: Any) -> Node: ...
    def complex_norm_sq(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The square of the absolute value of each complex number, ``re^2 + im^2``: a real loss of a complex graph."""
    def complex_norm_sq_backward(self, g: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """RLX's gradient of ``complex_norm_sq``: ``g * z``, the derivative by the conjugate of ``z``, which is half of what PyTorch and ``grad`` return."""
    def conjugate(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The complex conjugate of each element: ``re - i im``."""
    def conv(self, w: NodeLike, shape: Any = None, *, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """Convolution of ``x`` [batch, in, *spatial] with ``w`` [out, in / groups, *kernel]."""
    def conv1d(self, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Convolution of [batch, in, length] with [out, in / groups, kernel]; see ``conv2d``."""
    def conv2d(self, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Convolution of [batch, in, height, width] with [out, in / groups, *kernel]."""
    def conv2d_backward_input(self, w: NodeLike, x_shape: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int, *, label: str | None = None) -> Node:
        """The gradient of ``conv2d`` towards an input of ``x_shape``; see ``conv_input_grad``."""
    def conv2d_backward_weight(self, dy: NodeLike, w_shape: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int, *, label: str | None = None) -> Node:
        """The gradient of ``conv2d`` towards a weight of ``w_shape``; see ``conv_weight_grad``."""
    def conv2d_grad_input(self, kernel: NodeLike, batch: int, in_channels: int, in_h: int, in_w: int, out_channels: int, kernel_h: int, kernel_w: int, stride: int, padding: int, padding_w: int | None = None, *, label: str | None = None) -> Node:
        """The gradient of flat ``conv2d`` towards its input, flat; the integers are the same."""
    def conv2d_grad_weight(self, x: NodeLike, batch: int, in_channels: int, in_h: int, in_w: int, out_channels: int, kernel_h: int, kernel_w: int, stride: int, padding: int, padding_w: int | None = None, *, label: str | None = None) -> Node:
        """The gradient of flat ``conv2d`` towards its kernel, flat; the integers are the same."""
    def conv2d_hw(self, kernel: NodeLike, batch: int, in_channels: int, in_h: int, in_w: int, out_channels: int, kernel_h: int, kernel_w: int, stride: int, pad_h: int, pad_w: int, *, label: str | None = None) -> Node:
        """Convolution of flat NCHW tensors, rows and columns padded apart; the result is flat."""
    def conv3d(self, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Convolution of [batch, in, depth, height, width]; see ``conv2d``."""
    def conv_input_grad(self, w: NodeLike, shape: Any = None, *, sizes: ShapeLike, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """The transpose of ``conv`` in its first operand: the gradient towards ``x``."""
    def conv_last(self, w: NodeLike, shape: Any = None, *, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """``conv`` of ``x`` [batch, *spatial, in] with ``w`` [out, *kernel, in / groups]: [batch, *spatial, out]."""
    def conv_last_input_grad(self, w: NodeLike, shape: Any = None, *, sizes: ShapeLike, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """The transpose of ``conv_last`` in its first operand; ``sizes`` are the spatial sizes of ``x``."""
    def conv_last_weight_grad(self, dy: NodeLike, shape: Any = None, *, kernel: int | Sequence[int], stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """``conv_weight_grad`` of images with channels last: towards a weight [out, in / groups, *kernel], as ``conv`` has it."""
    def conv_transpose1d(self, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Transposed convolution of [batch, in, length]; see ``conv_transpose2d``."""
    def conv_transpose2d(self, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Transposed convolution of [batch, in, height, width] with [in, out / groups, *kernel]."""
    def conv_transpose3d(self, w: NodeLike, *geometry: Any, bias: NodeLike | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1, label: str | None = None) -> Node:
        """Transposed convolution of [batch, in, depth, height, width]; see ``conv_transpose2d``."""
    def conv_weight_grad(self, dy: NodeLike, shape: Any = None, *, kernel: int | Sequence[int], stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, label: str | None = None) -> Node:
        """The transpose of ``conv`` in its second operand: the gradient towards ``w``."""
    def cos(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The cosine."""
    def cosh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic cosine."""
    def cosine_similarity(self, b: NodeLike, axis: int = -1, shape: Any = None, *, eps: float = 1e-08, label: str | None = None) -> Node:
        """The cosine of the angle between ``a`` and ``b`` along ``axis`` of their broadcast shape."""
    def count_nonzero(self, axes: Any = None, keepdims: bool = False, *, label: str | None = None) -> Node:
        """How many elements over ``axes`` (all by default) are not 0, as i32."""
    def cross_attention(self, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, label: str | None = None) -> Node:
        """Attention of every row to every row of another sequence, of any length."""
    def cross_entropy_loss(self, labels: NodeLike, shape: Any = None, *, label_smoothing: float = 0.0, ignore_index: int = -100, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Minus the log-probability that softmax(logits) gives the labels, as the mean over rows."""
    def cummax(self, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running maxima along ``axis``."""
    def cummin(self, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running minima along ``axis``."""
    def cumprod(self, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running products along ``axis``."""
    def cumsum(self, axis: int = -1, exclusive: bool = False, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """Running sums along ``axis``; ``exclusive`` leaves each element out of its own sum."""
    def cumsum_backward(self, out_shape: Any = None, axis: int = -1, exclusive: bool = False, *, label: str | None = None) -> Node:
        """The derivative of ``cumsum``: running sums of ``dy`` from the end."""
    def dense_solve(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The ``x`` with ``a @ x = b``, for a [N, N] and b [N] or [N, K]."""
    def dequant_grouped_matmul(self, packed_w: NodeLike, expert: NodeLike, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """Each row times the packed matrix that its index chooses: ``y[i] = x[i] @ W[expert[i]].T``."""
    def dequant_matmul(self, w_q: NodeLike, scale: NodeLike | None, zp: NodeLike | None, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ W`` with quantised weights W [K, N], which are decoded as they are read and never stored as floats."""
    def dequant_matmul_nvfp4(self, w_q: NodeLike, block_scales: NodeLike, global_scale: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ W`` with NVFP4 weights: floats of 4 bits, a float of 8 bits for each 16 rows of a column, and one scale for all."""
    def dequant_matmul_packed(self, packed_w: NodeLike, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ W.T`` with the weights of a GGUF file as they are there: W [N, K] in blocks of bytes along K."""
    def dequant_moe_weights(self, scheme: str, shape: Any = None, *, label: str | None = None) -> Node:
        """The matrices of all experts as f32 [E, K, N], from packed slabs [E, N, row bytes]: what ``grouped_matmul`` takes."""
    def dequantize(self, scale: float, zero_point: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """What codes stand for, ``(q - zero_point) * scale``, as f32; ``q`` is i8, or u8 with a zero point in 0..255."""
    def dequantize_blocks(self, scales: NodeLike | None = None, offsets: NodeLike | None = None, shape: Any = None, *, scheme: str, to: DTypeLike = ..., label: str | None = None) -> Node:
        """What stored weights stand for, by ``scheme`` (a ``QuantScheme`` or its name)."""
    def dequantize_per_channel(self, axis: int, scales: float | Sequence[float], zero_points: int | Sequence[int], shape: Any = None, *, label: str | None = None) -> Node:
        """``dequantize`` with a scale and a zero point for each slice along ``axis``."""
    def det(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The determinant of each square matrix."""
    def diagonal(self, k: int = 0, *, label: str | None = None) -> Node:
        """The diagonal of the last two axes, as the last axis; ``k`` diagonals above the main one."""
    def div(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a / b."""
    def dot(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The sum of the products of two vectors, a scalar."""
    def dot_general(self, b: NodeLike, a_contract: int | Sequence[int], b_contract: int | Sequence[int], a_batch: int | Sequence[int] = (), b_batch: int | Sequence[int] = (), shape: Any = None, *, label: str | None = None) -> Node:
        """Products summed over the contracted axes, separately for each index of the batch axes."""
    @overload
    def dropout(self, rate: float = 0.5, shape: Any = None, *, seed: int = 0, stream: int | None = None, step: NodeLike | None = None, label: str | None = None) -> Node:
        """``x`` with elements set to 0 with probability ``rate``, and the others over 1 - rate."""
    @overload
    def dropout(self, *args: Any, **kwargs: Any) -> Node: ...
    def dynamic_slice(self, starts: NodeLike, sizes: ShapeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A block of fixed ``sizes`` at a position computed in the graph (one entry of ``starts`` an axis)."""
    def dynamic_update_slice(self, update: NodeLike, starts: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with a block replaced at a position computed in the graph; see ``dynamic_slice``."""
    def elu(self, alpha: float = 1.0, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""
    def embedding(self, table: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """One row of ``table`` (a matrix) for each index; the row's axis comes last."""
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
    def expand(self, shape: Any, *, label: str | None = None) -> Node:
        """``x`` repeated along axes of size 1 and new axes in front, to fill ``shape``; -1 keeps a size."""
    def expand_dims(self, axis: Any, *, label: str | None = None) -> Node:
        """NumPy's spelling of ``unsqueeze``."""
    def expm1(self, shape: Any = None, *, label: str | None = None) -> Node:
        """exp(x) - 1, exact near 0."""
    def fake_quantize(self, scale: float | Sequence[float], zero_point: int | Sequence[int] = (0,), axis: int | None = None, shape: Any = None, *, bits: int = 8, label: str | None = None) -> Node:
        """``x`` as its codes stand for it, in its own type: what a model is trained with that will be quantised."""
    def fft(self, inverse: bool = False, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The discrete Fourier transform along ``axis``: ``X[k] = sum_n x[n] exp(-2 pi i k n / N)``, with a plus where it is ``inverse``."""
    def fft_axis(self, axis: int, inverse: bool = False, norm: Any = 'none', shape: object = None, *, label: str | None = None) -> Node:
        """``fft`` along any axis; of real numbers it is the one that holds real and imaginary parts."""
    def fft_batch_real(self, norm: Any = 'none', *, label: str | None = None) -> tuple[Node, Node]:
        """``fft_real``; leading axes are a batch in both."""
    def fft_conv1d(self, b: NodeLike, n_fft: int = 0, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The convolution of signals along the last axis, as ``np.convolve``: ``la + lb - 1`` elements; leading axes broadcast."""
    def fft_norm(self, inverse: bool, norm: Any, shape: object = None, *, label: str | None = None) -> Node:
        """``fft`` with its factor as the third argument: an ``FftNorm``, or a word."""
    def fft_real(self, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The whole spectrum of real signals along the last axis, padded with zeros to a power of two, as real and imaginary parts."""
    def fftn(self, axes: int | Sequence[int] | None = None, inverse: bool = False, norm: Any = 'none', *, label: str | None = None) -> Node:
        """``fft`` along several axes, all of them by default; more than one needs complex numbers."""
    def flatten(self, start: int = 0, end: int = -1, *, label: str | None = None) -> Node:
        """The axes from ``start`` to ``end`` (both included) as one; all of them by default."""
    def flip(self, axes: int | Sequence[int] | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with the order of elements along some axes (all by default) reversed."""
    def floor(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The largest integer not above x."""
    def floor_divide(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """floor(a / b), as Python's ``//``."""
    def fold(self, sizes: ShapeLike, stride: int | Sequence[int] = (1,), dilation: int | Sequence[int] = (1,), shape: Any = None, *, label: str | None = None) -> Node:
        """Windows added back to where they came from: the transpose of ``windows`` over axes of ``sizes``."""
    def full_attention(self, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, *, label: str | None = None) -> Node:
        """Attention of every row to every row of the same sequence."""
    def full_like(self, value: Any, dtype: Any = None, *, label: str | None = None) -> Node:
        """A tensor of ``x``'s shape (and element type, unless another is given) filled with one number."""
    def fused_conv(self, w: NodeLike, bias: NodeLike | None = None, residual: NodeLike | None = None, shape: Any = None, *, stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, activation: str | None = None, label: str | None = None) -> Node:
        """``activation(conv(x, w) + bias) + residual`` as one op; 16-bit floats are rounded once, at its end."""
    def fused_matmul(self, b: NodeLike, bias: NodeLike | None = None, residual: NodeLike | None = None, shape: Any = None, *, form: Literal['nn', 'tn', 'nt'] = 'nn', activation: str | None = None, label: str | None = None) -> Node:
        """``activation(a @ b + bias) + residual`` as one op; 16-bit floats are rounded once, at its end."""
    def fused_matmul_bias_act(self, weight: NodeLike, bias: NodeLike, activation: str | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``activation(input @ weight + bias)`` as one op; 16-bit floats are rounded once, at its end."""
    def fused_residual_ln(self, residual: NodeLike, bias: NodeLike | None, gamma: NodeLike | None, beta: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """``layer_norm(x + residual + bias, gamma, beta, eps)`` over the last axis; bias may be None."""
    def fused_residual_rms_norm(self, residual: NodeLike, bias: NodeLike | None, gamma: NodeLike | None, beta: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """``rms_norm(x + residual + bias, gamma, beta, eps)`` over the last axis; bias may be None."""
    def fused_swiglu_ffn(self, up_w: NodeLike, gate_w: NodeLike, down_w: NodeLike, out_shape: Any = None, *, label: str | None = None) -> Node:
        """``swiglu_ffn`` with one product for up and gate: the weights are joined as [up | gate]."""
    def gated_delta_net(self, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """The gated delta rule from an empty state: ``M *= exp(g); M += k (beta (v - M'k))'; o = M'q / sqrt(n)`` along the sequence."""
    def gated_delta_net_backward(self, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, dy: NodeLike, state: NodeLike | None = None, dstate: NodeLike | None = None, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``gated_delta_net`` with respect to ``q``, ``k``, ``v``, ``g`` and ``beta``; from a ``state``, also with respect to that."""
    def gated_delta_net_carry(self, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, state: NodeLike, state_size: int | None = None, shape: object = None, *, return_state: bool = False, label: str | None = None) -> Node | tuple[Node, Node]:
        """``gated_delta_net`` that begins with ``state`` (batch, heads, n keys, n values): a whole prompt, or one token of it."""
    def gated_delta_net_final(self, k: NodeLike, v: NodeLike, g: NodeLike, beta: NodeLike, state: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """``gated_delta_net`` from a ``state`` (batch, heads, n keys, n values), and the state after the last step."""
    def gather(self, indices: NodeLike, axis: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """Slices of ``table`` along ``axis``, one for each index; the indices' axes take that axis' place."""
    def gather_(self, indices: NodeLike, axis: int, *, label: str | None = None) -> Node:
        """RLX's spelling of ``gather``."""
    def gather_backward(self, indices: NodeLike, table_shape: Any, axis: int = 0, *, label: str | None = None) -> Node:
        """The derivative of ``gather`` by its table: ``dy`` added up by index into zeros of the table's shape."""
    @overload
    def gaussian_splat_prepare(self, scales: NodeLike, rotations: NodeLike, opacities: NodeLike, colors: NodeLike, sh_coeffs: NodeLike, meta: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, shape: Any = None, *, label: str | None = None) -> Node:
        """What ``gaussian_splat_rasterize`` makes a picture of, in one flat tensor."""
    @overload
    def gaussian_splat_prepare(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def gaussian_splat_rasterize(self, meta: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, shape: Any = None, *, label: str | None = None) -> Node:
        """The picture of what ``gaussian_splat_prepare`` packed, with the same options; bit for bit that of ``gaussian_splat_render``."""
    @overload
    def gaussian_splat_rasterize(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def gaussian_splat_render(self, scales: NodeLike, rotations: NodeLike, opacities: NodeLike, colors: NodeLike, sh_coeffs: NodeLike, meta: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, shape: Any = None, *, label: str | None = None) -> Node:
        """A picture of a scene of soft ellipsoids: [height * width * 4], red, green, blue and opacity of each pixel, from above."""
    @overload
    def gaussian_splat_render(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def gaussian_splat_render_backward(self, scales: NodeLike, rotations: NodeLike, opacities: NodeLike, colors: NodeLike, sh_coeffs: NodeLike, meta: NodeLike, d_loss_rgba: NodeLike, width: int = 64, height: int = 64, tile_size: int = 16, radius_scale: float = 1.6, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, max_list_entries: int = 576, loss_grad_clip: float = 1.0, sh_band: int = 0, max_anisotropy: float = 10.0, shape: Any = None, *, label: str | None = None) -> Node:
        """What the tensors of a scene receive from the cotangent ``d_loss_rgba`` of its picture, cut off at ``loss_grad_clip``."""
    @overload
    def gaussian_splat_render_backward(self, *args: Any, **kwargs: Any) -> Node: ...
    def ge(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a >= b, as bool."""
    def geglu(self, up: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """gelu(gate) * up, both of one shape."""
    def gelu(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x times the normal distribution function of x: 0.5 * x * (1 + erf(x / sqrt(2)))."""
    def gelu_approx(self, shape: Any = None, *, label: str | None = None) -> Node:
        """gelu through tanh: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))."""
    def getitem(self, key: Any, *, label: str | None = None) -> Node:
        """``x[key]``, as NumPy reads it."""
    def global_avg_pool(self, *geometry: int, keepdims: bool = False, label: str | None = None) -> Node:
        """The mean of each channel: [batch, channels, *spatial] becomes [batch, channels]."""
    def global_max_pool(self, *geometry: int, keepdims: bool = False, label: str | None = None) -> Node:
        """The largest element of each channel: [batch, channels, *spatial] becomes [batch, channels]."""
    def glu(self, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The first half of ``axis`` times the sigmoid of the second half."""
    def greater(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """1 where ``a > b``, else 0, in the operands' element type."""
    def greedy(self, *, label: str | None = None) -> Node:
        """The index (i32) of the largest logit of each row, the first where several are."""
    @overload
    def group_norm(self, weight: NodeLike | None, bias: NodeLike | None, num_groups: int, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """(batch, channels, ...) normalised over each group of channels and all space; affine by channel."""
    @overload
    def group_norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def group_norm_backward_beta(self, dy: NodeLike, beta_shape: ShapeLike | None = None, num_groups: int = 1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to beta: ``dy`` summed."""
    def group_norm_backward_gamma(self, dy: NodeLike, gamma_shape: ShapeLike | None = None, num_groups: int = 1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to gamma."""
    def group_norm_backward_input(self, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, num_groups: int, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``group_norm(x, gamma, beta, num_groups, eps)`` with respect to x."""
    def group_norm_grad_input(self, x: NodeLike, w: NodeLike, batch: int, channels: int, spatial: int, num_groups: int, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of the flat ``group_norm`` with respect to x, of the shape of x."""
    def group_norm_grad_weight_bias(self, x: NodeLike, channels: int, spatial: int, num_groups: int, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradients of the flat ``group_norm`` with respect to weight and bias, one after the other: [2 * channels]."""
    @overload
    def group_norm_silu(self, weight: NodeLike | None, bias: NodeLike | None, num_groups: int, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """``silu(group_norm(x, weight, bias, num_groups, eps))``, flat form included."""
    @overload
    def group_norm_silu(self, *args: Any, **kwargs: Any) -> Node: ...
    def grouped_matmul(self, w: NodeLike, expert: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Each row times the matrix its index chooses: ``y[i] = x[i] @ w[expert[i]]``."""
    def gt(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a > b, as bool."""
    def hard_sigmoid(self, shape: Any = None, *, label: str | None = None) -> Node:
        """A sigmoid of straight lines: 0 below -3, 1 above 3, x / 6 + 0.5 between."""
    def hard_silu(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x * hard_sigmoid(x), also called hardswish."""
    def hard_tanh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x kept between -1 and 1."""
    def huber_loss(self, target: NodeLike, delta: float = 1.0, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Half the square of pred - target up to ``delta``, and beyond it a line of slope ``delta``."""
    def ifft_spectrum(self, im: NodeLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The real part of the inverse transform of a whole spectrum along the last axis."""
    def ifftn(self, axes: int | Sequence[int] | None = None, norm: Any = 'none', *, label: str | None = None) -> Node:
        """The inverse of ``fftn``, by default without a factor."""
    def imag(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The imaginary part of each complex number."""
    def instance_norm(self, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """(batch, channels, space ...) normalised over space, for each sample and channel by itself."""
    def inverse(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The inverse of each square matrix."""
    def inverse_real_fft(self, im: NodeLike, n: DimLike, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The n real numbers whose spectrum begins with these ``n // 2 + 1`` along the last axis."""
    def irfft(self, im: NodeLike, n: int, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """Real signals from half their spectrum along the last axis."""
    def is_finite(self, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is neither infinite nor NaN."""
    def is_inf(self, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is infinite."""
    def is_nan(self, shape: Any = None, *, label: str | None = None) -> Node:
        """Whether x is NaN."""
    def kl_div(self, target: NodeLike, shape: Any = None, *, log_target: bool = False, reduction: Literal['mean', 'batchmean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """The Kullback-Leibler divergence, target * (log(target) - log_probs) at each element."""
    def l1_loss(self, target: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """The mean of |pred - target|."""
    def l2_normalize(self, axis: int | Sequence[int] = (-1,), eps: float = 1e-12, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` divided by its length (the root of the sum of squares) over ``axis``, or by eps where it is shorter."""
    @overload
    def layer_norm(self, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, axis: int = -1, label: str | None = None) -> Node:
        """``(x - mean) / sqrt(variance + eps) * weight + bias`` over ``axis`` and all axes after it."""
    @overload
    def layer_norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def layer_norm2d(self, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """NCHW images normalised over their channels, at every position by itself."""
    def layer_norm_backward_beta(self, beta_shape: ShapeLike | None = None, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm`` with respect to beta: ``dy`` summed over the axes before ``axis``."""
    def layer_norm_backward_gamma(self, dy: NodeLike, gamma_shape: ShapeLike | None = None, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, gamma, beta, eps, axis=axis)`` with respect to gamma."""
    def layer_norm_backward_input(self, gamma: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, gamma, beta, eps, axis=axis)`` with respect to x."""
    def layer_norm_grad_wb(self, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, w, b, eps)`` with respect to w, of the type of w."""
    def layer_norm_grad_x(self, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``layer_norm(x, w, b, eps)`` with respect to x."""
    def le(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a <= b, as bool."""
    def leaky_relu(self, slope: float = 0.01, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` above 0, ``slope * x`` below."""
    def linear(self, w: NodeLike, bias: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ w.T + bias`` with PyTorch's layout of a weight: [out, in]."""
    def linear_bias(self, w: NodeLike, bias: NodeLike | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ w + bias`` for w [in, out] and bias [out], which may be left out."""
    def linear_bias_act(self, w: NodeLike, bias: NodeLike | None = None, activation: Any = None, shape: Any = None, *, label: str | None = None) -> Node:
        """``activation(x @ w + bias)`` as separate ops; bias and activation may be left out."""
    def linear_fused(self, w: NodeLike, bias: NodeLike, activation: Any = None, out_shape: Any = None, *, label: str | None = None) -> Node:
        """``fused_matmul_bias_act`` by RLX's other name."""
    def linear_recurrence(self, b: NodeLike, axis: int = -1, shape: Any = None, *, reverse: bool = False, label: str | None = None) -> Node:
        """``y[i] = a[i] * y[i - 1] + b[i]`` along ``axis``, from ``y[-1] = 0``; ``reverse`` starts at the end."""
    def ln(self, gamma: NodeLike, beta: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """RLX's short spelling of ``layer_norm`` over the last axis."""
    def log(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The natural logarithm; -inf at 0, NaN below."""
    def log10(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 10."""
    def log1p(self, shape: Any = None, *, label: str | None = None) -> Node:
        """log(1 + x), exact near 0."""
    def log2(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm to base 2."""
    def log_sigmoid(self, shape: Any = None, *, label: str | None = None) -> Node:
        """log(sigmoid(x)), exact where sigmoid rounds to 0 or 1."""
    def log_softmax(self, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm of softmax: ``x`` less the log of the sum of exp(x) along ``axis``."""
    def log_softmax_backward(self, dy: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of log_softmax for its input, from its result ``y`` and the gradient ``dy``."""
    def logdet(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm of each determinant: -inf where it is 0, NaN where it is negative."""
    def logical_and(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a and b."""
    def logical_not(self, shape: Any = None, *, label: str | None = None) -> Node:
        """not x."""
    def logical_or(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a or b."""
    def logical_xor(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Exactly one of a and b."""
    @overload
    def logsumexp(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The logarithm of the sum of exponentials over ``axes`` (all by default), without overflow."""
    @overload
    def logsumexp(self, *args: Any, **kwargs: Any) -> Node: ...
    def lora_matmul(self, w: NodeLike, a: NodeLike, b: NodeLike, scale: float = 1.0, shape: Any = None, *, label: str | None = None) -> Node:
        """``x @ w + scale * (x @ a) @ b``: a weight [K, N] with a low-rank change a [K, R], b [R, N]."""
    def lt(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a < b, as bool."""
    def masked_fill(self, mask: NodeLike, value: float, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with one number wherever ``mask`` (which broadcasts to ``x``) is True."""
    def masked_softmax(self, mask: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """Softmax over the elements where ``mask`` is True; the others get exactly 0."""
    def matmul(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Matrix product of the last two axes; the axes before them broadcast."""
    def matmul_at(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``a.T @ b`` for a [K, M] and b [K, N]: the gradient of a weight."""
    def matmul_bt(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``a @ b.T`` for a [M, K] and b [N, K]: the gradient of an input."""
    @overload
    def max(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The largest element over ``axes`` (all by default); NaN if there is one."""
    @overload
    def max(self, *args: Any, **kwargs: Any) -> Node: ...
    def max_pool(self, window: int | Sequence[int], shape: Any = None, *, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), ceil_mode: bool = False, label: str | None = None) -> Node:
        """The largest element of each window; padding never wins (it is -inf, or the least integer)."""
    def max_pool1d(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, *, label: str | None = None) -> Node:
        """The largest element of each window of [batch, channels, length]; see ``max_pool``."""
    def max_pool2d(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, *, label: str | None = None) -> Node:
        """The largest element of each window of [batch, channels, height, width]; see ``max_pool``."""
    def max_pool3d(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, *, label: str | None = None) -> Node:
        """The largest element of each window of [batch, channels, depth, height, width]; see ``max_pool``."""
    def max_pool_2d(self, batch: int, channels: int, in_h: int, in_w: int, kernel_h: int, kernel_w: int, stride: int, padding: int, *, label: str | None = None) -> Node:
        """The largest element of each window of a flat NCHW tensor, flat; see ``max_pool2d``."""
    def max_pool_backward(self, dy: NodeLike, window: int | Sequence[int], shape: Any = None, *, stride: int | Sequence[int] | None = None, padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), ceil_mode: bool = False, label: str | None = None) -> Node:
        """The gradient of ``max_pool``: ``dy`` is added where each window has its first maximum."""
    def maximum(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The larger of a and b; NaN if either is, and 0 is larger than -0."""
    def maxpool2d_backward(self, dy: NodeLike, kernel_size: Any, stride: Any, padding: Any, *, label: str | None = None) -> Node:
        """The gradient of ``max_pool2d`` towards its input; see ``max_pool_backward``."""
    @overload
    def mean(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The mean over ``axes`` (all by default)."""
    @overload
    def mean(self, *args: Any, **kwargs: Any) -> Node: ...
    def mean_all(self, *, label: str | None = None) -> Node:
        """The mean of all elements, as a tensor of shape [1]."""
    @overload
    def min(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The smallest element over ``axes`` (all by default); NaN if there is one."""
    @overload
    def min(self, *args: Any, **kwargs: Any) -> Node: ...
    def min_pool(self, window: Any, *, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, label: str | None = None) -> Node:
        """The least element of each window; padding never wins."""
    def minimum(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The smaller of a and b; NaN if either is, and -0 is smaller than 0."""
    def mish(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x * tanh(softplus(x))."""
    def mm(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Shorthand for ``matmul``."""
    def moveaxis(self, source: Any, destination: Any, *, label: str | None = None) -> Node:
        """``x`` with an axis (or several) moved to another place, the others in order around it."""
    def mse_loss(self, target: NodeLike, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """The mean of (pred - target) squared."""
    def mul(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a * b."""
    def multi_head_attn(self, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, is_cross: bool = False, *, label: str | None = None) -> Node:
        """Attention without a mask, to a sequence of any length; ``is_cross`` is a note for the reader."""
    def narrow(self, axis: int, start: Any, length: Any, *, label: str | None = None) -> Node:
        """``length`` elements along ``axis``, from ``start`` on."""
    def narrow_(self, axis: int, start: Any, length: Any, *, label: str | None = None) -> Node:
        """RLX's spelling of ``narrow``."""
    def ne(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a != b, as bool."""
    def neg(self, shape: Any = None, *, label: str | None = None) -> Node:
        """-x."""
    def nll_loss(self, labels: NodeLike, shape: Any = None, *, ignore_index: int = -100, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """Minus the log-probability of each row's class: ``log_probs`` is [..., C], ``labels`` [...]."""
    @overload
    def norm(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, order: float = 2.0, label: str | None = None) -> Node:
        """The length of vectors over ``axes`` (all by default)."""
    @overload
    def norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def norm_matmul(self, gamma: NodeLike, w: NodeLike, eps: float = 1e-05, shape: Any = None, *, form: Literal['nn', 'nt'] = 'nn', label: str | None = None) -> Node:
        """``rms_norm(x, gamma, eps) @ w`` as one op, over the last axis of ``x`` [..., K]."""
    def one_hot(self, depth: DimLike, dtype: DTypeLike = ..., shape: Any = None, *, label: str | None = None) -> Node:
        """For each index, a row of ``depth`` zeros with a 1 in its place; all zeros when it is outside."""
    def ones_like(self, dtype: Any = None, *, label: str | None = None) -> Node:
        """Ones in ``x``'s shape and element type."""
    def outer(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Every product of an element of the vector ``a`` (rows) and one of ``b`` (columns)."""
    def pad(self, padding: int | Sequence[int | Sequence[int]], value: float = 0.0, shape: Any = None, *, interior: int | Sequence[int] | None = None, label: str | None = None) -> Node:
        """``x`` with ``value`` around it: (low, high) for every axis, or one number for all."""
    def pad_last_axis_to_pow2(self, *, label: str | None = None) -> Node:
        """``x`` with zeros behind its last axis, up to a power of two; ``x`` itself where it is one."""
    def pad_with(self, padding: int | Sequence[int | Sequence[int]], mode: Literal['reflect', 'edge', 'wrap'] = 'reflect', shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with values of its own around it: (low, high) for every axis, or one number for all."""
    def pixel_shuffle(self, factor: int, *, label: str | None = None) -> Node:
        """Channels laid out as blocks: [n, c * f * f, h, w] becomes [n, c, h * f, w * f]."""
    def pixel_unshuffle(self, factor: int, *, label: str | None = None) -> Node:
        """Blocks laid out as channels: [n, c, h * f, w * f] becomes [n, c * f * f, h, w]."""
    def pool(self, kind: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *, label: str | None = None) -> Node:
        """Pooling by kind: max, mean (padding counts), sum, min or prod; any number of spatial axes."""
    def pow(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a to the power b."""
    @overload
    def prod(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The product over ``axes`` (all by default)."""
    @overload
    def prod(self, *args: Any, **kwargs: Any) -> Node: ...
    def prod_pool(self, window: Any, *, stride: Any = None, padding: Any = 0, label: str | None = None) -> Node:
        """The product of each window of [batch, channels, *spatial]; padding is ones."""
    def project(self, index: int, shape: Any = None, *, label: str | None = None) -> Node:
        """One result of a node that has several."""
    def psd(self, im: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The power spectral density of a spectrum: ``(re^2 + im^2) / N``, with N the size of the last axis."""
    def psd_real(self, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> Node:
        """The power spectral density of real signals: ``(re^2 + im^2) / P`` of their ``rfft``, of length P."""
    def q_conv2d(self, w: NodeLike, bias: NodeLike | None, kernel_size: int | Sequence[int], stride: int | Sequence[int] = (1,), padding: int | Sequence[int | Sequence[int]] = ..., dilation: int | Sequence[int] = (1,), groups: int = 1, x_zp: int = 0, w_zp: int = 0, out_zp: int = 0, mult: float | Sequence[float] = ..., shape: Any = None, *, label: str | None = None) -> Node:
        """A convolution of codes as codes; as in ``q_matmul``, with the geometry of ``conv``."""
    def q_matmul(self, w: NodeLike, bias: NodeLike | None, x_zp: int = 0, w_zp: int = 0, out_zp: int = 0, mult: float | Sequence[float] = ..., shape: Any = None, *, label: str | None = None) -> Node:
        """A product of codes as codes: ``clip(round(acc * mult) + out_zp, -128, 127)`` with ``acc = bias + (x - x_zp) @ (w - w_zp)``."""
    def quantize(self, scale: float, zero_point: int = 0, shape: Any = None, *, rounding: Literal['even', 'away'] = 'even', label: str | None = None) -> Node:
        """Codes of 8 bits: ``clip(round(x / scale) + zero_point, -128, 127)`` as i8."""
    def quantize_per_channel(self, axis: int, scales: float | Sequence[float], zero_points: int | Sequence[int], shape: Any = None, *, rounding: Literal['even', 'away'] = 'even', label: str | None = None) -> Node:
        """``quantize`` with a scale and a zero point for each slice along ``axis``."""
    def quick_gelu(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x * sigmoid(1.702 * x)."""
    def real(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The real part of each complex number."""
    def real_fft(self, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The first ``N // 2 + 1`` numbers of the spectrum of N real ones along the last axis, as real and imaginary parts."""
    def recip(self, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / x."""
    def recompute_barrier(self, after: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` itself, but not before ``after`` is known."""
    def reduce(self, op: Any, axes: Any = None, keep_dim: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """A reduction by its kind: sum, mean, max, min or prod."""
    def reduce_precision(self, exponent_bits: int, mantissa_bits: int, shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` rounded to a float of so many bits of exponent and mantissa, in its own type: ties to even, as JAX's op of this name."""
    def relu(self, shape: Any = None, *, label: str | None = None) -> Node:
        """max(x, 0)."""
    def relu6(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x kept between 0 and 6."""
    def relu_backward(self, dy: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``relu(x)``: ``dy`` where x > 0, else 0."""
    def remainder(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a - b * floor(a / b), as Python's ``%``: the sign is b's."""
    def repeat(self, count: int, axis: int | None = None, *, label: str | None = None) -> Node:
        """Each element along ``axis`` ``count`` times in a row; of the flattened tensor by default."""
    def reshape(self, shape: ShapeLike, *, label: str | None = None) -> Node:
        """The same elements, in the same order, under another shape."""
    def reshape_(self, shape: Any, *, label: str | None = None) -> Node:
        """RLX's spelling of ``reshape``."""
    def resize_bilinear(self, sizes: Any, align_corners: bool = False, *, label: str | None = None) -> Node:
        """[batch, channels, height, width] at another height and width; see ``resize_linear``."""
    def resize_linear(self, sizes: ShapeLike, shape: Any = None, *, align_corners: bool = False, label: str | None = None) -> Node:
        """``x`` at other spatial ``sizes``, linear between neighbours along every spatial axis."""
    def resize_nearest(self, sizes: ShapeLike | None = None, shape: Any = None, *, factor: int | Sequence[int] | None = None, label: str | None = None) -> Node:
        """``x`` at other spatial ``sizes``, or ``factor`` times its own, each element the nearest one."""
    def resize_nearest_2x(self, *, label: str | None = None) -> Node:
        """RLX's spelling of ``upsample_2x``."""
    def rfft(self, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, n: DimLike | None = None, label: str | None = None) -> tuple[Node, ...]:
        """Half the spectrum of real signals along the last axis, as real and imaginary parts: the other half are conjugates."""
    @overload
    def rms_norm(self, weight: NodeLike | None = None, bias: NodeLike | None = None, eps: float = 1e-05, shape: Any = None, *, axis: int = -1, label: str | None = None) -> Node:
        """``x / sqrt(mean(x**2) + eps) * weight + bias`` over ``axis`` and all axes after it."""
    @overload
    def rms_norm(self, *args: Any, **kwargs: Any) -> Node: ...
    def rms_norm_backward_beta(self, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to beta: ``dy`` summed."""
    def rms_norm_backward_gamma(self, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to gamma."""
    def rms_norm_backward_input(self, gamma: NodeLike | None, beta: NodeLike | None, dy: NodeLike, axis: int = -1, eps: float = 1e-05, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, gamma, beta, eps, axis=axis)`` with respect to x."""
    def rms_norm_grad_w(self, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, w, eps)`` with respect to w."""
    def rms_norm_grad_x(self, x: NodeLike, w: NodeLike, eps: float = 1e-05, *, label: str | None = None) -> Node:
        """The gradient of ``rms_norm(x, w, eps)`` with respect to x."""
    def roll(self, shift: Any, axis: Any = None, *, label: str | None = None) -> Node:
        """Elements moved ``shift`` places up along ``axis``, those that fall off coming back at the start."""
    @overload
    def rope(self, theta: float = 10000.0, head_dim: int | None = None, shape: Any = None, *, n_rot: int | None = None, offset: int = 0, layout: Literal['flat', 'shd', 'hsd'] = 'flat', interleaved: bool = False, inverse: bool = False, positions: NodeLike | None = None, label: str | None = None) -> Node:
        """``x`` with its pairs turned by ``position * theta ** (-2 * pair / n_rot)``."""
    @overload
    def rope(self, *args: Any, **kwargs: Any) -> Node: ...
    def rope_backward(self, cos: NodeLike, sin: NodeLike, head_dim: int, n_rot: int | None = None, *, label: str | None = None) -> Node:
        """The gradient of ``rope_with_tables`` with respect to its operand: the turn back."""
    def rope_dynamic_offset(self, theta: float, offset: NodeLike, head_dim: int, *, layout: Any = 'flat', label: str | None = None) -> Node:
        """``rope`` of a sequence whose first row has the position that ``offset``, one integer of the graph, gives."""
    def rope_grad(self, theta: float, head_dim: int, *, offset: int = 0, layout: Any = 'flat', positions: NodeLike | None = None, label: str | None = None) -> Node:
        """The gradient of ``rope`` with respect to its operand: the turn back."""
    def rope_n(self, cos: NodeLike, sin: NodeLike, head_dim: int, n_rot: int, *, label: str | None = None) -> Node:
        """``rope_with_tables`` of the first ``n_rot`` elements of each head."""
    def rope_tables(self, n_rot: int, theta: float = 10000.0, shape: Any = None, *, dtype: DTypeLike = ..., label: str | None = None) -> tuple[Node, ...]:
        """The cosines and the sines by which each position turns each of the ``n_rot / 2`` pairs."""
    def rope_with_offset(self, theta: float, offset: int, head_dim: int, *, layout: Any = 'flat', label: str | None = None) -> Node:
        """``rope`` of a sequence whose first row has position ``offset``."""
    @overload
    def rope_with_tables(self, cos: NodeLike, sin: NodeLike, shape: Any = None, *, head_dim: int | None = None, n_rot: int | None = None, layout: Literal['flat', 'shd', 'hsd'] = 'flat', interleaved: bool = False, label: str | None = None) -> Node:
        """``x`` turned by angles whose cosines and sines are given: (..., length, pairs), one row for each of the sequence."""
    @overload
    def rope_with_tables(self, *args: Any, **kwargs: Any) -> Node: ...
    def round(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The nearest integer; halves go to the even one."""
    def rsqrt(self, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / sqrt(x)."""
    @overload
    def sample(self, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0, seed: int = 0, shape: Any = None, *, min_p: float = 0.0, stream: int | None = None, step: NodeLike | None = None, label: str | None = None) -> Node:
        """One index (i32) for each row of ``logits`` [..., V], drawn by softmax(logits / temperature)."""
    @overload
    def sample(self, *args: Any, **kwargs: Any) -> Node: ...
    @overload
    def scaled_dot_attention(self, k: NodeLike, v: NodeLike, mask: NodeLike | None = None, bias: NodeLike | None = None, shape: Any = None, *, layout: Literal['bhsd', 'bshd'] = 'bhsd', causal: bool = False, window: int | None = None, scale: float | None = None, softcap: float | None = None, offset: NodeLike | None = None, label: str | None = None) -> Node:
        """Each query's mean of the values, weighted by the softmax of its scores with the keys."""
    @overload
    def scaled_dot_attention(self, *args: Any, **kwargs: Any) -> Node: ...
    def scaled_dot_attention_backward(self, k: NodeLike, v: NodeLike, dy: NodeLike, mask: NodeLike | None = None, bias: NodeLike | None = None, shape: Any = None, *, layout: Literal['bhsd', 'bshd'] = 'bhsd', causal: bool = False, window: int | None = None, scale: float | None = None, softcap: float | None = None, offset: NodeLike | None = None, out: NodeLike | None = None, statistics: NodeLike | None = None, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``scaled_dot_attention`` with respect to ``q``, ``k``, ``v`` and, if there is one, ``bias``."""
    def scan(self, body: Graph, length: int, *, label: str | None = None) -> Node:
        """The carry after ``length`` steps of ``body``, a graph of one input and one output."""
    def scan_backward(self, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, out_shape: object = None, *, label: str | None = None) -> Node:
        """The gradient of a scan's ``init``, by a transposed body."""
    def scan_backward_with_checkpoints(self, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, num_checkpoints: int, forward_body: Graph | None = None, out_shape: object = None, *, label: str | None = None) -> Node:
        """``scan_backward`` from ``num_checkpoints`` carries: those after steps ceil((k + 1) length / num_checkpoints) - 1."""
    def scan_backward_xs(self, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, xs_idx: int, out_shape: object = None, *, label: str | None = None) -> Node:
        """The gradient of ``xs[xs_idx]`` of a scan: [length, ...]; see ``scan_backward``."""
    def scan_backward_xs_with_checkpoints(self, trajectory: NodeLike, upstream: NodeLike, xs: list[NodeLike], body_vjp: Graph, length: int, save_trajectory: bool, xs_idx: int, num_checkpoints: int, forward_body: Graph | None = None, out_shape: object = None, *, label: str | None = None) -> Node:
        """``scan_backward_xs`` from ``num_checkpoints`` carries; see ``scan_backward_with_checkpoints``."""
    def scan_checkpointed(self, body: Graph, length: int, num_checkpoints: int, *, label: str | None = None) -> Node:
        """``scan``, of which a gradient keeps ``num_checkpoints`` carries and computes the steps between them again."""
    def scan_trajectory(self, body: Graph, length: int, *, label: str | None = None) -> Node:
        """The carries after each of ``length`` steps: [length, ...]."""
    def scan_with_bcasts_and_xs(self, bcasts: list[NodeLike], xs: list[NodeLike], body: Graph, length: int, *, label: str | None = None) -> Node:
        """``scan`` of a body that reads the carry, then what is the same in all steps, then one step of each of ``xs``."""
    def scan_with_xs(self, xs: list[NodeLike], body: Graph, length: int, *, label: str | None = None) -> Node:
        """``scan`` of a body that also reads one step of each of ``xs``, which are [length, ...]."""
    def scatter(self, indices: NodeLike, src: NodeLike, axis: int = 0, mode: Literal['set', 'add', 'mul', 'max', 'min'] = 'set', shape: Any = None, *, label: str | None = None) -> Node:
        """``x`` with slices along ``axis`` replaced by those of ``src``, one for each index."""
    def scatter_add(self, src: NodeLike, size: DimLike, shape: Any = None, *, axis: int = 0, label: str | None = None) -> Node:
        """Slices of ``src`` added up by index into a tensor of zeros with ``size`` entries along ``axis``."""
    def scatter_add_along_axis(self, src: NodeLike, size: DimLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """Each element of ``src`` added to zeros at the place along ``axis`` that its index gives."""
    def selective_scan(self, delta: NodeLike, a: NodeLike, b: NodeLike, c: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """The selective scan of Mamba: ``h = exp(delta * a) * h + delta * b * x`` from 0 along the sequence, and ``y = sum(c * h)`` over the state."""
    def selective_scan_backward(self, delta: NodeLike, a: NodeLike, b: NodeLike, c: NodeLike, dy: NodeLike, state_size: int | None = None, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The gradients of ``selective_scan`` with respect to ``x``, ``delta``, ``a``, ``b`` and ``c``; ``dy`` is the gradient of its result."""
    def selu(self, shape: Any = None, *, label: str | None = None) -> Node:
        """elu scaled so that activations keep mean 0 and variance 1."""
    def shared_matmul_pair(self, w1: NodeLike, w2: NodeLike, *, label: str | None = None) -> tuple[Node, Node]:
        """``x @ w1`` and ``x @ w2``; the optimizer makes them one product where that pays."""
    def shift_left(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a moved b bits up; b is below the width."""
    def shift_right(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a moved b bits down, keeping the sign."""
    def sigmoid(self, shape: Any = None, *, label: str | None = None) -> Node:
        """1 / (1 + exp(-x)); exactly 0 and 1 far out, never NaN."""
    def sign(self, shape: Any = None, *, label: str | None = None) -> Node:
        """-1, 0 or 1 by the sign of x."""
    def silu(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x * sigmoid(x), also called swish."""
    def silu_grad(self, x: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``silu(x)``, from that of its result."""
    def sin(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The sine."""
    def sinh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic sine."""
    def slice(self, starts: ShapeLike, stops: ShapeLike, steps: int | Sequence[int] | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """Elements ``start, start + step, ...`` before ``stop`` along every axis; bounds are checked."""
    def sliding_window_attention(self, k: NodeLike, v: NodeLike, num_heads: int, num_kv_heads: int, head_dim: int, window: int, *, label: str | None = None) -> Node:
        """Causal attention to the last ``window`` keys, the query's own among them."""
    def slogdet(self, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The sign of each determinant (0 for a singular matrix) and the logarithm of its absolute value."""
    def sm(self, axis: int = -1, shape: object = None, *, label: str | None = None) -> Node:
        """RLX's short name of ``softmax``."""
    def smooth_l1_loss(self, target: NodeLike, beta: float = 1.0, shape: Any = None, *, reduction: Literal['mean', 'sum', 'none'] = 'mean', label: str | None = None) -> Node:
        """|pred - target| less ``beta / 2``, rounded into a parabola where it is below ``beta``."""
    def softmax(self, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """exp(x) over its sum along ``axis``: positive numbers that add up to 1."""
    def softmax_backward(self, dy: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of softmax for its input, from its result ``y`` and the gradient ``dy``."""
    def softmax_cross_entropy_backward(self, labels: NodeLike, d_loss: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``softmax_cross_entropy_with_logits`` for its logits."""
    def softmax_cross_entropy_with_logits(self, labels: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The cross-entropy of each row: log(sum(exp(logits))) less the logit of the row's class."""
    def softmin(self, axis: int = -1, *, label: str | None = None) -> Node:
        """Softmax of -x: the smallest element weighs most."""
    def softplus(self, shape: Any = None, *, label: str | None = None) -> Node:
        """log(1 + exp(x)), without overflow."""
    def softsign(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x / (1 + |x|)."""
    def solve(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The ``x`` with ``a @ x = b``, for each matrix of a batch."""
    def sort(self, axis: int = -1, descending: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The elements along ``axis`` in order; NaN sorts above everything."""
    def splat_blend(self, lists: NodeLike, width: int, height: int, tile_size: int = 16, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, shape: Any = None, *, label: str | None = None) -> Node:
        """Colour and transmittance of each pixel, [..., height * width, 4], of splats by lists of ``splat_lists``."""
    def splat_blend_backward(self, lists: NodeLike, g: NodeLike, width: int, height: int, tile_size: int = 16, alpha_cutoff: float = 0.00392156862745098, max_splat_steps: int = 32, transmittance_threshold: float = 0.01, shape: Any = None, *, label: str | None = None) -> Node:
        """What ``features`` of ``splat_blend`` receive from the cotangent ``g`` of its result; which splats a pixel sees, and in which order, stays as it is."""
    def splat_lists(self, numbers: NodeLike, across: int, down: int, max_list_entries: int, shape: Any = None, *, label: str | None = None) -> Node:
        """The splats of each tile: all lists one after another, filled up with -1, and then where the list of each tile begins and ends."""
    def split(self, sections: Any, axis: int = 0, *, label: str | None = None) -> list[Node]:
        """``x`` in pieces along ``axis``: that many equal ones for a number, or of the sizes in a list."""
    def split_a(self, batch: Any, channels_a: Any, channels_b: Any, spatial: Any, *, label: str | None = None) -> Node:
        """The first ``channels_a`` channels of a flat NCHW tensor of ``channels_a + channels_b``, flat."""
    def split_b(self, batch: Any, channels_a: Any, channels_b: Any, spatial: Any, *, label: str | None = None) -> Node:
        """The last ``channels_b`` channels of a flat NCHW tensor of ``channels_a + channels_b``, flat."""
    def split_spectrum(self, *, label: str | None = None) -> tuple[Node, Node]:
        """The real and the imaginary parts of a spectrum whose last axis has one after the other."""
    def sqrt(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The square root; NaN below 0."""
    def square(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x * x."""
    def squeeze(self, axis: Any = None, *, label: str | None = None) -> Node:
        """``x`` without some axes, which must have size 1; by default without all that do."""
    @overload
    def std(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, correction: float = 0.0, label: str | None = None) -> Node:
        """The standard deviation over ``axes``: the square root of ``var``."""
    @overload
    def std(self, *args: Any, **kwargs: Any) -> Node: ...
    def stft(self, frame_len: int, hop: int, norm: Literal['none', 'backward', 'forward', 'ortho'] = 'none', shape: Any = None, *, window: NodeLike | None = None, label: str | None = None) -> Node:
        """The short-time Fourier transform of signals ``[.., T]``: ``rfft`` of frames of ``frame_len`` elements, ``hop`` apart, each times the ``window``."""
    def stop_gradient(self, shape: Any = None, *, label: str | None = None) -> Node:
        """``x``, through which no gradient passes."""
    def sub(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """a - b."""
    @overload
    def sum(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, label: str | None = None) -> Node:
        """The sum over ``axes`` (all by default)."""
    @overload
    def sum(self, *args: Any, **kwargs: Any) -> Node: ...
    def sum_all(self, *, label: str | None = None) -> Node:
        """The sum of all elements, as a tensor of shape [1]."""
    def sum_pool(self, window: Any, *, stride: Any = None, padding: Any = 0, label: str | None = None) -> Node:
        """The sum of each window of [batch, channels, *spatial]; padding is zeros."""
    def sum_rows(self, *, label: str | None = None) -> Node:
        """The rows of a matrix added up: [M, N] gives [N]."""
    def swapaxes(self, axis1: int, axis2: int, *, label: str | None = None) -> Node:
        """``x`` with two axes exchanged."""
    def swiglu(self, up: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """silu(gate) * up, both of one shape."""
    def swiglu_concat(self, shape: Any = None, *, gate_first: bool = True, label: str | None = None) -> Node:
        """The swiglu of the two halves of the last axis: [..., 2N] gives [..., N]."""
    def swiglu_concat_grad(self, x: NodeLike, shape: Any = None, *, gate_first: bool = True, label: str | None = None) -> Node:
        """The gradient of ``swiglu_concat(x)``, of the shape of x."""
    def swiglu_ffn(self, up_w: NodeLike, gate_w: NodeLike, down_w: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """A gated feed-forward block: ``(silu(x @ gate_w) * (x @ up_w)) @ down_w``."""
    def swiglu_grad_gate(self, gate: NodeLike, up: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``swiglu(gate, up)`` with respect to the gate."""
    def swiglu_grad_up(self, gate: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """The gradient of ``swiglu(gate, up)`` with respect to ``up``."""
    def take(self, indices: NodeLike, axis: int | None = None, *, label: str | None = None) -> Node:
        """Slices of ``x`` along ``axis``, one for each index; elements of the flattened ``x`` by default."""
    def take_along_axis(self, indices: NodeLike, axis: int = -1, shape: Any = None, *, label: str | None = None) -> Node:
        """For each position, the element of ``x`` whose place along ``axis`` the index gives."""
    def tan(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The tangent."""
    def tanh(self, shape: Any = None, *, label: str | None = None) -> Node:
        """The hyperbolic tangent."""
    def tile(self, reps: Any, *, label: str | None = None) -> Node:
        """``x`` side by side ``reps`` times along each axis; missing entries and axes count as 1."""
    def top_k(self, k: int, axis: int = -1, shape: Any = None, *, label: str | None = None) -> tuple[Node, ...]:
        """The ``k`` largest elements along ``axis``, largest first, and their indices (i32)."""
    def trace(self, *, label: str | None = None) -> Node:
        """The sum of the diagonal of the last two axes."""
    def transpose(self, perm: int | Sequence[int] | None = None, shape: Any = None, *, label: str | None = None) -> Node:
        """Axes in another order: axis ``i`` of the result is axis ``perm[i]`` of ``x``; reversed by default."""
    def transpose_(self, perm: Any, *, label: str | None = None) -> Node:
        """RLX's spelling of ``transpose``."""
    def triangular_solve(self, b: NodeLike, shape: Any = None, *, lower: bool = True, unit_diagonal: bool = False, label: str | None = None) -> Node:
        """Like ``solve``, reading only one triangle of ``a`` (and taking its diagonal as 1 if asked)."""
    def tril(self, k: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """The lower triangle of the last two axes: zeros above diagonal ``k`` (0 the main one, 1 above it)."""
    def triu(self, k: int = 0, shape: Any = None, *, label: str | None = None) -> Node:
        """The upper triangle of the last two axes: zeros below diagonal ``k`` (0 the main one, 1 above it)."""
    def trunc(self, shape: Any = None, *, label: str | None = None) -> Node:
        """x without its fraction."""
    def unfold(self, kernel: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, label: str | None = None) -> Node:
        """The patches a kernel sees, as columns (im2col): [batch, channels * kernel, places]."""
    def unsqueeze(self, axis: Any, *, label: str | None = None) -> Node:
        """``x`` with a new axis of size 1 (or several), counted in the result: ``unsqueeze(x, -1)``."""
    def upsample_2x(self, *geometry: int, label: str | None = None) -> Node:
        """Every element twice along each spatial axis: [n, c, h, w] becomes [n, c, 2h, 2w]."""
    def upsample_2x_grad(self, *geometry: int, label: str | None = None) -> Node:
        """The gradient of ``upsample_2x``: the sum of each block of 2 along every spatial axis."""
    @overload
    def var(self, axes: int | Sequence[int] | None = None, keepdims: bool = False, shape: Any = None, *, correction: float = 0.0, label: str | None = None) -> Node:
        """The variance over ``axes`` (all by default): squared distances from the mean over ``n - correction``."""
    @overload
    def var(self, *args: Any, **kwargs: Any) -> Node: ...
    def vdot(self, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """Like ``dot``, with the conjugate of ``a`` where it is complex."""
    def where(self, a: NodeLike, b: NodeLike, shape: Any = None, *, label: str | None = None) -> Node:
        """``a`` where the condition holds, else ``b``."""
    def windows(self, window: int | Sequence[int], stride: int | Sequence[int] = (1,), dilation: int | Sequence[int] = (1,), shape: Any = None, *, label: str | None = None) -> Node:
        """Sliding windows over the last axes: their counts stay in place, and window axes are added at the end."""
    def winograd_conv(self, u: NodeLike, shape: Any = None, *, padding: int | Sequence[int | Sequence[int]] = ..., label: str | None = None) -> Node:
        """``conv(x, w, padding=padding)`` for x [batch, in, height, width] and ``u = winograd_weight(w)``."""
    def winograd_weight(self, shape: Any = None, *, label: str | None = None) -> Node:
        """A 3x3 kernel [out, in, 3, 3] as ``winograd_conv`` takes it: [4, 4, in, out]."""
    def zeros_like(self, dtype: Any = None, *, label: str | None = None) -> Node:
        """Zeros in ``x``'s shape and element type."""
