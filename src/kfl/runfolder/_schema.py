"""What stands in the JSON files of a run folder: one table for each, checked where it is read.

Fields of later versions are left as they are, and those that an earlier version did not write may be missing, unless a
reader cannot do without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfl.core.columns import Records
from kfl.core.kinds import (
    ANY_NUMBER,
    COUNT,
    PER_CHANNEL,
    SWITCH,
    TABLE,
    TEXT,
    Fields,
    first_wrong,
    is_count,
    list_of,
)
from kfl.runfolder._files import damaged

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
    "classes": list_of(COUNT),
    **dict.fromkeys(("accuracy", "budget_j", "queue_j", "compute_energy_j", "upload_energy_j", "cpu_hz"), ANY_NUMBER),
    **dict.fromkeys(("flops", "bits_up", "bits_down", "charge_j", "harvested_j", "wasted_j"), ANY_NUMBER),
    **dict.fromkeys(("first_flops", "first_bits_down"), ANY_NUMBER),
}
ENVIRONMENT: Fields = {
    **dict.fromkeys(("dataset", "plan", "packages", "sources", "traces", "fleet"), TABLE),
    **dict.fromkeys(("models", "given_as_objects", "command"), list_of(TEXT)),
    **dict.fromkeys(("started", "kfl", "python", "platform"), TEXT),
}
DATASET: Fields = {
    **dict.fromkeys(("name", "note", "fingerprint", "path"), TEXT),
    **dict.fromkeys(("train", "test", "classes"), COUNT),
    "input_shape": list_of(("an integer from 1", lambda value: is_count(value) and value > 0)),
    **dict.fromkeys(("scale", "mean", "std"), PER_CHANNEL),
}
JOB: Fields = {"models": SWITCH, "deterministic": SWITCH, "track": list_of(TEXT)}
ASKED: Fields = {
    "round": ("an integer from -1", lambda value: value == -1 or is_count(value)),
    "devices": list_of(COUNT),
}


def check(path: Path, found: Mapping[str, Any], fields: Fields, needed: tuple[str, ...] = (), place: str = "") -> None:
    """Raise RunFolderError for the first field that is not what it must be, or is missing though it is needed.

    >>> check(Path("run/summary.json"), {"rounds": "3"}, SUMMARY)
    Traceback (most recent call last):
    ...
    kfl.core.errors.RunFolderError: run/summary.json is damaged (rounds is '3', not an integer from 0).
    """
    if wrong := first_wrong(found, fields, needed):
        raise damaged(path, f"{place}{wrong}")


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
