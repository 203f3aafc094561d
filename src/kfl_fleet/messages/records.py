"""The files that a fleet leaves behind, each as one model: what may stand in them, and how they are read.

    fleet.json      FleetRecord     who is in the fleet, who was refused
    fleet.jsonl     RoundFacts      a line per round: real times and sizes
    nodes.json      NodeIds         Flower's ids of the admitted devices, in the folder of keys
    device-….safetensors  StoredFacts   what a device did last, in its own state folder

They are untrusted. A file that does not hold what its model says is a RunFolderError that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, RootModel, ValidationError
from pydantic_core import PydanticCustomError

from kfl.core.errors import RunFolderError
from kfl.core.files import Folder
from kfl.core.parse import parse_json
from kfl.core.text import scrub
from kfl.runfolder import RunReader
from kfl_fleet.messages.profile import Profile
from kfl_fleet.messages.protocol import RefusedError

Model = TypeVar("Model", bound=BaseModel)
MOST_BYTES = 1 << 24
"""Files that only kfl writes are smaller: ids of 100,000 devices take 3 MB."""
MOST = 2**53
"""Larger integers are not exact as a float."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Number = Annotated[int, Field(ge=0, le=MOST, strict=False)]
"""A device's, which is a text where it is a key in JSON."""
Real = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NodeId = Annotated[str, Field(pattern=r"^\d{1,20}$")]


class Record(BaseModel):
    """Base of all models: types as they are written, and fields of later versions kept as they are."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


def _profile(found: object) -> Profile:
    try:
        if isinstance(found, Profile):
            return found
        if not isinstance(found, Mapping):
            raise PydanticCustomError("profile", "it must be a table")
        return Profile.from_json(found)
    except RefusedError as problem:
        raise PydanticCustomError("profile", "{text}", {"text": str(problem)}) from problem


class Cut(Record):
    """Something that the server does not believe of what a device says about itself."""

    code: str
    field: str
    limit: Count | Real | None = None
    """What counts in its place."""


class MemberRecord(Record):
    """A device that has introduced itself."""

    node: NodeId
    profile: Annotated[InstanceOf[Profile], BeforeValidator(_profile)]
    name: str = ""
    cuts: tuple[Cut, ...] = Field((), strict=False)

    @property
    def limits(self) -> dict[str, float | None]:
        """What counts in place of what the device says, by field."""
        return {cut.field: cut.limit for cut in self.cuts}


class FleetRecord(Record):
    """`fleet.json`."""

    run: str = ""
    """The name of the run, by which devices know their models."""
    metrics_port: int | None = None
    devices: dict[Number, MemberRecord] = {}
    refused: dict[str, dict[str, Any] | str] = {}
    """By node a code and its facts; in earlier versions a sentence."""


class AnswerFacts(Record):
    """What became of one message: an answer with its size, or silence with its kind."""

    seconds: Seconds = 0.0
    bytes: Count | None = None
    silence: str | None = None


class PrivacyFacts(Record):
    """What a device's uploads have revealed; JSON has no infinity, so that is null."""

    uploads: Count
    epsilon: float | None
    delta: float | None
    epsilon_with_training: float | None


class RoundFacts(Record):
    """A line of `fleet.jsonl`."""

    round: Count | None = None
    time: str | None = None
    """When the round ended, UTC in ISO 8601; None in run folders of earlier versions."""
    sent_bytes: Count = 0
    answers: dict[Number, AnswerFacts] = {}
    correct: dict[Number, Count] = {}
    privacy: dict[Number, PrivacyFacts] = {}


class StoredFacts(Record):
    """What the file of a device's model says next to its arrays."""

    round: Annotated[int, Field(ge=-1, le=MOST)]
    answer: dict[str, Any]


class FinalRecord(Record):
    """What `devices.json` says of a device at the end of a run."""

    device: Count
    accuracy: Real | None = None


class NodeIds(RootModel[dict[Number, str]]):
    """`nodes.json`."""


def checked(model: type[Model], value: object, path: Path) -> Model:
    """Return what a file holds as its model.

    Raises:
        RunFolderError: It holds something else; the sentence names the first field that is wrong.
    """
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = scrub(".".join(map(str, first["loc"])), 80) or "the file"
        raise RunFolderError(f"{path} is damaged ({where}: {first['msg'][:1].lower()}{first['msg'][1:]}).") from problem


def read_fleet(reader: RunReader) -> FleetRecord | None:
    """Return the members of a fleet; None for a simulation. RunFolderError for a damaged file."""
    found = reader.fleet()
    return checked(FleetRecord, found, reader.path / "fleet.json") if found else None


def read_run_name(reader: RunReader) -> str:
    """Return the run's name in a file that may be damaged elsewhere: without it devices lose their models. Or ""."""
    try:
        name = reader.fleet().get("run")
    except RunFolderError:
        return ""
    return name if isinstance(name, str) else ""


def read_facts(reader: RunReader) -> dict[int, RoundFacts]:
    """Return the real times and sizes of a fleet's rounds by round; lines that cannot be read are left out."""
    found = {}
    for line in reader.fleet_rounds():
        try:
            facts = RoundFacts.model_validate(line)
        except ValidationError:
            continue
        if facts.round is not None:
            found[facts.round] = facts
    return found


def read_final(reader: RunReader) -> dict[int, FinalRecord]:
    """Return the last record of each device; empty while the run is not finished."""
    records = [checked(FinalRecord, found, reader.path / "devices.json") for found in reader.devices()]
    return {record.device: record for record in records}


def read_node_ids(path: Path) -> dict[int, str]:
    """Return Flower's ids of the admitted devices; empty before any was admitted. RunFolderError for a damaged file."""
    text = read_own(path)
    if text is None:
        return {}
    try:
        found = parse_json(text)
    except ValueError as problem:
        raise RunFolderError(f"{path} is damaged ({problem}).") from problem
    return checked(NodeIds, found, path).root


def read_own(path: Path) -> bytes | None:
    """Return the content of a small file that only kfl writes; None where it is not there.

    Raises:
        RunFolderError: It cannot be read, is large, a link, or no file at all, such as a pipe that would block.
    """
    try:
        with Folder(path.parent) as folder:
            return folder.read(path.name, MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise RunFolderError(f"{path} is damaged ({problem.strerror or problem}).") from problem
