"""Runs in Weights & Biases: online, on one's own server, or offline (WANDB_MODE=offline), by W&B's own settings."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from kfl.report.tracker_metrics import numbers
from kfl.report.trackers import Metrics, RunFacts, Tracker
from kfl.runfolder import RoundLog

PATIENCE_S = 10.0
"""How long to wait for W&B's own process."""


class WandbTracker(Tracker):
    """One W&B run per run folder. Without internet, WANDB_MODE=offline keeps it there for `wandb sync`."""

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def open(self, run: RunFacts, config: Mapping[str, Any]) -> int:
        """Begin, or continue under the identifier that the folder remembers."""
        import wandb

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
        if self._run.offline:
            return int(noted.get("rounds", 0))
        return max(0, int(self._run.starting_step) - 1)  # the server knows

    def log(self, log: RoundLog, metrics: Metrics) -> None:
        """Log one step."""
        self._run.log(dict(metrics), step=log.round + 1, commit=True)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The summary's numbers; a stopped run is marked as not finished, until it is resumed."""
        self._run.summary.update({f"summary/{name}": v for name, v in numbers(summary or {}).items()})
        self._run.finish(exit_code=1 if summary is None else 0)

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
