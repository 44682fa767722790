"""Parts of sums that the blocks of a cluster add up themselves: each takes a share of the lines of a tile, from the shared memory of all of them, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Value
from ....codegen.simt.contract.epilogue import Sink
from ....codegen.simt.contract.product import Product
from ....codegen.simt.dispatch import Dispatch
from ....graph.integers import ceil_div
from ..instructions.stream import streaming_of
from ..instructions.warp import Cores
from ..machine import Machine
from .fragments import ROWS, Corner, Fragment, FragmentWriter, Room

MOST_PARTS = 8
"""Blocks of a cluster, on every card that has clusters."""


class JoinedWriter(FragmentWriter):
    """Takes fragments of all blocks of a cluster to a sink.

    Args:
        dispatch: where the code goes.
        cores: reads and writes shared memory.
        product: what is computed.
        room: the warp's shared memory; it lies in the same place in every block.
        parts: blocks of the cluster.
    """

    def __init__(
        self, dispatch: Dispatch, cores: Cores, product: Product, room: Room, parts: int
    ) -> None:
        super().__init__(dispatch.builder, cores, product, room)
        self.parts = parts
        self.streaming = streaming_of(dispatch.builder, cast(Machine, dispatch.machine))

    def write(self, sink: Sink, corner: Corner, rows: Sequence[Sequence[Fragment]]) -> None:
        """See ``FragmentWriter``."""
        self._keep(rows)
        self.streaming.sync_cluster()
        self.take(sink, corner, ROWS * len(rows))
        # Nobody ends while others read its shared memory.
        self.streaming.sync_cluster()

    def _lines(self, count: int, together: int) -> tuple[Number, Number]:
        """See ``SumWriter``."""
        b = self.builder
        share = ceil_div(count // together, self.parts) * together
        first = b.let(b.min(self.streaming.rank() * share, count))
        return first, b.let(b.min(first + share, count))

    def _read_at(self, address: Value, count: int) -> list[Value]:
        """See ``SumWriter``."""
        b = self.builder
        found = [self.streaming.load_at(address, rank, count) for rank in range(self.parts)]
        totals = found[0]
        for others in found[1:]:
            totals = [b.let(x + y) for x, y in zip(totals, others, strict=True)]
        return totals
