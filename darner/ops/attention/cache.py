"""Caches of keys and values: rows written where a sequence has come to, and attention to what was written.

A cache is a ``state`` (or parameter) of the graph. Writing makes a new value, and says that the cache takes it
after the run; nothing is changed in place, so what reads the cache before and after the write is told apart by
the node it reads.

    >>> import darner
    >>> g = darner.Graph("decode")
    >>> cache = g.state("keys", (8, 4))
    >>> position = g.input("position", (1,), "u32")
    >>> written = g.cache_write(g.input("new", (1, 4)), cache, position)
    >>> g.updates[cache] is written
    True
"""

from __future__ import annotations

from typing import Any

from ...graph.attributes import Axis, Free, Index
from ...graph.dims import Dim, format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder, composite
from ...graph.types import TensorType
from ..axes import spread
from ..indexing.index import dynamic_slice, dynamic_update_slice
from ..samples import ints, sample, spec
from ..shapes.primitives import certainly_less, pad
from .attention import FAMILY, scaled_dot_attention
from .heads import open_heads


@composite(
    family=FAMILY,
    traits=["moves"],
    facts=Facts(overwrites="cache"),
    samples=[
        sample(spec(7, 3), spec(1, 3), ints(1, high=7, dtype="u32")),
        sample(spec(7, 3), spec(2, 3), ints(high=5)),
        sample(spec(2, 5, 3), spec(2, 2, 3), ints(1, high=4, dtype="i64"), axis=1),
        sample(spec(2, 5), spec(2, 2), ints(1, low=-4, high=12), axis=-1),
        sample(spec(4, 3), spec(0, 3), ints(1, high=4)),
        sample(spec(4), spec(4), ints(1, high=4)),
    ],
)
def cache_update(cache: Free, new: Free, position: Index, axis: Axis = 0) -> TensorType:
    """``cache`` with rows replaced by those of ``new``, from ``position`` (one integer) on along ``axis``.

    A position that would leave the cache is moved back so that the rows fit. ``cache_write`` does this to a state.
    """
    if new.dtype is not cache.dtype:
        raise DTypeError(f"new is {new.dtype} and the cache is {cache.dtype}", hint="cast new")
    if new.rank != cache.rank:
        raise ShapeError(f"new has rank {new.rank} and the cache has rank {cache.rank}")
    if position.shape not in ((), (1,)):
        raise ShapeError(f"the position {format_shape(position.shape)} must be one integer")
    for i, (size, whole) in enumerate(zip(new.shape, cache.shape, strict=True)):
        if i != axis and size != whole:
            raise ShapeError(f"new and the cache differ on axis {i}: {size} and {whole}")
    if certainly_less(cache.shape[axis], new.shape[axis]):
        raise ShapeError(f"{new.shape[axis]} rows do not fit a cache of {cache.shape[axis]}")
    return cache


@cache_update.expand
def _(cache: Node, new: Node, position: Node, axis: int) -> Node:
    return dynamic_update_slice(cache, new, _starts(cache, position, axis))


def _starts(cache: Node, position: Node, axis: int) -> Node:
    """Where on each axis of the cache the rows begin."""
    return pad(position.reshape((1,)), ((axis, cache.rank - 1 - axis),))


@cache_update.vjp
def _(g: Node, out: Node, cache: Node, new: Node, position: Node, axis: int) -> Any:
    return {
        "cache": lambda: cache_update(g, g.graph.zeros(new.shape, new.dtype), position, axis),
        "new": lambda: dynamic_slice(g, _starts(cache, position, axis), new.shape),
    }


@cache_update.vmap
def _(size: Dim, batched: Any, cache: Node, new: Node, position: Node, axis: int) -> Any:
    operands = {"cache": cache, "new": new, "position": position}
    if batched["position"]:
        return NotImplemented  # rows of different places cannot be written at once
    for name in ("cache", "new"):
        if not batched[name]:
            operands[name] = spread(operands[name], size)
    return cache_update(*operands.values(), axis + 1)


def _stored_in(cache: Node) -> Node | None:
    """The state or parameter that a chain of writes began with."""
    while cache.op.name == "cache_update":
        cache = cache.operands[0]
    return cache if cache.op.name in ("state", "parameter") else None


def _latest(leaf: Node) -> Node:
    """What a state will hold after the run, as far as the graph says."""
    for target, value in leaf.graph.updates.items():
        if target is leaf:
            return value
    return leaf


@builder(family=FAMILY)
def cache_write(graph: Graph, new: Node, cache: Node, kv_pos: Node, *, axis: int = 0) -> Node:
    """``cache`` with ``new`` at rows ``kv_pos``, ``kv_pos + 1``, ... along ``axis``; returns the written cache.

    When ``cache`` is a state or a parameter, it takes the written value after the run. A second write takes what the
    first returned, and then it is this value that the state takes. Rows that would lie beyond the cache are moved back
    to its end, so keep ``kv_pos`` in range. ``new`` is cast to the cache's element type.
    """
    leaf = _stored_in(cache)
    if leaf is not None and _latest(leaf) is not cache:
        raise ArgumentError(
            f"'{leaf.name}' is already written by %{_latest(leaf).id}",
            hint="chain the writes: give the second one the result of the first",
        )
    if new.dtype is not cache.dtype:
        new = new.cast(cache.dtype)
    written: Node = cache_update(cache, new, kv_pos, axis)
    if leaf is cache:
        graph.set_update(leaf, written)
    elif leaf is not None:
        graph.set_update(leaf, written, replace=True)  # the chain grew: its end is the next value
    return written


@builder(family=FAMILY)
def cached_attention(
    graph: Graph,
    q: Node,
    k_cache: Node,
    v_cache: Node,
    kv_pos: Node,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Node:
    """Attention to a cache filled so far: query ``i`` sees rows 0 to ``kv_pos + i``.

    ``q`` is (queries, num_heads * head_dim) and a cache (rows, num_kv_heads * head_dim), or each with a batch axis in
    front. Pass the nodes that ``cache_write`` returned: they hold the rows of the queries themselves.
    """
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        leaf = _stored_in(cache)
        if leaf is not None and _latest(leaf) is not cache:
            raise ArgumentError(
                f"{name} is '{leaf.name}' as it was before the write %{_latest(leaf).id}",
                hint="pass the node that cache_write returned",
            )
    opened = open_heads(q, k_cache, v_cache, num_heads, head_dim, num_kv_heads)
    options: dict[str, Any] = {"window": window, "scale": scale, "softcap": softcap}
    return opened.close(
        scaled_dot_attention(
            *(opened.q, opened.k, opened.v),
            layout=opened.layout,
            causal=True,
            offset=kv_pos,
            **options,
        )
    )
