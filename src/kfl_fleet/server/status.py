"""How a fleet is doing, read from the server's run folder: while it runs, between two runs, and after the last round.

Nothing here talks to the server or to Flower, so it works on a copy of the folder too, and nothing that the folder
names is imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, WithJsonSchema

from kfl.core.errors import RunFolderError
from kfl.core.refusals import describe, stored_refusal
from kfl.report import read_run
from kfl.runfolder import RunReader, is_run_folder
from kfl_fleet.logs import iso
from kfl_fleet.messages.profile import Profile
from kfl_fleet.messages.records import (
    FinalRecord,
    MemberRecord,
    PrivacyFacts,
    RoundFacts,
    read_facts,
    read_final,
    read_fleet,
)
from kfl_fleet.server.tally import WORKER, DeviceTally, FleetTally

Count = Annotated[int, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$")]
"""UTC in ISO 8601."""
Amount = Annotated[float, WithJsonSchema({"type": ["number", "null"], "minimum": 0})]
"""A number that may be infinite, which JSON does not have: null there."""
State = Literal["running", "finished", "stopped"]
DOCUMENTED = ConfigDict(use_attribute_docstrings=True)
"""The docstrings of fields are in the schema."""


@dataclass(frozen=True)
class PrivacyStatus:
    """What a device's uploads have revealed so far (`kfl.algorithms.privacy`)."""

    __pydantic_config__ = DOCUMENTED

    uploads: Count
    """Rounds in which its upload may have left it."""
    epsilon: Amount
    """Of the averaging alone."""
    delta: Amount
    epsilon_with_training: Amount
    """Holds without conditions."""


@dataclass(frozen=True)
class DeviceStatus:
    """One device, as far as the server knows it."""

    __pydantic_config__ = DOCUMENTED

    device: Count
    """Its number, from 0."""
    seen: bool
    """Whether it ever introduced itself."""
    samples: Count | None
    """Training samples it declared."""
    model: str | None
    """Name of its network."""
    meter: str | None
    """What measures its energy."""
    chosen: Count
    """Rounds it was chosen for."""
    missed: Count
    """Rounds it was not asked in, because the simulated broadcast did not reach it."""
    used: Count
    """Answers that were used."""
    late: Count
    """Answers that did not come in time."""
    lost: Count
    """Other answers that did not come: gone, error, garbled, unsent, outage."""
    rejected: Count
    """Answers that failed a check."""
    diverged: Count
    """Rounds in which its training diverged."""
    energy_j: float
    """Joules spent so far."""
    budget_j: Amount
    """For the whole run: its own, or what the cell gives it; infinite without a cell."""
    accuracy: Ratio | None
    """Right predictions on its own test samples, as it last reported."""
    last_round: Count | None
    """Last round with an answer that was used, counted from 1."""
    answer_s: float | None
    """Seconds its last answer took."""
    last_answer_time: Time | None
    """When it last answered, UTC; None if never, or before kfl wrote that down."""
    unanswered: Count
    """Messages since its last answer."""
    incidents: Mapping[str, Count]
    """What went wrong and how often: late, gone, error, rejected, diverged, worker_died …"""
    restarts: Count
    """Times its worker process had to be started anew; the device itself stayed."""
    clipped: Count
    """Rounds in which its upload weighed less than it says."""
    cuts: tuple[str, ...]
    """What the server does not believe of what the device says about itself, and uses in its place."""
    privacy: PrivacyStatus | None
    """None where uploads have no noise."""


