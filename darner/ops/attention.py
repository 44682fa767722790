"""Attention in all its forms."""

from __future__ import annotations
