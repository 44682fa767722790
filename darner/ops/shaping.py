"""Shapes built from the shape primitives: squeeze, stack, split, indexing, fills and masks."""

from __future__ import annotations
