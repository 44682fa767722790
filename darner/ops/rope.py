"""Rotary position embeddings."""

from __future__ import annotations
