"""Command-line options from dataclasses: every field of an experiment is an option with help and a default.

Some words choose what further options there are: `--algorithm`, `--scheduler`, `--radio`, and the models of a cell
such as `--radio.fading`. They, and a config file, are read first; then every field is offered with the values so far as
defaults: flags override them.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from kfl.algorithms import ALGORITHMS
from kfl.cli.arguments import Grammar, Option, read_options
from kfl.cli.help import help_text
from kfl.core.errors import ConfigError
from kfl.core.names import for_file_name
from kfl.core.terminal import tell_exactly
from kfl.data import DATASETS, short_name
from kfl.experiment import DataSettings, Experiment
from kfl.scheduling import SCHEDULERS
from kfl.wireless import (
    PRESETS,
    CellConfig,
    Channel,
    GainTrace,
    Harvest,
    HarvestTrace,
    Mobility,
)

T = TypeVar("T")

# Options that several commands have, with their help.
DataDir = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="FOLDER",
        help="Folder that holds the datasets that have names. Default: the environment variable KFL_DATA_DIR.",
        help_behavior_hint="",
    ),
]
ConfigFile = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="FILE",
        help="TOML file that describes the experiment, such as config.toml of a run folder. Flags override it.",
    ),
]
SchedulerName = Annotated[str, tyro.conf.arg(name="scheduler", metavar="NAME", help="Who takes part in each round.")]
RadioName = Annotated[
    str,
    tyro.conf.arg(
        name="radio", metavar="NAME", help="The cell: auto is the paper's cell for the dataset, none is no radio."
    ),
]
FadingName = Annotated[
    str,
    tyro.conf.arg(name="radio.fading", metavar="NAME", help="Channel model: how gains vary from round to round."),
]
HarvestName = Annotated[
    str, tyro.conf.arg(name="radio.harvest", metavar="NAME", help="What fills the batteries of devices.")
]
MobilityName = Annotated[str, tyro.conf.arg(name="radio.mobility", metavar="NAME", help="How devices move.")]
GainTraceFile = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="FILE",
        help="CSV file of channel gains over time: time_s or round, device, and gain_db, gain or rsrp_dbm.",
        help_behavior_hint="",
    ),
]
HarvestTraceFile = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="FILE",
        help="CSV file of harvested power over time: time_s or round, device, and watts.",
        help_behavior_hint="",
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    tyro.conf.arg(help="Device to train on: auto uses the GPU if there is one."),
]
Precision = Annotated[
    Literal["float32", "tf32", "bf16", "float64"],
    tyro.conf.arg(help="Number format. tf32 is for GPUs; bf16 rounds products, not weights."),
]
RayAddress = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="ADDRESS",
        help="Run on a Ray cluster instead: HOST:PORT, ray://HOST:PORT, auto for the one this machine belongs to, or "
        "local.",
    ),
]

Quiet = Annotated[
    bool,
    tyro.conf.arg(aliases=("-q",), help="Print only the result, no progress."),
]

only_parser: ContextVar[bool] = ContextVar("only_parser", default=False)
"""Set by `kfl completion`, which asks every command for its options: `parse` then raises `ParserFound`."""


class ParserFound(Exception):  # noqa: N818  # it carries an answer and is not an error
    """The parser of a command, handed out in place of parsing."""

    def __init__(self, parser: Any) -> None:
        super().__init__()
        self.parser: Any = parser  # argparse's, or tyro's copy of it


def parse(cls: type[T], arguments: Sequence[str], prog: str, description: str, default: T | None = None) -> T:
    """Parse arguments into a dataclass: help that a person can read, and one sentence for a wrong word."""
    extra: dict[str, Any] = {} if default is None else {"default": default}
    extra |= {"prog": prog, "description": description}
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff)
    with warnings.catch_warnings():  # tyro would rather keep it to itself, but offers nothing else to list options
        warnings.simplefilter("ignore", DeprecationWarning)
        parser: Any = tyro.extras.get_parser(cls, config=config, **extra)
    if only_parser.get():
        raise ParserFound(parser)
    options = read_options(parser)
    if {"-h", "--help"} & set(arguments):
        tell_exactly(help_text(prog, description, options, NAMES) + "\n")
        raise SystemExit(0)
    words = Grammar(prog, options, NAMES, lambda flag: _elsewhere(flag, arguments, options)).checked(arguments)
    parsed: T = tyro.cli(cls, args=words, config=config, **extra)
    return parsed


def _elsewhere(flag: str, arguments: Sequence[str], options: Sequence[Option]) -> str:
    """Of which other algorithms, schedulers or models a flag is an option; empty where of none."""
    head, _, field = flag.removeprefix("--").rpartition(".")
    registry = REGISTRIES.get(head, {})
    owners = [
        name
        for name, kind in registry.items()
        if field.removeprefix("no-").replace("-", "_") in {own.name for own in fields(kind)}
    ]
    if not owners:
        return ""
    if not any(option.flag.startswith(f"--{head}") for option in options):
        return "an option of kfl run"
    chosen = peek(arguments, head) or next((option.default for option in options if option.flag == f"--{head}"), "")
    here = f"; --{head} is {chosen}" if chosen else ""
    return f"an option of {' and '.join([', '.join(owners[:-1]), owners[-1]] if owners[1:] else owners)}{here}"


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
    experiment = replace(experiment, devices=usual_devices(arguments, experiment))
    return experiment if radio is None else replace(experiment, radio=radio)


S = TypeVar("S", bound=DataSettings)


def usual_devices(arguments: Sequence[str], settings: DataSettings) -> int:
    """The number of devices where `--devices` does not say: with `--split natural`, as many as the data has."""
    return 0 if peek(arguments, "split") == "natural" != settings.split else settings.devices


def with_devices_of_data(settings: S, data_dir: Path | None) -> S:
    """The settings with the number of devices, which with the natural split only the data may know."""
    if not settings.asks_data:
        return settings
    from kfl.data import load_dataset

    return settings.for_data(load_dataset(settings.dataset, data_dir))


def with_radio_fields(experiment: Experiment, arguments: Sequence[str]) -> Experiment:
    """The experiment with its radio spelled out, so that each field of it can be an option."""
    cell = experiment.cell_config
    if cell is None:
        about_radio = ("--radio.", *(f"--{option}" for option in TRACES))
        flag = next((word for word in arguments if word.startswith(about_radio)), None)
        if flag is not None:
            raise ConfigError("radio", "none", f"the name of a cell ({', '.join(PRESETS)}) to use {flag}")
    cell = cell or CellConfig()
    models: dict[str, Any] = {}
    for field, kind in MODELS.items():
        word = peek(arguments, f"radio.{field}")
        if word is not None:
            models[field] = kind.from_plain(word, f"radio.{field}")
    for option, (field, trace) in TRACES.items():
        path = peek(arguments, option) or peek(arguments, option.replace("-", "_"))
        if path is None:
            continue
        named, before = models.get(field), getattr(cell, field)
        if named is not None and not isinstance(named, trace):
            raise ConfigError(f"radio.{field}", named.name, f"left out, or {trace.name}, with --{option}")
        models[field] = replace(before if isinstance(before, trace) else trace(), path=path)
    return replace(experiment, radio=replace(cell, **models))


def names_of(start: Experiment, shown: Experiment) -> dict[str, Any]:
    """What --scheduler, --radio and the models of the radio show: of the experiment, and with its radio spelled out."""
    radio, cell = start.radio, shown.cell_config or CellConfig()
    return {
        "scheduler_name": start.scheduler.name,
        "radio_name": radio if isinstance(radio, str) else ("none" if radio is None else "from file"),
        **{f"{field}_name": getattr(cell, field).name for field in MODELS},
    }


def peek(arguments: Sequence[str], name: str) -> str | None:
    """The value of one option before the rest is parsed; the last one counts."""
    found = None
    for index, word in enumerate(arguments):
        if word == f"--{name}" and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


ALGORITHM_NAMES = tuple(ALGORITHMS)
SCHEDULER_NAMES = tuple(SCHEDULERS)
RADIO_NAMES = ("auto", "none", *PRESETS)
MODELS: dict[str, type[Any]] = {"fading": Channel, "mobility": Mobility, "harvest": Harvest}
"""Fields of a cell whose value is a model with fields of its own."""
TRACES: dict[str, tuple[str, type[GainTrace] | type[HarvestTrace]]] = {
    "gain-trace": ("fading", GainTrace),
    "harvest-trace": ("harvest", HarvestTrace),
}
"""Options that name a file, with the field and the model of the cell that they are short for."""


REGISTRIES: dict[str, Mapping[str, type[Any]]] = {
    "algorithm": ALGORITHMS,
    "scheduler": SCHEDULERS,
    **{f"radio.{field}": kind.registry() for field, kind in MODELS.items()},
}
"""Words that choose something with options of its own, and what there is to choose from."""

NAMES: dict[str, Sequence[str]] = {
    "--algorithm": ALGORITHM_NAMES,
    "--algorithms": ALGORITHM_NAMES,
    "--scheduler": SCHEDULER_NAMES,
    "--radio": RADIO_NAMES,
    **{f"--radio.{field}": tuple(kind.registry()) for field, kind in MODELS.items()},
    "--dataset": tuple(DATASETS),
}
"""The names that help shows for options whose type does not tell them."""

LONGEST_RANGE = 100_000


def whole_numbers(text: str, field: str) -> list[int]:
    """Whole numbers of 0 or more, each once, in the order given.

    >>> whole_numbers("0..4", "seeds"), whole_numbers("0,3,7", "seeds"), whole_numbers("5", "seeds")
    ([0, 1, 2, 3, 4], [0, 3, 7], [5])
    """
    expected = "numbers such as 5, 0,3,7 or 0..4, the smaller first"
    found: dict[int, None] = {}
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", part)
        if match is None:
            raise ConfigError(field, text, expected)
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < LONGEST_RANGE:
            raise ConfigError(field, text, expected)
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)


def numbers(text: str, field: str) -> list[float]:
    """Numbers with commas between.

    >>> numbers("0.02, 0.1", "learning_rates")
    [0.02, 0.1]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as problem:
        raise ConfigError(field, text, "numbers with commas between, such as 0.02,0.05") from problem


def worker_count(workers: int | None, device: str) -> int:
    """As many as asked for; else one for each core, or a single one on a GPU.

    >>> worker_count(3, "cpu")
    3
    """
    if workers is not None:
        return workers
    if device != "cpu":
        from kfl.engine.factory import check_device

        if check_device(device) == "cuda":
            return 1
    return os.cpu_count() or 1


def new_folder(word: str, dataset: str) -> Path:
    """A new folder under runs/, named by the time, a word (the command or the algorithm) and the dataset."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{for_file_name(word)}-{short_name(dataset)}"
    folder, number = Path("runs") / stem, 2
    while folder.exists():
        folder, number = Path("runs") / f"{stem}-{number}", number + 1
    return folder
