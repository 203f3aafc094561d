"""The playground: a page on this machine to learn the scheduler. Set something, and the library decides anew.

Its charts are those of a report, on rounds that are scheduled and not trained.

>>> play = Play(Settings(devices=20, rounds=5, scheduler="dual"))
>>> play.advance()
>>> play.run.rounds.per_round().tolist()
[20.0, 0.0, 0.0, 3.0, 0.0]
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from kfl.core.errors import KflError
from kfl.core.text import several
from kfl.report import text
from kfl.report.charts.cell import cell_chart, gap_chart, participants_chart, schedule_chart, shares_chart
from kfl.report.charts.energy import budget_chart, pace_chart, parts_chart
from kfl.report.controls import (
    CONTROLS,
    GROUPS,
    OPENING,
    STARTS,
    Control,
    Settings,
    command_lines,
    python_code,
    start,
)
from kfl.report.groups import Group
from kfl.report.loopback import Answer, LoopbackServer
from kfl.report.page import Page, data_of, render_html, section, templates
from kfl.report.run_data import JudgedRound, RunData
from kfl.scheduling import SCHEDULERS, DriftScheduler, Dual
from kfl.scheduling.energy_report import by_part, dominant
from kfl.scheduling.objective import data_weight, drift_objective
from kfl.scheduling.problem_writer import json_text, problem_table
from kfl.scheduling.simulate import RoundResult, simulate
from kfl.scheduling.status import describe
from kfl.wireless import Cell

PORT = 8379
"""Where the page is, unless that port is taken."""
LONGEST_QUERY = 2000
FIRST_S, NEXT_S = 0.06, 0.3
"""How long rounds are scheduled before the first answer, and before each that follows while the horizon is not done."""
KEPT = 8
"""Settings whose rounds are kept."""


class Play:
    """The rounds of one state of the playground. `advance` continues, and can be called again and again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cell = Cell.build(settings.radio, settings.devices, settings.seed)
        self.problem = self.cell.problem(
            settings.rounds,
            flops=settings.flops,
            payload_bits=settings.payload_bits,
            samples=settings.samples,
            hard_budget=settings.hard_budget,
        )
        self.rounds: list[JudgedRound] = []
        scheduler = settings.make_scheduler()
        self._ahead = simulate(self.problem, scheduler)
        judge = Dual(relative_v=settings.relative_v, gamma=settings.gamma)
        self._v = judge.printed_v(judge.init(self.problem.budget_j, settings.rounds), self.problem.samples)
        # A scheduler that sends in the deepest fade is compared with decisions that may, too.
        self._weighs_drift = isinstance(scheduler, DriftScheduler)
        self._judge = judge if self._weighs_drift else Dual(v=self._v, gamma=settings.gamma)

    @property
    def done(self) -> bool:
        """Whether every round of the horizon is scheduled."""
        return len(self.rounds) >= self.settings.rounds

    @property
    def run(self) -> RunData:
        """The rounds so far, as charts take them."""
        names = {"scheduler": {"name": self.settings.scheduler}, "seed": self.settings.seed}
        return RunData.of_schedule(self.problem, self.cell, self.rounds, names)

    def advance(self, seconds: float = float("inf"), clock: Callable[[], float] = time.perf_counter) -> None:
        """Schedule rounds until this much time is over, at least one; all of them by default."""
        until = clock() + seconds
        while not self.done:
            self.rounds.append(self._judged(next(self._ahead)))
            if clock() >= until:
                break

    def _judged(self, one: RoundResult) -> JudgedRound:
        """A round with its objective, and the lower bound that `dual` certifies for the same queues."""
        observation, decision = one.observation, one.decision
        bound = decision.lower_bound
        if math.isnan(bound) or not self._weighs_drift:  # none, or that of another objective
            with np.errstate(invalid="ignore"):
                bound = self._judge.decide(replace(one.before.scheduler, memory={}), observation).lower_bound
        objective = drift_objective(
            self._v,
            data_weight(self.settings.gamma, observation.round),
            observation.samples,
            one.before.scheduler.queue_j,
            decision.chosen,
            decision.compute_energy_j + decision.upload_energy_j,
        )
        parts_j = {} if self.problem.device.is_paper_model else decision.parts_j(observation.uplink)
        return JudgedRound(
            observation,
            decision,
            one.before,
            one.after,
            objective=objective,
            lower_bound=min(bound, objective),
            parts_j=parts_j,
        )


