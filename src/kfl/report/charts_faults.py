"""What went wrong: faults, lost and refused uploads, round by round and by reason."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kfl.core.text import several
from kfl.report.chart import Chart, Table, axis, numbers
from kfl.report.words import percent, text
from kfl.runfolder import RunData

MOST_BARS = 60
WORDS = {
    "drop_before": "silent before training",
    "battery_empty": "battery empty",
    "drop_after": "silent after training",
    "late": "too late",
    "outage": "lost on the channel",
    "corrupt": "arrived as rubbish",
    "poisoned": "poisoned",
    "refused": "refused by the server",
    "diverged": "training diverged",
}
"""Kinds of incident, in the order in which a chart stacks them."""
INKS = ("@c6", "@c4", "@c3", "@c5", "@c1", "@c7", "@c8", "@c2", "@ink")
PATTERNS = ("", "/", "", ".", "", "x", "\\", "", "-")
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
        place = list(WORDS).index(kind) if kind in WORDS else 0
        at = np.array([incident.round for incident in incidents if incident.kind == kind]) * bars // run.played
        name = text(WORDS.get(kind, kind))
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": numbers(middle),
                "y": np.bincount(at, minlength=bars).tolist(),
                "marker": {
                    "color": INKS[place],
                    "pattern": {"shape": PATTERNS[place], "fillmode": "overlay", "fgcolor": "@panel", "size": 6},
                },
                "hovertemplate": f"{name}: %{{y}}<extra></extra>",
            }
        )
    each = "" if bars == run.played else f", {run.played / bars:.1f} rounds to a bar"
    layout = {"barmode": "stack", "bargap": 0.1, "xaxis": axis(f"round{each}"), "yaxis": axis("devices")}
    told = [f"{WORDS.get(kind, kind)} {counted[kind]:,}" for kind in kinds]
    share = len(incidents) / max(len(run.rounds.device), 1)
    chosen = f"{len(run.rounds.device):,} times a device was chosen"
    summary = f"{several(len(incidents), 'fault')} in {chosen} ({percent(share)}): "
    return Chart(
        f"{prefix}faults",
        "Faults and refused uploads",
        summary + ", ".join(told) + ".",
        {"": {"data": traces, "layout": {**layout, "hovermode": "x unified"}}},
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
            WORDS.get(kind, kind),
            reason or "–",
            f"{len(found):,}",
            f"{len({device for _, device in found}):,}",
            f"{min(found)[0] + 1} to {max(found)[0] + 1}",
        )
        for (kind, reason), found in ranked[:40]
    ]
    note = f"{len(rows)} of {len(ranked)} kinds and reasons." if len(rows) < len(ranked) else ""
    return Table(("what", "reason", "times", "devices", "rounds"), tuple(rows), note)
