"""Reductions over axes.

``reduce`` has the primitives: sums, products, extremes, their indices, running forms and linear recurrences. ``statistics`` makes means, variances and
norms of them. Begin with ``reduce``.
"""
