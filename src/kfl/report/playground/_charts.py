"""The charts of the playground: one round from above and in numbers, and the horizon."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import several
from kfl.report.chart import Chart, axis, line, numbers, table
from kfl.report.measures import part_ink, part_mark
from kfl.report.playground._model import JudgedRound, Play
from kfl.report.words import percent, quantity
from kfl.scheduling import OUTCOMES, describe
from kfl.scheduling.serve import CANNOT
from kfl.scheduling.uplink import CLOCK_BY, UPLOAD_BY

WORDS = tuple(OUTCOMES.values())
KINDS = (("scheduled", "@c1"), ("not chosen", "@muted"), ("could not take part", "@c2"))


def kind_of(outcome: NDArray[np.int8]) -> NDArray[np.int64]:
    """Per device: 0 scheduled, 1 not chosen, 2 could not take part."""
    return np.minimum(outcome.astype(np.int64), CANNOT)


def map_chart(play: Play, index: int) -> Chart:
    """The cell from above in one round: who is scheduled, and with how much of the band."""
    one, cell = play.rounds[index], play.cell
    kinds, (x, y) = kind_of(one.outcome), cell.position_m.T
    gain_db = 10 * np.log10(np.maximum(play.problem.gain[index], 1e-40))
    words = [
        f"{name} at {distance:.0f} m, {gain:.0f} dB: {WORDS[outcome]}{_share_words(one, device)}"
        for device, (name, distance, gain, outcome) in enumerate(
            zip(play.problem.ids, cell.distance_m, gain_db, one.outcome, strict=True)
        )
    ]
    largest = float(one.decision.share.max(initial=0.0)) or 1.0
    size = np.where(kinds == 0, 8 + 14 * np.sqrt(one.decision.share / largest), 7)
    traces: list[Any] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": numbers(x[kinds == kind], 4),
            "y": numbers(y[kinds == kind], 4),
            "text": [words[device] for device in np.flatnonzero(kinds == kind)],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": _mark(kind, colour, numbers(size[kinds == kind], 3)),
        }
        for kind, (name, colour) in enumerate(KINDS)
        if (kinds == kind).any()
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "server",
            "x": [0],
            "y": [0],
            "hovertemplate": "server<extra></extra>",
            "marker": {"symbol": "diamond", "size": 12, "color": "@ink"},
        }
    )
    radius = play.settings.radius_m
    circle = {"type": "circle", "layer": "below", "x0": -radius, "x1": radius, "y0": -radius, "y1": radius}
    circle["line"] = {"color": "@muted/0.5", "width": 1.5}
    reach = [-1.06 * radius, 1.06 * radius]
    layout = {
        "xaxis": axis("metres from the server", range=reach, constrain="domain", nticks=7),
        "yaxis": axis("", range=reach, scaleanchor="x", constrain="domain", nticks=7),
        "shapes": [circle],
    }
    counts = [int((kinds == kind).sum()) for kind in range(len(KINDS))]
    summary = (
        f"Round {index + 1}: {several(counts[0], 'device')} of {len(kinds)} scheduled, {counts[1]} not chosen, "
        f"{counts[2]} could not take part. A larger dot has a larger share of the band."
    )
    rows = [(name, words[device].partition(" at ")[2]) for device, name in enumerate(play.problem.ids)]
    shown = table(("device", "where, gain, and what became of it"), rows, most=300)
    return Chart("map", "Who is scheduled", summary, {"Map": {"data": traces, "layout": layout}}, "", shown, tall=True)


def _mark(kind: int, colour: str, size: list[Any]) -> dict[str, Any]:
    if kind == 0:
        return {"size": size, "color": colour, "opacity": 0.85, "line": {"width": 1, "color": "@panel"}}
    return {
        "size": size,
        "color": colour,
        "symbol": "circle-open" if kind == 1 else "x-thin-open",
        "line": {"width": 1.5},
    }


def _share_words(one: JudgedRound, device: int) -> str:
    if not one.decision.chosen[device]:
        return ""
    share, power_w = one.decision.share[device], one.decision.power_w[device]
    return f", {percent(share, 2)} of the band, {quantity(power_w, 'W')}"


def shares_chart(play: Play, index: int) -> Chart:
    """Shares, powers and energies of the scheduled devices in one round."""
    one = play.rounds[index]
    chosen = np.flatnonzero(one.decision.chosen)
    order = chosen[np.lexsort((chosen, -one.decision.share[chosen]))]
    names = [play.problem.ids[device] for device in order]
    across = axis("device, largest share first", type="category", nticks=12)
    share, power_w = one.decision.share[order], one.decision.power_w[order]
    views = {
        "Share": {
            "data": [_bar("share", names, share, "@c1", "%{y:.3~%}")],
            "layout": {"xaxis": across, "yaxis": axis("share of the band", tickformat=".3~%", rangemode="tozero")},
        },
        "Power": {
            "data": [_bar("power", names, power_w, "@c4", "%{y:.3~g} [[y]]")],
            "layout": {"xaxis": across, "yaxis": axis("transmit power", si="W", rangemode="tozero")},
        },
        "Energy": {
            "data": [
                _bar(part, names, energy_j[order], part_mark(part), f"{part} %{{y:.3~g}} [[y]]")
                for part, energy_j in one.parts_j.items()
                if play.problem.device.is_paper_model or energy_j.any()
            ],
            "layout": {
                "barmode": "stack",
                "xaxis": across,
                "yaxis": axis("energy in this round", si="J", rangemode="tozero"),
            },
        },
    }
    clock_hz = one.decision.clock_hz
    if clock_hz is not None:
        views |= _times_and_clocks(one, names, order, across)
    clocks = () if clock_hz is None else (clock_hz,)
    columns = ("device", "share", "power", *(["clock"] if clocks else []), *one.parts_j, "queue before")
    rows = [
        (
            play.problem.ids[device],
            percent(one.decision.share[device], 3),
            quantity(one.decision.power_w[device], "W"),
            *(quantity(each[device], "Hz") for each in clocks),
            *(quantity(energy_j[device], "J") for energy_j in one.parts_j.values()),
            quantity(one.before.queue_j[device], "J"),
        )
        for device in order
    ]
    return Chart(
        "shares",
        "Shares and powers",
        _shares_sentence(play, one, order),
        views,
        "Shown",
        table(columns, rows, 300),
        tall=True,
    )


def _times_and_clocks(
    one: JudgedRound, names: list[str], order: NDArray[np.intp], across: dict[str, Any]
) -> dict[str, Any]:
    """How long whole devices compute and send, and at which clock."""
    decision = one.decision
    clock_hz = np.zeros(len(order)) if decision.clock_hz is None else decision.clock_hz[order]
    times = [
        _bar("computing", names, decision.compute_time_s[order], part_mark("computing"), "computes %{y:.3~g} [[y]]"),
        _bar("sending", names, decision.upload_time_s[order], part_mark("radiating"), "sends %{y:.3~g} [[y]]"),
    ]
    seconds = axis("time of the round", si="s", rangemode="tozero")
    hertz = axis("clock", si="Hz", rangemode="tozero")
    return {
        "Time": {"data": times, "layout": {"barmode": "stack", "xaxis": across, "yaxis": seconds}},
        "Clock": {
            "data": [_bar("clock", names, clock_hz, "@c7", "%{y:.3~g} [[y]]")],
            "layout": {"xaxis": across, "yaxis": hertz},
        },
    }


def _decided_sentence(one: JudgedRound, order: NDArray[np.intp]) -> str:
    """What decided the times and clocks of whole devices."""
    uplink, decision = one.observation.uplink, one.decision
    if uplink is None or uplink.device.is_paper_model:
        return ""
    run = (decision.compute_time_s[order], decision.upload_time_s[order], decision.power_w[order])
    told = []
    for what, every, codes in zip(
        ("Upload time", "Clock"), (UPLOAD_BY, CLOCK_BY), uplink.take(order).decided_by(*run), strict=True
    ):
        counts = np.bincount(codes, minlength=len(every))
        words = [f"{words} ({count})" for words, count in zip(every.values(), counts, strict=True) if count]
        told.append(f" {what}: {'; '.join(words)}.")
    return "".join(told)


def _shares_sentence(play: Play, one: JudgedRound, order: NDArray[np.intp]) -> str:
    if not len(order):
        return (
            "Nobody is scheduled in this round."
            if one.decision.status.ok
            else describe(one.decision.status, play.problem.ids)
        )
    share, power_w = one.decision.share[order], one.decision.power_w[order]
    return (
        f"Shares from {percent(share.min(), 2)} to {percent(share.max(), 2)} of the band, powers from "
        f"{quantity(power_w.min(), 'W')} to {quantity(power_w.max(), 'W')}; computing takes "
        f"{quantity(one.compute_j.sum(), 'J')}, sending {quantity(one.upload_j.sum(), 'J')}."
        f"{_decided_sentence(one, order)}"
    )


def _bar(name: str, x: list[str], y: NDArray[np.float64], colour: str | dict[str, Any], shown: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": x,
        "y": numbers(y),
        "marker": {"color": colour} if isinstance(colour, str) else colour,
        "hovertemplate": f"%{{x}}: {shown}<extra></extra>",
    }


def energy_chart(play: Play) -> Chart:
    """All devices' energy over the horizon against what their budgets allow up to then."""
    x = list(range(1, len(play.rounds) + 1))
    compute = np.cumsum([one.compute_j.sum() for one in play.rounds])
    upload = np.cumsum([one.upload_j.sum() for one in play.rounds])
    allowed = play.settings.budget_j_per_round * play.settings.devices * np.arange(1, len(x) + 1)
    over = [0.5, play.settings.rounds + 0.5]
    views = {
        "Energy": {
            "data": [
                line("spent", x, numbers(compute + upload), "@c1", fill="tozeroy", fillcolor="@c1/0.12"),
                line("of it sending", x, numbers(upload), "@c5", line={"dash": "dot"}),
                line("budget so far", x, numbers(allowed), "@muted", line={"dash": "dash", "width": 1.5}),
            ],
            "layout": _over_rounds("energy of all devices", over, si="J"),
        },
        "Queues": {
            "data": [
                line("largest", x, numbers([one.before.queue_j.max() for one in play.rounds]), "@c2"),
                line(
                    "mean", x, numbers([one.before.queue_j.mean() for one in play.rounds]), "@c1", line={"dash": "dash"}
                ),
            ],
            "layout": _over_rounds("virtual queue before the round", over, si="J"),
        },
    }
    if not play.problem.device.is_paper_model:
        views["By part"] = {"data": _stacked(play, x), "layout": _over_rounds("energy of all devices", over, si="J")}
    spent, budget = float(compute[-1] + upload[-1]), float(allowed[-1])
    summary = (
        f"After {several(len(x), 'round')} the devices have spent {quantity(spent, 'J')}, {percent(spent / budget)} of "
        f"what their budgets allow up to then ({quantity(budget, 'J')}); {quantity(float(upload[-1]), 'J')} of it by "
        "sending."
    )
    rows = [
        (str(index + 1), str(int(one.decision.chosen.sum())), quantity(compute[index] + upload[index], "J"),
         quantity(allowed[index], "J"), quantity(one.before.queue_j.max(), "J"))
        for index, one in enumerate(play.rounds)
    ]  # fmt: skip
    shown = table(("round", "scheduled", "spent so far", "budget so far", "largest queue before"), rows)
    return Chart("energy", "Energy over the horizon", summary, views, "Shown", shown)


