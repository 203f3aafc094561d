"""Words of a page: numbers with their units, and what is said about one run or about several."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kfl.core import text as plain
from kfl.core.config import differences
from kfl.core.names import shortened
from kfl.core.text import DASH, several
from kfl.report.figures import Table
from kfl.report.groups import Bundle, Group, PageGroups, difference, told_apart
from kfl.report.run_data import Fairness, RunData, fairness
from kfl.runfolder import given_as_objects
from kfl.scheduling.energy_report import by_part, dominant
from kfl.scheduling.status import describe
from kfl.simulation.logs import diverged_sentence

SPACE = "\N{NO-BREAK SPACE}"
"""Between a number and its unit, so that they stay on one line."""


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.9345), percent(None)
    ('93.5\\xa0%', '–')
    """
    return plain.percent(fraction, digits).replace(" ", SPACE)


def quantity(value: float | None, unit: str) -> str:
    """Return a physical quantity with the prefix that fits.

    >>> quantity(12345.0, "J")
    '12.3\\xa0kJ'
    """
    return plain.quantity(value, unit).replace(" ", SPACE)


def duration(seconds: float) -> str:
    """Return a time in the units that people use for it."""
    return plain.duration(seconds).replace(" ", SPACE)


def about(told: Sequence[tuple[str, str]], otherwise: str) -> str:
    """Return sentences about runs, with their names where there are several; of many runs `otherwise`.

    >>> about([("mine", "all is well.")], ""), about([("a", "well."), ("b", "better.")], "")
    ('All is well.', 'a: well. b: better.')
    """
    if len(told) == 1:
        return told[0][1][:1].upper() + told[0][1][1:]
    return " ".join(f"{name}: {sentence}" for name, sentence in told) if len(told) <= 2 else otherwise


def between(values: Sequence[tuple[float, str]], show: Callable[[float], str]) -> str:
    """Return the smallest and the largest of values that have a name each.

    >>> between([(2.0, "b"), (1.0, "a")], str)
    '1.0 (a) to 2.0 (b)'
    """
    return f"{show(min(values)[0])} ({min(values)[1]}) to {show(max(values)[0])} ({max(values)[1]})"


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


_NAMES = {
    "kfl": "KFL", "shared-stem": "Shared stem", "local": "Training alone", "fedavg": "FedAvg",
    "fedproto": "FedProto", "fedrep": "FedRep", "fedkd": "FedKD", "fedgh": "FedGH", "fedtgp": "FedTGP",
    "fedmrl": "FedMRL", "lg-fedavg": "LG-FedAvg", "apfl": "APFL", "fd": "Federated distillation",
    "fixed-knowledge": "Fixed knowledge", "self-knowledge": "Self-knowledge",
}  # fmt: skip

# ── One run ──────────────────────────────────────────────────────────────────


def title(run: RunData) -> str:
    """Return what was run."""
    of = f"{several(run.devices, 'device')}, {several(run.planned, 'round')}"
    return f"{_NAMES.get(run.algorithm, run.algorithm)} on {shortened(run.dataset)}: {of}"


def state_of(run: RunData) -> str:
    """Return how far a run is, in a few words."""
    if run.finished and not run.uploads:
        return "no device took part"
    if run.finished:
        return f"finished, {several(run.played, 'round')}"
    return f"round {run.played:,} of {run.planned:,}"


def sentence(run: RunData) -> str:
    """Return what happened."""
    if not run.played:
        return f"{run.devices:,} devices will learn {run.dataset} with {run.algorithm}; no round is finished yet."
    if not run.uploads:
        why = Counter(describe(status) for status in run.rounds.status).most_common(1)[0][0]
        return f"No device took part in any of {several(run.played, 'round')}, so that nothing was learned. {why}"
    do, stand = ("learned", "reached") if run.finished else ("are learning", "stand at")
    reached = (
        "were not tested yet" if run.last_accuracy is None else f"{stand} {percent(run.last_accuracy, 2)} accuracy"
    )
    told = (
        f"{run.devices:,} devices {do} {run.dataset} with {run.algorithm} and {reached} after "
        f"{several(run.played, 'round')}, {run.uploads / run.played:,.1f} of them taking part in a round"
    )
    if run.cell is None:
        return told + "; energy was not counted."
    told += f"; together they spent {quantity(run.energy_j, 'J')}"
    if run.use_of_budget is not None:
        told += (
            f", {percent(run.use_of_budget)} of their budgets, and {several(run.over_budget, 'device')} exceeded theirs"
        )
    return told + "."


