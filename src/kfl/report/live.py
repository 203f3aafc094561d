"""A run folder as a live page: read again when it has changed, however often the run is killed and resumed."""

from __future__ import annotations

import json
import shlex
import threading
import time
from pathlib import Path

from kfl.core.errors import KflError
from kfl.core.files import jsonable
from kfl.report.groups import MAP, read_groups
from kfl.report.loopback import Answer, LoopbackServer
from kfl.report.page import Page, compose, html_of, render
from kfl.report.run_data import RunData
from kfl.report.text import duration
from kfl.runfolder import LOCAL_ONLY, RunReader, is_run_folder, runs_in

PORT = 8378
"""Where the page is, unless that port is taken."""
SILENT_S = 60.0
"""A run that has written nothing for this long may have been interrupted."""


class LiveRun:
    """What a live page shows, kept until the folder changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._version = ""
        self._page = _waiting(path)
        self._runs: list[RunData] = []
        self._problem = ""
        self._took_s = 0.0

    def respond(self, path: str, query: dict[str, str]) -> Answer | None:
        """The page, and its content as JSON for one that is already open."""
        if path == "/":
            version, page = self.now()
            return Answer(render(page, version).encode())
        if path == "/data.json":
            return Answer(self.news(query.get("have", "")).encode(), "application/json")
        return None

    def now(self) -> tuple[str, Page]:
        """Return the version of the folder's content, and its page."""
        with self._lock:
            version = self._stamp()
            if version != self._version:
                started = time.monotonic()
                self._read()
                self._version, self._took_s = version, time.monotonic() - started
            return self._version, self._page

    def news(self, have: str) -> str:
        """Return JSON: the state of the run, and the content where it is another version than the reader has."""
        version, page = self.now()
        # Reading again takes long for a large fleet; then the page asks so rarely that it is a small part of the time.
        answer = {"version": version, "news": self._state(), "wait_s": max(1.0, round(5 * self._took_s, 1))}
        if have != version:
            answer |= {"title": page.title, "html": html_of(page), "links": page.links, "figures": page.figures}
        return json.dumps(jsonable(answer), allow_nan=False)

    def _read(self) -> None:
        self._problem = ""
        try:
            if self._begun():
                found = read_groups([self.path])
                self._runs, self._page = found.runs, compose(found)
            else:
                self._runs, self._page = [], _waiting(self.path)
        except KflError as problem:  # what was read before stays on the page
            self._problem = str(problem)

    def _begun(self) -> bool:
        return is_run_folder(self.path) or bool(runs_in(self.path))

    def _stamp(self) -> str:
        """What changes whenever a file does that the page is made of."""
        folders = [self.path, self.path / LOCAL_ONLY]
        if not is_run_folder(self.path):
            folders += runs_in(self.path)
        changed = (self.path / MAP).stat().st_mtime_ns if (self.path / MAP).is_file() else 0
        return "-".join([f"{changed:x}", *(RunReader(folder).stamp() for folder in folders)])

    def _state(self) -> str:
        """Return the state of the run in words that change seldom, because they are read aloud."""
        if self._problem:
            return self._problem
        if not self._runs:
            return "Waiting for the run to begin."
        if all(run.finished for run in self._runs):
            return "Finished."
        open_runs = [run for run in self._runs if not run.finished]
        quiet_s = min(RunReader(run.path).quiet_s() for run in open_runs)
        if quiet_s > SILENT_S:
            again = f"kfl resume {shlex.quote(str(open_runs[0].path))}"
            return f"No news for {duration(60 * (quiet_s // 60))}; if it was interrupted: {again}"
        if len(self._runs) > 1:
            return f"Live: {len(self._runs) - len(open_runs)} of {len(self._runs)} runs finished."
        return f"Live: round {self._runs[0].played:,} of {self._runs[0].planned:,}."


def watch_server(path: Path, port: int | None = None) -> LoopbackServer:
    """Return a server on 127.0.0.1 with the live page of a run folder, which need not exist yet.

    Args:
        path: a run folder, or a folder of run folders.
        port: None for 8378, or any free one if that is taken.
    """
    return LoopbackServer(LiveRun(path).respond, port, PORT)


def _waiting(path: Path) -> Page:
    return Page(
        heading=path.name,
        sentence=f"Nothing has been written to {path} yet. This page fills itself as soon as a run begins there, for "
        f"example: kfl run --out {shlex.quote(str(path))}",
        kicker="Live report",
    )
