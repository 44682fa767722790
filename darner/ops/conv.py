"""Convolution and transposed convolution, and their derivatives."""

from __future__ import annotations
