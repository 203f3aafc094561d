"""Knowledge (class prototypes): one point per class, in the two directions in which they move and differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kfl.report.figures import COLORS, Chart, FloatArray, axis, dots, figure, line, numbers
from kfl.report.run_data import RunData
from kfl.report.text import percent


@dataclass(frozen=True, eq=False)
class Flat:
    """Knowledge of all kept rounds in two dimensions; the axes are the same for all of them."""

    rounds: list[int]
    position: FloatArray
    """(rounds, classes, 2); NaN where a class was not known yet."""
    explained: tuple[float, float]
    """Share of the variance over all rounds and classes that each axis holds."""


def flatten(run: RunData) -> Flat | None:
    """Return the principal components of the knowledge over all kept rounds and classes; None without knowledge."""
    seen = [(s.round, s.knowledge, s.known) for s in run.trail if s.knowledge is not None and s.known is not None]
    seen = [one for one in seen if one[1].shape == seen[0][1].shape and one[2].any()]
    if not seen:
        return None
    stack, known = np.stack([one[1] for one in seen]), np.stack([one[2] for one in seen])
    points = stack[known]
    center = points.mean(axis=0)
    _, strength, directions = np.linalg.svd(points - center, full_matrices=False)
    axes = np.zeros((stack.shape[2], 2))
    axes[:, : min(2, len(directions))] = directions[:2].T
    position = np.where(known[:, :, None], (stack - center) @ axes, np.nan)
    total = float((strength**2).sum())
    # A direction that does not exist holds nothing; points that all coincide are held by the first.
    first, second = (float(one) ** 2 / total for one in (*strength[:2], 0.0)[:2]) if total > 0 else (1.0, 0.0)
    return Flat([one[0] for one in seen], position, (first, second))


def knowledge_chart(run: RunData) -> Chart | None:
    """A point per class with its path, and a slider over the rounds."""
    flat = flatten(run)
    if flat is None:
        return None
    last, classes = flat.position[-1], flat.position.shape[1]
    names = run.class_names if len(run.class_names) == classes else [str(index) for index in range(classes)]
    inks = [COLORS[index % len(COLORS)] for index in range(classes)]
    hidden = {"hoverinfo": "skip", "showlegend": False}
    paths = line("path", [], [], "@muted", line={"width": 1.2}, opacity=0.7, **hidden)
    points = dots(
        numbers(last[:, 0], 4),
        numbers(last[:, 1], 4),
        {"size": 22, "color": inks, "line": {"color": "@panel", "width": 1}},
        mode="markers+text",
        name="knowledge of a class",
        text=names,
        textfont={"color": "@panel", "size": 12},
        customdata=names,
        meta={"points": "class"},
        hovertemplate="class %{customdata}<extra></extra>",
        showlegend=False,
    )
    view = figure(
        [paths, points],
        axis(_direction("first", flat.explained[0]), range=_range(flat.position[:, :, 0])),
        axis(_direction("second", flat.explained[1]), range=_range(flat.position[:, :, 1])),
        hovermode="closest",
    )
    frames = {
        "kind": "path",
        "labels": [f"round {number + 1}" for number in flat.rounds],
        "points": 1,
        "paths": 0,
        "tail": _tail(flat.position),
        "names": names,
        "x": [numbers(flat.position[:, index, 0], 4) for index in range(classes)],
        "y": [numbers(flat.position[:, index, 1], 4) for index in range(classes)],
    }
    late, held = int(np.isfinite(last[:, 0]).sum()), sum(flat.explained)
    outside = f"; {percent(1 - held, 0)} lie outside it, so near points need not be near" if held < 0.8 else ""
    summary = (
        f"Knowledge (class prototypes) of the server: a point for each of {classes} classes, {late} of them known at "
        f"the end. The plane shows {percent(held, 0)} of the variance over all rounds{outside}. Of points that "
        "overlap, one has its number."
    )
    title = "Knowledge in two dimensions"
    return Chart("knowledge", title, summary, {"": view}, tall=True, frames=frames)


def _direction(which: str, share: float) -> str:
    return f"{which} principal direction, {percent(share, 0)} of the variance"


def _tail(position: FloatArray) -> int:
    """Steps of its path that a class shows: all, or three where it moves so far that all would be a tangle."""
    steps = np.linalg.norm(np.diff(position, axis=0), axis=2)
    steps = steps[np.isfinite(steps)]
    spread = float(np.linalg.norm(np.nanmax(position, axis=(0, 1)) - np.nanmin(position, axis=(0, 1))))
    return 3 if steps.size and float(np.median(steps)) > 0.04 * spread else len(position)


def _range(values: FloatArray) -> list[Any]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = 0.1 * (high - low) or 1.0
    return numbers([low - room, high + room], 4)
