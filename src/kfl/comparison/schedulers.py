"""For every entry the scheduler that serves it best, out of one announced set, on seeds that are not reported.

The same scheduler for all is not the same chance for all: one that weighs data alone leaves out devices with much to
send. Here every entry tries the same few schedulers in the same cell with the same hard budgets, and keeps the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfl.comparison.entries import Entries, Entry, as_entries
from kfl.comparison.search import DEVELOPMENT_SEEDS, Search
from kfl.core.errors import ConfigError
from kfl.scheduling import Dual, LeastEnergy, RoundRobin, Scheduler, Uniform

if TYPE_CHECKING:
    from kfl.comparison.question import OnProgress

SCHEDULER_SET: Mapping[str, Scheduler] = {
    "dual": Dual(),
    "round-robin 3": RoundRobin(count=3),
    "round-robin 10": RoundRobin(count=10),
    "uniform 10": Uniform(count=10),
    "least-energy 0.03": LeastEnergy(participation=0.03),
    "least-energy 0.1": LeastEnergy(participation=0.1),
    "least-energy 0.3": LeastEnergy(participation=0.3),
}
"""The announced set: who is worth most, devices in turn, few and many, at random, and every device alike for the least
energy, rarely, sometimes and often."""


def choose_schedulers(
    entries: Entries,
    seeds: Sequence[int] = DEVELOPMENT_SEEDS,
    folder: str | Path | None = None,
    *,
    schedulers: Mapping[str, Scheduler] = SCHEDULER_SET,
    on_progress: OnProgress = None,
    **execution: Any,
) -> tuple[list[Entry], list[str]]:
    """Return the entries, each with the scheduler that taught it most, and the names of these.

    Args:
        entries: What is going to be compared, as for `compare`.
        seeds: Development seeds; those that comparisons report, 0 to 4, are refused.
        folder: Where the trials go, a comparison of its own. By default nothing is kept.
        schedulers: What every entry tries, by name.
        on_progress: Called after every round and every run.
        **execution: How runs are played, as for `compare`.

    Raises:
        ConfigError: Budgets are soft, so the scheduler that overdraws most would win.

    >>> import kfl
    >>> base = kfl.Experiment(devices=6, rounds=2, widths=(8,), samples_per_device=20)
    >>> some = {"uniform 2": Uniform(count=2), "all": kfl.AllDevices()}
    >>> chosen, names = choose_schedulers({"kfl": base}, [100], schedulers=some)
    >>> chosen[0].label, chosen[0].experiment.scheduler == some[names[0]]
    ('kfl', True)
    """
    from kfl.comparison.question import compare

    asked, seeds = as_entries(entries), Search(seeds).seeds
    for entry in asked:
        one = entry.experiment
        if not one.hard_budget and one.radio not in (None, "none", "auto"):
            right = "true where schedulers are searched: with soft budgets the scheduler that overdraws most would win"
            raise ConfigError("hard_budget", False, right)
    tried = {
        (entry.condition, entry.label, name): scheduler
        for entry in asked
        for name, scheduler in schedulers.items()
        if _fits(scheduler, entry.experiment.devices)
    }
    trials = [
        replace(
            entry,
            label=f"{entry.label}, {name}",
            experiment=replace(entry.experiment, scheduler=tried[where]),
            tuned="",
        )
        for entry in asked
        for name in schedulers
        if (where := (entry.condition, entry.label, name)) in tried
    ]
    found = compare(trials, seeds, folder, on_progress=on_progress, **execution)
    reached: dict[tuple[str, str], float] = {}
    for line in found.records:
        key = (str(line.get("condition", "")), str(line["label"]))
        reached[key] = reached.get(key, 0.0) + float(line["accuracy"]) / len(seeds)  # a run that diverged counts as 0
    best = [
        max(
            (name for name in schedulers if (entry.condition, entry.label, name) in tried),
            key=lambda name: reached.get((entry.condition, f"{entry.label}, {name}"), 0.0),
        )
        for entry in asked
    ]
    return [
        replace(entry, experiment=replace(entry.experiment, scheduler=schedulers[name]))
        for entry, name in zip(asked, best, strict=True)
    ], best


def _fits(scheduler: Scheduler, devices: int) -> bool:
    """Whether a fleet is large enough for a scheduler's number of devices; 0 where only the data says how many."""
    count = getattr(scheduler, "count", None) if any(one.name == "count" for one in fields(scheduler)) else None
    return count is None or devices == 0 or count <= devices
