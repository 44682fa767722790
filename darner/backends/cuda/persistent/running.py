"""A chain in a program: its memory, and the table of its stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....codegen.simt.dispatch import FAULT_BYTES, Written
from ....graph.data import Array
from ....graph.integers import ceil_div, round_up
from ....lower.plan import Plan
from ...base.readback import Region
from ..device import Device, Queue, address_of
from ..interface import Kernel, Launch
from ..machine import Machine
from ..stage import Stage
from .chain import chain_of
from .code import shape_of
from .forms import Argument, Chain
from .kernel import AHEAD, HEAD, width_of, write_chain
from .waits import known_words

WORD_BYTES = 8
KEY = "chain"
"""Under which a program keeps a chain's code, beside that of its kernels by their specs."""
CACHED = 12 << 20
"""Bytes that are brought to the device's cache before their stages begin."""
LINE = 128
REGION = Callable[[Argument], Region]


def found_chain(plan: Plan, machine: Machine) -> Chain | None:
    """The chain of a plan on a machine, if it has one."""
    shape = shape_of(machine)
    return chain_of(plan, shape.blocks)


def written_chain(chain: Chain, machine: Machine) -> Written:
    """The code of a chain."""
    return Written((write_chain(chain, machine),))


class Resident:
    """A chain whose code is loaded.

    Args:
        chain: what is run.
        device: where.
        queue: the program's.
        regions: where a buffer of the plan lies, or where a kernel tells of faults.
    """

    def __init__(self, chain: Chain, device: Device, queue: Queue, regions: REGION) -> None:
        self.chain, self.device = chain, device
        self._regions = regions
        self._width = width_of(chain)
        self._table = device.region(8 * self._width * len(chain.stages), "stages of a chain")
        self._words = device.region(WORD_BYTES * max(2, chain.words), "words of a chain")
        shape = shape_of(device.machine)
        kept = 4 * shape.blocks * known_words(chain)
        self._launches = device.region(kept, "launches of a chain")
        self.owned = (self._table, self._words, self._launches)
        for region in self.owned:
            queue.uses(region)
        self.stale = True
        self.launch: Launch | None = None

    def bind(self, kernel: Kernel, stage: Stage) -> None:
        """Prepare the launch."""
        where = [(address_of(region), region.nbytes) for region in (self._table, self._launches)]
        self.launch = kernel.launch(stage, where, [])

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return sum(region.nbytes for region in self.owned)

    def refresh(self) -> None:
        """Write the table anew, where memory has moved since."""
        if self.stale:
            self.device.write(self._table, self._rows())
            self.stale = False

    def _rows(self) -> Array:
        chain = self.chain
        rows = np.zeros((len(chain.stages), self._width), np.int64)
        for row, (form, arguments) in zip(rows, chain.stages, strict=True):
            row[0] = form
            for number, argument in enumerate(arguments):
                at = HEAD + 2 * number
                row[at : at + 2] = self._where(argument)
        for stage, later in enumerate(self._ahead()):
            for number, one in enumerate(later):
                at = 1 + 4 * number
                rows[stage, at : at + 4] = self._brought(one)
        return rows

    def _where(self, argument: Argument) -> tuple[int, int]:
        if argument.what == "words":
            start = WORD_BYTES * argument.number
            return address_of(self._words) + start, self._words.nbytes - start
        region = self._regions(argument)
        least = FAULT_BYTES if argument.what == "fault" else 16
        return address_of(region), max(least, round_up(region.nbytes, 16))

    def _brought(self, buffer: int) -> tuple[int, int, int, int]:
        """Where a buffer lies, its bytes, and of each block's share how far it is from the last one's and how much of it is brought."""
        region = self._regions(Argument("buffer", buffer))
        blocks = shape_of(self.device.machine).blocks
        whole = region.nbytes // 16 * 16
        each = round_up(ceil_div(whole, blocks), LINE)
        most = max(LINE, CACHED // blocks // LINE * LINE)
        return address_of(region), whole, each, min(each, most)

    def _ahead(self) -> Sequence[Sequence[int]]:
        """For each stage the buffers of later ones that it brings to the cache, in their order."""
        later = [(stage, buffer) for stage, some in enumerate(self.chain.reads) for buffer in some]
        sizes = [min(CACHED, self._regions(Argument("buffer", b)).nbytes) for _, b in later]
        found: list[list[int]] = []
        following = behind = 0
        for stage in range(len(self.chain.stages)):
            some: list[int] = []
            while behind < len(later) and later[behind][0] <= stage:
                behind += 1
            following = max(following, behind)
            while following < len(later) and len(some) < AHEAD:
                if sum(sizes[behind : following + 1]) > 2 * CACHED:
                    break
                some.append(later[following][1])
                following += 1
            found.append(some)
        return found
