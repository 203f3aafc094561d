"""`kfl report`: an HTML page of one run, or of several compared; with --live, of a run while it is running."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.interrupt import serve_until_interrupted
from kfl.cli.options import Port, parse
from kfl.core.errors import ConfigError
from kfl.core.terminal import tell

DESCRIPTION = """Make one HTML file of one run, or of several compared; it needs no network and can be sent to anyone.

It shows accuracy against rounds, joules, seconds and bits, every device's accuracy and energy, who took part when,
the cell, the knowledge as it moved, what went wrong, and how to repeat it. The run need not be finished.

With --live the page is served on 127.0.0.1, for this machine only, and updated as rounds finish; nothing can be changed
through it. The run may not have begun yet, and may be killed and resumed. Ctrl-C closes the page, not the run."""
EXAMPLES = """kfl report runs/first --open
kfl report runs/first runs/second --out both.html
kfl report runs/first --live --open      while it runs"""


@dataclass(frozen=True)
class ReportArgs:
    """What `kfl report` takes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…", help_behavior_hint="")]
    """Run folders, or a folder of run folders such as kfl compare writes; with --live, one that may not exist yet."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File to write. Default: report.html in the run folder; for several runs, in the folder that holds the first."""
    open: bool = False
    """Open it in the web browser."""
    live: bool = False
    """Serve the page and update it while the run is running, instead of writing a file."""
    port: Port = None


def main(arguments: Sequence[str]) -> int:
    """Parse, then write the page or serve it."""
    options = parse(ReportArgs, arguments, "kfl report", DESCRIPTION, examples=EXAMPLES)
    if not options.runs:
        raise ConfigError("RUN", "not given", "one run folder or more")
    if options.live:
        if len(options.runs) > 1:
            raise ConfigError("RUN", " ".join(map(str, options.runs)), "one folder with --live")
        if options.out is not None:
            raise ConfigError("--out", options.out, "left out with --live, which writes no file")
        return live(options.runs[0], options.port, show=options.open)
    if options.port is not None:
        raise ConfigError("--port", options.port, "left out without --live")
    from kfl.report import build_report

    started = time.perf_counter()
    page = build_report(list(options.runs), options.out)
    size = page.stat().st_size / 1e6
    tell(f"The page is {page} ({size:.1f} MB, made in {time.perf_counter() - started:.1f} s).")
    if options.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


def live(run: Path, port: int | None, *, show: bool) -> int:
    """Serve the page of a run until it is interrupted."""
    if run.is_file():
        raise ConfigError("RUN", str(run), "a folder, or where one will be")
    from kfl.report import watch_server

    with watch_server(run, port) as server:
        begun = f"Watching {run} at {server.url} (Ctrl-C ends the page, not the run)."
        serve_until_interrupted(server, begun, "No longer watching.", show=show)
    return 0


def watch(arguments: Sequence[str]) -> int:
    """Serve `kfl watch` of earlier versions."""
    tell("kfl watch RUN is now kfl report RUN --live.", file=sys.stderr)
    return main(["--live", *arguments])
