"""How much memory a session takes."""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTE = 1e6


@dataclass(frozen=True)
class MemorySummary:
    """A snapshot of a session's memory.

    Attributes:
        total_buffer_bytes: bytes of all buffers together.
        adam_state_bytes: bytes of Adam's moments among them; 0 with another optimizer.
        num_buffers: parameters, states, inputs, constants and arenas, each of which is one piece of memory.
        largest_buffer_bytes: the size of the largest.

    >>> print(MemorySummary(12_300_000, 8_200_000, 4, 4_100_000))
    4 buffers, 12.3 MB total (8.2 MB adam state), largest 4.1 MB
    """

    total_buffer_bytes: int
    adam_state_bytes: int
    num_buffers: int
    largest_buffer_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num_buffers} buffers, {self.total_buffer_bytes / MEGABYTE:.1f} MB total "
            f"({self.adam_state_bytes / MEGABYTE:.1f} MB adam state), "
            f"largest {self.largest_buffer_bytes / MEGABYTE:.1f} MB"
        )
