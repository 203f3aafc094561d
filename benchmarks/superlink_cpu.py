"""Where a SuperLink's CPU goes: a sampler inside it, which `benchmarks.fleet_cost --profile` starts it with.

    python -m benchmarks.superlink_cpu OUT.json superlink --control-secret …

Every few milliseconds each thread's CPU time since the last look (`schedstat`) is counted for the part of the program
that its innermost frames are in. What a thread does in C counts for the Python frame that called it.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY_S = 0.004
PARTS = {
    "SQL: SQLAlchemy": ("/sqlalchemy/",),
    "TLS, sockets, event loop": ("/asyncio/", "/uvloop/", "/ssl.py", "/selectors.py", "/anyio/", "/threading.py"),
    "HTTP: uvicorn, Starlette, FastAPI": ("/uvicorn/", "/starlette/", "/fastapi/", "/h11/", "/httptools/"),
    "signatures": ("/cryptography/", "/primitives/asymmetric"),
    "messages: protobuf": ("/google/protobuf/",),
    "logging": ("/logging/", "/rich/"),
    "kfl's limits": ("/kfl_fleet/",),
    "Flower": ("/flwr/",),
}
"""Parts by what is in a file's path; the innermost frame in one of them counts."""
RPC = ("fleet/router.py", "runtime/router.py")


class Sampler(threading.Thread):
    """Counts CPU seconds by part, and by request where a thread answers one."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.out = out
        self.parts: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self._last: dict[int, float] = {}

    def run(self) -> None:
        """Sample until the process ends; the file is written every second."""
        written_s = 0.0
        while True:
            time.sleep(EVERY_S)
            frames = sys._current_frames()
            for thread in threading.enumerate():
                frame = frames.get(thread.ident or 0)
                spent_s = self._spent_s(thread.native_id or 0)
                if thread is not self and frame is not None and spent_s > 0:
                    files = list(_files(frame))
                    self.parts[part_of(files)] += spent_s  # type: ignore[assignment]
                    self.requests[request_of(files)] += spent_s  # type: ignore[assignment]
            if time.monotonic() - written_s > 1.0:
                written_s = time.monotonic()
                found = {"parts": dict(self.parts), "requests": dict(self.requests)}
                temporary = self.out.with_suffix(".new")
                temporary.write_text(json.dumps(found))
                temporary.replace(self.out)

    def _spent_s(self, native: int) -> float:
        """CPU seconds of a thread since the last look."""
        now_s = 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            now_s = int(Path(f"/proc/self/task/{native}/schedstat").read_text().split()[0]) / 1e9
        before_s = self._last.get(native, now_s)
        self._last[native] = now_s
        return now_s - before_s


def part_of(files: list[tuple[str, str]]) -> str:
    """The part of the program that the innermost known frame is in."""
    for name, _ in files:
        for part, marks in PARTS.items():
            if any(mark in name for mark in marks):
                return part
    return "other"


def request_of(files: list[tuple[str, str]]) -> str:
    """The function of Flower's router that is being run."""
    return next((function for name, function in files if name.endswith(RPC)), "outside of a handler")


def _files(frame: FrameType | None) -> list[tuple[str, str]]:
    """File and function of a frame and of those that called it, innermost first."""
    found = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return found


def main() -> None:
    """Become a program of Flower's, with a sampler next to it."""
    Sampler(Path(sys.argv[1])).start()
    sys.argv = ["control_auth", *sys.argv[2:]]
    runpy.run_module("kfl_fleet._flower.control_auth", run_name="__main__")


if __name__ == "__main__":
    main()
