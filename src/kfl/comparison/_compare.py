"""Run labelled experiments over seeds, none twice, and hold what came out of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kfl.comparison._folder import read_entries, read_reference, write_entries
from kfl.comparison.entries import Row, pick_reference, refuse_mixed_models, summarise_rows, with_seeds
from kfl.comparison.execution import run_many, run_paths, settled
from kfl.comparison.records import RESULTS, Record, data_note, label_of, read_records, record, write_records
from kfl.comparison.tables import columns, sentences, title_of
from kfl.core.errors import ConfigError, KflError, RunFolderError
from kfl.core.lazy import import_object
from kfl.core.names import for_markdown, for_terminal, markdown_table
from kfl.experiment import Experiment
from kfl.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kfl.data import Dataset

Axis = Literal["rounds", "joules", "seconds", "bits"]


def compare(
    entries: Mapping[str, Experiment],
    seeds: Iterable[int] = range(5),
    folder: str | Path | None = None,
    *,
    reference: str | None = None,
    workers: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    keep_models: bool = False,
    threads: int = 1,
    dataset: Dataset | None = None,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    precision: str = "float32",
    ray: str | None = None,
) -> Comparison:
    """Compare experiments that differ in anything (algorithm, scheduler, one of their fields, …) on the same seeds.

    Args:
        entries: what to compare: experiments by label. Their own seeds do not count.
        seeds: every entry is run with each of these.
        folder: where the run folders and the results go. Runs that are finished there are not repeated, so more entries
            or seeds cost only what is new. By default nothing is kept.
        reference: the label that the others are compared with. By default an entry that trains alone; where all have
            the same algorithm, one with random devices; else the first.
        workers: number of processes, as in `run_many`.
        on_progress: called after every round and every run; its `name` is the label and the seed.
        keep_models: write the devices' models into the run folders.
        threads: PyTorch threads of each run.
        dataset: your own data instead of the one each experiment names.
        data_dir: folder that holds the datasets that have names; by default `KFL_DATA_DIR`.
        device: processor that trains: cpu, cuda, or auto.
        precision: number format, as in `run`.
        ray: address of a Ray cluster, as in `run_many`.

    A run that fails does not stop the others: `RunsFailedError` is raised at the end; `Comparison.load(folder)` then
    holds the others.

    >>> import kfl
    >>> base = kfl.Experiment(devices=8, rounds=2, widths=(8,), samples_per_device=20)
    >>> found = kfl.compare({"shared": base, "alone": replace(base, algorithm=kfl.Local())}, seeds=[0, 1])
    >>> found.reference, [row.label for row in found.rows], found["shared"].bits_up > found["alone"].bits_up
    ('alone', ['shared', 'alone'], True)
    """
    wanted, data_folder = list(dict.fromkeys(seeds)), None if data_dir is None else Path(data_dir)
    _check(entries, wanted)
    ready = {label: settled(entry, dataset, data_folder) for label, entry in entries.items()}
    for entry in ready.values():
        entry.validate()
    refuse_mixed_models(ready)
    chosen = pick_reference(list(ready), reference, {label: parts_of(entry) for label, entry in ready.items()})
    runs = with_seeds(ready, wanted)
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as where:
        results = _Results(Path(where), runs, chosen, on_progress)
        run_many(
            [run for _, run in runs],
            where,
            workers,
            results.on_progress,
            keep_models,
            threads=threads,
            dataset=dataset,
            data_dir=data_dir,
            device=device,
            precision=precision,
            ray=ray,
        )
        return replace(Comparison.load(where), folder=None if folder is None else Path(folder))


class _Results:
    """Writes each result as its run ends."""

    def __init__(
        self,
        folder: Path,
        runs: Sequence[tuple[str, Experiment]],
        reference: str,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._folder = folder
        self._reference = reference
        self._begun = False
        self._lines: list[Record | None] = [None] * len(runs)
        self._runs = runs
        self._paths = run_paths([run for _, run in runs], folder)
        self._on_progress = on_progress

    def folders(self) -> dict[str, dict[int, Path]]:
        """The run folder of each label and seed."""
        found: dict[str, dict[int, Path]] = {}
        for path, (label, run) in zip(self._paths, self._runs, strict=True):
            found.setdefault(label, {})[run.seed] = path
        return found

    def on_progress(self, progress: Progress) -> None:
        """Take in a finished round or run; two labels may have the same one."""
        if not self._begun:
            self._begun = True
            write_entries(self._folder, self.folders(), self._reference)
        indices = [index for index, path in enumerate(self._paths) if path.name == progress.name]
        if progress.history is not None and progress.history.folder is not None:
            note = data_note(Path(progress.history.folder))
            for index in indices:
                label, run = self._runs[index]
                self._lines[index] = record(run, progress.history, note, label)
            write_records(self._folder / RESULTS, [line for line in self._lines if line is not None])
        if self._on_progress is not None:
            label, run = self._runs[indices[0]]
            self._on_progress(replace(progress, name=f"{label}, seed {run.seed}"))


def parts_of(entry: Experiment) -> tuple[str, str]:
    """The words that select the algorithm and the scheduler of an entry."""
    table = entry.to_table()
    return str(table["algorithm"]["name"]), str(table["scheduler"]["name"])


def _check(entries: object, seeds: Sequence[int]) -> None:
    """Raise ConfigError for what cannot be compared."""
    if not isinstance(entries, Mapping) or not entries:
        raise ConfigError("entries", entries, 'experiments by label, such as {"kfl": Experiment()}')
    for label, entry in entries.items():
        if not isinstance(label, str) or not label.strip():
            raise ConfigError("entries", label, "experiments by label: each label a text that is not empty")
        if not isinstance(entry, Experiment):
            raise ConfigError(f"entries[{label!r}]", entry, "an Experiment")
    if not seeds or min(seeds) < 0:
        raise ConfigError("seeds", seeds, "one or more whole numbers of 0 or more")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The results of a comparison: printed, it is the table with the sentences that belong to it.

    >>> import tempfile, kfl
    >>> base = kfl.Experiment(devices=8, rounds=1, widths=(8,), samples_per_device=20)
    >>> few, many = (replace(base, scheduler=kfl.Uniform(count=count)) for count in (2, 8))
    >>> folder = tempfile.mkdtemp()
    >>> found = kfl.compare({"two": few, "all": many}, [0], folder, reference="two")
    >>> str(found).splitlines()[0], [row.devices_per_round for row in kfl.Comparison.load(folder).rows]
    ('mnist-5k: 8 devices, 1 round, kfl, uniform, seed 0', [2.0, 8.0])
    """

    records: tuple[Record, ...]
    """One for each run, with its label, seed, settings, results and curve, as in results.jsonl."""
    reference: str
    """The label that the others are compared with."""
    folder: Path | None = None
    """Where it lies, if it was kept."""

    @staticmethod
    def load(path: str | Path) -> Comparison:
        """The last comparison of a folder, of `kfl.compare` or `kfl compare`; or of a file of results."""
        place = Path(path)
        folder = place if place.is_dir() else place.parent
        records, runs = read_records(place), read_entries(folder) if place.is_dir() else {}
        if runs:  # what an earlier comparison left there is not of this one
            of_run = {(label, seed): path.name for label, paths in runs.items() for seed, path in paths.items()}
            records = [
                line
                for line in records
                if of_run.get((label_of(line), line["seed"]), "").endswith(f"-{line['digest']}")
            ]
        if not records:
            raise RunFolderError(f"{place} holds no results of kfl compare.")
        known = read_reference(folder)
        labels = {label_of(line): (line["algorithm"], line["scheduler"]) for line in records}
        return Comparison(
            tuple(records), pick_reference(list(labels), known if known in labels else None, labels), folder
        )

    @property
    def labels(self) -> list[str]:
        """Those of the entries, in the order of the table."""
        return list(dict.fromkeys(map(label_of, self.records)))

    @property
    def seeds(self) -> list[int]:
        """Those of the runs."""
        return sorted({line["seed"] for line in self.records})

    @cached_property
    def rows(self) -> list[Row]:
        """Means over seeds and differences paired by seed, one row per entry."""
        return summarise_rows(self.records, self.reference)

    def __getitem__(self, label: str) -> Row:
        for row in self.rows:
            if row.label == label:
                return row
        raise KeyError(f"{label!r} is not among {', '.join(self.labels)}")

    def select(
        self,
        labels: Sequence[str] | None = None,
        seeds: Iterable[int] | None = None,
        reference: str | None = None,
    ) -> Comparison:
        """Some of the entries, in this order, and some of the seeds; with another reference."""
        names = self.labels if labels is None else list(dict.fromkeys(labels))
        for name in names:
            if name not in self.labels:
                raise ConfigError("labels", name, f"one of {', '.join(self.labels)}", choices=self.labels)
        wanted = set(self.seeds if seeds is None else seeds)
        lines = [line for name in names for line in self.records if label_of(line) == name and line["seed"] in wanted]
        if not lines:
            raise ConfigError("seeds", sorted(wanted), f"some of {', '.join(map(str, self.seeds))}")
        parts = {label_of(line): (line["algorithm"], line["scheduler"]) for line in lines}
        if reference is None and self.reference in names:
            reference = self.reference
        return replace(self, records=tuple(lines), reference=pick_reference(names, reference, parts))

    def matching(self, word: str, field: str) -> list[str]:
        """Labels that are this word, or whose algorithm or scheduler it is; ConfigError where there is none."""
        found = [word] if word in self.labels else [label_of(line) for line in self.records if line[field] == word]
        if not found:
            where = "the comparison" if self.folder is None else str(self.folder)
            raise ConfigError(f"{field}s", word, f"one that is in {where}", choices=self.labels)
        return list(dict.fromkeys(found))

    def columns(self) -> dict[str, list[str]]:
        """The table, by column."""
        return columns(self.rows, self.records, self.reference)

    def sentences(self) -> list[str]:
        """How to read the table, and what it says."""
        return sentences(self.rows, self.records, self.reference)

    @property
    def title(self) -> str:
        """What was compared, in a line."""
        return title_of(self.records)

    def __repr__(self) -> str:
        cells = {for_terminal(name): [*map(for_terminal, column)] for name, column in self.columns().items()}
        widths = [max(map(len, [name, *column])) for name, column in cells.items()]
        lines = [list(cells), *map(list, zip(*cells.values(), strict=True))]
        shown = [
            "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs))
            for pairs in (list(zip(line, widths, strict=True)) for line in lines)
        ]
        return "\n".join(
            [for_terminal(self.title), "", *(line.rstrip() for line in shown), "", *map(for_terminal, self.sentences())]
        )

    def _repr_markdown_(self) -> str:
        """The same in a notebook."""
        return "\n".join(
            [
                f"**{for_markdown(self.title)}**",
                "",
                *markdown_table(self.columns()),
                "",
                *map(for_markdown, self.sentences()),
            ]
        )

    def to_pandas(self) -> Any:
        """A table with one row per run: label, seed, settings and results, without the curves. Needs pandas."""
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]  # its stubs are a package of their own
        except ImportError as problem:
            raise KflError(
                "A comparison as a DataFrame needs pandas, which is not installed: pip install pandas."
            ) from problem
        return pandas.DataFrame([_flat(line) for line in self.records])

    def plot(self, file: str | Path | None = None, x: Axis = "rounds") -> Figure:
        """Accuracy against rounds, or against the joules, seconds or bits spent so far; needs Matplotlib.

        The figure is written to `file` (png, svg or pdf), if there is one, and returned.
        """
        # Plots are a layer above this one and know records; what draws them is found by name.
        figure: Figure = import_object("kfl.plots:plot_curves")(
            self.records, x, [] if file is None else [Path(file)], self.title
        )
        return figure


def _flat(line: Record) -> dict[str, Any]:
    """One run as plain cells; settings that all or some algorithms have become columns."""
    settings = {f"algorithm.{name}": value for name, value in line.get("settings", {}).items()}
    settings |= {f"scheduler.{name}": value for name, value in line.get("scheduler_settings", {}).items()}
    left_out = ("label", "curve", "settings", "scheduler_settings", "why_nobody", "widths")
    return {"label": label_of(line), **{key: line[key] for key in line if key not in left_out}, **settings}
