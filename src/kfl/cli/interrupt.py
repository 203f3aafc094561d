"""Ctrl-C and requests to terminate, during a long job and while a server is up."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from kfl.core.terminal import tell

if TYPE_CHECKING:
    from kfl.report.loopback import LoopbackServer


class GentleStop:
    """While the block runs, Ctrl-C (or a termination request) sets a flag; a second one interrupts as usual."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, object] = {}

    def __call__(self) -> bool:
        """Whether the user asked to stop."""
        return self._asked

    def __enter__(self) -> GentleStop:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not in the main thread, as in some notebooks: Ctrl-C then works as usual
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned is what it takes

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        with contextlib.suppress(RuntimeError):  # it may come in the middle of a write to the same stream
            tell("", "Stopping after this round; press Ctrl-C again to stop at once.", file=sys.stderr, flush=True)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """While the block runs, a request to terminate ends it as Ctrl-C does, so that everything is cleaned up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve_until_interrupted(server: LoopbackServer, begun: str, ended: str, *, show: bool) -> None:
    """Say where the page is, show it in the browser if asked to, and serve it; say when it has ended."""
    tell(begun, flush=True)
    with termination_as_interrupt():
        try:
            with _shown(server.url) if show else contextlib.nullcontext():
                server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            tell("", ended)


@contextlib.contextmanager
def _shown(url: str) -> Iterator[None]:
    """Open an address in the web browser; through a private file, since other users can read a program's arguments."""
    import webbrowser

    with TemporaryDirectory(prefix="kfl-") as folder:  # which only its owner may enter
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0;url={url}">', encoding="utf-8")
        webbrowser.open(page.as_uri())
        yield
