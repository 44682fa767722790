"""Copies between global and shared memory that run by themselves.

``cp_async`` copies 16 bytes for each thread (sm_80). Bulk copies are issued by one thread (sm_90): of contiguous bytes, or of a tile by a tensor map, which swizzles it and fills it up with zeros outside of the tensor. Loads arrive at an mbarrier with
their bytes; stores are in groups, which the thread that issued them waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....graph.errors import InternalError
from .assembly import F32, I16, I32, I64, Builder, Value, assembly, listed

PIECE = 16
"""Bytes that a thread copies at once."""

# --------------------------------------------------------------------------- 16 bytes a thread


def cp_async(builder: Builder, to: Value, source: Value, nbytes: Value | int = PIECE) -> None:
    """Copy 16 bytes to a shared address from global memory, past the L1 cache; what is beyond ``nbytes`` becomes zero, and is not read.

    Both addresses are multiples of 16.
    """
    text = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
    assembly(builder, text, (), [to, source, nbytes])


def cp_async_word(builder: Builder, to: Value, source: Value, nbytes: Value | int = 4) -> None:
    """Copy 4 bytes in the same way, or write zero where ``nbytes`` is 0."""
    text = "cp.async.ca.shared.global [$0], [$1], 4, $2;"
    assembly(builder, text, (), [to, source, nbytes])


def cp_async_commit(builder: Builder) -> None:
    """Make a group of this thread's copies since the last one."""
    assembly(builder, "cp.async.commit_group;")


def cp_async_wait(builder: Builder, most: int = 0) -> None:
    """Wait until at most so many of this thread's groups are under way."""
    assembly(builder, f"cp.async.wait_group {most};")


# --------------------------------------------------------------------------- contiguous bytes


def bulk_load(
    builder: Builder,
    to: Value,
    source: Value,
    nbytes: Value | int,
    barrier: Value,
    policy: Value | None = None,
) -> None:
    """Copy contiguous bytes, a multiple of 16, from global memory to a shared address, and arrive at an mbarrier with them."""
    head = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    if policy is None:
        assembly(builder, f"{head} [$0], [$1], $2, [$3];", (), [to, source, nbytes, barrier])
        return
    text = f"{head}.L2::cache_hint [$0], [$1], $2, [$3], $4;"
    assembly(builder, text, (), [to, source, nbytes, barrier, policy])


def bulk_store(builder: Builder, to: Value, source: Value, nbytes: Value | int) -> None:
    """Copy contiguous bytes, a multiple of 16, from a shared address to global memory, in the group that is open."""
    text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
    assembly(builder, text, (), [to, source, nbytes])


def bulk_commit(builder: Builder) -> None:
    """Close the group of this thread's bulk stores."""
    assembly(builder, "cp.async.bulk.commit_group;")


def bulk_wait(builder: Builder, most: int = 0, *, read: bool = True) -> None:
    """Wait until at most so many groups of stores are under way: until they are ``read`` from shared memory, or until they are written."""
    how = ".read" if read else ""
    assembly(builder, f"cp.async.bulk.wait_group{how} {most};")


def bulk_prefetch(
    builder: Builder, source: Value, nbytes: Value | int, inside: Value | None = None
) -> None:
    """Bring contiguous bytes, a multiple of 16, from global memory to the L2 cache, where ``inside`` is no 0; it promises nothing, and reads nothing for this kernel."""
    text = "cp.async.bulk.prefetch.L2.global [$0], $1;"
    if inside is None:
        assembly(builder, text, (), [source, nbytes])
        return
    text = f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; @p {text} }}"
    assembly(builder, text, (), [source, nbytes, inside])


def cache_policy(builder: Builder, kind: str = "evict_first") -> Value:
    """How long what a copy reads stays in the L2 cache: ``evict_first``, ``evict_last`` or ``evict_normal``."""
    text = f"createpolicy.fractional.L2::{kind}.b64 $0, 1.0;"
    return assembly(builder, text, [I64])[0]


# --------------------------------------------------------------------------- tiles


def _coordinates(first: int, at: Sequence[Value | int]) -> tuple[str, int]:
    """The coordinates of a tile as operands, and the number of the operand after them."""
    if not 1 <= len(at) <= 5:
        raise InternalError(f"a tensor map has 1 to 5 axes, not {len(at)}")
    return ", ".join(f"${first + i}" for i in range(len(at))), first + len(at)


