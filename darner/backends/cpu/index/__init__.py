"""Kernels that write by index on the CPU.

``scatter`` writes or adds slices, ``scatter_epilogue`` adds them and goes on element-wise (an embedding's gradient and its update), ``update`` replaces a block.
"""
