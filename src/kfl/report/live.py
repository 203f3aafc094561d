"""A run folder as a live page: read again when it has changed, however often the run is killed and resumed."""

from __future__ import annotations

import json
import shlex
import threading
import time
from pathlib import Path

from kfl.core.errors import KflError
from kfl.core.files import jsonable
from kfl.report.groups import MAP, read_comparison
from kfl.report.loopback import Answer, LoopbackServer
from kfl.report.page import Content, compose, render
from kfl.report.words import duration, text
from kfl.runfolder import LOCAL_ONLY, RunData, RunReader, is_run_folder, runs_in

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
        self._content = Content("kfl watch")
        self._runs: list[RunData] = []
        self._problem = ""
        self._took_s = 0.0

    def respond(self, path: str, query: dict[str, str]) -> Answer | None:
        """The page, and its content as JSON for one that is already open."""
        if path == "/":
            version, content = self.now()
            return Answer(render(content, version).encode())
        if path == "/data.json":
            return Answer(self.news(query.get("have", "")).encode(), "application/json")
        return None

    def now(self) -> tuple[str, Content]:
        """The version of the folder's content, and the content."""
        with self._lock:
            version = self._stamp()
            if version != self._version:
                started = time.monotonic()
                self._read()
                self._version, self._took_s = version, time.monotonic() - started
            return self._version, self._content

    def news(self, have: str) -> str:
        """JSON: how things stand, and the content where it is another version than the reader has."""
        version, content = self.now()
        # Reading again takes long for a large fleet; then the page asks so rarely that it is a small part of the time.
        answer = {"version": version, "news": self._state(), "wait_s": max(1.0, round(5 * self._took_s, 1))}
        if have != version:
            answer |= {"title": content.title, "html": content.html, "links": content.links, "figures": content.figures}
        return json.dumps(jsonable(answer), allow_nan=False)

    def _read(self) -> None:
        self._problem = ""
        try:
            if self._begun():
                comparison = read_comparison([self.path])
                self._runs, self._content = comparison.runs, compose(comparison)
            else:
                self._runs, self._content = [], _waiting(self.path)
        except KflError as problem:  # what was read before stays on the page
            self._problem = str(problem)
            if not self._runs:
                self._content = _waiting(self.path)

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
        """How the run stands, in words that change seldom, because they are read aloud."""
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
    """A server on 127.0.0.1 with the live page of a run folder, which need not be there yet."""
    return LoopbackServer(LiveRun(path).respond, port, PORT)


def _waiting(path: Path) -> Content:
    where = text(path)
    return Content(
        f"Waiting for {path.name} · kfl",
        f'<header class="intro-block" id="top"><p class="kicker">kfl watch</p><h1>{text(path.name)}</h1>'
        f'<p class="lead">Nothing has been written to {where} yet. This page fills itself as soon as a run begins '
        f"there, for example: kfl run --out {where}</p></header>",
    )