def _stacked(play: Play, x: list[int]) -> list[dict[str, Any]]:
    """Joules so far by part, on top of each other."""
    return [
        line(
            part,
            x,
            numbers(np.cumsum([one.parts_j[part].sum() for one in play.rounds])),
            part_ink(part),
            stackgroup="joules",
            fillcolor=f"{part_ink(part)}/0.6",
            line={"width": 0.5},
        )
        for part in play.parts_j
    ]


def devices_chart(play: Play) -> Chart:
    """How many devices take part in each round."""
    chosen = np.array([int(one.decision.chosen.sum()) for one in play.rounds])
    could = np.array([int((one.outcome < CANNOT).sum()) for one in play.rounds])
    x = list(range(1, len(chosen) + 1))
    traces = [
        line("scheduled", x, chosen.tolist(), "@c1", line={"shape": "hvh"}),
        line("could take part", x, could.tolist(), "@muted", line={"shape": "hvh", "dash": "dot", "width": 1.5}),
    ]
    summary = (
        f"From {chosen.min()} to {chosen.max()} devices are scheduled in a round, {chosen.mean():.1f} on average"
        + (f"; nobody in {several(empty, 'round')}." if (empty := int((chosen == 0).sum())) else ".")
    )
    layout = _over_rounds("devices", [0.5, play.settings.rounds + 0.5])
    rows = [(str(t), str(one), str(able)) for t, one, able in zip(x, chosen, could, strict=True)]
    shown = table(("round", "scheduled", "could take part"), rows)
    return Chart(
        "count-chart", "How many take part", summary, {"Devices": {"data": traces, "layout": layout}}, "", shown
    )


