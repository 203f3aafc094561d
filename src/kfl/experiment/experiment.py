"""The whole configuration of a run: one frozen dataclass, the same on the command line, in TOML and in Python.

Nothing here imports PyTorch, so that help texts and checks of a configuration are immediate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import ALGORITHMS, Algorithm, Kfl
from kfl.core.config import Fields, Table, convert_fields, dump_toml, from_table, load_toml, read_config, to_table
from kfl.core.errors import ConfigError
from kfl.core.lazy import find_class, word_of
from kfl.core.randomness import stream
from kfl.core.suggest import MEANT, nearest
from kfl.core.text import several
from kfl.data import (
    DATASETS,
    Dataset,
    Partition,
    add_new_class,
    can_be_distinct,
    check_name,
    limit_samples,
    limit_tested,
    partition,
)
from kfl.encoders.names import AUTO, check_encoder
from kfl.experiment.availability import check_availability, open_traces
from kfl.experiment.faults import Faults
from kfl.experiment.identity import identity_fields
from kfl.models import PAPER_WIDTHS, default_widths, names_widths
from kfl.scheduling import SCHEDULERS, Scheduler, Uniform
from kfl.wireless import PRESETS, CellConfig

log = logging.getLogger("kfl")


@dataclass(frozen=True)
class DataSettings(Fields):
    """Which data, and how it is split over the devices: what `kfl data show` draws."""

    dataset: str = "mnist-5k"
    """Name of a dataset, a file or folder (.npz, .parquet, IDX, images), or package.module:function for your own."""
    devices: int = 50
    """Number of devices in the fleet, K. With the natural split 0, the default there, is all that the data has."""
    seed: int = 0
    """Seed of every random draw: same seed, same run."""
    split: Literal["shards", "iid", "dirichlet", "overlap", "natural"] = "shards"
    """How the data is split: the paper's class shards, evenly, by Dirichlet, drawn anew by each, or its own devices."""
    classes_per_device: int = 2
    """Shards each device draws, m: it holds at most this many classes. With overlap, classes, all different."""
    distinct_classes: bool = True
    """Forbid a device to draw the same class twice in shards. As the paper prints it, it may."""
    dirichlet_alpha: float = 0.5
    """Concentration of the Dirichlet split: small is uneven."""
    samples_per_device: int | None = None
    """At most this many training samples on each device; none for all of its part. Overlap needs a number."""
    tested_devices: int | None = None
    """Evaluate only this many devices, drawn once, and average over them; none for all."""
    new_class_samples: int = 0
    """Give each device this many training samples of a class it does not hold, and test it on that class alone."""

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in PARTS}
        convert_fields(self, {name: _as_name(name, value) for name, value in given.items()})

    @property
    def asks_data(self) -> bool:
        """Whether only the data can say how many devices there are; `for_data` then tells."""
        return self.devices == 0 and self.split == "natural"

    def for_data(self, data: Dataset) -> Self:
        """The same settings with the number of devices that the data has, where that was left to it.

        >>> data = Dataset.from_arrays(np.eye(6), [0, 1] * 3, train_device=[7, 7, 8, 8, 9, 9])
        >>> DataSettings(split="natural", devices=0).for_data(data).devices
        3
        """
        return replace(self, devices=max(len(data.device_names), 1)) if self.asks_data else self

    def partition(self, data: Dataset, proxy: NDArray[np.int64] | None = None) -> Partition:
        """Who holds which samples; proxy samples belong to no device."""
        mine = np.arange(len(data.train_y)) if proxy is None else np.setdiff1d(np.arange(len(data.train_y)), proxy)
        found = partition(
            self.split,
            data.train_y[mine],
            data.test_y,
            data.classes,
            self.devices,
            self.seed,
            classes_per_device=self.classes_per_device,
            distinct=self._distinct(data.train_y[mine]),
            alpha=self.dirichlet_alpha,
            samples=self.samples_per_device,
            train_device=None if data.train_device is None else data.train_device[mine],
            test_device=data.test_device,
            names=data.device_names,
        )
        if self.samples_per_device is not None and self.split != "overlap":
            found = limit_samples(found, data.train_y[mine], self.samples_per_device, self.seed)
        if self.new_class_samples:
            found = add_new_class(found, data.train_y[mine], data.test_y, self.new_class_samples, self.seed)
        if self.tested_devices is not None:
            found = limit_tested(found, self.tested_devices, self.seed)
        return found if proxy is None else found.renumbered(mine)

    def _distinct(self, labels: NDArray[np.int64]) -> bool:
        """Whether no device draws a class twice: where too few classes, or samples of them, forbid that, it may."""
        if self.split != "shards" or not self.distinct_classes:
            return False
        m, present = self.classes_per_device, len(np.unique(labels))
        if m * self.devices > len(labels) or can_be_distinct(labels, self.devices, m):
            return True
        if m > present:
            why = f"the training set has {several(present, 'class', 'classes')}"
        else:
            why = f"some classes have fewer samples than the {several(self.devices, 'device')} need"
        log.warning("classes_per_device is %d, but %s: a device may draw the same class twice.", m, why)
        return False

    def proxy(self, data: Dataset, per_class: int) -> NDArray[np.int64] | None:
        """Training samples set aside for an algorithm that shows all devices the same ones: `per_class` of each."""
        if per_class == 0:
            return None
        order = stream(self.seed, "proxy").permutation(len(data.train_y))
        taken = [order[data.train_y[order] == c][:per_class] for c in range(data.classes)]
        for c, indices in enumerate(taken):
            if len(indices) < per_class:
                raise ConfigError(
                    "algorithm.proxy_per_class", per_class, f"at most {len(indices)}, class {c} has no more"
                )
        return np.sort(np.concatenate(taken))


RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    *((name, lambda n: n >= 1, "1 or more") for name in ("devices", "rounds", "classes_per_device", "evaluate_every")),
    ("samples_per_device", lambda n: n >= 1, "1 or more, or none"),
    ("tested_devices", lambda n: n >= 1, "1 or more, or none"),
    ("new_class_samples", lambda n: n >= 0, "0 or more"),
    ("dirichlet_alpha", lambda alpha: 0 < alpha < math.inf, "a number above 0"),
    ("widths", lambda widths: len(widths) > 0 and min(widths) >= 1, "one or more widths of at least 1"),
)
"""Fields with what is allowed there unless they are none, and that in words."""


@dataclass(frozen=True)
class Experiment(DataSettings):
    """Everything that decides the result of a run.

    An algorithm and a scheduler may be given by name, and one width as a number.

    >>> Experiment(algorithm="fedavg", scheduler="lyapunov", widths=256).algorithm.name
    'fedavg'
    >>> Experiment(algorithm="fedvag")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: algorithm is 'fedvag', but must be one of ... (did you mean fedavg?).
    >>> experiment = Experiment(dataset="mnist", devices=100, rounds=200)
    >>> Experiment.from_toml(experiment.to_toml()) == experiment.resolved()
    True
    """

    rounds: int = 100
    """Number of rounds, T."""
    model: str = "auto"
    """Network of the devices: mlp, cnn, resnet8, resnet18, mobilenet, sensor, transformer, linear, auto (by the kind of
    sample), or package.module:function. Several, of which each device draws one: resnet8-8,resnet8-16,cnn-128."""
    encoder: str = "auto"
    """What every device makes of its samples before it learns: scattering, statistics, log-mel, raw, random, or
    package.module:function. none: samples as they are. auto: what suits the data, where the algorithm needs one."""
    widths: tuple[int, ...] | None = None
    """Each device's width is drawn from these. Give one for equal models. None: the network's own, for mlp and cnn
    the paper's."""
    algorithm: Algorithm = Kfl()
    """How devices learn."""
    scheduler: Scheduler = Uniform()
    """Who takes part in each round, with which share of the band and which power."""
    radio: CellConfig | str | None = "auto"
    """The cell: a CellConfig, the name of a preset, none, or auto: one sized to the data and the networks, with hard
    budgets."""
    faults: Faults = Faults()
    """What goes wrong with devices."""
    hard_budget: bool = False
    """Never let a device exceed its energy budget. Otherwise it is a long-term target, but in the cell of auto."""
    real_work: bool = False
    """Charge every pass an algorithm computes, backward ones too; else τ forward passes for each, as printed."""
    evaluate_every: int = 1
    """Evaluate every N rounds, and after the last."""
    availability_trace: str | None = None
    """CSV file that says when devices can be asked: time_s or round, device, available. None: always."""
    availability_repeat_s: float | None = None
    """Start that file over after this many seconds. None: its last rows hold for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "algorithm", _part("algorithm", self.algorithm, Kfl()))
        object.__setattr__(self, "scheduler", _part("scheduler", self.scheduler, Uniform()))
        radio: object = self.radio
        if not isinstance(radio, CellConfig | str | None):
            right = f"a kfl.CellConfig, the name of a preset ({', '.join(PRESETS)}), auto or None"
            raise ConfigError("radio", radio, right)
        faults: object = self.faults
        if not isinstance(faults, Faults):
            raise ConfigError("faults", faults, "kfl.Faults(…)")

    @classmethod
    def _instead_of(cls, name: str, known: Iterable[str]) -> str:
        """Where a field belongs that is one of an experiment's parts."""
        if name == "seeds":
            several_runs = "kfl.run_many([dataclasses.replace(experiment, seed=s) for s in seeds], folder)"
            return f"left out: an experiment has one seed. Several runs: {several_runs}"
        for part, kind in (("algorithm", Kfl), ("scheduler", Uniform), ("radio", CellConfig)):
            theirs, meant = [field.name for field in fields(kind)], MEANT.get(name, name)
            if meant not in theirs and nearest(name, known, MEANT) is None:
                meant = nearest(name, theirs) or ""
            if meant in theirs:
                return f"given to the {part}: {part}=kfl.{kind.__name__}({meant}=…)"
        return super()._instead_of(name, known)

    @cached_property
    def cell_config(self) -> CellConfig | None:
        """The cell that `radio` stands for; with auto, until data and networks are known, the one that is sized then.

        >>> Experiment(radio="nb-iot").cell_config.bandwidth_hz, Experiment(radio="none").cell_config
        (180000.0, None)
        """
        if self.radio is None or self.radio == "none":
            return None
        if isinstance(self.radio, CellConfig):
            return self.radio
        if self.radio == AUTO:
            return CellConfig()
        if self.radio not in PRESETS:
            known = (AUTO, "none", *PRESETS)
            raise ConfigError("radio", self.radio, f"one of {', '.join(known)}", choices=known)
        return PRESETS[self.radio]

    def resolved(self) -> Experiment:
        """The same experiment with radio and widths spelled out, where the data need not say them."""
        radio = self.radio if self.radio == AUTO else self.cell_config
        return replace(self, radio=radio, widths=self._known_widths())

    def _known_widths(self) -> tuple[int, ...] | None:
        """The widths that devices draw from; None where the data says them."""
        widths = default_widths(self.model) if self.widths is None else self.widths
        if self.model == "auto" and widths is None and self.dataset in DATASETS:  # images, all of them
            return PAPER_WIDTHS
        return widths

    def validate(self) -> None:
        """Raise ConfigError for the first field that cannot work."""
        check_name(self.dataset)
        check_encoder(self.encoder)
        if self.asks_data:
            raise ConfigError("devices", 0, "1 or more where the data is not read to count its devices")
        for name, allowed, right in RULES:
            value = getattr(self, name)
            if value is not None and not allowed(value):
                raise ConfigError(name, value, right)
        if self.split == "overlap" and self.samples_per_device is None:
            right = "1 or more with an overlapping split: how many samples each device draws"
            raise ConfigError("samples_per_device", None, right)
        if names_widths(self.model) and self.widths is not None:
            raise ConfigError("widths", self.widths, f"left out, as the model {self.model} says its widths itself")
        self.algorithm.validate()
        self.faults.validate(self.devices)
        if self.cell_config is not None:
            self.cell_config.validate()
        check_availability(self.availability_trace, self.availability_repeat_s)
        open_traces(self)

    @property
    def period_s(self) -> float:
        """Seconds from the start of a round to the start of the next; without a radio, a round counts as one second."""
        return 1.0 if self.cell_config is None else self.cell_config.period_s

    def to_table(self) -> Table:
        """The configuration as plain values: `resolved`, with the names of algorithm and scheduler."""
        cell, widths = self.cell_config, self._known_widths()
        table = to_table(self)
        table["radio"] = AUTO if self.radio == AUTO else "none" if cell is None else to_table(cell)
        table["widths"] = "none" if widths is None else list(widths)
        table["algorithm"] = {"name": word_of(self.algorithm, ALGORITHMS), **table["algorithm"]}
        table["scheduler"] = {"name": word_of(self.scheduler, SCHEDULERS), **table["scheduler"]}
        return table

    def to_toml(self) -> str:
        """A file that `kfl run --config` accepts and that repeats this experiment."""
        return dump_toml(self.to_table())

    def identity(self) -> str:
        """The text by which runs are told apart; see `identity_fields`."""
        return dump_toml(identity_fields(self.to_table()))

    def digest(self) -> str:
        """Eight characters that stand for the whole configuration, its seed included.

        >>> Experiment().digest() == Experiment().digest(), Experiment().digest() == Experiment(seed=1).digest()
        (True, False)
        """
        return blake2b(self.identity().encode(), digest_size=4).hexdigest()

    @staticmethod
    def from_table(table: Mapping[str, Any], base: Experiment | None = None) -> Experiment:
        """Build an experiment from plain values; what is not given keeps its default (or the value in `base`)."""
        base = base or Experiment()
        rest = dict(table)
        algorithm = _part("algorithm", rest.pop("algorithm", base.algorithm), base.algorithm)
        scheduler = _part("scheduler", rest.pop("scheduler", base.scheduler), base.scheduler)
        radio = rest.pop("radio", base.radio)
        radio = None if radio == "none" else radio
        if isinstance(radio, Mapping):
            own = dict(radio)
            preset = replace(base, radio=own.pop("preset", "paper-mnist")).cell_config
            radio = from_table(CellConfig, own, "radio.", preset)
        elif not isinstance(radio, str | CellConfig | None):
            raise ConfigError("radio", radio, "a table of fields or the name of a preset")
        if rest.get("split") == "natural" and base.split != "natural":
            rest.setdefault("devices", 0)  # those of the data, unless the user sets a number
        return from_table(Experiment, rest, base=base, algorithm=algorithm, scheduler=scheduler, radio=radio)

    @staticmethod
    def from_toml(text: str) -> Experiment:
        """Read what `to_toml` wrote."""
        return Experiment.from_table(load_toml(text))

    @staticmethod
    def load(path: Path) -> Experiment:
        """Read a TOML file."""
        return Experiment.from_table(read_config(path))


