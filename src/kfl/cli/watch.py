"""`kfl watch`: the page of `kfl report`, live, while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import parse
from kfl.cli.serving import serve_until_interrupted
from kfl.core.errors import ConfigError

DESCRIPTION = """Show a run in the web browser while it goes on: the page of kfl report, renewed as rounds finish.

The page is served on 127.0.0.1, for this machine only, and nothing can be changed through it. The run may not have
begun yet, and may be killed and resumed. Ctrl-C ends the page, not the run."""


@dataclass(frozen=True)
class WatchOptions:
    """What `kfl watch` takes."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or where one will be; or a folder of them such as kfl compare writes."""
    port: Annotated[int | None, tyro.conf.arg(metavar="PORT", help_behavior_hint="")] = None
    """Port to serve on, 0 for any. By default 8378, or any free one where that is taken."""
    open: bool = False
    """Show it in the web browser."""


def main(arguments: Sequence[str]) -> int:
    """Parse, serve until interrupted."""
    options = parse(WatchOptions, arguments, "kfl watch", DESCRIPTION)
    if options.run.is_file():
        raise ConfigError("RUN", str(options.run), "a folder, or where one will be")
    from kfl.report import watch_server

    with watch_server(options.run, options.port) as server:
        begun = f"Watching {options.run} at {server.url} (Ctrl-C ends the page, not the run)."
        serve_until_interrupted(server, begun, "No longer watching.", show=options.open)
    return 0
