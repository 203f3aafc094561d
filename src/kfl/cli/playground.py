"""`kfl playground`: a page on this machine to learn the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from kfl.cli.options import parse
from kfl.cli.pages import serve_until_interrupted

DESCRIPTION = """A page to learn the scheduler: move V, budgets, band, distance and payload, and see at once who is
scheduled, the shares and powers, the gap to the lower bound and the energy over a simulated horizon.

Every number comes from the library. The page is served on 127.0.0.1, for this machine only. Ctrl-C ends it."""


@dataclass(frozen=True)
class PlaygroundOptions:
    """What `kfl playground` takes."""

    port: Annotated[int | None, tyro.conf.arg(metavar="PORT", help_behavior_hint="")] = None
    """Port to serve on, 0 for any free one. Default: 8379, or any free one if that is taken."""
    open: bool = False
    """Open it in the web browser."""


def main(arguments: Sequence[str]) -> int:
    """Parse, serve until interrupted."""
    options = parse(PlaygroundOptions, arguments, "kfl playground", DESCRIPTION)
    from kfl.report.playground import playground_server

    with playground_server(options.port) as server:
        begun = f"The playground is at {server.url} (Ctrl-C ends it)."
        serve_until_interrupted(server, begun, "The playground is closed.", show=options.open)
    return 0
