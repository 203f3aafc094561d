"""The Grafana dashboard of a fleet: a table of panels, and the JSON that Grafana reads."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""Prometheus, as the reader of the dashboard chooses it."""
HOUR = 3600
"""Rates are shown per hour."""


def _series(name: str) -> str:
    """A metric of the fleets that the reader chose."""
    return f'kfl_{name}{{fleet=~"$fleet"}}'


def _rate(name: str, *, by: str = "", total: bool = False) -> str:
    """How fast a counter grows per second: each series, those of one label summed, or all summed."""
    rate = f"rate({_series(name)}[$__rate_interval])"
    return f"sum by ({by}) ({rate})" if by else f"sum({rate})" if total else rate


def _quantile(part: float, name: str) -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({part}, {_rate(f'{name}_bucket', by='le')})"


@dataclass(frozen=True)
class Panel:
    """One panel of numbers or of lines."""

    title: str
    description: str
    unit: str
    place: tuple[int, int, int, int]
    """Height, width, column and row in Grafana's grid of 24 columns."""
    shown: dict[str, str]
    """Expression by legend."""
    defaults: tuple[tuple[str, Any], ...] = ()


OVERDUE = {
    "mode": "absolute",
    "steps": [{"color": color, "value": value} for color, value in (("green", None), ("orange", 1800), ("red", 3600))],
}
"""Colors of the seconds since the last round."""
NUMBERS = (
    Panel(
        "Rounds done",
        "Of how many the run will have.",
        "none",
        (4, 6, 0, 0),
        {"done": _series("rounds_done"), "planned": _series("rounds_planned")},
    ),
    Panel(
        "Since the last round",
        "",
        "s",
        (4, 4, 6, 0),
        {"": f"time() - {_series('last_round_timestamp_seconds')}"},
        (("thresholds", OVERDUE),),
    ),
    Panel(
        "Devices there now",
        "Of those that ever joined.",
        "none",
        (4, 5, 10, 0),
        {"there": _series("devices_available"), "seen": _series("devices_seen")},
    ),
    Panel(
        "Accuracy",
        "As devices report it from their own test samples.",
        "percentunit",
        (4, 4, 15, 0),
        {"": _series("accuracy_ratio")},
    ),
    Panel("Energy so far", "Of all devices.", "joule", (4, 5, 19, 0), {"": _series("energy_joules_total")}),
)
LINES = (
    Panel(
        "Rounds per hour",
        "By what the server said of them; a round without a quorum changes nothing.",
        "none",
        (8, 12, 0, 4),
        {"{{code}}": f"{_rate('rounds_total', by='code')} * {HOUR}"},
    ),
    Panel(
        "Seconds of a round and of an answer",
        "Half of them were faster than the median, one in twenty slower than the 95th percentile.",
        "s",
        (8, 12, 12, 4),
        {
            f"{what}, {words}": _quantile(part, f"{what}_seconds")
            for what in ("round", "answer")
            for words, part in (("median", 0.5), ("95 %", 0.95))
        },
    ),
    Panel(
        "Chosen and used",
        "Devices per hour that were asked, and uploads that were used.",
        "none",
        (8, 8, 0, 12),
        {"chosen": f"{_rate('chosen_total')} * {HOUR}", "used": f"{_rate('uploads_total')} * {HOUR}"},
    ),
    Panel(
        "What went wrong, per hour",
        "Incidents and refused answers by their code.",
        "none",
        (8, 8, 8, 12),
        {
            "{{code}}": f"{_rate('incidents_total', by='code')} * {HOUR}",
            "refused: {{code}}": f"{_rate('rejected_total', by='code')} * {HOUR}",
        },
    ),
    Panel(
        "Bytes per second",
        "Content of messages, without Flower, HTTP and TLS around it.",
        "Bps",
        (8, 8, 16, 12),
        {"up": _rate("received_bytes_total"), "down": _rate("sent_bytes_total")},
    ),
    Panel(
        "Spent part of the energy budget",
        "The largest of all devices, and each device where the fleet has series per device.",
        "percentunit",
        (8, 8, 0, 20),
        {
            "largest": _series("budget_spent_max_ratio"),
            "device {{device}}": f"topk(10, {_series('device_budget_spent_ratio')})",
        },
        (("min", 0),),
    ),
    Panel(
        "Power",
        "Energy per second of real time.",
        "watt",
        (8, 8, 8, 20),
        {
            "all": _rate("energy_joules_total", total=True),
            "{{part}}": _rate("energy_by_part_joules_total", by="part"),
        },
    ),
    Panel(
        "Privacy spent, ε",
        "Only where uploads have noise. The guarantee and its conditions: kfl.algorithms.privacy.",
        "none",
        (8, 8, 16, 20),
        {
            "largest": _series("privacy_spent_max_epsilon"),
            "alert": _series("privacy_alert_epsilon"),
            "device {{device}}": f"topk(10, {_series('device_privacy_epsilon')})",
        },
    ),
)
DEVICES = (
    ("Since its last answer", "s", f"time() - {_series('device_last_answer_timestamp_seconds')}"),
    ("Unanswered", "none", _series("device_unanswered")),
    ("There", "none", _series("device_available")),
    ("Last answer took", "s", _series("device_answer_seconds")),
    ("Of its energy", "percentunit", _series("device_budget_spent_ratio")),
    ("Energy", "joule", _series("device_energy_joules_total")),
    ("Refused", "none", _series("device_rejected_total")),
    ("Incidents", "none", _series("device_incidents_total")),
    ("ε", "none", _series("device_privacy_epsilon")),
)
"""Columns of the table of devices: name, unit and expression."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    stat = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
    }
    found = [
        *(_panel("stat", panel, stat) for panel in NUMBERS),
        *(_panel("timeseries", panel, {}) for panel in LINES),
        _devices(),
    ]
    return {
        "uid": "kfl-fleet",
        "title": "kfl fleet",
        "tags": ["kfl"],
        "timezone": "browser",
        "editable": True,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": []},
        "links": [],
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "templating": {"list": [_choice_of_source(), _choice_of_fleet()]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(found, 1)],
    }


def _choice_of_source() -> dict[str, Any]:
    return {
        **{"name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus", "current": {}},
        **{"hide": 0, "refresh": 1, "regex": "", "includeAll": False, "multi": False, "options": []},
    }


def _choice_of_fleet() -> dict[str, Any]:
    values = "label_values(kfl_rounds_done, fleet)"
    return {
        **{"name": "fleet", "type": "query", "label": "Fleet", "datasource": SOURCE, "definition": values},
        **{"query": {"query": values, "refId": "fleet"}, "refresh": 2, "includeAll": True, "multi": True},
        **{"allValue": ".*", "current": {"text": "All", "value": "$__all"}, "hide": 0, "sort": 1},
        **{"regex": "", "options": []},
    }


def _panel(kind: str, panel: Panel, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": dict(zip("hwxy", panel.place, strict=True)),
        "fieldConfig": {"defaults": {"unit": panel.unit, **dict(panel.defaults)}, "overrides": []},
        "options": options,
        "targets": [_target(*one) for one in zip(ascii_uppercase, panel.shown.values(), panel.shown, strict=False)],
    }


def _target(letter: str, expression: str, legend: str = "", *, at_once: bool = False) -> dict[str, Any]:
    target = {"datasource": SOURCE, "editorMode": "code", "expr": expression, "legendFormat": legend}
    return {
        **target,
        "range": not at_once,
        "refId": letter,
        **({"format": "table", "instant": True} if at_once else {}),
    }


def _devices() -> dict[str, Any]:
    """The table with a row for each device: one column per expression, joined by the device."""
    hint = "Empty in a fleet of more than [fleet] metrics_devices devices: kfl deploy status shows them."
    panel = _panel("table", Panel("Devices", hint, "", (12, 24, 0, 28), {}), {})
    columns = list(zip(ascii_uppercase, DEVICES, strict=False))
    names = [
        {
            "matcher": {"id": "byName", "options": f"Value #{letter}"},
            "properties": [{"id": "displayName", "value": title}, {"id": "unit", "value": unit}],
        }
        for letter, (title, unit, _) in columns
    ]
    hidden = dict.fromkeys(("Time", *(f"Time {number}" for number in range(1, len(DEVICES) + 1))), True)
    return {
        **panel,
        "fieldConfig": {"defaults": {}, "overrides": names},
        "targets": [_target(letter, f"max by (device) ({text})", at_once=True) for letter, (_, _, text) in columns],
        "transformations": [
            {"id": "joinByField", "options": {"byField": "device", "mode": "outer"}},
            {"id": "organize", "options": {"excludeByName": hidden}},
        ],
    }
