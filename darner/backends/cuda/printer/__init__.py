"""The SIMT builder as LLVM IR: what every template of ``codegen.simt`` becomes code for NVIDIA GPUs with.

    instructions   the scalar instructions, which elementary functions and casts are written with
    lanes          what a lane does otherwise on a card
    values         operators of values, vectors, bits
    blocks         variables, blocks, loops and functions
    memory         buffers, shared memory, tables and arrays
    printer        the kernel: threads, barriers, what is bound

A value is computed where it is written down. Begin with ``values``. The emulated device has a printer derived from this one (``emulator.printer``).
"""

from .printer import Printer

__all__ = ["Printer"]
