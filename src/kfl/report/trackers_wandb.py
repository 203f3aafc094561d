"""Runs in Weights & Biases: online, on one's own server, or offline (WANDB_MODE=offline), by W&B's own settings."""

from __future__ import annotations

import importlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from kfl.report.tracker_metrics import numbers
from kfl.report.trackers import Metrics, RunFacts, Tracker
from kfl.runfolder import RoundLog

BLOCK = 32768
PATIENCE_S = 10.0
"""How long W&B's own process is waited for."""


class WandbTracker(Tracker):
    """One W&B run per run folder. Without internet, WANDB_MODE=offline keeps it there for `wandb sync`."""

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def open(self, run: RunFacts, config: Mapping[str, Any]) -> int:
        """Begin, or continue under the identifier that the folder remembers."""
        import wandb

        self._facts, self._last = run, 0
        noted = run.remembered(self.name)
        identifier = str(noted.get("id") or uuid.uuid4().hex[:12])
        offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled")
        self._run = _patient_init(
            project=os.environ.get("WANDB_PROJECT", "kfl"),
            id=identifier,
            name=run.name,
            tags=sorted({run.tags["algorithm"], run.tags["scheduler"]}),
            config={**run.tags, **config},
            dir=None if run.folder is None else str(run.folder),
            # Offline there is no server to continue from: the part gets the same identifier and sync joins them.
            resume=None if offline else "allow",
            reinit="create_new",  # a run the program itself has active stays as it is
            settings=wandb.Settings(silent=True, console="off"),  # the terminal is ours
        )
        run.remember(self.name, id=identifier)
        return self._held() if self._run.offline else max(0, self._run.starting_step - 1)  # online the server knows

    def _held(self) -> int:
        """The last round in the offline files."""
        folder = self._facts.folder
        return 0 if folder is None else rounds_in(folder / "wandb", self._run.id)

    def log(self, log: RoundLog, metrics: Metrics) -> None:
        """One step."""
        self._last = log.round + 1
        self._run.log(dict(metrics), step=self._last, commit=True)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The summary's numbers; a stopped run is marked as not finished, until it is resumed."""
        self._run.summary.update({f"summary/{name}": v for name, v in numbers(summary or {}).items()})
        self._run.finish(exit_code=1 if summary is None else 0)
        # Offline the last records reach the file a moment later; whoever resumes the run at once must find them.
        until = time.monotonic() + PATIENCE_S
        while self._run.offline and self._facts.folder is not None and self._held() < self._last:
            if time.monotonic() > until:
                break
            time.sleep(0.05)

    @property
    def where(self) -> str:
        """Its address; offline, how to send it there later."""
        if self._run.offline:
            return f"offline; to upload it later: wandb sync {self._run.settings.sync_dir}"
        return str(self._run.url)


def _patient_init(**arguments: Any) -> Any:
    """`wandb.init`, which for a moment after the end of a run refuses to continue it in the same process."""
    import wandb

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return wandb.init(**arguments)
        except Exception as problem:
            if "is in use" not in str(problem) or time.monotonic() > until:
                raise
            time.sleep(0.2)


def rounds_in(folder: Path, identifier: str) -> int:
    """The last round that the offline files of a run hold; 0 without any.

    W&B writes what it is told with a delay of some seconds, so a process that was killed took its last rounds with it,
    and only the files know which.
    """
    record_type: Any = importlib.import_module("wandb.proto.wandb_internal_pb2").Record  # made when it is imported

    last = 0
    for path in folder.glob(f"offline-run-*-{identifier}/*.wandb"):
        for raw in records(path.read_bytes()):
            record = record_type.FromString(raw)
            if any("devices/scheduled" in (item.key, *item.nested_key) for item in record.history.item):
                last = max(last, record.history.step.num)
    return last


def records(content: bytes) -> Iterator[bytes]:
    """The whole records of a W&B file: a header of 7 bytes, then LevelDB's log format, in blocks of 32 KiB.

    Each part of a record has a checksum (4 bytes), a length (2) and a kind (1 whole, 2 first, 3 middle, 4 last).

    >>> part = bytes(4) + (5).to_bytes(2, "little") + bytes([1]) + b"hello"
    >>> list(records(bytes(7) + part + part[:9]))
    [b'hello']
    """
    offset, parts = 7, b""
    while offset + 7 <= len(content):
        room = BLOCK - offset % BLOCK
        if room < 7:  # too small for a part: filled with zeros
            offset += room
            continue
        length, kind = int.from_bytes(content[offset + 4 : offset + 6], "little"), content[offset + 6]
        if kind not in (1, 2, 3, 4) or offset + 7 + length > len(content):
            return  # torn
        parts += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""
