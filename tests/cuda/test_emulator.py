"""The emulated device: what threads compute, alone and together, and what it tells of that a card would only suffer."""

import numpy as np
import pytest

from darner import Graph
from darner.backends.cuda.emulator.launch import compile
from darner.codegen.simt.dispatch import Dispatch
from darner.graph.dtypes import bf16, bool_, f16, f32, f64, i8, i64, u32
from darner.graph.errors import InternalError
from darner.lower.plan import Spec
from tests.cuda.running import MACHINE, room, run_code

# --------------------------------------------------------------------------- a thread alone


def test_threads_of_all_blocks_have_numbers():
    found = run_code(
        lambda b, out, x: out.__setitem__(b.thread, b.group * 1000 + b.local), 128, 32, 4
    )
    np.testing.assert_array_equal(found, [1000 * (i // 32) + i % 32 for i in range(128)])


def test_a_variable_is_what_it_is_where_it_stands():
    def write(b, out, x):
        total = b.variable(0, "total", u32)
        with b.for_(0, b.local, name="i") as i:
            total += i
            with b.if_(i == 9):
                b.break_()
        out[b.thread] = total

    found = run_code(write, 64)
    np.testing.assert_array_equal(found, [sum(range(min(i, 10))) for i in range(64)])


def test_one_of_two_blocks_runs_and_one_of_several():
    def write(b, out, x):
        with b.if_(b.local < 10, b.local > 3):
            out[b.thread] = 1
        with b.else_():
            b.switch(b.local % 3, 3, lambda k: out.__setitem__(b.thread, 10 + k))

    found = run_code(write, 64)
    np.testing.assert_array_equal(found, [1 if 3 < i < 10 else 10 + i % 3 for i in range(64)])


def test_loops_over_halves_and_conditions():
    def write(b, out, x):
        steps, left = b.variable(0, "steps", u32), b.variable(b.local + 1, "left")
        with b.iterate(32, lambda half: half > 0, lambda half: half >> 1):
            steps += 1
        with b.while_(lambda: left > 0):
            left.set(left >> 1)
            steps += 100
        out[b.thread] = steps

    found = run_code(write, 64)
    np.testing.assert_array_equal(found, [6 + 100 * (i + 1).bit_length() for i in range(64)])


def test_carried_values_and_a_step():
    def write(b, out, x):
        first, second = b.loop(
            0, 20, 3, lambda i, held: [held[1], held[0] + held[1] + i], [b.index(0), b.index(1)]
        )
        out[b.thread] = first * 1000 + second

    a, c = 0, 1
    for i in range(0, 20, 3):
        a, c = c, a + c + i
    np.testing.assert_array_equal(run_code(write, 64), [a * 1000 + c] * 64)


def test_an_expression_can_be_used_after_the_block_that_it_was_written_down_in():
    def write(b, out, x):
        with b.if_(b.local < 5):
            later = (b.local + 3) * 2
            out[b.thread] = later
        with b.else_():
            out[b.thread] = later + 1

    found = run_code(write, 64)
    np.testing.assert_array_equal(found, [(i + 3) * 2 + (i >= 5) for i in range(64)])


def test_what_has_a_name_is_not_known_after_its_block():
    def write(b, out, x):
        with b.if_(b.local < 5):
            named = b.let(b.local + 3)
        out[b.thread] = named

    with pytest.raises(InternalError, match="outside of the block"):
        run_code(write, 64)


def test_functions_call_functions_and_read_buffers():
    def write(b, out, x):
        read = b.function(
            "read", [("at", u32, 1)], lambda inner, at: inner.load(x, inner.min(at, 63))
        )
        twice = b.function("twice", [("at", u32, 1)], lambda inner, at: read(at) + read(at + 1))
        out[b.thread] = twice(b.thread)

    found = run_code(write, 64, given=np.arange(64, dtype=np.uint32) ** 2)
    np.testing.assert_array_equal(found, [i**2 + min(i + 1, 63) ** 2 for i in range(64)])


def test_vectors_meet_scalars_and_have_parts():
    def write(b, out, x):
        four = b.variable(0.0, "four", f32, width=4)
        four.set(four + b.vector([1.0, 2.0, 3.0, 4.0], b.constant(0.0, f32)))
        four[1] = 10.0
        value = b.fma(four, 2.0, four) * b.choose(four > 3.0, b.constant(1.0, f32), 0.0)
        out[b.thread] = value.x + value.y + value.z + b.call("dot", four, four) + value[b.local & 3]

    found = run_code(write, 64, dtype=f32)
    parts = [0.0, 30.0, 0.0, 12.0]
    np.testing.assert_array_equal(found, [30 + 1 + 100 + 9 + 16 + parts[i % 4] for i in range(64)])


def test_arrays_and_tables_are_read_at_numbers_that_are_not_known():
    def write(b, out, x):
        table = b.table([7, 0xFFFFFFFF, 5, 3], "table")
        own = b.array([b.local, b.local * 2, b.local * 3, b.index(1)], "own")
        own[b.local % 2] = 100
        out[b.thread] = table[b.local % 4] + own[(b.local + 1) % 4]

    def expected(i):
        own = [i, i * 2, i * 3, 1]
        own[i % 2] = 100
        return ([7, 0xFFFFFFFF, 5, 3][i % 4] + own[(i + 1) % 4]) % 2**32

    np.testing.assert_array_equal(run_code(write, 64), [expected(i) for i in range(64)])


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64, i64, i8])
def test_values_of_every_type_pass_through_words_and_other_threads(dtype):
    given = (np.arange(64) - 20).astype(dtype.numpy)

    def write(b, out, x):
        from dataclasses import replace

        own = b.load(replace(x.singles, dtype=dtype), b.local)
        other = b.shuffle_xor(b.of_words(b.words(own), dtype), 5)
        b.store(other, out.singles, b.local)

    bits = given.view(np.uint8)
    found = run_code(write, 64, dtype=dtype, given=bits)
    np.testing.assert_array_equal(found, given[np.arange(64) ^ 5])


def test_elements_smaller_than_a_word_do_not_touch_their_neighbours():
    def write(b, out, x):
        with b.if_(b.local % 2 == 0):
            b.store(b.local < 32, out.singles, b.local)

    found = run_code(write, 64, dtype=bool_)
    np.testing.assert_array_equal(found.view(np.uint8)[1::2], 0xFF)
    np.testing.assert_array_equal(found[::2], np.arange(0, 64, 2) < 32)


# --------------------------------------------------------------------------- threads together


@pytest.mark.parametrize("threads", [2, 32, 48, 256])
def test_what_threads_write_to_shared_memory_is_seen_after_a_barrier(threads):
    def write(b, out, x):
        tile = b.shared(u32, threads, "tile")
        with b.for_(0, 3):
            tile[b.local] = b.thread * 2
            b.barrier()
            out[b.thread] = tile[threads - 1 - b.local]
            b.barrier()

    found = run_code(write, 3 * threads, threads, 3)
    numbers = np.arange(3 * threads).reshape(3, threads)
    np.testing.assert_array_equal(found, numbers[:, ::-1].reshape(-1) * 2)


def test_one_warp_shuffles_while_others_wait_at_the_barrier():
    def write(b, out, x):
        held = b.shared(u32, 64, "held")
        held[b.local] = b.local
        with b.if_(b.local < 32):
            total = b.let(b.local + b.shuffle_xor(b.local, 1))
            held[b.local] = total + b.shuffle_xor(total, 2)
        b.barrier()
        out[b.thread] = held[b.local ^ 32]

    found = run_code(write, 64)
    sums = [4 * (i & ~3) + 6 for i in range(32)]
    np.testing.assert_array_equal(found, [*range(32, 64), *sums])


def test_one_number_is_the_same_for_all_threads():
    def write(b, out, x):
        one = b.shared(u32, (), "one")
        with b.if_(b.local == 17):
            one[()] = b.group + 40
        out[b.thread] = b.uniform(one)

    np.testing.assert_array_equal(run_code(write, 128, 64, 2), [40] * 64 + [41] * 64)


def test_atomic_operations_of_all_blocks_add_up():
    def write(b, out, x):
        with b.if_(b.thread < 4):
            out[b.thread] = 0
        b.barrier()
        b.atomic("add", out, 0, b.local)
        b.atomic("max", out, 1, b.local)
        b.atomic("or", out, 2, 1 << (b.local % 8))
        b.atomic("min", out, 3, b.local)

    assert run_code(write, 4).tolist() == [sum(range(64)), 63, 255, 0]


def test_shared_memory_begins_with_what_nobody_wrote():
    def write(b, out, x):
        tile = b.shared(f32, 64, "tile")
        out[b.thread] = tile[b.local]

    assert np.isnan(run_code(write, 128, 64, 2, dtype=f32)).all()


# --------------------------------------------------------------------------- what is told of


def test_a_read_outside_of_a_buffer_is_told_of_with_kernel_and_place():
    def write(b, out, x):
        out[b.thread] = x[b.thread + 1]

    with pytest.raises(InternalError, match=r"block 1 of \(2, 1, 1\).*from byte 512 on.*scratch1"):
        run_code(write, 128, 64, 2)


def test_a_write_outside_of_shared_memory_is_told_of():
    def write(b, out, x):
        tile = b.shared(u32, 60, "tile")
        tile[b.local] = 1
        out[b.thread] = 1

    with pytest.raises(InternalError, match="from byte 240 on, outside of 'tile'"):
        run_code(write, 64)


def test_a_write_outside_of_a_buffer_goes_nowhere():
    dispatch = Dispatch(Spec("map", Graph()), MACHINE, threads=64)
    out = dispatch.scratch(0, 32, u32)
    out[dispatch.builder.thread] = 1
    stage = dispatch.finish(1)
    memory = room(256)
    with pytest.raises(InternalError, match="outside of 'scratch0'"):
        compile(stage)(stage.groups, [(memory.ctypes.data, 128)])
    np.testing.assert_array_equal(memory[128:], 0xFF)


def test_a_barrier_that_not_all_threads_come_to_is_told_of():
    def write(b, out, x):
        with b.if_(b.local < 40):
            b.barrier()
        out[b.thread] = 1

    with pytest.raises(InternalError, match="not all threads come to the same barrier"):
        run_code(write, 64)


def test_a_shuffle_that_not_all_threads_of_a_warp_come_to_is_told_of():
    def write(b, out, x):
        with b.if_(b.local < 40):
            out[b.thread] = b.shuffle_xor(b.local, 1)

    with pytest.raises(InternalError, match="not all threads come to the same shuffle"):
        run_code(write, 64)


def test_a_shuffle_with_a_thread_that_there_is_not_is_told_of():
    def write(b, out, x):
        out[b.thread] = b.shuffle_xor(b.local, 4)

    with pytest.raises(InternalError, match="shuffles exchange"):
        run_code(write, 6, threads=6)


def test_memory_that_is_not_aligned_is_refused():
    dispatch = Dispatch(Spec("map", Graph()), MACHINE, threads=32)
    dispatch.scratch(0, 32, u32)[dispatch.builder.thread] = 1
    stage = dispatch.finish(1)
    with pytest.raises(InternalError, match="multiple of 16"):
        compile(stage)(stage.groups, [(room(256).ctypes.data + 4, 128)])
