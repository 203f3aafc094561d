"""The table of a comparison, its title, and sentences that say how to read it and what it says."""

from __future__ import annotations

from collections.abc import Sequence

from kfl.comparison.entries import Row
from kfl.comparison.records import Record, label_of
from kfl.comparison.statistics import Difference, Spread
from kfl.core.text import DASH, bit_count, in_short, quantity, several
from kfl.scheduling import describe


def columns(rows: Sequence[Row], records: Sequence[Record], reference: str) -> dict[str, list[str]]:
    """Cells by column, one per row."""
    rounds = max(line["rounds"] for line in records)
    found = {
        heading(records): [row.label for row in rows],
        "accuracy, %": [mean_and_deviation(row.accuracy) for row in rows],
        f"minus {reference}, points [95 %]": [
            difference(row.difference) if row.feasible else "not feasible" for row in rows
        ],
        "worst tenth, %": [mean_and_deviation(row.worst_tenth) for row in rows],
        "uploaded": [bit_count(row.bits_up) for row in rows],
    }
    if any(line["radio"] for line in records):
        found["energy"] = [quantity(row.energy_j, "J") for row in rows]
        found["time"] = [quantity(row.time_s, "s") for row in rows]
    if any(row.devices_over_budget for row in rows):
        found["devices over budget"] = [f"{row.devices_over_budget:.3g}" for row in rows]
    found["devices per round"] = [f"{row.devices_per_round:.3g}" for row in rows]
    if any(row.rounds_with_nobody for row in rows) or any(line["hard_budget"] for line in records):
        found["rounds with nobody"] = [f"{row.rounds_with_nobody:.3g} of {rounds}" for row in rows]
    return found


def heading(records: Sequence[Record]) -> str:
    """What the labels are: algorithms, schedulers, or entries of any kind."""
    for kind in ("algorithm", "scheduler"):
        if all(label_of(line) == line[kind] for line in records):
            return kind
    return "entry"


def mean_and_deviation(value: Spread) -> str:
    """In per cent.

    >>> mean_and_deviation(Spread(0.98312, 0.0021, 5)), mean_and_deviation(Spread(0.5, None, 1))
    ('98.31 ± 0.21', '50.00')
    """
    spread = "" if value.deviation is None else f" ± {100 * value.deviation:.2f}"
    return f"{100 * value.mean:.2f}{spread}"


def difference(value: Difference | None) -> str:
    """In points, with its interval.

    >>> difference(Difference(0.01, -0.002, 0.022, 5)), difference(None)
    ('+1.00 [−0.20, +2.20]', '–')
    """
    if value is None:
        return DASH
    if value.low is None or value.high is None:
        return _signed(value.mean)
    return f"{_signed(value.mean)} [{_signed(value.low)}, {_signed(value.high)}]"


def _signed(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "−")


def title_of(records: Sequence[Record]) -> str:
    """What was compared, in a line: what all entries have in common.

    >>> same = {"dataset": "mnist", "devices": 20, "rounds": 5, "algorithm": "kfl"}
    >>> title_of([{**same, "scheduler": name, "label": name, "seed": 0} for name in ("dual", "uniform")])
    'mnist: 20 devices, 5 rounds, kfl, seed 0'
    """
    first, seeds = records[0], sorted({line["seed"] for line in records})
    same = {name for name in first if all(line.get(name) == first[name] for line in records)}
    words = []
    if "devices" in same:
        tested = f" ({first['tested_devices']:,} tested)" if "tested_devices" in same else ""
        words.append(f"{first['devices']:,} devices{tested}")
    if "rounds" in same:
        words.append(several(first["rounds"], "round"))
    if "algorithm" in same and heading(records) != "algorithm":
        words.append(first["algorithm"])
    if "scheduler" in same and heading(records) != "scheduler":
        words.append(first["scheduler"])
    words.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {in_short(seeds)}")
    return f"{first['dataset'] if 'dataset' in same else 'several datasets'}: {', '.join(words)}"


def sentences(rows: Sequence[Row], records: Sequence[Record], reference: str) -> list[str]:
    """What the numbers are and what they say."""
    seeds = len({line["seed"] for line in records})
    notes = [_how_to_read(seeds)]
    compared = {row.label: row.difference for row in rows if row.difference is not None and row.feasible}
    groups = {
        f"above {reference}": [name for name, found in compared.items() if found.clear and found.mean > 0],
        f"below {reference}": [name for name, found in compared.items() if found.clear and found.mean < 0],
        f"the same as {reference} in every run": [name for name, found in compared.items() if _equal(found)],
        f"not told apart from {reference} by these seeds": [
            name for name, found in compared.items() if not found.clear and not _equal(found)
        ],
    }
    if seeds > 1 and compared:
        joined = "; ".join(f"{words}: {', '.join(names)}" for words, names in groups.items() if names)
        notes.append(f"{joined[0].upper()}{joined[1:]}.")
    notes += [sentence for row in rows if (sentence := feasibility(row, records))]
    notes += sorted({f"Note: {line['note']}" for line in records if line["note"]})
    return notes


def _equal(found: Difference) -> bool:
    """Whether no seed told the two apart at all."""
    return found.mean == found.low == found.high == 0


def _how_to_read(seeds: int) -> str:
    if seeds == 1:
        return "One seed, so no spread and no interval; --seeds 0..4 gives both."
    return (
        f"Mean ± standard deviation over {seeds} seeds; differences are paired by seed, with the 95 % interval of a "
        "paired t-test, each taken alone."
    )


def feasibility(row: Row, records: Sequence[Record]) -> str:
    """Whether an entry could run at all under the radio and the budgets; empty where it could."""
    rounds = max(line["rounds"] for line in records)
    devices = max(line["devices"] for line in records)
    why = "" if row.why_nobody is None else f" {describe(row.why_nobody)}"
    if not row.feasible:
        return f"{row.label} is not feasible here, its accuracy is that of untrained models.{why}"
    if row.rounds_with_nobody > 0:
        found = f"{row.label}: nobody took part in {row.rounds_with_nobody:.3g} of {rounds} rounds on average."
        if row.devices_never_chosen:
            found += f" {row.devices_never_chosen:.3g} of {devices} devices never took part."
        return found + why
    return ""
