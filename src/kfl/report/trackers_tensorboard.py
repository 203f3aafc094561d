"""Runs in TensorBoard: event files in the run folder, in TensorBoard's own format."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from kfl.report.tracker_metrics import numbers
from kfl.report.trackers import Metrics, RunFacts, Tracker
from kfl.runfolder import RoundLog


class TensorBoardTracker(Tracker):
    """Writes `tensorboard/` in the run folder; `tensorboard --logdir runs` then shows every run under runs/.

    All numbers of a round are one record of the file, so that a crash leaves a round whole or not at all.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def open(self, run: RunFacts, config: Mapping[str, Any]) -> int:
        """Add an event file; the rounds in the earlier ones are counted, and stay."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = Path(tempfile.mkdtemp(prefix="kfl-")) if run.folder is None else run.folder / "tensorboard"
        held = rounds_in(self._folder)
        self._facts, self._finished = run, held > 0 and run.remembered(self.name).get("finished") is True
        self._folder.mkdir(parents=True, exist_ok=True)
        # Not TensorBoard's EventFileWriter: its thread prints a traceback over the progress bar when the disk is full.
        unique = f"{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns() % 10**9}"
        self._file = (self._folder / f"events.out.tfevents.{unique}").open("xb", buffering=0)
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if held == 0:
            text = json.dumps({"run": run.name, **run.tags, **config}, indent=2)
            self._add(0, text_pb("config", "".join(f"    {line}\n" for line in text.splitlines())))
        return held

    def log(self, log: RoundLog, metrics: Metrics) -> None:
        """One record with one value per metric."""
        self._scalars(log.round + 1, metrics)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The summary's numbers, at the last step; then the file is closed."""
        if summary is not None and not self._finished:
            self._scalars(int(summary["rounds"]), {f"summary/{name}": v for name, v in numbers(summary).items()})
        self._file.close()
        if summary is not None:
            self._facts.remember(self.name, finished=True)

    @property
    def where(self) -> str:
        """How to look at it."""
        return f"tensorboard --logdir {self._folder}"

    def _scalars(self, step: int, values: Metrics) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]))

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())


def rounds_in(folder: Path) -> int:
    """The last round that the event files of a folder hold; 0 without any. A torn last record does not count."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    last = 0
    for path in sorted(folder.glob("events.out.tfevents.*")) if folder.is_dir() else ():
        for event in EventFileLoader(str(path)).Load():
            if any(value.tag == "devices/scheduled" for value in event.summary.value):
                last = max(last, event.step)
    return last
