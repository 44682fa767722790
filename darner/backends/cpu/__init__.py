"""The CPU backend: LLVM IR made into native code, run by threads side by side.

Modules, in the order data passes through them:

    jit       LLVM IR to object code for a machine, and object code to callable addresses
    cache     object code on disk, so that a second start compiles nothing
    threads   a team of parked workers that runs one native function on every thread

Nothing here is imported with darner itself, and llvmlite only when code is first compiled.
"""
