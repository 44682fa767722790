"""Sorting, argsort and top-k on the CPU.

``template`` chooses between ``networks`` (in registers) and ``memory`` (radix, merge and insertion).
"""
