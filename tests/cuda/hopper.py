"""Hopper's instructions in software, for products by ``wgmma``: the kernel's own code with another meaning of its instructions.

Nothing runs by itself here: all threads of a block multiply, and where they would wait for a stage they bring it together first. So barriers are not tested, and clusters are not; what is: tensor maps, swizzles,
descriptors, fragments, tiles, and how results are stored. Descriptors are read from their bits, as the hardware does.
"""

from darner.backends.cuda.contract import store as store_module
from darner.backends.cuda.contract import wgmma as template
from darner.backends.cuda.instructions import barriers, copies, mma, numbers, threads, wgmma
from darner.backends.cuda.instructions.emulated import EmulatedCores
from darner.graph import dtypes


class LockstepKernel(template.WgmmaKernel):
    """The kernel with one loop for those who bring and those who multiply."""

    current = None

    def __init__(self, dispatch, *rest):
        dispatch.builder.tensor_map = lambda described: described
        type(self).current = self
        self.memories = {}
        super().__init__(dispatch, *rest)
        self.elements = dispatch.elements()
        self.bringing = False

    def write(self):
        self._begin()
        self.ring = template._Ring(self)
        self.number = self.builder.variable(self.builder.index(0), "number")
        self._consume()

    def _tiles(self, turn=None):
        return self._noted(super()._tiles(turn))

    def _noted(self, tiles):
        from contextlib import contextmanager

        @contextmanager
        def noted():
            with tiles as (place, first, last):
                self.place = place
                self.number.set(first)
                yield place, first, last

        return noted()

    def wait(self):
        """Bring the stage that is waited for."""
        if self.bringing:
            return
        b = self.builder
        self.bringing = True
        b.barrier()
        batches = [self._batch(source.layout, self.place.batch) for source in self.sources]
        self._bring(self.ring, b.let(self.number), self.place, batches)
        self.number.set(self.number + 1)
        b.barrier()
        self.bringing = False

    def memory(self, described):
        """What a tensor map describes, in items of 16 bytes."""
        binding = described.binding
        if binding not in self.memories:
            dispatch = self.dispatch
            dtype = dtypes.f32 if described.dtype == "tf32" else dtypes.dtype(described.dtype)
            piece = 16 // dtype.itemsize
            if binding.what == "scratch":
                count = binding.nbytes // dtype.itemsize
                made = dispatch.scratch(binding.number, count, dtype, vector=piece)
            else:
                made = dispatch.as_vectors(dispatch.operands[binding.number], piece)
            self.memories[binding] = made
        return self.memories[binding]


def swizzled(b, address):
    return b.let(address ^ (((address >> 7) & 7) << 4))


