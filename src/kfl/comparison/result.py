"""What came out of a comparison: rows, tables, sentences, a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kfl.comparison.demo_account import account
from kfl.comparison.entries import pick_reference
from kfl.comparison.fairness import carried, equal, unequal
from kfl.comparison.presets import DEMO
from kfl.comparison.records import NEEDED, Record, check_results, label_of, read_records
from kfl.comparison.rows import Row, best_twin, summarise_rows, with_levels
from kfl.comparison.search import Outcome, Trial, best, judge
from kfl.comparison.store import Plan, PlannedRow, ResultStore, rows_without_plan
from kfl.comparison.tables import (
    MARKS,
    OVERVIEW,
    OWN_OVERVIEW,
    Table,
    columns,
    count_questions,
    goal_of,
    heading,
    overview,
    search_table,
    sentences,
    title_of,
    twin_columns,
    twin_sentences,
)
from kfl.core.errors import ConfigError, KflError, RunFolderError
from kfl.core.files import write_atomic
from kfl.core.lazy import import_object
from kfl.core.names import fenced, html_table
from kfl.simulation.logs import Axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Place = tuple[str, str]
"""A condition and a label."""


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
    """One for each run, with its label, condition, seed, settings, results and curve."""
    reference: str | None = None
    """The label that the others are compared with; None where each condition has its own."""
    folder: Path | None = None
    """Where it lies, if it was kept."""
    twins: bool = False
    """Whether the reference of each condition is its best twin, which uploads nothing."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Labels that were left out because networks do not allow them, and why."""
    outcomes: Mapping[Place, Sequence[Outcome]] = field(default_factory=dict)
    """Of a search: the trials of each entry that have a result."""
    search_seeds: tuple[int, ...] = ()
    tuned: Mapping[Place, str] = field(default_factory=dict)
    """Where the settings of an entry come from, of those that were tuned."""
    missing: Mapping[Place, Mapping[int, str]] = field(default_factory=dict)
    """Seeds that were asked for and have no result, with the reason."""

    @staticmethod
    def of(plan: Plan, store: ResultStore) -> Comparison:
        """What a store has of a plan."""
        planned = [line for row in plan.rows for line in store.planned(row).values()]
        records = check_results(store.folder, planned, NEEDED)
        seeds = sorted({seed for row in plan.trials for seed in row.runs})
        missing = {
            (row.condition, row.label): {
                seed: "diverged" if digest in store.diverged else "is not finished"
                for seed, digest in row.runs.items()
                if digest not in store.rows
            }
            for row in plan.rows
        }
        return Comparison(
            tuple(records),
            plan.reference,
            store.folder,
            plan.twins,
            plan.unfit,
            outcomes_of(plan.trials, store),
            tuple(seeds),
            {(row.condition, row.label): row.tuned for row in plan.rows if row.tuned},
            {place: seeds for place, seeds in missing.items() if seeds} if records else {},
        )

    @staticmethod
    def load(path: str | Path) -> Comparison:
        """The last comparison of a folder, of `kfl.compare` or `kfl compare`; or of a file of results."""
        place = Path(path)
        if place.is_dir():
            store = ResultStore.open(place)
            plan = store.read_plan() or Plan(tuple(rows_without_plan(list(store.rows.values()))))
            found = Comparison.of(plan, store)
        else:
            lines = read_records(place)
            named = {row.runs[seed]: row for row in rows_without_plan(lines) for seed in row.runs}
            found = Comparison(tuple(_named(line, named[line["digest"]]) for line in lines if line["digest"] in named))
            found = replace(found, folder=place.parent)
        if not found.records and not found.outcomes:
            raise RunFolderError(f"{place} holds no results of kfl compare.")
        if found.twins or len(found.conditions) > 1 or not found.records:
            return found
        known = found.reference if found.reference in found.labels else None
        return replace(found, reference=pick_reference(found.labels, known, parts_of(found.records)))

    @property
    def labels(self) -> list[str]:
        """Those of the entries, in the order of the table."""
        return list(dict.fromkeys(map(label_of, self.records)))

    @property
    def conditions(self) -> list[str]:
        """Those of the entries; one empty text where there is only one, without a name."""
        return list(dict.fromkeys(condition_of(line) for line in self.records))

    @property
    def seeds(self) -> list[int]:
        """Those of the runs."""
        return sorted({line["seed"] for line in self.records})

    @cached_property
    def rows(self) -> list[Row]:
        """Means over seeds and differences paired by seed, one row per entry and condition."""
        return self.rows_to(None)

    def rows_to(self, goal: str | None) -> list[Row]:
        """The rows, with the time to the final accuracy of a label; by default that of the reference."""
        rows: list[Row] = []
        for condition in self.conditions:
            records = self._of(condition)
            reference = self._reference(records)
            if reference is not None:
                rows += summarise_rows(records, reference, goal)
        return with_levels(rows, twins=self.twins)

    def _reference(self, records: Sequence[Record]) -> str | None:
        """What the rows of one condition are compared with; None without a twin where it has to be one."""
        if self.twins and self.reference is None:
            return best_twin(records)
        labels = list(dict.fromkeys(map(label_of, records)))
        return pick_reference(labels, self.reference if self.reference in labels else None, parts_of(records))

    def _of(self, condition: str) -> list[Record]:
        return [line for line in self.records if condition_of(line) == condition]

    def __getitem__(self, label: str | Place) -> Row:
        for row in self.rows:
            if label in (row.label, (row.condition, row.label)):
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
        lines = [
            line
            for condition in self.conditions
            for name in names
            for line in self._of(condition)
            if label_of(line) == name and line["seed"] in wanted
        ]
        if not lines:
            raise ConfigError("seeds", sorted(wanted), f"some of {', '.join(map(str, self.seeds))}")
        if reference is not None:
            pick_reference(names, reference)
        elif self.reference in names:
            reference = self.reference
        elif not self.twins and len(self.conditions) == 1:
            reference = pick_reference(names, None, parts_of(lines))
        kept = {
            place: asked
            for place, every in self.missing.items()
            if place[1] in names
            and (asked := {seed: why for seed, why in every.items() if seeds is None or seed in wanted})
        }
        return replace(self, records=tuple(lines), reference=reference, missing=kept)

    def matching(self, word: str, field_name: str) -> list[str]:
        """Labels that are this word, or whose algorithm or scheduler it is; ConfigError where there is none."""
        found = [word] if word in self.labels else [label_of(line) for line in self.records if line[field_name] == word]
        if not found:
            where = "the comparison" if self.folder is None else str(self.folder)
            raise ConfigError(f"{field_name}s", word, f"one that is in {where}", choices=self.labels)
        return list(dict.fromkeys(found))

    def tables(self) -> list[Table]:
        """A table for each condition; of several with twins, one of all their gains first. Of a search alone, its."""
        if not self.records:
            return [self.search_table()] if self.outcomes else []
        return self._twin_tables() if self.twins else self._plain_tables()

    def table(self, condition: str | None = None) -> Table:
        """The table of one condition; by default of the only one, or the first of all tables."""
        tables = self._twin_tables() if self.twins else self._plain_tables()
        if condition is None:
            return tables[0]
        return tables[self.conditions.index(condition) - len(self.conditions)]

    def _plain_tables(self) -> list[Table]:
        found = []
        for condition in self.conditions:
            records = self._of(condition)
            rows = [row for row in self.rows if row.condition == condition]
            reference = rows[0].reference
            title = f"{condition}. {title_of(records)}" if condition else title_of(records)
            notes = sentences(rows, records, reference)
            found.append(Table(title, columns(rows, records, reference), notes, self._head(condition)))
        return found

    def _twin_tables(self) -> list[Table]:
        by_condition: dict[str, list[Row]] = {}
        for row in self.rows_to(goal_of(self.rows)):
            by_condition.setdefault(row.condition, []).append(row)
        everyone = [row for rows in by_condition.values() for row in rows]
        questions, searched = count_questions(everyone), bool(self.outcomes)
        seeds = {name: len({line["seed"] for line in self._of(name)}) for name in by_condition}
        found = []
        if len(by_condition) > 1:
            head = carried(self.tuned)
            found.append(Table(OVERVIEW, overview(by_condition, seeds), [MARKS], head))
            found.append(Table(OWN_OVERVIEW, overview(by_condition, seeds, own=True), [MARKS], head))
        for condition, rows in by_condition.items():
            notes = twin_sentences(rows, seeds[condition], questions, self.unfit, searched=searched)
            title = condition or title_of(self._of(condition))
            found.append(Table(title, twin_columns(rows), notes, self._head(condition)))
        return found

    def _head(self, condition: str) -> list[str]:
        return [self._equal(condition), *self._unequal(condition)]

    def _equal(self, condition: str) -> str:
        return equal(self._of(condition), _there(self.tuned, condition), self._trials(condition))

    def _unequal(self, condition: str) -> list[str]:
        records = self._of(condition)
        return unequal(
            [row for row in self.rows if row.condition == condition],
            records,
            missing=_there(self.missing, condition),
            tuned=_there(self.tuned, condition),
            trials=self._trials(condition),
            kind=heading(records),
        )

    def _trials(self, condition: str) -> dict[str, int]:
        return {label: len(some) for (place, label), some in self.outcomes.items() if place == condition}

    @property
    def equal(self) -> list[str]:
        """What all rows have in common: data, seeds, networks, budget, rounds, search; a sentence for each condition.

        >>> import kfl
        >>> base = kfl.Experiment(devices=8, rounds=1, widths=(8,), samples_per_device=20)
        >>> few, many = (replace(base, scheduler=kfl.Uniform(count=count)) for count in (2, 8))
        >>> found = kfl.compare({"two": few, "all": many}, [0], reference="two")
        >>> found.unequal[0]
        'Scheduler: uniform 2 (two), uniform 8 (all).'
        """
        return [f"{name}: {self._equal(name)}" if name else self._equal(name) for name in self.conditions]

    @property
    def unequal(self) -> list[str]:
        """What was not equal, in a line each: untuned methods, joules, participants, networks, seeds, bits, …"""
        return [f"{name}: {one}" if name else one for name in self.conditions for one in self._unequal(name)]

    def to_csv(self, file: str | Path) -> None:
        """Write all tables as CSV, with what was equal and what was not above each as lines that begin with #."""
        write_atomic(Path(file), "\n".join(table.csv() for table in self.tables()).encode())

    def search_table(self) -> Table:
        """The best trial of every entry."""
        return search_table(self.outcomes, self.best, self.search_seeds)

    @property
    def best(self) -> dict[Place, Outcome]:
        """The trial with the highest mean of each entry that was searched; the others diverged everywhere."""
        return {place: best(some) for place, some in self.outcomes.items() if any(one.finished for one in some)}

    @property
    def settings(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What the search found: by condition and label, the fields with their values, for `kfl compare --settings`."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for (condition, label), outcome in self.best.items():
            found.setdefault(condition, {})[label] = dict(outcome.trial.changed)
        return found

    def sentences(self) -> list[str]:
        """How to read the first table, and what it says."""
        return self.table().notes

    @property
    def conclusion(self) -> list[str]:
        """What the numbers say, in sentences: those below the tables; of `kfl demo`, what it prints at its end."""
        if set(self.labels) == set(DEMO):
            return account(self.records)
        return list(dict.fromkeys(note for table in self.tables() for note in table.notes))

    @property
    def title(self) -> str:
        """What was compared, in a line."""
        return title_of(self.records)

    def markdown(self, command: str | None = None, heading: str = "#") -> str:
        """All tables as a page, with the command that makes them below."""
        page = "\n".join(table.markdown(heading=heading) for table in self.tables())
        return page if command is None else "\n".join([page, *fenced(command), ""])

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return "".join(html_table(table.cells, table.title, [*table.head, *table.notes]) for table in self.tables())

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
        records = self.records
        if len(self.conditions) > 1:
            records = tuple({**line, "label": f"{condition_of(line)}, {label_of(line)}"} for line in records)
        # Plots are a layer above this one and know records; what draws them is found by name.
        figure: Figure = import_object("kfl.plots:plot_curves")(
            records, x, [] if file is None else [Path(file)], self.title
        )
        return figure


T = TypeVar("T")


def _there(found: Mapping[Place, T], condition: str) -> dict[str, T]:
    """What belongs to one condition, by label."""
    return {label: value for (place, label), value in found.items() if place == condition}


def condition_of(line: Record) -> str:
    """The condition of a line; empty where there is only one."""
    return str(line.get("condition", ""))


def parts_of(records: Iterable[Record]) -> dict[str, tuple[str, str]]:
    """The algorithm and the scheduler of each label."""
    return {label_of(line): (line["algorithm"], line["scheduler"]) for line in records}


def _named(line: Record, row: PlannedRow) -> Record:
    return {**line, "label": row.label, **({"condition": row.condition} if row.condition else {})}


def outcomes_of(trials: Iterable[PlannedRow], store: ResultStore) -> dict[Place, list[Outcome]]:
    """What is known of the trials of each entry of which any has a result.

    A trial without a result where others have some diverged, and counts as wrong everywhere.
    """
    found: dict[Place, list[Outcome]] = {}
    for row in trials:
        reached = [store.rows[digest]["accuracy"] if digest in store.rows else None for digest in row.runs.values()]
        outcome = judge(Trial(None, row.searched or {}, row.is_start), reached)
        found.setdefault((row.condition, row.label), []).append(outcome)
    return {place: some for place, some in found.items() if any(one.finished for one in some)}


def best_outcomes(trials: Iterable[PlannedRow], store: ResultStore) -> dict[Place, Outcome]:
    """The best trial of each entry of which any has a result."""
    return {place: best(some) for place, some in outcomes_of(trials, store).items()}


def _flat(line: Record) -> dict[str, Any]:
    """One run as plain cells; settings that all or some algorithms have become columns."""
    settings = {f"algorithm.{name}": value for name, value in line.get("settings", {}).items()}
    settings |= {f"scheduler.{name}": value for name, value in line.get("scheduler_settings", {}).items()}
    left_out = ("label", "curve", "settings", "scheduler_settings", "why_nobody", "widths", "sources")
    return {"label": label_of(line), **{key: line[key] for key in line if key not in left_out}, **settings}
