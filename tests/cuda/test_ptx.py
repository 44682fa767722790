"""PTX of every family of kernels, for every architecture: LLVM makes it anywhere, and NVIDIA's assembler takes it."""

import re

import pytest

from darner.backends.cuda.code import CodeError, to_ptx
from darner.codegen.simt.families import TEMPLATES
from tests.cuda.families import ALL, FAMILIES, reached, stages
from tests.cuda.ptxas import assembled, needs_ptxas

ARCHS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
OLDEST, MIDDLE = "sm_70", "sm_90a"
ONCE = [names[0] for names in FAMILIES.values()]


def code(name, arch, dtype="f32"):
    """The PTX of an op's kernels."""
    return [to_ptx(stage.ir, arch) for stage in stages(name, arch, dtype)]


def test_every_template_is_among_the_families():
    # Other loops than those by elements are launches of other families; what is transposed is no op's first sample.
    assert {template.name for template in TEMPLATES} - reached() <= {"loops", "turned"}


@pytest.mark.parametrize("arch", [OLDEST, MIDDLE])
@pytest.mark.parametrize("name", ALL)
def test_code_is_for_its_architecture_and_calls_no_library(name, arch):
    for text in code(name, arch):
        assert f".target {arch}" in text
        assert ".extern" not in text
        # Quotients and roots are refined approximations of inverses of normal numbers; nothing else is less than exact, or takes denormal numbers for 0.
        for line in text.splitlines():
            inverse = "\trcp.approx.ftz.f32" in line or "\trsqrt.approx.ftz.f32" in line
            assert inverse or not (".approx" in line or ".ftz" in line)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch not in (OLDEST, MIDDLE)])
@pytest.mark.parametrize("name", ONCE)
def test_code_is_for_other_architectures_too(name, arch):
    for text in code(name, arch):
        assert f".target {arch}" in text
        assert ".extern" not in text


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("name", ["softmax", "matmul", "top_k", "cos"])
def test_code_is_for_other_element_types_too(name, dtype):
    for text in code(name, MIDDLE, dtype):
        assert ".extern" not in text


@needs_ptxas
@pytest.mark.parametrize("name", ONCE)
def test_the_assembler_takes_the_code_and_spills_nothing(name):
    for text in code(name, MIDDLE):
        assert assembled(text, MIDDLE)["spills"] == 0


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch != MIDDLE])
@pytest.mark.parametrize("name", ONCE)
def test_the_assembler_takes_the_code_for_every_architecture(name, arch):
    for text in code(name, arch):
        assert assembled(text, arch)["spills"] == 0


# --------------------------------------------------------------------------- arithmetic is what was written


def test_products_and_sums_are_fused_only_where_that_is_asked_for():
    (text,) = [to_ptx(body("fadd", "fmul"), MIDDLE)]
    assert "mul.rn.f32" in text
    assert "add.rn.f32" in text
    assert "fma" not in text


@pytest.mark.parametrize(
    ("instruction", "kind", "expected"),
    [
        ("fdiv float %x, %y", "float", "div.rn.f32"),
        ("call float @llvm.sqrt.f32(float %x)", "float", "sqrt.rn.f32"),
        ("call float @llvm.fma.f32(float %x, float %y, float %y)", "float", "fma.rn.f32"),
        ("call float @llvm.roundeven.f32(float %x)", "float", "cvt.rni.f32.f32"),
        ("fdiv double %x, %y", "double", "div.rn.f64"),
    ],
)
def test_operations_round_as_ieee_754_says(instruction, kind, expected):
    assert expected in to_ptx(single(instruction, kind), OLDEST)


def test_bad_code_and_unknown_architectures_are_told_of():
    with pytest.raises(CodeError, match="LLVM rejects the module"):
        to_ptx("define void @f( {", "sm_80")
    with pytest.raises(CodeError, match="no architecture"):
        to_ptx("define void @f() { ret void }", "sm_35")


def test_threads_and_parameters_are_as_the_launch_says():
    (stage,) = stages("softmax")
    (text,) = code("softmax", MIDDLE)
    assert f".maxntid {stage.threads}" in text
    assert len(re.findall(r"\.param \.u64 \.ptr \.global \.align 16", text)) == len(stage.bindings)


@pytest.mark.parametrize("name", ALL)
def test_what_starts_early_waits_before_any_thread_reads_or_writes_memory(name):
    for stage in stages(name):
        assert stage.early
        text = to_ptx(stage.ir, MIDDLE)
        _, code_ = text.split(".visible .entry")
        before, wait, _ = code_.partition("griddepcontrol.wait")
        assert wait
        # No branch, so that every thread comes here; parameters are no memory that launches write.
        assert not re.search(r"\bbra\b|\bret\b|\.global\.|\bcp\.|\batom\b|\bred\b|\bcall", before)


@pytest.mark.parametrize("arch", [OLDEST, "sm_86"])
def test_older_cards_have_one_launch_after_the_other(arch):
    (stage,) = stages("softmax", arch)
    assert not stage.early
    assert "griddepcontrol" not in to_ptx(stage.ir, arch)


def single(instruction, kind):
    """A kernel of one instruction on two numbers."""
    function = re.search(r"@(llvm[\w.]+)\((.*)\)", instruction)
    declared = ""
    if function:
        declared = f"declare {kind} @{function[1]}({', '.join([kind] * function[2].count(kind))})"
    return f"""{declared}
define ptx_kernel void @kernel(ptr addrspace(1) %p) {{
  %q = getelementptr {kind}, ptr addrspace(1) %p, i32 1
  %x = load {kind}, ptr addrspace(1) %p
  %y = load {kind}, ptr addrspace(1) %q
  %z = {instruction}
  store {kind} %z, ptr addrspace(1) %p
  ret void
}}"""


def body(*names):
    """A kernel that the printer wrote: a product and a sum."""
    from darner import Graph
    from darner.backends.cuda.machine import Machine
    from darner.codegen.simt.dispatch import Dispatch
    from darner.graph.dtypes import f32
    from darner.lower.plan import Spec

    dispatch = Dispatch(Spec("map", Graph()), Machine.without_card(MIDDLE))
    x, b = dispatch.scratch(0, 256, f32), dispatch.builder
    x[b.thread] = x[b.thread] * x[b.thread + 1] + x[b.thread + 2]
    return dispatch.finish(1).ir