def warnings(run: RunData) -> list[str]:
    """Return what a reader must know before any number: most of it would otherwise pass for a result."""
    diverged = diverged_sentence(sum(one.kind == "diverged" for one in run.rounds.incidents), run.uploads)
    found = [diverged] if diverged else []
    never = int((run.participation == 0).sum())
    if run.finished and run.uploads and never > run.devices / 2:
        of = several(run.devices, "device")
        found.append(f"{never:,} of {of} never took part: their accuracy is that of untrained models.")
    return [*found, *run.notes]


Card = tuple[str, str, str]
"""A number on top of a page: label, value, and what to compare it with."""


def cards(run: RunData) -> list[Card]:
    """Return the numbers on top of the page of a run."""
    fair = fairness(run.accuracy)
    of = f"of the test samples of {run.tested}; best {percent(run.best_accuracy, 2)}"
    found = [("Accuracy", percent(run.last_accuracy, 2), of)]
    if fair is not None:
        found.append(("Worst tenth", percent(fair.worst_tenth), f"of devices; Jain's index {fair.jain:.3f}"))
    found += [] if run.cell is None else energy_cards(run)
    found.append(("Uploaded", quantity(run.bits_up, "bit"), _against_fedavg(run)))
    if run.cell is not None:
        each = quantity(run.time_s / run.played, "s") + " per round" if run.played else ""
        found.append(("Time in the cell", duration(run.time_s), each))
    never = int((run.participation == 0).sum())
    rest = f"{several(never, 'device')} never" if never else "each at least once"
    found.append(("Participation", f"{run.uploads / max(run.played, 1):,.1f}", f"devices per round; {rest}"))
    if run.rounds.incidents:
        share = len(run.rounds.incidents) / max(1, run.uploads)
        found.append(("Faults", f"{len(run.rounds.incidents):,}", f"in {percent(share)} of participations"))
    return found


def energy_cards(run: RunData) -> list[Card]:
    """Return what devices spent, and of how much."""
    found = [("Energy", quantity(run.energy_j, "J"), f"all devices; {_largest_part(run)}")]
    if run.use_of_budget is not None:
        most = percent(float(run.device_energy_j.max(initial=0.0)) / run.budget_j)
        if run.over_budget == 0:
            found.append(("Budgets", "kept", f"{percent(run.use_of_budget)} used; at most {most}"))
        else:
            of = several(run.devices, "device")
            found.append(("Budgets", f"{run.over_budget:,} exceeded", f"of {of}; at most {most} used"))
    if (batteries := run.batteries) is not None:
        charge = percent(float(batteries.mean_j[-1]) / batteries.capacity_j)
        empty = int(batteries.empty.sum())
        found.append(("Batteries", charge, f"mean charge now; empty {several(empty, 'time')}"))
    return found


def _largest_part(run: RunData) -> str:
    """How much of the energy was sending; of whole devices, the largest part."""
    parts = {name: float(energy_j.sum()) for name, energy_j in (run.rounds.parts_j or {}).items()}
    if parts and run.energy_j > 0:
        largest = max(parts, key=lambda name: parts[name])
        return f"{percent(parts[largest] / run.energy_j)} of it {largest}"
    sending = run.upload_energy_j / run.energy_j if run.energy_j > 0 else 0.0
    return f"{'less than 0.1 %' if 0 < sending < 0.001 else percent(sending)} of it sending"


def _against_fedavg(run: RunData) -> str:
    models = run.summary.get("fedavg_bits_up")
    if run.algorithm == "fedavg" or not isinstance(models, float | int) or not models > 0:
        return f"by {several(run.uploads, 'upload')}"
    return f"{percent(run.bits_up / models, 2)} of what whole models take"


def commands(run: RunData) -> str:
    """Return how to repeat a run."""
    where = shlex.quote(str(run.path))
    again = f"kfl run --config {shlex.quote(str(run.path / 'config.toml'))}"
    lines = [again] if run.finished else [f"kfl resume {where}", f"kfl report {where} --live"]
    return "\n".join([*lines, f"kfl report {where}"])


