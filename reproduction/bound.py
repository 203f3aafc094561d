"""`python -m reproduction bound`: what Theorem 1 and Proposition 2 say about a run, or about given constants."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from kfl.cli.options import DataDir, parse, peek, whole_numbers
from kfl.core.config import dump_toml, from_table, read_config, to_table
from kfl.core.errors import ConfigError
from kfl.core.files import jsonable, write_atomic
from kfl.core.terminal import tell, tell_json
from reproduction.theory.gaps import GAPS
from reproduction.theory.theorem1 import PATTERNS, Bound, Constants, equal_counts, pattern_schedule, theorem1

if TYPE_CHECKING:
    from reproduction.theory.knowledge_gap import KnowledgeGap
    from reproduction.theory.run_bound import RunBound

DESCRIPTION = """What the paper's guarantees say: Theorem 1, term by term and as printed, and Proposition 2.

For a finished run, the constants are estimated from its models and data:
  python -m reproduction bound runs/mine
For constants of your own, in a TOML file (--save of the first form writes one), and the paper's schedules:
  python -m reproduction bound --constants constants.toml --rates best

The gaps of the proofs are listed with every answer: the bound is printed, not proven."""

_MADE_UP = ("schedule", "rates", "rounds", "devices", "count", "classes", "classes-per-device", "samples")


@dataclass(frozen=True)
class BoundOptions:
    """What `python -m reproduction bound` takes."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None
    """Folder of a finished run."""
    constants: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """TOML file of constants, instead of a run."""
    schedule: Literal["all", "uniform", "ascend", "descend"] = "all"
    """With --constants: how many devices take part in which round. All shows the three side by side."""
    rates: Literal["given", "best", "largest"] = "given"
    """With --constants: the learning rates of the file, those at which the bound shrinks fastest, or the largest the
    theorem allows."""
    rounds: int = 200
    """With --constants: number of rounds, T."""
    devices: int = 100
    """With --constants: number of devices, K."""
    count: int = 10
    """With --constants: devices per round, on average."""
    classes: int = 10
    """With --constants: number of classes, C."""
    classes_per_device: int = 2
    """With --constants: classes on each device, in equal parts."""
    samples: int = 600
    """With --constants: samples on each device."""
    look_at: Annotated[str, tyro.conf.arg(metavar="DEVICES")] = "3"
    """With a run: how many devices' models the constants are estimated from, drawn by the run's seed; or a list with
    commas, such as 0,7,12, for these devices."""
    iterations: int = 10
    """With a run: steps of each power iteration for the curvature."""
    data_dir: DataDir = None
    save: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """With a run: write the estimated constants here, as TOML for --constants."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print everything as JSON, for programs."""


def main(arguments: Sequence[str]) -> int:
    """Parse, evaluate, print."""
    options = parse(BoundOptions, arguments, "python -m reproduction bound", DESCRIPTION)
    if (options.run is None) == (options.constants is None):
        given = "neither" if options.run is None else "both"
        raise ConfigError("RUN or --constants", given, "one of them: a run folder, or a file of constants")
    if options.constants is not None:
        _refuse(arguments, ("look-at", "iterations", "save"), "a run folder")
        _for_constants(read_constants(options.constants), options)
    else:
        _refuse(arguments, _MADE_UP, "--constants: a run has its own")
        _for_run(options)
    sys.stdout.flush()  # so that a reader who went away is noticed here
    return 0


def _refuse(arguments: Sequence[str], names: Sequence[str], needs: str) -> None:
    for name in names:
        value = peek(arguments, name)
        value = peek(arguments, name.replace("-", "_")) if value is None else value
        if value is not None:
            raise ConfigError(f"--{name}", value, f"left out without {needs}")


def read_constants(path: Path) -> Constants:
    """Constants from a TOML file; every field must be there."""
    table = read_config(path, "constants")
    missing = [field.name for field in fields(Constants) if field.name not in table]
    if missing:
        raise ConfigError("constants", str(path), f"a file that also gives {', '.join(missing)}")
    return from_table(Constants, table)


def _for_constants(constants: Constants, options: BoundOptions) -> None:
    if options.rates != "given":
        constants = constants.at_best_rates() if options.rates == "best" else constants.at_largest_rates()
    counts = equal_counts(options.devices, options.classes, options.classes_per_device, options.samples)
    names = list(PATTERNS) if options.schedule == "all" else [options.schedule]
    schedules = {name: pattern_schedule(name, options.rounds, options.devices, options.count) for name in names}
    bounds = {name: theorem1(constants, counts, schedule) for name, schedule in schedules.items()}
    if options.json:
        _print_json({"constants": to_table(constants), "theorem1": {n: bound_table(b) for n, b in bounds.items()}})
        return
    from reproduction.bound_display import print_constants_bound

    print_constants_bound(constants, bounds)


def _for_run(options: BoundOptions) -> None:
    from reproduction.theory.run_bound import bound_of_run

    assert options.run is not None
    look_at = options.look_at
    devices = whole_numbers(look_at, "look_at") if "," in look_at or ".." in look_at else _number(look_at)
    found = bound_of_run(options.run, devices=devices, iterations=options.iterations, data_dir=options.data_dir)
    if options.save is not None:
        if found.estimate is None:
            raise ConfigError("save", str(options.save), "left out: this run has no constants to save")
        write_atomic(options.save, dump_toml(to_table(found.estimate.constants)).encode())
    if options.json:
        _print_json(run_table(found))
        return
    from reproduction.bound_display import print_run_bound

    print_run_bound(options.run, found)
    if options.save is not None:
        tell(f"The constants are in {options.save}; try: python -m reproduction bound --constants {options.save}")


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError("look_at", text, "a number of devices, 1 or more, or a list such as 0,7,12")
    return int(text)


def run_table(found: RunBound) -> dict[str, Any]:
    """Everything about a run as plain values."""
    theorem = None
    if found.estimate is not None and found.bound is not None and found.best_bound is not None:
        facts = {name: value for name, value in asdict(found.estimate).items() if name not in ("constants", "notes")}
        theorem = {
            "constants_are": "estimates",
            "constants": to_table(found.estimate.constants),
            "estimated_from": facts,
            "at_the_runs_rates": bound_table(found.bound),
            "at_the_best_rates": bound_table(found.best_bound),
            "equation5": None if found.knowledge is None else knowledge_table(found.knowledge),
        }
    energy, volume = found.energy, found.volume
    proposition = None
    if energy is not None and volume is not None:
        proposition = {
            "energy": {**asdict(energy), "holds": energy.holds, "vacuous": energy.vacuous},
            "data_volume": {**asdict(volume), "holds": volume.holds, "vacuous": volume.vacuous},
        }
    notes = [*(found.estimate.notes if found.estimate else ()), *found.notes]
    return {"theorem1": theorem, "proposition2": proposition, "notes": notes}


def knowledge_table(found: KnowledgeGap) -> dict[str, Any]:
    """Equation (5) as plain values, one entry for each class that the server knows."""
    return {**asdict(found), "holds": found.holds}


def bound_table(bound: Bound) -> dict[str, Any]:
    """A bound as plain values."""
    return {
        "label": bound.label,
        **asdict(bound),
        "total": bound.total,
        "within_assumptions": bound.within_assumptions,
        "verdict": bound.verdict,
    }


def _print_json(value: dict[str, Any]) -> None:
    """One JSON object; numbers that are not finite become null."""
    tell_json(json.dumps(jsonable({**value, "gaps": [asdict(gap) for gap in GAPS]}), indent=2, allow_nan=False))