@dataclass(frozen=True)
class FleetStatus:
    """A fleet's run so far."""

    __pydantic_config__ = DOCUMENTED

    schema: Literal[1]
    """Version of this table. Later versions of kfl may add fields; a field that goes or changes meaning makes 2."""
    time: Time
    """When it was read, UTC."""
    folder: str
    """The run folder it was read from."""
    state: State
    """running, finished, or stopped (no device holds the run folder and rounds are left)."""
    algorithm: str
    """Its name."""
    scheduler: str
    """Its name."""
    rounds_done: Count
    """Rounds finished."""
    rounds: Count
    """Rounds the run will have."""
    devices_seen: Count
    """Devices that ever joined."""
    devices_expected: Count
    """Devices the fleet should have."""
    devices_there: Count | None
    """Devices that were there when the last round began; None before the first."""
    accuracy: Ratio | None
    """Right predictions over all test samples of all devices that joined, as they last reported."""
    energy_j: float
    """Joules spent by all devices."""
    bits_up: float
    """Bits of all uploads."""
    bits_down: float
    """Bits of all broadcasts, once for each device that took part."""
    round_s: float | None
    """Mean real time of the last ten rounds."""
    last_round_time: Time | None
    """When the last round ended, UTC."""
    late: Count
    """Answers that did not come in time."""
    lost: Count
    """Other answers that did not come."""
    rejected: Count
    """Answers that failed a check."""
    rounds_without_quorum: Count
    """Rounds that changed nothing."""
    metrics_port: Count | None
    """Where Prometheus finds the server."""
    devices: tuple[DeviceStatus, ...]
    """Each device."""
    refused: Mapping[str, str]
    """Flower's nodes that could not join, with the reason."""
    problems: tuple[str, ...]
    """The last ten things that went wrong, newest first."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def read_status(folder: Path) -> FleetStatus:
    """The status of the fleet whose server writes into `folder`.

    RunFolderError if there is no such folder, or it belongs to a simulation.
    """
    if not is_run_folder(folder):
        raise RunFolderError(f"{folder} holds no run of a fleet, or its server has not begun yet.")
    reader = RunReader(folder)
    table = read_fleet(reader)
    if table is None:
        raise RunFolderError(f"{folder} has no fleet.json: it is the run folder of a simulation, not of a fleet.")
    final, facts = read_final(reader), read_facts(reader)
    run = read_run(folder)
    tally = FleetTally()
    for log in reader.rounds():
        tally.add(log, facts.get(log.round, RoundFacts()))
    budgets = [inf] * run.devices if run.cell is None else run.cell.budget_j(run.planned).tolist()
    devices = tuple(
        _device(device, table.devices.get(device), tally.devices[device], final.get(device), budgets[device])
        for device in range(run.devices)
    )
    asked, there = reader.asked()
    state: State = "finished" if run.finished else ("running" if reader.held else "stopped")
    return FleetStatus(
        schema=1,
        time=iso(time.time()),
        folder=str(folder),
        state=state,
        algorithm=run.algorithm,
        scheduler=run.scheduler,
        rounds_done=tally.rounds,
        rounds=run.planned,
        devices_seen=len(table.devices),
        devices_expected=run.devices,
        devices_there=len(there) if asked >= 0 else None,
        accuracy=tally.accuracy,
        energy_j=tally.energy_j,
        bits_up=tally.bits_up,
        bits_down=tally.bits_down,
        round_s=sum(tally.round_s) / len(tally.round_s) if tally.round_s else None,
        last_round_time=tally.round_time,
        late=sum(one.late for one in devices),
        lost=sum(one.lost for one in devices),
        rejected=sum(one.rejected for one in devices),
        rounds_without_quorum=tally.rounds_without_quorum,
        metrics_port=table.metrics_port if state == "running" else None,
        devices=devices,
        refused={str(node): describe(*stored_refusal(why)) for node, why in table.refused.items()},
        problems=tuple(tally.problems),
    )


def status_schema() -> dict[str, Any]:
    """Return the JSON schema of what `kfl deploy status --json` prints."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **TypeAdapter(FleetStatus).json_schema(mode="serialization"),
        "title": "kfl deploy status --json",
    }


def find_run(folder: Path) -> Path:
    """The run folder that a person means: the folder itself, a project's, or that of `kfl deploy up` in it."""
    candidates = (folder, folder / "run", folder / "local" / "run")
    return next((path for path in candidates if RunReader(path).is_fleet), folder)


def _device(
    device: int, member: MemberRecord | None, tally: DeviceTally, final: FinalRecord | None, allowed_j: float
) -> DeviceStatus:
    profile, limits = (None, {}) if member is None else (member.profile, member.limits)
    own_j = limits.get("budget_j", None if profile is None else profile.budget_j)
    return DeviceStatus(
        device=device,
        seen=profile is not None,
        samples=None if profile is None else profile.samples,
        model=None if profile is None else profile.model,
        meter=None if profile is None else profile.meter,
        chosen=tally.chosen,
        missed=tally.missed,
        used=tally.used,
        late=tally.late,
        lost=tally.lost,
        rejected=tally.rejected,
        diverged=tally.diverged,
        energy_j=tally.energy_j,
        budget_j=allowed_j if own_j is None else own_j,
        accuracy=_accuracy(profile, limits.get("test_samples"), tally.correct, final),
        last_round=tally.last_round,
        answer_s=tally.answer_s,
        last_answer_time=tally.answer_time,
        unanswered=tally.unanswered,
        incidents=dict(sorted(tally.incidents.items())),
        restarts=sum(count for code, count in tally.incidents.items() if code.startswith(WORKER)),
        clipped=tally.clipped,
        cuts=() if member is None else tuple(describe(*stored_refusal(cut.model_dump())) for cut in member.cuts),
        privacy=_privacy(tally.privacy),
    )


def _privacy(found: PrivacyFacts | None) -> PrivacyStatus | None:
    """What the server wrote down when the device last took part; null stands for infinity."""
    if found is None:
        return None
    known = (found.epsilon, found.delta, found.epsilon_with_training)
    return PrivacyStatus(found.uploads, *(inf if one is None else one for one in known))


def _accuracy(
    profile: Profile | None, believed: float | None, correct: int | None, final: FinalRecord | None
) -> float | None:
    """The final record, or the last answer, or what the device reported when it joined.

    Answers are counted among the test samples that are believed; None where all are.
    """
    if final is not None:
        return final.accuracy
    if profile is None or not profile.test_samples:
        return None
    if correct is not None:
        return correct / (believed or profile.test_samples)
    return profile.correct / profile.test_samples
