"""The radio: who got which share of the band and sent with which power, and the cell on a map."""

from __future__ import annotations

from typing import Any

import numpy as np

from kfl.report.chart import (
    SCALE,
    Chart,
    Figure,
    FloatArray,
    Table,
    axis,
    band,
    colour_bar,
    colours_by,
    dots,
    figure,
    line,
    numbers,
    table,
    thinned,
)
from kfl.report.measures import device_energy
from kfl.report.words import percent, quantity
from kfl.runfolder import RunData
from kfl.wireless import CellConfig

MOST_DOTS = 2500
MOST_ON_MAP = 2000
MOST_FRAMES = 100
MOST_MARKED = 6000
"""Marks of chosen devices over all frames of the map."""
GRID = 48


def shares_chart(run: RunData, prefix: str) -> Chart | None:
    """Shares of the band, powers and energies of uploads, round by round."""
    rounds = run.rounds
    if run.cell is None or not len(rounds.device):
        return None
    distance_m = run.cell.distance_m
    parts = {
        "Share": (rounds.share, _log_axis("share of the band", rounds.share, tickformat=".3~%")),
        "Power": (rounds.power_w, _log_axis("transmit power", rounds.power_w, si="W")),
        "Energy": (rounds.upload_energy_j, _log_axis("energy of an upload", rounds.upload_energy_j, si="J")),
    }
    if np.isfinite(rounds.gain).any():
        parts["Gain"] = (rounds.gain, _log_axis("channel gain", rounds.gain, tickformat=".1~e"))
    views = {
        label: _dots(run, values, distance_m, y) if len(rounds.device) <= MOST_DOTS else _bands(run, values, y)
        for label, (values, y) in parts.items()
    }
    summary = _sentence(run, run.cell.config)
    return Chart(
        f"{prefix}shares", "Bandwidth and power", summary, views, "Shown for each upload", _table(run), tall=True
    )


def _sentence(run: RunData, radio: CellConfig) -> str:
    parts = (run.rounds.share, run.rounds.power_w, run.rounds.upload_energy_j)
    share, power, energy = (values[np.isfinite(values)] for values in parts)
    if not (share.size and power.size and energy.size):
        return "No share or power was recorded."
    return (
        f"A share was {percent(float(np.median(share)), 2)} of {quantity(radio.bandwidth_hz, 'Hz')} in the median "
        f"(up to {percent(float(share.max()))}), a power {quantity(float(np.median(power)), 'W')} (up to "
        f"{quantity(float(power.max()), 'W')}, allowed {quantity(radio.max_power_w, 'W')}), an upload's energy "
        f"{quantity(float(np.median(energy)), 'J')}."
    )


