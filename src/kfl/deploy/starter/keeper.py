"""Keep a fleet's run going until its last round: a server app that died is started anew and goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kfl.core.errors import KflError
from kfl.deploy.starter.flower_command import FlowerCommand, UnreachableError
from kfl.deploy.starter.project import Project
from kfl.runfolder import RoundLog, RunReader

LOOK_S = 1.0
SILENT_S = 30.0
"""A run folder that nobody has held for so long has no server; Flower needs some seconds to start one. Should it come
late after all, the second server is refused the folder and ends."""
LOST_S = 120.0
"""A Flower run that has not begun after so long is forgotten."""
ATTEMPTS = 5
"""Servers that may end one after another without a single round before we give up."""


def keep_running(project: Project, say: Callable[[str], None] = print) -> Iterator[RoundLog]:
    """Start the run of a project, or go on with it, and yield the rounds as they are finished, the old ones too.

    A SuperLink that is away is waited for. KflError if the server ends again and again without a round.
    """
    project.config.validate()
    flower, run = FlowerCommand(project), RunReader(project.run_folder)
    seen, fruitless, submitted = 0, 0, -1e9
    free_since = time.monotonic() - SILENT_S  # so that the first look is at once
    while True:
        finished = run.finished  # before the history, so that no round is missed
        for entry in run.whole_rounds()[seen:]:
            seen, fruitless = seen + 1, 0
            yield entry
        if finished:
            return
        now = time.monotonic()
        if run.held:
            free_since = now
        elif now - max(free_since, submitted) > SILENT_S:
            try:
                if not flower.waiting() or now - max(free_since, submitted) > LOST_S:
                    if fruitless >= ATTEMPTS:
                        raise KflError(
                            f"The server ended {ATTEMPTS} times without a round; see flwr log, or its journal."
                        )
                    flower.submit()
                    fruitless, submitted = fruitless + 1, time.monotonic()
                    say("The run was handed to the SuperLink.")
            except UnreachableError as problem:
                say(f"{problem} Trying on.")
                time.sleep(SILENT_S / 3)
        time.sleep(LOOK_S)
