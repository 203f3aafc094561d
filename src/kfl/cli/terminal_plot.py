"""Line plots made of characters: for terminals and logs, without colors and without Matplotlib.

Lines are told apart by their marks, and named where they end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MARKS = "●■▲◆○□△◇"
"""Marks of lines, in their order; more lines than marks begin again."""
LABEL_WIDTH = 24
"""Columns to the right of a plot, for the names of its lines."""


@dataclass(frozen=True)
class PlotLine:
    """One line of a plot: its name and its points, from left to right."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def plot(lines: Sequence[PlotLine], x_label: str, y_label: str, width: int = 80, height: int = 15) -> list[str]:
    """Lines over one pair of axes, `width` characters wide: marks at points, dots between, names at the ends.

    A line with a single point is that point. Points that fall together show the line that comes first.

    >>> rise = PlotLine("rises", [0, 1, 2], [0, 50, 100])
    >>> print("\\n".join(plot([rise, PlotLine("stays", [0, 2], [20, 20])], "joules", "%", 48, 6)))
    %
      100 ┤              ··● ● rises
          │           ···
       50 ┤       ·●··
          │    ···
          │■···············■ ■ stays
        0 ┤●·
          └┬───┬───┬───┬───┬
           0  0.5  1  1.5  2 joules
    """
    drawn = [line for line in lines if len(line.x)]
    if not drawn:
        return []
    height = max(height, len(drawn))
    low, high, y_ticks = _ticks([y for line in drawn for y in line.y], height // 3)
    start, end, x_ticks = _ticks([0.0, *(x for line in drawn for x in line.x)], 6)
    margin = max(len(_number(tick)) for tick in y_ticks) + 2
    columns = max(width - margin - 2 - LABEL_WIDTH, 8)

    def place(x: float, y: float) -> tuple[int, int]:
        across = round((x - start) / (end - start) * (columns - 1))
        return across, round((high - y) / (high - low) * (height - 1))

    canvas = [[" "] * columns for _ in range(height)]
    ends: list[int] = []
    for number, line in reversed(list(enumerate(drawn))):  # the first line is drawn last, on top
        points = [place(x, y) for x, y in zip(line.x, line.y, strict=True)]
        for (x0, y0), (x1, y1) in pairwise(points):
            for step in range(1, steps := max(abs(x1 - x0), abs(y1 - y0))):
                row, column = y0 + round((y1 - y0) * step / steps), x0 + round((x1 - x0) * step / steps)
                if canvas[row][column] == " ":
                    canvas[row][column] = "·"
        for column, row in points:
            canvas[row][column] = MARKS[number % len(MARKS)]
        ends.insert(0, points[-1][1])
    names = [""] * height
    for number, row in enumerate(_spread(ends, height)):
        names[row] = f" {MARKS[number % len(MARKS)]} {drawn[number].name}"[:LABEL_WIDTH]
    ticks = {place(start, tick)[1]: _number(tick) for tick in y_ticks}
    rows = [
        f"{ticks.get(row, ''):>{margin}} {'┤' if row in ticks else '│'}{''.join(canvas[row])}{names[row]}".rstrip()
        for row in range(height)
    ]
    return [y_label, *rows, *_below(margin, columns, {place(tick, low)[0]: _number(tick) for tick in x_ticks}, x_label)]


def _below(margin: int, columns: int, ticks: Mapping[int, str], label: str) -> list[str]:
    """The horizontal axis, its numbers and its label."""
    axis = "".join("┬" if column in ticks else "─" for column in range(columns))
    numbers = ""
    for column, text in ticks.items():
        numbers = f"{numbers:<{max(column - len(text) // 2, 0)}}{text}"
    return [f"{'':>{margin}} └{axis}", f"{'':>{margin}}  {numbers} {label}"]


def _ticks(values: Sequence[float], most: int) -> tuple[float, float, list[float]]:
    """Round ends of an axis that holds the values, and at most about `most` steps between them.

    >>> _ticks([3.0, 4.3], 5)
    (3.0, 4.5, [3.0, 3.5, 4.0, 4.5])
    """
    low, high = min(values), max(values)
    if not low < high:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / max(most, 2)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(size * scale for size in (1, 2, 5, 10) if size * scale >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [index * step for index in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _spread(rows: Sequence[int], height: int) -> list[int]:
    """A row of its own for each name, near where its line ends, in the order in which the lines end.

    >>> _spread([3, 3, 0], 5), _spread([4, 4, 4], 5)
    ([3, 4, 0], [2, 3, 4])
    """
    order = sorted(range(len(rows)), key=lambda index: rows[index])
    found = [0] * len(rows)
    free = 0
    for index in order:
        found[index] = free = max(rows[index], free)
        free += 1
    limit = height - 1
    for index in reversed(order):
        found[index] = limit = min(found[index], limit)
        limit -= 1
    return found
