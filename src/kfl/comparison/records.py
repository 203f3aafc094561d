"""Results of many runs as JSON lines: one per run, with all that a table or a plot of it needs."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kfl._version import __version__
from kfl.core.columns import column_of
from kfl.core.config import flatten
from kfl.core.errors import RunFolderError
from kfl.core.files import read_regular, write_atomic
from kfl.core.kinds import (
    ANY_NUMBER,
    COUNT,
    NUMBER,
    SWITCH,
    TABLE,
    TEXT,
    Fields,
    Kind,
    first_wrong,
    is_number,
    list_of,
    or_null,
)
from kfl.core.parse import parse_json
from kfl.experiment import Experiment, identity_fields
from kfl.scheduling import Status
from kfl.simulation.logs import AXES, History, RoundLog, spent_by_round
from kfl.wireless import CellConfig

Record = dict[str, Any]

RESULTS = "results.jsonl"
"""File of a folder of runs with one line per run."""
GZIP = b"\x1f\x8b"
"""How a file compressed with gzip begins."""
MOST_BYTES = 1 << 30
"""Of a file of results: some hundred thousand runs."""
MOST_POINTS = 200
"""Points of a curve that are kept, so that a line stays small however many rounds a run has."""
BY_REASON: Kind = (
    "an object of numbers",
    lambda value: isinstance(value, dict) and all(is_number(count) for count in value.values()),
)
FIELDS: Fields = {
    **dict.fromkeys(("digest", "label", "algorithm", "dataset", "model", "scheduler"), TEXT),
    **dict.fromkeys(("inputs", "note", "kfl", "condition"), TEXT),
    **dict.fromkeys(("settings", "scheduler_settings", "experiment"), TABLE),
    **dict.fromkeys(("seed", "devices", "tested_devices", "rounds", "rounds_with_nobody", "diverged"), COUNT),
    **dict.fromkeys(("devices_never_chosen", "devices_over_budget", "classes"), COUNT),
    **dict.fromkeys(("accuracy", "worst_tenth", "energy_j", "upload_energy_j", "time_s", "wall_s"), NUMBER),
    **dict.fromkeys(("bits_up", "bits_down", "devices_per_round", "held_classes"), NUMBER),
    **dict.fromkeys(("budget_j", "largest_use_of_budget"), ANY_NUMBER),
    **dict.fromkeys(("radio", "hard_budget"), SWITCH),
    **dict.fromkeys(("kept_out", "nobody_kept_out"), BY_REASON),
    "widths": list_of(COUNT),
}
"""What stands in a line of results."""
SETTINGS: Fields = dict.fromkeys(("bits_per_value", "mean_bits"), or_null(COUNT))
"""Those of an algorithm's that are read here."""
CURVE: Fields = dict.fromkeys(("accuracy", *AXES), list_of(NUMBER))
NEEDED: tuple[str, ...] = (
    *("digest", "algorithm", "settings", "seed", "dataset", "devices", "rounds", "scheduler", "radio", "hard_budget"),
    *("note", "devices_per_round", "accuracy", "worst_tenth", "energy_j", "time_s", "bits_up", "rounds_with_nobody"),
    *("why_nobody", "devices_over_budget", "curve"),
)
"""What a comparison cannot do without, and no version of `kfl compare` left out."""


