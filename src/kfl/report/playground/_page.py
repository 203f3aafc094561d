"""The playground as a page: controls beside results. The look and the charts' script are those of `kfl report`."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import fields

import numpy as np

from kfl._version import __version__
from kfl.core.text import several
from kfl.report.chart import Chart
from kfl.report.markup import cards_html, code_html, section_html
from kfl.report.page import Content, asset, data_of
from kfl.report.playground._charts import (
    budget_chart,
    devices_chart,
    energy_chart,
    gap_chart,
    map_chart,
    shares_chart,
    when_chart,
)
from kfl.report.playground._model import Play
from kfl.report.playground._settings import CONTROLS, STARTS, Control, Settings, start
from kfl.report.words import percent, quantity, text
from kfl.scheduling import SCHEDULERS, by_part, describe, dominant
from kfl.scheduling.problem_file import json_text, problem_table
from kfl.wireless import PRESETS

GROUPS = {
    "Scheduler": ("relative_v", "count"),
    "Energy": ("budget_j_per_round", "power_coefficient", "flops", "deadline_s"),
    "Radio": ("bandwidth_hz", "payload_bits", "radius_m", "max_power_dbm"),
    "Device": (
        "min_cpu_hz",
        "static_power_w",
        "circuit_power_w",
        "amplifier_efficiency",
        "min_power_dbm",
        "tail_energy_j",
    ),
    "Fleet": ("devices", "samples", "rounds", "round", "seed"),
}
STEPS = 1000
"""Positions of a slider."""


def compose_play(play: Play, settings: Settings) -> Content:
    """The numbers beside the controls, for the rounds that are played."""
    index = min(settings.round, len(play.rounds)) - 1  # a round that is not played yet is shown when it is
    content = Content("kfl playground")
    content.html = f'<h1 class="unseen">Playground of the scheduler</h1>{cards_html(cards(play, index))}'
    content.html += f'<p class="lead" id="sentence">{text(sentence(play, index))}</p>'
    charts = content.charts([map_chart(play, index), shares_chart(play, index)], "")
    content.section("one", f"Round {index + 1}", charts)
    over: list[Chart | None] = [energy_chart(play), budget_chart(play), gap_chart(play), devices_chart(play)]
    so_far = several(len(play.rounds), "round") + ("" if play.done else f" of {settings.rounds}")
    content.section("horizon", f"Over {so_far}", content.charts([*over, when_chart(play)], ""))
    content.links = [("one", "Round"), ("horizon", "Horizon"), ("take", "Take it home")]
    content.html += section_html("take", "Take it home", _take_home(settings))
    return content


def cards(play: Play, index: int) -> list[tuple[str, str, str]]:
    """The numbers on top."""
    one = play.rounds[index]
    chosen = int(one.decision.chosen.sum())
    spent = float(play.compute_j.sum() + play.upload_j.sum())
    budget = play.settings.budget_j_per_round * play.settings.devices * len(play.rounds)
    used = (play.compute_j + play.upload_j) / (play.settings.budget_j_per_round * len(play.rounds))
    relative = one.gap / abs(one.lower_bound) if one.lower_bound else 0.0
    mean = float(np.mean([other.decision.chosen.sum() for other in play.rounds]))
    gap = "none" if relative <= 1e-6 and one.gap <= 1e-12 + 1e-6 * abs(one.lower_bound) else f"{one.gap:.3g}"
    return [
        (f"scheduled in round {index + 1}", f"{chosen} of {play.settings.devices}", f"{mean:.1f} on average"),
        ("band in use", percent(float(one.decision.share.sum())), f"of {quantity(play.settings.bandwidth_hz, 'Hz')}"),
        ("gap to the bound", gap, f"value {one.objective:.4g}, bound {one.lower_bound:.4g}"),
        ("energy so far", quantity(spent, "J"), f"{percent(spent / budget)} of the budgets up to then"),
        (
            "samples trained on",
            percent(mean / play.settings.devices),
            "of the fleet's in a round: stands in for accuracy, as nothing is trained here",
        ),
        ("over budget", str(int((used > 1 + 1e-9).sum())), f"the most at {percent(float(used.max()), 0)}"),
    ]


def sentence(play: Play, index: int) -> str:
    """What to see, in words."""
    one = play.rounds[index]
    whole = not play.problem.device.is_paper_model
    sentences = [by_part(play.parts_j) if whole else dominant(play.compute_j, play.upload_j)]
    slow = int(play.problem.too_slow.sum())
    if slow:
        sentences.append(
            f"{several(slow, 'device')} can never take part: computing alone takes past the deadline.".capitalize()
        )
    if not one.decision.status.ok:
        sentences.append(describe(one.decision.status, play.problem.ids))
    return " ".join(sentences)


def news(play: Play, settings: Settings) -> str:
    """The result in a few words, always in sight and read aloud when it changes; or how far the horizon is."""
    if not play.done:
        return f"{len(play.rounds)} of {settings.rounds} rounds played …"
    chosen = int(play.rounds[settings.round - 1].decision.chosen.sum())
    spent = float(play.compute_j.sum() + play.upload_j.sum()) / float(play.problem.budget_j.sum())
    return f"{chosen} of {settings.devices} scheduled, {percent(spent, 0)} of the budgets"


def _take_home(settings: Settings) -> str:
    query = text(settings.query())
    return (
        '<div class="take"><div><h3>Python</h3>' + code_html(python_code(settings), "Python program", "python")
        + "</div><div><h3>Command line</h3>" + code_html(command_lines(settings), "Commands", "commands")
        + f'<p class="note"><a id="file" href="cell.json?{query}" download="cell.json">Download cell.json</a>: these '
        f'devices with their channel in every round. <a id="link" href="?{query}">Link to this state</a>: the address '
        "of this page holds every setting.</p></div></div>"
    )  # fmt: skip


# ── The state to take home: as a program, as commands, as a file ─────────────


def _changed(settings: Settings) -> dict[str, float]:
    """The fields of the radio that are not as the preset has them."""
    preset = PRESETS[settings.cell]
    return {name: value for name, value in settings.moved().items() if value != getattr(preset, name)}


def _parameters(settings: Settings) -> dict[str, object]:
    """Parameters of the scheduler that are not its defaults."""
    made = settings.make_scheduler()
    return {f.name: getattr(made, f.name) for f in fields(made) if getattr(made, f.name) != f.default}


def python_code(settings: Settings) -> str:
    """A program that decides every round of this state, by the library alone."""
    kind = type(settings.make_scheduler()).__name__
    given = ", ".join(f"{name}={value!r}" for name, value in _parameters(settings).items())
    radio = f'PRESETS["{settings.cell}"]'
    if changed := _changed(settings):
        radio = f"replace({radio}, {', '.join(f'{name}={value!r}' for name, value in changed.items())})"
    hard = ", hard_budget=True" if settings.hard_budget else ""
    return f"""\
