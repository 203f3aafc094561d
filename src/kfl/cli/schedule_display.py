"""What a person sees of `kfl schedule`: one round as a table of devices, a trace as tables of rounds and devices.

Never more than a screenful: of a large fleet the devices with the largest shares (or the most energy) are shown,
and a line says how many there are besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kfl.cli.display import page, say
from kfl.core.names import for_terminal
from kfl.core.text import DASH, fine_percent, quantity, several
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.energy_report import beside_random, by_part, certified, dominant
from kfl.scheduling.problem_schema import CELL_FIELDS, DEVICE_FIELDS, FieldWords
from kfl.scheduling.result_table import never_schedulable
from kfl.scheduling.simulate import least_energy, random_devices
from kfl.scheduling.status import OUTCOMES, describe
from kfl.scheduling.uplink import CLOCK_BY, UPLOAD_BY

if TYPE_CHECKING:
    from kfl.scheduling import ScheduleResult
    from kfl.scheduling.simulate import ScheduledRound

SHOWN = 20
"""Rows of a table."""
_NAMED = 8
LONGEST_ID = 24
"""Characters of a device's id in a table."""
_FORMATS = (
    "JSON: an object with the fields of the cell and a list devices. A trace of several rounds has lists gains or "
    "gains_db (and available if it changes) in place of gain, one value per round.",
    "CSV: lines '# name = value' above the header, then one row per device. A trace has a column round and one row "
    "per device and round.",
)
_NARROW, _MIDDLE, _WIDE = 72, 90, 106
"""Characters from which on a table has more columns."""


def print_horizon(horizon: ScheduleResult, next_file: Path | None, saved: Path | None) -> None:
    """The result of `kfl schedule` for a person."""
    with page() as console:
        say(console, [_headline(horizon)])
        if len(horizon.rounds) == 1:
            _print_round(console, horizon, horizon.rounds[0])
        else:
            _print_rounds(console, horizon)
            _print_totals(console, horizon)
        say(console, [*horizon.problem.notes, *never_schedulable(horizon)])
        if next_file is not None:
            say(console, [_about_next(horizon, next_file)])
        if saved is not None:
            say(console, [f"The result is in {saved}."])


def _about_next(horizon: ScheduleResult, file: Path) -> str:
    following = horizon.following
    if following.round >= following.rounds:
        return f"All {following.rounds} rounds are played. The queues and what was spent are in {file}."
    return f"The problem of round {following.round} is in {file}, with the gains of this round: put in the new ones."


def _headline(horizon: ScheduleResult) -> str:
    problem = horizon.problem
    last = problem.round + problem.described - 1
    rounds = f"Round {problem.round}" if problem.described == 1 else f"Rounds {problem.round} to {last}"
    budgets = "hard budgets" if problem.hard_budget else "soft budgets"
    return (
        f"{rounds} of a horizon of {problem.rounds}: {several(problem.size, 'device')} on "
        f"{quantity(problem.bandwidth_hz, 'Hz')}, scheduler {horizon.scheduler.name}, {budgets}."
    )


# ── One round ────────────────────────────────────────────────────────────────


def _print_round(console: Console, horizon: ScheduleResult, one: ScheduledRound) -> None:
    if len(one.devices) or horizon.problem.size <= SHOWN:
        console.print(_round_table(console, horizon, one))
    say(console, _round_sentences(horizon, one))


def _round_table(console: Console, horizon: ScheduleResult, one: ScheduledRound) -> Table:
    """All devices of a small fleet in their own order; of a large one, the scheduled with the largest shares."""
    problem = horizon.problem
    rows = {int(device): row for row, device in enumerate(one.devices)}
    if problem.size <= SHOWN:
        shown = list(range(problem.size))
    else:
        shown = [int(k) for k in one.devices[np.argsort(-one.share, kind="stable")][:SHOWN]]
    columns = _round_columns(console.width, one)
    queue_j = horizon.following.queue_j
    table = _table(["device", *columns, *(["next queue"] if console.width >= _NARROW else [])])
    for device in shown:
        row, queue = rows.get(device), [quantity(float(queue_j[device]), "J")] if console.width >= _NARROW else []
        cells = [DASH if row is None else cell(row) for cell in columns.values()]
        table.add_row(_name(problem.ids[device]), *cells, *queue, style="dim" if row is None else None)
    return table


