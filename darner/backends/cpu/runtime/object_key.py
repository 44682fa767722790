"""The name under which object code is kept."""

from __future__ import annotations

import hashlib
from typing import Any

from ...._version import __version__
from .jit import Machine


def object_key(module: Any, machine: Machine, *, passes: bool = False) -> str:
    """The name under which the object of a module is kept: 64 hexadecimal digits.

    It covers all that the bytes depend on: the text, the machine they are for, whether ``passes`` are run, and the versions of LLVM, llvmlite and darner.
    """
    import llvmlite
    import llvmlite.binding as llvm

    versions = [__version__, llvmlite.__version__, repr(llvm.llvm_version_info)]
    digest = hashlib.sha256()
    for part in (*versions, machine.key(), repr(passes), str(module)):
        data = part.encode()
        # Lengths keep the parts apart: no two lists of parts give the same bytes.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
