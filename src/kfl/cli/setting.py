"""Options of the commands that run many experiments: the options of `kfl run`, for several algorithms at once.

`--algorithm.learning-rate` and the other fields that every algorithm has apply to all of them. A file of settings
gives each algorithm its own.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import tyro

from kfl._version import __version__
from kfl.algorithms import Algorithm, Local
from kfl.cli.options import (
    ALGORITHM_NAMES,
    ConfigFile,
    DataDir,
    Device,
    FadingName,
    GainTraceFile,
    HarvestName,
    HarvestTraceFile,
    MobilityName,
    Precision,
    Quiet,
    RadioName,
    RayAddress,
    SchedulerName,
    names_of,
    parse,
    peek,
    starting_point,
    with_devices_of_data,
    with_radio_fields,
    worker_count,
)
from kfl.comparison.entries import configured, read_settings, refuse_mixed_models
from kfl.core.errors import ConfigError, KflError
from kfl.core.terminal import tell
from kfl.data import short_name
from kfl.experiment import Experiment, common_settings

if TYPE_CHECKING:
    from kfl.progress import Progress
    from kfl.simulation import History


@dataclass(frozen=True)
class Setting:
    """What all compared algorithms share."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    config: ConfigFile = None
    settings: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """TOML file with hyper-parameters, a table per algorithm (your own: ["my_module:MyClass"]), as of kfl tune."""
    equal_models: Annotated[int | None, tyro.conf.arg(metavar="WIDTH")] = None
    """Give all devices networks of this width, as algorithms that average weights require."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder to write; runs already finished in it are not repeated. Default: one under runs/ for this very setting."""
    data_dir: DataDir = None
    scheduler_name: SchedulerName = "uniform"
    radio_name: RadioName = "auto"
    fading_name: FadingName = "rayleigh"
    harvest_name: HarvestName = "none"
    mobility_name: MobilityName = "none"
    gain_trace: GainTraceFile = None
    harvest_trace: HarvestTraceFile = None
    device: Device = "cpu"
    precision: Precision = "float32"
    workers: int | None = None
    """Runs in parallel, each a process with one thread. Default: one per core, or one on a GPU."""
    ray: RayAddress = None
    keep_models: bool = False
    """Keep the devices' models in the run folders, for kfl export."""
    quiet: Quiet = False

    def run_many(
        self,
        experiments: Sequence[Experiment],
        folder: Path,
        label: str,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> tuple[Sequence[History | None], KflError | None]:
        """Run what is not finished in the folder; returns the histories, None where a run failed, and the failure."""
        from kfl.cli.display import ManyDisplay
        from kfl.comparison import RunsFailedError, run_many

        def show(progress: Progress) -> None:
            display.on_progress(progress)
            on_progress(progress)

        with ManyDisplay(label, quiet=self.quiet) as display:
            try:
                histories = run_many(
                    experiments,
                    folder,
                    worker_count(self.workers, self.device),
                    show,
                    self.keep_models,
                    data_dir=self.data_dir,
                    device=self.device,
                    precision=self.precision,
                    ray=self.ray,
                )
            except RunsFailedError as problem:
                return problem.histories, problem
        return histories, None


class HasSetting(Protocol):
    """Options of a command that has a setting; all other options have defaults."""

    def __init__(self, setting: Setting) -> None: ...

    @property
    def setting(self) -> Setting:
        """What all algorithms share."""


Options = TypeVar("Options", bound=HasSetting)


def parse_setting(
    cls: type[Options], arguments: Sequence[str], prog: str, about: str, algorithm: Algorithm | None = None
) -> tuple[Options, Experiment]:
    """The options of a command, and the experiment that they describe: its algorithm holds what applies to all.

    With an `algorithm`, the options are those of this one, which also is that of the experiment.
    """
    if (seed := peek(arguments, "seed")) is not None:
        raise ConfigError("seed", seed, f"given to {prog} as --seeds, for example --seeds {seed}")
    if (name := peek(arguments, "algorithm")) is not None:
        raise ConfigError("algorithm", name, f"given to {prog} as --algorithms, for example --algorithms {name},local")
    start = starting_point(arguments)
    # Local-only training has exactly the fields that all algorithms have.
    shown = replace(with_radio_fields(start, arguments), algorithm=algorithm or common_settings(start.algorithm, Local))
    setting = Setting(shown, **names_of(start, shown))
    options = parse(cls, arguments, prog, about, cls(setting))
    experiment = options.setting.experiment
    if start.cell_config is None:
        experiment = replace(experiment, radio=None)
    if options.setting.equal_models is not None:
        experiment = replace(experiment, widths=(options.setting.equal_models,))
    if algorithm is None:
        common = {field: getattr(experiment.algorithm, field) for field in given_fields(arguments)}
        experiment = replace(experiment, algorithm=replace(start.algorithm, **common))
    experiment = with_devices_of_data(experiment, options.setting.data_dir)
    experiment.validate()
    return options, experiment


def command_line(command: str, arguments: Sequence[str], folder: Path | None = None) -> str:
    """The command that was given; with the folder it made up, where it did."""
    made_up = [] if folder is None or peek(arguments, "out") is not None else ["--out", str(folder)]
    return shlex.join(["kfl", command, *arguments, *made_up])


def interrupted(command: str) -> int:
    """Say how to continue after Ctrl-C; the exit status."""
    tell("", f"kfl: interrupted; finished runs are kept. To continue: {command}", file=sys.stderr)
    return 130


def given_fields(arguments: Sequence[str]) -> list[str]:
    """Which of the fields that all algorithms have were given as flags."""
    spelled = {field.name: (field.name, field.name.replace("_", "-")) for field in fields(Algorithm)}
    return [
        name for name, ways in spelled.items() if any(peek(arguments, f"algorithm.{way}") is not None for way in ways)
    ]


def chosen_algorithms(
    names: str, experiment: Experiment, setting: Setting, arguments: Sequence[str]
) -> dict[str, Algorithm]:
    """The algorithms a list of names stands for, each with its hyper-parameters, refused where models differ."""
    tables = None if setting.settings is None else read_settings(setting.settings)
    common = {field: getattr(experiment.algorithm, field) for field in given_fields(arguments)}
    algorithms = configured(listed(names, "algorithms", ALGORITHM_NAMES), experiment.algorithm, tables, common)
    refuse_mixed_models({name: replace(experiment, algorithm=algorithm) for name, algorithm in algorithms.items()})
    return algorithms


def listed(text: str, field: str, known: Sequence[str]) -> list[str]:
    """The words of a list with commas between, each once.

    >>> listed("kfl, local,kfl", "algorithms", ["kfl", "local"])
    ['kfl', 'local']
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(field, text, f"one or more of {', '.join(known)}, or package.module:Class for your own")
    return list(dict.fromkeys(words))


def kept_folder(command: str, experiment: Experiment, setting: Setting, *more: str) -> Path:
    """The folder under runs/ of what is asked: the same question has the same folder, so that nothing runs twice.

    `more` is whatever makes it another question besides the experiment, whose seed does not count.
    """
    how = [setting.device, setting.precision, __version__, *more]
    question = "\n".join([replace(experiment, seed=0).identity(), *how])
    return (
        Path("runs")
        / f"{command}-{short_name(experiment.dataset)}-{blake2b(question.encode(), digest_size=4).hexdigest()}"
    )
