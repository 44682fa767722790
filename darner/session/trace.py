"""``darner.inspect.trace`` by its earlier name."""

from ..inspect.trace import Trace, trace_dispatches

__all__ = ["Trace", "trace_dispatches"]
