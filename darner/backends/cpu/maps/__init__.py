"""Element-wise kernels on the CPU.

``transpose`` takes maps that read an operand across, ``template`` all others; ``concat`` cuts concatenations into pieces.
"""
