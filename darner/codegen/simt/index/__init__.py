"""Kernels that write by index on a GPU: ``scatter``, and ``update`` for blocks."""