def _log_axis(title: str, values: FloatArray, **style: Any) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5, or at powers of ten where these would crowd."""
    known = values[np.isfinite(values) & (values > 0)]
    decades = float(np.log10(known.max() / known.min())) if known.size else 0.0
    return axis(title, type="log", dtick="D2" if decades <= 3 else 1, **style)


def _dots(run: RunData, values: FloatArray, distance_m: FloatArray, y: dict[str, Any]) -> Figure:
    """A dot per upload, coloured by how far its device is."""
    rounds = run.rounds
    trace = dots(
        (rounds.round + 1).tolist(),
        numbers(np.where(values > 0, values, np.nan), 4),
        {"size": 5, "opacity": 0.75, **colours_by(numbers(distance_m[rounds.device], 3), "distance, m")},
        customdata=rounds.device.tolist(),
        hovertemplate="device %{customdata}, round %{x}: %{y:.3~g} [[y]], at %{marker.color:.0f} m<extra></extra>",
    )
    return figure([trace], axis("round"), y, hovermode="closest")


def _bands(run: RunData, values: FloatArray, y: dict[str, Any]) -> Figure:
    """The median upload of each round, or of a few together, and the range of the middle 80 %."""
    spans = min(run.played, 200)
    span = run.rounds.round * spans // run.played
    ends = np.searchsorted(span, np.arange(spans + 1))
    x, found = [], []
    for index in range(spans):
        part = values[ends[index] : ends[index + 1]]
        part = part[np.isfinite(part) & (part > 0)]
        if part.size:
            x.append(round((index + 0.5) * run.played / spans + 0.5, 1))
            found.append(np.quantile(part, (0.1, 0.5, 0.9)))
    low, middle, high = np.array(found).T if found else np.empty((3, 0))
    traces = [
        *band("8 of 10 uploads", x, numbers(low, 4), numbers(high, 4), "@c1"),
        line("median upload", x, numbers(middle, 4), "@c1", hovertemplate="%{y:.3~g}"),
    ]
    return figure(traces, axis("round"), y, hovermode="x unified")


def _table(run: RunData) -> Table:
    rounds = run.rounds
    columns = ("round", "device", "share", "power", "energy of the upload")
    rows = [
        (
            str(rounds.round[index] + 1),
            str(rounds.device[index]),
            percent(rounds.share[index], 2),
            quantity(rounds.power_w[index], "W"),
            quantity(rounds.upload_energy_j[index], "J"),
        )
        for index in thinned(len(rounds.device), 40)
    ]
    return table(columns, rows, total=len(rounds.device), of="uploads")


def cell_chart(run: RunData, prefix: str) -> Chart | None:
    """The cell from above: the server in the middle, devices where they stand."""
    if run.cell is None:
        return None
    taken = run.rounds.per_device(run.devices)
    colours: dict[str, tuple[FloatArray, str, dict[str, str]]] = {"Rounds": (taken, "rounds taken part in", {})}
    if np.isfinite(run.accuracy).any():
        colours["Accuracy"] = (run.accuracy, "accuracy", {"tickformat": ".2~%"})
    if run.played:
        colours["Energy"] = (device_energy(run), "energy", {"si": "J"})
    few = run.devices <= MOST_ON_MAP
    views = {
        label: (_points if few else _grid)(run, values, title, style)
        for label, (values, title, style) in colours.items()
    }
    distance_m, position_m = run.cell.distance_m, run.cell.position_m
    near = distance_m <= np.median(distance_m)
    summary = (
        f"{run.devices:,} devices within {run.cell.config.radius_m:g} m of the server, "
        f"{quantity(float(distance_m.min()), 'm')} to {quantity(float(distance_m.max()), 'm')} away. The nearer half "
        f"took part {taken[near].mean():.1f} times on average, the farther "
        f"{taken[~near].mean() if (~near).any() else 0:.1f} times."
    )
    rows = [
        (
            str(device),
            f"{position_m[device, 0]:.0f}, {position_m[device, 1]:.0f} m",
            f"{distance_m[device]:.0f} m",
            quantity(float(run.cell.hardware.cpu_hz[device]), "Hz"),
            f"{taken[device]:.0f}",
            percent(float(run.accuracy[device])),
        )
        for device in thinned(run.devices, 40)
    ]
    columns = ("device", "place", "distance", "processor", "rounds", "accuracy")
    shown = table(columns, rows, total=run.devices, of="devices")
    frames = _chosen_frames(run) if few and run.played else None
    return Chart(f"{prefix}cell", "The cell", summary, views, "Devices coloured by", shown, tall=True, frames=frames)


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
        axis("metres east", range=limit, **plain, constrain="domain"),
        axis("metres north", range=limit, scaleanchor="x", constrain="domain", **plain),
        shapes=[{**edge, "line": {"color": "@line", "width": 1.5}, "fillcolor": "@muted/0.05"}],
        hovermode="closest",
        showlegend=True,
    )


def _points(run: RunData, values: FloatArray, title: str, style: dict[str, str]) -> Figure:
    where = np.zeros((run.devices, 2)) if run.cell is None else run.cell.position_m
    size, ring = (11, 18) if run.devices <= 300 else (6, 12)
    coloured = colours_by(numbers(values, 4), title, **style)
    devices = dots(
        numbers(where[:, 0], 4),
        numbers(where[:, 1], 4),
        {"size": size, "line": {"color": "@muted", "width": 0.8}, **coloured},
        name="device",
        customdata=list(range(run.devices)),
        hovertemplate=f"device %{{customdata}}: %{{marker.color:{_shown(style)}<extra></extra>",
        showlegend=False,
    )
    open_ring = {"symbol": "circle-open", "size": ring, "color": "@c2", "line": {"width": 2}}
    chosen = dots([], [], open_ring, name="took part in this round", hoverinfo="skip")
    return _map(run, [devices, chosen])


def _shown(style: dict[str, str]) -> str:
    """The rest of a hover text that shows a value as the scale beside the chart does."""
    return "".join((style.get("tickformat", ".4~g"), "}", " [[bar]]" if "si" in style else ""))


def _chosen_frames(run: RunData) -> dict[str, Any]:
    """Who took part in each round: indices into the first trace, for the page to mark."""
    per_round = max(1.0, len(run.rounds.device) / run.played)
    kept = thinned(run.played, int(min(MOST_FRAMES, max(10, MOST_MARKED // per_round))))
    starts, ends = (np.searchsorted(run.rounds.round, kept, side=side) for side in ("left", "right"))
    who = [run.rounds.device[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
    return {"kind": "marked", "labels": [f"round {index + 1}" for index in kept], "trace": 1, "of": 0, "which": who}


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
    squares = {
        "type": "heatmap",
        "x": middle,
        "y": middle,
        "z": [numbers(row, 3) for row in mean],
        "colorscale": SCALE,
        "colorbar": colour_bar(title, **style),
        "hovertemplate": f"mean of the devices here: %{{z:{_shown(style)}<extra></extra>",
    }
    return _map(run, [squares])
