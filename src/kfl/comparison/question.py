"""Run labeled experiments over seeds, none twice: after the same search for each, and with twins where requested."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kfl.comparison.entries import (
    Entries,
    Entry,
    Run,
    as_entries,
    has_twin,
    pick_reference,
    refuse_mixed_models,
    with_seeds,
    zero_upload_twins,
)
from kfl.comparison.execution import Execution, RunsFailedError, check_first, play_all, run_paths, settled
from kfl.comparison.records import class_facts, record
from kfl.comparison.result import Comparison, best_outcomes, outcomes_of
from kfl.comparison.search import WIDENINGS, Search, equal_trials, wider
from kfl.comparison.sources import Fingerprints
from kfl.comparison.store import Plan, PlannedRow, ResultStore, Shard
from kfl.comparison.twins import TWINS
from kfl.core.errors import ConfigError, ModelError
from kfl.core.names import for_label
from kfl.experiment import check_idle
from kfl.progress import Progress
from kfl.runfolder import RunReader

OnProgress = Callable[[Progress], None] | None


def compare(
    entries: Entries,
    seeds: Iterable[int] = range(5),
    folder: str | Path | None = None,
    *,
    reference: str | None = None,
    twins: bool = False,
    search: Search | None = None,
    on_progress: OnProgress = None,
    **execution: Any,
) -> Comparison:
    """Compare experiments that differ in anything (algorithm, scheduler, one of their fields, …) on the same seeds.

    Args:
        entries: what to compare: experiments by label, or a list of `Entry`, which also have a condition. Their own
            seeds do not count.
        seeds: every entry is run with each of these. None at all with `search` only searches.
        folder: where the results and the run folders go. Runs that are finished there are not repeated, so more entries
            or seeds cost only what is new. By default nothing is kept.
        reference: the label that the others are compared with. By default an entry that trains alone; where all have
            the same algorithm, one with random devices; else the first. With `twins`, the best twin of each condition.
        twins: compare with the best of the twins, which upload nothing. A condition that names none gets all four:
            training alone, and three pulls of the features.
        search: give every entry the same search for its settings first.
        on_progress: called after every round and every run; its `name` is the label and the seed.
        **execution: how runs are played, by the names of the fields of `kfl.comparison.Execution`: workers, threads,
            device, precision, data_dir, dataset, ray, shard, keep_runs, keep_models.

    Returns:
        The results.

    Raises:
        RunsFailedError: some runs failed. They do not stop the others; `Comparison.load(folder)` then holds the others.
            A run whose training diverged is no failure: it is left out, and said to be.

    >>> import kfl
    >>> base = kfl.Experiment(devices=8, rounds=2, widths=(8,), samples_per_device=20)
    >>> found = kfl.compare({"shared": base, "alone": replace(base, algorithm=kfl.Local())}, seeds=[0, 1])
    >>> found.reference, [row.label for row in found.rows], found["shared"].bits_up > found["alone"].bits_up
    ('alone', ['shared', 'alone'], True)
    """
    how = Execution.of(execution)
    asked = Question.of(entries, seeds, how, reference=reference, twins=twins, search=search)
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as where:
        store = ResultStore.open(where, how.shard)
        searching = replace(how, keep_runs=False)
        if asked.trials:
            play(store, asked.plan(store), asked.trial_runs(), searching, on_progress)
        for _ in range(WIDENINGS if asked.trials and how.shard == Shard() else 0):  # a part does not know the best
            wide = asked.widened(store)
            if wide is asked:
                break
            asked = wide
            play(store, asked.plan(store), asked.trial_runs(), searching, on_progress)
        plan = asked.plan(store)
        play(store, plan, with_seeds(asked.chosen(store), asked.seeds), how, on_progress)
        return replace(Comparison.of(plan, store), folder=None if folder is None else Path(folder))


def read(
    entries: Entries,
    seeds: Iterable[int],
    folder: str | Path,
    *,
    reference: str | None = None,
    twins: bool = False,
    search: Search | None = None,
) -> Comparison:
    """Return what is finished of a comparison in a folder, without running anything; arguments as of `compare`.

    Args:
        entries: What was compared.
        seeds: Which of its seeds to read.
        folder: The comparison's folder.
        reference: The label that the others are compared with.
        twins: Whether twins stand next to each entry.
        search: The search it was made with; None where there was none.
    """
    asked = Question.of(entries, seeds, None, reference=reference, twins=twins, search=search)
    store = ResultStore.open(folder)
    for _ in range(WIDENINGS):
        asked = asked.widened(store, known=True)
    return replace(Comparison.of(asked.plan(store), store), folder=Path(folder))


Trials = list[tuple[Entry, Any]]


@dataclass(frozen=True)
class Question:
    """A comparison that can be run: entries that fit their networks, seeds, and the trials of the search."""

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    trials: tuple[tuple[Entry, Any], ...]
    """Entries with each of their trials, in the conditions in which a search takes place."""
    search_seeds: tuple[int, ...]
    reference: str | None
    twins: bool
    unfit: Mapping[str, str]

    @classmethod
    def of(
        cls,
        entries: Entries,
        seeds: Iterable[int],
        how: Execution | None,
        *,
        reference: str | None,
        twins: bool,
        search: Search | None,
    ) -> Question:
        """Check what is asked, before anything runs or is written; `how` is None where nothing is going to run."""
        asked, wanted = as_entries(entries), list(dict.fromkeys(seeds))
        unfit: Mapping[str, str] = {}
        if (not wanted and search is None) or any(type(seed) is not int or seed < 0 for seed in wanted):
            raise ConfigError("seeds", wanted, "one or more integers of 0 or more")
        found = settled([entry.experiment for entry in asked], how or Execution())
        asked = [replace(entry, experiment=one) for entry, one in zip(asked, found, strict=True)]
        for entry in asked:
            entry.experiment.validate()
        if how is not None:
            check_idle([entry.experiment for entry in asked])
        if twins:
            asked += zero_upload_twins(asked, TWINS)
            if how is not None:
                asked, unfit = split_unfit(asked, how)
            if not has_twin(asked):
                raise ModelError(f"None of the twins runs on these networks. {' '.join(unfit.values())}")
        else:
            refuse_mixed_models(asked)
        labels = list(dict.fromkeys(entry.label for entry in asked))
        if reference is not None:
            pick_reference(labels, reference)
        elif not twins and len({entry.condition for entry in asked}) == 1:
            parts = {one.label: (one.experiment.algorithm.name, one.experiment.scheduler.name) for one in asked}
            reference = pick_reference(labels, None, parts)
        trials = [] if search is None else _trials(asked, search)
        search_seeds = () if search is None else tuple(search.seeds)
        return cls(tuple(asked), tuple(wanted), tuple(trials), search_seeds, reference, twins, unfit)

    def trial_runs(self) -> list[Run]:
        """Every run of the search."""
        return [
            replace(run, trial=trial.name)
            for entry, trial in self.trials
            for run in with_seeds([replace_trial(entry, trial)], self.search_seeds)
        ]

    def widened(self, store: ResultStore, *, known: bool = False) -> Question:
        """The same with trials beyond the edges at which the best ones sit; with `known`, only those that were run."""
        entries = {(entry.condition, entry.label): entry for entry, _ in self.trials}
        added = [
            (entries[place], trial)
            for place, some in outcomes_of(self.planned_trials(), store).items()
            for trial in wider(entries[place].experiment.algorithm, some)
        ]
        if known:
            added = [
                one
                for one in added
                if any(digest in store.rows for digest in _digests(replace_trial(*one), self.search_seeds).values())
            ]
        return replace(self, trials=(*self.trials, *added)) if added else self

    def planned_trials(self) -> list[PlannedRow]:
        """The digests of every run of the search."""
        return [
            PlannedRow(
                entry.label,
                _digests(replace_trial(entry, trial), self.search_seeds),
                entry.condition,
                dict(trial.changed),
                trial.is_start,
            )
            for entry, trial in self.trials
        ]

    def plan(self, store: ResultStore) -> Plan:
        """The digests of every run, with the settings that finished trials have found so far."""
        chosen = self.chosen(store)
        rows = tuple(
            PlannedRow(entry.label, _digests(entry, self.seeds), entry.condition, tuned=entry.tuned) for entry in chosen
        )
        return Plan(rows, tuple(self.planned_trials()), self.reference, self.twins, self.unfit)

    def chosen(self, store: ResultStore) -> list[Entry]:
        """The entries with the best of their finished trials; as they are where none is finished."""
        best, found = best_outcomes(self.planned_trials(), store), []
        for entry in self.entries:
            outcome = best.get((entry.search_in or entry.condition, entry.label))
            tuned = entry.tuned
            changed: dict[str, Any] = {} if outcome is None else dict(outcome.trial.changed)
            algorithm = replace(entry.experiment.algorithm, **changed)
            if outcome is not None:
                other = entry.search_in not in ("", entry.condition)
                tuned = f"the search in another condition, {entry.search_in}" if other else "the search"
            found.append(replace(entry, experiment=replace(entry.experiment, algorithm=algorithm), tuned=tuned))
        return [entry for entry in found if entry.reported]


def _trials(entries: Sequence[Entry], search: Search) -> Trials:
    """The same number of trials for every entry of a condition, where the condition does not use another's search."""
    found: Trials = []
    for condition in dict.fromkeys(entry.condition for entry in entries):
        own = [one for one in entries if one.condition == condition and one.search_in in ("", condition)]
        trials = equal_trials({entry.label: entry.experiment.algorithm for entry in own}, search.rates)
        found += [(entry, trial) for entry in own for trial in trials[entry.label]]
    known = {(entry.condition, entry.label) for entry, _ in found}
    for entry in entries:
        if entry.search_in and (entry.search_in, entry.label) not in known:
            raise ConfigError("search_in", entry.search_in, f"a condition in which {entry.label} is searched")
    return found