def tensor_load(ir, to, described, at, barrier, multicast=None, taps=()):
    kernel = LockstepKernel.current
    b = kernel.builder
    memory = kernel.memory(described)
    size = memory.dtype.itemsize
    piece = 16 // size
    assert described.swizzle == 128
    assert described.box[0] * size == 128
    x0, y0, *batch = (b.held(value) for value in at)
    assert all(stride % 16 == 0 for stride in described.strides)
    down, *strides = (stride // 16 for stride in described.strides)
    with b.for_(b.local, described.box[1] * 8, b.threads) as i:
        row, number = b.let(i // 8), b.let(i % 8)
        x, y = b.let(x0 + number * piece), b.let(y0 + row)
        inside = b.let((x < described.sizes[0]) & (y < described.sizes[1]))
        item = y * down + x // piece + described.offset // 16
        for index, stride in zip(batch, strides, strict=True):
            item = item + index * stride
        left = b.let(b.min((described.sizes[0] - x) * size, 16))
        address = b.let(b.held(to) + row * 128 + (number << 4))
        kernel.cores.copy_async(
            swizzled(b, address),
            memory,
            b.let(b.choose(inside, item, 0)),
            b.let(b.choose(inside, left, 0)),
        )


def tensor_store(ir, described, at, source, reduction=None):
    kernel = LockstepKernel.current
    b, registers = kernel.builder, kernel.elements.registers
    memory = kernel.dispatch.results[described.binding.number]
    size = memory.dtype.itemsize
    x0, y0, *batch = (b.held(value) for value in at)
    with b.for_(0, described.box[1]) as row, b.for_(0, described.box[0]) as column:
        x, y = b.let(x0 + column), b.let(y0 + row)
        with b.if_(x < described.sizes[0], y < described.sizes[1]):
            address = swizzled(b, b.let(b.held(source) + row * 128 + column * size))
            bits = b.let(kernel.cores.memory[address >> 4, (address >> 2) & 3])
            if size == 2:
                bits = b.let((bits >> ((address & 2) * 8)) & 0xFFFF)
            value = (
                b.halves(bits)[0] if memory.dtype is dtypes.f16 else b.of_bits(bits, memory.dtype)
            )
            offset = x + y * (described.strides[0] // size)
            for index, stride in zip(batch, described.strides[1:], strict=True):
                offset = offset + index * (stride // size)
            registers.store(value, memory, b.let(offset), memory.dtype)


def _element(shape, described, row, term, along_k):
    """A number of an operand, where its descriptor says."""
    kernel = LockstepKernel.current
    b = kernel.builder
    from darner.backends.cuda.instructions.assembly import I32, I64

    word = b.held(b.ir.trunc(described, I32))
    high = b.held(b.ir.trunc(b.ir.lshr(described, I64(32)), I32))
    start, lead = (word & 0x3FFF) << 4, ((word >> 16) & 0x3FFF) << 4
    stride, size = (high & 0x3FFF) << 4, 4 if shape.dtype == "tf32" else 2
    if along_k:
        address = start + (row >> 3) * stride + (row & 7) * 128 + term * size
    else:
        address = start + (row >> 6) * lead + (term >> 3) * stride + (term & 7) * 128
        address = address + (row & 63) * size
    address = swizzled(b, b.let(address))
    found = b.let(kernel.cores.memory[address >> 4, (address >> 2) & 3])
    if size == 4:
        return kernel.cores._number(found, "tf32", 0)
    half = b.let((found >> ((address & 2) * 8)) & 0xFFFF)
    return kernel.cores._number(half, shape.dtype, 0)


def multiply(ir, shape, sums, operands, *, keep=None, fence=True, commit=True, wait=None):
    b = LockstepKernel.current.builder
    kept = b.let(b.held(keep) != 0)
    totals = [
        b.variable(b.choose(kept, b.held(value), b.constant(0.0, dtypes.f32))) for value in sums
    ]
    lane = b.let(b.local & 31)
    row = b.let((b.local >> 5 & 3) * 16 + (lane >> 2))
    column = b.let((lane & 3) * 2)
    for left, right in operands:
        with b.for_(0, mma.TERMS[shape.dtype]) as term:
            rows = [
                _element(shape, left, b.let(row + 8 * h), term, shape.left_along_k)
                for h in range(2)
            ]
            with b.scope():
                for j in range(shape.columns // 8):
                    for x in range(2):
                        at = b.let(column + (8 * j + x))
                        factor = _element(shape, right, at, term, shape.right_along_k)
                        for h in range(2):
                            total = totals[4 * j + 2 * h + x]
                            total.set(b.fma(rows[h], factor, total))
    return [b.raw(total) for total in totals]


def stmatrix(ir, address, words, *, transposed=False):
    cores = LockstepKernel.current.cores
    b = cores.builder
    assert not transposed
    memory = cores._exchange([b.held(address)])
    lane = b.let(b.local & 31)
    first = b.let(b.local - lane)
    for number, word in enumerate(words):
        row = b.let(memory[0, first + 8 * number + (lane >> 2)] >> 4)
        cores.memory[row, lane & 3] = b.held(word)


def pack(dtype):
    def packed(ir, low, high):
        kernel = LockstepKernel.current
        b, registers = kernel.builder, kernel.elements.registers
        values = [registers.cast(b.held(value), dtypes.f32, dtype) for value in (low, high)]
        return b.raw(registers.word(values, dtype))

    return packed


def store_shared(ir, address, values):
    cores = LockstepKernel.current.cores
    cores.store_pair(cores.builder.held(address), *map(cores.builder.held, values))


def nothing(*_, **__):
    return None


def install(monkeypatch):
    """Let products by ``wgmma`` be written for the emulated device."""
    monkeypatch.setattr(template, "NativeCores", EmulatedCores)
    monkeypatch.setattr(threads, "warp_uniform", lambda ir, value: value)
    for name in ("trap", "set_max_registers", "sync_warp", "cluster_sync"):
        monkeypatch.setattr(threads, name, nothing)
    for name in ("barrier_init", "fence_barrier_init", "fence_async", "barrier_expect"):
        monkeypatch.setattr(barriers, name, nothing)
    monkeypatch.setattr(barriers, "barrier_arrive", nothing)
    monkeypatch.setattr(barriers, "barrier_wait", lambda *_: LockstepKernel.current.wait())
    monkeypatch.setattr(
        barriers, "named_barrier", lambda *_: LockstepKernel.current.builder.barrier()
    )
    for name in ("tensor_prefetch", "bulk_wait", "bulk_commit"):
        monkeypatch.setattr(copies, name, nothing)
    monkeypatch.setattr(copies, "tensor_load", tensor_load)
    monkeypatch.setattr(copies, "tensor_store", tensor_store)
    monkeypatch.setattr(copies, "store_shared", store_shared)
    monkeypatch.setattr(mma, "stmatrix", stmatrix)
    monkeypatch.setattr(numbers, "pack_bf16", pack(dtypes.bf16))
    monkeypatch.setattr(numbers, "pack_f16", pack(dtypes.f16))
    monkeypatch.setattr(wgmma, "wgmma", multiply)
    monkeypatch.setattr(wgmma, "wgmma_wait", lambda ir, sums, *_: list(sums))
    assert store_module.copies is copies
