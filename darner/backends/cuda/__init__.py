"""NVIDIA's GPUs by their driver alone: kernels are LLVM IR, llvmlite makes PTX of it, and ctypes calls the driver.

    backend       the row of the registry
    opening       devices by name
    machine       what code depends on: architecture, limits
    stage         one launch of a kernel, as templates hand it over
    kernels       which template makes a spec's code
    printer       the SIMT builder over LLVM IR
    code          LLVM IR to PTX
    interface     what a program needs of a device
    contract      products of matrices on tensor cores, and of f32
    persistent    chains of small products as one kernel whose blocks stay
    instructions  what only NVIDIA's processors have, as inline PTX
    driver        the driver's calls: memory, streams, events, modules, launches, graphs
    emulator      a device in software with the same interface, for tests
    device        an opened device: memory, copies, kernels that are loaded once, and who waits for whom
    program       a plan on a device: one arena, and one graph a step
    inputs        inputs on their way to the device
    saved         kernels as bytes
    sharing       arrays of other libraries on the same device
    rates         what a device can do at best

Begin with ``backend``. Nothing is loaded before a device is asked for.
"""
