"""Instructions that only NVIDIA's processors have: their PTX is what the assembler knows, for every architecture that has them."""

import pytest
from llvmlite import ir

from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.instructions import (
    barriers,
    copies,
    mma,
    numbers,
    threads,
    wgmma,
)
from darner.backends.cuda.instructions.assembly import F32, I32, assembly, word
from darner.graph.errors import InternalError
from tests.cuda.ptxas import assembled, needs_ptxas


def kernel(write):
    """The IR of a kernel that ``write(builder, buffer)`` writes."""
    module = ir.Module("kernel")
    module.triple = "nvptx64-nvidia-cuda"
    pointer = ir.PointerType(addrspace=1)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), "kernel")
    function.calling_convention = "ptx_kernel"
    set.add(function.attributes, '"nvvm.maxntid"="128"')
    builder = ir.IRBuilder(function.append_basic_block())
    write(builder, function.args[0])
    builder.ret_void()
    return str(module)


def stored(builder, buffer, values):
    """Let values be of use."""
    for number, value in enumerate(values):
        where = builder.gep(buffer, [word(number)], source_etype=I32)
        builder.store(value, where)


def words(builder, buffer, count, type_=I32):
    return [
        builder.load(builder.gep(buffer, [word(i)], source_etype=I32), typ=type_)
        for i in range(count)
    ]


def write_ampere(builder, buffer):
    address = threads.lane_id(builder)
    copies.cp_async(builder, address, buffer)
    copies.cp_async(builder, address, buffer, words(builder, buffer, 1)[0])
    copies.cp_async_commit(builder)
    copies.cp_async_wait(builder, 1)
    barriers.named_barrier(builder, 1, 64)
    barriers.named_arrive(builder, 2, 64)
    for dtype in mma.TERMS:
        sums = words(builder, buffer, 4, F32)
        left = mma.ldmatrix(builder, address)
        right = mma.ldmatrix(builder, address, 2, transposed=True)
        stored(builder, buffer, mma.mma_sync(builder, dtype, sums, left, right))
    low, high = words(builder, buffer, 2, F32)
    packed = [numbers.pack_bf16(builder, low, high), numbers.pack_f16(builder, low, high)]
    packed.append(numbers.round_tf32(builder, low))
    stored(builder, buffer, packed)
    functions = (numbers.exp2_approximate, numbers.reciprocal_approximate)
    stored(builder, buffer, [function(builder, low) for function in functions])
    copies.store_shared(builder, address, [low, high])
    stored(builder, buffer, copies.load_shared(builder, address, 4))
    stored(
        builder, buffer, [threads.shuffle_xor(builder, threads.warp_uniform(builder, address), 1)]
    )
    threads.sync_warp(builder)
    threads.trap(builder)


def write_hopper(builder, buffer):
    address = words(builder, buffer, 1)[0]
    map_ = builder.addrspacecast(buffer, ir.PointerType())
    barriers.barrier_init(builder, address, 1)
    barriers.fence_barrier_init(builder)
    barriers.barrier_expect(builder, address, 128)
    barriers.barrier_arrive(builder, address)
    barriers.barrier_arrive_remote(builder, address, threads.cluster_rank(builder))
    barriers.barrier_wait(builder, address, 0)
    barriers.barrier_wait(builder, address, address, cluster=True)
    barriers.fence_async(builder)
    copies.tensor_prefetch(builder, map_)
    for axes in range(2, 6):
        at = [0] * axes
        copies.tensor_load(builder, address, map_, at, address)
        copies.tensor_load(builder, address, map_, at, address, 3)
        copies.tensor_store(builder, map_, at, address)
        copies.tensor_store(builder, map_, at, address, "add")
    copies.bulk_load(builder, address, buffer, 64, address)
    copies.bulk_load(builder, address, buffer, 64, address, copies.cache_policy(builder))
    copies.bulk_store(builder, buffer, address, 64)
    copies.bulk_commit(builder)
    copies.bulk_wait(builder, 1)
    copies.bulk_wait(builder, 0, read=False)
    mma.stmatrix(builder, address, words(builder, buffer, 4))
    mma.stmatrix(builder, address, words(builder, buffer, 2), transposed=True)
    stored(builder, buffer, [threads.elect(builder), threads.map_shared(builder, address, 1)])
    threads.cluster_arrive(builder)
    threads.cluster_wait(builder)
    threads.cluster_sync(builder)
    threads.wait_for_launch(builder)
    threads.launch_dependents(builder)


