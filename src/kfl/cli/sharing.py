"""`kfl sharing`: does what a method uploads add anything? Every method beside twins that upload nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import new_folder, numbers, peek, whole_numbers, worker_count
from kfl.cli.setting import Setting, command_line, interrupted, parse_setting
from kfl.comparison.records import RESULTS
from kfl.comparison.search import LEARNING_RATES
from kfl.comparison.named_store import Execution, ResultStore
from kfl.core.config import dump_toml, to_table
from kfl.core.errors import ConfigError, KflError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.core.terminal import tell
from kfl.core.text import several
from kfl.experiment import Experiment
from kfl.sharing import LABELS, STANDARD, Condition, Study, answers, chosen, columns, page, published, sentences, unfit
from kfl.sharing.methods import with_settings
from kfl.sharing.tables import MARKS, OVERVIEW, count_questions, overview

DESCRIPTION = f"""Does it share? Put methods that upload something beside twins that upload nothing.

  kfl sharing                                       the embedded digits, 30 devices with 20 samples each and 30 rounds,
                                                    whatever the defaults below are; a minute or two
  kfl sharing --dataset my-data.npz --model cnn     your own data: every option of kfl run applies to all methods alike
  kfl sharing --published                           the conditions of the documentation; a GPU, or days
  kfl sharing --from FOLDER                         show the results of a folder again, without running anything

Out come a table and a picture: points over the best twin, paired by seed and corrected for the number of questions,
against the bits that a device uploads in a round. Finished runs are never repeated, so an interrupted command continues
where it was. Methods: {", ".join(LABELS)}; other algorithms by name, and package.module:Class of your own."""

FIRST: dict[str, object] = {
    "dataset": "mnist-5k",
    "devices": 30,
    "rounds": 30,
    "samples_per_device": 20,
    "distinct_classes": True,
    "model": "cnn",
    "widths": (32, 48, 64),
    "scheduler.count": 6,
    "evaluate_every": 6,
}
"""The setting where none is said: scarce data, in which help could matter, and networks that begin alike."""


@dataclass(frozen=True)
class SharingOptions:
    """What `kfl sharing` takes."""

    setting: Annotated[Setting, tyro.conf.arg(name="")]
    methods: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ",".join(STANDARD)
    """Methods and twins, separated by commas; at least one twin."""
    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "0..4"
    """Seeds: 0..4, 0,3,7 or 5."""
    search: bool = False
    """First give every method the same search: learning rates × its main parameter, on other seeds."""
    search_seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "100,101"
    """Seeds of the search; never those that are reported."""
    learning_rates: Annotated[str, tyro.conf.arg(metavar="RATES")] = ",".join(map(str, LEARNING_RATES))
    """Learning rates that the search tries with every value of a method's main parameter."""
    published: bool = False
    """The conditions of the documentation instead of one of your own."""
    conditions: Annotated[str, tyro.conf.arg(metavar="NAMES")] = "all"
    """With --published: which of them, separated by commas."""
    keep_runs: bool = False
    """Keep the run folders as well, not only their results."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER")] = None
    """Show what is finished in this folder, without running anything. Give the options it was run with."""


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is missing, answer."""
    options, experiment = parse_setting(SharingOptions, with_first(arguments), "kfl sharing", DESCRIPTION)
    study, left_out = _study(options, experiment)
    folder = options.setting.out or options.source or new_folder("sharing", experiment.dataset)
    command = command_line("sharing", arguments, None if options.source else folder)
    problem: KflError | None = None
    if options.source is None:
        try:
            problem = _play(study, folder, options)
        except KeyboardInterrupt:
            return interrupted(command)
    elif not list(options.source.glob("results*.jsonl")):
        raise ConfigError("from", options.source, f"a folder that kfl sharing wrote; it has no {RESULTS}")
    store = ResultStore.open(options.source or folder)
    show(study, store, left_out, folder, command)
    if problem is not None:
        raise problem
    return 0