from dataclasses import replace

from kfl.scheduling import {kind}, schedule
from kfl.wireless import PRESETS, Cell

radio = {radio}
cell = Cell.build(radio, devices={settings.devices}, seed={settings.seed})
problem = cell.problem(
    rounds={settings.rounds}, flops={settings.flops!r}, payload_bits={settings.payload_bits!r},
    samples={settings.samples!r}{hard},
)
horizon = schedule(problem, {kind}({given}))

shown = horizon.rounds[{settings.round - 1}]
for device, share, power_w in zip(shown.devices, shown.share, shown.power_w):
    print(f"{{problem.ids[device]}}: {{share:.2%}} of the band, {{power_w:.3g}} W")
spent_j = horizon.compute_energy_j + horizon.upload_energy_j
print(f"{{len(shown.devices)}} devices; the fleet spends {{spent_j.sum():.4g}} J of {{problem.budget_j.sum():.4g}} J")
"""


def command_lines(settings: Settings) -> str:
    """The same decisions with `kfl schedule`, and a training run in the same cell with `kfl run`."""
    flags = [f"--scheduler {settings.scheduler}"]
    flags += [f"--scheduler.{name.replace('_', '-')} {value}" for name, value in _parameters(settings).items()]
    cell = [f"--radio {settings.cell}"]
    cell += [f"--radio.{name.replace('_', '-')} {value!r}" for name, value in _changed(settings).items()]
    fleet = [f"--devices {settings.devices}", f"--rounds {settings.rounds}", f"--seed {settings.seed}"]
    fleet += ["--hard-budget"] if settings.hard_budget else []
    return (
        "# These very decisions, from the file cell.json below:\n"
        f"kfl schedule cell.json {' '.join(flags)}\n\n"
        "# Train in this cell. Payload and computation are then those of the model and the algorithm:\n"
        f"kfl run {' '.join([*fleet, *cell, *flags])}\n"
    )


def problem_file(settings: Settings) -> str:
    """The cell with its channel as a file for `kfl schedule`."""
    top, devices = problem_table(Play(settings).problem)
    return json_text({**top, "devices": devices})


# ── The page ─────────────────────────────────────────────────────────────────


def answer_json(play: Play, settings: Settings) -> str:
    """The results as the page's script takes them."""
    content = compose_play(play, settings)
    facts = {
        "title": content.title,
        "html": content.html,
        "links": content.links,
        "query": settings.query(),
        "done": play.done,
        "news": news(play, settings),
    }
    return f'{json.dumps(facts)[:-1]}, "figures": {data_of(content)}}}'


