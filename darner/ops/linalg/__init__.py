"""Products and linear systems.

``contract`` has ``dot_general``, of which every product is made, and sliding windows. ``matrix`` and ``einsum`` are the ways to write a product; ``systems``
solves, inverts and factors. Begin with ``contract``.
"""
