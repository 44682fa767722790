"""Means, variances and norms, and the named reductions of the seeds."""

from __future__ import annotations
