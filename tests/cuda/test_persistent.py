"""Chains of small products as one kernel: which kernels they have, and that they compute what the reference does, on a device in software whose blocks take turns."""

from dataclasses import dataclass

import numpy as np
import pytest

from darner import Graph, build_inference_session
from darner.backends.base.lowering import lower_for
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.emulator.launch import compile
from darner.backends.cuda.machine import Machine
from darner.backends.cuda.opening import opened
from darner.backends.cuda.persistent.chain import chain_of
from darner.backends.cuda.persistent.exchange import exchange_of
from darner.backends.cuda.persistent.kernel import write_chain
from darner.codegen.simt.builder import Memory
from darner.codegen.simt.dispatch import Binding
from darner.graph.dtypes import u32
from darner.graph.errors import InternalError
from tests.cuda.ptxas import assembled, needs_ptxas
from tests.cuda.running import MACHINE, room

DEVICE = "cuda:emulated"


@dataclass(frozen=True)
class Decoder:
    """A step of decoding: Llama's layers, or with ``plain`` those of GPT-2."""

    layers: int = 1
    batch: int = 1
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    inner: int = 96
    keys: int = 80
    words: int = 72
    plain: bool = False
    tied: bool = True

    @property
    def width(self):
        return self.heads * self.head

    def graph(self):
        g = Graph("decoder")
        tokens = g.input("tokens", (self.batch, 1), "i32")
        position = g.input("position", (1,), "u32")
        table = g.parameter("words", (self.words, self.width))
        x = g.embedding(tokens, table)
        for number in range(self.layers):
            with g.scope(f"layer{number}"):
                x = x + self.attended(g, self.normed(g, x, "norm1"), position)
                x = x + self.computed(g, self.normed(g, x, "norm2"))
        head = table.T if self.tied else g.parameter("head", (self.width, self.words))
        g.set_outputs([self.normed(g, x, "norm") @ head])
        return g

    def normed(self, g, x, name):
        weight = g.parameter(f"{name}.weight", (self.width,))
        if self.plain:
            return x.layer_norm(weight, g.parameter(f"{name}.bias", (self.width,)), 1e-5)
        return x.rms_norm(weight, 1e-5)

    def linear(self, g, x, name, columns):
        found = x @ g.parameter(f"{name}.weight", (x.shape[-1], columns))
        return found + g.parameter(f"{name}.bias", (columns,)) if self.plain else found

    def attended(self, g, x, position):
        kv = self.kv_heads * self.head
        q = self.linear(g, x, "q", self.width)
        k, v = (self.linear(g, x, name, kv) for name in "kv")
        if not self.plain:
            q, k = (g.rope_dynamic_offset(y, 10000.0, position, self.head) for y in (q, k))
        rows = []
        for name, new in (("keys", k), ("values", v)):
            cache = g.state(name, (self.batch, self.keys, kv))
            rows.append(g.cache_write(new, cache, position, axis=1))
        found = g.cached_attention(q, *rows, position, self.heads, self.kv_heads, self.head)
        return self.linear(g, found, "o", self.width)

    def computed(self, g, x):
        if self.plain:
            return self.linear(g, self.linear(g, x, "up", self.inner).gelu(), "down", self.width)
        gate, up = (self.linear(g, x, name, self.inner) for name in ("gate", "up"))
        return self.linear(g, gate.swiglu(up), "down", self.width)


def filled(graph, device, precision, steps=3):
    """The outputs of some steps at positions that follow each other, and the states after them."""
    rng = np.random.default_rng(3)
    with build_inference_session(graph, device=device, precision=precision, cache=None) as session:
        for name, leaf in graph.parameters.items():
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            drawn = rng.standard_normal([int(n) for n in leaf.shape]) * 0.2 + center
            session.set_parameter(name, drawn.astype(np.float32))
        session.state().update(
            {
                n: rng.standard_normal([int(k) for k in s.shape]).astype(np.float32)
                for n, s in graph.states.items()
            }
        )
        batch = int(graph.inputs["tokens"].shape[0])
        found = []
        for step in range(steps):
            tokens = rng.integers(0, 60, (batch, 1)).astype(np.int32)
            session.set_input("tokens", tokens)
            session.set_input("position", np.array([40 + step], np.uint32))
            session.step()
            session.wait()
            found.append(np.array(session.output("output0")))
        states = {name: np.array(value) for name, value in session.state().items()}
        notes = [note for note in session.report.passes[-1].notes if "kernels k" in note]
    return found, states, notes


