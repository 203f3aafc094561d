"""One run round by round: participation, faults, uploads over the radio, the cell as a map, and the scheduler's gap."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.names import shortened
from kfl.core.text import several
from kfl.report.charts.energy import devices_table
from kfl.report.figures import (
    SCALE,
    Chart,
    Figure,
    FloatArray,
    Table,
    axis,
    band,
    bars,
    chart_label,
    color_bar,
    colors_by,
    dots,
    figure,
    hatched,
    heat_map,
    line,
    numbers,
    table,
    thinned,
)
from kfl.report.run_data import RunData
from kfl.report.text import percent, quantity
from kfl.scheduling.status import OUTCOMES, describe

# ── Participation ────────────────────────────────────────────────────────────

MOST_CELLS = 60_000
"""Devices × rounds up to which each is shown; beyond, groups of devices and of rounds are."""
GROUPS = 200
STATES = ("not scheduled", "took part", "upload lost", "upload refused", "did not train", "could not take part")
STATE_COLORS = ("", "@c1", "@c5", "@ink", "@faint", "@c2")
"""Apart in lightness, too, for a print in gray; the first is the background."""
DID_NOT_TRAIN = ("missed", "drop_before", "battery_empty", "diverged")
LOST = ("drop_after", "late", "outage", "ran_dry")
UNABLE = STATES.index("could not take part")
_CANNOT = tuple(OUTCOMES).index("unavailable")
"""Outcomes from this one on say why a device could not take part."""


def schedule_chart(run: RunData) -> Chart | None:
    """Devices down, rounds across."""
    if not run.played:
        return None
    taken = run.participation.astype(np.int64)
    few = run.devices * run.played <= MOST_CELLS
    number = np.arange(run.devices)
    orders = {"By number": number, "By rounds": np.lexsort((number, -taken))}
    if run.cell is not None:
        orders["By distance"] = np.argsort(run.cell.distance_m, kind="stable")
    views = {label: (_cells if few else _groups)(run, order) for label, order in orders.items()}
    never = int((taken == 0).sum())
    none = f", {several(never, 'device')} in none" if never else ""
    summary = (
        f"{run.uploads / run.played:,.1f} of {run.devices:,} devices took part in a round on average; a device took "
        f"part in {taken.min()} to {taken.max()} of {run.played:,} rounds{none}."
    )
    if not few:
        summary += f" Devices are shown in {min(GROUPS, run.devices)} groups of equal size."
    counts = Counter(taken.tolist())
    rows = [(str(rounds), f"{counts[rounds]:,}", percent(counts[rounds] / run.devices)) for rounds in sorted(counts)]
    shown = table(("rounds taken part in", "devices", "share of devices"), rows)
    return Chart("schedule", "Participation", summary, views, "Devices ordered by", shown, wide=True, tall=True)


def _states(run: RunData) -> NDArray[np.int64]:
    """The state of each device in each round, as positions in `STATES`."""
    state = np.zeros((run.devices, run.played), dtype=np.int64)
    if run.rounds.outcome is not None:
        state[run.rounds.outcome >= _CANNOT] = UNABLE
    state[run.rounds.device, run.rounds.round] = 1
    for incident in run.rounds.incidents:
        state[incident.device, incident.round] = _state(incident.kind)
    return state


def _state(kind: str) -> int:
    if kind == "refused":
        return 3
    return 2 if kind in LOST else (4 if kind in DID_NOT_TRAIN else 1)


def _cells(run: RunData, order: NDArray[np.int64]) -> Figure:
    """A cell for each device and round. Rows are digits, which the page spells out with their labels.

    Of a schedule the digit is the outcome, whose label is the reason; its color is that of the state.
    """
    state, outcome = _states(run), run.rounds.outcome
    digits = state if outcome is None else outcome
    labels = list(STATES) if outcome is None else list(OUTCOMES.values())
    used = sorted({1, *np.unique(state).tolist()} - {0})
    rank = {kind: index + 1 for index, kind in enumerate(used)}
    pairs = np.unique(np.stack([digits.ravel(), state.ravel()]), axis=1).T.tolist()
    scale = []
    for index, kind in enumerate(used):
        scale += [[index / len(used), STATE_COLORS[kind]], [(index + 1) / len(used), STATE_COLORS[kind]]]
    shown = heat_map(
        {
            "digits": ["".join(map(str, row)) for row in digits[order].tolist()],
            "ranks": {str(digit): rank[kind] for digit, kind in pairs if kind},
        },
        axis("round"),
        axis("device", type="category"),
        text={"labels": labels},
        x0=1,
        dx=1,
        y=[str(device) for device in order],
        zmin=0.5,
        zmax=len(used) + 0.5,
        colorscale=scale,
        xgap=1 if run.played <= 120 else 0,
        ygap=1 if run.devices <= 60 else 0,
        hovertemplate="device %{y}, round %{x}: %{text}<extra></extra>",
        showscale=False,
    )
    # Entries of the legend are traces with nothing to show but their color.
    keys = [
        dots([None], [None], {"symbol": "square", "size": 11, "color": STATE_COLORS[kind]}, name=STATES[kind])
        for kind in used
    ]
    shown["data"] += keys
    return shown


def _groups(run: RunData, order: NDArray[np.int64]) -> Figure:
    """Share of a group of devices that took part, in a few rounds taken together."""
    groups, spans = min(GROUPS, run.devices), min(GROUPS, run.played)
    index = np.empty(run.devices, dtype=np.int64)
    index[order] = np.arange(run.devices) * groups // run.devices
    span = run.rounds.round * spans // run.played
    hits = np.bincount(index[run.rounds.device] * spans + span, minlength=groups * spans).reshape(groups, spans)
    rounds_in = np.bincount(np.arange(run.played) * spans // run.played, minlength=spans)
    share = hits / np.maximum(np.bincount(index, minlength=groups)[:, None] * rounds_in, 1)
    return heat_map(
        [numbers(row, 2) for row in share],
        axis("round"),
        axis("group of devices", type="linear"),
        x=numbers((np.arange(spans) + 0.5) * run.played / spans + 0.5),
        y0=1,
        dy=1,
        zmin=0,
        colorscale=SCALE,
        hovertemplate="group %{y}, near round %{x:.0f}: %{z:.0%} took part<extra></extra>",
        colorbar=color_bar("took part", tickformat=".0%"),
    )


def participants_chart(run: RunData) -> Chart | None:
    """How many devices took part in each round, and how many of their uploads were used."""
    if not run.played:
        return None
    chosen, lost = run.rounds.per_round(), np.zeros(run.played)
    for incident in run.rounds.incidents:
        lost[incident.round] += _state(incident.kind) > 1
    kept = thinned(run.played, 600)
    x = [int(index) + 1 for index in kept]
    shape = {"shape": "hvh" if run.played <= 300 else "linear"}
    traces = [line("scheduled", x, numbers(chosen[kept]), "@c1", line=shape)]
    if lost.any():
        dotted = {"dash": "dot", **shape}
        traces.append(line("uploads used", x, numbers((chosen - lost)[kept]), "@c3", line=dotted))
    if run.rounds.outcome is not None:
        able = (run.rounds.outcome < _CANNOT).sum(axis=0)
        traces.append(line("able to take part", x, numbers(able[kept]), "@muted", line={"dash": "dot", **shape}))
    most, least = int(chosen.max()), int(chosen.min())
    summary = f"From {least:,} to {most:,} devices were scheduled in a round."
    if most == least:
        summary = f"{several(least, 'device').capitalize()} scheduled in every round."
    if empty := int((chosen == 0).sum()):
        why = Counter(describe(run.rounds.status[index]) for index in np.flatnonzero(chosen == 0)).most_common(1)[0][0]
        why = why.rstrip(".") or "no reason was recorded"
        summary += f" No devices scheduled in {several(empty, 'round')}: {why}."
    view = figure(traces, axis("round"), axis("devices", rangemode="tozero"), hovermode="x unified")
    return Chart("participants", "Devices per round", summary, {"": view}, wide=True)


# ── Faults ───────────────────────────────────────────────────────────────────

MOST_BARS = 60
FAULTS = {
    "missed": ("missed by the broadcast", "@muted", "|"),
    "drop_before": ("dropped before training", "@c6", ""),
    "battery_empty": ("battery empty", "@c4", "/"),
    "ran_dry": ("battery empty before the end", "@c2", "+"),
    "drop_after": ("dropped after training", "@c3", ""),
    "late": ("late", "@c5", "."),
    "outage": ("lost on the channel", "@c1", ""),
    "corrupt": ("corrupted", "@c7", "x"),
    "poisoned": ("poisoned", "@c8", "\\"),
    "refused": ("refused by the server", "@c2", ""),
    "diverged": ("training diverged", "@ink", "-"),
}
"""Kinds of incident in the order in which a chart stacks them: words, color, and hatching for a print in gray."""


def _fault(kind: str) -> tuple[str, str, str]:
    return FAULTS.get(kind, (kind, "@muted", "|"))


def faults_chart(run: RunData) -> Chart | None:
    """Faults by kind over the rounds; None where there were none."""
    incidents = run.rounds.incidents
    if not incidents:
        return None
    count = min(MOST_BARS, run.played)
    middle = (np.arange(count) + 0.5) * run.played / count + 0.5
    counted = Counter(incident.kind for incident in incidents)
    kinds = [kind for kind in FAULTS if kind in counted] + sorted(set(counted) - set(FAULTS))
    traces = []
    for kind in kinds:
        words, color, shape = _fault(kind)
        at = np.array([incident.round for incident in incidents if incident.kind == kind]) * count // run.played
        per_bar = np.bincount(at, minlength=count).tolist()
        hover = {"hovertemplate": "%{fullData.name}: %{y}<extra></extra>"}
        traces.append(bars(chart_label(words), numbers(middle), per_bar, hatched(color, shape), **hover))
    each = "" if count == run.played else f", {run.played / count:.1f} rounds to a bar"
    told = ", ".join(f"{shortened(_fault(kind)[0])} {counted[kind]:,}" for kind in kinds)
    share = percent(len(incidents) / max(run.uploads, 1))
    summary = f"{several(len(incidents), 'fault')} in {run.uploads:,} participations ({share}): {told}."
    stacked = {"barmode": "stack", "bargap": 0.1, "hovermode": "x unified"}
    view = figure(traces, axis(f"round{each}"), axis("devices"), **stacked)
    return Chart("faults", "Faults and refused uploads", summary, {"": view}, table=_faults_table(run), wide=True)


def _faults_table(run: RunData) -> Table:
    """By kind and reason: how often, how many devices, first and last round."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for incident in run.rounds.incidents:
        groups.setdefault((incident.kind, incident.reason[:120]), []).append((incident.round, incident.device))
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [
        (
            shortened(_fault(kind)[0]),
            reason or "–",
            f"{len(found):,}",
            f"{len({device for _, device in found}):,}",
            f"{min(found)[0] + 1} to {max(found)[0] + 1}",
        )
        for (kind, reason), found in ranked[:40]
    ]
    return table(("fault", "reason", "times", "devices", "rounds"), rows, total=len(ranked), of="kinds and reasons")