def facts(run: RunData) -> dict[str, str]:
    """Return what a run ran on."""
    found, environment = {"Folder": str(run.path)}, run.environment
    words = {"kfl": "kfl", "commit": "Commit", "started": "Started", "python": "Python", "processor": "Processor"}
    for key, label in {**words, "gpu": "GPU", "platform": "Platform"}.items():
        if isinstance(environment.get(key), str | int | float):
            found[label] = str(environment[key])
    if environment:
        found["Reproducible"] = _reproducible(environment)
    packages = environment.get("packages")
    if isinstance(packages, dict):
        found["Packages"] = ", ".join(f"{name} {version}" for name, version in packages.items())
    data = environment.get("dataset")
    if isinstance(data, dict):
        where = f" from {data['path']}" if data.get("path") else ""
        found["Data"] = f"{data.get('name', '?')}{where}, fingerprint {data.get('fingerprint', '?')}"
        if data.get("note"):
            found["Note on the data"] = str(data["note"])
    traces = environment.get("traces")
    for name, trace in traces.items() if isinstance(traces, dict) else ():
        if isinstance(trace, dict):
            found[f"Trace of {name}"] = f"{trace.get('path', '?')}, fingerprint {trace.get('fingerprint', '?')}"
    if run.finished and run.cell is not None:
        parts = run.rounds.parts_j
        decides = dominant(run.rounds.compute_energy_j, run.rounds.upload_energy_j) if parts is None else by_part(parts)
        found["What decides the energy"] = decides
    wall = run.summary.get("wall_s")
    if isinstance(wall, float | int) and math.isfinite(wall):
        found["Duration"] = duration(float(wall))
    untested = run.played and np.isnan(run.rounds.accuracy).all()
    return found | ({"Tests": "no round was tested"} if untested else {})


def _reproducible(environment: Mapping[str, Any]) -> str:
    """Whether the configuration alone repeats a run, in words."""
    given = given_as_objects(environment)
    if not given:
        return "yes"
    if "fleet" in environment:
        return "no: devices of a real fleet hold their own data and models"
    return f"no: {' and '.join(given)} given as Python objects; name them as package.module:function instead"


# ── Several runs ─────────────────────────────────────────────────────────────

MOST_NAMES = 4
"""Groups that a title names,"""
LONGEST = 60
"""if their names are not longer than this together."""


def title_of_all(found: PageGroups) -> str:
    """Return what was compared, with the setting as far as all runs have it in common."""
    groups, runs = found.groups, found.runs
    names = listed([group.name for group in groups])
    told = names if len(groups) <= MOST_NAMES and len(names) <= LONGEST else f"{len(groups)} settings"
    if len({run.dataset for run in runs}) == 1:
        told += f" on {shortened(runs[0].dataset)}"
    counts = {"device": {run.devices for run in runs}, "round": {run.planned for run in runs}}
    sizes = [several(one.pop(), noun) for noun, one in counts.items() if len(one) == 1]
    seeds = {len(group.runs) for group in groups}
    sizes.append(several(seeds.pop(), "seed") if len(seeds) == 1 else f"{len(runs)} runs")
    return f"{told}: {', '.join(sizes)}"


def sentence_of_all(found: PageGroups) -> str:
    """Return which group has the highest accuracy, and which cannot be told apart from it."""
    accuracy = {g.name: g.accuracy for g in found.groups if all(run.last_accuracy is not None for run in g.runs)}
    tested = [group for group in found.groups if group.name in accuracy]
    if not tested:
        return "No round has been tested yet."
    tested = [group for group in tested if all(run.finished for run in group.runs)] or tested
    best = max(tested, key=lambda group: accuracy[group.name] or 0.0)
    gaps = [(group, difference(best, group)) for group in tested if group is not best]
    ties = [group for group, gap in gaps if gap is not None and not gap.clear and (gap.count > 1 or not gap.mean)]
    if ties:
        first = [group for group in found.groups if group is best or group in ties]
        reached = listed(list(dict.fromkeys(percent(accuracy[group.name], 2) for group in first)))
        told = f"{listed([group.name for group in first])} tie at the top, with {reached}: "
        told += "these seeds do not tell them apart." if found.seeded else "they are equal."
    else:
        told = f"{best.name} has the highest accuracy, {percent(accuracy[best.name], 2)}."
    if any(gap is not None and gap.count == 1 and gap.mean for _, gap in gaps):
        told += " This is one seed: with others the order may change."
    spent = {group.name: group.mean(lambda run: run.energy_j) for group in tested}
    spent = {name: energy_j for name, energy_j in spent.items() if energy_j > 0}
    if len(spent) > 1:
        least = min(spent.values())
        thrifty = [name for name, energy_j in spent.items() if energy_j <= 1.005 * least]
        if len(thrifty) == len(spent):
            told += f" All spent the same energy, {quantity(least, 'J')}."
        else:
            told += f" {listed(thrifty)} spent the least energy, {quantity(least, 'J')}."
    idle = [group.name for group in found.groups if not any(run.uploads for run in group.runs)]
    return told + (f" No device took part in any round of {listed(idle)}." if idle else "")


