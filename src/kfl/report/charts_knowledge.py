"""The knowledge itself: one point per class, seen in the two directions in which it moves and differs most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.report.chart import COLOURS, Chart, FloatArray, axis, dots, figure, line, numbers, table
from kfl.report.words import percent
from kfl.runfolder import RunData


@dataclass(frozen=True, eq=False)
class Flat:
    """Knowledge of all kept rounds in two dimensions; the axes are the same for all of them."""

    rounds: list[int]
    position: FloatArray
    """(rounds, classes, 2); NaN where a class was not known yet."""
    explained: tuple[float, float]
    """Share of the variance over all rounds and classes that each axis holds."""
    moved: FloatArray
    """Mean distance a known class moved since the kept round before; NaN for the first."""
    apart: FloatArray
    """Mean distance between two known classes."""
    nearest: FloatArray
    """Smallest distance between two known classes."""


def flatten(run: RunData) -> Flat | None:
    """Principal components of the knowledge over all kept rounds and classes; None without knowledge."""
    seen = [(s.round, s.knowledge, s.known) for s in run.trail if s.knowledge is not None and s.known is not None]
    seen = [one for one in seen if one[1].shape == seen[0][1].shape and one[2].any()]
    if not seen:
        return None
    stack, known = np.stack([one[1] for one in seen]), np.stack([one[2] for one in seen])
    points = stack[known]
    centre = points.mean(axis=0)
    _, strength, directions = np.linalg.svd(points - centre, full_matrices=False)
    axes = np.zeros((stack.shape[2], 2))
    axes[:, : min(2, len(directions))] = directions[:2].T
    total = float((strength**2).sum())
    position = np.where(known[:, :, None], (stack - centre) @ axes, np.nan)
    return Flat(
        rounds=[one[0] for one in seen],
        position=position,
        explained=_shares(strength, total),
        moved=_moved(stack, known),
        apart=np.array([_apart(rows[mask], np.mean) for rows, mask in zip(stack, known, strict=True)]),
        nearest=np.array([_apart(rows[mask], np.min) for rows, mask in zip(stack, known, strict=True)]),
    )


def _shares(strength: FloatArray, total: float) -> tuple[float, float]:
    """What the first two directions hold of all; one that does not exist holds nothing."""
    if not total > 0:
        return 1.0, 0.0
    first, second = (float(one) ** 2 / total for one in (*strength[:2], 0.0)[:2])
    return first, second


def _moved(stack: FloatArray, known: NDArray[np.bool_]) -> FloatArray:
    found = [np.nan]
    for index in range(1, len(stack)):
        both = known[index] & known[index - 1]
        step = np.linalg.norm(stack[index] - stack[index - 1], axis=1)[both]
        found.append(float(step.mean()) if step.size else np.nan)
    return np.array(found)


def _apart(rows: FloatArray, how: Any) -> float:
    if len(rows) < 2:
        return float("nan")
    first, second = np.triu_indices(len(rows), 1)
    return float(how(np.linalg.norm(rows[first] - rows[second], axis=1)))


def knowledge_chart(run: RunData, prefix: str) -> Chart | None:
    """A point per class with the way it came, and a slider over the rounds."""
    flat = flatten(run)
    if flat is None:
        return None
    classes = flat.position.shape[1]
    last = flat.position[-1]
    inks = [COLOURS[c % len(COLOURS)] for c in range(classes)]
    hidden = {"hoverinfo": "skip", "showlegend": False}
    paths = line("the way there", [], [], "@muted", line={"width": 1.2}, opacity=0.7, **hidden)
    points = dots(
        numbers(last[:, 0], 4),
        numbers(last[:, 1], 4),
        {"size": 22, "color": inks, "line": {"color": "@panel", "width": 1}},
        mode="markers+text",
        name="knowledge of a class",
        text=[str(c) for c in range(classes)],
        textfont={"color": "@panel", "size": 12},
        customdata=[str(c) for c in range(classes)],
        hovertemplate="class %{customdata}<extra></extra>",
        showlegend=False,
    )
    view = figure(
        [paths, points],
        axis(_named("first", flat.explained[0]), range=_range(flat.position[:, :, 0])),
        axis(_named("second", flat.explained[1]), range=_range(flat.position[:, :, 1])),
        hovermode="closest",
    )
    frames = {
        "kind": "path",
        "labels": [f"round {number + 1}" for number in flat.rounds],
        "points": 1,
        "paths": 0,
        "tail": _tail(flat.position),
        "names": [str(c) for c in range(classes)],
        "x": [numbers(flat.position[:, c, 0], 4) for c in range(classes)],
        "y": [numbers(flat.position[:, c, 1], 4) for c in range(classes)],
    }
    late = int(np.isfinite(last[:, 0]).sum())
    held = sum(flat.explained)
    summary = (
        f"What the server knows of each of {classes} classes ({late} known at the end), a point per class. The plane "
        f"shows {percent(held, 0)} of the variance over all rounds"
        + (f"; {percent(1 - held, 0)} lie outside it, so near points need not be near" if held < 0.8 else "")
        + ". Of points that overlap, one has its number."
    )
    rows = [
        (str(c), *(("–", "–") if np.isnan(last[c, 0]) else (f"{last[c, 0]:.3g}", f"{last[c, 1]:.3g}")))
        for c in range(classes)
    ]
    shown = table(("class", "first direction", "second direction"), rows)
    title = "Knowledge in two dimensions"
    return Chart(f"{prefix}knowledge", title, summary, {"": view}, table=shown, tall=True, frames=frames)


def _named(which: str, share: float) -> str:
    return f"{which} principal direction, {percent(share, 0)} of the variance"


def _tail(position: FloatArray) -> int:
    """How many steps of its way a class drags behind it: all, or three where it jumps about and all were a tangle."""
    steps = np.linalg.norm(np.diff(position, axis=0), axis=2)
    steps = steps[np.isfinite(steps)]
    spread = float(np.linalg.norm(np.nanmax(position, axis=(0, 1)) - np.nanmin(position, axis=(0, 1))))
    return 3 if steps.size and float(np.median(steps)) > 0.04 * spread else len(position)


def _range(values: FloatArray) -> list[float | None]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = 0.1 * (high - low) or 1.0
    return numbers([low - room, high + room], 4)


REST = 0.01
"""Knowledge that moves less than this share of the distance between classes in a round is said to be at rest."""


def motion_chart(run: RunData, prefix: str) -> Chart | None:
    """How far knowledge still moves, beside how far its classes lie apart."""
    flat = flatten(run)
    if flat is None or len(flat.rounds) < 2:
        return None
    x = [number + 1 for number in flat.rounds]
    per_round = flat.moved / np.diff(flat.rounds, prepend=flat.rounds[0] - 1)
    traces = [
        line("between two classes, mean", x, numbers(flat.apart, 4), "@c1"),
        line("between the two nearest", x, numbers(flat.nearest, 4), "@c3", line={"dash": "dash"}),
        line("moved in a round, mean", x, numbers(per_round, 4), "@c2", line={"dash": "dot"}),
    ]
    y = axis("distance between features", rangemode="tozero")
    view = figure(traces, axis("round"), y, hovermode="x unified")
    rows = [
        (str(index), *(f"{value:.3g}" if np.isfinite(value) else "–" for value in values))
        for index, *values in zip(x, flat.apart.tolist(), flat.nearest.tolist(), per_round.tolist(), strict=True)
    ]
    shown = table(("rounds", "between two classes, mean", "between the two nearest", "moved in a round"), rows)
    title, summary = _rest(flat, per_round)
    return Chart(f"{prefix}motion", title, summary, {"": view}, table=shown, tall=True)


def _rest(flat: Flat, per_round: FloatArray) -> tuple[str, str]:
    """Whether knowledge came to rest, measured over the last tenth of the rounds that were kept."""
    last = slice(-max(2, len(flat.rounds) // 10), None)
    steps, apart = per_round[last][np.isfinite(per_round[last])], float(flat.apart[-1])
    if not (steps.size and np.isfinite(apart) and apart > 0):
        return (
            "How far knowledge moves",
            "Fewer than two classes are known, so there is no distance to hold it against.",
        )
    moving = float(steps.mean())
    share = moving / apart
    since = f"From round {flat.rounds[last][0] + 1} to {flat.rounds[-1] + 1}"
    told = (
        f"{since} a class moved {moving:.2g} in a round on average, {percent(share, 2)} of the {apart:.3g} between two "
        f"classes; below {percent(REST, 0)} it counts as at rest."
    )
    return ("Knowledge has come to rest" if share < REST else "Knowledge still moves"), told
