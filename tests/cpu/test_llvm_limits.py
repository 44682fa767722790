"""What LLVM would end the process for is an error before it is asked."""

from dataclasses import replace

import pytest

from darner import Graph
from darner.backends.cpu.runtime.jit import CompileError, compile_module, host, load_object
from darner.backends.cpu.runtime.native import native_of
from darner.lower.lower import lower

SAME = "define i64 @same(i64 %x) { ret i64 %x }"


@pytest.mark.skipif(host().architecture != "x86_64", reason="x86")
def test_a_processor_that_llvm_does_not_know_does_not_end_the_process(capfd):
    assert compile_module(SAME, cpu="nonsense", features="+nonsense")


def test_object_code_of_another_processor_is_refused():
    others = {"x86_64": "aarch64-unknown-linux-gnu", "aarch64": "x86_64-unknown-linux-gnu"}
    code = compile_module(SAME, triple=others[host().architecture])
    with pytest.raises(CompileError, match=r"object code for .* cannot be loaded on"):
        load_object(code)
    assert load_object(compile_module(SAME)).address("same")


@pytest.mark.parametrize("triple", ["arm64-apple-darwin", "x86_64-pc-windows-msvc"])
def test_object_code_of_other_systems_names_its_processor(triple):
    from darner.backends.cpu.runtime.jit import _object_architecture, architecture

    assert _object_architecture(compile_module(SAME, triple=triple)) == architecture(triple)
    assert _object_architecture(b"garbage") is None


def test_vectors_that_a_processor_does_not_have_are_refused():
    g = Graph()
    g.set_outputs([g.input("x", (100,)).exp()])
    machine = replace(host(), vector_bytes=64, features="+avx2,-avx512f")
    with pytest.raises(CompileError, match="without AVX-512 has no vectors of 64 bytes"):
        native_of(lower(g, target="cpu"), machine)