def _over_rounds(title: str, across: list[float], **style: Any) -> dict[str, Any]:
    down = axis(title, rangemode="tozero", **style)
    return {"xaxis": axis("round", range=across), "yaxis": down, "hovermode": "x unified"}


def budget_chart(play: Play) -> Chart:
    """Each device's energy as a share of its budget for the rounds played."""
    allowed = play.settings.budget_j_per_round * len(play.rounds)
    used = (play.compute_j + play.upload_j) / allowed
    order = np.argsort(-used, kind="stable")
    names = [play.problem.ids[device] for device in order]
    layout = {
        "barmode": "stack",
        "xaxis": axis("device, most energy first", type="category", nticks=12),
        "yaxis": axis("energy, share of the budget so far", tickformat=".2~%", rangemode="tozero"),
    }
    traces = [
        *(
            _bar(part, names, energy_j[order] / allowed, part_mark(part), f"%{{y:.1%}} of its budget: {part}")
            for part, energy_j in play.parts_j.items()
        ),
        line("budget", [names[0], names[-1]], [1, 1], "@ink", line={"dash": "dash", "width": 1.5}, hoverinfo="skip"),
    ]
    over = int((used > 1 + 1e-9).sum())
    verb = "is" if over == 1 else "are"
    summary = f"{several(over, 'device')} of {len(used)} {verb} over the budget so far; the most has used "
    summary = (summary[0].upper() + summary[1:]) + f"{percent(used.max())} of it."
    distance, taken = play.cell.distance_m, play.taken
    rows = [(play.problem.ids[k], percent(used[k]), str(taken[k]), f"{distance[k]:.0f} m") for k in order]
    shown = table(("device", "of its budget", "rounds", "distance"), rows, most=300)
    return Chart("budget", "Use of the budgets", summary, {"Bars": {"data": traces, "layout": layout}}, "", shown)


