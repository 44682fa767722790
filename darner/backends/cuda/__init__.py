"""NVIDIA GPUs by their driver alone: kernels are LLVM IR, llvmlite makes PTX of them, and ctypes calls the driver.

    backend     the row of the registry, and the sessions' entry
    machine     what code depends on: architecture, limits
    stage       one launch of a kernel, as templates hand it over
    kernels     which template makes a spec's code
    driver      the driver's calls: memory, streams, events, modules, launches, graphs
    emulator    a device in software with the same calls, for tests
    device      an opened device: memory, copies, and kernels that are loaded once
    program     a plan on a device: one arena, and one graph a step

Begin with ``backend``. Nothing is loaded before a device is asked for.
"""
