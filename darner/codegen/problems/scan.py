"""What a kernel of running sums, products, maxima or minima combines."""

from __future__ import annotations

NAMES = {
    "cumsum": ("sum", "add"),
    "cumprod": ("prod", "mul"),
    "cummax": ("max", "larger"),
    "cummin": ("min", "smaller"),
}
"""What each combines: the reduction whose neutral element it begins with, and the op."""