def group_fairness(group: Group) -> Fairness | None:
    """Return fairness averaged over the runs of a group."""
    found = [one for run in group.runs if (one := fairness(run.accuracy)) is not None]
    if not found:
        return None
    means = {name: float(np.mean([getattr(one, name) for one in found])) for name in Fairness.__dataclass_fields__}
    return Fairness(**{**means, "devices": found[0].devices})  # type: ignore[arg-type]  # the fields by their names


def overview(found: PageGroups) -> Table:
    """Return a table with a row for each group; numbers are means over its seeds."""
    groups, reference, runs = found.groups, found.reference, found.runs
    same = len({_seeds(group) for group in groups}) == 1
    radio = any(run.cell is not None for run in runs)
    # A column per kind of number: its heading, whether the page has it, and the text of a group.
    columns: list[tuple[str, bool, Callable[[Group], str]]] = [
        ("run", True, lambda group: group.name),
        ("seeds", not same, _seeds),
        ("state", not all(run.finished for run in runs), _state),
        ("accuracy", True, _accuracy),
        (f"minus {reference.name}, points", len(groups) > 1, lambda group: _minus(group, reference)),
        (
            "worst tenth",
            True,
            lambda group: percent(None if (one := group_fairness(group)) is None else one.worst_tenth),
        ),
        ("energy", radio, lambda group: _of_radio(group, quantity(group.mean(lambda run: run.energy_j), "J"))),
        ("time", radio, lambda group: _of_radio(group, duration(group.mean(lambda run: run.time_s)))),
        ("over budget", any(run.over_budget for run in runs), lambda g: f"{g.mean(lambda run: run.over_budget):.3g}"),
        ("uploaded", True, lambda group: quantity(group.mean(lambda run: run.bits_up), "bit")),
        ("devices per round", True, lambda g: f"{g.mean(lambda run: run.uploads / max(run.played, 1)):,.3g}"),
    ]
    shown = [(heading, cell) for heading, there, cell in columns if there]
    note = f"Every run with seed {_seeds(groups[0])}." if same and not found.seeded else ""
    if any(len(group.runs) > 2 for group in groups):
        of = f"seeds {_seeds(groups[0])}" if same else "seeds"
        note = (
            f"Means over {of}. Brackets: 95{SPACE}% confidence interval. Differences are paired by seed; one whose "
            "interval holds 0 is a tie."
        )
    rows = tuple(tuple(cell(group) for _, cell in shown) for group in groups)
    return Table(tuple(heading for heading, _ in shown), rows, note, tuple(group.index for group in groups))


def _seeds(group: Group) -> str:
    found = sorted(run.seed for run in group.runs)
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}–{found[-1]}"
    return ", ".join(map(str, found)) if len(found) <= MOST_NAMES else f"{len(found)} seeds"


def _state(group: Group) -> str:
    if len(group.runs) == 1:
        return state_of(group.run)
    return f"{sum(run.finished for run in group.runs)} of {several(len(group.runs), 'run')} finished"


def _accuracy(group: Group) -> str:
    found = [run.last_accuracy for run in group.runs if run.last_accuracy is not None]
    if not found:
        return DASH
    told = percent(float(np.mean(found)), 2)
    ends = Bundle.of([(np.zeros(1), np.array([one])) for one in found]).ends()
    if ends is None or len(found) < 3:
        return told
    return f"{told} [{100 * ends[0][0]:.2f}, {100 * ends[1][0]:.2f}]"


def _minus(group: Group, reference: Group) -> str:
    return DASH if group is reference else told_apart(difference(group, reference), unit="")


def _of_radio(group: Group, told: str) -> str:
    return DASH if group.run.cell is None else told


def what_differs(found: PageGroups) -> Table:
    """Return how each configuration differs from the reference's, apart from the seed."""
    first = found.reference.run.setting
    rows = []
    for group in found.groups:
        changed = [line for line in differences(first, group.run.setting) if len(line) < 300]
        # Settings that only one of two algorithms has say no more than the algorithm's name.
        changed = [line for line in changed if "(absent)" not in line] or changed
        same = "the reference" if group is found.reference else "the same configuration"
        rows.append((group.name, "; ".join(changed) or same))
    return Table(("run", "configuration"), tuple(rows), groups=tuple(group.index for group in found.groups))
