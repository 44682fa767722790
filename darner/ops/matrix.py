"""Matrix products, einsum, linear layers, low-rank adapters, solves."""

from __future__ import annotations
