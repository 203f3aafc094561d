"""`kfl compare`: algorithms, schedulers and settings side by side on the same seeds, in one table and one plot."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.algorithms import Algorithm
from kfl.cli.entries import Entry, combined, fitted, labelled, taken, unique
from kfl.cli.options import ALGORITHM_NAMES, SCHEDULER_NAMES, peek, starting_point, whole_numbers, worker_count
from kfl.cli.setting import (
    Setting,
    command_line,
    given_fields,
    interrupted,
    kept_folder,
    listed,
    parse_setting,
)
from kfl.comparison.entries import STANDARD, configured, read_settings
from kfl.core.errors import ConfigError, KflError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.core.terminal import tell
from kfl.experiment import Experiment, class_of
from kfl.plots import Axis
from kfl.scheduling import Scheduler, Uniform

if TYPE_CHECKING:
    from kfl.comparison import Comparison

PROG = "kfl compare"
DESCRIPTION = """Compare anything on the same seeds: one table with paired intervals, one plot, raw results in JSON.

  kfl compare --algorithms kfl,local,my_module:MyClass             algorithms, your own among them
  kfl compare --schedulers lyapunov,uniform,my_module:MyScheduler  schedulers, with one algorithm
  kfl compare --algorithms kfl,local --schedulers dual,uniform     all four
  kfl compare --scheduler lyapunov --vary scheduler.v=0.01,0.1     two settings of one thing
  kfl compare --entry "cheap: --scheduler lyapunov --scheduler.v 0.01" --entry "all: --scheduler all"
                                                                   whatever kfl run takes, with a label
  kfl compare --from FOLDER --x joules                             show an earlier one again

