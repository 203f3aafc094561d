"""Command-line options from dataclasses: every field of an experiment is an option with help and a default.

Some words choose what further options there are: `--algorithm`, `--scheduler`, `--radio`, and the models of a cell
such as `--radio.fading`. They, and a config file, are read first; then every field is offered with the values so far as
defaults: flags override them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from kfl.algorithms import ALGORITHMS
from kfl.cli.flags import Flag, field_docs, flags_of
from kfl.cli.help import help_of
from kfl.cli.values import VALUES
from kfl.core.errors import ConfigError, KflError
from kfl.core.names import for_file_name
from kfl.core.suggest import MEANT, nearest
from kfl.core.terminal import tell_exactly
from kfl.data import short_name
from kfl.encoders import AUTO
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
AlgorithmName = Annotated[
    str, tyro.conf.arg(name="algorithm", metavar="NAME", help=f"How devices learn: {', '.join(ALGORITHMS)}.")
]
SchedulerName = Annotated[
    str, tyro.conf.arg(name="scheduler", metavar="NAME", help=f"Who takes part in each round: {', '.join(SCHEDULERS)}.")
]
RadioName = Annotated[
    str,
    tyro.conf.arg(
        name="radio",
        metavar="NAME",
        help="The cell: auto is one sized to data and networks, with hard budgets (where a --radio.FIELD is given, the "
        f"paper's for MNIST). none is no radio. Or {', '.join(PRESETS)}.",
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

Port = Annotated[
    int | None,
    tyro.conf.arg(
        metavar="PORT",
        help="Port to serve the page on, 0 for any free one. Default: a fixed one, or any free one if that is taken.",
        help_behavior_hint="",
    ),
]
Quiet = Annotated[
    bool,
    tyro.conf.arg(aliases=("-q",), help="Print only the result, no progress."),
]

list_options: ContextVar[bool] = ContextVar("list_options", default=False)
"""Set by `kfl completion`, which asks every command for its options: `parse` then raises `OptionsListed`."""


class OptionsListed(Exception):  # noqa: N818  # it carries an answer and is not an error
    """The options of a command, handed out in place of parsing."""

    def __init__(self, cls: type[Any], default: Any) -> None:
        super().__init__()
        self.cls, self.default = cls, default


def parse(
    cls: type[T],
    arguments: Sequence[str],
    prog: str,
    description: str,
    default: T | None = None,
    *,
    examples: str = "",
    most_used: Sequence[str] = (),
) -> T:
    """Parse the words of a command into a dataclass, or print its help.

    Args:
        cls: The dataclass; every field is an option, with the string below it as help.
        arguments: The words after the command.
        prog: The command, such as `kfl run`.
        description: What its help begins with.
        default: The values of options that are not given; the defaults of the fields if None.
        examples: Commands that its help ends with, a line each.
        most_used: The options that --help shows, such as `rounds`; the others are behind --help-all. Empty: all.

    Returns:
        An instance of the dataclass.

    Raises:
        KflError: Some words belong to no option; the sentence says what was probably meant.
        SystemExit: Help was asked for, or a value cannot be read (status 2, with tyro's explanation).
    """
    if list_options.get():
        raise OptionsListed(cls, default)
    if (asked := {"-h", "--help", "--help-all"}.intersection(arguments)) and "--" not in arguments:
        shown = () if "--help-all" in asked else most_used
        tell_exactly(help_of(prog, description, flags_of(cls, default), examples, shown, listed=most_used))
        raise SystemExit(0)
    given: dict[str, Any] = {} if default is None else {"default": default}
    parsed: T
    parsed, unknown = tyro.cli(
        cls,
        args=arguments,
        prog=prog,
        description=description,
        config=(tyro.conf.AvoidSubcommands,),
        registry=VALUES,
        return_unknown_args=True,
        **given,
    )
    if unknown:
        raise KflError(_about_unknown(unknown, prog, flags_of(cls, default)))
    return parsed


def _about_unknown(words: Sequence[str], prog: str, flags: Sequence[Flag]) -> str:
    """The sentence about words that belong to no option."""
    known = [name for flag in flags if not flag.positional for name in (flag.name, flag.opposite) if name]
    unknown = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not unknown:
        return f"{prog} does not know what {words[0]!r} is for; {prog} --help lists its options."
    told = ", ".join(f"{word}{_meant(word, known)}" for word in unknown)
    return f"{prog} does not know {told}; {prog} --help lists its options."


def _meant(word: str, known: Sequence[str]) -> str:
    """What a flag was probably meant to be, in brackets: an option of the command, or of another algorithm's."""
    last = {name.rpartition(".")[2].lstrip("-"): name for name in reversed(known)}
    wanted = word.lstrip("-")
    head, _, field = wanted.rpartition(".")
    others = [name for name, kind in REGISTRIES.get(head, {}).items() if field.replace("-", "_") in field_docs(kind)]
    if others:
        return f" (an option of --{head} {', '.join(others)})"
    if head in REGISTRIES:  # a field of the chosen algorithm or another such model
        mine = {name.rpartition(".")[2]: name for name in known if name.startswith(f"--{head}.")}
        near = nearest(field, mine, MEANT)
        return "" if near is None else f" (did you mean {mine[near]}?)"
    near = None if head else nearest(wanted, last, MEANT)
    near = nearest(wanted, [name[2:] for name in known]) if near is None else near
    return "" if near is None else f" (did you mean {last.get(near, f'--{near}')}?)"


def starting_point(arguments: Sequence[str]) -> Experiment:
    """The experiment that the config file and the words --algorithm, --scheduler and --radio describe."""
    config = peek(arguments, "config")
    experiment = Experiment() if config is None else Experiment.load(Path(config))
    algorithm, scheduler = peek(arguments, "algorithm"), peek(arguments, "scheduler")
    dataset, radio = peek(arguments, "dataset"), peek(arguments, "radio")
    words = {"algorithm": algorithm, "scheduler": scheduler, "dataset": dataset, "radio": radio}
    table = {name: word for name, word in words.items() if word is not None}
    return Experiment.from_table({"devices": usual_devices(arguments, experiment), **table}, experiment)


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
        flag = _about_radio(arguments)
        if flag is not None:
            raise ConfigError("radio", "none", f"the name of a cell ({', '.join(PRESETS)}) to use {flag}")
    cell = cell or CellConfig()
    models: dict[str, Any] = {}
    for field, kind in MODELS.items():
        word = peek(arguments, f"radio.{field}")
        if word is not None:
            models[field] = kind.from_plain(word, f"radio.{field}")
    for option, (field, trace) in TRACES.items():
        path = peek(arguments, option)
        if path is None:
            continue
        named, before = models.get(field), getattr(cell, field)
        if named is not None and not isinstance(named, trace):
            raise ConfigError(f"radio.{field}", named.name, f"left out, or {trace.name}, with --{option}")
        models[field] = replace(before if isinstance(before, trace) else trace(), path=path)
    return replace(experiment, radio=replace(cell, **models))


def with_radio_asked(experiment: Experiment, start: Experiment, arguments: Sequence[str]) -> Experiment:
    """The parsed experiment with the radio that was asked for: none, or auto where no field of a cell is given."""
    if start.cell_config is None:
        return replace(experiment, radio=None)
    if start.radio != AUTO or _about_radio(arguments) is not None:
        return experiment
    if not experiment.hard_budget and any("hard-budget" in word.replace("_", "-") for word in arguments):
        raise ConfigError("hard_budget", False, "left out where no cell is named: its budgets are hard; name a --radio")
    return replace(experiment, radio=AUTO)


def _about_radio(arguments: Sequence[str]) -> str | None:
    """The first argument that says something of a cell, other than its name."""
    about = ("--radio.", *(f"--{option}" for option in TRACES))
    return next((word for word in arguments if word.startswith(about)), None)


def names_of(start: Experiment, shown: Experiment) -> dict[str, Any]:
    """What --scheduler, --radio and the models of the radio show: of the experiment, and with its radio spelled out."""
    radio, cell = start.radio, shown.cell_config or CellConfig()
    return {
        "scheduler_name": start.scheduler.name,
        "radio_name": radio if isinstance(radio, str) else ("none" if radio is None else "from file"),
        **{f"{field}_name": getattr(cell, field).name for field in MODELS},
    }


def typed(arguments: Sequence[str]) -> set[str]:
    """The fields whose options are among the words; none where there is a config file, whose values they may put back.

    >>> sorted(typed(["--scheduler.count=5", "--no-hard-budget", "--split", "iid"]))
    ['hard_budget', 'scheduler.count', 'split']
    """
    words = [word[2:].partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")]
    found = {re.sub(r"(^|\.)no_", r"\1", word) for word in words}
    return set() if "config" in found else found


def refuse_idle(arguments: Sequence[str], options: Collection[str], needed: str) -> None:
    """Raise ConfigError for the first of some options that is among the words, as it acts only with another one."""
    for word in arguments:
        name = word.partition("=")[0].lstrip("-")
        if word.startswith("--") and name.replace("-", "_") in options:
            raise ConfigError(f"--{name}", "given", f"left out: it acts {needed}")


def peek(arguments: Sequence[str], name: str) -> str | None:
    """The value of one option before the rest is parsed; the last one counts."""
    found = None
    for index, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") != f"--{name}".replace("_", "-"):
            continue
        if equals:
            found = value
        elif index + 1 < len(arguments):
            found = arguments[index + 1]
    return found


ALGORITHM_NAMES = tuple(ALGORITHMS)
SCHEDULER_NAMES = tuple(SCHEDULERS)
RADIO_NAMES = (AUTO, "none", *PRESETS)
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

LONGEST_RANGE = 100_000


def whole_numbers(text: str, field: str) -> list[int]:
    """Integers of 0 or more, each once, in the order given.

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
        from kfl.engine.plan import check_device

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