# ── Radio ────────────────────────────────────────────────────────────────────

MOST_DOTS = 2500
MOST_ON_MAP = 2000
MOST_FRAMES = 100
MOST_MARKED = 6000
"""Marks of scheduled devices over all frames of the map."""
GRID = 48


def shares_chart(run: RunData) -> Chart | None:
    """Share of the band, power and energy of uploads, round by round."""
    rounds = run.rounds
    if run.cell is None or not run.uploads:
        return None
    parts = {
        "Share": (rounds.share, _log_axis("share of the band", rounds.share, tickformat=".3~%")),
        "Power": (rounds.power_w, _log_axis("transmit power", rounds.power_w, si="W")),
        "Energy": (rounds.upload_energy_j, _log_axis("energy of an upload", rounds.upload_energy_j, si="J")),
    }
    if np.isfinite(rounds.gain).any():
        parts["Gain"] = (rounds.gain, _log_axis("channel gain", rounds.gain, tickformat=".1~e"))
    draw = _dots if run.uploads <= MOST_DOTS else _bands
    views = {label: draw(run, values, y) for label, (values, y) in parts.items()}
    return Chart("shares", "Bandwidth and power", _of_uploads(run), views, "Shown for each upload", tall=True)


def _of_uploads(run: RunData) -> str:
    parts = (run.rounds.share, run.rounds.power_w, run.rounds.upload_energy_j)
    share, power, energy = (values[np.isfinite(values)] for values in parts)
    if run.cell is None or not (share.size and power.size and energy.size):
        return "No share or power was recorded."
    radio = run.cell.config
    return (
        f"An upload has a median share of {percent(float(np.median(share)), 2)} of "
        f"{quantity(radio.bandwidth_hz, 'Hz')} (at most {percent(float(share.max()))}), a median power of "
        f"{quantity(float(np.median(power)), 'W')} (at most {quantity(float(power.max()), 'W')} of "
        f"{quantity(radio.max_power_w, 'W')} allowed) and a median energy of {quantity(float(np.median(energy)), 'J')}."
    )


