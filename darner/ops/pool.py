"""Pooling and resampling."""

from __future__ import annotations
