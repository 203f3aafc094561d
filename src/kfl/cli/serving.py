"""Serve a page on this machine until the person has seen enough: Ctrl-C, or a request to end."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kfl.report.loopback import LoopbackServer


def serve_until_interrupted(server: LoopbackServer, begun: str, ended: str, *, show: bool) -> None:
    """Say where the page is, show it in the browser if asked to, and serve it; say when it has ended."""
    print(begun, flush=True)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if show:
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print(f"\n{ended}")
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """A request to end is the same as Ctrl-C."""
    raise KeyboardInterrupt
