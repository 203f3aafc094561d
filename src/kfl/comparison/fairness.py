"""What the rows of a comparison have in common, and in a line each what they have not.

A difference that is the question itself, such as the scheduler of a comparison of schedulers, is listed too where rows
are labeled otherwise: a reader should not have to guess which it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kfl.algorithms import ALGORITHMS
from kfl.comparison.records import Record
from kfl.comparison.rows import Row, by_label, charged_for_every_class
from kfl.core.text import in_short, percent, quantity, several
from kfl.simulation.logs import diverged_sentence

APART = 0.05
"""Joules and participants that differ by a smaller part count as equal."""
STEPS = ("local_steps", "learning_rate", "head_learning_rate", "momentum", "batch_size")
"""Settings that all algorithms have."""
SHOWN_BY_THEMSELVES = ("dataset", "devices", "rounds", "model", "widths", "hard_budget", "encoder")
MOST_FIELDS = 6
"""Fields of the experiment that are listed; of more, the number."""
Seeds = Mapping[str, Mapping[int, str]]
"""By label, the seeds that were asked for and have no result, each with the reason."""
ALWAYS_RECORDED = ("data", "devices", "rounds")
"""What records of every version say."""


def equal(records: Sequence[Record], tuned: Mapping[str, str], trials: Mapping[str, int]) -> str:
    """Return what all rows have in common, in a sentence."""
    facts = [_facts(line) for line in records]
    same = [f"{name} ({value})" for name, value in facts[0].items() if all(one.get(name) == value for one in facts)]
    seeds = {label: tuple(sorted(own)) for label, own in by_label(records).items()}
    if len(set(seeds.values())) == 1:
        same.append(f"seeds ({in_short(next(iter(seeds.values())))})")
    if trials and len(set(trials.values())) == 1 and set(trials) == set(seeds):
        same.append(f"search ({several(next(iter(trials.values())), 'trial')} each)")
    elif not tuned:
        same.append("search (none)")
    return f"Equal in all rows: {', '.join(same)}."


def unequal(
    rows: Sequence[Row],
    records: Sequence[Record],
    *,
    tuned: Mapping[str, str],
    missing: Seeds = MappingProxyType({}),
    trials: Mapping[str, int] = MappingProxyType({}),
    kind: str = "entry",
) -> list[str]:
    """Return what was not equal, in a line each, what spoils a row first.

    Args:
        rows: Those of one condition.
        records: Their runs.
        tuned: Where the settings of a label come from, of those that were tuned.
        missing: Seeds without a result.
        trials: Trials of the search of each label, where there was one.
        kind: What the labels are: algorithm, scheduler, or entry.
    """
    own = {label: list(lines.values()) for label, lines in by_label(records).items()}
    found = []
    for row in rows:
        if row.diverged:
            told = diverged_sentence(row.diverged, sum(_participations(line) for line in own[row.label]))
            found.append(f"{row.label} has no verdict. {told}")
    found += _missing(own, missing)
    for row in rows:
        if row.collapsed:
            rest = [line["accuracy"] for line in own[row.label] if line["seed"] not in row.collapsed]
            ends = [percent(line["accuracy"], 1) for line in own[row.label] if line["seed"] in row.collapsed]
            found.append(
                f"{row.label} collapsed with seed {in_short(row.collapsed)}, to {' and '.join(ends)}; its other seeds "
                f"end at {percent(min(rest), 1)} and above. Its mean and interval say little."
            )
    found += _tuning(own, tuned, trials)
    found += _differing(own, kind)
    found += _amounts(rows, own)
    return [*found, *_bits(own)]


def _facts(line: Record) -> dict[str, str]:
    """What rows may have in common, by name, in words; what an earlier version did not record is left out."""
    widths = line.get("widths") or ()
    facts = {"data": str(line["dataset"]), "devices": f"{line['devices']:,}", "rounds": str(line["rounds"])}
    given = line.get("experiment")
    if given is not None:
        network = [str(given.get("model", ""))] if "model" in given else []
        facts["networks"] = " ".join([*network, *([f"width {in_words(widths)}"] if widths else [])]) or "auto"
        facts |= {"inputs": str(line["inputs"])} if "inputs" in line else {}
        budget = line.get("budget_j")
        facts["cell and budget" if line["radio"] else "radio"] = (
            (f"{quantity(budget, 'J')} a round" if budget else "no budget") if line["radio"] else "none"
        )
        if line["radio"] and line["hard_budget"]:
            facts["cell and budget"] += ", hard"
    elif widths or line.get("model"):
        facts["networks"] = " ".join([str(line.get("model") or ""), f"width {in_words(widths)}" * bool(widths)]).strip()
    settings = line.get("scheduler_settings", {})
    count = f" {settings['count']}" if settings.get("count") else ""
    return {**facts, "scheduler": f"{line['scheduler']}{count}"}


def in_words(values: Sequence[Any]) -> str:
    """Return values with commas between."""
    return ", ".join(map(str, values))


def _participations(line: Record) -> float:
    return float(line["rounds"] * line["devices_per_round"])


def _missing(own: Mapping[str, Sequence[Record]], missing: Seeds) -> list[str]:
    """Labels without all of the seeds that others have."""
    found = []
    for label, seeds in missing.items():
        reasons: dict[str, list[int]] = {}
        for seed, why in seeds.items():
            reasons.setdefault(why, []).append(seed)
        told = "; ".join(f"seed{'s' * (len(some) > 1)} {in_short(some)} {why}" for why, some in reasons.items())
        there = len(own.get(label, ()))
        found.append(f"{label} has {there} of {there + len(seeds)} seeds: {told}.")
    if missing:
        return found
    seeds_of = {label: in_short(sorted(line["seed"] for line in lines)) for label, lines in own.items()}
    return [f"Seeds: {_by_value(seeds_of)}."] if len(set(seeds_of.values())) > 1 else []


def _tuning(own: Mapping[str, Sequence[Record]], tuned: Mapping[str, str], trials: Mapping[str, int]) -> list[str]:
    """Tuned methods next to untuned ones, settings of another condition, and searches of different sizes."""
    sources = {label: tuned[label] for label in own if label in tuned}
    untuned = [label for label in own if label not in tuned]
    found = []
    if sources and untuned:
        found.append(f"Tuned: {_by_value(sources)}. Not tuned, with the defaults: {', '.join(untuned)}.")
    elif len(set(sources.values())) > 1:
        found.append(f"Tuned by different searches: {_by_value(sources)}.")
    elif sources and "another condition" in (source := next(iter(sources.values()))):
        found.append(f"Tuned: {source}.")
    counts = {label: str(count) for label, count in trials.items() if label in own}
    if len(set(counts.values())) > 1:
        found.append(f"Trials of the search: {_by_value(counts)}.")
    if not sources and len({lines[0]["algorithm"] for lines in own.values()}) > 1:
        for name in STEPS:
            values = {
                label: str(lines[0]["settings"][name])
                for label, lines in own.items()
                if name in lines[0].get("settings", {})
            }
            if len(set(values.values())) > 1:
                found.append(f"{name}: {_by_value(values)}; no search is known to have chosen them.")
    return found


def carried(tuned: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the conditions whose settings come from the search of another one, for a table of several conditions.

    >>> carried({("m5", "kfl"): "the search in another condition, m2", ("m2", "kfl"): "the search"})
    ['Not searched in its own condition, but with the settings of another one: m5.']
    """
    places = list(dict.fromkeys(place for (place, _), source in tuned.items() if "another condition" in source))
    whose = "its own condition" if len(places) == 1 else "their own conditions"
    told = f"Not searched in {whose}, but with the settings of another one: {'; '.join(places)}."
    return [told] if places else []


