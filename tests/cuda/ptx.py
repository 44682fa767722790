"""PTX run in Python: enough of it for kernels of tensor cores on sm_90a, whose instructions no emulator on the host has.

A warp's 32 lanes are NumPy's vectors, of which those with the lowest place in the code go on together. Warps take turns; one that waits lets others go first. Copies by tensor maps arrive some time after they were issued, in any order.
Numbers of ``wgmma`` are read where its descriptors say, at the time when it is issued.
"""

import re
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

LANES = 32
REMOTE = 24
"""Shared addresses of another block of a cluster have its number, plus 1, from this bit on."""
WIDTHS = {"pred": bool, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}
TYPES = {
    "u16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "f32": np.float32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "b16": np.uint16,
    "f16": np.float16,
}
HALVES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
Z = np.arange(LANES)


class Stuck(Exception):
    """No warp can go on."""


class Barrier:
    """An mbarrier."""

    def __init__(self, count):
        self.count, self.left, self.bytes, self.phase = count, count, 0, 0

    def change(self, arrivals=0, nbytes=0):
        self.left -= arrivals
        self.bytes += nbytes
        assert self.left >= 0, "more arrive at an mbarrier than it waits for"
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.count, self.phase ^ 1


@dataclass
class Instruction:
    op: str
    operands: list
    guard: tuple | None
    text: str


@dataclass
class Program:
    """A kernel: its instructions, its parameters, and where its own shared memory lies."""

    code: list
    parameters: list
    symbols: dict
    static: int
    types: dict = field(default_factory=dict)


