"""A schedule as plain tables: the JSON that `kfl schedule --json` prints, and the rows of its CSV.

SI units throughout. A value that does not exist, such as the bound of a scheduler that knows none, is `null`.

- `scheduler`: its name and parameters.
- `notes`: sentences about the file, such as devices that can never be scheduled.
- `rounds`: for each round `scheduled` (how many devices), `share` (of the band in use), energies, `time_s`,
  `objective`, `lower_bound`, `gap`, `status` (a code, "ok" if there is nothing to say), `note` (its sentence) and
  `devices`: the scheduled ones with `share`, `power_w`, energies, times, and the queue after the round. Whole devices
  also have `clock_hz`, their joules by part, `upload_decided_by` and `clock_decided_by`.
- `devices`: for each device `rounds_scheduled`, energies, `battery_j`, `queue_j`, and its `outcome` in the last round.
- `next`: the problem of the next round.

A CSV file has one row per scheduled device and round, with the same names.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import to_table
from kfl.core.files import jsonable
from kfl.core.names import for_csv
from kfl.core.text import shown
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.problem_writer import problem_table
from kfl.scheduling.simulate import ScheduledRound, ScheduleResult
from kfl.scheduling.status import OUTCOMES, describe
from kfl.scheduling.uplink import CLOCK_BY, ENERGY_PARTS, UPLOAD_BY

Row = dict[str, Any]

_SCHEDULED = (
    "share",
    "power_w",
    "compute_energy_j",
    "upload_energy_j",
    "energy_j",
    "compute_time_s",
    "upload_time_s",
    "time_s",
    "queue_j",
)
_PLAIN = tuple(name for name in _SCHEDULED if name not in ("energy_j", "time_s"))
_PARTS = tuple(f"{name}_j" for name in ENERGY_PARTS)
_WHOLE_DEVICE = ("clock_hz", *_PARTS, "upload_decided_by", "clock_decided_by")
"""Of whole devices besides; the first two parts add up to `compute_energy_j`, the others to `upload_energy_j`."""


def result_table(result: ScheduleResult) -> Row:
    """Return a schedule in JSON's types and SI units; what does not exist (a bound, a budget) is null."""
    problem, following = result.problem, result.following
    top, devices = problem_table(following)
    codes = tuple(OUTCOMES)
    given = {name: None if value == "none" else value for name, value in to_table(result.scheduler).items()}
    return {
        "scheduler": {"name": result.scheduler.name, **jsonable(given)},
        "notes": list(problem.notes) + never_schedulable(result),
        "rounds": [_round_row(result, one) for one in result.rounds],
        "devices": _rows(
            id=list(problem.ids),
            rounds_scheduled=result.participation_count,
            compute_energy_j=result.compute_energy_j,
            upload_energy_j=result.upload_energy_j,
            energy_j=result.compute_energy_j + result.upload_energy_j,
            **_parts(result.parts_j),
            battery_j=following.budget_j - following.spent_j,
            queue_j=following.queue_j,
            outcome=[codes[position] for position in result.outcome],
        ),
        "next": {**top, "devices": devices},
    }


def _round_row(result: ScheduleResult, one: ScheduledRound) -> Row:
    return {
        "round": one.round,
        "scheduled": len(one.devices),
        "share": float(one.share.sum()),
        "compute_energy_j": float(one.compute_energy_j.sum()),
        "upload_energy_j": float(one.upload_energy_j.sum()),
        "energy_j": one.energy_j,
        **{name: float(energy_j.sum()) for name, energy_j in _parts(one.parts_j).items()},
        "time_s": one.time_s,
        "objective": jsonable(one.objective),
        "lower_bound": jsonable(one.lower_bound),
        "gap": jsonable(one.gap),
        "status": one.status.code,
        "note": "" if one.status.ok else describe(one.status, result.problem.ids),
        "devices": scheduled_rows(result, one),
    }


def scheduled_rows(result: ScheduleResult, one: ScheduledRound) -> list[Row]:
    """The scheduled devices of one round."""
    columns = {name: np.asarray(getattr(one, name)) for name in _PLAIN}
    columns["energy_j"] = one.compute_energy_j + one.upload_energy_j
    columns["time_s"] = one.compute_time_s + one.upload_time_s
    found: dict[str, NDArray[Any] | list[Any]] = {name: columns[name] for name in _SCHEDULED}
    if one.clock_hz is not None and one.upload_by is not None and one.clock_by is not None:
        found |= {
            "clock_hz": one.clock_hz,
            **_parts(one.parts_j),
            "upload_decided_by": np.array(tuple(UPLOAD_BY))[one.upload_by],
            "clock_decided_by": np.array(tuple(CLOCK_BY))[one.clock_by],
        }
    return _rows(id=[result.problem.ids[k] for k in one.devices], **found)


def _parts(parts_j: Mapping[str, FloatArray] | None) -> dict[str, FloatArray]:
    """Energy by part under the names of columns; nothing in the printed model."""
    return {} if parts_j is None else {f"{name}_j": energy_j for name, energy_j in parts_j.items()}


def never_schedulable(result: ScheduleResult, named: int = 5) -> list[str]:
    """A sentence for devices that computing alone keeps past the deadline, whatever the channel; at most `named`."""
    problem = result.problem
    slow = np.flatnonzero(problem.too_slow)
    sentences = [
        f"Device {shown(problem.ids[k])} can never be scheduled: computing takes {problem.compute_time_s[k]:.4g} s, "
        f"and the deadline is {problem.deadline_s[k]:.4g} s."
        for k in slow[:named]
    ]
    if len(slow) > named:
        sentences.append(f"{len(slow) - named} more devices can never be scheduled for the same reason.")
    return sentences


def result_csv(result: ScheduleResult) -> str:
    """The scheduled devices as CSV: one row for each device and round."""
    out = io.StringIO()
    more = () if result.problem.device.is_paper_model else _WHOLE_DEVICE
    writer = csv.DictWriter(out, ("round", "id", *_SCHEDULED, *more), lineterminator="\n")
    writer.writeheader()
    for one in result.rounds:
        writer.writerows({"round": one.round, **row, "id": for_csv(row["id"])} for row in scheduled_rows(result, one))
    return out.getvalue()


def _rows(**columns: NDArray[Any] | list[Any]) -> list[Row]:
    lists = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values()]
    names = list(columns)
    return [jsonable(dict(zip(names, row, strict=True))) for row in zip(*lists, strict=True)]