CASES = {
    "one token": (Decoder(), "f32"),
    "factors of bf16": (Decoder(layers=2), "bf16"),
    "three tokens, a head of its own": (Decoder(batch=3, tied=False), "f32"),
    "layers of GPT-2": (Decoder(plain=True, kv_heads=4), "f32"),
    "odd widths": (Decoder(inner=93, words=57), "f32"),
    "wide heads": (Decoder(heads=2, kv_heads=1, head=40, inner=160), "f32"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_of_decoding_is_one_kernel_with_the_numbers_of_the_cpu(name):
    decoder, precision = CASES[name]
    found, states, notes = filled(decoder.graph(), DEVICE, precision)
    wanted, kept, nothing = filled(decoder.graph(), "cpu", precision)
    assert len(notes) == 1
    assert "are one kernel of 3 blocks that stay" in notes[0]
    assert not nothing
    close = 2e-4 if precision == "f32" else 3e-2
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=close * max(1.0, np.abs(other).max()))
    for leaf, value in states.items():
        np.testing.assert_allclose(value, kept[leaf], rtol=0, atol=close)
    # Every step sees what the steps before have written.
    assert np.abs(found[0] - found[1]).max() > 1e-2


def test_matrices_are_packed_anew_when_parameters_change():
    graph = Decoder().graph()
    rng = np.random.default_rng(5)
    drawn = [
        {
            n: rng.standard_normal([int(k) for k in p.shape]) * 0.2
            for n, p in graph.parameters.items()
        }
        for _ in range(2)
    ]
    found = {}
    for device in (DEVICE, "cpu"):
        with build_inference_session(graph, device=device, precision="bf16", cache=None) as session:
            session.set_input("tokens", np.array([[3]], np.int32))
            session.set_input("position", np.array([7], np.uint32))
            results = []
            for values in drawn:
                for name, value in values.items():
                    session.set_parameter(name, value.astype(np.float32))
                session.step()
                session.wait()
                results.append(np.array(session.output("output0")))
            if device == DEVICE:
                program = session._runner.loaded(session._runner.ran()).program
                assert program._resident._packed
            found[device] = results
    for one, other in zip(found[DEVICE], found["cpu"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-2 * np.abs(other).max())
    assert np.abs(found["cpu"][0] - found["cpu"][1]).max() > 0.1


def test_layers_that_are_alike_share_their_code():
    forms = []
    for layers in (2, 5):
        chain = chain_of(lower_for(DEVICE, Decoder(layers=layers).graph()), 132)
        assert chain is not None
        forms.append(len(chain.forms))
        assert len(chain.stages) >= 5 * layers
    assert forms[0] == forms[1]


def test_blocks_that_all_wait_for_each_other_are_told_of():
    b = MACHINE.builder(32)
    b.together = True
    given = Memory("words", u32, vector=2, builder=b)
    out = Memory("out", u32, builder=b)
    exchange = exchange_of(b, b.index(7), MACHINE)
    b.store(exchange.word(given, b.index(0)), out, b.thread)
    stage = b.finish(2, [(given, Binding("operand")), (out, Binding("result"))])
    memory, result = room(16), room(256)
    memory[:] = 0
    with pytest.raises(InternalError, match="all blocks wait for what none of them writes"):
        compile(stage)(stage.groups, [(x.ctypes.data, x.nbytes) for x in (memory, result)])


def test_blocks_hand_each_other_words_whatever_their_order():
    b = MACHINE.builder(64)
    b.together = True
    words = Memory("words", u32, vector=2, builder=b)
    out = Memory("out", u32, builder=b)
    exchange = exchange_of(b, b.index(9), MACHINE)
    # A ring: the last block's word is what the first one waits for.
    total = b.variable(b.index(0), "total")
    with b.if_(b.group == 2):
        exchange.put(b.let(b.local + 1), words, b.let(b.local))
    with b.if_(b.group != 2):
        before = exchange.word(words, b.let(b.local + (1 - b.group) * 64))
        total.set(before)
        exchange.put(b.let(before + 100), words, b.let(b.local + (2 - b.group) * 64))
    out[b.thread] = total
    stage = b.finish(3, [(words, Binding("operand")), (out, Binding("result"))])
    memory, result = room(8 * 64 * 4), room(4 * 64 * 3)
    memory[:] = 0
    compile(stage)(stage.groups, [(x.ctypes.data, x.nbytes) for x in (memory, result)])
    found = result.view(np.uint32).reshape(3, 64)
    np.testing.assert_array_equal(found[1], np.arange(64) + 1)
    np.testing.assert_array_equal(found[0], np.arange(64) + 101)


def test_a_device_that_does_not_hold_all_blocks_runs_kernel_by_kernel(monkeypatch):
    context = type(opened(DEVICE).context)
    kernel = context.load.__globals__["EmulatedKernel"]
    monkeypatch.setattr(kernel, "residents", lambda self, stage: 1)
    decoder, precision = CASES["one token"]
    found, _, notes = filled(decoder.graph(), DEVICE, precision, steps=1)
    wanted, _, _ = filled(decoder.graph(), "cpu", precision, steps=1)
    assert "holds 1 of its 3 blocks at a time" in notes[0]
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=1e-3)


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_a_chain_assembles_and_its_values_stay_in_registers(arch):
    machine = Machine.without_card(arch)
    chain = chain_of(lower_for(DEVICE, Decoder(batch=2).graph()), machine.processors)
    told = assembled(to_ptx(write_chain(chain, machine).ir, arch), arch)
    # What is kept around the call of a function that hardly ever runs: angles far from 0.
    assert told["spills"] <= 32
    assert told["losses"] == 0
    assert told["registers"] <= 168
