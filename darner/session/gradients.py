"""``darner.inspect.gradients`` by its earlier name."""

from ..inspect.gradients import GradientSummary, gradient_summary

__all__ = ["GradientSummary", "gradient_summary"]
