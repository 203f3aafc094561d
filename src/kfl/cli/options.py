"""Command-line options from dataclasses: every field of an experiment is an option with help and a default.

Three words choose what further options there are: `--algorithm`, `--scheduler` and `--radio`. They, and a config
file, are read first; then every field is offered with the values so far as defaults, so flags go on top.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from kfl.algorithms import ALGORITHMS
from kfl.core.errors import ConfigError, MissingExtraError
from kfl.experiment.experiment import Experiment
from kfl.scheduling import SCHEDULERS
from kfl.wireless import PRESETS, CellConfig

T = TypeVar("T")

only_parser: ContextVar[bool] = ContextVar("only_parser", default=False)
"""Set by `kfl completion`, which asks every command for its options: `parse` then raises `ParserFound`."""


class ParserFound(Exception):  # noqa: N818  # it carries an answer, it is no error
    """The parser of a command, handed out in place of parsing."""

    def __init__(self, parser: Any) -> None:
        super().__init__()
        self.parser: Any = parser  # argparse's, or tyro's copy of it


def parse(cls: type[T], arguments: Sequence[str], prog: str, description: str, default: T | None = None) -> T:
    """Parse arguments into a dataclass with tyro; a wrong flag is answered with the right one."""
    try:
        import tyro
    except ImportError as problem:
        raise MissingExtraError("tyro", "cli", "The command line") from problem
    extra: dict[str, Any] = {} if default is None else {"default": default}
    extra |= {"prog": prog, "description": description}
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff)
    if only_parser.get():
        with warnings.catch_warnings():  # tyro would rather keep it to itself, but offers nothing else to list options
            warnings.simplefilter("ignore", DeprecationWarning)
            raise ParserFound(tyro.extras.get_parser(cls, config=config, **extra))
    parsed: T = tyro.cli(cls, args=list(arguments), config=config, **extra)
    return parsed


def starting_point(arguments: Sequence[str]) -> Experiment:
    """The experiment that the config file and the words --algorithm, --scheduler and --radio describe."""
    config = peek(arguments, "config")
    experiment = Experiment() if config is None else Experiment.load(Path(config))
    algorithm, scheduler = peek(arguments, "algorithm"), peek(arguments, "scheduler")
    named = {key: value for key, value in (("algorithm", algorithm), ("scheduler", scheduler)) if value is not None}
    experiment = Experiment.from_table(named, experiment)
    dataset, radio = peek(arguments, "dataset"), peek(arguments, "radio")
    if dataset is not None:
        experiment = replace(experiment, dataset=dataset)
    return experiment if radio is None else replace(experiment, radio=radio)


def with_radio_fields(experiment: Experiment, arguments: Sequence[str]) -> Experiment:
    """The experiment with its radio spelled out, so that each field of it can be an option."""
    cell = experiment.cell_config
    if cell is None:
        flag = next((word for word in arguments if word.startswith("--radio.")), None)
        if flag is not None:
            raise ConfigError("radio", "none", f"the name of a cell ({', '.join(PRESETS)}) to use {flag}")
    return replace(experiment, radio=cell or CellConfig())


def peek(arguments: Sequence[str], name: str) -> str | None:
    """The value of one option before the rest is parsed; the last one counts."""
    found = None
    for place, word in enumerate(arguments):
        if word == f"--{name}" and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


ALGORITHM_NAMES = tuple(ALGORITHMS)
SCHEDULER_NAMES = tuple(SCHEDULERS)
RADIO_NAMES = ("auto", "none", *PRESETS)
