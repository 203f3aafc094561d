"""The page of one run, or of several compared: sections with their charts, in one self-contained file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from kfl._version import __version__
from kfl.core.errors import RunFolderError
from kfl.core.files import jsonable, write_atomic
from kfl.core.names import for_html
from kfl.report import text
from kfl.report.charts.cell import (
    cell_chart,
    faults_chart,
    gap_chart,
    participants_chart,
    schedule_chart,
    shares_chart,
)
from kfl.report.charts.energy import battery_chart, budget_chart, pace_chart, parts_chart
from kfl.report.charts.knowledge import knowledge_chart
from kfl.report.charts.learning import accuracy_chart, difference_chart, distribution_chart, fairness_chart
from kfl.report.figures import Chart, Table, ink, stroke
from kfl.report.groups import Group, PageGroups, read_groups
from kfl.report.run_data import RunData
from kfl.runfolder import find_runs

NOT_YET = "No round is finished yet."
OLD = "This run folder has no snapshots (trail.jsonl), which kfl writes during a run since version 0.3."


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading."""

    name: str
    title: str
    charts: Sequence[Chart] = ()
    absent: str = ""
    """Why there are no charts, where there are none."""
    table: Table | None = None
    code: dict[str, str] = field(default_factory=dict)
    """Text to copy by what it is; the first is shown, the others are folded."""
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """What stands on a page; templates/content.html.j2 shows it."""

    heading: str
    sentence: str
    kicker: str = ""
    state: str = ""
    done: bool = False
    cards: Sequence[text.Card] = ()
    overview: Table | None = None
    notes: Sequence[str] = ()
    groups: Sequence[Group] = ()
    """Those that a box hides."""
    sections: Sequence[Section] = ()

    @property
    def title(self) -> str:
        """What a tab of the browser says."""
        return f"{self.heading} · kfl"

    @property
    def links(self) -> list[tuple[str, str]]:
        """Name and title of each section, for the menu."""
        return [(section.name, section.title) for section in self.sections]

    @property
    def figures(self) -> dict[str, Any]:
        """The figures of all charts, for the page's script."""
        charts = [chart for section in self.sections for chart in section.charts]
        return {chart.name: {"views": chart.views, "frames": chart.frames} for chart in charts}


def build_report(paths: list[Path], out: Path | None = None) -> Path:
    """Write the page of run folders, finished or not.

    Args:
        paths: run folders; a folder of run folders stands for all of them.
        out: file to write. By default the page of one run is its report.html, and that of several is report.html
            next to the first of them, which of a comparison is its folder.

    Returns:
        Where the page is.

    Raises:
        RunFolderError: a path is no run folder, a file in one is damaged, or the page cannot be written.
    """
    found = find_runs(paths)
    target = out or (found[0] / "report.html" if len(found) == 1 else found[0].parent / "report.html")
    page = render(compose(read_groups(paths)))
    try:
        write_atomic(target, page.encode())
    except OSError as problem:
        raise RunFolderError(
            f"The page {target} cannot be written ({problem.strerror or problem}); choose another file with --out."
        ) from problem
    return target


def compose(found: PageGroups) -> Page:
    """Return the page of one run or several."""
    run, groups = found.detailed, found.groups
    sections = _common(groups, found.reference)
    overview = text.overview(found) if len(found.runs) > 1 else None
    if run is None:
        changed = Section("differences", "Configuration differences", table=text.what_differs(found))
        return Page(
            heading=text.title_of_all(found),
            sentence=text.sentence_of_all(found),
            kicker="Comparison",
            overview=overview,
            notes=found.fairness,
            groups=groups,
            sections=[*sections, changed],
        )
    seed = run.config.get("seed", "?")
    return Page(
        heading=text.title(run),
        sentence=text.sentence(run),
        kicker=f"{run.name} · {run.scheduler} · seed {seed}",
        state=text.state_of(run),
        done=run.finished and run.uploads > 0,
        cards=text.cards(run),
        overview=overview,
        notes=text.warnings(run),
        groups=groups,
        sections=[*sections, *_details(run)],
    )


def section(name: str, title: str, charts: Sequence[Chart | None], absent: str) -> Section:
    """Return a section with the charts that there are."""
    return Section(name, title, [chart for chart in charts if chart is not None], absent)


