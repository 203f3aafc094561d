"""`kfl report`: one HTML file about one run, or about several side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import parse
from kfl.core.errors import ConfigError

DESCRIPTION = """Make one HTML file of one run, or of several compared; it needs no network and can be sent to anybody.

It shows accuracy against rounds, joules, seconds and bits, every device's accuracy and energy, who took part when,
the cell, the knowledge as it moved, what went wrong, and how to repeat it. A run need not be finished."""


@dataclass(frozen=True)
class ReportOptions:
    """What `kfl report` takes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…", help_behavior_hint="")]
    """Run folders, or a folder of them such as kfl compare writes."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """The file to write. By default report.html in the run folder, or for several runs in the current one."""
    open: bool = False
    """Show it in the web browser."""


def main(arguments: Sequence[str]) -> int:
    """Parse, write, say where."""
    options = parse(ReportOptions, arguments, "kfl report", DESCRIPTION)
    if not options.runs:
        raise ConfigError("RUN", "not given", "one run folder or more")
    from kfl.report import build_report

    started = time.perf_counter()
    page = build_report(list(options.runs), options.out)
    size = page.stat().st_size / 1e6
    print(f"The page is {page} ({size:.1f} MB, made in {time.perf_counter() - started:.1f} s).")
    if options.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0
