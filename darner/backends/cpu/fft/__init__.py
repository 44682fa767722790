"""Fourier transforms on the CPU.

Vectors are always transforms side by side: ``lanes`` makes as many transforms as a vector has lanes, by passes of butterflies without a transpose, or as a
convolution where the length has a large prime factor. ``template`` chooses how lanes are filled: with neighbours behind the axis (``columns``), with rows of a batch
(``rows``), or with parts of one long transform (``split``), which is cut in two factors and transposed between them. ``halves`` has what real signals need before or after.
Begin with ``template``.
"""