def record(experiment: Experiment, history: History, note: str = "", label: str | None = None) -> Record:
    """One run in one line; of a comparison, with the label that the run has in it."""
    logs, summary = history.rounds, history.summary
    table, widths = experiment.to_table(), experiment.resolved().widths
    return {
        **({} if label is None else {"label": label}),
        "digest": experiment.digest(),
        "algorithm": table["algorithm"]["name"],
        "settings": _fields(table["algorithm"]),
        "seed": experiment.seed,
        "dataset": experiment.dataset,
        "devices": experiment.devices,
        **({} if experiment.tested_devices is None else {"tested_devices": experiment.tested_devices}),
        "rounds": experiment.rounds,
        **({"model": experiment.model} if widths is None else {}),
        "widths": list(widths or ()),
        "scheduler": table["scheduler"]["name"],
        "scheduler_settings": _fields(table["scheduler"]),
        "radio": experiment.cell_config is not None,
        "hard_budget": experiment.hard_budget,
        "budget_j": _budget(experiment),
        "inputs": _inputs(experiment),
        "experiment": _given(table),
        "note": note,
        "accuracy": history.accuracy,
        "worst_tenth": history.worst_tenth,
        **{name: summary[name] for name in ("energy_j", "upload_energy_j", "time_s", "bits_up", "bits_down")},
        "devices_per_round": sum(len(log.devices) for log in logs) / len(logs),
        "rounds_with_nobody": sum(not log.devices for log in logs),
        **({"diverged": summary["diverged"]} if summary.get("diverged") else {}),
        **_kept_out("kept_out", logs),
        **_kept_out("nobody_kept_out", [log for log in logs if not log.devices]),
        "why_nobody": _commonest(log.status for log in logs if not log.devices),
        "devices_never_chosen": column_of(history.devices, "rounds").count(0),
        "devices_over_budget": summary.get("devices_over_budget", 0),
        "largest_use_of_budget": summary.get("largest_use_of_budget"),
        "curve": curve(logs),
        "wall_s": summary["wall_s"],
        "kfl": __version__,
    }


def class_facts(history: History, classes: int) -> Record:
    """Number of classes, and how many a device holds that takes part: what class means really cost to send."""
    rounds = column_of(history.devices, "rounds")
    held = [len(classes) for classes in column_of(history.devices, "classes")]
    weighted = sum(r * h for r, h in zip(rounds, held, strict=True))
    return {"classes": classes, "held_classes": weighted / sum(rounds) if sum(rounds) else 0.0}


def label_of(line: Record) -> str:
    """What a line stands for in a comparison: its label; of earlier versions, which had none, its algorithm.

    >>> label_of({"label": "V = 1", "algorithm": "kfl"}), label_of({"algorithm": "kfl"})
    ('V = 1', 'kfl')
    """
    return str(line.get("label", line["algorithm"]))


def _fields(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != "name"}


def _given(table: dict[str, Any]) -> dict[str, Any]:
    """The fields of the experiment that are not the defaults, but for algorithm, scheduler and seed."""
    plain = Experiment(radio=CellConfig()).to_table()
    usual, own = (flatten(identity_fields(one)) for one in (plain, table))
    differs = {name: value for name, value in own.items() if usual.get(name) != value}
    return {name: value for name, value in differs.items() if not name.startswith(("algorithm.", "scheduler.", "seed"))}


def _budget(experiment: Experiment) -> float | None:
    """Joules of a device in a round; None where there is no budget."""
    cell = experiment.cell_config
    return None if cell is None or not math.isfinite(cell.budget_j_per_round) else cell.budget_j_per_round


def _inputs(experiment: Experiment) -> str:
    """What devices learn from: samples as they are, or what an encoder makes of them."""
    if experiment.encoder != "auto":
        return "samples as they are" if experiment.encoder == "none" else f"encoder {experiment.encoder}"
    return "the encoder that suits the data" if experiment.algorithm.needs_encoder else "samples as they are"


def _kept_out(name: str, logs: Sequence[RoundLog]) -> Record:
    """Devices that took no part in a round, by what kept them out, on average over some rounds."""
    total = sum((Counter(log.kept_out) for log in logs), Counter[str]())
    return {name: {reason: _short(count / len(logs)) for reason, count in total.items()}} if total else {}