def write_products(builder, buffer):
    address = words(builder, buffer, 1)[0]
    for dtype, columns, left, right in (
        ("bf16", 128, True, True),
        ("bf16", 64, False, False),
        ("f16", 96, True, False),
        ("tf32", 128, True, True),
    ):
        shape = wgmma.Shape(dtype, columns, left, right)
        a = wgmma.descriptor(builder, address, along_k=left)
        b = wgmma.descriptor(builder, address, along_k=right)
        steps = [
            (
                wgmma.advance(builder, a, step, along_k=left),
                wgmma.advance(builder, b, step, along_k=right),
            )
            for step in range(4)
        ]
        sums = [ir.Constant(F32, ir.Undefined)] * shape.sums
        sums = wgmma.wgmma(builder, shape, sums, steps, keep=word(0), wait=1)
        fragments = words(builder, buffer, 4)
        sums = wgmma.wgmma(builder, shape, sums, [(fragments, b)])
        stored(builder, buffer, wgmma.wgmma_wait(builder, sums, 0, fragments))


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_instructions_of_ampere_assemble_wherever_they_are(arch):
    assert assembled(to_ptx(kernel(write_ampere), arch), arch)["spills"] == 0


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_instructions_of_hopper_assemble(arch):
    assert assembled(to_ptx(kernel(write_hopper), arch), arch)["spills"] == 0


@needs_ptxas
def test_products_of_warpgroups_assemble_for_their_chip():
    found = assembled(to_ptx(kernel(write_products), "sm_90a"), "sm_90a")
    assert not found["spills"]
    assert not found["losses"]


def test_registers_are_given_away_and_taken():
    def write(builder, buffer):
        threads.set_max_registers(builder, 40, more=False)
        threads.set_max_registers(builder, 232, more=True)

    text = to_ptx(kernel(write), "sm_90a")
    assert "setmaxnreg.dec.sync.aligned.u32 40;" in text
    assert "setmaxnreg.inc.sync.aligned.u32 232;" in text


def test_every_wait_is_bounded_and_stops_the_launch():
    text = to_ptx(kernel(lambda b, x: barriers.barrier_wait(b, words(b, x, 1)[0], 0)), "sm_90a")
    assert "globaltimer" in text
    assert f"setp.gt.u64 p, now, {barriers.LONGEST_WAIT}" in text
    assert "trap" in text


def test_a_descriptor_has_address_stride_and_swizzle_in_their_bits():
    text = to_ptx(
        kernel(
            lambda b, x: b.store(
                wgmma.advance(
                    b, wgmma.descriptor(b, word(0x8400), along_k=False), 1, along_k=False
                ),
                x,
            )
        ),
        "sm_90a",
    )
    # The stride between eights of rows and the swizzle above; the distance of chunks and the address, 16 rows further on, below.
    assert f", {1 << 30 | 64};" in text
    assert f", {512 << 16 | (0x8400 >> 4) + 128};" in text


def test_sums_of_products_stay_in_their_registers():
    def write(builder, buffer):
        shape = wgmma.Shape("bf16", 8)
        described = wgmma.descriptor(builder, words(builder, buffer, 1)[0])
        sums = words(builder, buffer, 4, F32)
        stored(builder, buffer, wgmma.wgmma(builder, shape, sums, [(described, described)]))

    assert ",0,1,2,3," in kernel(write)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: wgmma.Shape("f32", 64),
        lambda: wgmma.Shape("bf16", 60),
        lambda: wgmma.Shape("tf32", 64, False),
        lambda: kernel(lambda b, x: mma.mma_sync(b, "i8", [], [], [])),
        lambda: kernel(lambda b, x: threads.set_max_registers(b, 41, more=True)),
        lambda: kernel(lambda b, x: copies.tensor_store(b, x, [0] * 6, word(0))),
        lambda: kernel(lambda b, x: assembly(b, "", [ir.IntType(8)])),
    ],
)
def test_what_no_processor_has_is_refused(wrong):
    with pytest.raises(InternalError):
        wrong()
