"""What a kernel that streams weights calls: loads of 16 bytes that keep nothing in the L1 cache, pairs of 16-bit numbers, and sums of other blocks of the cluster.

``streaming_of`` gives these for a machine: as PTX, or on an emulated one as code of the SIMT builder, which has no clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, cast

from ....codegen.simt.builder import Memory, Simt, Value
from ....graph import dtypes
from ....graph.errors import InternalError
from ..machine import CLUSTERS, Machine
from ..printer import Printer
from ..printer.memory import item_of
from .assembly import F32, I32, assembly, listed
from .assembly import Value as Raw
from .copies import bulk_prefetch
from .threads import cluster_arrive, cluster_rank, cluster_sync, cluster_wait

LOAD = "ld.global.nc.v4.b32"
ONCE = "ld.global.nc.L1::no_allocate.L2::128B.v4.b32"
"""The same of what nobody reads twice, as PTX since 7.4 can say it."""


class Streaming(Protocol):
    """Loads and exchanges of a kernel that streams weights."""

    clusters: bool
    """Whether blocks can see the shared memory of others."""

    def load(self, memory: Memory, item: Value, inside: Value | None = None) -> list[Value]:
        """The four words of an item of 16 bytes; zeros where ``inside`` is false, and nothing is read then."""
        ...

    def before_waiting(self) -> AbstractContextManager[bool]:
        """Code without branches that runs before the kernel waits for the launch ahead, and may do nothing but ``prefetch``; false where kernels do not start early."""
        ...

    def prefetch(self, memory: Memory, item: Value, nbytes: Value | int, inside: Value) -> None:
        """Bring bytes from an item on to the L2 cache, a multiple of 16, where ``inside`` holds."""
        ...

    def pair(self, first: Value, second: Value) -> tuple[Value, Value]:
        """The low halves of two words as one, and the high halves."""
        ...

    def rank(self) -> Value:
        """The number of the block in its cluster."""
        ...

    def sync_cluster(self) -> None:
        """Wait for all threads of the cluster, and see what they wrote."""
        ...

    def arrive(self) -> None:
        """The first half of ``sync_cluster``: tell that this thread has come."""
        ...

    def await_cluster(self) -> None:
        """The second half: wait until all have come."""
        ...

    def store_to(self, memory: Memory, item: Value, rank: Value, values: Sequence[Value]) -> None:
        """Write numbers of f32, 1 or 4, to another block's shared memory, from the one with this number on."""
        ...

    def load_of(self, memory: Memory, item: Value, rank: int, count: int) -> list[Value]:
        """Numbers of f32, 1 or 4, of another block's shared memory, from the one with this number on."""
        ...


