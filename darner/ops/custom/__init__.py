"""Ops that a program brings along.

``functions`` makes an op of a graph, with derivatives of its own: ``bodies`` says what such graphs must be, ``samples`` are typical ones. ``registered`` has ops that
are NumPy functions known by name. ``recompute`` is the op that keeps what is computed again apart from what was computed first. Begin with ``functions``.
"""
