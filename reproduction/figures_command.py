"""`python -m reproduction figures` and `claims`: the paper's figures and claims, run again with one command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.cli.options import DataDir, Device, Precision, Quiet, RayAddress, parse, worker_count
from kfl.core.errors import ConfigError, DivergedError, KflError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.core.terminal import plain_console, tell

if TYPE_CHECKING:
    from kfl.comparison.execution import Execution
    from reproduction.results import Store
    from reproduction.setting import Figure, Scale

DESCRIPTION = """Reproduce the paper: run its experiments and draw its figures.

  python -m reproduction figures               every figure, and how many of its runs are done
  python -m reproduction figures fig2a         run what is missing of one figure; its table and picture (PNG, SVG, PDF)
  python -m reproduction figures m2 | m3 | all    all for two classes per device, for three, or everything
  python -m reproduction figures sharing       what does sharing knowledge add over training with a pull alone?
  python -m reproduction figures prototypes    KFL, FedProto, and the same pull without sharing
  python -m reproduction figures energy        all algorithms with the same battery and band (energy-m3: three classes)

Finished runs are never repeated, so an interrupted command continues where it was. MNIST and CIFAR-10 are needed: kfl
data download fetches them. --quick takes minutes on a laptop, marks everything it writes, and judges nothing."""
CLAIMS = """Judge the paper's claims from the results of `python -m reproduction figures`.

  python -m reproduction claims                every claim: its number, ours, and the verdict
  python -m reproduction claims --only fig2a   those of one figure"""


PUBLISHED = Path("docs/results/paper")
"""Where a clone has the results that the documentation shows."""


Out = Annotated[Path, tyro.conf.arg(metavar="FOLDER", help="Folder for results, tables and figures.")]
Quick = Annotated[bool, tyro.conf.arg(help="A small version: 40 rounds, few samples, one seed. It is not a result.")]


@dataclass(frozen=True)
class FiguresOptions:
    """What `python -m reproduction figures` takes."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")] = ("list",)
    """list, or figures: fig2a … fig4d, fig2a-m3 … fig4d-m3, m2, m3, sharing, prototypes, energy, energy-m3, all."""
    quick: Quick = False
    out: Out = Path("runs/paper")
    shard: Annotated[str, tyro.conf.arg(metavar="I/N")] = "1/1"
    """Run only part i of n, for several machines or sessions; collect the results*.jsonl of all in one folder."""
    data_dir: DataDir = None
    device: Device = "cpu"
    precision: Precision = "float32"
    workers: int | None = None
    """Runs in parallel. Default: one per core, or one on a GPU."""
    ray: RayAddress = None
    keep_runs: bool = False
    """Keep the run folders as well, not only their results."""
    quiet: Quiet = False

    def execution(self) -> Execution:
        """Where and how its runs are played."""
        from kfl.comparison import Execution, Shard

        return Execution(
            workers=worker_count(self.workers, self.device),
            device=self.device,
            precision=self.precision,
            data_dir=self.data_dir,
            ray=self.ray,
            keep_runs=self.keep_runs,
            shard=Shard.parse(self.shard),
        )


@dataclass(frozen=True)
class ClaimsOptions:
    """What `python -m reproduction claims` takes."""

    quick: Quick = False
    out: Out = Path("runs/paper")
    only: Annotated[str, tyro.conf.arg(metavar="WORDS")] = ""
    """Only those that have these words, such as fig2a or 'does not hold'."""
    json: bool = False
    """Print them as JSON, for programs."""


def main(arguments: Sequence[str]) -> int:
    """Parse, then list, or run and draw."""
    options = parse(FiguresOptions, arguments, "python -m reproduction figures", DESCRIPTION)
    words = list(options.what)
    if "list" in words and len(words) > 1:
        raise ConfigError("WHAT", " ".join(words), "list alone, or figures only")
    from reproduction.setting import FULL, QUICK

    scale = QUICK if options.quick else FULL
    return show_list(options, scale) if words == ["list"] else make(options, scale, words)