def tensor_prefetch(builder: Builder, map_: Value) -> None:
    """Fetch a tensor map itself, so that the first copy need not."""
    assembly(builder, "prefetch.tensormap [$0];", (), [map_])


def tensor_load(  # many parameters: the operands of one instruction
    builder: Builder,
    to: Value,
    map_: Value,
    at: Sequence[Value | int],
    barrier: Value,
    multicast: int | None = None,
    taps: Sequence[Value] = (),
) -> None:
    """Copy the tile at these coordinates, the fastest first, to a shared address, and arrive at an mbarrier with its bytes.

    Args:
        builder: where the code goes.
        to: the shared address; a multiple of 128, or of 1024 for tiles with a swizzle of 128 bytes.
        map_: the tensor map.
        at: the coordinates of the tile's first element.
        barrier: the mbarrier.
        multicast: a bit for each block of the cluster that gets the tile at this address, and its mbarrier the bytes.
        taps: of a map of patches how far from its pixels the elements are, words of 16 bits without signs.
    """
    given, after = _coordinates(2, at)
    how = ".im2col" if taps else ""
    head = (
        f"cp.async.bulk.tensor.{len(at)}d.shared::cluster.global{how}.mbarrier::complete_tx::bytes"
    )
    operands: list[Value | int] = [to, map_, *at, barrier, *taps]
    last = after + 1 + len(taps)
    offsets = ", ".join(f"${after + 1 + i}" for i in range(len(taps)))
    behind = f", {{{offsets}}}" if taps else ""
    if multicast is None:
        assembly(builder, f"{head} [$0], [$1, {{{given}}}], [${after}]{behind};", (), operands)
        return
    text = f"{head}.multicast::cluster [$0], [$1, {{{given}}}], [${after}]{behind}, ${last};"
    assembly(builder, text, (), [*operands, ir.Constant(I16, multicast)])


def tensor_store(
    builder: Builder,
    map_: Value,
    at: Sequence[Value | int],
    source: Value,
    reduction: str | None = None,
) -> None:
    """Copy a tile from a shared address to its place, in the group that is open; what is outside of the tensor is left out.

    Args:
        builder: where the code goes.
        map_: the tensor map.
        at: the coordinates of the tile's first element, the fastest first.
        source: the shared address.
        reduction: ``add``, ``min``, ``max``, ``and``, ``or`` or ``xor``: what is there is combined with the tile.
    """
    given, after = _coordinates(1, at)
    dims = f"{len(at)}d.global.shared::cta"
    head = f"cp.async.bulk.tensor.{dims}.bulk_group"
    if reduction is not None:
        head = f"cp.reduce.async.bulk.tensor.{dims}.{reduction}.tile.bulk_group"
    assembly(builder, f"{head} [$0, {{{given}}}], [${after}];", (), [map_, *at, source])


# --------------------------------------------------------------------------- by hand


def store_shared(builder: Builder, address: Value, values: Sequence[Value]) -> None:
    """Write 1, 2 or 4 words or numbers of f32 to a shared address, a multiple of their bytes."""
    kind = "b32" if str(values[0].type) == "i32" else "f32"
    if len(values) == 1:
        assembly(builder, f"st.shared.{kind} [$0], $1;", (), [address, *values])
        return
    given = listed(1, len(values))
    assembly(builder, f"st.shared.v{len(values)}.{kind} [$0], {given};", (), [address, *values])


def load_shared(builder: Builder, address: Value, count: int = 1) -> list[Value]:
    """Read 1, 2 or 4 numbers of f32 from a shared address, a multiple of their bytes."""
    if count == 1:
        return assembly(builder, "ld.shared.f32 $0, [$1];", [F32], [address])
    found = listed(0, count)
    return assembly(
        builder, f"ld.shared.v{count}.f32 {found}, [${count}];", [F32] * count, [address]
    )


def load_cluster(builder: Builder, address: Value, rank: int) -> list[Value]:
    """Read four numbers of f32 that lie at ``address``, a multiple of 16, in the shared memory of another block of the cluster."""
    text = (
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, $4, $5; "
        "ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [there]; }"
    )
    return assembly(builder, text, [F32] * 4, [address, ir.Constant(I32, rank)])
