"""Tables about a fleet that come from the code: MkDocs calls `on_page_markdown` for each page.

A line of its own in a page becomes

    <!-- fleet: metrics -->                 every metric, as a server exports it
    <!-- fleet: alerts -->                  every alert of a new project
    <!-- fleet: events -->                  every event in the logs
    <!-- fleet: settings deadline_s … -->   these fields of `[fleet]`, or all of them
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib.resources import files
from typing import Any

import yaml

LINE = re.compile(r"^<!-- fleet: (metrics|alerts|events|settings)((?: \w+)*) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with its tables filled in."""
    return LINE.sub(lambda found: _part(found[1], found[2].split()), markdown)


def _part(kind: str, names: list[str]) -> str:
    if kind == "settings":
        return _table(("`[fleet]`", "default", ""), _settings(names))
    if kind == "metrics":
        return _table(("metric", "type", ""), metrics())
    if kind == "alerts":
        return _table(("alert", "severity", "fires when", "says"), alerts())
    return _table(("event", ""), _events())


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def metrics() -> Iterator[tuple[str, str, str]]:
    """Name, type and description of all that a server exports when uploads have noise, so that nothing is left out."""
    from kfl.algorithms import Kfl
    from kfl.experiment import Experiment
    from kfl_fleet import FleetSettings, ServerConfig
    from kfl_fleet.server.metrics import Metrics

    experiment = replace(Experiment(), algorithm=Kfl(clip_norm=1.0, noise_multiplier=1.0))
    config = ServerConfig(experiment, FleetSettings(privacy_alert_epsilon=1.0))
    for family in Metrics(config).registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield _whole(name), family.type, family.documentation


def alerts() -> Iterator[tuple[str, str, str, str]]:
    """Name, severity, condition and message; $value and labels stay as they are."""
    text = (files("kfl_fleet.project") / "template" / "watch" / "alerts.yml.in").read_text(encoding="utf-8")
    for group in yaml.safe_load(text.replace("@@name@@", "fleet"))["groups"]:
        for rule in group["rules"]:
            lasting = f", for {rule['for']}" if "for" in rule else ""
            says = re.sub(r"\{\{ \$(?:labels\.)?(\w+).*?\}\}", r"*\1*", rule["annotations"]["summary"])
            yield _whole(rule["alert"]), rule["labels"]["severity"], f"`{rule['expr']}`{lasting}", says


def _events() -> Iterator[tuple[str, str]]:
    from kfl_fleet.logs import EVENTS

    for event, meaning in EVENTS.items():
        yield _whole(event), meaning


def _settings(names: list[str]) -> Iterator[tuple[str, str, str]]:
    from kfl_fleet import FleetSettings

    meanings = _field_docstrings(FleetSettings)
    defaults = {field.name: field.default for field in fields(FleetSettings)}
    for name in names or defaults:
        yield _whole(name), _default(defaults[name]), meanings[name]


def _whole(name: str) -> str:
    """A name that is never broken in two: its column gets the room it needs."""
    return f'<code style="white-space: nowrap">{name}</code>'


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value:.3g}`" if isinstance(value, float) else f"`{value}`"


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string below each field of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found
