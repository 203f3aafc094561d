"""Who was scheduled when, how many took part, and what went wrong: faults, lost and refused uploads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import several, shortened
from kfl.report.chart import (
    SCALE,
    Chart,
    Figure,
    Table,
    axis,
    colour_bar,
    dots,
    figure,
    line,
    numbers,
    table,
    thinned,
)
from kfl.report.words import chart_label, percent
from kfl.runfolder import RunData
from kfl.scheduling import describe

MOST_CELLS = 60_000
"""Devices × rounds up to which each is shown; beyond, groups of devices and of rounds are."""
GROUPS = 200
STATES = ("", "took part", "upload lost", "upload refused", "did not train")
STATE_COLOURS = ("@c1", "@c5", "@ink", "@faint")
"""Apart in lightness too, for a print in grey."""
DID_NOT_TRAIN = ("missed", "drop_before", "battery_empty", "diverged")
LOST = ("drop_after", "late", "outage", "ran_dry")


def schedule_chart(run: RunData, prefix: str) -> Chart | None:
    """Devices down, rounds across."""
    if not run.played:
        return None
    taken = run.rounds.per_device(run.devices).astype(np.int64)
    few = run.devices * run.played <= MOST_CELLS
    views = {}
    for label, order in _orders(run, taken).items():
        views[label] = _cells(run, order) if few else _groups(run, order)
    never = int((taken == 0).sum())
    per_round = run.rounds.per_round()
    none = f", {several(never, 'device')} in none" if never else ""
    summary = (
        f"{per_round.mean():,.1f} of {run.devices:,} devices took part in a round on average; a device took part in "
        f"{taken.min()} to {taken.max()} of {run.played:,} rounds{none}."
    )
    if not few:
        summary += f" Devices are shown in {min(GROUPS, run.devices)} groups of equal size."
    counts = Counter(taken.tolist())
    rows = [(str(rounds), f"{counts[rounds]:,}", percent(counts[rounds] / run.devices)) for rounds in sorted(counts)]
    shown = table(("rounds taken part in", "devices", "share of devices"), rows)
    return Chart(f"{prefix}schedule", "Who took part when", summary, views, "Devices ordered by", shown, True, True)


def _orders(run: RunData, taken: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Ways to sort the devices."""
    number = np.arange(run.devices)
    orders = {"By number": number, "By rounds": np.lexsort((number, -taken))}
    if run.cell is not None:
        orders["By distance"] = np.argsort(run.cell.distance_m, kind="stable")
    return orders


def _cells(run: RunData, order: NDArray[np.int64]) -> Figure:
    """One cell for each device and round, with what became of it. Rows are digits, which the page spells out."""
    state = np.zeros((run.devices, run.played), dtype=np.int64)
    state[run.rounds.device, run.rounds.round] = 1
    for incident in run.rounds.incidents:
        state[incident.device, incident.round] = _state(incident.kind)
    rows = ["".join(map(str, row)) for row in state[order].tolist()]
    used = sorted({1, *np.unique(state).tolist()} - {0})
    scale = []
    for index, kind in enumerate(used):
        colour = STATE_COLOURS[kind - 1]
        scale += [[index / len(used), colour], [(index + 1) / len(used), colour]]
    trace = {
        "type": "heatmap",
        "z": {"digits": rows, "ranks": {str(kind): index + 1 for index, kind in enumerate(used)}},
        "text": {"labels": list(STATES)},
        "x0": 1,
        "dx": 1,
        "y": [str(device) for device in order],
        "zmin": 0.5,
        "zmax": len(used) + 0.5,
        "colorscale": scale,
        "xgap": 1 if run.played <= 120 else 0,
        "ygap": 1 if run.devices <= 60 else 0,
        "hovertemplate": "device %{y}, round %{x}: %{text}<extra></extra>",
        "showscale": False,
    }
    return _down([trace, *map(_key, used)], axis("device", type="category"))


def _key(state: int) -> dict[str, Any]:
    """An entry of the legend: a trace with nothing to show but its colour."""
    mark = {"symbol": "square", "size": 11, "color": STATE_COLOURS[state - 1]}
    return dots([None], [None], mark, name=STATES[state])


def _state(kind: str) -> int:
    if kind == "refused":
        return 3
    return 2 if kind in LOST else (4 if kind in DID_NOT_TRAIN else 1)


def _groups(run: RunData, order: NDArray[np.int64]) -> Figure:
    """Share of a group of devices that took part, in a few rounds taken together."""
    groups, spans = min(GROUPS, run.devices), min(GROUPS, run.played)
    index = np.empty(run.devices, dtype=np.int64)
    index[order] = np.arange(run.devices) * groups // run.devices
    span = run.rounds.round * spans // run.played
    hits = np.bincount(index[run.rounds.device] * spans + span, minlength=groups * spans).reshape(groups, spans)
    sizes = np.bincount(index, minlength=groups)[:, None] * np.bincount(
        np.arange(run.played) * spans // run.played, minlength=spans
    )
    share = hits / np.maximum(sizes, 1)
    trace = {
        "type": "heatmap",
        "z": [numbers(row, 2) for row in share],
        "x": numbers((np.arange(spans) + 0.5) * run.played / spans + 0.5),
        "y0": 1,
        "dy": 1,
        "zmin": 0,
        "colorscale": SCALE,
        "hovertemplate": "group %{y}, near round %{x:.0f}: %{z:.0%} took part<extra></extra>",
        "colorbar": colour_bar("took part", tickformat=".0%"),
    }
    return _down([trace], axis("group of devices", type="linear"))


