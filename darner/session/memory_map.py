"""``darner.inspect.memory_map`` by its earlier name."""

from ..inspect.memory_map import MemoryMap, memory_map

__all__ = ["MemoryMap", "memory_map"]
