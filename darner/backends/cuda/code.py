"""LLVM IR to PTX, by llvmlite's target for NVIDIA GPUs: it runs on any machine.

>>> "ret;" in to_ptx("define ptx_kernel void @kernel() { ret void }", "sm_80")
True
"""

from __future__ import annotations

import threading
from functools import cache
from types import ModuleType

from ...graph.errors import DarnerError
from ...graph.forks import native_call
from ..base.llvm import Parsed, Passes, Target, binding, emitted, run_passes

PTX = {70: 70, 75: 70, 80: 70, 86: 71, 87: 74, 89: 78, 90: 80, 100: 86, 103: 88, 120: 87, 121: 88}
"""The PTX version that code of each architecture is written in: the first that knows it, or has what it is used for."""
OWN = {"sm_90a": 83}
"""The same where instructions that only one chip has ask for a later one."""
TRIPLE = "nvptx64-nvidia-cuda"


_own = threading.local()


class CodeError(DarnerError, ValueError):
    """IR that is not valid, or an architecture that is not known."""


def features_of(arch: str) -> str:
    """The features of a target that code of an architecture is compiled with.

    >>> features_of("sm_86"), features_of("sm_90a")
    ('+ptx71', '+ptx83')
    """
    number = int("".join(c for c in arch if c.isdigit()))
    if not arch.startswith("sm_") or number not in PTX:
        known = ", ".join(f"sm_{n}" for n in PTX)
        raise CodeError(f"'{arch}' is no architecture that code is made for: {known}")
    return f"+ptx{OWN.get(arch, PTX[number])}"


def to_ptx(module_text: str, arch: str) -> str:
    """The PTX of LLVM IR for an architecture: ``sm_80``, ``sm_90a``.

    Raises:
        CodeError: the IR is not valid, or the architecture is not known.
    """
    with native_call():
        return _compiled(module_text, _target(arch))


@cache
def _initialised() -> ModuleType:
    llvm = binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def _target(arch: str) -> Target:
    """The target of this thread."""
    found: dict[str, Target] = _own.__dict__
    if arch not in found:
        found[arch] = _new_target(arch)
    return found[arch]


def _new_target(arch: str) -> Target:
    llvm = _initialised()
    target = llvm.Target.from_triple(TRIPLE)
    found: Target = target.create_target_machine(cpu=arch, features=features_of(arch), opt=3)
    return found


def parsed(text: str) -> Parsed:
    """A module of LLVM, in a context of its own.

    Raises:
        CodeError: it is not valid.
    """
    llvm = _initialised()
    try:
        module: Parsed = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CodeError(
            f"LLVM rejects the module: {str(error).strip()}",
            hint="this is a fault of whatever made the IR",
        ) from None
    return module


def _compiled(text: str, machine: Target) -> str:
    llvm = _initialised()
    module = parsed(text)
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes: Passes = llvm.create_new_module_pass_manager()
    add_passes(passes)
    run_passes(passes, module, builder)
    return emitted(machine, module, text=True).decode()


def add_passes(passes: Passes) -> None:
    """The passes that code is worth: variables become registers, and instructions that amount to others are those.

    The target's own passes compute once what is computed twice, and ``ptxas`` does the rest: the whole pipeline takes twice as long and gives the same registers.
    """
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    # Or else the assembler waits for a warpgroup's products at the head of their loop (C7517).
    passes.add_simplify_cfg_pass()
