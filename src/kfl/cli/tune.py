"""`kfl tune`: the same small search for every algorithm, on seeds that are not reported."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.algorithms import Algorithm
from kfl.cli.options import numbers, whole_numbers
from kfl.cli.setting import (
    Setting,
    chosen_algorithms,
    command_line,
    interrupted,
    kept_folder,
    parse_setting,
)
from kfl.comparison.entries import STANDARD, line_up
from kfl.comparison.search import (
    LEARNING_RATES,
    Outcome,
    Trial,
    at_the_edge,
    best,
    judge,
    refuse_reported_seeds,
    search,
)
from kfl.comparison.tables import mean_and_deviation
from kfl.core.config import dump_toml, to_table
from kfl.core.files import write_atomic
from kfl.core.terminal import tell
from kfl.core.text import DASH, in_short, several
from kfl.experiment import Experiment
from kfl.simulation import History

DESCRIPTION = """Give every algorithm the same small search: learning rate × its own main parameter.

Each algorithm gets the same number of trials; one without a main parameter gets more learning rates. The search runs
on development seeds, never on those that are reported. It writes tuned.toml, for kfl compare --settings, and every
trial into trials.jsonl. An algorithm of your own, package.module:Class, names its main parameter as main_parameter."""


@dataclass(frozen=True)
class TuneOptions:
    """What `kfl tune` takes."""

    setting: Annotated[Setting, tyro.conf.arg(name="")]
    algorithms: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ",".join(STANDARD)
    """Algorithms, separated by commas; package.module:Class for your own."""
    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "100,101"
    """Development seeds: 100,101 or 100..102."""
    learning_rates: Annotated[str, tyro.conf.arg(metavar="RATES")] = ",".join(map(str, LEARNING_RATES))
    """Learning rates that every algorithm tries with every value of its main parameter."""
    allow_report_seeds: bool = False
    """Tune on seeds 0 to 4 nevertheless, although comparisons report them."""


def main(arguments: Sequence[str]) -> int:
    """Parse, run every trial that is not finished yet, choose, show."""
    options, experiment = parse_setting(TuneOptions, arguments, "kfl tune", DESCRIPTION)
    seeds = whole_numbers(options.seeds, "seeds")
    refuse_reported_seeds(seeds, options.allow_report_seeds)
    algorithms = chosen_algorithms(options.algorithms, experiment, options.setting, arguments)
    trials = search(algorithms, numbers(options.learning_rates, "learning_rates"))
    folder = options.setting.out or kept_folder("tune", experiment, options.setting)
    command = command_line("tune", arguments, folder)
    flat = [(name, trial) for name, some in trials.items() for trial in some]
    experiments = [run for name, trial in flat for run in line_up(experiment, {name: trial.algorithm}, seeds)]
    if not options.setting.quiet:
        each = several(len(next(iter(trials.values()))), "trial")
        tell(f"{each} for each of {several(len(trials), 'algorithm')}, {several(len(seeds), 'seed')} each.")
    try:
        histories, problem = options.setting.run_many(experiments, folder, "tuning")
    except KeyboardInterrupt:
        return interrupted(command)
    of_trial = [histories[index * len(seeds) :][: len(seeds)] for index in range(len(flat))]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in trials}
    lines = []
    for (name, trial), runs in zip(flat, of_trial, strict=True):
        lines.append(trial_line(name, trial, seeds, runs))
        finished = [history.accuracy for history in runs if history is not None]
        if len(finished) == len(seeds):
            outcomes[name].append(judge(trial, finished))
    found = {name: best(some) for name, some in outcomes.items() if some}
    write_atomic(folder / "trials.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    write_atomic(folder / "tuned.toml", tuned_file(found, experiment, seeds, command).encode())
    show(found, outcomes, algorithms, experiment, seeds)
    use = f"kfl compare --algorithms {','.join(algorithms)} --settings {folder / 'tuned.toml'}"
    tell(f"Every trial is in {folder / 'trials.jsonl'}. Use the settings, with the same options: {use}")
    if problem is not None and len(found) < len(trials):
        raise problem
    if problem is not None:  # a learning rate at which training runs off to infinity has lost, that is all
        tell(f"kfl: trials that failed cannot win: {problem}", file=sys.stderr)
    return 0


def trial_line(name: str, trial: Trial, seeds: Sequence[int], runs: Sequence[History | None]) -> dict[str, object]:
    """One trial for trials.jsonl."""
    accuracies = [None if history is None else history.accuracy for history in runs]
    finished = [accuracy for accuracy in accuracies if accuracy is not None]
    return {
        "algorithm": name,
        "searched": dict(trial.changed),
        "settings": to_table(trial.algorithm),
        "seeds": list(seeds),
        "accuracy": accuracies,
        "mean": sum(finished) / len(finished) if finished else None,
        "runs": [None if history is None or history.folder is None else Path(history.folder).name for history in runs],
    }


def tuned_file(found: Mapping[str, Outcome], experiment: Experiment, seeds: list[int], command: str) -> str:
    """The chosen values, in a file that `kfl compare --settings` reads."""
    head = (
        "# The best of an equal search for every algorithm, by mean accuracy over development seeds "
        f"{in_short(seeds)}:\n# {experiment.dataset}, {experiment.devices} devices, {experiment.rounds} rounds.\n"
        f"# {command}\n\n"
    )
    return head + dump_toml({name: dict(outcome.trial.changed) for name, outcome in found.items()})


def show(
    found: Mapping[str, Outcome],
    outcomes: Mapping[str, list[Outcome]],
    algorithms: Mapping[str, Algorithm],
    experiment: Experiment,
    seeds: list[int],
) -> None:
    """What was chosen, beside the setting it started from."""
    from kfl.cli.display import print_table

    before = {name: next((o for o in outcomes[name] if o.trial.algorithm == algorithms[name]), None) for name in found}
    cells = {
        "algorithm": list(found),
        "best setting": [in_words(outcome) for outcome in found.values()],
        "accuracy, %": [mean_and_deviation(outcome.accuracy) for outcome in found.values()],
        "as it was, %": [DASH if (o := before[name]) is None else mean_and_deviation(o.accuracy) for name in found],
        "trials": [str(len(outcomes[name])) for name in found],
    }
    notes = [f"Mean ± standard deviation over development seeds {in_short(seeds)}; report other seeds."]
    edges = [(name, at_the_edge(outcome, outcomes[name])) for name, outcome in found.items()]
    narrow = [f"{field} of {name}" for name, field in edges if field is not None]
    if narrow:
        notes.append(f"Best at the edge of what was tried, so a wider search may find better: {', '.join(narrow)}.")
    print_table(
        cells, f"Tuned on {experiment.dataset}: {experiment.devices} devices, {experiment.rounds} rounds", notes
    )


def in_words(outcome: Outcome) -> str:
    """The searched values of a trial."""
    return ", ".join(f"{name} {value:.4g}" for name, value in outcome.trial.changed.items())
