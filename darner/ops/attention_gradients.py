"""Explicit derivatives of attention."""

from __future__ import annotations
