"""Kernels of complex numbers on the CPU.

Element-wise ones go by vectors of real and of imaginary parts (``maps``); all others are real kernels over pairs, one after the other (``template``).
"""
