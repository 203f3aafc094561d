"""Reading and writing problems: the documented format, as JSON and as CSV.

>>> problem = read_problem('{"bandwidth_hz": 1e6, "payload_bits": 1e6, "devices": [{"id": "a", "gain_db": -90}]}')
>>> problem.ids, problem.gain, problem.bandwidth_hz
(('a',), array([[1.e-09]]), 1000000.0)
>>> read_problem('{"devices": [{"id": "a", "gain": -1, "payload_bits": 1}]}')
Traceback (most recent call last):
...
kfl.core.errors.ConfigError: gain of device 'a' is -1.0, but must be a finite number, 0 or more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kfl.core.files import write_atomic
from kfl.scheduling.cell_problem import Problem
from kfl.scheduling.problem_csv import csv_text, draft_from_csv
from kfl.scheduling.problem_draft import Draft, assemble
from kfl.scheduling.problem_fields import ProblemError
from kfl.scheduling.problem_json import draft_from_json, json_text


def read_problem(source: str | Path, **changes: object) -> Problem:
    """Read a problem from a file, or from text in JSON or CSV.

    `changes` are fields that go on top of what the file says at its top, for example `bandwidth_hz=1e6`.
    A file is JSON or CSV by its name, anything else by its first character.

    >>> read_problem("id,gain,payload_bits\\na,1e-9,5e4\\nb,2e-9,5e4\\n", rounds=10).rounds
    10
    """
    text, kind = _text(source)
    draft = draft_from_json(text) if kind == "json" else draft_from_csv(text)
    top = {**draft.top, **{name: value for name, value in changes.items() if value is not None}}
    return assemble(Draft(top, draft.ids, draft.columns, draft.described, draft.notes))


def _text(source: str | Path) -> tuple[str, str]:
    """The text and its kind."""
    if isinstance(source, str) and (not source.strip() or source.lstrip()[0] in "{[#" or "\n" in source):
        return _not_empty(source, "The problem"), _kind(source)
    path = Path(source)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ProblemError(f"{path} is not text in UTF-8: byte {problem.start} cannot be read.") from problem
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ProblemError(f"Cannot read {str(path)!r}: {reason}.") from problem
    kinds = {".json": "json", ".csv": "csv"}
    return _not_empty(text, str(path)), kinds.get(path.suffix.lower(), _kind(text))


def _not_empty(text: str, name: str) -> str:
    if not text.strip():
        raise ProblemError(f"{name} is empty; kfl schedule --example prints one to start from.")
    return text


def _kind(text: str) -> str:
    return "json" if text.lstrip()[:1] in ("{", "[") else "csv"


def write_problem(problem: Problem, path: str | Path) -> None:
    """Write a problem so that `read_problem` gives it back to the last bit: CSV by its name, else JSON.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cell.csv"
    >>> write_problem(read_problem("id,gain,payload_bits\\na,1e-9,5e4\\n"), path)
    >>> read_problem(path).gain
    array([[1.e-09]])
    """
    path = Path(path)
    top, rows = problem_table(problem)
    as_csv = path.suffix.lower() == ".csv"
    text = csv_text(top, rows, problem.round) if as_csv else json_text({**top, "devices": rows})
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise ProblemError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error


def problem_table(problem: Problem) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields at the top and one table per device, as JSON has them: everything spelled out."""
    top: dict[str, Any] = {
        "bandwidth_hz": problem.bandwidth_hz,
        "noise_dbm_per_hz": problem.noise_dbm_per_hz,
        "rounds": problem.rounds,
        "round": problem.round,
        "seed": problem.seed,
        "hard_budget": problem.hard_budget,
    }
    if problem.memory:
        top["memory"] = {name: np.asarray(values).tolist() for name, values in problem.memory.items()}
    trace = problem.described > 1
    columns: dict[str, list[Any]] = {
        "id": list(problem.ids),
        "gains" if trace else "gain": (problem.gain.T if trace else problem.gain[0]).tolist(),
        "available": (problem.available.T if trace else problem.available[0]).tolist(),
    }
    fixed = ("samples", "payload_bits", "deadline_s", "max_power_w", "compute_time_s", "compute_energy_j")
    for name in (*fixed, "budget_j", "spent_j", "queue_j"):
        columns[name] = getattr(problem, name).tolist()
    names = list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row in rows:
        if row["budget_j"] == np.inf:
            del row["budget_j"]
    return top, rows
