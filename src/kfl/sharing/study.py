"""A study of sharing: every method and every twin in some conditions, over the same seeds, after the same search.

>>> from kfl.sharing import Condition, Study, chosen
>>> from kfl.experiment import Experiment
>>> study = Study([Condition("mine", "My data", Experiment())], chosen(["kfl", "local"]), seeds=(0, 1))
>>> list(study.runs({}))
['mine, kfl, as set, seed 0', 'mine, kfl, as set, seed 1', 'mine, local, as set, seed 0', 'mine, local, as set, seed 1']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.algorithms import Algorithm
from kfl.comparison.records import Record
from kfl.comparison.search import LEARNING_RATES, Trial, best, judge, refuse_reported_seeds, search
from kfl.comparison.named_store import Execution, ResultStore, run_missing
from kfl.core.errors import ConfigError, ModelError
from kfl.experiment import Experiment
from kfl.runfolder import RunReader
from kfl.sharing.conditions import Condition

if TYPE_CHECKING:
    from kfl.models import FleetModels
    from kfl.progress import Progress
    from kfl.simulation import History

DEVELOPMENT_SEEDS = (100, 101)
"""Seeds of the search, never reported."""


@dataclass(frozen=True)
class Study:
    """What is compared, where, and how often."""

    conditions: Sequence[Condition]
    methods: Mapping[str, Algorithm]
    """By label."""
    seeds: Sequence[int]
    searched: bool = False
    """Whether every method is first given the same search for its learning rate and its main parameter."""
    search_seeds: Sequence[int] = DEVELOPMENT_SEEDS
    rates: Sequence[float] = LEARNING_RATES

    def __post_init__(self) -> None:
        if not self.conditions or not self.seeds:
            raise ConfigError("seeds", ",".join(map(str, self.seeds)), "one or more")
        if self.searched:
            refuse_reported_seeds(self.search_seeds, allowed=False)

    def runs(self, tuned: Mapping[str, Mapping[str, Algorithm]]) -> dict[str, Experiment]:
        """Every run of the comparison by name; `tuned` has the settings found for each condition."""
        return {
            self.run_name(condition, label, seed): replace(condition.experiment, algorithm=algorithm, seed=seed)
            for condition in self.conditions
            for label, algorithm in (tuned.get(condition.name) or self.methods).items()
            for seed in self.seeds
        }

    def run_name(self, condition: Condition, label: str, seed: int) -> str:
        """The name of one run."""
        return f"{condition.name}, {label}, {'searched' if self.searched else 'as set'}, seed {seed}"

    def trials(self) -> dict[str, Mapping[str, Sequence[Trial]]]:
        """The search of each condition in which one takes place: the same number of trials for every method."""
        if not self.searched:
            return {}
        places = dict.fromkeys(self.place(condition).name for condition in self.conditions)
        return dict.fromkeys(places, search(self.methods, self.rates))

    def place(self, condition: Condition) -> Condition:
        """Where the search for a condition takes place."""
        return condition.searched or condition

    def search_runs(self) -> dict[str, Experiment]:
        """Every run of the search by name."""
        named = {self.place(one).name: self.place(one) for one in self.conditions}
        return {
            _trial_name(place, label, trial, seed): replace(
                named[place].experiment, algorithm=trial.algorithm, seed=seed
            )
            for place, methods in self.trials().items()
            for label, trials in methods.items()
            for trial in trials
            for seed in self.search_seeds
        }

    def found(self, store: ResultStore) -> dict[str, dict[str, Algorithm]]:
        """The settings that the search found for each condition, from finished runs."""
        results = {
            place: {label: self._best(store, place, label, trials) for label, trials in methods.items()}
            for place, methods in self.trials().items()
        }
        return {condition.name: results[self.place(condition).name] for condition in self.conditions if results}

    def _best(self, store: ResultStore, place: str, label: str, trials: Sequence[Trial]) -> Algorithm:
        """The best trial of a method; as it is where no trial has a result.

        A trial without a result where others have some diverged, and counts as wrong everywhere.
        """
        names = [[_trial_name(place, label, trial, seed) for seed in self.search_seeds] for trial in trials]
        if not any(name in store.rows for some in names for name in some):
            return self.methods[label]
        reached = [[store.rows[name]["accuracy"] if name in store.rows else 0.0 for name in some] for some in names]
        return best([judge(trial, some) for trial, some in zip(trials, reached, strict=True)]).trial.algorithm

    def play(
        self, folder: Path, execution: Execution | None = None, on_progress: Callable[[Progress], None] | None = None
    ) -> ResultStore:
        """Run what is missing in a folder: the search first, then the comparison. Finished runs are never repeated."""
        execution = execution or Execution()
        store = ResultStore.open(folder)
        if self.searched:
            run_missing(store, self.search_runs(), execution, on_progress=on_progress)
        run_missing(store, self.runs(self.found(store)), execution, on_progress=on_progress, more=class_facts)
        return store


def _trial_name(place: str, label: str, trial: Trial, seed: int) -> str:
    changed = " ".join(f"{name}={value:g}" for name, value in trial.changed.items())
    return f"search in {place}, {label}, {changed}, seed {seed}"


def class_facts(_: Experiment, history: History) -> Record:
    """Number of classes, and how many a device holds that takes part: what class means really cost to send."""
    taken = [device["rounds"] for device in history.devices]
    held = [len(device["classes"]) for device in history.devices]
    total = sum(taken)
    return {
        "classes": RunReader(Path(str(history.folder))).dataset()["classes"],
        "held_classes": sum(n * c for n, c in zip(taken, held, strict=True)) / total if total else 0.0,
    }


def unfit(study: Study, data_dir: Path | None = None) -> dict[str, str]:
    """Methods that cannot run on the networks of some condition, with the sentence that says why."""
    problems: dict[str, str] = {}
    for models in _models(study.conditions, data_dir):
        for label, algorithm in study.methods.items():
            try:
                algorithm.check_models(algorithm.device_models(models))
            except ModelError as problem:
                problems.setdefault(label, str(problem))
    return problems


def _models(conditions: Sequence[Condition], data_dir: Path | None) -> list[FleetModels]:
    """The networks of the conditions, each kind once."""
    from kfl.data import load_dataset
    from kfl.models import fleet_from_name

    found: dict[tuple[object, ...], FleetModels] = {}
    for one in (condition.experiment for condition in conditions):
        key = (one.dataset, one.model, one.widths)
        if key not in found:
            data = load_dataset(one.dataset, data_dir)
            shape, devices = data.input_shape, max(one.devices, 1)
            found[key] = fleet_from_name(one.model, one.widths, devices, shape, data.classes, one.seed)
    return list(found.values())
