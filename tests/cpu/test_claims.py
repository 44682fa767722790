"""Pieces of work that threads claim: each once, whoever comes first, those of their own queue before others'."""

import ctypes
import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darner.backends.cpu.contract.pieces import while_claimed
from darner.backends.cpu.emit.work_queue import ENDED, LINE_WORDS, MARKS, QUEUES, WORDS, Claims
from darner.backends.cpu.runtime.jit import compile_module, load_object
from darner.backends.cpu.runtime.threads import Team, symbols
from darner.codegen.ir.faults import FAULT
from darner.codegen.ir.index import i64

pytestmark = pytest.mark.skipif(os.name != "posix", reason="teams need POSIX threads")

NOBODY = -1


def program(things, blocks, extra, ahead):
    """A function whose threads note in ``[words, counts, owners, order]`` which pieces they claim; with ``ahead`` each piece is claimed while the one before is done."""
    from llvmlite import ir

    word, pointer = ir.IntType(64), ir.PointerType()
    module = ir.Module("claims")
    kind = ir.FunctionType(ir.VoidType(), [word, word, pointer])
    function = ir.Function(module, kind, "claim")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    b.branch(b.append_basic_block("body"))
    b.position_at_end(function.blocks[-1])
    thread, threads, argument = function.args

    def given_at(place):
        return b.load(b.gep(argument, [i64(place)], source_etype=word), typ=pointer)

    words, counts, owners, order = (given_at(i) for i in range(4))
    claims = Claims(b, words, thread, threads)

    def at(start, piece):
        return b.gep(start, [piece], source_etype=word)

    def note(piece):
        b.atomic_rmw("add", at(counts, piece), i64(1), "acq_rel")
        b.store(thread, at(owners, piece))
        own = b.gep(order, [thread], source_etype=word)
        first = b.icmp_signed("==", b.load(own, typ=word), i64(NOBODY))
        with b.if_then(first):
            b.store(piece, own)

    def inside(piece, later, carried):
        note(piece)
        return carried

    if ahead:
        division = claims.division(i64(things), blocks, extra)
        while_claimed(claims, division, inside, [])
    else:
        claims.each(things, note)
    b.ret_void()
    return load_object(compile_module(module), symbols=symbols())


def claimed(code, threads, pieces, runs=1):
    """How often each piece was claimed, by whom last, and the first piece of each thread; the words afterwards."""
    words = np.zeros(WORDS, np.int64)
    counts, owners = np.zeros(pieces, np.int64), np.full(pieces, NOBODY, np.int64)
    order = np.full(threads, NOBODY, np.int64)
    argument = np.array([a.ctypes.data for a in (words, counts, owners, order)], np.int64)
    team = Team(threads)
    try:
        for _ in range(runs):
            order[:] = NOBODY
            team.run(code.address("claim"), argument.ctypes.data)
    finally:
        team.close()
    return counts, owners, order, words


@settings(max_examples=25, deadline=None)
@given(
    things=st.integers(0, 40),
    blocks=st.integers(1, 4),
    extra=st.integers(0, 3),
    threads=st.sampled_from([1, 2, 3, 4, 5, 9]),
)
def test_every_piece_is_claimed_once_in_every_run(things, blocks, extra, threads):
    pieces = things * blocks + min(threads, QUEUES) * extra
    counts, owners, _, words = claimed(program(things, blocks, extra, True), threads, pieces, 3)
    assert counts.tolist() == [3] * pieces
    assert all(0 <= owner < threads for owner in owners)
    assert not words.any()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("pieces", [0, 1, 5, 64])
def test_each_claims_every_piece_once(threads, pieces):
    counts, _, _, words = claimed(program(pieces, 1, 0, False), threads, pieces, 2)
    assert counts.tolist() == [2] * pieces
    assert not words.any()


@pytest.mark.parametrize(
    ("thread", "threads", "first"), [(0, 2, 0), (1, 2, 15), (2, 3, 20), (5, 8, 15)]
)
def test_a_thread_begins_with_its_own_queue_and_goes_on_with_others(thread, threads, first):
    pieces = 30
    code = program(pieces, 1, 0, True)
    claim = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        code.address("claim")
    )
    words, counts = np.zeros(WORDS, np.int64), np.zeros(pieces, np.int64)
    owners, order = np.zeros(pieces, np.int64), np.full(threads, NOBODY, np.int64)
    argument = np.array([a.ctypes.data for a in (words, counts, owners, order)], np.int64)
    claim(thread, threads, argument.ctypes.data)
    assert order[thread] == first
    assert counts.tolist() == [1] * pieces
    assert set(owners.tolist()) == {thread}
    assert words.any()
    for other in set(range(threads)) - {thread}:
        claim(other, threads, argument.ctypes.data)
    assert counts.tolist() == [1] * pieces
    assert not words.any()


def test_words_of_queues_are_lines_of_their_own():
    places = [LINE_WORDS * (1 + queue) for queue in range(QUEUES)]
    assert FAULT <= ENDED < MARKS < LINE_WORDS
    assert places[-1] + LINE_WORDS == WORDS
    assert {b - a for a, b in itertools.pairwise(places)} == {64 // 8}
