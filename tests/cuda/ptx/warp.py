"""Registers and places of the lanes of a warp."""

import re

import numpy as np

from .instructions import LANES, TOGETHER, Z, execute

PATIENCE = 4
"""After so many polls in vain there is a step of the lanes that are furthest ahead."""


class Warp:
    """Registers and places of 32 lanes."""

    def __init__(self, block, number):
        self.block, self.number = block, number
        self.program = block.program
        self.registers = {}
        self.places = np.zeros(LANES, np.int64)
        self.done = np.zeros(LANES, bool)
        self.parked = np.zeros(LANES, bool)
        self.resting = np.zeros(LANES, bool)
        self.tid = number * LANES + Z
        self.polls = 0

    # ------------------------------------------------------------- operands

    def register(self, name):
        if name not in self.registers:
            kind = self.program.types[name]
            # What nobody wrote is seen in results.
            fill = {np.uint16: 0x7FFF, np.uint32: 0x7FC0DEAD, np.uint64: 0x7FF80000DEADDEAD}
            self.registers[name] = np.full(LANES, fill.get(kind, False), kind)
        return self.registers[name]

    def special(self, name):
        block = self.block
        base = {
            "%tid.x": self.tid,
            "%laneid": Z,
            "%ctaid.x": block.number,
            "%cluster_ctarank": block.rank,
            "%globaltimer": 0,
        }[name]
        return np.broadcast_to(base, LANES)

    def get(self, operand, kind):
        """An operand in lanes, as a type."""
        if operand in self.program.types:
            value = self.register(operand)
            size = np.dtype(kind).itemsize
            if value.dtype.itemsize == size:
                return value.view(kind)
            assert kind is not bool
            return value.astype(f"u{size}").view(kind)
        if operand.startswith("%"):
            return self.special(operand).astype(kind)
        if operand.startswith("0f"):
            return np.full(LANES, int(operand[2:], 16), np.uint32).view(kind)
        if operand in self.program.symbols:
            number = self.program.symbols[operand]
        elif re.fullmatch(r"-?(0x)?[0-9a-fA-F]+U?", operand):
            number = int(operand.rstrip("U"), 0)
        else:
            raise KeyError(operand)
        if kind is bool:
            return np.full(LANES, bool(number))
        bits = 8 * np.dtype(kind).itemsize
        if kind in (np.float32, np.float64):
            return np.full(LANES, float(number), kind)
        return np.full(LANES, number % (1 << bits), f"u{bits // 8}").view(kind)

    def put(self, operand, value, mask):
        if operand == "_":
            return
        own = self.register(operand)
        value = np.ascontiguousarray(np.broadcast_to(value, LANES))
        if own.dtype == bool:
            own[mask] = value.astype(bool)[mask]
        elif value.dtype.itemsize == own.dtype.itemsize:
            own[mask] = value.view(own.dtype)[mask]
        else:
            own[mask] = value.astype(own.dtype)[mask]

    def address(self, operand):
        inside = operand.strip("[]")
        base, _, offset = inside.partition("+")
        found = self.get(base.strip(), np.uint64).astype(np.int64)
        return found + (int(offset, 0) if offset else 0)

    # ------------------------------------------------------------- running

    def step(self):
        """One instruction of the lanes that are furthest behind; returns whether anything came of it."""
        alive = ~self.done
        if not alive.any():
            return False
        free = alive & ~self.parked
        assert free.any(), "parts of a warp wait for each other"
        # Lanes that poll must not keep away those that they wait for.
        places, ahead = self.places[free], self.polls >= PATIENCE
        place = int(places.max() if ahead else places.min())
        self.polls = 0 if ahead else self.polls
        mask = alive & (self.places == place)
        instruction = self.program.code[place]
        if instruction.op.startswith(TOGETHER) and (mask != alive).any():
            # The others come here too: code may lie in another order than it runs in.
            self.parked |= mask
            return True
        self.parked[mask] = False
        on = mask
        if instruction.guard:
            negated, name = instruction.guard
            on = mask & (self.register(name) ^ negated)
        if instruction.op.startswith("bra"):
            self.places[mask] = place + 1
            self.places[on] = instruction.operands[0]
            return True
        result = True
        if on.any():
            result = execute(self, instruction, on)
            if result == "again":
                return False
        self.places[mask] = place + 1
        if result is False:
            self.resting |= mask
        return result is not False
