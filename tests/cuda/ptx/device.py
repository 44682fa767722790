"""Blocks, and a device that runs them."""

from dataclasses import dataclass

import numpy as np

from .instructions import LANES
from .memory import REMOTE, Map
from .program import parsed
from .warp import Warp


class Stuck(Exception):
    """No warp can go on."""


class Cluster:
    """Blocks that run together."""

    def __init__(self):
        self.blocks, self.arrivals, self.phase, self.seen = [], 0, 0, {}

    def arrive(self, warp):
        self.seen[warp] = self.phase
        self.arrivals += 1
        if self.arrivals == sum(len(block.warps) for block in self.blocks):
            self.arrivals, self.phase = 0, self.phase + 1

    def passed(self, warp):
        return self.phase > self.seen[warp]


class Block:
    """A block: its shared memory, its barriers and its warps."""

    def __init__(self, device, program, launch, number, rank, cluster):
        self.device, self.program, self.number, self.rank = device, program, number, rank
        self.threads = launch.threads
        self.cluster = cluster
        self.shared = np.full(program.static + launch.shared, 0xFF, np.uint8)
        self.parameters = launch.parameters
        self.maps = launch.maps
        self.barriers, self.meetings, self.copies = {}, {}, []
        self.warps = [Warp(self, i) for i in range(launch.threads // LANES)]

    def bytes(self, space, address, count):
        if space == "global":
            return self.device.bytes(int(address), count)
        block, address = self.owner(int(address))
        assert 0 <= address <= len(block.shared) - count, "outside of shared memory"
        return block.shared[int(address) : int(address) + count]

    def owner(self, address):
        """The block of the cluster whose shared memory an address is of, and the address there."""
        if address >> REMOTE:
            return self.cluster.blocks[(address >> REMOTE) - 1], address & ((1 << REMOTE) - 1)
        return self, address

    def map_of(self, address):
        return self.maps[int(address)]

    def meet(self, name, warp, count):
        """A barrier of warps: each comes, and goes on when all have."""
        state = self.meetings.setdefault(name, [set(), 0, {}])
        if warp in state[2]:
            if state[1] > state[2][warp]:
                del state[2][warp]
                return True
            return "again"
        state[2][warp] = state[1]
        self.come(name, warp, count)
        if state[1] > state[2][warp]:
            del state[2][warp]
            return True
        return "again"

    def come(self, name, warp, count):
        """A barrier of warps: one comes, whether it waits there or not."""
        state = self.meetings.setdefault(name, [set(), 0, {}])
        assert warp not in state[0], "a warp comes twice to a barrier that others have not come to"
        state[0].add(warp)
        if len(state[0]) == count:
            state[0], state[1] = set(), state[1] + 1


@dataclass
class Launched:
    threads: int
    shared: int
    parameters: dict
    maps: dict


class Device:
    """Memory, and launches one after another."""

    BASE = 1 << 20

    def __init__(self, seed=0):
        self.regions, self.end = [], self.BASE
        self.random = np.random.default_rng(seed)

    def room(self, data):
        """The address of a copy of some bytes, between bytes that nobody may touch."""
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).copy()
        address = self.end
        self.regions.append((address, data))
        self.end = -(-(address + len(data) + 1) // 256) * 256 + 256
        return address

    def bytes(self, address, count):
        for begin, data in self.regions:
            if begin <= address < begin + len(data) or (count == 0 and begin == address):
                assert address + count <= begin + len(data), "outside of a buffer"
                return data[address - begin : address - begin + count]
        raise AssertionError(f"no memory at {address:#x}")

    def launch(self, ptx, stage, address):
        """Run a stage; ``address(binding)`` is where what it is bound to lies."""
        program = parsed(ptx)
        maps, parameters = {}, {}
        pointers = iter([address(binding) for binding in stage.bindings])
        given = iter(stage.maps)
        for name, size in program.parameters:
            if size == 8:
                parameters[name] = next(pointers)
        number = 0
        for name, size in program.parameters:
            if size == 128:
                described = next(given)
                place = 1 << 50 | number << 10
                number += 1
                parameters[name] = place
                maps[place] = Map(
                    address(described.binding) + described.offset,
                    described.sizes,
                    described.strides,
                    described.box,
                    4 if described.dtype in ("f32", "tf32") else 2,
                    described.swizzle,
                    described.lower,
                    described.upper,
                    described.steps,
                )
        for name, place in parameters.items():
            if place >> 50:
                program.symbols[name] = place
        launched = Launched(stage.threads, stage.shared, parameters, maps)
        together = stage.cluster[0]
        for first in range(0, stage.groups[0], together):
            cluster = Cluster()
            cluster.blocks = [
                Block(self, program, launched, first + rank, rank, cluster)
                for rank in range(together)
            ]
            self.run(cluster)

    def run(self, cluster):
        warps = [warp for block in cluster.blocks for warp in block.warps]
        while True:
            moved = False
            alive = [warp for warp in warps if not warp.done.all()]
            if not alive:
                break
            # In any order, and some for longer than others.
            for warp in (alive[i] for i in self.random.permutation(len(alive))):
                for _ in range(int(10 ** self.random.uniform(1, 4))):
                    if not warp.step():
                        break
                    moved = True
            for block in cluster.blocks:
                # Some of what is on its way arrives.
                self.random.shuffle(block.copies)
                count = self.random.integers(0, len(block.copies) + 1)
                if not moved:
                    count = len(block.copies)
                for _ in range(count):
                    block.copies.pop()()
                    moved = True
            if not moved:
                places = {
                    (w.block.number, w.number): w.program.code[w.places.min()].text[:60]
                    for w in alive
                }
                raise Stuck(f"no warp goes on: {places}")
        for block in cluster.blocks:
            assert not block.copies, "a block ended while copies to it were under way"
