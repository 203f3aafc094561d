"""The top of a page about one run: its title, what happened in one sentence, and the numbers that matter."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from kfl.core.text import several, shortened
from kfl.report.companions import Companions
from kfl.report.measures import Totals, battery_curves, device_energy, fairness, totals
from kfl.report.words import duration, percent, quantity, title_of
from kfl.runfolder import RunData, given_as_objects
from kfl.scheduling import by_part, describe, dominant


def title(run: RunData) -> str:
    """What was run."""
    of = f"{several(run.devices, 'device')}, {several(run.planned, 'round')}"
    return f"{title_of(run.algorithm)} on {shortened(run.dataset)}: {of}"


def state_of(run: RunData) -> str:
    """How far a run is, in a few words."""
    if run.finished and not len(run.rounds.device):
        return "nobody took part"
    if run.finished:
        return f"finished, {several(run.played, 'round')}"
    return f"round {run.played:,} of {run.planned:,}"


def sentence(run: RunData) -> str:
    """What happened."""
    sums = totals(run)
    if not run.played:
        return (
            f"{run.devices:,} devices are about to learn {run.dataset} with {run.algorithm}; no round is finished yet."
        )
    if not run.rounds.per_round().any():
        why = Counter(describe(status) for status in run.rounds.status).most_common(1)[0][0]
        return f"Nobody took part in any of {several(run.played, 'round')}, so nothing was learnt. {why}"
    do, stand = ("learned", "reached") if run.finished else ("are learning", "stand at")
    reached = "were not tested yet" if sums.accuracy is None else f"{stand} {percent(sums.accuracy, 2)} accuracy"
    chosen = run.rounds.per_round().mean()
    told = (
        f"{run.devices:,} devices {do} {run.dataset} with {run.algorithm} and {reached} after "
        f"{several(run.played, 'round')}, {chosen:,.1f} of them taking part in a round"
    )
    if run.cell is None:
        return told + "; energy was not counted."
    told += f"; together they spent {quantity(sums.energy_j, 'J')}"
    if sums.use_of_budget is not None:
        over = several(sums.over_budget, "device")
        told += f", {percent(sums.use_of_budget)} of their budgets, and {over} went over"
    return told + "."


def warnings(run: RunData) -> list[str]:
    """What a reader must know before any number: most of it would otherwise pass for a result."""
    found = []
    never = int((run.rounds.per_device(run.devices) == 0).sum())
    if run.finished and len(run.rounds.device) and never > run.devices / 2:
        of = several(run.devices, "device")
        found.append(f"{never:,} of {of} never took part: their accuracy is that of untrained models.")
    return [*found, *run.notes]


def cards(run: RunData, beside: Companions | None = None) -> list[tuple[str, str, str]]:
    """The numbers on top: label, value, and what to hold it against."""
    sums, fair = totals(run), fairness(run.accuracy)
    found = [("Accuracy", percent(sums.accuracy, 2), f"best {percent(sums.best_accuracy, 2)}, {run.tested}")]
    if fair is not None:
        found.append(("Worst tenth", percent(fair.worst_tenth), f"of devices; Jain's index {fair.jain:.3f}"))
    found += _against_training_alone(run, beside or Companions(run.twin))
    if run.cell is not None:
        found += _energy_cards(run, sums)
    found.append(("Uploaded", quantity(sums.bits_up, "bit"), _against_fedavg(run, sums)))
    if run.cell is not None:
        each = quantity(sums.time_s / run.played, "s") + " a round" if run.played else ""
        found.append(("Time in the cell", duration(sums.time_s), each))
    taken = run.rounds.per_device(run.devices)
    mean = run.rounds.per_round().mean() if run.played else 0.0
    never = int((taken == 0).sum())
    rest = f"{several(never, 'device')} never" if never else "each at least once"
    found.append(("Took part", f"{mean:,.1f}", f"devices a round; {rest}"))
    if run.rounds.incidents:
        share = len(run.rounds.incidents) / max(1, sums.uploads)
        found.append(("Faults", f"{len(run.rounds.incidents):,}", f"{percent(share)} of the times a device was chosen"))
    return found


def _against_training_alone(run: RunData, beside: Companions) -> list[tuple[str, str, str]]:
    """The run beside its twins, the local-only one and the one that uploads nothing, over devices that trained in all.

    What is gained over training alone is not what sharing adds: a pull towards any common targets gains much of it
    without an upload.
    """
    others = [other for other in (beside.alone, beside.pulled) if other is not None and other.devices == run.devices]
    known = [one for one in (run, *others) if np.isfinite(one.accuracy).any()]
    trained = np.logical_and.reduce([one.rounds.per_device(run.devices) > 0 for one in known])
    both = trained & np.logical_and.reduce([np.isfinite(one.accuracy) for one in known])
    if len(known) < 2 or not both.any():
        return []
    mean = {id(one): float(one.accuracy[both].mean()) for one in known}
    ours = mean[id(run)]
    told = []
    if beside.alone is not None and id(beside.alone) in mean:
        label, points = "Against training alone", 100 * (ours - mean[id(beside.alone)])
        told.append(f"alone {percent(mean[id(beside.alone)], 2)}")
    if beside.pulled is not None and id(beside.pulled) in mean:
        gap, name = 100 * (ours - mean[id(beside.pulled)]), beside.pulled.algorithm
        if told:
            told.append(f"{gap:+.2f} against {name}, which uploads nothing")
        else:
            label, points = "Against no upload", gap
            told.append(f"{name} {percent(mean[id(beside.pulled)], 2)}")
    who = f"{several(int(both.sum()), 'device')} that trained" if not both.all() else "all devices trained"
    value = f"{points:+.2f} points".replace("-", "\N{MINUS SIGN}")
    return [(label, value, f"{'; '.join(told)}; {who}; one seed".replace("; -", "; \N{MINUS SIGN}"))]


def _energy_cards(run: RunData, sums: Totals) -> list[tuple[str, str, str]]:
    found = [("Energy", quantity(sums.energy_j, "J"), f"all devices; {_largest_part(run, sums)}")]
    if sums.use_of_budget is not None:
        most = float(device_energy(run).max(initial=0.0)) / run.budget_j
        if sums.over_budget == 0:
            found.append(("Budgets", "kept", f"{percent(sums.use_of_budget)} used; at most {percent(most)}"))
        else:
            among = f"of {several(run.devices, 'device')}; at most {percent(most)} used"
            found.append(("Budgets", f"{sums.over_budget:,} over", among))
    if (batteries := battery_curves(run)) is not None:
        charge = percent(float(batteries.mean_j[-1]) / batteries.capacity_j)
        without = int(batteries.empty.sum())
        told = f"{several(without, 'time')} a device was without charge" if without else "nobody was without charge"
        found.append(("Batteries", charge, f"mean charge now; {told}"))
    return found


def _largest_part(run: RunData, sums: Totals) -> str:
    """How much of the energy was sending; of whole devices, the dearest part."""
    parts = {name: float(energy_j.sum()) for name, energy_j in (run.rounds.parts_j or {}).items()}
    if parts and sums.energy_j > 0:
        dearest = max(parts, key=lambda name: parts[name])
        return f"{percent(parts[dearest] / sums.energy_j)} of it {dearest}"
    sending = sums.upload_energy_j / sums.energy_j if sums.energy_j > 0 else 0.0
    return f"{'less than 0.1 %' if 0 < sending < 0.001 else percent(sending)} of it sending"


def _against_fedavg(run: RunData, sums: Totals) -> str:
    models = run.summary.get("fedavg_bits_up")
    if run.algorithm == "fedavg" or not isinstance(models, float | int) or not models > 0:
        return f"by {several(sums.uploads, 'upload')}"
    return f"{percent(sums.bits_up / models, 2)} of what whole models take"


def commands(run: RunData) -> str:
    """How to do it again."""
    where = shlex.quote(str(run.path))
    again = f"kfl run --config {shlex.quote(str(run.path / 'config.toml'))}"
    lines = [again] if run.finished else [f"kfl resume {where}", f"kfl watch {where}"]
    return "\n".join([*lines, f"kfl report {where}"])


def facts(run: RunData) -> dict[str, str]:
    """What a run ran on."""
    found, environment = {"Folder": str(run.path)}, run.environment
    words = {"kfl": "kfl", "commit": "Commit", "started": "Started", "python": "Python", "processor": "Processor"}
    for key, label in {**words, "gpu": "GPU", "platform": "Platform"}.items():
        if isinstance(environment.get(key), str | int | float):
            found[label] = str(environment[key])
    if environment:
        found["Repeatable"] = _repeatable(environment)
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
        found["It took"] = duration(float(wall))
    unheard = run.played and np.isnan(run.rounds.accuracy).all()
    return found | ({"Tests": "no round was tested"} if unheard else {})


def _repeatable(environment: Mapping[str, Any]) -> str:
    """Whether the configuration alone repeats a run, in words."""
    given = given_as_objects(environment)
    if not given:
        return "yes"
    if "fleet" in environment:
        return "no: devices of a real fleet hold their own data and models"
    return f"no: {' and '.join(given)} given as Python objects; name them as package.module:function instead"
