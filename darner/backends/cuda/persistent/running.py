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
from .packing import write_packing

WORD_BYTES = 8
KEY = "chain"
"""Under which a program keeps a chain's code, beside that of its kernels by their specs."""
CACHED = 12 << 20
"""Bytes that are brought to the device's cache before their stages begin."""
ROOM = 4
"""Times the memory of packed matrices that is to be free before they are."""
LINE = 128
REGION = Callable[[Argument], Region]


def found_chain(plan: Plan, machine: Machine) -> Chain | None:
    """The chain of a plan on a machine, if it has one."""
    shape = shape_of(machine)
    return chain_of(plan, shape.blocks)


def written_chain(chain: Chain, machine: Machine) -> Written:
    """The code of a chain, and of what packs its matrices."""
    return Written((write_chain(chain, machine), write_packing(machine)))


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
        self._queue = queue
        self.owned: list[Region] = []
        self._table = self._own(8 * self._width * len(chain.stages), "stages of a chain")
        self._words = self._own(WORD_BYTES * max(2, chain.words), "words of a chain")
        counts = 4 * shape_of(device.machine).blocks
        self._launches = self._own(counts, "launches of a chain")
        self._packing: tuple[Kernel, Stage] | None = None
        self._taken: set[int] = set()
        self._old: set[int] = set()
        self._packed: dict[int, Region] = {}
        self._sizes: dict[int, Region] = {}
        self.stale = True
        self.launch: Launch | None = None

    def bind(self, kernel: Kernel, stage: Stage, packing: tuple[Kernel, Stage] | None) -> None:
        """Prepare the launch; ``packing`` is what packs a matrix."""
        self._packing = packing
        where = [(address_of(region), region.nbytes) for region in (self._table, self._launches)]
        self.launch = kernel.launch(stage, where, [])

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return sum(region.nbytes for region in self.owned)

    def take(self, buffer: int) -> None:
        """Know that a buffer is what another program has made, and lies elsewhere now."""
        self.stale = True
        about = self.chain.matrices.get(buffer)
        if about is not None and about.alone:
            self._taken.add(buffer)

    def prepare(self) -> None:
        """Know that what other programs have made is new."""
        self._old = set(self._taken)

    def refresh(self) -> None:
        """Write the table anew, where memory has moved since."""
        if self.stale:
            self._make_room()
            self.device.write(self._table, self._rows())
            self._old = set(self._taken)
            self.stale = False

    def start_packing(self) -> None:
        """Start what gives the packed matrices their values, where these are old."""
        for buffer in sorted(self._old & self._packed.keys()):
            about, target = self.chain.matrices[buffer], self._packed[buffer]
            source = self._regions(Argument("buffer", buffer))
            where = [(address_of(x), x.nbytes) for x in (source, target, self._sizes[buffer])]
            if self._packing is not None and about.rows:
                kernel, stage = self._packing
                kernel.launch(stage, where, []).start(self._queue.stream)
        self._old = set()

    def _make_room(self) -> None:
        """Memory for matrices in the order in which they are read, where there is plenty."""
        wanted = [b for b in sorted(self._taken) if b not in self._packed]
        nbytes = {b: self._regions(Argument("buffer", b)).nbytes for b in wanted}
        with self.device.guard:
            free, _ = self.device.context.memory()
        if self._packing is None or ROOM * sum(nbytes.values()) > free:
            return
        for buffer in wanted:
            about = self.chain.matrices[buffer]
            self._packed[buffer] = self._own(nbytes[buffer], "a matrix in the order it is read in")
            self._sizes[buffer] = self._own(8, "the sizes of a matrix")
            sizes = np.array([about.rows, about.pitch], np.uint32)
            self.device.write(self._sizes[buffer], sizes)

    def _own(self, nbytes: int, what: str) -> Region:
        region = self.device.region(nbytes, what)
        self.owned.append(region)
        self._queue.uses(region)
        return region

    def close(self) -> None:
        """Give all memory back."""
        for region in self.owned:
            self.device.give_back(region)
        self.owned = []

    def _region(self, argument: Argument) -> Region:
        """Where an argument is read."""
        packed = self._packed.get(argument.number) if argument.what == "buffer" else None
        return self._regions(argument) if packed is None else packed

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
        if argument.what == "strides":
            about = self.chain.matrices[argument.number]
            return (1, about.rows) if argument.number in self._packed else (about.pitch, 1)
        if argument.what == "words":
            start = WORD_BYTES * argument.number
            return address_of(self._words) + start, self._words.nbytes - start
        region = self._region(argument)
        least = FAULT_BYTES if argument.what == "fault" else 16
        return address_of(region), max(least, round_up(region.nbytes, 16))

    def _brought(self, buffer: int) -> tuple[int, int, int, int]:
        """Where a buffer lies, its bytes, and of each block's share how far it is from the last one's and how much of it is brought."""
        region = self._region(Argument("buffer", buffer))
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