def with_first(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the setting of the first example where they name no data, config or published condition."""
    words = list(arguments)
    if peek(words, "dataset") is not None or peek(words, "config") is not None or "--published" in words:
        return words
    for name, value in FIRST.items():
        option = name.replace("_", "-")
        if peek(words, option) is not None or peek(words, name) is not None or f"--{option}" in words:
            continue
        if value is True:
            words.append(f"--{option}")
        elif isinstance(value, tuple):
            words += [f"--{option}", *map(str, value)]
        else:
            words += [f"--{option}", str(value)]
    return words


def _study(options: SharingOptions, experiment: Experiment) -> tuple[Study, dict[str, str]]:
    """What is asked, without the methods that the networks do not allow, and why not."""
    labels = [word for word in options.methods.replace(" ", "").split(",") if word]
    start = None if options.published else experiment.algorithm
    if options.published:
        conditions = _published(options.conditions)
    else:
        title = f"{experiment.dataset}: {experiment.devices} devices, {experiment.rounds} rounds"
        conditions = [Condition("own", title, experiment)]
    methods = chosen(labels, start)
    if options.setting.settings is not None:
        methods = with_settings(methods, options.setting.settings)
    study = Study(
        conditions=conditions,
        methods=methods,
        seeds=whole_numbers(options.seeds, "seeds"),
        searched=options.search,
        search_seeds=whole_numbers(options.search_seeds, "search_seeds"),
        rates=numbers(options.learning_rates, "learning_rates"),
    )
    problems = {} if options.source else unfit(study, options.setting.data_dir)  # what is finished did fit
    return replace(study, methods={label: methods[label] for label in methods if label not in problems}), problems


def _published(names: str) -> list[Condition]:
    known = published()
    words = list(known) if names == "all" else [word for word in names.replace(" ", "").split(",") if word]
    for word in words:
        if word not in known:
            raise ConfigError("conditions", word, f"one of {', '.join(known)}", choices=known)
    return [known[word] for word in words]


def _play(study: Study, folder: Path, options: SharingOptions) -> KflError | None:
    """Run what is missing; what failed, or None."""
    from kfl.cli.display import ManyDisplay
    from kfl.comparison import RunsFailedError

    setting = options.setting
    execution = Execution(
        worker_count(setting.workers, setting.device),
        setting.device,
        setting.precision,
        setting.data_dir,
        setting.ray,
        keep_runs=options.keep_runs or setting.keep_models,
        keep_models=setting.keep_models,
    )
    searches = f" after a search of {several(len(study.search_runs()), 'run')}" if study.searched else ""
    if not setting.quiet:
        tell(f"{several(len(study.runs({})), 'run')}{searches}; what is finished is in {folder}", file=sys.stderr)
    with ManyDisplay("sharing", quiet=setting.quiet) as display:
        try:
            study.play(folder, execution, display.on_progress)
        except RunsFailedError as failed:
            return failed
    return None


def show(study: Study, store: ResultStore, left_out: dict[str, str], folder: Path, command: str) -> None:
    """Print the tables, and write them and the picture into the folder."""
    from kfl.cli.display import print_table
    from kfl.sharing.picture import draw

    # A result of other settings under the same name is not this study's.
    runs = study.runs(study.found(store))
    found = answers(study, store.current({name: experiment.digest() for name, experiment in runs.items()}))
    if not found:
        tell("Nothing is finished yet that could be compared with a twin.")
        return
    questions = count_questions(found)
    if len(found) > 1:
        print_table(overview(found), OVERVIEW, [MARKS])
    for answer in found:
        print_table(
            columns(answer), answer.condition.title, sentences(answer, questions, left_out, searched=study.searched)
        )
    folder.mkdir(parents=True, exist_ok=True)
    text = page(found, left_out, command, searched=study.searched)
    write_atomic(folder / "sharing.md", text.encode())
    if study.searched and any(name in store.rows for name in study.search_runs()):
        _write_settings(study, store, folder)
    try:
        files = draw(found, folder)
    except MissingExtraError as problem:
        tell(problem, file=sys.stderr)
        files = []
    tell(f"The table is {folder / 'sharing.md'}", *[f"The picture is {files[0]}"] * bool(files))


def _write_settings(study: Study, store: ResultStore, folder: Path) -> None:
    """What the search found, for --settings: a table for each method, a file for each place it was searched in."""
    for name, methods in study.found(store).items():
        if study.place(next(one for one in study.conditions if one.name == name)).name == name:
            tables = {label: to_table(algorithm) for label, algorithm in methods.items()}
            write_atomic(folder / f"searched-{name}.toml", dump_toml(tables).encode())