def _differing(own: Mapping[str, Sequence[Record]], kind: str) -> list[str]:
    """Data, networks, scheduler and every other field of the experiment in which rows differ.

    Records of earlier versions say less: beyond data, devices and rounds they are compared with each other only.
    """
    facts = {label: _facts(lines[0]) for label, lines in own.items()}
    given = {label: lines[0].get("experiment") for label, lines in own.items()}
    tables = {label: table for label, table in given.items() if table is not None}
    earlier = [label for label in own if label not in tables]
    found = []
    for name in dict.fromkeys(name for one in facts.values() for name in one):
        values = {label: one.get(name, "not recorded") for label, one in facts.items()}
        groups = (
            [set(values.values())]
            if name in ALWAYS_RECORDED
            else [
                {value for label, value in values.items() if (label in tables) == recorded}
                for recorded in (True, False)
            ]
        )
        if any(len(group) > 1 for group in groups) and name != kind:
            found.append(f"{name[0].upper()}{name[1:]}: {_by_value(values)}.")
    if earlier and tables:
        found.append(f"Run by an earlier version, which recorded less to compare: {in_words(earlier)}.")
    fields = dict.fromkeys(name for table in tables.values() for name in table if name not in SHOWN_BY_THEMSELVES)
    differ = [name for name in fields if len({str(table.get(name)) for table in tables.values()}) > 1]
    for name in differ[:MOST_FIELDS]:
        found.append(
            f"{name}: {_by_value({label: str(table.get(name, 'default')) for label, table in tables.items()})}."
        )
    if len(differ) > MOST_FIELDS:
        found.append(f"{several(len(differ) - MOST_FIELDS, 'more field')} of the experiment.")
    return found


