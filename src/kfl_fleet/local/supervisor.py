"""Keeps a run of a fleet going until its last round: a server app that died is started again and continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from kfl.core.errors import KflError
from kfl.runfolder import RunReader
from kfl.simulation import RoundLog
from kfl_fleet._flower.app_folder import CONNECTION, write_connection
from kfl_fleet._flower.control import Control, UnreachableError
from kfl_fleet._flower.database import DATABASE, Janitor
from kfl_fleet.logs import note, warn
from kfl_fleet.project import Project
from kfl_fleet.retry import Clock

LOOK_S = 1.0
"""Between two looks at the run folder."""
SILENT_S = 30.0
"""A run folder that has not been held for this long has no server; Flower needs some seconds to start one. Should it
start late after all, the second server is refused the folder and ends."""
LOST_S = 120.0
"""A Flower run that has not begun after this long is given up."""
PAUSE_S = 10.0
"""After a SuperLink that did not answer."""
ATTEMPTS = 5
"""Servers that may end one after another without a single round before we give up."""


@dataclass
class Supervisor:
    """Looks at a run folder, and has the run started again where it has no server."""

    run: RunReader
    control: Control
    submit: Callable[[], None]
    """Starts the server app; UnreachableError where the SuperLink is away."""
    tend: Callable[[], None]
    """Called at every look: what else must be kept going."""
    silent_s: float = SILENT_S
    look_s: float = LOOK_S
    patience_s: float = inf
    """KflError when no round ends for so long."""
    clock: Clock = Clock()  # frozen

    def rounds(self, *, submitted: bool = False, restart: bool = True) -> Iterator[RoundLog]:
        """Yield the rounds as they finish, earlier ones included, until the last.

        Args:
            submitted: whether the run was started just now; otherwise the first look may start it.
            restart: whether to start a server again, and to tend.

        Raises:
            KflError: servers end again and again without a round, or patience ends.
        """
        seen, fruitless, begun_s = 0, 0, self.clock.now()
        last_s, submitted_s = begun_s, begun_s if submitted else -inf
        free_since_s = begun_s if submitted else begun_s - self.silent_s
        while True:
            finished = self.run.finished  # before the history, so that no round is missed
            for entry in self.run.whole_rounds()[seen:]:
                seen, fruitless, last_s = seen + 1, 0, self.clock.now()
                yield entry
            if finished:
                return
            now_s = self.clock.now()
            silent_s = now_s - max(free_since_s, submitted_s)
            if self.run.held:
                free_since_s = now_s
            elif restart and silent_s > self.silent_s and self._start(fruitless, silent_s > LOST_S):
                fruitless, submitted_s = fruitless + 1, self.clock.now()
            if restart:
                self.tend()
            if now_s - last_s > self.patience_s:
                raise KflError(f"The fleet has done nothing for {self.patience_s:g} s; see its logs.")
            self.clock.sleep(self.look_s)

    def _start(self, fruitless: int, lost: bool) -> bool:
        """Start a server, if none is about to begin; whether one was started."""
        try:
            if not lost and self.control.waiting():
                return False
            if fruitless >= ATTEMPTS:
                raise KflError(f"The server ended {ATTEMPTS} times without a round; see flwr log, or its journal.")
            self.submit()
        except UnreachableError as problem:
            warn("superlink_unreachable", f"{problem} Trying again.")
            self.clock.sleep(PAUSE_S)
            return False
        note("run_submitted", "The run was handed to the SuperLink.", attempt=fruitless + 1)
        return True


def keep_running(project: Project) -> Iterator[RoundLog]:
    """Start the run of a project, or continue it, and yield the rounds as they finish, earlier ones included.

    A SuperLink that is unreachable is waited for. Where its database is found, that is kept from growing.

    Raises:
        KflError: the configuration cannot work, keys are missing, or the server ends again and again without a round.
    """
    project.config.validate()
    project.need_keys()
    try:
        write_connection(
            project.flower_home, CONNECTION, project.address, project.keys / "ca.crt", project.control_secret
        )
    except OSError as problem:
        raise KflError(f"{project.flower_home} cannot be written ({problem.strerror or problem}).") from problem
    janitors = [Janitor(folder / DATABASE) for folder in (project.folder, project.flower_home)]  # in an image, the last

    def tend() -> None:
        for janitor in janitors:
            janitor.tend()

    control = project.control()
    yield from Supervisor(RunReader(project.run_folder), control, lambda: project.submit(control), tend).rounds()
