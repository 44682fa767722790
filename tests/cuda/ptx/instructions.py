"""What each instruction does in the lanes of a warp."""

import re

import ml_dtypes
import numpy as np

from .memory import REMOTE, Barrier, swizzled

LANES = 32
TYPES = {
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "f32": np.float32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "b16": np.uint16,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
}
HALVES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
Z = np.arange(LANES)


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
    "cp.async.bulk.prefetch",
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
        moved = (np.left_shift if name == "shl" else np.right_shift)(
            a, np.minimum(b, bits - 1).astype(kind)
        )
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
            [
                warp.block.bytes("shared", a, 16).view(np.uint16)
                for a in addresses[8 * i : 8 * i + 8]
            ]
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


def named_arrive(warp, parts, operands, mask):
    assert mask.all(), "a part of a warp is at a barrier"
    number, count = (int(warp.get(operand, np.uint32)[0]) for operand in operands)
    warp.block.come(("bar", number), warp, count // LANES)
    return True


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
        block, address = warp.block.owner(int(addresses[lane]))
        block.barriers[address].change(1)
    return True


def barrier_wait(warp, parts, operands, mask):
    addresses, parity = warp.address(operands[1]), warp.get(operands[2], np.uint32)
    (address,) = set(addresses[mask].tolist())
    passed = warp.block.barriers[address].phase != int(parity[mask][0])
    warp.put(operands[0], np.full(LANES, passed), mask)
    warp.polls = 0 if passed else warp.polls + 1
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
    taps = []
    if "im2col" in parts:
        taps = [int(warp.get(x, np.uint16)[lane]) for x in _names(operands[3])]
    at = int(warp.address(operands[2])[lane])
    blocks = [block]
    if "multicast::cluster" in parts:
        chosen = int(warp.get(operands[3 + bool(taps)], np.uint16)[lane])
        blocks = [one for i, one in enumerate(block.cluster.blocks) if chosen >> i & 1]

    def bring(to_block):
        def arrive():
            if taps:
                nbytes = described.load_patches(to_block, to, coordinates, taps)
            else:
                nbytes = described.load(to_block, to, coordinates)
            to_block.barriers[at].change(0, -nbytes)

        return arrive

    for one in blocks:
        one.copies.append(bring(one))
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
        left = described(block, word, kind, 64, 16, flags[2] == "0")
        left = left[16 * quarter : 16 * quarter + 16]
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


def mma(warp, parts, operands, mask):
    """``mma.sync`` of 16 rows by 8 columns of 16-bit numbers."""
    assert mask.all()
    assert parts[3] == "m16n8k16"

    def fragment(operand, rows, along):
        found = np.zeros((rows, 16), np.float32)
        for name, (row, term) in zip(_names(operand), along, strict=True):
            word = warp.get(name, np.uint32)
            for half in range(2):
                bits = ((word >> np.uint32(16 * half)) & np.uint32(0xFFFF)).astype(np.uint16)
                number = bits.view(HALVES[parts[-2]]).astype(np.float32)
                found[row + Z // 4, term + 2 * (Z % 4) + half] = number
        return found

    left = fragment(operands[1], 16, [(0, 0), (8, 0), (0, 8), (8, 8)])
    product = left @ fragment(operands[2], 8, [(0, 0), (0, 8)]).T
    old = [warp.get(name, np.float32) for name in _names(operands[3])]
    for e, name in enumerate(_names(operands[0])):
        added = product[Z // 4 + 8 * (e // 2), 2 * (Z % 4) + e % 2]
        warp.put(name, (old[e] + added).astype(np.float32), mask)
    return True


def prmt(warp, parts, operands, mask):
    """Bytes of two words, by number."""
    words = [warp.get(x, np.uint32).astype(np.uint64) for x in operands[1:3]]
    both, how = words[0] | (words[1] << np.uint64(32)), int(operands[3], 0)
    found = np.zeros(LANES, np.uint64)
    for i in range(4):
        byte = (both >> np.uint64(8 * (how >> (4 * i) & 7))) & np.uint64(0xFF)
        found |= byte << np.uint64(8 * i)
    warp.put(operands[0], found.astype(np.uint32), mask)
    return True


SPECIAL = {
    "mma.sync": mma,
    "prmt": prmt,
    "ld.": load,
    "st.": store,
    "mapa": mapa,
    "ldmatrix": ldmatrix,
    "stmatrix": stmatrix,
    "shfl": shuffle,
    "elect": elect,
    "bar.sync": named_barrier,
    "bar.arrive": named_arrive,
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
