"""The playground: a page on this machine to learn the scheduler. Move something, and the library decides anew.

>>> play = Play(Settings(devices=20, rounds=5, scheduler="dual"))
>>> play.advance()
>>> [int(one.decision.chosen.sum()) for one in play.rounds]
[20, 0, 0, 3, 0]
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import replace

from kfl.core.errors import KflError
from kfl.report.loopback import Answer, LoopbackServer
from kfl.report.playground._model import JudgedRound, Play
from kfl.report.playground._page import answer_json, problem_file, render_playground
from kfl.report.playground._settings import OPENING, Settings, start

PORT = 8379
"""Where the page is, unless that port is taken."""
LONGEST_QUERY = 2000
FIRST_S, NEXT_S = 0.06, 0.3
"""How long rounds are played before the first answer, and before each that follows while the horizon is not done."""
KEPT = 8
"""States whose rounds are kept, so that a look at another round costs nothing."""


class Playground:
    """Answers the page's requests. Each state is played once, a little further with every request for it."""

    def __init__(self) -> None:
        self._plays: OrderedDict[Settings, tuple[Play, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    def respond(self, path: str, query: dict[str, str]) -> Answer | None:
        """The page, its results as JSON, or the cell as a file."""
        if path not in ("/", "/answer.json", "/cell.json"):
            return None
        problem = ""
        try:
            if sum(len(name) + len(value) for name, value in query.items()) > LONGEST_QUERY:
                raise KflError("This address is too long to hold settings of the playground.")
            settings = Settings.from_query(query) if query or path != "/" else start(OPENING)
        except KflError as refused:
            if path != "/":
                # The page asks while the user types; a status of 400 would fill its console with spurious errors.
                return _json({"problem": str(refused)}, 200 if path == "/answer.json" else 400)
            settings, problem = start(OPENING), f"{refused} The page starts from its defaults."
        if path == "/cell.json":
            return Answer(problem_file(settings).encode(), "application/json")
        play, lock = self._play(settings)
        with lock:
            if not play.done:
                play.advance(NEXT_S if play.rounds else FIRST_S)
            if path == "/":
                return Answer(render_playground(play, settings, problem).encode())
            return Answer(answer_json(play, settings).encode(), "application/json")

    def _play(self, settings: Settings) -> tuple[Play, threading.Lock]:
        """The rounds of this state, whichever of them is looked at."""
        key = replace(settings, round=1)
        with self._lock:
            if key not in self._plays:
                self._plays[key] = (Play(key), threading.Lock())
            self._plays.move_to_end(key)
            while len(self._plays) > KEPT:
                self._plays.popitem(last=False)
            return self._plays[key]


def playground_server(port: int | None = None) -> LoopbackServer:
    """A server on 127.0.0.1 with the playground."""
    return LoopbackServer(Playground().respond, port, PORT)


def _json(value: dict[str, str], status: int) -> Answer:
    return Answer(json.dumps(value).encode(), "application/json", status)


__all__ = ["JudgedRound", "Play", "Playground", "Settings", "playground_server"]