def replace_trial(entry: Entry, trial: Any) -> Entry:
    """An entry with the settings of a trial."""
    return replace(entry, experiment=replace(entry.experiment, algorithm=trial.algorithm))


def _digests(entry: Entry, seeds: Sequence[int]) -> dict[int, str]:
    return {seed: replace(entry.experiment, seed=seed).digest() for seed in seeds}


def split_unfit(entries: Sequence[Entry], how: Execution) -> tuple[list[Entry], dict[str, str]]:
    """The entries whose algorithm runs on the networks of every condition, and why the others do not."""
    from kfl.data import load_dataset
    from kfl.encoders import AUTO, NONE, make_encoder
    from kfl.models import FleetModels, fleet_from_name

    known: dict[tuple[object, ...], FleetModels] = {}
    problems: dict[str, str] = {}
    for entry in entries:
        one = entry.experiment
        key = (one.dataset, one.model, one.widths, one.encoder)
        if key not in known:
            data = load_dataset(one.dataset, how.data_folder) if how.dataset is None else how.dataset
            shape = data.input_shape
            if one.encoder not in (AUTO, NONE) and data.view is None:  # networks stand on its numbers
                shape = (make_encoder(one.encoder).size(shape),)
            known[key] = fleet_from_name(one.model, one.widths, max(one.devices, 1), shape, data.classes, one.seed)
        try:
            one.algorithm.check_models(one.algorithm.device_models(known[key]))
        except ModelError as problem:
            problems.setdefault(entry.label, str(problem))
    return [entry for entry in entries if entry.label not in problems], problems