def split(text):
    """Operands, of which those in braces and brackets are one."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in ")]}")
        if c == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    return [*found, text[start:].strip()] if text.strip() else []


def parsed(ptx):
    """The program of a module's kernel."""
    ptx = re.sub(r"//[^\n]*", "", ptx)
    head = re.search(r"\.entry\s+\w+\s*\((.*?)\)(.*?)\{", ptx, re.S)
    parameters = []
    for item in split(head[1]):
        name = re.search(r"(\w+)(?:\[(\d+)\])?$", item.strip())
        parameters.append((name[1], int(name[2] or 8)))
    symbols, static = {}, 0
    declared = ptx[: head.start()] + ptx[head.end() :]
    for align, name, size in re.findall(
        r"\.shared \.align (\d+) \.b8 (\w+)\[?(\d*)\]?;", declared
    ):
        symbols[name] = (int(align), int(size or 0))
    at = 0
    places = {}
    for name, (align, size) in symbols.items():
        if size:
            at = -(-at // align) * align
            places[name] = at
            at += size
    at = -(-max(at, 1) // 1024) * 1024
    for name, (_, size) in symbols.items():
        if not size:
            places[name] = at
    for name, size in parameters:
        places[name] = name
    body = ptx[head.end() :]
    program = Program([], parameters, places, at)
    scopes, number, labels = [{}], 0, {}
    fixups = []
    token = re.compile(r"\s*(\{(?=\s*(?:\.reg|\n|//|\w+[.\s]))|\}|[^;{}]+(?:\{[^{}]*\}[^;{}]*)*;|[\w$]+:)")
    position = 0
    body = body.strip()
    while position < len(body):
        label = re.match(r"\s*([\w$]+):", body[position:])
        if label:
            scopes[-1].setdefault(label[1], f"{label[1]}#{len(labels)}")
            labels[scopes[-1][label[1]]] = len(program.code)
            position += label.end()
            continue
        opened = re.match(r"\s*\{", body[position:])
        if opened:
            scopes.append({})
            position += opened.end()
            continue
        closed = re.match(r"\s*\}", body[position:])
        if closed:
            position += closed.end()
            scopes.pop()
            if not scopes:
                break
            continue
        end = re.match(r"\s*((?:[^;{}]|\{[^{}]*\})*);", body[position:])
        text = end[1].strip()
        position += end.end()
        if text.startswith(".reg"):
            kind, names = re.match(r"\.reg \.(\w+)\s+(.*)", text, re.S).groups()
            for name in split(names):
                many = re.match(r"(%\w+)<(\d+)>", name)
                if many:
                    for i in range(int(many[2])):
                        program.types[f"{many[1]}{i}"] = WIDTHS[kind]
                else:
                    number += 1
                    scopes[-1][name] = f"{name}#{number}"
                    program.types[scopes[-1][name]] = WIDTHS[kind]
            continue
        if text.startswith("."):
            continue
        guard = re.match(r"@(!?)([\w%]+)\s+", text)
        plain = text[guard.end() :] if guard else text
        op, _, rest = plain.partition(" ")
        # Names are looked up when the scope is known in whole: a label may come later.
        instruction = Instruction(op, split(rest), None, text)
        program.code.append(instruction)
        fixups.append((instruction, guard, list(scopes)))
    for instruction, guard, seen in fixups:

        def name_of(name, seen=seen):
            for scope in reversed(seen):
                if name in scope:
                    return scope[name]
            return name

        def renamed(operand, name_of=name_of):
            return re.sub(r"[%$\w]+", lambda m: name_of(m[0]), operand)

        if guard:
            instruction.guard = (bool(guard[1]), name_of(guard[2]))
        instruction.operands = [renamed(x) for x in instruction.operands]
        if instruction.op.startswith("bra"):
            instruction.operands = [labels[x] for x in instruction.operands]
    return program


class Warp:
    """Registers and places of 32 lanes."""

    def __init__(self, block, number):
        self.block, self.number = block, number
        self.program = block.program
        self.registers = {}
        self.places = np.zeros(LANES, np.int64)
        self.done = np.zeros(LANES, bool)
        self.parked = np.zeros(LANES, bool)
        self.tid = number * LANES + Z

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
        place = int(self.places[free].min())
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
        return result is not False


ARITHMETIC = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
IGNORED = (
    "fence",
    "setmaxnreg",
    "bar.warp.sync",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "prefetch",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
    "griddepcontrol",
)


TOGETHER = (
    "wgmma",
    "bar.",
    "barrier.",
    "shfl",
    "elect",
    "ldmatrix",
    "stmatrix",
    "setmaxnreg",
)
"""What all lanes of a warp do together."""


def execute(warp, instruction, mask):
    """Run an instruction in the lanes of a mask. ``again`` where it has to wait, False where it polled in vain."""
    op, operands = instruction.op, instruction.operands
    parts = op.split(".")
    if op.startswith(IGNORED):
        return True
    with np.errstate(all="ignore"):
        for prefix, method in SPECIAL.items():
            if op.startswith(prefix):
                return method(warp, parts, operands, mask)
        return plain(warp, parts, operands, mask)


def plain(warp, parts, operands, mask):
    """Arithmetic on registers."""
    name, kind = parts[0], TYPES.get(parts[-1])
    if parts[-1] == "pred":
        values = [warp.get(x, bool) for x in operands[1:]]
        if name in ("not", "mov"):
            found = ~values[0] if name == "not" else values[0]
        else:
            found = ARITHMETIC[name](*values)
        warp.put(operands[0], found, mask)
        return True
    if name == "setp":
        a, b = (warp.get(x, kind) for x in operands[1:3])
        if parts[1] == "nan":
            found = np.isnan(a) | np.isnan(b)
        else:
            found = COMPARISONS[parts[1].removesuffix("u")](a, b)
            if kind is np.float32 and parts[1] in ("gtu", "ltu", "geu", "leu", "neu", "equ"):
                found = found | np.isnan(a) | np.isnan(b)
            if kind is np.float32 and parts[1] == "ne":
                found = found & ~(np.isnan(a) | np.isnan(b))
        warp.put(operands[0], found, mask)
        return True
    if name == "selp":
        a, b = (warp.get(x, kind) for x in operands[1:3])
        warp.put(operands[0], np.where(warp.get(operands[3], bool), a, b), mask)
        return True
    if name == "cvt":
        return converted(warp, parts, operands, mask)
    if name == "cvta":
        warp.put(operands[0], warp.get(operands[1], np.uint64), mask)
        return True
    if name == "mov":
        if operands[0].startswith("{"):
            low, high = (x.strip() for x in operands[0].strip("{}").split(","))
            word = warp.get(operands[1], np.uint32)
            warp.put(low, (word & 0xFFFF).astype(np.uint16), mask)
            warp.put(high, (word >> 16).astype(np.uint16), mask)
        elif operands[1].startswith("{"):
            low, high = (x.strip() for x in operands[1].strip("{}").split(","))
            halves = [warp.get(x, np.uint16).astype(np.uint32) for x in (low, high)]
            warp.put(operands[0], halves[0] | (halves[1] << 16), mask)
        else:
            warp.put(operands[0], warp.get(operands[1], kind), mask)
        return True
    if name in ("shl", "shr"):
        a, b = warp.get(operands[1], kind), warp.get(operands[2], np.uint32)
        bits = 8 * np.dtype(kind).itemsize
        moved = (np.left_shift if name == "shl" else np.right_shift)(a, np.minimum(b, bits - 1).astype(kind))
        warp.put(operands[0], np.where(b >= bits, np.where(a < 0, -1, 0).astype(kind), moved), mask)
        return True
    if name == "bfe":
        a, at, count = (warp.get(x, np.uint32) for x in operands[1:4])
        warp.put(operands[0], (a >> at) & ((np.uint32(1) << count) - np.uint32(1)), mask)
        return True
    if name in ("mul", "mad") and parts[1] in ("wide", "hi", "lo"):
        a, b = (warp.get(x, kind).astype(object) for x in operands[1:3])
        product = a * b
        if parts[1] == "hi":
            product = product >> 32
        if name == "mad":
            product = product + warp.get(operands[3], kind).astype(object)
        bits = 64 if parts[1] == "wide" or kind in (np.uint64, np.int64) else 32
        whole = np.array([int(x) % (1 << bits) for x in product], f"u{bits // 8}")
        warp.put(operands[0], whole, mask)
        return True
    if name == "fma":
        a, b, c = (warp.get(x, kind).astype(np.float64) for x in operands[1:4])
        warp.put(operands[0], (a * b + c).astype(np.float32), mask)
        return True
    if name in ("neg", "not", "abs", "ex2", "rcp"):
        a = warp.get(operands[1], kind)
        found = {
            "neg": lambda: -a,
            "not": lambda: ~a,
            "abs": lambda: np.abs(a),
            "ex2": lambda: np.exp2(a),
            "rcp": lambda: np.float32(1) / a,
        }[name]()
        warp.put(operands[0], found.astype(a.dtype), mask)
        return True
    a, b = (warp.get(x, kind) for x in operands[1:3])
    if name in ("min", "max") and kind is np.float32:
        found = (np.fmin if name == "min" else np.fmax)(a, b)
    else:
        found = ARITHMETIC[name](a, b)
    warp.put(operands[0], found, mask)
    return True


def converted(warp, parts, operands, mask):
    """``cvt`` in its forms."""
    wanted, given = parts[-2], parts[-1]
    if wanted in ("bf16x2", "f16x2"):
        kind = HALVES[wanted[:-2]]
        high, low = (
            warp.get(x, np.float32).astype(kind).view(np.uint16).astype(np.uint32)
            for x in operands[1:3]
        )
        warp.put(operands[0], low | (high << 16), mask)
        return True
    warp.put(operands[0], warp.get(operands[1], TYPES[given]).astype(TYPES[wanted]), mask)
    return True


# --------------------------------------------------------------------------- memory


def _names(operand):
    return [x.strip() for x in operand.strip("{}").split(",")]


def load(warp, parts, operands, mask):
    space = parts[1]
    names = _names(operands[0])
    kind = TYPES[parts[-1]]
    size = np.dtype(kind).itemsize
    if space == "param":
        values = warp.block.parameters[operands[1].strip("[]")]
        warp.put(names[0], np.uint64(values), mask)
        return True
    addresses = warp.address(operands[1])
    for i, name in enumerate(names):
        found = np.zeros(LANES, kind)
        for lane in np.flatnonzero(mask):
            raw = warp.block.bytes(space, addresses[lane] + i * size, size)
            found[lane] = raw.view(kind)[0]
        warp.put(name, found, mask)
    return True


def store(warp, parts, operands, mask):
    space, kind = parts[1], TYPES[parts[-1]]
    size = np.dtype(kind).itemsize
    addresses = warp.address(operands[0])
    for i, name in enumerate(_names(operands[1])):
        values = np.ascontiguousarray(warp.get(name, kind))
        for lane in np.flatnonzero(mask):
            raw = warp.block.bytes(space, addresses[lane] + i * size, size)
            raw[:] = values[lane : lane + 1].view(np.uint8)
    return True


def mapa(warp, parts, operands, mask):
    address, rank = (warp.get(x, np.uint32) for x in operands[1:3])
    warp.put(operands[0], address | ((rank + np.uint32(1)) << np.uint32(REMOTE)), mask)
    return True


def ldmatrix(warp, parts, operands, mask):
    assert mask.all()
    addresses = warp.address(operands[1])
    names = _names(operands[0])
    for i, name in enumerate(names):
        matrix = np.stack(
            [warp.block.bytes("shared", a, 16).view(np.uint16) for a in addresses[8 * i : 8 * i + 8]]
        )
        if "trans" in parts:
            matrix = matrix.T
        low = matrix[Z // 4, 2 * (Z % 4)].astype(np.uint32)
        high = matrix[Z // 4, 2 * (Z % 4) + 1].astype(np.uint32)
        warp.put(name, low | (high << 16), mask)
    return True


def stmatrix(warp, parts, operands, mask):
    assert mask.all()
    addresses = warp.address(operands[0])
    for i, name in enumerate(_names(operands[1])):
        words = warp.get(name, np.uint32)
        for row in range(8):
            raw = warp.block.bytes("shared", addresses[8 * i + row], 16).view(np.uint32)
            raw[:] = words[4 * row : 4 * row + 4]
    return True


# --------------------------------------------------------------------------- threads


def shuffle(warp, parts, operands, mask):
    assert mask.all()
    value = warp.get(operands[1], np.uint32)
    by = warp.get(operands[2], np.uint32).astype(np.int64)
    warp.put(operands[0], value[Z ^ by if "bfly" in parts else by], mask)
    return True


def elect(warp, parts, operands, mask):
    assert mask.all()
    warp.put(operands[0].split("|")[1], Z == 0, mask)
    return True


def named_barrier(warp, parts, operands, mask):
    assert mask.all(), "a part of a warp is at a barrier"
    number = int(warp.get(operands[0], np.uint32)[0])
    count = int(warp.get(operands[1], np.uint32)[0]) if len(operands) > 1 else warp.block.threads
    return warp.block.meet(("bar", number), warp, count // LANES)


def cluster_arrive(warp, parts, operands, mask):
    assert mask.all()
    warp.block.cluster.arrive(warp)
    return True


def cluster_wait(warp, parts, operands, mask):
    return True if warp.block.cluster.passed(warp) else "again"


def finish(warp, parts, operands, mask):
    warp.done |= mask
    return True


def trap(warp, parts, operands, mask):
    raise AssertionError(f"trap in warp {warp.number} of block {warp.block.number}")


# --------------------------------------------------------------------------- mbarriers and copies


def barrier_init(warp, parts, operands, mask):
    (lane,) = np.flatnonzero(mask)
    address = int(warp.address(operands[0])[lane])
    assert address % 8 == 0
    warp.block.barriers[address] = Barrier(int(warp.get(operands[1], np.uint32)[lane]))
    return True


def barrier_expect(warp, parts, operands, mask):
    (lane,) = np.flatnonzero(mask)
    address = int(warp.address(operands[1])[lane])
    nbytes = int(warp.get(operands[2], np.uint32)[lane])
    warp.block.barriers[address].change(1, nbytes)
    return True


def barrier_arrive(warp, parts, operands, mask):
    addresses = warp.address(operands[1])
    for lane in np.flatnonzero(mask):
        warp.block.barriers[int(addresses[lane])].change(1)
    return True


def barrier_wait(warp, parts, operands, mask):
    addresses, parity = warp.address(operands[1]), warp.get(operands[2], np.uint32)
    (address,) = set(addresses[mask].tolist())
    passed = warp.block.barriers[address].phase != int(parity[mask][0])
    warp.put(operands[0], np.full(LANES, passed), mask)
    return bool(passed)


def tensor_copy(warp, parts, operands, mask):
    (lane,) = np.flatnonzero(mask)
    block = warp.block
    if "shared::cta" in parts and parts.index("global") < parts.index("shared::cta"):
        inside = operands[0].strip("[]")
        name, _, at = inside.partition(",")
        coordinates = [int(warp.get(x, np.int32)[lane]) for x in _names(at.strip())]
        source = int(warp.address(operands[1])[lane])
        block.map_of(warp.get(name.strip(), np.uint64)[lane]).store(block, source, coordinates)
        return True
    to = int(warp.address(operands[0])[lane])
    name, _, at = operands[1].strip("[]").partition(",")
    coordinates = [int(warp.get(x, np.int32)[lane]) for x in _names(at.strip())]
    described = block.map_of(warp.get(name.strip(), np.uint64)[lane])
    barrier = block.barriers[int(warp.address(operands[2])[lane])]

    def arrive():
        barrier.change(0, -described.load(block, to, coordinates))

    block.copies.append(arrive)
    return True


def bulk_copy(warp, parts, operands, mask):
    (lane,) = np.flatnonzero(mask)
    block = warp.block
    to, source = (int(warp.address(x)[lane]) for x in operands[:2])
    nbytes = int(warp.get(operands[2], np.uint32)[lane])
    barrier = block.barriers[int(warp.address(operands[3])[lane])]
    assert to % 16 == source % 16 == nbytes % 16 == 0

    def arrive():
        block.bytes("shared", to, nbytes)[:] = block.bytes("global", source, nbytes)
        barrier.change(0, -nbytes)

    block.copies.append(arrive)
    return True


# --------------------------------------------------------------------------- products


def swizzled(addresses):
    return addresses ^ (((addresses >> 7) & 7) << 4)


def described(block, word, kind, rows, columns, along_k):
    """A matrix in shared memory: ``rows`` of M or N by ``columns`` of K."""
    start, lead, stride = ((word >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert word >> 62 == 1, "no swizzle of 128 bytes"
    r, k = np.arange(rows)[:, None], np.arange(columns)[None, :]
    if along_k:
        places = start + (r // 8) * stride + (r % 8) * 128 + k * 2
    else:
        places = start + (r // 64) * lead + (r % 64) * 2 + (k // 8) * stride + (k % 8) * 128
    shared = block.shared.view(np.uint16)
    return shared[swizzled(places) >> 1].view(HALVES[kind]).astype(np.float32)


def wgmma(warp, parts, operands, mask):
    assert mask.all()
    columns = int(re.search(r"n(\d+)k", parts[4])[1])
    kind, block = parts[-1], warp.block
    sums = _names(operands[0])
    quarter = warp.number % 4
    if operands[1].startswith("{"):
        left = np.zeros((16, 16), np.float32)
        for i, name in enumerate(_names(operands[1])):
            word = warp.get(name, np.uint32)
            rows, terms = Z // 4 + 8 * (i % 2), 2 * (Z % 4) + 8 * (i // 2)
            for half in range(2):
                bits = ((word >> np.uint32(16 * half)) & np.uint32(0xFFFF)).astype(np.uint16)
                left[rows, terms + half] = bits.view(HALVES[kind]).astype(np.float32)
        flags = operands[4:]
        right_across = len(flags) > 2 and flags[2] == "1"
    else:
        word = int(warp.get(operands[1], np.uint64)[0])
        flags = operands[4:]
        assert flags[2] == "0"
        left = described(block, word, kind, 64, 16, True)[16 * quarter : 16 * quarter + 16]
        right_across = flags[3] == "1"
    word = int(warp.get(operands[2], np.uint64)[0])
    right = described(block, word, kind, columns, 16, not right_across)
    product = left @ right.T
    keep = operands[3]
    kept = bool(warp.get(keep, bool)[0]) if keep in warp.program.types else keep != "0"
    for j in range(columns // 8):
        for e in range(4):
            name = sums[4 * j + e]
            added = product[Z // 4 + 8 * (e // 2), 8 * j + 2 * (Z % 4) + e % 2]
            old = warp.get(name, np.float32) if kept else np.float32(0)
            warp.put(name, (old + added).astype(np.float32), mask)
    return True


SPECIAL = {
    "ld.": load,
    "st.": store,
    "mapa": mapa,
    "ldmatrix": ldmatrix,
    "stmatrix": stmatrix,
    "shfl": shuffle,
    "elect": elect,
    "bar.sync": named_barrier,
    "barrier.sync": named_barrier,
    "barrier.cta.sync": named_barrier,
    "barrier.cluster.arrive": cluster_arrive,
    "barrier.cluster.wait": cluster_wait,
    "ret": finish,
    "trap": trap,
    "mbarrier.init": barrier_init,
    "mbarrier.arrive.expect_tx": barrier_expect,
    "mbarrier.arrive": barrier_arrive,
    "mbarrier.try_wait": barrier_wait,
    "cp.async.bulk.tensor": tensor_copy,
    "cp.async.bulk.shared": bulk_copy,
    "wgmma.mma_async": wgmma,
}


# --------------------------------------------------------------------------- blocks


@dataclass
class Map:
    """A tensor map."""

    address: int
    sizes: tuple
    strides: tuple
    box: tuple
    size: int
    swizzle: int

    def __post_init__(self):
        assert self.address % 16 == 0 and all(s % 16 == 0 and s > 0 for s in self.strides)
        assert self.swizzle == 128 and self.box[0] * self.size == 128

    def _rows(self, at):
        """Rows of the box in order: their places in the box, and their first byte in memory, None outside."""
        outer = [range(n) for n in self.box[:0:-1]]
        for number, index in enumerate(np.ndindex(*[len(r) for r in outer])):
            where = [a + i for a, i in zip(at[1:], index[::-1], strict=True)]
            inside = all(0 <= w < n for w, n in zip(where, self.sizes[1:], strict=True))
            begin = self.address + sum(w * s for w, s in zip(where, self.strides, strict=True))
            yield number, begin + at[0] * self.size if inside else None

    def load(self, block, to, at):
        assert to % 128 == 0
        count = max(0, min(self.box[0], self.sizes[0] - at[0])) * self.size
        nbytes = 0
        for number, begin in self._rows(at):
            row = np.zeros(128, np.uint8)
            if begin is not None and count:
                row[:count] = block.bytes("global", begin, count)
            places = swizzled(to + number * 128 + np.arange(128))
            block.shared[places] = row
            nbytes += 128
        return nbytes

    def store(self, block, source, at):
        count = max(0, min(self.box[0], self.sizes[0] - at[0])) * self.size
        for number, begin in self._rows(at):
            if begin is not None and count:
                places = swizzled(source + number * 128 + np.arange(128))
                block.bytes("global", begin, count)[:] = block.shared[places][:count]


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
        block = self
        if address >> REMOTE:
            block = self.cluster.blocks[(int(address) >> REMOTE) - 1]
            address = int(address) & ((1 << REMOTE) - 1)
        assert 0 <= address and address + count <= len(block.shared), "outside of shared memory"
        return block.shared[int(address) : int(address) + count]

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
        state[0].add(warp)
        if len(state[0]) == count:
            state[0], state[1] = set(), state[1] + 1
        return "again"


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

    def launch(self, ptx, stage, addresses):
        """Run a stage, whose bindings lie at these addresses."""
        program = parsed(ptx)
        pointers, maps, parameters = iter(addresses), {}, {}
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
                where = addresses[stage.bindings.index(described.binding)] if described.binding in stage.bindings else self.bound[described.binding]
                maps[place] = Map(
                    where + described.offset,
                    described.sizes,
                    described.strides,
                    described.box,
                    2,
                    described.swizzle,
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
            for warp in alive:
                for _ in range(10_000):
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
                places = {(w.block.number, w.number): w.program.code[w.places.min()].text[:60] for w in alive}
                raise Stuck(f"no warp goes on: {places}")
        for block in cluster.blocks:
            assert not block.copies, "a block ended while copies to it were under way"
