"""Softmax, its logarithm, and their kin."""

from __future__ import annotations
