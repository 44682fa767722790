"""NVIDIA's assembler of PTX, where its wheel is installed: it says what a card would say of our code, on any machine."""

import importlib.util
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def assembler():
    """Where it is; None where the wheel is not installed."""
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvcc")
    except ModuleNotFoundError:
        return None
    places = [] if found is None else found.submodule_search_locations or []
    files = [Path(place) / "bin" / "ptxas" for place in places]
    return next((file for file in files if file.exists()), None)


needs_ptxas = pytest.mark.skipif(
    assembler() is None, reason="pip install nvidia-cuda-nvcc-cu12, which is for Linux"
)


def assembled(text, arch):
    """What the assembler tells of a kernel: registers, bytes of the stack, of spills and of shared memory, and how often it says that speed is lost."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(text)
        told = subprocess.run(
            [assembler(), "-arch", arch, "-v", source, "-o", Path(folder, "kernel.cubin")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert told.returncode == 0, told.stderr
    # A warning would be of what it does otherwise than it was told.
    assert "warning" not in told.stderr.lower().replace("deprecated", ""), told.stderr
    patterns = {
        "registers": r"Used (\d+) registers",
        "stack": r"(\d+) bytes stack frame",
        "spills": r"(\d+) bytes spill stores",
        "shared": r"(\d+) bytes smem",
    }
    counts = {name: re.findall(pattern, told.stderr) for name, pattern in patterns.items()}
    told_of = {name: max(map(int, found), default=0) for name, found in counts.items()}
    # Products of warpgroups that wait for each other, or whose registers are moved about.
    return told_of | {"losses": len(re.findall(r"C75\d\d", told.stderr))}