def render_playground(play: Play, settings: Settings, problem: str = "") -> str:
    """The whole page, with the first results in it."""
    content = compose_play(play, settings)
    scripts = [asset("plotly-cartesian.min.js"), asset("report.js"), asset("playground.js")]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in content.links)
    return (
        '<!doctype html>\n<html lang="en" data-theme="auto">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>kfl playground</title>\n<style>{asset('report.css')}{asset('playground.css')}</style>\n</head>\n"
        "<body>\n"
        '<a class="skip" href="#main">Skip to the results</a>\n'
        f'<div class="bar"><span class="brand">kfl playground</span><nav id="menu" aria-label="Sections">{links}</nav>'
        f'<span id="news" role="status">{text(news(play, settings))}</span>'
        '<button type="button" id="theme" aria-label="Theme: automatic">Auto</button></div>\n'
        f'<div class="sides">{controls_html(settings, problem)}\n'
        f'<main id="main" tabindex="-1" data-done="{int(play.done)}">{content.html}</main></div>\n'
        f"<footer>kfl {__version__}, on this machine only. Every number comes from the library.</footer>\n"
        '<noscript><p class="absent">The playground needs JavaScript.</p></noscript>\n'
        f'<script type="application/json" id="figures">{data_of(content)}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def controls_html(settings: Settings, problem: str = "") -> str:
    """The left side: a list of whole cells, the scheduler, and a slider and a number for everything else."""
    starts = "".join(
        f'<option value="{text(name)}" data-settings="{text(json.dumps(start(name).table()))}"'
        f"{' selected' if name == settings.cell else ''}>{text(label)}</option>"
        for name, (label, _) in STARTS.items()
    )
    known = {control.name: control for control in CONTROLS}
    parts = {name: "".join(_control(known[one], settings) for one in members) for name, members in GROUPS.items()}
    parts["Scheduler"] = _choices(settings) + parts["Scheduler"]
    parts["Fleet"] += '<button type="button" id="reseed">Another seed</button>'
    groups = "".join(
        f'<details class="group" id="group-{name.lower()}" open><summary>{name}</summary>{inner}</details>'
        for name, inner in parts.items()
    )
    return (
        '<form id="controls" aria-label="Settings" autocomplete="off">'
        f'<p id="problem" class="problem" role="alert"{"" if problem else " hidden"}>{text(problem)}</p>'
        f'<div class="starts"><label for="start">Start from</label><select id="start">{starts}</select>'
        '<button type="button" id="restart" title="Set everything as this cell has it">Start over</button></div>'
        f'<input type="hidden" id="cell" name="cell" value="{text(settings.cell)}">{groups}</form>'
    )


def _choices(settings: Settings) -> str:
    schedulers = "".join(
        f'<option value="{name}" title="{text(SCHEDULERS[name].about())}" data-takes="{_takes(name)}"'
        f"{' selected' if name == settings.scheduler else ''}>{name}</option>"
        for name in SCHEDULERS
    )
    gammas = "".join(
        f'<option value="{value}"{" selected" if value == settings.gamma else ""}>{label}</option>'
        for value, label in (("inverse", "1/(t+1), as in the paper"), ("constant", "1 in every round"))
    )
    hard = " checked" if settings.hard_budget else ""
    return (
        '<div class="control choice"><label for="scheduler">Scheduler</label>'
        f'<select id="scheduler" aria-describedby="scheduler-hint">{schedulers}</select>'
        f'<p class="hint" id="scheduler-hint">{text(SCHEDULERS[settings.scheduler].about())}</p></div>'
        f'<div class="control choice" id="of-gamma"><label for="gamma">γ, weight of round t</label>'
        f'<select id="gamma">{gammas}</select></div>'
        f'<div class="control check"><label><input type="checkbox" id="hard_budget"{hard}> Hard budget: nobody may '
        "spend more than it has</label></div>"
    )


def _takes(scheduler: str) -> str:
    return " ".join(field.name for field in fields(SCHEDULERS[scheduler]))


def _control(control: Control, settings: Settings) -> str:
    name, value = control.name, getattr(settings, control.name)
    most = settings.rounds if name == "round" else control.most
    shown = f"{value / control.per_unit:.12g}"
    unit = f'<span class="unit">{text(control.unit)}</span>' if control.unit else ""
    direct = control.scale not in ("log", "zero")  # then one press of an arrow key is one step of the value itself
    step = {"whole": "1", "linear": "0.5"}.get(control.scale, "1")
    ends = (control.least, most) if direct else (0, STEPS)
    slider = (
        f'<input type="range" class="slider" id="{name}-slider" min="{ends[0]:g}" max="{ends[1]:g}" step="{step}" '
        f'aria-label="{text(control.label)}, slider">'
    )
    return (
        f'<div class="control" id="of-{name}" data-name="{name}" data-scale="{control.scale}" '
        f'data-least="{control.least!r}" data-most="{most!r}" data-per="{control.per_unit!r}">'
        f'<label for="{name}">{text(control.label)}</label><span class="number"><input type="text" inputmode="decimal" '
        f'id="{name}" value="{shown}" aria-describedby="{name}-hint" maxlength="24">{unit}</span>'
        f'{"" if name == "seed" else slider}<p class="hint" id="{name}-hint">{text(control.help)}</p></div>'
    )