# ── The page ─────────────────────────────────────────────────────────────────


def compose_play(play: Play) -> Page:
    """Return the numbers and charts next to the controls, for the rounds scheduled so far."""
    run = play.run
    group = [Group(run.scheduler, (run,))]
    so_far = several(run.played, "round") + ("" if play.done else f" of {run.planned}")
    return Page(
        heading="kfl playground",
        sentence=sentence(play, run),
        cards=cards(play, run),
        sections=[
            section("horizon", f"Participation over {so_far}", [schedule_chart(run), participants_chart(run)], ""),
            section("radio", "Radio and cell", [cell_chart(run), shares_chart(run)], ""),
            section("energy-use", "Energy", [budget_chart(group), pace_chart(group), parts_chart(group)], ""),
            section("bound", "Scheduler", [gap_chart(run)], "No lower bound is known."),
        ],
    )


def cards(play: Play, run: RunData) -> list[text.Card]:
    """Return the numbers on top."""
    mean = run.uploads / run.played
    budget_j = play.settings.budget_j_per_round * run.played
    used = run.device_energy_j / budget_j
    gap = run.rounds.objective - run.rounds.lower_bound
    exact = int((gap <= 1e-12 + 1e-6 * np.abs(run.rounds.lower_bound)).sum())
    band = run.rounds.per_round(run.rounds.share)
    over = int((used > 1 + 1e-9).sum())
    trained = f"{text.percent(mean / run.devices)} of the samples per round"
    return [
        ("Scheduled", f"{mean:.1f} of {run.devices}", f"devices per round: {trained}; nothing is trained here"),
        ("Band in use", text.percent(float(band.mean())), f"of {text.quantity(play.settings.bandwidth_hz, 'Hz')}"),
        ("Optimal", f"{exact} of {several(run.played, 'round')}", f"largest gap to the bound {gap.max():.3g}"),
        (
            "Energy so far",
            text.quantity(run.energy_j, "J"),
            f"{text.percent(float(used.mean()))} of the budgets so far",
        ),
        ("Over budget", f"{over} of {run.devices}", f"the largest at {text.percent(float(used.max()), 0)}"),
        ("Never scheduled", f"{(run.participation == 0).sum()} of {run.devices}", "devices so far"),
    ]


def sentence(play: Play, run: RunData) -> str:
    """Return what limits these devices, in words."""
    parts = run.rounds.parts_j
    told = [
        dominant(run.rounds.compute_energy_j, run.rounds.upload_energy_j) if parts is None else by_part(run.parts_j)
    ]
    if slow := int(play.problem.too_slow.sum()):
        unable = f"{several(slow, 'device')} can never take part: computing alone takes past the deadline."
        told.append(unable.capitalize())
    for index, one in enumerate(play.rounds):
        if not one.decision.status.ok:  # of many, the first
            told.append(f"Round {index + 1}: {describe(one.decision.status, play.problem.ids)}")
            break
    return " ".join(told)


def news(play: Play) -> str:
    """Return the result in a few words, always visible and read aloud when it changes; or how far the horizon is."""
    if not play.done:
        return f"{len(play.rounds)} of {play.settings.rounds} rounds scheduled …"
    run = play.run
    spent = run.energy_j / float(play.problem.budget_j.sum())
    mean = run.uploads / run.played
    return f"{mean:.1f} of {run.devices} scheduled per round, {text.percent(spent, 0)} of the budgets used"


def problem_file(settings: Settings) -> str:
    """Return the cell with its channel as a file for `kfl schedule`."""
    top, devices = problem_table(Play(settings).problem)
    return json_text({**top, "devices": devices})


