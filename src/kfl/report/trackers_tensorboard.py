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
    """Event files in `tensorboard/` of the run folder; `tensorboard --logdir runs` shows every run under runs/.

    All numbers of a round are one record of the file, so that a crash leaves a round whole or not at all. A resumed run
    begins a file with the start of a session at step 1 and logs all rounds again: TensorBoard then drops what earlier
    files hold from that step on, as it does with `purge_step` of PyTorch's SummaryWriter. (SummaryWriter itself writes
    from a thread that prints a traceback when the disk is full.)
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def open(self, run: RunFacts, config: Mapping[str, Any]) -> int:
        """Add an event file, which replaces earlier ones; of a finished run nothing is logged again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.text.summary import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = Path(tempfile.mkdtemp(prefix="kfl-")) if run.folder is None else run.folder / "tensorboard"
        noted, began = run.remembered(self.name), self._folder.is_dir()
        self._finished = noted.get("finished") is True
        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names.
        seconds, rest_ns = divmod(time.time_ns(), 10**9)
        unique = f"{seconds:010d}.{rest_ns:09d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (self._folder / f"events.out.tfevents.{unique}").open("xb", buffering=0)
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if self._finished:
            return int(noted.get("rounds", 0))
        if began:
            self._write(Event(wall_time=time.time(), step=1, session_log=SessionLog(status=SessionLog.START)))
        else:
            text = json.dumps({"run": run.name, **run.tags, **config}, indent=2)
            self._add(0, text_pb("config", "".join(f"    {line}\n" for line in text.splitlines())))
        return 0

    def log(self, log: RoundLog, metrics: Metrics) -> None:
        """One record with one value per metric."""
        self._scalars(log.round + 1, metrics)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The summary's numbers, at the last step; then the file is closed."""
        if summary is not None and not self._finished:
            self._scalars(int(summary["rounds"]), {f"summary/{name}": v for name, v in numbers(summary).items()})
        self._file.close()

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
