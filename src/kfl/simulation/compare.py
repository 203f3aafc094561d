"""A comparison: algorithms × seeds in one setting, and one row of results per algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kfl.algorithms import ALGORITHMS, Algorithm
from kfl.core.config import from_table, read_config
from kfl.core.errors import ConfigError, ModelError
from kfl.experiment import Experiment, common_settings
from kfl.models import PAPER_WIDTHS, names_widths, read_model
from kfl.scheduling import Status
from kfl.simulation.records import Record
from kfl.simulation.statistics import Difference, Spread, paired_difference, spread

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
    """Results of one algorithm over seeds."""

    algorithm: str
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
    refuse_mixed_models(base, algorithms)
    return [replace(base, algorithm=algorithm, seed=seed) for algorithm in algorithms.values() for seed in seeds]


def configured(
    names: Sequence[str],
    start: Algorithm,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    common: Mapping[str, Any] | None = None,
) -> dict[str, Algorithm]:
    """Algorithms by name with their hyper-parameters, the later overriding the earlier:

    what all algorithms have, from `start`; all of `start` for the algorithm it is; the algorithm's table in
    `settings`; the fields in `common`, which apply to every algorithm.
    """
    found: dict[str, Algorithm] = {}
    for name in names:
        if name not in ALGORITHMS:
            raise ConfigError("algorithms", name, f"one of {', '.join(ALGORITHMS)}")
        first = start if start.name == name else common_settings(start, ALGORITHMS[name])
        tuned = from_table(ALGORITHMS[name], (settings or {}).get(name, {}), f"{name}.", first)
        found[name] = replace(tuned, **(common or {}))
        found[name].validate()
    return found


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """Hyper-parameters from a TOML file with one table per algorithm, as `kfl tune` writes it."""
    tables = read_config(path, "settings")
    for name, table in tables.items():
        if name not in ALGORITHMS or not isinstance(table, dict):
            raise ConfigError("settings", name, f"a table named after an algorithm: {', '.join(ALGORITHMS)}")
    return tables


def refuse_mixed_models(base: Experiment, algorithms: Mapping[str, Algorithm]) -> None:
    """Raise ModelError, before anything runs, for algorithms that cannot work with different networks."""
    equal = [name for name, algorithm in algorithms.items() if algorithm.needs_equal_models]
    kinds: Sequence[object]
    if names_widths(base.model):
        kinds = read_model(base.model)
        mixed, right = f"the models are {base.model}", f"one with --model {base.model.partition(',')[0]}"
    else:
        widths = base.resolved().widths
        kinds = widths or PAPER_WIDTHS  # or others, which the data will say
        mixed = f"the widths are {', '.join(map(str, widths))}" if widths else "each device draws its width"
        right = f"one width with --equal-models {kinds[len(kinds) // 2]}"
    if not equal or len(set(kinds)) == 1:
        return
    raise ModelError(
        f"{_and(equal)} {'averages' if len(equal) == 1 else 'average'} weights, which needs equal models, but {mixed}: "
        f"give all devices {right}, or leave {_and(equal)} out."
    )


def pick_reference(algorithms: Sequence[str], asked: str | None = None) -> str:
    """The algorithm the others are compared with: the one asked for, else local-only training, else the first."""
    if asked is None:
        return "local" if "local" in algorithms else algorithms[0]
    if asked not in algorithms:
        raise ConfigError("reference", asked, f"one of the algorithms that are compared: {', '.join(algorithms)}")
    return asked


def summarise_rows(records: Sequence[Record], reference: str) -> list[Row]:
    """One row per algorithm, in the order of the records."""
    by_name: dict[str, list[Record]] = {}
    for line in records:
        by_name.setdefault(line["algorithm"], []).append(line)
    theirs = _by_seed(by_name.get(reference, []))
    rows = []
    for name, lines in by_name.items():
        ours = _by_seed(lines)
        rows.append(
            Row(
                algorithm=name,
                accuracy=spread([line["accuracy"] for line in lines]),
                worst_tenth=spread([line["worst_tenth"] for line in lines]),
                difference=None if name == reference else paired_difference(ours, theirs),
                why_nobody=next((Status.from_dict(line["why_nobody"]) for line in lines if line["why_nobody"]), None),
                **{cost: spread([line[cost] for line in lines]).mean for cost in _COSTS},
            )
        )
    return rows


def _by_seed(lines: Sequence[Record]) -> dict[int, float]:
    return {line["seed"]: line["accuracy"] for line in lines}


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
