"""Lanes, warps and clusters of threads, how many registers they have, and how launches follow each other."""

from __future__ import annotations

from ....graph.errors import InternalError
from .assembly import I32, Builder, Value, assembly


def special_register(builder: Builder, name: str) -> Value:
    """The value of ``%name``, such as ``laneid`` or ``cluster_ctarank``: the same whenever it is read."""
    return assembly(builder, f"mov.u32 $0, %{name};", [I32], pure=True)[0]


def lane_id(builder: Builder) -> Value:
    """The number of the thread in its warp."""
    return special_register(builder, "laneid")


def cluster_rank(builder: Builder) -> Value:
    """The number of the block in its cluster."""
    return special_register(builder, "cluster_ctarank")


def warp_uniform(builder: Builder, value: Value) -> Value:
    """The value of the warp's first lane, where all lanes have the same: the assembler then knows that they do."""
    return assembly(builder, "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", [I32], [value])[0]


def shuffle_xor(builder: Builder, value: Value, mask: int) -> Value:
    """The word of the lane whose number differs in these bits."""
    return assembly(builder, f"shfl.sync.bfly.b32 $0, $1, {mask}, 31, -1;", [I32], [value])[0]


def elect(builder: Builder) -> Value:
    """1 in one lane of the warp, 0 in the others: the lane that is to issue what runs by itself (sm_90)."""
    text = "{ .reg .pred p; elect.sync _|p, -1; selp.b32 $0, 1, 0, p; }"
    return assembly(builder, text, [I32])[0]


def sync_warp(builder: Builder) -> None:
    """Wait for all lanes of the warp, and see what they wrote."""
    assembly(builder, "bar.warp.sync -1;")


def trap(builder: Builder) -> None:
    """Stop the launch with an error."""
    assembly(builder, "trap;")


def set_max_registers(builder: Builder, count: int, *, more: bool) -> None:
    """Give registers of the warpgroup away, or take ``more``: from now on a thread has so many (sm_90a).

    All four warps of the group call it. It works in kernels only whose number of threads the code states.
    """
    if count % 8 or not 24 <= count <= 256:
        raise InternalError(f"a thread has 24 to 256 registers, a multiple of 8, not {count}")
    change = "inc" if more else "dec"
    assembly(builder, f"setmaxnreg.{change}.sync.aligned.u32 {count};")


# --------------------------------------------------------------------------- clusters


def cluster_arrive(builder: Builder) -> None:
    """Tell the cluster's blocks that this thread has come, and what it wrote; the first half of ``cluster_sync``."""
    assembly(builder, "barrier.cluster.arrive.release;")


def cluster_wait(builder: Builder) -> None:
    """Wait until all threads of the cluster have come."""
    assembly(builder, "barrier.cluster.wait.acquire;")


def cluster_sync(builder: Builder) -> None:
    """Wait for all threads of the cluster, and see what they wrote to shared memory."""
    assembly(builder, "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;")


def map_shared(builder: Builder, address: Value, rank: Value | int) -> Value:
    """The address of what lies at ``address`` in another block of the cluster."""
    return assembly(
        builder, "mapa.shared::cluster.u32 $0, $1, $2;", [I32], [address, rank], pure=True
    )[0]


# --------------------------------------------------------------------------- launches


def wait_for_launch(builder: Builder) -> None:
    """Wait until the launch ahead of this one has ended and its results can be read: where this one may start early."""
    assembly(builder, "griddepcontrol.wait;")


def launch_dependents(builder: Builder) -> None:
    """Let the launch behind this one start, as far as there is room."""
    assembly(builder, "griddepcontrol.launch_dependents;")
