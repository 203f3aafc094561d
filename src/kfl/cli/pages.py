"""Commands that make or serve an HTML page: `kfl report` and `kfl watch` about runs, `kfl playground` to explore."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.cli.interrupt import termination_as_interrupt
from kfl.cli.options import parse
from kfl.core.errors import ConfigError
from kfl.core.terminal import tell

if TYPE_CHECKING:
    from kfl.report.loopback import LoopbackServer

REPORT = """Make one HTML file of one run, or of several compared; it needs no network and can be sent to anyone.

It shows accuracy against rounds, joules, seconds and bits, every device's accuracy and energy, who took part when,
the cell, the knowledge as it moved, what went wrong, and how to repeat it. The run need not be finished."""


@dataclass(frozen=True)
class ReportOptions:
    """What `kfl report` takes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…", help_behavior_hint="")]
    """Run folders, or a folder of run folders such as kfl compare writes."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File to write. Default: report.html in the run folder; for several runs, in the folder that holds the first."""
    open: bool = False
    """Open it in the web browser."""


def report(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = parse(ReportOptions, arguments, "kfl report", REPORT)
    if not options.runs:
        raise ConfigError("RUN", "not given", "one run folder or more")
    from kfl.report import build_report

    started = time.perf_counter()
    page = build_report(list(options.runs), options.out)
    size = page.stat().st_size / 1e6
    tell(f"The page is {page} ({size:.1f} MB, made in {time.perf_counter() - started:.1f} s).")
    if options.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


WATCH = """Show a run in the web browser while it is running: the page of kfl report, updated as rounds finish.

The page is served on 127.0.0.1, for this machine only, and nothing can be changed through it. The run may not have
begun yet, and may be killed and resumed. Ctrl-C closes the page, not the run."""


@dataclass(frozen=True)
class WatchOptions:
    """What `kfl watch` takes."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, which need not exist yet, or a folder of run folders such as kfl compare writes."""
    port: Annotated[int | None, tyro.conf.arg(metavar="PORT", help_behavior_hint="")] = None
    """Port to serve on, 0 for any free one. Default: 8378, or any free one if that is taken."""
    open: bool = False
    """Open it in the web browser."""


def watch(arguments: Sequence[str]) -> int:
    """Parse, serve until interrupted."""
    options = parse(WatchOptions, arguments, "kfl watch", WATCH)
    if options.run.is_file():
        raise ConfigError("RUN", str(options.run), "a folder, or where one will be")
    from kfl.report import watch_server

    with watch_server(options.run, options.port) as server:
        begun = f"Watching {options.run} at {server.url} (Ctrl-C ends the page, not the run)."
        serve_until_interrupted(server, begun, "No longer watching.", show=options.open)
    return 0


PLAYGROUND = """A page to learn the scheduler: move V, budgets, band, distance and payload, and see at once who is
scheduled, the shares and powers, the gap to the lower bound and the energy over a simulated horizon.

Every number comes from the library. The page is served on 127.0.0.1, for this machine only. Ctrl-C ends it."""


@dataclass(frozen=True)
class PlaygroundOptions:
    """What `kfl playground` takes."""

    port: Annotated[int | None, tyro.conf.arg(metavar="PORT", help_behavior_hint="")] = None
    """Port to serve on, 0 for any free one. Default: 8379, or any free one if that is taken."""
    open: bool = False
    """Open it in the web browser."""


def playground(arguments: Sequence[str]) -> int:
    """Parse, serve until interrupted."""
    options = parse(PlaygroundOptions, arguments, "kfl playground", PLAYGROUND)
    from kfl.report.playground import playground_server

    with playground_server(options.port) as server:
        begun = f"The playground is at {server.url} (Ctrl-C ends it)."
        serve_until_interrupted(server, begun, "The playground is closed.", show=options.open)
    return 0


def serve_until_interrupted(server: LoopbackServer, begun: str, ended: str, *, show: bool) -> None:
    """Say where the page is, show it in the browser if asked to, and serve it; say when it has ended."""
    tell(begun, flush=True)
    with termination_as_interrupt():
        try:
            with _shown(server.url) if show else nullcontext():
                server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            tell("", ended)


@contextmanager
def _shown(url: str) -> Iterator[None]:
    """Open an address in the web browser; through a private file, since other users can read a program's arguments."""
    import webbrowser

    with TemporaryDirectory(prefix="kfl-") as folder:  # which nobody else may enter
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0;url={url}">', encoding="utf-8")
        webbrowser.open(page.as_uri())
        yield