def curve(logs: Iterable[RoundLog]) -> dict[str, list[float]]:
    """Accuracy against rounds and against everything spent up to then, over all devices."""
    logs = list(logs)
    spent: dict[str, list[float]] = {axis: spent_by_round(logs, axis) for axis in AXES}
    tested = [index for index, log in enumerate(logs) if log.accuracy is not None]
    step = -(-len(tested) // MOST_POINTS)
    kept = tested[::-1][::step][::-1]  # counted from the end, so that the last point stays
    points = {name: [_short(values[index]) for index in kept] for name, values in spent.items()}
    return {
        **points,
        "accuracy": [_short(accuracy) for index in kept if (accuracy := logs[index].accuracy) is not None],
    }


def _short(value: float) -> float:
    """Seven digits are more than any plot shows."""
    return float(f"{value:.7g}")


def _commonest(statuses: Iterable[Status]) -> dict[str, Any] | None:
    """The most frequent status as plain values; None of none."""
    counted = Counter(json.dumps(status.to_dict(), sort_keys=True) for status in statuses).most_common(1)
    return dict(json.loads(counted[0][0])) if counted else None


def check_results(file: Path, lines: Sequence[Record], needed: tuple[str, ...] = ()) -> Sequence[Record]:
    """Return lines of `kfl compare` whose fields are what they must be; RunFolderError names the first that is not."""
    for number, line in enumerate(lines, 1):
        if wrong := _wrong(line, needed):
            raise RunFolderError(f"{file} is damaged (result {number}: {wrong}).")
    return lines


def _wrong(line: Record, needed: tuple[str, ...]) -> str:
    """What is wrong with a line of results; empty where nothing is."""
    if wrong := first_wrong(line, FIELDS, needed):
        return wrong
    if "curve" not in line:
        return ""
    if wrong := first_wrong(line.get("settings", {}), SETTINGS):
        return f"settings.{wrong}"
    if not isinstance(line["curve"], dict):
        return "curve is not an object"
    if wrong := first_wrong(line["curve"], CURVE, ("rounds", "accuracy", "joules") if needed else ()):
        return f"curve.{wrong}"
    if len({len(line["curve"][axis]) for axis in CURVE if axis in line["curve"]}) > 1:
        return "the lists of its curve have different lengths"
    try:
        if line.get("why_nobody"):
            Status.from_dict(line["why_nobody"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return "why_nobody is not a status"
    return ""


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write lines of JSON, all of them or none; compressed where the file's name ends in .gz."""
    data = "".join(json.dumps(line, allow_nan=False) + "\n" for line in records).encode()
    write_atomic(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def results_in(folder: Path) -> list[Path]:
    """Return the files of results in a folder, plain or gzip: one for each machine or session that shared the work."""
    return sorted([*folder.glob("results*.jsonl"), *folder.glob("results*.jsonl.gz")])


def stored(path: Path) -> Path:
    """Return the file with these lines: its compressed form where only that exists."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.exists() and not path.exists() else path


def read_records(path: Path) -> list[Record]:
    """The results of `kfl compare` in a file, plain or gzip; a folder stands for its results.jsonl."""
    file = stored(path / RESULTS if path.is_dir() else path)
    lines = read_lines(file, "kfl compare", ("curve", "digest"))
    if not lines:
        raise RunFolderError(f"{file} holds no results of kfl compare.")
    return list(check_results(file, lines, NEEDED))


def read_text(file: Path) -> str:
    """The text of a file, whether or not it is compressed with gzip.

    Raises:
        OSError: it cannot be read, is no regular file, or too large.
        ValueError: it is no text, or unpacks to more than any results are.
    """
    data = read_regular(file, MOST_BYTES)
    if data.startswith(GZIP):
        with gzip.open(io.BytesIO(data)) as packed:
            data = packed.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES} bytes")
    return data.decode("utf-8")


def read_lines(file: Path, command: str, needed: Sequence[str]) -> list[Record]:
    """The results that `command` wrote to a file, each with the `needed` fields."""
    found: list[Record] = []
    try:
        texts = read_text(file).splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise RunFolderError(f"{file} holds no results of {command} ({reason}).") from problem
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = parse_json(text)
        except ValueError as problem:
            raise RunFolderError(f"{file} holds no results of {command} (line {number}: {problem}).") from problem
        missing = [name for name in needed if not isinstance(line, dict) or name not in line]
        if missing:
            raise RunFolderError(f"{file} holds no results of {command} (line {number} has no {missing[0]}).")
        found.append(line)
    return found