class CardStreaming:
    """The instructions of a card."""

    def __init__(self, builder: Printer, machine: Machine) -> None:
        self.builder = builder
        self.clusters = machine.capability >= CLUSTERS
        self._load = ONCE if self.clusters else LOAD

    def load(self, memory: Memory, item: Value, inside: Value | None = None) -> list[Value]:
        """See ``Streaming``."""
        p = self.builder
        address = p.address(memory, item_of(memory), p.index(item))
        text, operands, early = f"{self._load} {listed(0, 4)}, [$4];", [address], False
        if inside is not None:
            zeros = " ".join(f"mov.b32 ${i}, 0;" for i in range(4))
            text = f"{{ .reg .pred p; setp.ne.b32 p, $5, 0; {zeros} @p {text} }}"
            operands, early = [address, p.raw(p.bits(inside))], True
        return [p.held(word) for word in assembly(p.ir, text, [I32] * 4, operands, early=early)]

    @contextmanager
    def before_waiting(self) -> Iterator[bool]:
        """See ``Streaming``."""
        with self.builder.before_waiting():
            yield self.builder.starts_early

    def prefetch(self, memory: Memory, item: Value, nbytes: Value | int, inside: Value) -> None:
        """See ``Streaming``."""
        p = self.builder
        address = p.address(memory, item_of(memory), p.index(item))
        size = nbytes if isinstance(nbytes, int) else p.raw(nbytes)
        bulk_prefetch(p.ir, address, size, p.raw(p.bits(inside)))

    def pair(self, first: Value, second: Value) -> tuple[Value, Value]:
        """See ``Streaming``."""
        p = self.builder
        given = [p.raw(first), p.raw(second)]
        low, high = (
            p.held(assembly(p.ir, f"prmt.b32 $0, $1, $2, {how};", [I32], given, pure=True)[0])
            for how in ("0x5410", "0x7632")
        )
        return low, high

    def rank(self) -> Value:
        """See ``Streaming``."""
        found: Value = self.builder.held(cluster_rank(self.builder.ir))
        return found

    def sync_cluster(self) -> None:
        """See ``Streaming``."""
        cluster_sync(self.builder.ir)

    def arrive(self) -> None:
        """See ``Streaming``."""
        cluster_arrive(self.builder.ir)

    def await_cluster(self) -> None:
        """See ``Streaming``."""
        cluster_wait(self.builder.ir)

    def store_to(self, memory: Memory, item: Value, rank: Value, values: Sequence[Value]) -> None:
        """See ``Streaming``."""
        p, count = self.builder, len(values)
        given = listed(2, 4) if count == 4 else "$2"
        text = (
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
            f"st.shared::cluster{'.v4' if count == 4 else ''}.f32 [there], {given}; }}"
        )
        operands = [self._address(memory, item), p.raw(rank), *map(p.raw, values)]
        assembly(p.ir, text, (), operands)

    def _address(self, memory: Memory, item: Value) -> Raw:
        """Where a number of this block's shared memory lies."""
        p = self.builder
        base = p.ir.ptrtoint(p.bases[memory.name], I32)
        return p.ir.add(base, p.raw(p.index(item * 4)))

    def load_of(self, memory: Memory, item: Value, rank: int, count: int) -> list[Value]:
        """See ``Streaming``."""
        p, address = self.builder, self._address(memory, item)
        vector = ".v4" if count == 4 else ""
        found = listed(0, 4) if count == 4 else "$0"
        text = (
            f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, ${count}, {rank}; "
            f"ld.shared::cluster{vector}.f32 {found}, [there]; }}"
        )
        return [p.held(x) for x in assembly(p.ir, text, [F32] * count, [address])]


class EmulatedStreaming:
    """The same as code of the SIMT builder."""

    clusters = False

    def __init__(self, builder: Simt) -> None:
        self.builder = builder

    def load(self, memory: Memory, item: Value, inside: Value | None = None) -> list[Value]:
        """See ``Streaming``."""
        b = self.builder
        words = [b.variable(0, "word", dtypes.u32) for _ in range(4)]
        with b.if_(inside):
            found = b.let(memory[item])
            for word, part in zip(words, b.bits(found).parts, strict=True):
                word.set(part)
        return [b.let(word) for word in words]

    @contextmanager
    def before_waiting(self) -> Iterator[bool]:
        """See ``Streaming``."""
        yield False

    def prefetch(self, memory: Memory, item: Value, nbytes: Value | int, inside: Value) -> None:
        """See ``Streaming``."""

    def pair(self, first: Value, second: Value) -> tuple[Value, Value]:
        """See ``Streaming``."""
        b = self.builder
        low = b.let((first & 0xFFFF) | (second << 16))
        return low, b.let((first >> 16) | (second & 0xFFFF0000))

    def rank(self) -> Value:
        """See ``Streaming``."""
        raise InternalError("an emulated device has no clusters")

    def sync_cluster(self) -> None:
        """See ``Streaming``."""
        self.rank()

    def arrive(self) -> None:
        """See ``Streaming``."""
        self.rank()

    def await_cluster(self) -> None:
        """See ``Streaming``."""
        self.rank()

    def store_to(self, memory: Memory, item: Value, rank: Value, values: Sequence[Value]) -> None:
        """See ``Streaming``."""
        self.rank()

    def load_of(self, memory: Memory, item: Value, rank: int, count: int) -> list[Value]:
        """See ``Streaming``."""
        return [self.rank()]


def streaming_of(builder: Simt, machine: Machine) -> Streaming:
    """What a kernel of a machine streams with."""
    if machine.emulated:
        return EmulatedStreaming(builder)
    return CardStreaming(cast(Printer, builder), machine)
