"""How the window of a convolution moves over an image, for all processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Pair = tuple[int, int]
"""Of rows and of columns."""


@dataclass(frozen=True)
class Window:
    """A window that moves over an image."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def outputs(self, size: Pair) -> Pair:
        """Height and width of the output for those of the image.

        >>> Window((3, 3), (2, 2), (1, 1), (1, 1)).outputs((32, 32))
        (16, 16)
        """
        sides = zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        rows, columns = ((length + 2 * p - d * (k - 1) - 1) // s + 1 for length, k, s, p, d in sides)
        return rows, columns

    def turned(self) -> Window | None:
        """The window over the output whose convolution is the input gradient; None where there is none."""
        sides = zip(self.kernel, self.padding, self.dilation, strict=True)
        rows, columns = (d * (k - 1) - p for k, p, d in sides)
        if self.stride != (1, 1) or rows < 0 or columns < 0:
            return None
        return Window(self.kernel, (1, 1), (rows, columns), self.dilation)

    @property
    def is_point(self) -> bool:
        """Whether the windows of an image are the image."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)


def both_axes(value: Any, of_rows: int, lines: bool) -> Pair:
    """A setting of a layer, as PyTorch takes it, for rows and columns; a line is an image of one row.

    >>> both_axes(2, 1, lines=False), both_axes((2,), 1, lines=True)
    ((2, 2), (1, 2))
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    return (of_rows, values[0]) if lines else (values[0], values[-1])
