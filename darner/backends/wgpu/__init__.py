"""Any GPU through ``wgpu`` (Vulkan, Metal, DX12): WGSL rendered from the kernel specs that every backend has.

Kernels are written by one template per family (``codegen.simt.families``), each a few dispatches of a ``Dispatch``. What a kernel does to single elements is the same
code as on the CPU: element-wise ops are written once, against instructions (``darner.codegen.ir.math``), and ``writer.Writer`` writes these instructions as WGSL.
"""
