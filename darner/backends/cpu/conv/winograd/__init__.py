"""Winograd's form of 3x3 convolutions with stride 1.

``plan`` decides when and how, ``source`` transforms images, ``forward`` and ``weight_gradient`` are the kernels, ``transforms`` the functions they share.
"""