def _round_columns(width: int, one: ScheduledRound) -> dict[str, Callable[[int], str]]:
    """What is shown of each scheduled device, as far as there is room: the heading, and the text of a row."""

    def shown(values: FloatArray, unit: str) -> Callable[[int], str]:
        return lambda row: quantity(float(values[row]), unit)

    columns = {"share": lambda row: fine_percent(float(one.share[row])), "power": shown(one.power_w, "W")}
    if width < _NARROW:
        return {**columns, "energy": shown(one.compute_energy_j + one.upload_energy_j, "J")}
    if one.clock_hz is not None and not np.isnan(one.clock_hz).all() and width >= _MIDDLE:
        columns["clock"] = shown(one.clock_hz, "Hz")
    columns |= {"compute": shown(one.compute_energy_j, "J"), "upload": shown(one.upload_energy_j, "J")}
    if one.clock_hz is not None and width >= _WIDE:
        return {
            **columns,
            "compute time": shown(one.compute_time_s, "s"),
            "upload time": shown(one.upload_time_s, "s"),
        }
    return {**columns, "time": shown(one.compute_time_s + one.upload_time_s, "s")}


def _round_sentences(horizon: ScheduleResult, one: ScheduledRound) -> list[str]:
    problem, count = horizon.problem, len(one.devices)
    note = "" if one.status.ok else describe(one.status, problem.ids)
    sentences = []
    if count > SHOWN and problem.size > SHOWN:
        sentences.append(f"… and {count - SHOWN:,} more that are scheduled; --save FILE has all of them.")
    if count:
        sentences.append(
            f"{count:,} of {several(problem.size, 'device')} scheduled, with {fine_percent(float(one.share.sum()))} "
            f"of the band; the round ends after {quantity(one.time_s, 's')} and costs {quantity(one.energy_j, 'J')}. "
            f"{_where(one.parts_j, one.compute_energy_j, one.upload_energy_j)}"
        )
        sentences += _decided(horizon, one)
    else:
        sentences.append(f"No devices scheduled. {note}".rstrip())
    sentences += [sentence for sentence in [_certificate(one)] if sentence]
    sentences += _left_out(horizon, one)
    if note and count:
        sentences.append(note)
    return sentences


def _where(parts_j: Mapping[str, FloatArray] | None, compute_j: FloatArray, upload_j: FloatArray) -> str:
    """Energy breakdown by part, for whole devices."""
    return dominant(compute_j, upload_j) if parts_j is None else by_part(parts_j)


def _decided(horizon: ScheduleResult, one: ScheduledRound) -> list[str]:
    """What decided how long whole devices send, and at which clock they compute."""
    if one.upload_by is None or one.clock_by is None:
        return []
    sentences = []
    for what, codes, every in (("Upload time", one.upload_by, UPLOAD_BY), ("Clock", one.clock_by, CLOCK_BY)):
        met = [(words, one.devices[codes == position]) for position, words in enumerate(every.values())]
        told = [f"{words}: {_named(horizon, who)}" for words, who in met if len(who)]
        sentences.append(f"{what} – {'; '.join(told)}.")
    return sentences if (one.clock_by > 0).any() else sentences[:1]


def _named(horizon: ScheduleResult, devices: NDArray[np.intp]) -> str:
    """Devices by name where they are few, else their number."""
    if len(devices) > _NAMED:
        return several(len(devices), "device")
    return ", ".join(_name(horizon.problem.ids[k]).plain for k in devices)


def _certificate(one: ScheduledRound) -> str:
    """The objective, and how far from the best it can be."""
    if math.isnan(one.objective):
        return ""
    if math.isnan(one.lower_bound):
        return f"Objective {one.objective:.6g}; this scheduler knows no lower bound."
    if one.gap <= 1e-9 * abs(one.objective):
        return f"Objective {one.objective:.6g}, certified: no schedule within these limits is better."
    part = f" ({fine_percent(one.gap / abs(one.objective))})" if one.objective else ""
    return (
        f"Objective {one.objective:.6g}, lower bound {one.lower_bound:.6g}: certified to be within "
        f"{one.gap:.3g}{part} of the best possible schedule."
    )


def _left_out(horizon: ScheduleResult, one: ScheduledRound) -> list[str]:
    """Who is not scheduled, by reason: by name where they are few, else their number."""
    sentences = []
    for position, (code, words) in enumerate(OUTCOMES.items()):
        count = one.counts[position]
        if code in ("scheduled", "past_deadline") or count == 0:
            continue  # who can never be scheduled has a sentence of its own
        sentences.append(f"{words}: {_named(horizon, np.flatnonzero(horizon.outcome == position))}")
    return [f"Not scheduled – {'; '.join(sentences)}."] if sentences else []


# ── A trace ──────────────────────────────────────────────────────────────────


