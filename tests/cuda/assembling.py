"""PTX through NVIDIA's assembler: what becomes of code on a card, without one."""

import importlib.util
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which

import pytest

from darner.backends.cuda.code import to_ptx


@cache
def assembler():
    """Where ``ptxas`` is: the wheel ``nvidia-cuda-nvcc``'s, or the one of a toolkit."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return str(path)
    return which("ptxas")


needs_ptxas = pytest.mark.skipif(assembler() is None, reason="no ptxas: nvidia-cuda-nvcc has it")


@dataclass(frozen=True)
class Assembled:
    """What the assembler says of a kernel: registers of a thread, bytes of spills, and its remarks."""

    registers: int
    spills: int
    remarks: tuple[str, ...]


def assembled(ir, arch, folder):
    """A kernel's LLVM IR for an architecture, assembled."""
    source = Path(folder) / "kernel.ptx"
    source.write_text(to_ptx(ir, arch), encoding="utf-8")
    command = [assembler(), "-arch", arch, "-v", str(source), "-o", str(source.with_suffix(".o"))]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    text = found.stdout + found.stderr
    assert found.returncode == 0, text
    spills = sum(map(int, re.findall(r"(\d+) bytes spill", text)))
    registers = int(re.search(r"Used (\d+) registers", text)[1])
    # C7510 to C7519: products that wait for each other, or registers moved about.
    remarks = tuple(line for line in text.splitlines() if re.search(r"C75\d\d|warning", line))
    return Assembled(registers, spills, remarks)
