"""Display of `python -m reproduction bound`: the terms of Theorem 1 in a table, then the remarks on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kfl.cli.display import page, say
from reproduction.theory.gaps import GAPS, PAGE
from reproduction.theory.theorem1 import round_weights

if TYPE_CHECKING:
    from reproduction.theory.run_bound import RunBound
    from reproduction.theory.theorem1 import Bound, Constants

ROWS = (
    ("A₁, local drift", "drift"),
    ("A₂, knowledge", "knowledge"),
    ("A₃, contraction", "contraction"),
    ("A₃ᵀ · gap at the start", "start_term"),
    ("(A₁ + A₂) summed", "constant_term"),
    ("heterogeneity", "heterogeneity_term"),
    ("scheduling", "scheduling_term"),
    ("total", "total"),
)
"""Rows of the table: their names and what of a `Bound` they show."""


_WORDS = ("term", "constant", "where", "what", "from", "rates")
"""Columns of words, which stand at the left; columns of numbers at the right."""


def print_constants_bound(constants: Constants, bounds: Mapping[str, Bound]) -> None:
    """The bound for given constants, a column for each schedule."""
    with page() as console:
        console.print(_terms("Theorem 1, as printed", bounds))
        say(console, ["", *_conditions(constants, next(iter(bounds.values()))), *_vacuous(bounds.values()), ""])
        _gaps(console, "Theorem 1")


def print_run_bound(run: Path, found: RunBound) -> None:
    """Both guarantees for a finished run."""
    with page() as console:
        asked = found.experiment
        say(
            console,
            [f"{run}: {asked.algorithm.name} on {asked.dataset}, {asked.devices} devices, {asked.rounds} rounds."],
        )
        if found.estimate is not None and found.bound is not None and found.best_bound is not None:
            console.print("", _constants(found.estimate.constants), "")
            bounds = {"at the run's rates": found.bound, "at the best rates": found.best_bound}
            console.print(_terms("Theorem 1, as printed, with estimated constants", bounds))
            notes = [*_conditions(found.estimate.constants, found.bound), *_vacuous(bounds.values())]
            say(console, ["", *notes])
            if found.estimate.later_loss is not None:
                start, end = found.estimate.initial_loss, found.estimate.later_loss
                say(console, [f"Measured on these devices: F = {start:.4g} at the start, {end:.4g} at the end."])
            say(console, [*found.estimate.notes, ""])
            say(console, [] if found.knowledge is None else [str(found.knowledge), ""])
            _gaps(console, "Theorem 1")
            say(console, [""])
        say(console, [str(one) for one in (found.energy, found.volume) if one is not None])
        if found.energy is not None:
            say(console, [""])
            _gaps(console, "Proposition 2")
        say(console, found.notes)


def _constants(constants: Constants) -> Table:
    table = _table("Constants, estimated (lower bounds of the true ones)", ["constant", "value", "constant", "value"])
    c = constants
    pairs = [
        ("L_u, curvature of the body", c.body_smoothness),
        ("L_v, curvature of the head", c.head_smoothness),
        ("χ, cross-sensitivity", c.cross_sensitivity),
        ("gap at the start", c.initial_gap),
        ("G₁, gradient of the body", c.body_gradient),
        ("G₂, gradient of the head", c.head_gradient),
        ("ϑ, gradient of a feature", c.feature_gradient),
        ("ς, norm of a feature", c.feature_norm),
    ]
    for left, right in zip(pairs[:4], pairs[4:], strict=True):
        table.add_row(left[0], _number(left[1]), right[0], _number(right[1]))
    return table


def _terms(title: str, bounds: Mapping[str, Bound]) -> Table:
    table = _table(title, ["term", *bounds])
    for name, field in ROWS:
        if field in ("start_term", "total"):
            table.add_section()
        values = [_number(getattr(bound, field)) for bound in bounds.values()]
        table.add_row(name, *values, style="bold" if field == "total" else None)
    table.add_row("", *[Text(bound.verdict, style="dim") for bound in bounds.values()])
    return table


def _conditions(constants: Constants, bound: Bound) -> list[str]:
    """Whether the learning rates are allowed, and which rounds the bound favors."""
    notes = list(bound.violations)
    if bound.within_assumptions:
        notes.append(
            f"The learning rates are within the theorem's conditions: η_u = {constants.body_rate:.4g} ≤ "
            f"{constants.largest_body_rate:.4g}, η_v = {constants.head_rate:.4g} ≤ {constants.largest_head_rate:.4g}."
        )
    else:
        notes.append("So the bound is outside its assumptions; its terms are shown nevertheless.")
    if bound.contraction > 1:
        notes.append(
            "With A₃ above 1 its terms grow without end, the scheduling term as their square: the total can be "
            "negative, which no distance from an optimum is."
        )
    if bound.rounds > 2 and bound.contraction < 1:
        first, before_last = round_weights(bound.contraction, bound.rounds)[[0, -2]]
        notes.append(
            f"It favors late rounds: a sample scheduled in round 0 weighs {first / before_last:.2g} of one in round "
            f"{bound.rounds - 2}, the last that enters. Remark 1 says the reverse."
        )
    return notes


def _vacuous(bounds: Iterable[Bound]) -> list[str]:
    for bound in bounds:
        if bound.verdict == "vacuous":
            return [f"Vacuous: no smaller than the gap at the start, {bound.initial_gap:.4g}; it promises no progress."]
    return []


def _gaps(console: Console, about: str) -> None:
    table = _table(f"Gaps of {about}", ["where", "what"])
    for gap in GAPS:
        if gap.about == about:
            table.add_row(gap.step, f"{gap.says} {gap.shown}".strip())
    console.print(table)
    say(console, [f"More about them: {PAGE}."])


def _table(title: str, names: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in _WORDS else "right")
    return table


def _number(value: float) -> str:
    if math.isnan(value):
        return "∞ − ∞"
    return f"{value:.4g}" if math.isfinite(value) else ("∞" if value > 0 else "−∞")
