"""A comparison: labelled experiments × seeds, and one row of results per label.

An entry of a comparison is a label and an experiment. Entries may differ in anything: the algorithm, the scheduler, one
of their fields, the radio. Runs of one seed share what their experiments have in common, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kfl.algorithms import ALGORITHMS, Algorithm
from kfl.comparison.records import Record, label_of
from kfl.comparison.statistics import Difference, Spread, paired_difference, spread
from kfl.core.config import from_table, read_config
from kfl.core.errors import ConfigError, ModelError
from kfl.experiment import Experiment, class_of, common_settings
from kfl.models import PAPER_WIDTHS, names_widths, read_model
from kfl.scheduling import Status

Entries = Mapping[str, Experiment]
"""What is compared: experiments by label; their own seeds do not count."""

SHARING_NOTHING = tuple(name for name, cls in ALGORITHMS.items() if not cls.sends())
"""Algorithms that upload nothing: the baselines that sharing has to beat."""
STANDARD = ("kfl", *SHARING_NOTHING)
"""The algorithms of a comparison by default."""

_COSTS = (
    "bits_up",
    "energy_j",
    "time_s",
    "devices_per_round",
    "rounds_with_nobody",
    "devices_over_budget",
    "devices_never_chosen",
)


@dataclass(frozen=True)
class Row:
    """Results of one entry over seeds."""

    label: str
    accuracy: Spread
    worst_tenth: Spread
    """Mean accuracy of the worst tenth of the devices."""
    difference: Difference | None
    """Accuracy minus the reference's, paired by seed; None for the reference itself."""
    bits_up: float
    energy_j: float
    time_s: float
    devices_per_round: float
    rounds_with_nobody: float
    devices_over_budget: float
    devices_never_chosen: float
    why_nobody: Status | None
    """Why nobody took part, in rounds in which nobody did; None where there are none."""

    @property
    def feasible(self) -> bool:
        """Whether any device took part in any round."""
        return self.devices_per_round > 0


def line_up(base: Experiment, algorithms: Mapping[str, Algorithm], seeds: Sequence[int]) -> list[Experiment]:
    """One experiment for each algorithm and seed; all else is that of `base`.

    >>> from kfl.algorithms import Kfl, Local
    >>> runs = line_up(Experiment(), {"kfl": Kfl(), "local": Local()}, [0, 1])
    >>> [(run.algorithm.name, run.seed) for run in runs]
    [('kfl', 0), ('kfl', 1), ('local', 0), ('local', 1)]
    """
    entries = {label: replace(base, algorithm=algorithm) for label, algorithm in algorithms.items()}
    refuse_mixed_models(entries)
    return [run for _, run in with_seeds(entries, seeds)]


def with_seeds(entries: Entries, seeds: Sequence[int]) -> list[tuple[str, Experiment]]:
    """Every entry with every seed, each with its label."""
    return [(label, replace(entry, seed=seed)) for label, entry in entries.items() for seed in seeds]


def configured(
    names: Sequence[str],
    start: Algorithm,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    common: Mapping[str, Any] | None = None,
) -> dict[str, Algorithm]:
    """Algorithms by the words that select them, with their hyper-parameters, the later overriding the earlier:

    what all algorithms have, from `start`; all of `start` for the algorithm it is; the algorithm's table in
    `settings`; the fields in `common`, which apply to every algorithm. A word is the name of an algorithm, or
    package.module:Class for one of your own.
    """
    found: dict[str, Algorithm] = {}
    for name in names:
        cls: type[Algorithm] = class_of(Algorithm, name, "algorithms")
        first = start if type(start) is cls else common_settings(start, cls)
        tuned = from_table(cls, (settings or {}).get(name, {}), f"{name}.", first)
        found[name] = replace(tuned, **(common or {}))
        found[name].validate()
    return found


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """Hyper-parameters from a TOML file with one table per algorithm, as `kfl tune` writes it.

    The table of an algorithm of your own is `["package.module:Class"]`, in quotes.
    """
    tables = read_config(path, "settings")
    for name, table in tables.items():
        if not isinstance(table, dict) or (name not in ALGORITHMS and ":" not in name):
            known = f"a table named after an algorithm: {', '.join(ALGORITHMS)}, or package.module:Class in quotes"
            raise ConfigError("settings", name, known, choices=ALGORITHMS)
    return tables


