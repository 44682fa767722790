"""Ops that only move elements.

``primitives`` has the few that backends know: reshape, transpose, broadcast, slice, pad, concat, flip, iota. ``shaping`` writes all views with them
(squeeze, tile, diagonals), ``joining`` what joins, cuts and extends tensors. Begin with ``primitives``.
"""
