"""Flower's own command line, `flwr … fleet`: which devices a SuperLink admits, and which runs there are.

A process that imports Flower takes most of a second, so several commands share one:
`python -m kfl_fleet._flower.control` runs those that it is given as JSON, and prints a result for each.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfl.core.errors import KflError, MissingExtraError, RunFolderError
from kfl.core.files import write_json
from kfl.core.parse import parse_json
from kfl.core.text import scrub
from kfl_fleet._flower.app_folder import CONNECTION, flower_environment
from kfl_fleet.private import UMASK

PATIENCE_S = 120.0
"""For one command; Flower's own time limits are shorter."""
TO_COME = ("pending", "starting")
"""Status of a Flower run whose server app has not begun; running and finished:… come next"""
ADMITTED = "already in use"
"""In Flower's reason, where a key was registered before."""

Command = Sequence[str]


class UnreachableError(KflError):
    """The SuperLink does not answer, or refuses."""


@dataclass(frozen=True)
class Control:
    """The control interface of one fleet's SuperLink."""

    flower_home: Path
    """Flower's configuration of this fleet (FLWR_HOME)."""
    address: str
    keys: Path
    """Folder of the devices' public keys; the nodes' ids are noted there."""
    run_folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __call__(self, *words: str) -> dict[str, Any]:
        """Run a command and return the JSON it prints; UnreachableError with Flower's reason if it fails."""
        return self._checked(self.several([words])[0])

    def several(self, commands: Sequence[Command]) -> list[tuple[dict[str, Any], str]]:
        """Run commands one after another in one process.

        Returns:
            For each the JSON that it printed, and the reason where it failed, else "".
        """
        listed = [[*words, "--format", "json"] for words in commands]
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__, json.dumps(listed)],
                env=flower_environment(self.flower_home, self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S * max(len(listed), 1),
                check=False,
                start_new_session=True,
                umask=UMASK,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"The SuperLink at {self.address} does not answer.") from None
        results = [_read(line) for line in done.stdout.splitlines()]
        missing: tuple[dict[str, Any], str] = {}, scrub(done.stderr or done.stdout) or "it gave no reason"
        return [*results, *[missing] * (len(listed) - len(results))]

    def register(self, keys: Mapping[int, Path]) -> list[int]:
        """Admit devices by their public keys, under their numbers; return those that were not admitted before."""
        commands = [("supernode", "register", str(key), CONNECTION, "--name", f"device-{d}") for d, key in keys.items()]
        ids = self.node_ids()
        try:
            for device, result in zip(keys, self.several(commands), strict=True):
                if ADMITTED not in result[1]:
                    ids[device] = str(self._checked(result).get("node-id"))
        finally:
            before = self.node_ids()
            if ids != before:
                self._note(ids)
        return [device for device in keys if ids.get(device) != before.get(device)]

    def revoke(self, device: int) -> int:
        """Revoke every key by which a device is known here; return how many there were."""
        ids = self.node_ids()
        mine = {node for node in (ids.pop(device, None), self._in_run(device)) if node is not None}
        listed = {str(node.get("node-id")) for node in self.nodes()}
        for node in mine & listed:
            self("supernode", "unregister", node, CONNECTION)
        self._note(ids)
        return len(mine & listed)

    def node_ids(self) -> dict[int, str]:
        """Return Flower's ids of the admitted devices; Flower itself does not tell which is which."""
        from kfl_fleet.messages.records import read_node_ids  # the process that runs commands needs none

        return read_node_ids(self.keys / "nodes.json")

    def nodes(self) -> list[dict[str, Any]]:
        """Return the admitted devices; Flower also lists those that were revoked."""
        nodes = self("supernode", "list", CONNECTION).get("nodes", [])
        return [node for node in nodes if node.get("status") != "unregistered"]

    def waiting(self) -> bool:
        """Whether a Flower run is about to begin. One that runs does not count: a dead one is missed after a minute."""
        return any(run.get("status") in TO_COME for run in self("list", CONNECTION).get("runs", []))

    def submit(self, app: Path, **settings: Path) -> None:
        """Start a Flower run: the server app, which continues where the run folder ends.

        Args:
            app: folder of Flower's app.
            settings: paths that replace those in the app's own configuration.
        """
        for name, path in settings.items():
            if '"' in str(path):
                raise KflError(f"The path of {name}, {path}, has a quotation mark, which Flower cannot take.")
        given = ["--run-config", " ".join(f'{name}="{path}"' for name, path in settings.items())] if settings else []
        self("run", str(app), CONNECTION, *given)

    def _checked(self, result: tuple[dict[str, Any], str]) -> dict[str, Any]:
        found, reason = result
        if reason:
            raise UnreachableError(f"The request to the SuperLink at {self.address} failed: {reason}")
        return found

    def _in_run(self, device: int) -> str | None:
        """The id under which the server last met a device, from its run folder."""
        from kfl.runfolder import RunReader
        from kfl_fleet.messages.records import read_fleet

        try:
            record = read_fleet(RunReader(self.run_folder))
        except RunFolderError:
            return None
        return None if record is None or device not in record.devices else record.devices[device].node

    def _note(self, ids: Mapping[int, str]) -> None:
        write_json(self.keys / "nodes.json", ids)


def _read(line: str) -> tuple[dict[str, Any], str]:
    """What one command printed as JSON, and why it failed; Flower may print other lines before it."""
    try:
        status, out, err = parse_json(line)
        start = out.find("{")
        found = parse_json(out[start:]) if start >= 0 else {}
    except (ValueError, TypeError, AttributeError):
        return {}, scrub(line) or "it gave no reason"
    found = found if isinstance(found, dict) else {}
    if status == 0 and found.get("success", True):
        return found, ""
    return found, scrub(found.get("error-message") or err or out) or "it gave no reason"


# ── The process that runs Flower's commands ──────────────────────────────────


def main(arguments: Sequence[str]) -> int:
    """Run commands of `flwr`, a list of lists of words in JSON; print status, output and errors of each as JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as in kfl_fleet._flower.names
        try:
            flwr = importlib.import_module("flwr.cli.app").app
        except ImportError:
            print(MissingExtraError("flwr", "fleet", "A fleet of real devices"), file=sys.stderr)
            return MissingExtraError.exit_status
        results = [_run(flwr, words) for words in json.loads(arguments[0])]
    print(*map(json.dumps, results), sep="\n")
    return 0


def _run(flwr: Any, words: Command) -> tuple[int, str, str]:
    out, err, status = io.StringIO(), io.StringIO(), 0
    with _printing_into(out, err):
        try:
            flwr(args=list(words), prog_name="flwr")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            err.write(end.code if isinstance(end.code, str) else "")
        except Exception as problem:  # whatever Flower's command raises is why it failed
            status = 1
            err.write(f"{type(problem).__name__}: {problem}")
    return status, out.getvalue(), err.getvalue()


@contextmanager
def _printing_into(out: io.StringIO, err: io.StringIO) -> Iterator[None]:
    """Flower prints JSON to `sys.__stdout__` and all else to `sys.stdout`."""
    before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc,assignment]  # the module declares them final text streams
    sys.stderr = sys.__stderr__ = err  # type: ignore[misc,assignment]  # as above
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]  # as above


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
