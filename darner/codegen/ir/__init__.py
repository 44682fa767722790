"""Scalar and vector code through a builder with llvmlite's instructions, which GPU printers have too.

``index`` is integer arithmetic on indices, ``lanes`` arithmetic on values, ``registers`` how each element type is loaded, combined and stored, ``math`` every
element-wise primitive. ``elementary``, ``remainders``, ``tables`` and ``halves`` are what they are made of.
"""
