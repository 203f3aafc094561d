"""The SuperLink of a project, through Flower's own command line: which devices may connect, which runs there are.

`keep_running` keeps a fleet's run going until its last round: a server app that died is restarted and continues. Where
it finds the SuperLink's database, it also keeps that from growing.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kfl.core.errors import KflError, RunFolderError
from kfl.core.files import write_json
from kfl.core.parse import parse_json, read_json
from kfl.core.text import scrub
from kfl.runfolder import RoundLog, RunReader
from kfl_fleet._flower.app_folder import CONNECTION, flower_environment, program, write_connection
from kfl_fleet._flower.database import DATABASE, Janitor
from kfl_fleet.logs import note, warn
from kfl_fleet.project.project import Project

PATIENCE_S = 120.0
TO_COME = ("pending", "starting")
"""Status of a Flower run whose server app has not begun; running and finished:… come next"""


class UnreachableError(KflError):
    """The SuperLink does not answer, or refuses."""


@dataclass(frozen=True)
class FlowerCommand:
    """`flwr ... fleet`, for one project."""

    project: Project

    def __call__(self, *words: str) -> dict[str, Any]:
        """Run a command and return the JSON it prints; UnreachableError with Flower's reason if it fails."""
        environment = flower_environment(self.project.flower_home)
        command = [program("flwr"), *words, "--format", "json"]
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"The SuperLink at {self.project.address} does not answer.") from None
        found = _json(done.stdout)
        if done.returncode != 0 or not found.get("success", True):
            reason = found.get("error-message") or done.stderr or done.stdout
            raise UnreachableError(
                f"The request to the SuperLink at {self.project.address} failed: {scrub(reason) or 'it gave no reason'}"
            )
        return found

    def register(self, device: int) -> bool:
        """Admit a device by its public key, under its number; False if it was admitted before."""
        public = self.project.keys / f"device-{device}.pub"
        try:
            found = self("supernode", "register", str(public), CONNECTION, "--name", f"device-{device}")
        except UnreachableError as problem:
            if "already in use" in str(problem):
                return False
            raise
        self._note({**self.node_ids(), device: str(found.get("node-id"))})
        return True

    def revoke(self, device: int) -> int:
        """Revoke every key by which a device is known here; how many there were."""
        ids = self.node_ids()
        mine = {node for node in (ids.pop(device, None), self._in_run(device)) if node is not None}
        listed = {str(node.get("node-id")) for node in self.nodes()}
        for node in mine & listed:
            self("supernode", "unregister", node, CONNECTION)
        self._note(ids)
        return len(mine & listed)

    def _in_run(self, device: int) -> str | None:
        """The id under which the server last met a device, from its run folder."""
        try:
            return str(RunReader(self.project.run_folder).fleet()["devices"][str(device)]["node"])
        except (RunFolderError, KeyError, TypeError):
            return None

    def node_ids(self) -> dict[int, str]:
        """Flower's ids of the admitted devices; Flower itself does not tell which is which."""
        try:
            found = read_json(self.project.keys / "nodes.json")
            return {int(device): str(node) for device, node in found.items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def _note(self, ids: dict[int, str]) -> None:
        write_json(self.project.keys / "nodes.json", ids)

    def nodes(self) -> list[dict[str, Any]]:
        """The admitted devices; Flower also lists those that were revoked."""
        nodes = self("supernode", "list", CONNECTION).get("nodes", [])
        return [node for node in nodes if node.get("status") != "unregistered"]

    def runs(self) -> list[dict[str, Any]]:
        """The Flower runs so far."""
        return list(self("list", CONNECTION).get("runs", []))

    def waiting(self) -> bool:
        """Whether a Flower run is about to begin. One that runs does not count: a dead one is missed after a minute."""
        return any(run.get("status") in TO_COME for run in self.runs())

    def submit(self) -> None:
        """Start a Flower run: the server app, which continues where the run folder ends."""
        project = self.project
        for name, path in (("config", project.server_file), ("folder", project.run_folder)):
            if '"' in str(path):
                raise KflError(f"The path of {name}, {path}, has a quotation mark, which Flower cannot take.")
        given = f'config="{project.server_file}" folder="{project.run_folder}"'
        self("run", str(project.app), CONNECTION, "--run-config", given)


def _json(text: str) -> dict[str, Any]:
    """The JSON in what a command printed; Flower may print other lines before it."""
    start = text.find("{")
    try:
        found = parse_json(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


LOOK_S = 1.0
SILENT_S = 30.0
"""A run folder that has not been held for this long has no server; Flower needs some seconds to start one. Should it
start late after all, the second server is refused the folder and ends."""
LOST_S = 120.0
"""A Flower run that has not begun after this long is given up."""
ATTEMPTS = 5
"""Servers that may end one after another without a single round before we give up."""


def keep_running(project: Project) -> Iterator[RoundLog]:
    """Start the run of a project, or continue it, and yield the rounds as they finish, earlier ones included.

    A SuperLink that is unreachable is waited for. KflError if the server ends again and again without a round.
    """
    project.config.validate()
    try:
        write_connection(
            project.flower_home, CONNECTION, project.address, project.keys / "ca.crt", project.control_secret
        )
    except OSError as problem:
        raise KflError(f"{project.flower_home} cannot be written ({problem.strerror or problem}).") from problem
    flower, run = FlowerCommand(project), RunReader(project.run_folder)
    seen, fruitless, submitted = 0, 0, -1e9
    janitors = [Janitor(folder / DATABASE) for folder in (project.folder, project.flower_home)]  # in an image, the last
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
                    note("run_submitted", "The run was handed to the SuperLink.", attempt=fruitless)
            except UnreachableError as problem:
                warn("superlink_unreachable", f"{problem} Trying again.")
                time.sleep(SILENT_S / 3)
        for janitor in janitors:
            janitor.tend()
        time.sleep(LOOK_S)