def play(store: ResultStore, plan: Plan, runs: Sequence[Run], how: Execution, on_progress: OnProgress = None) -> None:
    """Play what the store does not hold yet, and write each result as its run ends; the plan first.

    An interrupted run stays in its run folder and is taken up there. A finished one is removed once its result is
    written, unless `how` keeps run folders. A run that diverges is noted and not tried again.
    """
    now = Fingerprints(how.dataset, how.data_folder)
    every = {run.experiment.digest(): run for run in reversed(runs)}
    order = list(dict.fromkeys(run.experiment.digest() for run in runs))
    paths = dict(zip(order, run_paths([every[digest].experiment for digest in order], store.folder), strict=True))
    store.forget_outdated({paths[digest]: every[digest].experiment for digest in order}, now)
    # The part of all runs, not of what is missing: a shard that is continued, or finds others' results, keeps its part.
    missing = [digest for digest in how.shard.part(order) if not store.holds(every[digest].experiment)]
    if len(missing) > 1:
        check_first(every[missing[0]].experiment, how)
    store.write_plan(plan)

    def follow(progress: Progress) -> None:
        run = every[progress.name.rpartition("-")[2]]
        if progress.diverged and progress.problem is not None:
            store.add_diverged(run.experiment.digest(), run.name, progress.problem)
            if not how.keep_runs:
                shutil.rmtree(store.folder / progress.name, ignore_errors=True)
        if progress.history is not None and progress.history.folder is not None:
            path = Path(progress.history.folder)
            data = RunReader(path).dataset()
            row = {
                **({"condition": run.condition} if run.condition else {}),
                **record(run.experiment, progress.history, str(data["note"]), run.label),
                **class_facts(progress.history, int(data["classes"])),
                **now.facts(run.experiment),
                "device": how.device,
                "precision": how.precision,
            }
            store.add(row, order)
            if not how.keep_runs:
                shutil.rmtree(path, ignore_errors=True)
        if on_progress is not None:
            on_progress(replace(progress, name=for_label(run.name)))

    try:
        play_all([every[digest].experiment for digest in missing], store.folder, how, follow)
    except RunsFailedError as failed:
        if not failed.only_diverged:
            raise