def _log_axis(title: str, values: FloatArray, **style: Any) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5, or at powers of ten where these would crowd."""
    known = values[np.isfinite(values) & (values > 0)]
    decades = float(np.log10(known.max() / known.min())) if known.size else 0.0
    return axis(title, type="log", dtick="D2" if decades <= 3 else 1, **style)


def _dots(run: RunData, values: FloatArray, y: dict[str, Any]) -> Figure:
    """A dot per upload, colored by the distance of its device."""
    rounds, distance_m = run.rounds, np.zeros(run.devices) if run.cell is None else run.cell.distance_m
    trace = dots(
        (rounds.round + 1).tolist(),
        numbers(np.where(values > 0, values, np.nan), 4),
        {"size": 5, "opacity": 0.75, **colors_by(numbers(distance_m[rounds.device], 3), "distance, m")},
        customdata=rounds.device.tolist(),
        meta={"points": "device"},
        hovertemplate="device %{customdata}, round %{x}: %{y:.3~g} [[y]], at %{marker.color:.0f} m<extra></extra>",
    )
    return figure([trace], axis("round"), y, hovermode="closest")


def _bands(run: RunData, values: FloatArray, y: dict[str, Any]) -> Figure:
    """The median upload of each round, or of a few together, and the range of the middle 80 %."""
    spans = min(run.played, 200)
    ends = np.searchsorted(run.rounds.round * spans // run.played, np.arange(spans + 1))
    x, found = [], []
    for index in range(spans):
        part = values[ends[index] : ends[index + 1]]
        part = part[np.isfinite(part) & (part > 0)]
        if part.size:
            x.append(round((index + 0.5) * run.played / spans + 0.5, 1))
            found.append(np.quantile(part, (0.1, 0.5, 0.9)))
    low, middle, high = np.array(found).T if found else np.empty((3, 0))
    around = band("8 of 10 uploads", x, numbers(low, 4), numbers(high, 4), "@c1")
    median = line("median upload", x, numbers(middle, 4), "@c1", hovertemplate="%{y:.3~g}")
    return figure([*around, median], axis("round"), y, hovermode="x unified")


def cell_chart(run: RunData) -> Chart | None:
    """The cell from above: the server in the middle, devices where they are."""
    if run.cell is None:
        return None
    taken, distance_m = run.participation, run.cell.distance_m
    colors: dict[str, tuple[FloatArray, str, dict[str, str]]] = {"Rounds": (taken, "rounds taken part in", {})}
    if np.isfinite(run.accuracy).any():
        colors["Accuracy"] = (run.accuracy, "accuracy", {"tickformat": ".2~%"})
    if run.played:
        colors["Energy"] = (run.device_energy_j, "energy", {"si": "J"})
    few = run.devices <= MOST_ON_MAP
    views = {label: (_points if few else _grid)(run, *of) for label, of in colors.items()}
    near = distance_m <= np.median(distance_m)
    farther = taken[~near].mean() if (~near).any() else 0.0
    summary = (
        f"{several(run.devices, 'device').capitalize()} within {run.cell.config.radius_m:g} m of the server, "
        f"{quantity(float(distance_m.min()), 'm')} to {quantity(float(distance_m.max()), 'm')} away. The nearer half "
        f"took part {taken[near].mean():.1f} times on average, the farther half {farther:.1f} times."
    )
    frames = _marked_frames(run) if few and run.played else None
    table_ = devices_table(run, run.cell)
    return Chart("cell", "Cell", summary, views, "Devices colored by", table_, tall=True, frames=frames)


def _map(run: RunData, traces: list[Any]) -> Figure:
    """Traces and the server on a map of the cell."""
    radius = 0.0 if run.cell is None else run.cell.config.radius_m
    edge = {"type": "circle", "x0": -radius, "x1": radius, "y0": -radius, "y1": radius, "layer": "below"}
    limit = [-1.06 * radius, 1.06 * radius]
    plain = {"zeroline": False, "showgrid": False}
    mark = {"symbol": "triangle-up", "size": 15, "color": "@c2", "line": {"color": "@panel", "width": 1.5}}
    server = dots([0], [0], mark, name="server", hovertemplate="server<extra></extra>")
    return figure(
        [*traces, server],
        axis("meters east", range=limit, **plain, constrain="domain"),
        axis("meters north", range=limit, scaleanchor="x", constrain="domain", **plain),
        shapes=[{**edge, "line": {"color": "@line", "width": 1.5}, "fillcolor": "@muted/0.05"}],
        hovermode="closest",
        showlegend=True,
    )


def _points(run: RunData, values: FloatArray, title: str, style: dict[str, str]) -> Figure:
    where = np.zeros((run.devices, 2)) if run.cell is None else run.cell.position_m
    size, ring = (11, 18) if run.devices <= 300 else (6, 12)
    devices = dots(
        numbers(where[:, 0], 4),
        numbers(where[:, 1], 4),
        {"size": size, "line": {"color": "@muted", "width": 0.8}, **colors_by(numbers(values, 4), title, **style)},
        name="device",
        customdata=list(range(run.devices)),
        text=_reasons(run),
        hovertemplate=f"device %{{customdata}}: %{{marker.color:{_shown(style)}%{{text}}<extra></extra>",
        showlegend=False,
    )
    open_ring = {"symbol": "circle-open", "size": ring, "color": "@c2", "line": {"width": 2}}
    chosen = dots([], [], open_ring, name="took part in this round", hoverinfo="skip")
    return _map(run, [devices, chosen])


def _reasons(run: RunData) -> list[str]:
    """Of a schedule, how often what became of each device; empty texts otherwise."""
    if run.rounds.outcome is None:
        return [""] * run.devices
    words = tuple(OUTCOMES.values())
    counts = np.stack([(run.rounds.outcome == index).sum(axis=1) for index in range(len(words))], axis=1)
    return ["".join(f"<br>{words[k]}: {row[k]}" for k in np.argsort(-row) if row[k]) for row in counts]


def _shown(style: dict[str, str]) -> str:
    """The rest of a hover text that shows a value as the scale next to the chart does."""
    return "".join((style.get("tickformat", ".4~g"), "}", " [[bar]]" if "si" in style else ""))


def _marked_frames(run: RunData) -> dict[str, Any]:
    """The devices of each round as indices into the first trace, for the page to mark."""
    per_round = max(1.0, run.uploads / run.played)
    kept = thinned(run.played, int(min(MOST_FRAMES, max(10, MOST_MARKED // per_round))))
    starts, ends = (np.searchsorted(run.rounds.round, kept, side=side) for side in ("left", "right"))
    which = [run.rounds.device[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
    return {"kind": "marked", "labels": [f"round {index + 1}" for index in kept], "trace": 1, "of": 0, "which": which}


def _grid(run: RunData, values: FloatArray, title: str, style: dict[str, str]) -> Figure:
    """Too many devices for points: the mean over squares of the cell."""
    if run.cell is None:
        return {"data": [], "layout": {}}
    radius, known = run.cell.config.radius_m, np.isfinite(values)
    edges = np.linspace(-radius, radius, GRID + 1)
    x, y = run.cell.position_m[known].T
    sums = np.histogram2d(y, x, bins=(edges, edges), weights=values[known])[0]
    counts = np.histogram2d(y, x, bins=(edges, edges))[0]
    mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    middle = numbers((edges[:-1] + edges[1:]) / 2, 4)
    squares = {"type": "heatmap", "x": middle, "y": middle, "z": [numbers(row, 3) for row in mean]}
    shown = {"colorscale": SCALE, "colorbar": color_bar(title, **style)}
    hover = {"hovertemplate": f"mean of the devices here: %{{z:{_shown(style)}<extra></extra>"}
    return _map(run, [{**squares, **shown, **hover}])


# ── The scheduler ────────────────────────────────────────────────────────────


def gap_chart(run: RunData) -> Chart | None:
    """Value of each round's decision next to the lower bound on any decision's; None where no bound is known."""
    value, bound = run.rounds.objective, run.rounds.lower_bound
    known = np.flatnonzero(np.isfinite(value) & np.isfinite(bound))
    if not known.size:
        return None
    kept = known[thinned(len(known), 600)]
    value, bound = value[kept], bound[kept]
    x = [int(index) + 1 for index in kept]
    relative = np.where(bound != 0, (value - bound) / np.where(bound != 0, np.abs(bound), 1.0), np.nan)
    largest = float(np.nanmax([*relative, 0.0]))
    shares = axis("gap, share of the bound", tickformat=".3~%", range=[0, max(1.08 * largest, 0.01)])
    gap = line("gap", x, numbers(relative, 6), "@c2", fill="tozeroy", fillcolor="@c2/0.12")
    lines = [
        line("this scheduler", x, numbers(value, 6), "@c1"),
        line("lower bound", x, numbers(bound, 6), "@c3", line={"dash": "dash"}),
    ]
    unified, values = {"hovermode": "x unified"}, axis("drift plus penalty (lower is better)", tickformat="~g")
    views = {
        "Gap": figure([gap], axis("round"), shares, showlegend=False, **unified),
        "Value": figure(lines, axis("round"), values, **unified),
    }
    exact = int((value - bound <= 1e-6 * np.maximum(np.abs(bound), 1e-300)).sum())
    summary = (
        f"Optimal in {exact} of {several(len(x), 'round')}, where the value equals its lower bound; the largest gap is "
        f"{percent(largest)} of the bound. The value is drift plus penalty, equation (22) of the paper."
    )
    return Chart("gap", "Gap to the lower bound", summary, views, "Shown", wide=True)