def _content(page: Page, settings: Settings) -> str:
    code = {"Python": python_code(settings), "Command line": command_lines(settings)}
    return templates().get_template("playground-content.html.j2").render(page=page, code=code, query=settings.query())


def answer_json(play: Play) -> str:
    """Return the results as the page's script takes them."""
    page = compose_play(play)
    facts = {
        "title": page.heading,
        "html": _content(page, play.settings),
        "links": page.links,
        "query": play.settings.query(),
        "done": play.done,
        "news": news(play),
    }
    return f'{json.dumps(facts)[:-1]}, "figures": {data_of(page.figures)}}}'


@dataclass(frozen=True)
class _Input:
    """A control as the page's template takes it."""

    control: Control
    value: float

    @property
    def shown(self) -> str:
        """The value in the control's unit."""
        return f"{self.value / self.control.per_unit:.12g}"

    @property
    def ends(self) -> tuple[str, str]:
        """Both ends of the slider: values themselves, or positions on a logarithmic scale."""
        direct = self.control.scale not in ("log", "zero")
        return (f"{self.control.least:g}", f"{self.control.most:g}") if direct else ("0", "1000")


def render_playground(play: Play, problem: str = "") -> str:
    """Return the whole page, with the first results in it; `problem` says what was wrong with its address."""
    page, settings = compose_play(play), play.settings
    inputs = {control.name: _Input(control, getattr(settings, control.name)) for control in CONTROLS}
    return render_html(
        "playground.html.j2",
        page,
        _content(page, settings),
        connect=True,
        more=("playground.css", "playground.js"),
        live=None,
        settings=settings,
        problem=problem,
        news=news(play),
        done=play.done,
        starts={name: (label, json.dumps(start(name).table())) for name, (label, _) in STARTS.items()},
        schedulers={name: (kind.about(), " ".join(f.name for f in fields(kind))) for name, kind in SCHEDULERS.items()},
        groups={name: [inputs[one] for one in members] for name, members in GROUPS.items()},
    )


# ── The server ───────────────────────────────────────────────────────────────


class Playground:
    """Answers the page's requests. Each state is scheduled once, a little further with every request for it."""

    def __init__(self) -> None:
        self._plays: OrderedDict[Settings, tuple[Play, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    def respond(self, path: str, query: dict[str, str]) -> Answer | None:
        """Return the page, its results as JSON, or the cell as a file."""
        if path not in ("/", "/answer.json", "/cell.json"):
            return None
        problem = ""
        try:
            if sum(len(name) + len(value) for name, value in query.items()) > LONGEST_QUERY:
                raise KflError("This address is too long to hold settings of the playground.")
            settings = Settings.from_query(query) if query or path != "/" else start(OPENING)
        except KflError as refused:
            if path != "/":
                # The page asks while the user types; a status of 400 would fill its console with spurious errors.
                body = json.dumps({"problem": str(refused)}).encode()
                return Answer(body, "application/json", 200 if path == "/answer.json" else 400)
            settings, problem = start(OPENING), f"{refused} The page starts from its defaults."
        if path == "/cell.json":
            return Answer(problem_file(settings).encode(), "application/json")
        play, lock = self._play(settings)
        with lock:
            if not play.done:
                play.advance(NEXT_S if play.rounds else FIRST_S)
            if path == "/":
                return Answer(render_playground(play, problem).encode())
            return Answer(answer_json(play).encode(), "application/json")

    def _play(self, settings: Settings) -> tuple[Play, threading.Lock]:
        """The rounds of these settings, scheduled before or not."""
        with self._lock:
            if settings not in self._plays:
                self._plays[settings] = (Play(settings), threading.Lock())
            self._plays.move_to_end(settings)
            while len(self._plays) > KEPT:
                self._plays.popitem(last=False)
            return self._plays[settings]


def playground_server(port: int | None = None) -> LoopbackServer:
    """Return a server on 127.0.0.1 with the playground.

    Args:
        port: None for 8379, or any free one if that is taken.
    """
    return LoopbackServer(Playground().respond, port, PORT)
