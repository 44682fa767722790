"""Pooling and its gradients on the CPU.

``template`` chooses, ``mean_gradient`` and ``max_gradient`` are the gradients, ``plan`` is the geometry in vectors.
"""