def _down(traces: list[Any], y: dict[str, Any]) -> Figure:
    """Rounds across, devices down."""
    down = {**y, "autorange": "reversed", "showgrid": False, "nticks": 12}
    return figure(traces, axis("round", showgrid=False), down, hovermode="closest")


def participants_chart(run: RunData, prefix: str) -> Chart | None:
    """How many devices took part in each round, and how many of their uploads counted."""
    if not run.played:
        return None
    chosen = run.rounds.per_round()
    lost = np.zeros(run.played)
    for incident in run.rounds.incidents:
        lost[incident.round] += _state(incident.kind) > 1
    kept = thinned(run.played, 600)
    x = [int(index) + 1 for index in kept]
    shape = {"shape": "hvh" if run.played <= 300 else "linear"}
    traces = [line("chosen", x, numbers(chosen[kept]), "@c1", line=shape)]
    if lost.any():
        traces.append(
            line("uploads that counted", x, numbers((chosen - lost)[kept]), "@c3", line={"dash": "dot", **shape})
        )
    nobody = int((chosen == 0).sum())
    most, least = int(chosen.max()), int(chosen.min())
    among = f"{least:,} devices were chosen in every round." if most == least else ""
    summary = among or f"From {least:,} to {most:,} devices were chosen in a round."
    if nobody:
        why = Counter(describe(run.rounds.status[index]) for index in np.flatnonzero(chosen == 0)).most_common(1)[0][0]
        summary += f" In {several(nobody, 'round')} nobody was: {why.rstrip('.') or 'no reason was recorded'}."
    view = figure(traces, axis("round"), axis("devices", rangemode="tozero"), hovermode="x unified")
    rows = [
        (str(index + 1), f"{chosen[index]:.0f}", f"{chosen[index] - lost[index]:.0f}") for index in range(run.played)
    ]
    shown = table(("round", "chosen", "uploads that counted"), rows)
    return Chart(f"{prefix}participants", "Devices per round", summary, {"": view}, table=shown, wide=True)


MOST_BARS = 60
WORDS = {
    "missed": "not reached by the broadcast",
    "drop_before": "silent before training",
    "battery_empty": "battery empty",
    "ran_dry": "ran dry before the end",
    "drop_after": "silent after training",
    "late": "too late",
    "outage": "lost on the channel",
    "corrupt": "arrived as rubbish",
    "poisoned": "poisoned",
    "refused": "refused by the server",
    "diverged": "training diverged",
}
"""Kinds of incident, in the order in which a chart stacks them."""
INKS = ("@muted", "@c6", "@c4", "@c2", "@c3", "@c5", "@c1", "@c7", "@c8", "@c2", "@ink")
PATTERNS = ("|", "", "/", "+", "", ".", "", "x", "\\", "", "-")
"""Hatching, so that the bars can be told apart without colours."""


def faults_chart(run: RunData, prefix: str) -> Chart | None:
    """Counts by kind over the rounds; None where nothing went wrong."""
    incidents = run.rounds.incidents
    if not incidents:
        return None
    bars = min(MOST_BARS, run.played)
    middle = (np.arange(bars) + 0.5) * run.played / bars + 0.5
    counted = Counter(incident.kind for incident in incidents)
    traces = []
    kinds = [kind for kind in WORDS if kind in counted] + sorted(set(counted) - set(WORDS))
    for kind in kinds:
        index = list(WORDS).index(kind) if kind in WORDS else 0
        at = np.array([incident.round for incident in incidents if incident.kind == kind]) * bars // run.played
        name = chart_label(WORDS.get(kind, kind))
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": numbers(middle),
                "y": np.bincount(at, minlength=bars).tolist(),
                "marker": {
                    "color": INKS[index],
                    "pattern": {"shape": PATTERNS[index], "fillmode": "overlay", "fgcolor": "@panel", "size": 6},
                },
                "hovertemplate": "%{fullData.name}: %{y}<extra></extra>",
            }
        )
    each = "" if bars == run.played else f", {run.played / bars:.1f} rounds to a bar"
    stacked = {"barmode": "stack", "bargap": 0.1, "hovermode": "x unified"}
    told = [f"{shortened(WORDS.get(kind, kind))} {counted[kind]:,}" for kind in kinds]
    share = len(incidents) / max(len(run.rounds.device), 1)
    chosen = f"{len(run.rounds.device):,} times a device was chosen"
    summary = f"{several(len(incidents), 'fault')} in {chosen} ({percent(share)}): "
    return Chart(
        f"{prefix}faults",
        "Faults and refused uploads",
        summary + ", ".join(told) + ".",
        {"": figure(traces, axis(f"round{each}"), axis("devices"), **stacked)},
        table=_table(run),
        wide=True,
    )


def _table(run: RunData) -> Table:
    """By kind and reason: how often, how many devices, first and last round."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for incident in run.rounds.incidents:
        groups.setdefault((incident.kind, incident.reason[:120]), []).append((incident.round, incident.device))
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [
        (
            shortened(WORDS.get(kind, kind)),
            reason or "–",
            f"{len(found):,}",
            f"{len({device for _, device in found}):,}",
            f"{min(found)[0] + 1} to {max(found)[0] + 1}",
        )
        for (kind, reason), found in ranked[:40]
    ]
    columns = ("what", "reason", "times", "devices", "rounds")
    return table(columns, rows, total=len(ranked), of="kinds and reasons")
