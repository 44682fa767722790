"""Heads that lie side by side in the last axis, and an axis of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...graph.dims import Dim, divide
from ...graph.errors import ArgumentError, ShapeError
from ...graph.node import Node
from ...graph.types import TensorType
from .attention import (
    LAYOUTS,
    Layout,
    Sizes,
    attention_sizes,
)

# --------------------------------------------------------------------------- heads side by side


def count(name: str, value: Any) -> int:
    """A number of heads or a width: an integer above 0."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name} must be an integer, got {value!r}")
    if int(value) < 1:
        raise ArgumentError(f"{name} must be at least 1, not {int(value)}")
    return int(value)


@dataclass(frozen=True)
class Opened:
    """Queries, keys and values with their heads on an axis of their own, and the way back."""

    q: Node
    k: Node
    v: Node
    layout: Layout
    rank: int

    @property
    def sizes(self) -> Sizes:
        """Their sizes."""
        q, k, v = (TensorType(item.shape, item.dtype) for item in (self.q, self.k, self.v))
        return attention_sizes(q, k, v, self.layout)

    def open(self, name: str, x: Node, heads: Dim) -> Node:
        """Another tensor, such as a result's gradient, as these are."""
        if x.rank != self.rank:
            raise ShapeError(f"{name} has rank {x.rank}, q has rank {self.rank}")
        return x if self.rank == 4 else _split_heads(name, x, heads)

    def close(self, x: Node) -> Node:
        """A result in the form that the operands came in."""
        if self.rank == 4:
            return x
        batch, length, heads, width = x.shape
        lead = (length,) if self.rank == 2 else (batch, length)
        return x.reshape((*lead, heads * width))


def _split_heads(name: str, x: Node, heads: Dim) -> Node:
    """(length, heads * width) or (batch, length, heads * width) as (batch, length, heads, width)."""
    width = divide(x.shape[-1], heads)
    if width is None:
        raise ShapeError(f"the {x.shape[-1]} columns of {name} do not divide into {heads} heads")
    batch, length = (1, x.shape[0]) if x.rank == 2 else x.shape[:2]
    return x.reshape((batch, length, heads, width))


def open_heads(  # many parameters: the op's operands and attributes
    q: Node,
    k: Node,
    v: Node,
    num_heads: Any,
    head_dim: Any,
    num_kv_heads: Any = None,
    layout: Any = None,
) -> Opened:
    """Find the heads of tensors of rank 2 (length, heads * width), 3 (batch first) or 4.

    Key and value heads are counted from the width of ``k`` unless given. Only rank 4 has a ``layout``; it may be
    left out where the sizes allow just one.
    """
    heads, width = count("num_heads", num_heads), count("head_dim", head_dim)
    for name, item in (("k", k), ("v", v)):
        if item.rank != q.rank:
            raise ShapeError(f"q has rank {q.rank} and {name} has rank {item.rank}")
    if q.rank == 4:
        return Opened(q, k, v, _find_layout(q, k, v, heads, width, layout), 4)
    if q.rank not in (2, 3):
        raise ShapeError(f"q has rank {q.rank}, and attention takes rank 2, 3 or 4")
    if layout is not None:
        raise ArgumentError("layout names the axes of rank 4 tensors", hint="leave it out")
    if q.shape[-1] != heads * width:
        raise ShapeError(f"q has {q.shape[-1]} columns, not num_heads * head_dim = {heads * width}")
    if num_kv_heads is None:
        found = divide(k.shape[-1], width)
        if found is None:
            raise ShapeError(f"the {k.shape[-1]} columns of k are not heads of {width}")
    else:
        found = count("num_kv_heads", num_kv_heads)
        if k.shape[-1] != found * width:
            raise ShapeError(
                f"k has {k.shape[-1]} columns, not num_kv_heads * head_dim = {found * width}"
            )
    return Opened(
        _split_heads("q", q, heads),
        _split_heads("k", k, found),
        _split_heads("v", v, found),
        "bshd",
        q.rank,
    )


def _find_layout(q: Node, k: Node, v: Node, heads: int, width: int, layout: Any) -> Layout:
    if layout is not None and layout not in LAYOUTS:
        raise ArgumentError(f"layout must be 'bhsd' or 'bshd', got {layout!r}")
    fitting: list[Layout] = []
    faults: list[str] = []
    for option in LAYOUTS if layout is None else (layout,):
        try:
            sizes = Opened(q, k, v, option, 4).sizes
            if (sizes.heads, sizes.width) == (heads, width):
                fitting.append(option)
            else:
                faults.append(
                    f"q has {sizes.heads} heads of {sizes.width} in layout {option!r}, "
                    f"not {heads} of {width}"
                )
        except ShapeError as error:
            faults.append(error.rule)
    if len(fitting) == 2:
        raise ArgumentError(
            "both layouts fit these shapes", hint="say layout='bhsd' or layout='bshd'"
        )
    if not fitting:
        raise ShapeError("; ".join(faults))
    return fitting[0]