def gap_chart(play: Play) -> Chart:
    """What the decision of each round is worth, beside the lower bound on what any decision could be."""
    x = list(range(1, len(play.rounds) + 1))
    value = np.array([one.objective for one in play.rounds])
    bound = np.array([one.lower_bound for one in play.rounds])
    over = [0.5, play.settings.rounds + 0.5]
    relative = np.where(bound != 0, (value - bound) / np.where(bound != 0, np.abs(bound), 1.0), np.nan)
    values = {"xaxis": axis("round", range=over), "hovermode": "x unified"}
    values["yaxis"] = axis("drift plus penalty (lower is better)", tickformat="~g")
    gaps = _over_rounds("gap, share of the bound", over)
    gaps["yaxis"] |= {"tickformat": ".3~%", "range": [0, max(1.08 * float(np.nanmax([*relative, 0.0])), 0.01)]}
    views = {
        "Gap": {
            "data": [line("gap", x, numbers(relative, 6), "@c2", fill="tozeroy", fillcolor="@c2/0.12")],
            "layout": {**gaps, "showlegend": False},
        },
        "Value": {
            "data": [
                line("this scheduler", x, numbers(value, 6), "@c1"),
                line("lower bound", x, numbers(bound, 6), "@c3", line={"dash": "dash"}),
            ],
            "layout": values,
        },
    }
    exact = int((value - bound <= 1e-6 * np.maximum(np.abs(bound), 1e-300)).sum())
    summary = (
        f"Proven best in {exact} of {several(len(x), 'round')}, where the value is the bound itself; the largest gap is"
        f" {percent(float(np.nanmax([*relative, 0.0])))} of the bound. What is measured is equation (22) "
        "at the V of the settings, with this scheduler's own queues."
    )
    rows = [(str(t), f"{v:.6g}", f"{b:.6g}", f"{v - b:.3g}") for t, v, b in zip(x, value, bound, strict=True)]
    shown = table(("round", "value", "lower bound", "gap"), rows)
    return Chart("gap", "Distance to the best decision", summary, views, "Shown", shown)


