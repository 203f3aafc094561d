"""`kfl schedule`: who sends, with which share and power, for devices described in a file. Nothing is trained."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from kfl.cli.options import SchedulerName, parse, peek
from kfl.cli.values import YES_NO
from kfl.core.errors import ConfigError, KflError
from kfl.core.terminal import tell_exactly
from kfl.experiment import Experiment
from kfl.scheduling import SCHEDULERS, Dual, Scheduler

if TYPE_CHECKING:
    from kfl.scheduling import Horizon

DESCRIPTION = """Decide who sends, with which share of the band and which power.

Devices are described in a JSON or CSV file: one round, or a measured channel trace of many. Nothing is trained.

A first try:
  kfl schedule --example > problem.json
  kfl schedule problem.json

Round after round: --next writes the problem of the next round, with queues and spent energy brought forward;
put the new gains into it. The options of the chosen scheduler are listed below; choose another with --scheduler
and ask for help again to see its options."""


def _option(metavar: str) -> Any:
    """An option that may be left out; its help does not say "(default: None)"."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


_Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class ScheduleOptions:
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
    """Whether nobody may spend more than its battery holds, in place of what the file says."""
    example: Annotated[Literal["json", "csv", "modem"] | None, _option("{json,csv,modem}")] = None
    """Print a problem to start from, and stop; modem: one whose devices have a real modem and a clock to slow."""
    fields: _Flag = False
    """List every field of a problem file with its meaning and default, and stop."""


def main(arguments: Sequence[str]) -> int:
    """Parse, decide, print."""
    name = peek(arguments, "scheduler")
    start: Scheduler = Dual() if name is None else Experiment.from_table({"scheduler": name}).scheduler
    schedulers = "\n".join(f"  {name}: {_plain(kind.about())}" for name, kind in SCHEDULERS.items())
    described = f"{DESCRIPTION}\n\nSchedulers:\n{schedulers}"
    default = ScheduleOptions(start, scheduler_name=start.name)
    options = parse(ScheduleOptions, _spelled_out(arguments), "kfl schedule", described, default)
    if options.example is not None:
        tell_exactly(EXAMPLES[options.example])
    elif options.fields:
        from kfl.cli.schedule_display import print_fields

        print_fields()
    else:
        execute(options)
    sys.stdout.flush()  # so that a reader who went away is noticed here
    return 0


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


def execute(options: ScheduleOptions) -> None:
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
        from kfl.scheduling.horizon_table import horizon_table
        from kfl.scheduling.problem_file import json_text

        tell_exactly(json_text(horizon_table(horizon)))
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


def _save(horizon: Horizon, path: Path) -> None:
    from kfl.core.files import write_atomic
    from kfl.scheduling.horizon_table import horizon_csv, horizon_table
    from kfl.scheduling.problem_file import json_text

    as_csv = path.suffix.lower() == ".csv"
    text = horizon_csv(horizon) if as_csv else json_text(horizon_table(horizon))
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise KflError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error


_JSON = """{
  "bandwidth_hz": 180000,
  "noise_dbm_per_hz": -171,
  "deadline_s": 20,
  "rounds": 100,
  "round": 12,
  "max_power_dbm": 23,
  "payload_bits": 20480,
  "flops": 1.65e9,
  "flops_per_cycle": 1,
  "power_coefficient": 3.6e-28,
  "budget_j": 2,
  "devices": [
    {"id": "hall", "gain_db": -118, "samples": 600, "cpu_hz": 192e6, "spent_j": 0.54, "queue_j": 0.3},
    {"id": "roof", "gain_db": -109, "samples": 400, "cpu_hz": 160e6, "spent_j": 0.34, "queue_j": 0.1},
    {"id": "cellar-1", "gain_db": -136, "samples": 600, "cpu_hz": 128e6, "spent_j": 0.44, "queue_j": 0.2},
    {"id": "cellar-2", "gain_db": -146, "samples": 60, "cpu_hz": 192e6, "spent_j": 1.14, "queue_j": 0.9},
    {"id": "street", "gain_db": -124, "samples": 300, "payload_bits": 81920, "max_power_dbm": 14,
     "compute_time_s": 6, "compute_energy_j": 0.004, "deadline_s": 15,
     "budget_j": 1, "battery_j": 0.7, "queue_j": 0.18},
    {"id": "yard", "available": false, "samples": 500, "cpu_hz": 160e6},
    {"id": "tunnel", "gain_db": -121, "samples": 600, "cpu_hz": 80e6}
  ]
}
"""

_CSV = """# bandwidth_hz = 180000
# noise_dbm_per_hz = -171
# deadline_s = 20
# rounds = 100
# round = 12
# max_power_dbm = 23
# payload_bits = 20480
# flops = 1.65e9
# flops_per_cycle = 1
# power_coefficient = 3.6e-28
# budget_j = 2
id,gain_db,samples,cpu_hz,spent_j,queue_j,payload_bits,max_power_dbm,compute_time_s,compute_energy_j,\
deadline_s,budget_j,battery_j,available
hall,-118,600,192e6,0.54,0.3,,,,,,,,
roof,-109,400,160e6,0.34,0.1,,,,,,,,
cellar-1,-136,600,128e6,0.44,0.2,,,,,,,,
cellar-2,-146,60,192e6,1.14,0.9,,,,,,,,
street,-124,300,,,0.18,81920,14,6,0.004,15,1,0.7,
yard,,500,160e6,,,,,,,,,,false
tunnel,-121,600,80e6,,,,,,,,,,
"""

_MODEM = """{
  "bandwidth_hz": 20e6,
  "noise_dbm_per_hz": -169,
  "deadline_s": 5,
  "rounds": 100,
  "round": 12,
  "max_power_dbm": 23,
  "min_power_dbm": -40,
  "amplifier_efficiency": 0.23,
  "circuit_power_w": 1.15,
  "tail_energy_j": 5.93,
  "payload_bits": 17611072,
  "flops": 1.65e9,
  "flops_per_cycle": 8,
  "cpu_hz": 1.9008e9,
  "min_cpu_hz": 652.8e6,
  "power_coefficient": 5.3e-29,
  "static_power_w": 0.18,
  "budget_j": 140,
  "devices": [
    {"id": "street", "gain_db": -88, "samples": 600, "spent_j": 23.7, "queue_j": 7.4},
    {"id": "kitchen", "gain_db": -101, "samples": 600, "cpu_hz": 2.208e9, "spent_j": 15.4, "queue_j": 1.1},
    {"id": "cellar", "gain_db": -119, "samples": 600, "cpu_hz": 1.4784e9, "queue_j": 0.1},
    {"id": "office", "gain_db": -101, "samples": 600, "payload_bits": 20480, "spent_j": 12.1, "queue_j": 0.4},
    {"id": "tablet", "gain_db": -95, "samples": 600, "flops": 6e10, "queue_j": 0.1},
    {"id": "camera", "gain_db": -80, "samples": 300, "min_cpu_hz": 1.9008e9, "static_power_w": 0,
     "circuit_power_w": 0, "tail_energy_j": 0, "spent_j": 3.1, "queue_j": 0.3}
  ]
}
"""

EXAMPLES = {"json": _JSON, "csv": _CSV, "modem": _MODEM}
"""What --example prints: the same seven meters in one narrow cell, twice; and phones, whole devices."""
