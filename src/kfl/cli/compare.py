"""`kfl compare`: anything side by side on the same seeds, after the same search and with twins where requested."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from kfl._version import __version__
from kfl.algorithms import Local
from kfl.cli.compare_entries import asked_entries, listed, own_fields
from kfl.cli.flags import flags_of
from kfl.cli.options import (
    AlgorithmName,
    ConfigFile,
    DataDir,
    Device,
    FadingName,
    GainTraceFile,
    HarvestName,
    HarvestTraceFile,
    MobilityName,
    Precision,
    Quiet,
    RadioName,
    RayAddress,
    SchedulerName,
    names_of,
    numbers,
    parse,
    peek,
    refuse_idle,
    starting_point,
    typed,
    whole_numbers,
    with_devices_of_data,
    with_radio_asked,
    with_radio_fields,
    worker_count,
)
from kfl.comparison.entries import STANDARD, Entry
from kfl.comparison.search import DEVELOPMENT_SEEDS, LEARNING_RATES, Search
from kfl.comparison.twins import UPLOADING
from kfl.core.config import dump_toml
from kfl.core.errors import ConfigError, DivergedError, KflError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.core.terminal import tell
from kfl.data import short_name
from kfl.experiment import Experiment, check_idle, common_settings
from kfl.plots import Axis

if TYPE_CHECKING:
    from kfl.comparison import Comparison

PROG = "kfl compare"
DESCRIPTION = f"""Compare algorithms, schedulers or option values on the same seeds: one table with paired
intervals, one plot, raw results in JSON.