def when_chart(play: Play) -> Chart:
    """Who is scheduled when: devices down, nearest first, rounds across."""
    order = np.argsort(play.cell.distance_m, kind="stable")
    state = np.stack([kind_of(one.outcome) for one in play.rounds], axis=1)[order]
    rows = ["".join("102"[kind] for kind in row) for row in state.tolist()]
    colours = (KINDS[0][1], KINDS[2][1])
    trace = {
        "type": "heatmap",
        "z": {"digits": rows, "ranks": {"1": 1, "2": 2}},
        "text": {"labels": ["not chosen", "scheduled", "could not take part"]},
        "x0": 1,
        "dx": 1,
        "y": [play.problem.ids[device] for device in order],
        "zmin": 0.5,
        "zmax": 2.5,
        "colorscale": [[0, colours[0]], [0.5, colours[0]], [0.5, colours[1]], [1, colours[1]]],
        "xgap": 1 if len(play.rounds) <= 120 else 0,
        "ygap": 1 if len(order) <= 60 else 0,
        "hovertemplate": "%{y}, round %{x}: %{text}<extra></extra>",
        "showscale": False,
    }
    keys = [
        {"type": "scatter", "mode": "markers", "name": KINDS[kind][0], "x": [None], "y": [None],
         "marker": {"symbol": "square", "size": 11, "color": KINDS[kind][1]}}
        for kind in (0, 2) if (state == kind).any()
    ]  # fmt: skip
    layout = {
        "xaxis": axis("round", showgrid=False, range=[0.5, play.settings.rounds + 0.5]),
        "yaxis": axis("device, nearest first", autorange="reversed", showgrid=False, type="category", nticks=12),
        "showlegend": True,
    }
    taken = play.taken
    summary = f"A device takes part in {taken.min()} to {taken.max()} of {several(len(play.rounds), 'round')}" + (
        f"; {several(never, 'device')} in none." if (never := int((taken == 0).sum())) else "."
    )
    shown = table(
        ("device", "distance", "rounds"),
        [(play.problem.ids[k], f"{play.cell.distance_m[k]:.0f} m", str(taken[k])) for k in order],
        most=300,
    )
    views = {"Rounds": {"data": [trace, *keys], "layout": layout}}
    return Chart("when", "Who takes part when", summary, views, "", shown, wide=True)
