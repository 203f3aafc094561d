"""What a device stores on its disk: its personal model and its last answer, in one file that is written atomically.

    <state folder>/<run>/device-00003.safetensors

The file is written after training and before the answer is sent. A device that dies in between answers the same round
again from this file instead of training twice. One that dies earlier, or whose disk was full, has spent energy that the
server charges once: which round it began is on its disk before it begins, and it never trains for that round again.
Every run of a server has its own name, so a new run starts from new models. Safetensors are plain arrays: reading one
executes nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfl.core.errors import KflError, RunFolderError
from kfl.core.files import LockedError, is_part, only_one, write_atomic
from kfl.core.parse import parse_json
from kfl.runfolder import as_safetensors, device_name
from kfl_fleet.messages.protocol import RefusedError
from kfl_fleet.messages.records import StoredFacts, checked, read_own
from kfl_fleet.private import private_folder
from kfl_fleet.retry import Retry

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.models import State

STATE, UPLOAD = "state/", "upload/"
RUN_NAME = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, eq=False)
class StoredState:
    """The content of the file."""

    round: int
    """The last round that was done; −1 before the first."""
    state: State
    """The personal model."""
    upload: Mapping[str, Tensor]
    """The last answer's arrays."""
    answer: Mapping[str, Any]
    """The last answer's table."""


class Memory:
    """The file of one device in one run."""

    def __init__(self, folder: Path, run: str, device: int) -> None:
        if not RUN_NAME.fullmatch(run):
            raise RefusedError("unknown_run")
        self.path = folder / run / f"{device_name(device)}.safetensors"

    def load(self) -> StoredState | None:
        """Read the file; None if this device has not yet taken part in this run."""
        from safetensors import safe_open

        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                table = parse_json((file.metadata() or {})["kfl"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        except Exception as problem:  # safetensors raises its own errors for content that is not safetensors
            raise KflError(
                f"The device's model {self.path} is damaged ({problem}); remove it to start this device afresh."
            ) from problem
        facts = checked(StoredFacts, table, self.path)
        return StoredState(facts.round, _part(arrays, STATE), _part(arrays, UPLOAD), facts.answer)

    def save(self, kept: StoredState) -> None:
        """Replace the file in one step."""
        private_folder(self.path.parent)
        for left in self.path.parent.iterdir():
            if is_part(left) and self.path.name in left.name:  # a process was killed while it wrote
                left.unlink(missing_ok=True)
        arrays = {f"{STATE}{name}": value for name, value in kept.state.items()}
        arrays |= {f"{UPLOAD}{name}": value for name, value in kept.upload.items()}
        facts = json.dumps({"round": kept.round, "answer": dict(kept.answer)})
        write_atomic(self.path, as_safetensors(arrays, {"kfl": facts}), private=True)

    @property
    def began(self) -> int:
        """The last round that this device began to train for; −1 for none."""
        return self._marked(".began")

    def mark_began(self, round_index: int) -> None:
        """Note it before the first joule is spent; a disk that is full lets no training begin."""
        self._mark(".began", round_index)

    @property
    def summed(self) -> int:
        """The last round whose upload went into a secure sum that was opened; −1 for none."""
        return self._marked(".summed")

    def mark_summed(self, round_index: int) -> None:
        """Note it before the shares are out that open the sum."""
        self._mark(".summed", round_index)

    def _marked(self, kind: str) -> int:
        path = self.path.with_suffix(kind)
        text = read_own(path)
        if text is None:
            return -1
        # A default would let the device train, or give its shares, for the same round twice.
        if not re.fullmatch(rb"-1|\d{1,16}", text):
            raise RunFolderError(f"{path} is damaged: it must hold the number of a round.")
        return int(text)

    def _mark(self, kind: str, round_index: int) -> None:
        private_folder(self.path.parent)
        write_atomic(self.path.with_suffix(kind), str(round_index).encode(), private=True)

    @contextmanager
    def locked(self, patience_s: float) -> Iterator[None]:
        """Keep other processes of the same device out; wait at most `patience_s` for one to finish."""
        private_folder(self.path.parent)
        for _ in Retry(0.1).pauses(time.monotonic() + patience_s):
            try:
                with only_one(self.path.with_suffix(".lock")):
                    yield
                    return
            except LockedError:
                continue
        raise RefusedError("busy")


def _part(arrays: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}
