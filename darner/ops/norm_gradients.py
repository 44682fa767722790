"""Explicit derivatives of the normalisations."""

from __future__ import annotations
