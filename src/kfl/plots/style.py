"""What all plots share: colors, a plain pair of axes, labels that do not overlap, and files that can be reproduced."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zlib import crc32

import numpy as np

from kfl.algorithms import ALGORITHMS
from kfl.core.errors import DataError, MissingExtraError
from kfl.core.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DPI = 160
LONGEST_TITLE = 120
"""Letters of a title that are shown."""
COLOR_TRIES = 64
"""How often another color is looked for before two lines of a plot share one."""


class Style(NamedTuple):
    """How a line is drawn."""

    color: str
    dashes: Any
    """A line style of Matplotlib: "-", or an offset and lengths of dashes and gaps in points."""
    width: float


GRID_COLOR = "#e3e6ea"
WIDTH = 1.7
"""Width of a line in points, unless the table says another."""
ALGORITHM_LINES: Mapping[str, tuple[str, tuple[float, ...], float]] = {
    "kfl": ("#0b3d91", (), 2.4),
    "shared-stem": ("#c1272d", (), 2.4),
    "local": ("#333333", (5, 2), WIDTH),
    "fedavg": ("#d55e00", (), 1.6),
    "fedrep": ("#00805a", (8, 2), WIDTH),
    "apfl": ("#b2478c", (4, 1, 1, 1, 1, 1), WIDTH),
    "fedkd": ("#b07d00", (3, 1.2), WIDTH),
    "fedproto": ("#3a9bd9", (), WIDTH),
    "fedtgp": ("#3a9bd9", (6, 2), WIDTH),
    "fedgh": ("#8e5bb5", (2, 1.2), WIDTH),
    "fd": ("#8a5a44", (4, 1.5), WIDTH),
    "fedmrl": ("#7b5ea7", (7, 1.5, 2, 1.5), WIDTH),
    "lg-fedavg": ("#7a6bb5", (7, 1.5, 2, 1.5), WIDTH),
    "self-knowledge": ("#6b7f94", (1, 1.2), 1.8),
    "fixed-knowledge": ("#957a52", (6, 1.5, 1, 1.5), 1.6),
}
"""The lines of the published figures: color, lengths of dashes and gaps in widths of the line (none: solid), width."""
_COLORS = ("#7f3c8d", "#11a579", "#e68310", "#008695", "#cf1c90", "#80602b", "#4b4b8f", "#a5313a")
_DASHES: tuple[tuple[float, ...], ...] = ((), (7, 2), (2, 1.5), (6, 1.5, 1.5, 1.5))


def style_of(name: str) -> Style:
    """Return the style of an algorithm: its line of the table, or one that follows from its name.

    Lines differ in dashes as well as in color, so that a plot can be read in grayscale.

    >>> style_of("local")
    Style(color='#333333', dashes=(0, (5, 2)), width=1.7)
    """
    found: dict[str, Style] = {}
    for known in ALGORITHMS if name in ALGORITHMS else ():  # of two names that lead to one line, the later has another
        tries = [_line(known), *(_line(f"{known} {number}") for number in range(COLOR_TRIES))]
        found[known] = next((line for line in tries if line not in found.values()), tries[0])
    return found.get(name, _line(name))


def _line(name: str) -> Style:
    """The line of the table, or that of a name's checksum."""
    if name in ALGORITHM_LINES:
        color, dashes, width = ALGORITHM_LINES[name]
    else:
        number, width = crc32(name.encode("utf-8", "surrogatepass")), WIDTH
        color, dashes = _COLORS[number % len(_COLORS)], _DASHES[number // len(_COLORS) % len(_DASHES)]
    return Style(color, (0, dashes) if dashes else "-", width)


def styles_of(labels: Sequence[str]) -> dict[str, Style]:
    """The styles of lines in one plot: that of the algorithm where a label is one, and otherwise an unused color.

    >>> found = styles_of(["kfl", "v=0.01", "v=0.1"])
    >>> found["kfl"] == style_of("kfl"), len({style.color for style in found.values()})
    (True, 3)
    """
    found = {label: style_of(label) for label in labels if label in ALGORITHMS}
    for label in labels:
        if label in found:
            continue
        taken = {style.color for style in found.values()}
        tries = [style_of(label), *(style_of(f"{label} {number}") for number in range(COLOR_TRIES))]
        found[label] = next((style for style in tries if style.color not in taken), tries[0])
    return found


def new_figure(purpose: str, **options: Any) -> Figure:
    """An empty figure; a MissingExtraError that names the purpose where Matplotlib is not installed.

    Args:
        purpose: What needs Matplotlib, in words.
        **options: Those of `Figure`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise MissingExtraError("matplotlib", "plot", purpose) from problem
    return Figure(**options)


def save(figure: Figure, path: Path, *, tight: bool = False) -> Path:
    """Write a figure; the ending of `path` selects the format. The same figure gives the same bytes.

    Args:
        figure: What to write.
        path: The file.
        tight: Cut the margins.

    Returns:
        The path.
    """
    from matplotlib import rc_context

    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise DataError(f"{path} ends in .{kind}, but a plot can be written as png, pdf or svg.")
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    cut: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.1} if tight else {}
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "kfl"}):
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=undated, **cut)
    write_atomic(path, buffer.getvalue())
    return path


def plain_axes(axes: Axes, grid: Literal["both", "x", "none"] = "both") -> None:
    """Two spines and a faint grid behind the lines."""
    if grid != "none":
        axes.grid(axis=grid, color=GRID_COLOR, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def spread_out(wanted: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights at least `gap` apart, in the order of the wanted ones and as near to them as that allows.

    Labels that would overlap form a block around the mean of their wanted heights; blocks that meet become one.

    >>> {name: round(height, 2) for name, height in spread_out({"a": 0.5, "b": 0.5, "c": 0.9}, 0.1).items()}
    {'a': 0.45, 'b': 0.55, 'c': 0.9}
    """
    blocks: list[list[str]] = []
    for name in sorted(wanted, key=lambda name: wanted[name]):
        blocks.append([name])
        while len(blocks) > 1 and _bottom(blocks[-1], wanted, gap) < _bottom(blocks[-2], wanted, gap) + gap * len(
            blocks[-2]
        ):
            joined = blocks.pop()
            blocks[-1] += joined
    return {name: _bottom(block, wanted, gap) + gap * index for block in blocks for index, name in enumerate(block)}


def _bottom(block: Sequence[str], wanted: Mapping[str, float], gap: float) -> float:
    middle = float(np.mean([wanted[name] for name in block]))
    return middle - gap * (len(block) - 1) / 2
