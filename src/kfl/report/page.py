"""The page of one run, or of several compared: sections with their charts, in one self-contained file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kfl._version import __version__
from kfl.core.errors import RunFolderError
from kfl.core.files import jsonable, write_atomic
from kfl.report.chart import Chart
from kfl.report.charts_accuracy import accuracy_chart, is_alone
from kfl.report.charts_battery import battery_chart
from kfl.report.charts_devices import distribution_chart, fairness_chart
from kfl.report.charts_difference import difference_chart, own_difference_chart
from kfl.report.charts_energy import budget_chart, pace_chart, parts_chart
from kfl.report.charts_knowledge import knowledge_chart, motion_chart
from kfl.report.charts_radio import cell_chart, shares_chart
from kfl.report.charts_schedule import faults_chart, participants_chart, schedule_chart
from kfl.report.companions import Companions, companions
from kfl.report.groups import Comparison, Group, group_runs, read_comparison, seed_of
from kfl.report.markup import (
    absent_html,
    cards_html,
    chart_html,
    code_html,
    controls_html,
    facts_html,
    section_html,
    table_html,
)
from kfl.report.overview import cards, commands, facts, sentence, state_of, title, warnings
from kfl.report.side_by_side import overview, what_differs
from kfl.report.side_by_side import sentence as comparison_sentence
from kfl.report.side_by_side import title as comparison_title
from kfl.report.words import text
from kfl.runfolder import RunData, find_runs

MOST_DETAILED = 24
"""Runs of a comparison that each have their own charts; of more, one run of each group has."""
OLD = "This run folder has no trail of its rounds (trail.jsonl), which kfl now writes during a run."


@dataclass
class Content:
    """What stands on a page: its HTML and the figures that belong into it."""

    title: str
    html: str = ""
    links: list[tuple[str, str]] = field(default_factory=list)
    """Sections for the menu: name and title."""
    figures: dict[str, Any] = field(default_factory=dict)

    def section(self, name: str, title: str, inner: str, intro: str = "", *, linked: bool = True) -> None:
        """Add a section."""
        self.html += section_html(name, title, inner, intro)
        if linked:
            self.links.append((name, title))

    def charts(self, found: list[Chart | None], absent: str) -> str:
        """HTML of charts in a grid; the sentence where there is none of them."""
        drawn = [chart for chart in found if chart is not None]
        for chart in drawn:
            self.figures[chart.name] = {"views": chart.views, "frames": chart.frames}
        return f'<div class="grid">{"".join(map(chart_html, drawn))}</div>' if drawn else absent_html(absent)


def build_report(paths: list[Path], out: Path | None = None) -> Path:
    """Write the page of run folders, finished or not, and return where it is.

    A folder of run folders means all of them. By default the page of one run is its report.html, and that of
    several is report.html beside the first of them, which of a comparison is its folder.
    """
    found = find_runs(paths)
    target = out or (found[0] / "report.html" if len(found) == 1 else found[0].parent / "report.html")
    page = render(compose(read_comparison(paths)))
    try:
        write_atomic(target, page.encode())
    except OSError as problem:
        raise RunFolderError(
            f"The page {target} cannot be written ({problem.strerror or problem}); choose another file with --out."
        ) from problem
    return target


def compose(runs: Comparison | Sequence[RunData]) -> Content:
    """The content of the page of one run or several."""
    comparison = runs if isinstance(runs, Comparison) else group_runs(runs)
    groups = comparison.groups
    if is_alone(groups):
        run = groups[0].run
        beside = companions(run)
        content = Content(f"{title(run)} · kfl")
        _top(content, run, beside)
        content.html += controls_html([])
        _common(content, [replace(groups[0], name=run.algorithm)], own_difference_chart(run, beside))
        _details(content, run, "")
        return content
    content = Content(f"{comparison_title(comparison)} · kfl")
    _compared(content, comparison)
    _common(content, groups, difference_chart(groups, comparison.reference))
    _all_details(content, comparison)
    return content


def _top(content: Content, run: RunData, beside: Companions) -> None:
    done = run.finished and len(run.rounds.device)
    state = f'<span class="badge{" done" if done else ""}">{text(state_of(run))}</span>'
    notes = "".join(absent_html(note) for note in warnings(run))
    content.html += (
        f'<header class="intro-block" id="top"><p class="kicker">{text(run.name)} · {text(run.scheduler)} · '
        f"seed {text(run.config.get('seed', '?'))} {state}</p><h1>{text(title(run))}</h1>"
        f'<p class="lead">{text(sentence(run))}</p>{cards_html(cards(run, beside))}{notes}</header>'
    )


def _compared(content: Content, comparison: Comparison) -> None:
    names = [(group.index, group.name) for group in comparison.groups]
    content.html += (
        '<header class="intro-block" id="top"><p class="kicker">Comparison</p>'
        f"<h1>{text(comparison_title(comparison))}</h1>"
        f'<p class="lead">{text(comparison_sentence(comparison))}</p>'
        f"{table_html(overview(comparison), 'Runs side by side')}</header>{controls_html(names)}"
    )


def _common(content: Content, groups: Sequence[Group], difference: Chart | None) -> None:
    """Sections that show all groups in the same charts."""

    def add(name: str, title: str, found: list[Chart | None], absent: str) -> None:
        content.section(name, title, content.charts(found, absent))

    played = any(run.played for group in groups for run in group.runs)
    not_yet = "No round is finished yet."
    tested = [group for group in groups if all(run.played for run in group.runs)]
    add("learning", "Accuracy", [accuracy_chart(tested), difference] if played else [], not_yet)
    devices = [distribution_chart(groups), fairness_chart(groups)]
    add("by-device", "Device by device", devices, "No device has been tested yet.")
    energy = [make(tested) for make in (budget_chart, pace_chart, parts_chart, battery_chart)] if played else []
    no_radio = all(group.run.cell is None for group in groups)
    add("by-budget", "Energy", energy, "Energy is not counted without a radio." if no_radio else not_yet)


def _details(content: Content, run: RunData, prefix: str) -> None:
    """Sections about one run alone."""
    alone = prefix == ""

    def add(name: str, title: str, found: list[Chart | None], absent: str) -> None:
        content.section(f"{prefix}{name}", title, content.charts(found, absent), linked=alone)

    not_yet = "No round is finished yet."
    add("who", "Scheduling", [schedule_chart(run, prefix), participants_chart(run, prefix)], not_yet)
    no_radio = "This run has no radio: devices have no position, no share of the band and no power."
    radio = [shares_chart(run, prefix), cell_chart(run, prefix)]
    add("radio", "Radio and cell", radio, no_radio)
    has_trail = bool(run.trail) or not run.played
    without = f"{run.algorithm} shares no knowledge: its server keeps something else, or nothing."
    knowledge = [knowledge_chart(run, prefix), motion_chart(run, prefix)]
    absent = without if run.trail else (OLD if not has_trail else not_yet)
    add("classes", "Knowledge", knowledge, absent)
    add("wrong", "Faults", [faults_chart(run, prefix)], "Nothing went wrong: no fault, no upload lost or refused.")
    inner = code_html(commands(run), "Commands", f"{prefix}commands") + facts_html(facts(run))
    inner += f'<details id="{prefix}config-box"><summary>config.toml</summary>'
    inner += code_html(run.config_text, "Configuration", f"{prefix}config") + "</details>"
    content.section(f"{prefix}again", "Repeat it", inner, linked=alone)


def _all_details(content: Content, comparison: Comparison) -> None:
    groups = comparison.groups
    shown = [(group, run) for group in groups for run in group.runs]
    note = ""
    if len(shown) > MOST_DETAILED:
        shown = [(group, group.run) for group in groups]
        note = '<p class="note">One run of each group; kfl report of a run folder shows another.</p>'
    names = [group.name if len(group.runs) == 1 else f"{group.name}, seed {seed_of(run)}" for group, run in shown]
    options = "".join(
        f'<option value="{index}" data-group="{group.index}">{text(name)}</option>'
        for index, (name, (group, _)) in enumerate(zip(names, shown, strict=True))
    )
    content.html += (
        '<section id="each" aria-labelledby="each-title"><h2 id="each-title">Run by run</h2>'
        f'<label class="chooser" for="run-choice">Run <select id="run-choice">{options}</select></label>{note}'
        "</section>"
    )
    content.links.append(("each", "Run by run"))
    for index, (_, run) in enumerate(shown):
        content.html += f'<div class="run" data-run="{index}"{"" if index == 0 else " hidden"}>'
        _details(content, run, f"r{index}-")
        content.html += "</div>"
    changed = table_html(what_differs(comparison), "What differs between the configurations, seeds apart")
    content.section("differences", "What differs", changed)


def data_of(content: Content) -> str:
    """The figures as JSON that is safe inside HTML."""
    raw = json.dumps(jsonable(content.figures), separators=(",", ":"), allow_nan=False)
    return raw.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def asset(name: str) -> str:
    """A file that belongs to the page."""
    return (files("kfl.report") / "assets" / name).read_text(encoding="utf-8")


def render(content: Content, live: str | None = None) -> str:
    """The whole page; for a live one, with the version of its content.

    Only kfl's own scripts, known by their hash, may run in it, and it may not request anything, except
    a live page its own server.
    """
    scripts = [asset("plotly-cartesian.min.js"), asset("report.js")]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    connect = "'none'" if live is None else "'self'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    mark = "" if live is None else f' data-live="{text(live)}"'
    links = "".join(f'<a href="#{text(name)}">{text(title)}</a>' for name, title in content.links)
    return (
        '<!doctype html>\n<html lang="en" data-theme="auto">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(content.title)}</title>\n<style>{asset('report.css')}</style>\n</head>\n"
        f'<body{mark}>\n<a class="skip" href="#main">Skip to the results</a>\n'
        f'<div class="bar"><span class="brand">kfl</span><nav id="menu" aria-label="Sections">{links}</nav>'
        '<span id="news" role="status"></span>'
        '<button type="button" id="theme" aria-label="Theme: automatic">Auto</button></div>\n'
        f'<main id="main" tabindex="-1">{content.html}</main>\n'
        f"<footer>Made by kfl {__version__}. {'' if live else 'This page is complete: it works without a network.'}"
        "</footer>\n"
        '<noscript><p class="absent">The charts need JavaScript; the tables under them do not.</p></noscript>\n'
        f'<script type="application/json" id="figures">{data_of(content)}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )
