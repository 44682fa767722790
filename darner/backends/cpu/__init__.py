"""The CPU backend: LLVM IR made into native code, run by threads side by side.

    backend   the row of the registry: all that others know of this device
    kernels   which family's template writes each kernel, and the code of a plan
    emit      what every template is written against
    runtime   from LLVM IR to machine code, threads and programs

Each other folder is a family of kernels; its ``__init__`` says which forms there are and what chooses. Nothing here is imported with darner itself, and llvmlite only when code is first compiled.
"""
