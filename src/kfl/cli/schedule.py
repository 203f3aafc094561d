"""`kfl schedule`: who sends, with which share and power, for devices described in a file. Nothing is trained."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from kfl.cli.interrupt import serve_until_interrupted
from kfl.cli.options import Port, SchedulerName, parse, peek
from kfl.cli.values import YES_NO
from kfl.core.errors import ConfigError, KflError
from kfl.core.terminal import tell, tell_exactly
from kfl.experiment import Experiment
from kfl.scheduling import SCHEDULERS, Dual, Scheduler

if TYPE_CHECKING:
    from kfl.scheduling import ScheduleResult

DESCRIPTION = """Decide who sends, with which share of the band and which power.

Devices are described in a JSON or CSV file: one round, or a measured channel trace of many. Nothing is trained. --play
serves a page with sliders instead, for this machine only."""
MOST_USED = (
    "scheduler",
    "json",
    "save",
    "next",
    "bandwidth-hz",
    "deadline-s",
    "rounds",
    "hard-budget",
    "example",
    "play",
)
COMMAND_EXAMPLES = """kfl schedule --example > problem.json && kfl schedule problem.json
kfl schedule examples/cell.csv --save result.csv
kfl schedule problem.json --next next.json      the problem of the next round, with queues and spent energy
kfl schedule problem.json --scheduler lyapunov --scheduler.v 0.01
kfl schedule --fields                           every field of a problem file
kfl schedule --play --open"""


def _option(metavar: str) -> Any:
    """An option that may be left out; its help does not say "(default: None)"."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


_Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class ScheduleArgs:
    """What `kfl schedule` takes."""

    scheduler: Scheduler
    """How the devices of a round are chosen."""
    problem: Annotated[str | None, tyro.conf.Positional, _option("FILE")] = None
    """The problem, as JSON or CSV; - reads standard input."""
    scheduler_name: SchedulerName = "dual"
    json: _Flag = False
    """Print everything as JSON, in SI units, for programs."""
    next: Annotated[Path | None, _option("FILE")] = None
    """Write the problem of the next round here (.json or .csv)."""
    save: Annotated[Path | None, _option("FILE")] = None
    """Write the result here: .json as --json prints it, .csv one row per scheduled device and round."""
    bandwidth_hz: Annotated[float | None, _option("X")] = None
    """The uplink band, in place of what the file says."""
    deadline_s: Annotated[float | None, _option("X")] = None
    """The deadline of devices without their own, in place of what the file says."""
    rounds: Annotated[int | None, _option("N")] = None
    """The horizon that budgets are for, in place of what the file says."""
    hard_budget: Annotated[bool | None, tyro.conf.arg(metavar="yes|no", help_behavior_hint="")] = None
    """If true, no device may spend more than its battery holds, in place of what the file says."""
    example: Annotated[Literal["json", "csv", "modem"] | None, _option("{json,csv,modem}")] = None
    """Print a problem to start from, and stop; modem: one whose devices have a real modem and a clock to slow."""
    fields: _Flag = False
    """List every field of a problem file with its meaning and default, and stop."""
    play: _Flag = False
    """Serve a page with sliders for V, budgets, band, distance and payload instead: who is scheduled, with what."""
    port: Port = None
    open: _Flag = False
    """With --play: open the page in the web browser."""


def main(arguments: Sequence[str]) -> int:
    """Parse, decide, print."""
    name = peek(arguments, "scheduler")
    start: Scheduler = Dual() if name is None else Experiment.from_table({"scheduler": name}).scheduler
    schedulers = "\n".join(f"  {name}: {_plain(kind.about())}" for name, kind in SCHEDULERS.items())
    described = f"{DESCRIPTION}\n\nSchedulers:\n{schedulers}"
    default = ScheduleArgs(start, scheduler_name=start.name)
    options = parse(
        ScheduleArgs,
        _spelled_out(arguments),
        "kfl schedule",
        described,
        default,
        examples=COMMAND_EXAMPLES,
        most_used=MOST_USED,
    )
    if not options.play and (options.port is not None or options.open):
        raise ConfigError("--port" if options.port is not None else "--open", "given", "left out without --play")
    if options.play:
        if options.problem is not None:
            raise ConfigError("FILE", options.problem, "left out with --play: the page has a cell of its own")
        _play(options.port, show=options.open)
    elif options.example is not None:
        tell_exactly(example(options.example))
    elif options.fields:
        from kfl.cli.schedule_display import print_fields

        print_fields()
    else:
        execute(options)
    sys.stdout.flush()  # so that a reader who went away is noticed here
    return 0