def claims_main(arguments: Sequence[str]) -> int:
    """Parse, then judge every claim."""
    options = parse(ClaimsOptions, arguments, "python -m reproduction claims", CLAIMS)
    from reproduction.setting import FULL, QUICK

    return show_claims(options, QUICK if options.quick else FULL)


def make(options: FiguresOptions, scale: Scale, words: list[str]) -> int:
    """Run what is missing, then write the tables and the pictures."""
    from kfl.comparison import RunsFailedError
    from kfl.progress import ManyDisplay
    from reproduction.execute import execute, wanted
    from reproduction.figures import chosen
    from reproduction.results import Store

    figures, how = chosen(words), options.execution()
    problem: KflError | None = None
    try:
        with ManyDisplay("paper", quiet=options.quiet) as display:
            store = execute(figures, scale, options.out, execution=how, on_progress=display.on_progress)
    except KeyboardInterrupt:
        tell(
            "",
            "kfl: interrupted; finished runs are kept, and the same command continues with the rest.",
            file=sys.stderr,
        )
        return 130
    except (DivergedError, RunsFailedError) as failed:
        problem, store = failed, Store.open(options.out, wanted(figures, scale))
    for figure in figures:
        show_figure(figure, store, scale, options.out)
    if problem is not None:
        raise problem
    return 0


def show_figure(figure: Figure, store: Store, scale: Scale, folder: Path) -> None:
    """Write the table and the picture of what there is; print the table."""
    from reproduction.pictures import draw
    from reproduction.tables import figure_table

    text = figure_table(figure, store, scale)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{figure.name}{'-quick' * scale.quick}.md", text.encode())
    tell("", *text.split("\n"))
    missing = store.missing(figure.lines(scale), scale)
    if missing:
        tell(f"{missing} runs of {figure.name} are missing.")
    try:
        files = draw(figure, store, scale, folder)
    except MissingExtraError as problem:
        tell(problem, file=sys.stderr)
        return
    if files:
        tell(f"The picture is {files[0]} (and {', '.join(path.suffix.lstrip('.') for path in files[1:])}).")


def show_claims(options: ClaimsOptions, scale: Scale) -> int:
    """The table of claims, from whatever results there are."""
    from reproduction.claims import claims
    from reproduction.claims_display import judged, print_claims, print_json
    from reproduction.execute import wanted
    from reproduction.figures import FIGURES
    from reproduction.judging import judge
    from reproduction.results import Store
    from reproduction.tables import claims_table

    store = Store.open(options.out, wanted([build() for build in FIGURES.values()], scale))
    every = claims()
    rows = judged(every, judge(every, store, scale), scale, options.only)
    if options.json:
        print_json(rows)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"claims{'-quick' * scale.quick}.md"
    write_atomic(path, claims_table(every, store, scale).encode())
    print_claims(rows)
    if not store.rows:
        tell(f"There are no results in {options.out} yet: python -m reproduction figures all makes them.")
        if PUBLISHED.is_dir():
            tell(f"Those of the documentation: python -m reproduction claims --out {PUBLISHED}")
    tell(f"The whole table as Markdown, with the commands: {path}")
    return 0


def show_list(options: FiguresOptions, scale: Scale) -> int:
    """Every figure with its runs, and how many of them are done."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from reproduction.claims import claims
    from reproduction.execute import wanted
    from reproduction.figures import FIGURES
    from reproduction.results import Store
    from reproduction.setting import runs

    every = wanted([build() for build in FIGURES.values()], scale)
    store = Store.open(options.out, every)
    table = Table("figure", "what", "runs", "done", box=SIMPLE_HEAD)
    for name, build in FIGURES.items():
        figure = build()
        names = [run for run, _ in runs(figure, scale)]
        table.add_row(name, figure.title, str(len(names)), str(sum(run in store.rows for run in names)))
    table.add_section()
    table.add_row("all", "each run once, however many figures show it", str(len(every)), str(len(store.rows)))
    plain_console(width=None if sys.stdout.isatty() else 120).print(table)
    tell(f"{len(claims())} claims: python -m reproduction claims judges them from the results in {options.out}.")
    return 0