Every other option of kfl run applies to all alike; a field that only some algorithms or schedulers have applies to
those. Asked again, a comparison runs only what is missing: more seeds, another algorithm. Without any of the options
above, KFL stands beside the three that share nothing."""


@dataclass(frozen=True)
class CompareOptions:
    """What `kfl compare` takes."""

    setting: Annotated[Setting, tyro.conf.arg(name="")]
    algorithms: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ",".join(STANDARD)
    """Algorithms, separated by commas; package.module:Class for your own."""
    schedulers: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    """Schedulers, separated by commas, each with every algorithm; with KFL alone if --algorithms is not given."""
    vary: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUE,VALUE")] = ()
    """Values of an option of kfl run, each with every algorithm and scheduler. May be given several times."""
    entry: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="'LABEL: FLAGS'")] = ()
    """One more row: flags of kfl run that are added to those of this command. May be given several times."""
    entries: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """TOML file with more rows: for each a table of options, as in a config file, named by its label."""
    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "0..4"
    """Seeds: 0..4, 0,3,7 or 5."""
    reference: Annotated[str | None, tyro.conf.arg(metavar="LABEL")] = None
    """What the others are compared with. Default: training alone, or random devices, or the first."""
    x: Axis = "rounds"
    """Horizontal axis of the plot: rounds, or what all devices have spent so far."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER")] = None
    """Show an earlier comparison again, without running anything; --algorithms and --schedulers then choose rows."""


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is not finished yet, show."""
    question = Question.read(arguments)
    options, base = question.options, question.base
    if options.source is not None:
        return show_again(options, arguments)
    entries = question.experiments()
    seeds = whole_numbers(options.seeds, "seeds")
    folder = options.setting.out or kept_folder("compare", base, options.setting, *question.kinds)
    if folder.exists() and options.setting.out is None and not options.setting.quiet:
        tell(f"Continuing in {folder}: what is finished there is not repeated (--out FOLDER starts afresh).")
    command = command_line("compare", arguments, folder)
    found: Comparison | None
    problem: KflError | None = None
    try:
        found = execute(entries, seeds, folder, options)
    except KeyboardInterrupt:
        return interrupted(command)
    except RunsFailed as failed:
        found, problem = failed.others, failed.problem
    if found is not None:
        show(found, options.x, folder, command)
    if problem is not None:
        raise problem
    return 0


@dataclass(frozen=True)
class Question:
    """What is asked: flags that all entries share, and the entries."""

    options: CompareOptions
    base: Experiment
    """What the shared flags describe."""
    arguments: tuple[str, ...]
    """The shared flags."""
    entries: dict[str, Entry]
    kinds: tuple[str, ...]
    """What differs among the entries: algorithms, schedulers, varied fields, labelled ones."""
    words: tuple[str, str]
    """The algorithm and the scheduler of an entry that names none."""

    @classmethod
    def read(cls, arguments: Sequence[str]) -> Question:
        """The question that a command line asks."""
        given: dict[str, list[str]] = {}
        shared = list(arguments)
        for name in ("algorithms", "schedulers", "vary", "entry", "entries"):
            given[name], shared = taken(shared, name)
        if given["schedulers"] and (one := peek(shared, "scheduler")) is not None:
            raise ConfigError("scheduler", one, "left out with --schedulers, or one of those")
        source = peek(shared, "from")
        file = Path(given["entries"][-1]) if given["entries"] else None
        algorithms = listed(given["algorithms"][-1], "algorithms", ALGORITHM_NAMES) if given["algorithms"] else []
        schedulers = listed(given["schedulers"][-1], "schedulers", SCHEDULER_NAMES) if given["schedulers"] else []
        if not any(given.values()):
            algorithms = list(STANDARD)
        entries: dict[str, Entry] = {}
        if source is None:
            for field, kind, names in (("algorithms", Algorithm, algorithms), ("schedulers", Scheduler, schedulers)):
                for name in names:
                    class_of(kind, name, field)
            crossed = (
                combined(algorithms, schedulers, given["vary"]) if algorithms or schedulers or given["vary"] else []
            )
            entries = unique([*crossed, *labelled(given["entry"], file)])
        start = starting_point(shared).to_table()
        words = str(start["algorithm"]["name"]), str(start["scheduler"]["name"])
        first = Entry("", tuple(word for name in schedulers[:1] for word in ("--scheduler", name)))
        plain = _without_fields(fitted(shared, first, entries.values(), words))
        options, base = parse_setting(CompareOptions, plain, PROG, DESCRIPTION)
        options = replace(
            options,
            algorithms=",".join(algorithms),
            schedulers=",".join(schedulers) or None,
            vary=tuple(given["vary"]),
            entry=tuple(given["entry"]),
            entries=file,
        )
        if schedulers:
            base = replace(base, scheduler=Uniform())  # whichever comes first, the question is the same
        kinds = [name for name in ("algorithms", "schedulers") if given[name]] or ["algorithms"] * (
            not any(given.values())
        )
        kinds.append(shlex.join(_own_fields(shared)))
        kinds += sorted(f"vary {text.partition('=')[0]}" for text in given["vary"])
        kinds += ["entry"] * bool(given["entry"] or file)
        return cls(options, base, tuple(shared), entries, tuple(kinds), words)

    def experiments(self) -> dict[str, Experiment]:
        """The experiment of each entry, by label."""
        settings = self.options.setting.settings
        tables = None if settings is None else read_settings(settings)
        parsed: dict[tuple[str, ...], Experiment] = {}
        found = {}
        for label, entry in self.entries.items():
            flags = fitted(self.arguments, entry, self.entries.values(), self.words)
            word, flags = entry.algorithm or self.words[0], taken(flags, "algorithm")[1]
            general = tuple(_without_fields(flags))
            if general not in parsed:
                parsed[general] = parse_setting(CompareOptions, general, PROG, DESCRIPTION)[1]
            experiment = parsed[general]
            common = {field: getattr(experiment.algorithm, field) for field in given_fields(general)}
            algorithm = configured([word], experiment.algorithm, tables, common)[word]
            if len(general) < len(flags):
                experiment = parse_setting(CompareOptions, flags, PROG, DESCRIPTION, algorithm)[1]
            else:
                experiment = replace(experiment, algorithm=algorithm)
            found[label] = experiment
        return found


def _without_fields(flags: Sequence[str]) -> list[str]:
    """The flags without those of fields that not every algorithm has."""
    general = {f"algorithm.{name}" for name in given_fields(flags)}
    words, keep = [], True
    for word in flags:
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            keep = not name.startswith("algorithm.") or name.replace("-", "_") in general
        if keep:
            words.append(word)
    return words


def _own_fields(flags: Sequence[str]) -> list[str]:
    """The flags of fields of algorithms and schedulers: with several of them, they are part of the question."""
    words, keep = [], False
    for word in flags:
        if word.startswith("--"):
            keep = word.startswith(("--algorithm.", "--scheduler."))
        if keep:
            words.append(word)
    return words


class RunsFailed(Exception):  # noqa: N818  # it carries what did not fail
    """Some runs failed; the others make a comparison, or there are none."""

    def __init__(self, problem: KflError, others: Comparison | None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.others = others


def execute(entries: dict[str, Experiment], seeds: Sequence[int], folder: Path, options: CompareOptions) -> Comparison:
    """Run everything that is missing, showing progress."""
    from kfl.cli.display import ManyDisplay
    from kfl.comparison import Comparison, RunsFailedError, compare

    setting = options.setting
    with ManyDisplay("comparing", quiet=setting.quiet) as display:
        try:
            return compare(
                entries,
                seeds,
                folder,
                reference=options.reference,
                workers=worker_count(setting.workers, setting.device),
                on_progress=display.on_progress,
                keep_models=setting.keep_models,
                data_dir=setting.data_dir,
                device=setting.device,
                precision=setting.precision,
                ray=setting.ray,
            )
        except RunsFailedError as problem:
            finished = any(history is not None for history in problem.histories)
            raise RunsFailed(problem, Comparison.load(folder) if finished else None) from problem


def show_again(options: CompareOptions, arguments: Sequence[str]) -> int:
    """The table and the plot of finished results, of all rows and seeds or of those asked for."""
    from kfl.comparison import Comparison

    source = options.source or Path()
    found = Comparison.load(source)
    labels = found.labels
    for field, asked in (("algorithm", options.algorithms), ("scheduler", options.schedulers)):
        if peek(arguments, f"{field}s") is not None:
            labels = [
                label
                for word in listed(asked or "", f"{field}s", labels)
                for label in found.matching(word, field)
                if label in labels
            ]
    seeds = set(found.seeds)
    if peek(arguments, "seeds") is not None:
        seeds &= set(whole_numbers(options.seeds, "seeds"))
        if not seeds:
            raise ConfigError("seeds", options.seeds, f"seeds that are in {source}")
    found = found.select(labels, seeds, options.reference)
    folder = options.setting.out or (source if source.is_dir() else source.parent)
    show(found, options.x, folder, command_line("compare", arguments))
    return 0


def show(found: Comparison, x: Axis, folder: Path, command: str) -> None:
    """Print the table, and write it and the plot into the folder."""
    from kfl.cli.display import markdown, print_table
    from kfl.plots import plot_curves

    cells, notes = found.columns(), found.sentences()
    print_table(cells, found.title, notes)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "table.md", markdown(cells, found.title, notes, command).encode())
    files = [folder / f"accuracy-by-{x}.{kind}" for kind in ("png", "svg")]
    try:
        plot_curves(found.records, x, files, found.title)
    except MissingExtraError as problem:
        tell(problem, file=sys.stderr)
        files = []
    wall_s = sum(line["wall_s"] for line in found.records)
    tell(" ".join([f"The runs took {wall_s:.0f} s together.", *[f"The plot is {files[0]}"] * bool(files)]))
    tell(f"Other axes: kfl compare --from {shlex.quote(str(folder))} --x joules (or seconds, bits)")
