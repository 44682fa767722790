"""Activations, gated units, and their explicit derivatives."""

from __future__ import annotations