def _play(port: int | None, *, show: bool) -> None:
    """Serve the playground until it is interrupted."""
    from kfl.report.playground import playground_server

    with playground_server(port) as server:
        begun = f"The playground is at {server.url} (Ctrl-C ends it)."
        serve_until_interrupted(server, begun, "The playground is closed.", show=show)


def playground(arguments: Sequence[str]) -> int:
    """Serve `kfl playground` of earlier versions."""
    tell("kfl playground is now kfl schedule --play.", file=sys.stderr)
    return main(["--play", *arguments])


def _plain(text: str) -> str:
    """A docstring's sentence for people who do not read Python: `Uniform` is called uniform."""
    return re.sub(r"`(\w+)`", lambda match: match[1].lower(), text)


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """The arguments with the values of options that can stand alone: `--example json` and `--hard-budget yes`."""
    words = ["--hard-budget=no" if word in ("--no-hard-budget", "--no_hard_budget") else word for word in arguments]
    for flag, usual, others in (("--example", "json", EXAMPLES), ("--hard-budget", "yes", YES_NO)):
        if flag in words:
            following = words.index(flag) + 1
            if not set(words[following : following + 1]) & {*others, "none"}:
                words.insert(following, usual)
    return words


def execute(options: ScheduleArgs) -> None:
    """Read the problem, decide its rounds, print and write what was asked for."""
    from kfl.scheduling import read_problem, schedule, write_problem

    for name, path in (("--next", options.next), ("--save", options.save)):
        _check_target(name, path)
    problem = read_problem(
        _source(options.problem),
        bandwidth_hz=options.bandwidth_hz,
        deadline_s=options.deadline_s,
        rounds=options.rounds,
        hard_budget=options.hard_budget,
    )
    horizon = schedule(problem, options.scheduler)
    if options.next is not None:
        write_problem(horizon.following, options.next)
    if options.save is not None:
        _save(horizon, options.save)
    if options.json:
        from kfl.scheduling.problem_writer import json_text
        from kfl.scheduling.result_table import result_table

        tell_exactly(json_text(result_table(horizon)))
    else:
        from kfl.cli.schedule_display import print_horizon

        print_horizon(horizon, options.next, options.save)


def _check_target(option: str, path: Path | None) -> None:
    """Complain about a file that cannot be written before any work is done."""
    if path is None:
        return
    if path.suffix.lower() not in (".json", ".csv"):
        raise ConfigError(option, str(path), "a file whose name ends in .json or .csv")
    if not path.parent.is_dir():
        raise ConfigError(option, str(path), f"in a folder that exists; {str(path.parent)!r} does not")


def _source(problem: str | None) -> str | Path:
    if problem is None:
        raise KflError("Name a problem file, or - for standard input; kfl schedule --example prints one to start from.")
    if problem != "-":
        return Path(problem)
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise KflError(f"Standard input is not text in UTF-8: byte {wrong.start} cannot be read.") from wrong
    if not text.strip():
        raise KflError("Standard input is empty; kfl schedule --example prints a problem to start from.")
    return text if "\n" in text else text + "\n"


def _save(horizon: ScheduleResult, path: Path) -> None:
    from kfl.core.files import write_atomic
    from kfl.scheduling.problem_writer import json_text
    from kfl.scheduling.result_table import result_csv, result_table

    as_csv = path.suffix.lower() == ".csv"
    text = result_csv(horizon) if as_csv else json_text(result_table(horizon))
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise KflError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error


EXAMPLES = {"json": "meters.json", "csv": "meters.csv", "modem": "phones.json"}
"""Files that --example prints: the same seven meters in one narrow cell, twice; and phones, whole devices."""


def example(name: str) -> str:
    """Return a problem to start from, by its word for --example."""
    return files("kfl.scheduling").joinpath("examples", EXAMPLES[name]).read_text(encoding="utf-8")
