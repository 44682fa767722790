"""Barriers: named ones, which warps wait at, and mbarriers in shared memory, which copies arrive at too.

An mbarrier has phases. A phase ends when as many have arrived as it was initialised for, and all bytes have that were announced. A waiter says the parity of the phase that it waits for, and must be no
more than one phase behind.
"""

from __future__ import annotations

from .assembly import Builder, Value, assembly

LONGEST_WAIT = 2_000_000_000
"""Nanoseconds after which a wait stops the launch with an error: a mistake cannot hang the card."""


def named_barrier(builder: Builder, number: Value | int, threads: int) -> None:
    """Wait at barrier ``number``, from 1 to 15, until so many threads, whole warps, have come; they see what each other wrote to shared memory."""
    assembly(builder, f"bar.sync $0, {threads};", (), [number])


def named_arrive(builder: Builder, number: Value | int, threads: int) -> None:
    """Tell a named barrier that this warp has come, and go on."""
    assembly(builder, f"bar.arrive $0, {threads};", (), [number])


def fence_async(builder: Builder) -> None:
    """Let copies that run by themselves see what threads wrote to shared memory before (sm_90)."""
    assembly(builder, "fence.proxy.async.shared::cta;")


def fence_barrier_init(builder: Builder) -> None:
    """Let the cluster, and copies, see that mbarriers are initialised."""
    assembly(builder, "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;")


def barrier_init(builder: Builder, address: Value, count: int) -> None:
    """Initialise an mbarrier, 8 bytes of shared memory, for so many arrivals."""
    assembly(builder, "mbarrier.init.shared::cta.b64 [$0], $1;", (), [address, count])


def barrier_expect(builder: Builder, address: Value, nbytes: Value | int) -> None:
    """Arrive, and announce so many bytes, which copies are to bring in this phase."""
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
    assembly(builder, text, (), [address, nbytes])


def barrier_arrive(builder: Builder, address: Value) -> None:
    """Arrive at an mbarrier of this block."""
    assembly(builder, "mbarrier.arrive.shared::cta.b64 _, [$0];", (), [address])


def barrier_arrive_remote(builder: Builder, address: Value, rank: Value | int) -> None:
    """Arrive at the mbarrier that lies there in another block of the cluster.

    Without an explicit release: that would become a fence of the whole card.
    """
    text = (
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
    )
    assembly(builder, text, (), [address, rank])


def barrier_wait(
    builder: Builder, address: Value, parity: Value | int, *, cluster: bool = False
) -> None:
    """Wait until the phase of this parity has ended; a wait of over ``LONGEST_WAIT`` stops the launch.

    Args:
        builder: where the code goes.
        address: of the mbarrier.
        parity: 0 or 1.
        cluster: whether what other blocks of the cluster wrote is to be seen.
    """
    scope = ".acquire.cluster" if cluster else ""
    attempt = f"mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [$0], $1; @p bra DONE;"
    text = f"""{{ .reg .pred p; .reg .b64 since, now; {attempt}
        mov.u64 since, %globaltimer; WAIT: {attempt}
        mov.u64 now, %globaltimer; sub.u64 now, now, since;
        setp.gt.u64 p, now, {LONGEST_WAIT}; @p trap; bra WAIT; DONE: }}"""
    assembly(builder, text, (), [address, parity])