N = TypeVar("N", Algorithm, Scheduler)
PARTS = ("algorithm", "scheduler", "radio", "faults")
"""Fields that are no plain values."""
EXAMPLES = {"algorithm": "kfl.FedAvg()", "scheduler": "kfl.Lyapunov()"}


def _part(field: str, value: object, base: N) -> N:
    """An algorithm or scheduler as people give it: itself, its class, its name, or a table with its parameters.

    A table without a name is about that of `base`, and what it leaves out keeps the value there.
    """
    kind: type[Any] = Algorithm if field == "algorithm" else Scheduler
    registry: Mapping[str, type[Any]] = ALGORITHMS if field == "algorithm" else SCHEDULERS
    made: N
    if isinstance(value, type) and issubclass(value, kind):
        made = value()
    elif isinstance(value, kind):
        made = value
    elif isinstance(value, str | Mapping):
        table = {"name": value} if isinstance(value, str) else dict(value)
        cls = class_of(kind, table.pop("name", word_of(base, registry)), field)
        made = from_table(cls, table, f"{field}.", base if type(base) is cls else cls())
    else:
        right = f"{EXAMPLES[field]}, say, or a name: {', '.join(registry)}"
        raise ConfigError(field, value, right, choices=registry)
    return made


def _as_name(field: str, value: object) -> object:
    """A dataset or a model is named: a path is its text, and objects are given to `run`."""
    if field not in ("dataset", "model") or isinstance(value, str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    what = _Said(f"of type {type(value).__name__}")
    if field == "dataset":
        own = "data of your own is given where it runs: kfl.run(experiment, dataset=…)"
        raise ConfigError(field, what, f"the name of a dataset or of a file; {own}")
    own = "networks of your own are given where they run: kfl.run(experiment, models=…)"
    raise ConfigError(field, what, f"the name of a network, such as 'cnn'; {own}")


class _Said(str):
    """Words that stand for a value in a sentence, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def class_of(kind: type[Any], word: object, field: str) -> Any:
    """The algorithm or scheduler that a word selects: a registered name, or package.module:Class for a user's own.

    `field` is what the word was given for, in the sentence where there is no such class.

    Args:
        kind: `Algorithm` or `Scheduler`.
        word: A registered name or an address.
        field: What the word was given for, in the sentence where there is no such class.

    >>> class_of(Algorithm, "fedavg", "algorithms").__name__
    'FedAvg'
    """
    registry: Mapping[str, type[Any]] = ALGORITHMS if kind is Algorithm else SCHEDULERS
    return find_class(word, kind, field, registry)


def require_experiment(given: object) -> None:
    """Raise ConfigError for what is no experiment, with what would be."""
    if isinstance(given, Experiment):
        return
    if isinstance(given, str | Path):
        named, folder = f"kfl.run(kfl.Experiment(dataset={str(given)!r}))", f"kfl.resume({str(given)!r})"
        raise ConfigError("experiment", given, f"an experiment: {named}, or {folder} for a run folder")
    what = _Said(f"of type {type(given).__name__}")
    raise ConfigError("experiment", what, "an experiment: kfl.run(kfl.Experiment(…), dataset=…)")


def common_settings(source: Algorithm, target: type[Algorithm]) -> Algorithm:
    """Another algorithm with the hyper-parameters that both have: the fair way to put two side by side.

    Args:
        source: Whose values are taken over.
        target: The class to make.
    """
    shared = {field.name for field in fields(Algorithm)}
    return target(**{name: getattr(source, name) for name in sorted(shared)})