def _common(groups: Sequence[Group], reference: Group) -> list[Section]:
    """Sections that show all groups in the same charts."""
    tested = [group for group in groups if all(run.played for run in group.runs)]
    played = any(run.played for group in groups for run in group.runs)
    learning = [accuracy_chart(tested), difference_chart(groups, reference)] if played else []
    devices = [distribution_chart(groups), fairness_chart(groups)]
    energy = [make(tested) for make in (budget_chart, pace_chart, parts_chart, battery_chart)] if played else []
    no_radio = all(group.run.cell is None for group in groups)
    without = "Energy is not counted without a radio." if no_radio else NOT_YET
    return [
        section("learning", "Accuracy", learning, NOT_YET),
        section("by-device", "Accuracy by device", devices, "No device has been tested yet."),
        section("by-budget", "Energy", energy, without),
    ]


def _details(run: RunData) -> list[Section]:
    """Sections about one run."""
    no_radio = "This run has no radio: devices have no position, no share of the band and no power."
    no_knowledge = f"{run.algorithm} does not share knowledge (class prototypes)."
    without = no_knowledge if run.trail else (OLD if run.played else NOT_YET)
    code = {"Commands": text.commands(run), "config.toml": run.config_text}
    return [
        section("who", "Scheduling", [schedule_chart(run), participants_chart(run), gap_chart(run)], NOT_YET),
        section("radio", "Radio and cell", [shares_chart(run), cell_chart(run)], no_radio),
        section("classes", "Knowledge", [knowledge_chart(run)], without),
        section("wrong", "Faults", [faults_chart(run)], "No faults: no upload was lost or refused."),
        Section("again", "Reproduce", code=code, facts=text.facts(run)),
    ]


# ── HTML ─────────────────────────────────────────────────────────────────────


def _escaped(value: object) -> object:
    """Text as HTML that shows it and does nothing else. Whatever a template puts into a page comes through here."""
    return value if isinstance(value, Markup | bool | int) else Markup(for_html(value))


def _whole(value: str) -> Markup:
    """Text of any length."""
    return Markup(for_html(value, None))


_DASH_LENGTHS = {"solid": "", "dash": "9 5", "dot": "2.5 3.5", "dashdot": "9 4 2.5 4"}


@cache
def templates() -> Environment:
    """Return the templates of pages. Text is escaped in one place, `_escaped`."""
    found = Environment(
        loader=PackageLoader("kfl.report"), autoescape=True, finalize=_escaped, trim_blocks=True, lstrip_blocks=True
    )
    found.globals |= {
        "whole": _whole,
        "ink": lambda group: ink(group)[1:],
        "dashes": lambda group: _DASH_LENGTHS[stroke(group)["dash"]],
        "version": __version__,
    }
    return found


@cache
def asset(name: str) -> str:
    """Return a file that belongs to the page."""
    return (files("kfl.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _packed(name: str) -> str:
    """A script as gzip in base64, which the page unpacks: less than half its size."""
    return base64.b64encode(gzip.compress(asset(name).encode(), 9, mtime=0)).decode()


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def html_of(page: Page) -> str:
    """Return what stands between bar and footer."""
    return templates().get_template("content.html.j2").render(page=page)


def data_of(figures: dict[str, Any]) -> str:
    """Return figures as JSON that is safe inside HTML."""
    raw = json.dumps(jsonable(figures), separators=(",", ":"), allow_nan=False)
    return raw.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render(page: Page, live: str | None = None) -> str:
    """Return the whole page; of a live one, with the version of its content."""
    return render_html("page.html.j2", page, html_of(page), connect=live is not None, live=live)


def render_html(
    template: str, page: Page, content: str, *, connect: bool, more: Sequence[str] = (), **values: Any
) -> str:
    """Return a page with its styles, scripts and figures.

    Only kfl's own scripts, known by their hash, may run in it, and it may not request anything, except where it may
    `connect` to its own server. `more` names assets of a page that has more than charts.
    """
    plotly, scripts = "plotly-cartesian.min.js", ["report.js", *(name for name in more if name.endswith(".js"))]
    policy = (
        f"default-src 'none'; script-src {' '.join(_hash(asset(name)) for name in (plotly, *scripts))}; "
        f"style-src 'unsafe-inline'; img-src data: blob:; connect-src '{'self' if connect else 'none'}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        templates()
        .get_template(template)
        .render(
            title=page.title,
            links=page.links,
            content=Markup(content),
            policy=Markup(policy),
            style=Markup("".join(asset(name) for name in ("report.css", *more) if name.endswith(".css"))),
            figures=Markup(data_of(page.figures)),
            plotly=Markup(_packed(plotly)),
            scripts=[Markup(asset(name)) for name in scripts],
            **values,
        )
    )
