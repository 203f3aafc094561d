"""Runs whose configuration is the same, but not what it names: a module or data that has changed since.

Many runs are found again by their configuration. It names a user's algorithm or data, but does not hold them: after an
edit of `my_algorithm.py` the old results would pass for new ones. So such runs are moved aside, and run again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfl.core.errors import KflError
from kfl.core.text import several
from kfl.data import DATASETS, Dataset, load_dataset
from kfl.data.paths import looks_like_path
from kfl.experiment import Experiment
from kfl.runfolder import RunReader, is_run_folder
from kfl.simulation.world import source_hashes

OUTDATED = "outdated"
"""Folder, next to the run folders, of those that are moved aside."""

log = logging.getLogger(__name__)


def set_outdated_aside(runs: Mapping[Path, Experiment], dataset: Dataset | None, data_dir: Path | None) -> None:
    """Move run folders aside whose code or data has changed since they began; say so once for each thing."""
    moved: dict[str, list[Path]] = {}
    now = Fingerprints(dataset, data_dir)
    for path, experiment in runs.items():
        if is_run_folder(path) and (what := now.changed(facts_of_run(path), experiment)) is not None:
            moved.setdefault(what, []).append(path)
    for what, paths in moved.items():
        places = [_move(path) for path in paths]
        again = several(len(paths), "run is", "runs are")
        log.warning(
            "%s has changed since: %s repeated; the earlier results are now in %s.", what, again, places[0].parent
        )


def facts_of_run(path: Path) -> dict[str, Any]:
    """What a run folder says of the user's own modules and of the data it ran with."""
    environment = RunReader(path).environment()
    data = environment.get("dataset")
    return {
        "sources": environment.get("sources"),
        "data": data.get("fingerprint") if isinstance(data, Mapping) else None,
    }


class Fingerprints:
    """Hashes of the user's own modules and data as they are now; those of data are computed once."""

    def __init__(self, dataset: Dataset | None, data_dir: Path | None) -> None:
        self._given = None if dataset is None else dataset.fingerprint()
        self._data_dir = data_dir
        self._known: dict[str, str] = {}

    def facts(self, experiment: Experiment) -> dict[str, Any]:
        """What a result says of them: nothing where all is kfl's own."""
        sources, data = source_hashes(experiment), self._of(experiment.dataset)
        return {**({"sources": sources} if sources else {}), **({} if data is None else {"data": data})}

    def changed(self, before: Mapping[str, Any], experiment: Experiment) -> str | None:
        """What has changed since a run began, in words; None where nothing has, or where that is unknown."""
        sources = before.get("sources")
        for name, now in source_hashes(experiment).items():
            if isinstance(sources, Mapping) and sources.get(name, now) != now:
                return f"The module of {name}"
        known, now_data = before.get("data"), self._of(experiment.dataset)
        if known is not None and now_data is not None and known != now_data:
            return f"The dataset {experiment.dataset}"
        return None

    def _of(self, name: str) -> str | None:
        """That of the object that was given, or of the data at a path; None for other data, or none at all."""
        if self._given is not None or name in DATASETS or not looks_like_path(name):
            return self._given
        if name not in self._known:
            try:
                self._known[name] = load_dataset(name, self._data_dir).fingerprint()
            except KflError:  # perhaps the machines of a cluster have it; a run that needs it will say so
                return None
        return self._known[name]


def _move(path: Path) -> Path:
    """Out of the way, under a name that is free."""
    target, number = path.parent / OUTDATED / path.name, 2
    while target.exists():
        target, number = path.parent / OUTDATED / f"{path.name}-{number}", number + 1
    target.parent.mkdir(exist_ok=True)
    path.rename(target)
    return target