Every other option of kfl run applies to all entries; a field that only some algorithms or schedulers have applies to
those. Repeated, a comparison runs only what is missing. Without entries, KFL is compared with the three methods that
share nothing; with --twins alone, {len(UPLOADING)} methods with zero-upload baselines."""
MOST_USED = (
    *("algorithms", "schedulers", "vary", "twins", "search"),
    *("seeds", "dataset", "devices", "rounds", "equal-models"),
)
EXAMPLES = """kfl compare --algorithms kfl,fedavg,local --equal-models 256 --seeds 0..4
kfl compare --algorithms kfl,local,my_module:MyClass             your own algorithm
kfl compare --schedulers lyapunov,uniform,my_module:MyScheduler  schedulers, with one algorithm
kfl compare --scheduler lyapunov --vary scheduler.v=0.01,0.1     two values of one option
kfl compare --entry "cheap: --scheduler.v 0.01" --entry "all: --scheduler all"
kfl compare --twins --algorithms kfl,shared-stem                 does uploading help?
kfl compare --search --algorithms kfl,local                      an equal search first, on other seeds
kfl compare --from FOLDER --x joules                             an earlier comparison again"""


SHOWN_AGAIN = {"from", "algorithms", "schedulers", "seeds", "reference", "x", "out", "quiet"}
"""Options that act with --from."""


@dataclass(frozen=True)
class CompareArgs:
    """What `kfl compare` takes."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    config: ConfigFile = None
    algorithms: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    """Algorithms, separated by commas; package.module:Class for your own."""
    schedulers: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    """Schedulers, separated by commas, each with every algorithm; with KFL alone if --algorithms is not given."""
    vary: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUE,VALUE")] = ()
    """Values of an option of kfl run, each with every algorithm and scheduler. May be given several times."""
    entry: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="'LABEL: FLAGS'")] = ()
    """One more row: options of kfl run that are added to those of this command. May be given several times."""
    entries: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """TOML file with more rows: for each a table of options, as in a config file, named by its label."""
    twins: bool = False
    """Compare with the best of the twins, which upload nothing: those that are named, or else all four."""
    search: bool = False
    """First give every entry the same search: learning rates × its main parameter, on other seeds."""
    search_only: bool = False
    """Stop after the search, which writes tuned.toml for --settings."""
    search_schedulers: bool = False
    """Before that, give every entry the scheduler that serves it best on those seeds, out of one set for all."""
    search_seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = ",".join(map(str, DEVELOPMENT_SEEDS))
    """Seeds of the search; never those that are reported."""
    rates: Annotated[str, tyro.conf.arg(metavar="RATES")] = ",".join(map(str, LEARNING_RATES))
    """Learning rates that the search tries with every value of an entry's main parameter."""
    allow_report_seeds: bool = False
    """Search on seeds 0 to 4 nevertheless, although comparisons report them."""
    settings: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """TOML file with hyper-parameters, a table per algorithm (your own: ["my_module:MyClass"]), such as tuned.toml."""
    equal_models: Annotated[int | None, tyro.conf.arg(metavar="WIDTH")] = None
    """Give all devices networks of this width, as algorithms that average weights require."""
    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "0..4"
    """Seeds: 0..4, 0,3,7 or 5."""
    reference: Annotated[str | None, tyro.conf.arg(metavar="LABEL")] = None
    """What the others are compared with. Default: training alone, or random devices, or the first."""
    x: Axis = "rounds"
    """Horizontal axis of the plot: rounds, or what all devices have spent so far."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER")] = None
    """Show an earlier comparison again, without running anything; --algorithms and --schedulers then choose rows."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder to write; runs already finished in it are not repeated. Default: one under runs/ for this very setting."""
    data_dir: DataDir = None
    algorithm_name: AlgorithmName = "kfl"
    scheduler_name: SchedulerName = "uniform"
    radio_name: RadioName = "auto"
    fading_name: FadingName = "rayleigh"
    harvest_name: HarvestName = "none"
    mobility_name: MobilityName = "none"
    gain_trace: GainTraceFile = None
    harvest_trace: HarvestTraceFile = None
    device: Device = "cpu"
    precision: Precision = "float32"
    workers: int | None = None
    """Runs in parallel, each a process with one thread. Default: one per core, or one on a GPU."""
    ray: RayAddress = None
    shard: Annotated[str, tyro.conf.arg(metavar="I/N")] = "1/1"
    """Run only part i of n, for several machines; collect the results*.jsonl of all in one folder."""
    keep_models: bool = False
    """Keep the devices' models in the run folders, for kfl export."""
    keep_runs: bool = True
    """Keep the run folders, for kfl report, and not only their results."""
    quiet: Quiet = False

    @property
    def searches(self) -> bool:
        """Whether there is a search."""
        return self.search or self.search_only


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is not finished yet, show."""
    options, base, fields = parse_compare(arguments)
    if options.source is not None:
        every = {field.replace("-", "_") for flag in flags_of(CompareArgs) if (field := flag.name.lstrip("-"))}
        return show_again(options, arguments, every - SHOWN_AGAIN)
    if not options.searches:
        refuse_idle(arguments, ("rates", "allow_report_seeds"), "with --search or --search-only")
    if not options.searches and not options.search_schedulers:
        refuse_idle(arguments, ("search_seeds",), "with --search or --search-only")
    entries = asked_entries(
        base,
        fields,
        algorithms=_algorithms(options),
        schedulers=options.schedulers,
        vary=options.vary,
        entry=options.entry,
        file=options.entries,
        settings=options.settings,
        twins=options.twins,
    )
    check_idle([entry.experiment for entry in entries], typed(arguments))
    folder = options.out or kept_folder(base, options, fields)
    if folder.exists() and options.out is None and not options.quiet:
        tell(f"Continuing in {folder}: what is finished there is not repeated (--out FOLDER starts afresh).")
    command = command_line(arguments, folder)
    problem: KflError | None = None
    try:
        found = execute(entries, folder, options)
    except KeyboardInterrupt:
        return interrupted(command)
    except KflError as failed:
        found, problem = _others(failed, folder)
    if options.searches:
        show_search(found, folder, command)
    if found.records:
        show(found, options.x, folder, command)
    if problem is None and not found.records:
        problem = _nothing(found, entries, folder)
    if problem is not None:
        raise problem
    return 0


def parse_compare(arguments: Sequence[str]) -> tuple[CompareArgs, Experiment, dict[str, Any]]:
    """The options, the experiment that all entries share, and the given fields of algorithms and schedulers."""
    if (seed := peek(arguments, "seed")) is not None:
        raise ConfigError("seed", seed, f"given to {PROG} as --seeds, for example --seeds {seed}")
    for part in ("algorithm", "scheduler"):
        if peek(arguments, f"{part}s") is not None and (one := peek(arguments, part)) is not None:
            raise ConfigError(part, one, f"left out with --{part}s, or one of those")
    fields, words = own_fields(arguments)
    start = starting_point(words)
    # Local training has exactly the fields that all algorithms have.
    shown = replace(with_radio_fields(start, words), algorithm=common_settings(start.algorithm, Local))
    options = parse(
        CompareArgs,
        words,
        PROG,
        DESCRIPTION,
        CompareArgs(shown, **names_of(start, shown), algorithm_name=str(start.to_table()["algorithm"]["name"])),
        examples=EXAMPLES,
        most_used=MOST_USED,
    )
    base = replace(with_radio_asked(options.experiment, start, words), algorithm=start.algorithm)
    if options.equal_models is not None:
        base = replace(base, widths=(options.equal_models,))
    base = with_devices_of_data(base, options.data_dir)
    base.validate()
    return options, base, fields


def _algorithms(options: CompareArgs) -> str | None:
    """The algorithms that are named, or those of a comparison in which nothing is."""
    if options.algorithms is not None:
        return options.algorithms
    if options.twins:
        return ",".join(UPLOADING)
    named = (options.schedulers, options.vary, options.entry, options.entries)
    first, *rest = STANDARD
    return None if any(named) else ",".join(dict.fromkeys([options.algorithm_name or first, *rest]))


def execute(entries: Sequence[Entry], folder: Path, options: CompareArgs) -> Comparison:
    """Run everything that is missing, showing progress."""
    from kfl.comparison import SCHEDULER_SET, Shard, choose_schedulers, compare
    from kfl.progress import ManyDisplay

    search, seeds = None, whole_numbers(options.search_seeds, "search_seeds")
    if options.searches:
        search = Search(seeds, numbers(options.rates, "learning_rates"), options.allow_report_seeds)
    how: dict[str, Any] = {
        "workers": worker_count(options.workers, options.device),
        "keep_models": options.keep_models,
        "data_dir": options.data_dir,
        "device": options.device,
        "precision": options.precision,
        "ray": options.ray,
    }
    if options.search_schedulers:
        with ManyDisplay("searching", quiet=options.quiet) as display:
            entries, names = choose_schedulers(
                entries, seeds, folder / "schedulers", on_progress=display.on_progress, keep_runs=False, **how
            )
        told = ", ".join(f"{entry.label} {name}" for entry, name in zip(entries, names, strict=True))
        tell(f"The best of {len(SCHEDULER_SET)} schedulers for each, on seeds {options.search_seeds}: {told}.")
    with ManyDisplay("searching" if options.search_only else "comparing", quiet=options.quiet) as display:
        return compare(
            entries,
            () if options.search_only else whole_numbers(options.seeds, "seeds"),
            folder,
            reference=options.reference,
            twins=options.twins,
            search=search,
            on_progress=display.on_progress,
            shard=Shard.parse(options.shard),
            keep_runs=options.keep_runs,
            **how,
        )


def _others(failed: KflError, folder: Path) -> tuple[Comparison, KflError]:
    """What is there although some runs failed, and the failure; where nothing is, the failure is raised."""
    from kfl.comparison import Comparison, RunsFailedError

    if not isinstance(failed, RunsFailedError):
        raise failed
    try:
        return Comparison.load(folder), failed
    except KflError:
        raise failed from None


def _nothing(found: Comparison, entries: Sequence[Entry], folder: Path) -> KflError | None:
    """Why there is no result: every run diverged; None where a search found something for every entry."""
    from kfl.comparison import ResultStore

    if found.outcomes and len(found.best) >= len({entry.label for entry in entries}):
        return None
    diverged = list(ResultStore.open(folder).diverged.values())
    return DivergedError(f"{len(diverged)} runs have no result. {diverged[-1]['problem']}") if diverged else None


def show_again(options: CompareArgs, arguments: Sequence[str], idle: Collection[str]) -> int:
    """The table and the plot of finished results, of all rows and seeds or of those asked for."""
    from kfl.comparison import Comparison

    source = options.source or Path()
    found = Comparison.load(source)
    refuse_idle(arguments, idle, "where something runs, and --from only shows")
    labels = found.labels
    for field, asked in (("algorithm", options.algorithms), ("scheduler", options.schedulers)):
        if asked is not None:
            labels = [
                label
                for word in listed(asked, f"{field}s", labels)
                for label in found.matching(word, field)
                if label in labels
            ]
    seeds = set(found.seeds)
    if peek(arguments, "seeds") is not None:
        seeds &= set(whole_numbers(options.seeds, "seeds"))
        if not seeds:
            raise ConfigError("seeds", options.seeds, f"seeds that are in {source}")
    folder, command = options.out or (source if source.is_dir() else source.parent), command_line(arguments)
    if found.outcomes:
        show_search(found, folder, command)
    if found.records:
        show(found.select(labels, seeds, options.reference), options.x, folder, command)
    return 0


def show_search(found: Comparison, folder: Path, command: str) -> None:
    """Print the best trials, and write them for --settings, and every trial as a line."""
    from kfl.cli.display import print_table

    if not found.best:
        return
    table = found.search_table()
    print_table(table.cells, table.title, table.notes)
    folder.mkdir(parents=True, exist_ok=True)
    seeds = ",".join(map(str, found.search_seeds))
    head = f"# The best of the same search for every entry, by mean accuracy over seeds {seeds}:\n# {command}\n\n"
    files = []
    for condition, tables in found.settings.items():
        files.append(folder / ("tuned.toml" if not condition else f"tuned-{condition}.toml"))
        write_atomic(files[-1], (head + dump_toml(tables)).encode())
    lines = [
        {
            "algorithm": label,
            **({"condition": condition} if condition else {}),
            "searched": dict(outcome.trial.changed),
            "seeds": list(found.search_seeds),
            "accuracy": list(outcome.reached),
            "mean": outcome.accuracy.mean,
        }
        for (condition, label), some in found.outcomes.items()
        for outcome in some
    ]
    write_atomic(folder / "trials.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    tell(f"Every trial is in {folder / 'trials.jsonl'}. Use the settings: kfl compare --settings {files[0]}")


def show(found: Comparison, x: Axis, folder: Path, command: str) -> None:
    """Print the tables, and write them and the plot into the folder."""
    from kfl.cli.display import print_table

    tables = found.tables()
    if not tables:
        tell("Nothing is finished yet that could be compared with a twin.")
        return
    for table in tables:
        print_table(table.cells, table.title, table.notes, table.head)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "table.md", found.markdown(command).encode())
    found.to_csv(folder / "table.csv")
    files = [folder / f"accuracy-by-{x}.{kind}" for kind in ("png", "svg")]
    try:
        for file in files:
            found.plot(file, x)
    except MissingExtraError as problem:
        tell(problem, file=sys.stderr)
        files = []
    wall_s = sum(line["wall_s"] for line in found.records)
    tell(" ".join([f"The runs took {wall_s:.0f} s together.", *[f"The plot is {files[0]}"] * bool(files)]))
    tell(f"Other axes: kfl compare --from {shlex.quote(str(folder))} --x joules (or seconds, bits)")


def command_line(arguments: Sequence[str], folder: Path | None = None) -> str:
    """The command that was given; with the folder it made up, where it did."""
    made_up = [] if folder is None or peek(arguments, "out") is not None else ["--out", str(folder)]
    return shlex.join(["kfl", "compare", *arguments, *made_up])


def interrupted(command: str) -> int:
    """Say how to continue after Ctrl-C; the exit status."""
    tell("", f"kfl: interrupted; finished runs are kept. To continue: {command}", file=sys.stderr)
    return 130


def kept_folder(base: Experiment, options: CompareArgs, fields: Mapping[str, Any]) -> Path:
    """The folder under runs/ of what is asked: the same question has the same folder, so that nothing runs twice.

    More seeds, algorithms or schedulers are the same question; the seed of the experiment does not count.
    """
    how = [options.device, options.precision, __version__, json.dumps(sorted(fields.items()), default=str)]
    how += [name for name in ("algorithms", "schedulers", "twins") if getattr(options, name)]
    how += sorted(f"vary {text.partition('=')[0]}" for text in options.vary)
    how += ["entry"] * bool(options.entry or options.entries) + ["search"] * options.searches
    how += ["search schedulers"] * options.search_schedulers
    question = "\n".join([replace(base, seed=0).identity(), *how])
    digest = blake2b(question.encode(), digest_size=4).hexdigest()
    return Path("runs") / f"compare-{short_name(base.dataset)}-{digest}"


# Commands of earlier versions, which are now this one.

TUNE = {"--seeds": "--search-seeds", "--learning-rates": "--rates"}
SHARING = {"--methods": "--algorithms", "--learning-rates": "--rates"}


def tune(arguments: Sequence[str]) -> int:
    """`kfl tune`, which is a comparison that stops after its search."""
    return _rewritten("tune", ["--search-only", *_renamed(arguments, TUNE)])


def sharing(arguments: Sequence[str]) -> int:
    """`kfl sharing`, which is a comparison with twins; where nothing is said about data, on scarce digits."""
    from kfl.comparison.presets import SCARCE

    if "--published" in arguments:
        raise KflError("The published study is python -m reproduction twins, in a clone of the repository.")
    words = ["--twins", *_renamed(arguments, SHARING)]
    if peek(words, "dataset") is None and peek(words, "config") is None and peek(words, "from") is None:
        for name, value in SCARCE.items():
            option = f"--{name.replace('_', '-')}"
            if not any(word.partition("=")[0] in (option, f"--{name}") for word in words):
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                words += [option, *map(str, values)]
    return _rewritten("sharing", words)


def _renamed(arguments: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """The words with other names for some options.

    >>> _renamed(["--methods=kfl,local", "--seeds", "0"], SHARING)
    ['--algorithms=kfl,local', '--seeds', '0']
    """
    split = [word.partition("=") for word in arguments]
    return ["".join((names.get(name, name), equals, value)) for name, equals, value in split]


def _rewritten(name: str, words: Sequence[str]) -> int:
    if not {"-h", "--help", "--help-all"} & set(words):
        tell(f"kfl {name} is now: {shlex.join(['kfl', 'compare', *words])}", file=sys.stderr)
    return main(words)