def refuse_mixed_models(entries: Entries) -> None:
    """Raise ModelError, before anything runs, for algorithms that cannot work with different networks."""
    problems: dict[tuple[str, str], list[str]] = {}
    for label, entry in entries.items():
        if entry.algorithm.needs_equal_models and (found := _mixed_models(entry)) is not None:
            problems.setdefault(found, []).append(label)
    for (mixed, right), equal in problems.items():
        raise ModelError(
            f"{_and(equal)} {'averages' if len(equal) == 1 else 'average'} weights, which needs equal models, but "
            f"{mixed}: give all devices {right}, or leave {_and(equal)} out."
        )


def _mixed_models(entry: Experiment) -> tuple[str, str] | None:
    """That its devices have different networks, and what would be right, in words; None where they are equal."""
    kinds: Sequence[object]
    if names_widths(entry.model):
        kinds = read_model(entry.model)
        mixed, right = f"the models are {entry.model}", f"one with --model {entry.model.partition(',')[0]}"
    else:
        widths = entry.resolved().widths
        kinds = widths or PAPER_WIDTHS  # or others, which the data will say
        mixed = f"the widths are {', '.join(map(str, widths))}" if widths else "each device draws its width"
        right = f"one width with --equal-models {kinds[len(kinds) // 2]}"
    return None if len(set(kinds)) == 1 else (mixed, right)


def pick_reference(
    labels: Sequence[str], asked: str | None = None, parts: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """The entry the others are compared with: the one asked for; else one that trains alone; else, where all have the
    same algorithm, one with random devices; else the first.

    `parts` are the algorithm and the scheduler of each label, where these are not its name.

    >>> pick_reference(["kfl", "local"]), pick_reference(["fedavg", "kfl"]), pick_reference(["lyapunov", "uniform"])
    ('local', 'fedavg', 'uniform')
    >>> pick_reference(["V = 1", "random"], parts={"V = 1": ("kfl", "lyapunov"), "random": ("kfl", "uniform")})
    'random'
    """
    if asked is not None:
        if asked not in labels:
            expected = f"one of those that are compared: {', '.join(labels)}"
            raise ConfigError("reference", asked, expected, choices=labels)
        return asked
    known = {label: (parts or {}).get(label, (label, label)) for label in labels}
    alone = [label for label, (algorithm, _) in known.items() if algorithm == "local"]
    if 0 < len(alone) < len(labels):
        return alone[0]
    random = [label for label, (_, scheduler) in known.items() if scheduler == "uniform"]
    one_algorithm = parts is None or len({algorithm for algorithm, _ in known.values()}) == 1
    return random[0] if random and one_algorithm else labels[0]


def summarise_rows(records: Sequence[Record], reference: str) -> list[Row]:
    """One row per label, in the order of the records."""
    by_label: dict[str, list[Record]] = {}
    for line in records:
        by_label.setdefault(label_of(line), []).append(line)
    theirs = _by_seed(by_label.get(reference, []))
    rows = []
    for label, lines in by_label.items():
        ours = _by_seed(lines)
        rows.append(
            Row(
                label=label,
                accuracy=spread([line["accuracy"] for line in lines]),
                worst_tenth=spread([line["worst_tenth"] for line in lines]),
                difference=None if label == reference else paired_difference(ours, theirs),
                why_nobody=next((Status.from_dict(line["why_nobody"]) for line in lines if line["why_nobody"]), None),
                **{cost: spread([line[cost] for line in lines]).mean for cost in _COSTS},
            )
        )
    return rows


def _by_seed(lines: Sequence[Record]) -> dict[int, float]:
    return {line["seed"]: line["accuracy"] for line in lines}


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
