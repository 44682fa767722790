"""``darner.inspect.recorder`` by its earlier name."""

from ..inspect.recorder import Recorder, profile

__all__ = ["Recorder", "profile"]