def _amounts(rows: Sequence[Row], own: Mapping[str, Sequence[Record]]) -> list[str]:
    """Joules, and participants with what kept the others out."""
    found = []
    if _apart([row.energy_j for row in rows]):
        found.append(f"Joules: {_by_value({row.label: quantity(row.energy_j, 'J') for row in rows})}.")
    if _apart([row.devices_per_round for row in rows]):
        told = []
        for row in rows:
            out = kept_out(own[row.label])
            told.append(f"{row.label} {row.devices_per_round:.3g}{f' (kept out: {out})' if out else ''}")
        found.append(f"Devices in a round: {', '.join(told)}.")
    return found


def kept_out(lines: Sequence[Record], name: str = "kept_out") -> str:
    """Return what kept devices out of a round, and how many, most first; empty where it was not counted.

    >>> kept_out([{"kept_out": {"band": 3.0, "energy": 12.5}}])
    '12.5 by energy, 3 by the band'
    """
    totals: dict[str, float] = {}
    for line in lines:
        for reason, count in (line.get(name) or {}).items():
            totals[reason] = totals.get(reason, 0.0) + count / len(lines)
    order = sorted(totals, key=lambda reason: -totals[reason])
    words = {
        "band": "the band",
        "deadline": "the deadline",
        "count": "the scheduler's count",
        "away": "being away or having sent all",
    }
    return ", ".join(f"{totals[reason]:.3g} by {words.get(reason, reason)}" for reason in order)


def _bits(own: Mapping[str, Sequence[Record]]) -> list[str]:
    """Uploads whose bits are counted by another rule than those of others."""
    sending = {label: lines[0] for label, lines in own.items() if any(line["bits_up"] for line in lines)}
    each = {label: f"{bits_per_value(line)}" for label, line in sending.items()}
    found = [f"Bits of one value on the air: {_by_value(each)}."] if len(set(each.values())) > 1 else []
    classes = {
        label: "of every class" if charged_for_every_class(line) else "of held classes"
        for label, line in sending.items()
        if hasattr(ALGORITHMS.get(line["algorithm"]), "held_rows")
    }
    if len(set(classes.values())) > 1:
        found.append(f"Class means are charged {_by_value(classes)}.")
    return found


def bits_per_value(line: Record) -> int:
    """Return the bits of one number of an upload: 32 where the algorithm has no setting for it."""
    settings = line.get("settings", {})
    return int(settings.get("bits_per_value") or settings.get("mean_bits") or 32)


def _apart(values: Sequence[float]) -> bool:
    return max(values) > (1 + APART) * min(values) + 1e-12


def _by_value(values: Mapping[str, str]) -> str:
    """Return each value with the labels that have it.

    >>> _by_value({"kfl": "4", "local": "32", "fedavg": "32"})
    '4 (kfl), 32 (local, fedavg)'
    """
    labels: dict[str, list[str]] = {}
    for label, value in values.items():
        labels.setdefault(value, []).append(label)
    return ", ".join(f"{value} ({', '.join(some)})" for value, some in labels.items())
