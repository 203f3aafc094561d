"""Writing problems in the format that `kfl.scheduling.problem_file` reads, and JSON and CSV for people.

>>> from kfl.scheduling.problem_file import read_problem
>>> (device,) = problem_table(read_problem("id,gain,payload_bits\\na,1e-9,5e4\\n"))[1]
>>> device["id"], device["gain"], device["payload_bits"], device["queue_j"]
('a', 1e-09, 50000.0, 0.0)
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfl.core.files import write_atomic
from kfl.core.names import for_csv, for_json
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.problem_schema import (
    DEVICE_FIELDS,
    LISTS,
    ProblemError,
)

_DRAWN = {
    "cpu_hz": "cpu_hz",
    "min_cpu_hz": "min_cpu_hz",
    "min_power_w": "min_power_w",
    "static_power_w": "static_power_w",
    "amplifier_efficiency": "amplifier_efficiency",
    "circuit_power_w": "circuit_power_w",
    "tail_energy_j": "tail_j",
    "receive_energy_j": "receiving_j",
}
"""Fields of a file for which the paper's energy model has no use, with their names in `DeviceEnergyModel`."""


def write_problem(problem: CellProblem, path: str | Path) -> None:
    """Write a problem so that `read_problem` gives it back to the last bit: CSV by its name, else JSON.

    Args:
        problem: What to write.
        path: The file.

    >>> import tempfile
    >>> from kfl.scheduling.problem_file import read_problem
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


def problem_table(problem: CellProblem) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields at the top and one table per device, as JSON has them: everything spelled out."""
    top: dict[str, Any] = {
        "bandwidth_hz": problem.bandwidth_hz,
        "noise_dbm_per_hz": problem.noise_dbm_per_hz,
        "rounds": problem.rounds,
        "round": problem.round,
        "seed": problem.seed,
        "hard_budget": problem.hard_budget,
    }
    if problem.resource_blocks is not None:
        top["resource_blocks"] = problem.resource_blocks
    if problem.battery_capacity_j is not None:
        top["battery_capacity_j"] = problem.battery_capacity_j
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
    if problem.charge_j is not None:
        columns["charge_j"] = problem.charge_j.tolist()
    if problem.harvest_j is not None:
        columns["harvest_j"] = (problem.harvest_j.T if trace else problem.harvest_j[0]).tolist()
    if not problem.device.is_paper_model:
        for name, own in _DRAWN.items():
            columns[name] = np.broadcast_to(getattr(problem.device, own), problem.size).tolist()
    names = list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row in rows:
        if row["budget_j"] == np.inf:
            del row["budget_j"]
        if np.isnan(row.get("cpu_hz", 0.0)):
            del row["cpu_hz"], row["min_cpu_hz"]
    return top, rows


def csv_text(top: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], first: int) -> str:
    """The fields at the top as comment lines, and the devices as rows; traces become one row per round."""
    out = io.StringIO()
    for name, value in top.items():
        if name != "round" or "gains" not in devices[0]:
            out.write(f"# {name} = {json.dumps(value)}\n")
    names = [name for name in (*DEVICE_FIELDS, "gains") if any(name in device for device in devices)]
    writer = csv.writer(out, lineterminator="\n")
    if "gains" not in names:
        writer.writerow(names)
        writer.writerows([_cell(device.get(name), name) for name in names] for device in devices)
        return out.getvalue()
    changing = [name for name in LISTS if name in names]
    fixed = [name for name in names if name not in ("id", "gains", *changing)]
    writer.writerow(["round", "id", "gain", *changing, *fixed])
    for t in range(len(devices[0]["gains"])):
        for device in devices:
            same = [_cell(device.get(name)) if t == 0 else "" for name in fixed]
            now = [_cell(device[name][t]) for name in changing]
            writer.writerow([first + t, for_csv(device["id"]), device["gains"][t], *now, *same])
    return out.getvalue()


def _cell(value: Any, name: str = "") -> Any:
    if name == "id":
        return for_csv(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


def json_text(value: Any, depth: int = 0) -> str:
    """JSON without NaN, laid out for people: lists of objects have one object per line.

    >>> print(json_text({"rounds": 2, "devices": [{"id": "a", "gain": 1.0}, {"id": "b", "gain": 2.0}]}), end="")
    {
      "rounds": 2,
      "devices": [
        {"id": "a", "gain": 1.0},
        {"id": "b", "gain": 2.0}
      ]
    }
    """
    text = for_json(_laid_out(value, depth))
    return text if depth else text + "\n"


def _laid_out(value: Any, depth: int) -> str:
    inside, outside = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict) and value and (depth == 0 or any(map(_has_rows, value.values()))):
        parts = [
            f"{inside}{json.dumps(name, ensure_ascii=False)}: {_laid_out(v, depth + 1)}" for name, v in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{outside}}}"
    if _has_rows(value):
        return "[\n" + ",\n".join(inside + _laid_out(v, depth + 1) for v in value) + f"\n{outside}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict | str)
