"""What a pooling kernel computes: the windows along each axis of a plane."""

from __future__ import annotations


class Axis:
    """The windows along one axis.

    Attributes:
        size: elements of the plane.
        count: windows.
        window: elements of a window.
        stride: from one window to the next.
        dilation: from one element of a window to the next.
        low: padding before the plane.
        high: padding behind it that counts as part of the plane.
    """

    def __init__(  # many parameters: an axis of pooling, as its record says it
        self, size: int, count: int, window: int, stride: int, dilation: int, low: int, high: int
    ) -> None:
        self.size, self.count, self.window = size, count, window
        self.stride, self.dilation, self.low, self.high = stride, dilation, low, high

    @property
    def reach(self) -> int:
        """From the first element that any window sees to behind the last, at the least the whole plane."""
        windows = (self.count - 1) * self.stride + (self.window - 1) * self.dilation + 1
        return max(windows, self.low + self.size)

    def sticks_out(self, tap: int) -> bool:
        """Whether an element of some window lies outside the plane."""
        first = tap * self.dilation - self.low
        return first < 0 or first + (self.count - 1) * self.stride >= self.size

    def held(self, padding_counts: bool) -> list[int]:
        """How many elements each window is a mean of."""
        low, high = (self.low, self.high) if padding_counts else (0, 0)
        starts = [number * self.stride - self.low for number in range(self.count)]
        return [min(at + self.window, self.size + high) - max(at, -low) for at in starts]
