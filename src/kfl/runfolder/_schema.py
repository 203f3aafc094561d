"""What stands in the JSON files of a run folder: one table for each, checked where it is read.

Fields of later versions are left as they are, and those that an earlier version did not write may be missing, unless a
reader cannot do without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kfl.core.columns import Records
from kfl.core.names import shortened
from kfl.runfolder._files import damaged

Kind = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words, and whether it is."""
MOST = 2**53
"""Larger integers are not exact as a float."""


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_count(value) or (type(value) is int and -MOST <= value < 0)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_list(inner: Kind) -> Kind:
    return f"a list, each {inner[0]}", lambda value: isinstance(value, list) and all(inner[1](item) for item in value)


def _or_null(inner: Kind) -> Kind:
    return f"{inner[0]} or null", lambda value: value is None or inner[1](value)


COUNT: Kind = "an integer from 0", _is_count
NUMBER: Kind = "a number", _is_number
TEXT: Kind = "a text", lambda value: isinstance(value, str)
SWITCH: Kind = "true or false", lambda value: isinstance(value, bool)
TABLE: Kind = "an object", lambda value: isinstance(value, dict)
ANY_NUMBER = _or_null(NUMBER)
"""What JSON has no number for, such as infinity, is null."""
PER_CHANNEL: Kind = (
    "a number, null, or a list of numbers",
    lambda value: value is None or _is_number(value) or _is_list(NUMBER)[1](value),
)

Fields = Mapping[str, Kind]
SUMMARY: Fields = {
    "algorithm": TEXT,
    "regime": TEXT,
    **dict.fromkeys(("accuracy", "best_accuracy", "wall_s", "time_s", "bits_up", "bits_down"), ANY_NUMBER),
    **dict.fromkeys(("energy_j", "compute_energy_j", "upload_energy_j", "fedavg_bits_up"), ANY_NUMBER),
    **dict.fromkeys(("largest_use_of_budget", "mean_use_of_budget"), ANY_NUMBER),
    **dict.fromkeys(("rounds", "uploads", "rejected_uploads", "missed_broadcasts", "lost_uploads"), COUNT),
    **dict.fromkeys(("faults", "diverged", "devices_over_budget"), COUNT),
    "batteries": TABLE,
}
BATTERIES: Fields = {
    **dict.fromkeys(("charge_j", "harvested_j", "wasted_j"), ANY_NUMBER),
    **dict.fromkeys(("empty_rounds", "devices_ever_empty", "ran_dry"), COUNT),
}
DEVICE: Fields = {
    **dict.fromkeys(("device", "parameters", "samples", "rounds", "test_samples", "empty_rounds"), COUNT),
    "model": TEXT,
    "classes": _is_list(COUNT),
    **dict.fromkeys(("accuracy", "budget_j", "queue_j", "compute_energy_j", "upload_energy_j", "cpu_hz"), ANY_NUMBER),
    **dict.fromkeys(("flops", "bits_up", "bits_down", "charge_j", "harvested_j", "wasted_j"), ANY_NUMBER),
}
ENVIRONMENT: Fields = {
    **dict.fromkeys(("dataset", "plan", "packages", "sources", "traces", "fleet"), TABLE),
    **dict.fromkeys(("models", "given_as_objects", "command"), _is_list(TEXT)),
    **dict.fromkeys(("started", "kfl", "python", "platform"), TEXT),
}
DATASET: Fields = {
    **dict.fromkeys(("name", "note", "fingerprint", "path"), TEXT),
    **dict.fromkeys(("train", "test", "classes"), COUNT),
    "input_shape": _is_list(("an integer from 1", lambda value: _is_count(value) and value > 0)),
    **dict.fromkeys(("scale", "mean", "std"), PER_CHANNEL),
}
JOB: Fields = {"models": SWITCH, "deterministic": SWITCH, "track": _is_list(TEXT)}
ASKED: Fields = {
    "round": ("an integer from -1", lambda value: value == -1 or _is_count(value)),
    "devices": _is_list(COUNT),
}


def check(path: Path, found: Mapping[str, Any], fields: Fields, needed: tuple[str, ...] = (), place: str = "") -> None:
    """Raise RunFolderError for the first field that is not what it must be, or is missing though it is needed.

    >>> check(Path("run/summary.json"), {"rounds": "3"}, SUMMARY)
    Traceback (most recent call last):
    ...
    kfl.core.errors.RunFolderError: run/summary.json is damaged (rounds is '3', not an integer from 0).
    """
    for name in needed:
        if name not in found:
            raise damaged(path, f"{place}{name} is missing")
    for name, (words, is_one) in fields.items():
        if name in found and not is_one(found[name]):
            raise damaged(path, f"{place}{name} is {shortened(repr(found[name]))}, not {words}")


def check_summary(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Return a summary whose fields are what they must be."""
    check(path, found, SUMMARY, ("rounds",) if found else ())
    check(path, found.get("batteries", {}), BATTERIES, place="batteries.")
    return found


def check_environment(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Return an environment whose fields are what they must be."""
    check(path, found, ENVIRONMENT)
    check(path, found.get("dataset", {}), DATASET, place="dataset.")
    return found


def check_devices(path: Path, found: object, needed: tuple[str, ...] = ()) -> tuple[dict[str, Any], ...]:
    """Return the records of devices; of a real fleet's only those that ever joined have one."""
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise damaged(path, "it does not hold a list of devices")
    for number, record in enumerate(found):
        check(path, record, DEVICE, ("device", *needed), f"record {number}: ")
    return tuple(found)


def check_records(path: Path, found: Records, needed: tuple[str, ...] = ()) -> Records:
    """Return the columns of devices; their first record must be one, and columns of numbers are alike in all."""
    if len(found):
        check(path, found[0], DEVICE, ("device", *needed), "record 0: ")
    kinds = {name: values.dtype.kind for name, values in found.arrays.items()}
    if any(kind not in "iubfU" for kind in kinds.values()):
        raise damaged(path, f"its columns have the types {kinds}")
    negative = [name for name, kind in kinds.items() if kind == "i" and len(found) and found.arrays[name].min() < 0]
    if negative:
        raise damaged(path, f"{negative[0]} has a value below 0")
    return found