def _print_rounds(console: Console, horizon: ScheduleResult) -> None:
    rounds = horizon.rounds
    wide = console.width >= _NARROW
    certified = not all(math.isnan(one.lower_bound) for one in rounds)
    names = ["devices", "energy", "time", *(["objective", "gap"] if wide and certified else [])]
    table = _table(["round", *names])
    half = SHOWN // 2
    shown = list(rounds) if len(rounds) <= SHOWN else [*rounds[:half], None, *rounds[-half:]]
    for one in shown:
        if one is None:
            table.add_row("…", *["…"] * len(names), style="dim")
            continue
        cells = [f"{len(one.devices):,}", quantity(one.energy_j, "J"), quantity(one.time_s, "s")]
        if wide and certified:
            cells += [f"{one.objective:.5g}", f"{one.gap:.2g}"]
        table.add_row(str(one.round), *cells)
    console.print(table)
    mean = sum(len(one.devices) for one in rounds) / len(rounds)
    compute_j, upload_j = horizon.compute_energy_j.sum(), horizon.upload_energy_j.sum()
    sentences = [
        f"{mean:.3g} devices per round on average; together {quantity(float(compute_j + upload_j), 'J')} in "
        f"{quantity(sum(one.time_s for one in rounds), 's')}. {_where(horizon.parts_j, compute_j, upload_j)}"
    ]
    if certified:
        worst = max(rounds, key=lambda one: -1.0 if math.isnan(one.gap) else one.gap)
        sentences.append(
            f"Largest certified gap: {worst.gap:.3g}, in round {worst.round} (objective {worst.objective:.6g})."
        )
    say(console, [*sentences, *_beside_others(horizon)])


def _beside_others(horizon: ScheduleResult) -> list[str]:
    """What random devices would spend, where that is less, and what any schedule must spend."""
    found, least_j = random_devices(horizon), least_energy(horizon)
    taken, sentences = horizon.participation_count, []
    if found is not None:
        count, random = found
        others = (count, random.energy_j, int(random.participation_count.sum()))
        sentences.append(beside_random(horizon.scheduler.name, horizon.energy_j, int(taken.sum()), *others))
    if least_j is not None:
        sentences.append(certified(taken.tolist(), len(horizon.rounds), horizon.energy_j, least_j))
    return sentences


def _print_totals(console: Console, horizon: ScheduleResult) -> None:
    """Totals per device: all in a small fleet, else those who spent most."""
    problem, following = horizon.problem, horizon.following
    energy_j = horizon.compute_energy_j + horizon.upload_energy_j
    shown = np.arange(problem.size)
    if problem.size > SHOWN:
        shown = np.argsort(-energy_j, kind="stable")[:SHOWN]
    left_j = following.budget_j - following.spent_j
    wide = console.width >= _NARROW
    table = _table(
        [
            "device",
            "rounds",
            *(["compute", "upload"] if wide else ["energy"]),
            "budget left",
            *(["queue"] if wide else []),
        ]
    )
    for k in shown:
        parts = [horizon.compute_energy_j[k], horizon.upload_energy_j[k]] if wide else [energy_j[k]]
        cells = [quantity(float(part), "J") for part in parts]
        cells.append("no budget" if math.isinf(left_j[k]) else quantity(float(left_j[k]), "J"))
        if wide:
            cells.append(quantity(float(following.queue_j[k]), "J"))
        taken = int(horizon.participation_count[k])
        table.add_row(
            _name(problem.ids[k]),
            str(taken),
            *cells,
            style=None if taken else "dim",
        )
    console.print(table)
    sentences = []
    if problem.size > SHOWN:
        sentences.append(f"These {SHOWN} of {problem.size:,} devices spent most; --save FILE.json has all of them.")
    idle, over = int((horizon.participation_count == 0).sum()), int((left_j < 0).sum())
    if idle:
        sentences.append(f"{several(idle, 'device')} never scheduled.")
    if over:
        sentences.append(f"{several(over, 'device')} over budget; --hard-budget forbids it.")
    say(console, sentences)


# ── The fields ───────────────────────────────────────────────────────────────


def print_fields() -> None:
    """Every field of a problem file."""
    titles = "At the top of a file, once", "For each device, or at the top for every device without its own"
    with page() as console:
        for title, fields in zip(titles, (CELL_FIELDS, DEVICE_FIELDS), strict=True):
            console.print(_field_table(title, fields.values()))
            console.print()
        say(console, _FORMATS)


def _field_table(title: str, fields: Iterable[FieldWords]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("field", style="bold", no_wrap=True)
    table.add_column("meaning")
    table.add_column("if left out")
    for field in fields:
        table.add_row(field.name, field.meaning, field.otherwise)
    return table


# ── Small parts ──────────────────────────────────────────────────────────────


def _table(names: Sequence[str]) -> Table:
    table = Table()
    table.add_column(names[0], overflow="ellipsis", no_wrap=True)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(identity: str) -> Text:
    """A device's id as a cell of a table."""
    return Text(for_terminal(identity, LONGEST_ID))
