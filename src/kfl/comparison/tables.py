"""Tables of a comparison and sentences that say how to read them and what they say."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kfl.comparison.fairness import kept_out
from kfl.comparison.records import Record, label_of
from kfl.comparison.rows import Row
from kfl.comparison.search import Outcome, at_the_edge
from kfl.comparison.statistics import Difference
from kfl.core.names import fenced, for_markdown, for_terminal, markdown_table
from kfl.core.text import DASH, bit_count, in_short, percent, quantity, several
from kfl.scheduling.status import describe

Cells = dict[str, list[str]]


@dataclass(frozen=True)
class Table:
    """Cells by column, one per row, with a title and what to know next to them."""

    title: str
    cells: Cells
    notes: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    """What stands above the cells: what was equal in all rows, and what was not."""

    def __str__(self) -> str:
        """As text, for a terminal of any width."""
        cells = {for_terminal(name): [*map(for_terminal, column)] for name, column in self.cells.items()}
        widths = [max(map(len, [name, *column])) for name, column in cells.items()]
        lines = [list(cells), *map(list, zip(*cells.values(), strict=True))]
        shown = [
            "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs))
            for pairs in (list(zip(line, widths, strict=True)) for line in lines)
        ]
        head = ["", *map(for_terminal, self.head)] if self.head else []
        notes = map(for_terminal, self.notes)
        return "\n".join([for_terminal(self.title), *head, "", *map(str.rstrip, shown), "", *notes])

    def markdown(self, command: str | None = None, heading: str = "#") -> str:
        """As a page or a part of one, with the command that makes it below."""
        lines = [f"{heading} {for_markdown(self.title)}", ""]
        lines += [f"- {for_markdown(sentence)}" for sentence in self.head] + [""] * bool(self.head)
        lines += [*markdown_table(self.cells), ""]
        lines += [f"{for_markdown(sentence)}\n" for sentence in self.notes]
        return "\n".join([*lines, *([] if command is None else [*fenced(command), ""])])

    def csv(self) -> str:
        """As CSV; what stands above and below the cells are lines that begin with #."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.cells)
        writer.writerows(zip(*self.cells.values(), strict=True))
        above, below = ([f"# {for_terminal(one)}\n" for one in some] for some in ([self.title, *self.head], self.notes))
        return "".join([*above, text.getvalue(), *below])


# A comparison of anything with a reference.


def columns(rows: Sequence[Row], records: Sequence[Record], reference: str) -> Cells:
    """Cells by column, one per row."""
    rounds = max(line["rounds"] for line in records)
    found = {
        heading(records): [row.label for row in rows],
        "accuracy, %": [row.accuracy_text() for row in rows],
        f"minus {reference}, points [95 %]": [
            difference(row.difference) if row.feasible else "not feasible" for row in rows
        ],
        "worst tenth, %": [row.worst_tenth.text() for row in rows],
        "uploaded": [bit_count(row.bits_up) for row in rows],
    }
    if any(line["radio"] for line in records):
        found["energy"] = [quantity(row.energy_j, "J") for row in rows]
        found["time"] = [quantity(row.time_s, "s") for row in rows]
    if any(row.devices_over_budget for row in rows):
        found["devices over budget"] = [f"{row.devices_over_budget:.3g}" for row in rows]
    found["devices per round"] = [f"{row.devices_per_round:.3g}" for row in rows]
    if any(row.rounds_with_nobody for row in rows) or any(line["hard_budget"] for line in records):
        found["rounds without devices"] = [f"{row.rounds_with_nobody:.3g} of {rounds}" for row in rows]
    return found


def heading(records: Sequence[Record]) -> str:
    """What the labels are: algorithms, schedulers, or entries of any kind."""
    for kind in ("algorithm", "scheduler"):
        if all(label_of(line) == line[kind] for line in records):
            return kind
    return "entry"


def difference(value: Difference | None) -> str:
    """In points, with its interval; a dash for none."""
    return DASH if value is None else value.text()


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
    compared = {
        row.label: row.difference for row in rows if row.difference is not None and row.feasible and not row.diverged
    }
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
        found = f"{row.label}: no device took part in {row.rounds_with_nobody:.3g} of {rounds} rounds on average."
        if row.devices_never_chosen:
            found += f" {row.devices_never_chosen:.3g} of {devices} devices never took part."
        out = kept_out([line for line in records if label_of(line) == row.label], "nobody_kept_out")
        return f"{found} In those rounds devices were kept out: {out}." if out else found + why
    return ""


# A comparison with twins that upload nothing.

OVERVIEW = "Points over the best twin"
OWN_OVERVIEW = "Points over a method's own twin"
MARKS = "✓: above zero after Holm's correction for all questions; (✓): its own 95 % interval is; n: with n seeds only."


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Methods by accuracy, then twins by accuracy."""
    return sorted(rows, key=lambda row: (row.twin, -row.accuracy.mean))


def goal_of(rows: Sequence[Row]) -> str | None:
    """The label that others are timed to: KFL, or else the first that uploads something."""
    labels = [row.label for row in rows if not row.twin]
    return "kfl" if "kfl" in labels else next(iter(labels), None)


def twin_columns(rows: Sequence[Row]) -> Cells:
    """Cells by column: first the methods by accuracy, then the twins."""
    shown, goal = ordered(rows), goal_of(rows)
    found = {
        "method": [row.label for row in shown],
        "accuracy, %": [row.accuracy_text() for row in shown],
        "minus its own twin, points [95 %]": [
            DASH if row.twin or not row.own_twin else f"{difference(row.own_difference)}, {row.own_twin}"
            for row in shown
        ],
        "uploads add?": [row.verdict(own=True) or DASH for row in shown],
        "minus best twin, points [95 %]": [
            "best twin" if row.label == row.reference else difference(row.difference) for row in shown
        ],
        "worth having?": [row.verdict() or DASH for row in shown],
        "kbit up": [_kilobits(row.bits_up_each, row.held_bits_up_each) for row in shown],
        "kbit down": [_kilobits(row.bits_down_each) for row in shown],
    }
    if goal is not None:
        found[f"{'KFL' if goal == 'kfl' else goal}'s accuracy after"] = [_part(row.goal_rounds) for row in shown]
        if any(row.goal_joules is not None for row in shown):
            found["joules up to then"] = [_part(row.goal_joules) for row in shown]
    if len({round(row.devices_per_round, 2) for row in shown}) > 1:
        found["devices per round"] = [f"{row.devices_per_round:.3g}" for row in shown]
    return found


def twin_sentences(
    rows: Sequence[Row], seeds: int, questions: int, unfit: Mapping[str, str], *, searched: bool
) -> list[str]:
    """What the table says, and how to read it."""
    shown = ordered(rows)
    methods = [row for row in shown if not row.twin and not row.diverged]
    notes = [f"The best twin, which uploads nothing, is {rows[0].reference}."]
    if seeds < 2:
        notes.append("One seed, so no interval and no verdict; --seeds 0..4 gives both.")
    else:
        notes += [
            _verdicts("Do the uploads of others add something, against a method's own twin?", methods, own=True),
            _verdicts("Is it worth having, against the best twin?", methods, own=False),
            f"Mean ± standard deviation over {seeds} seeds; differences are paired by seed, with the 95 % "
            f"interval of a paired t-test; yes means above zero after Holm's correction for {questions} questions of "
            "the column, perhaps that only its own interval is.",
        ]
    notes.append("Bits are those of one device in one round it takes part in.")
    if any(row.held_bits_up_each is not None for row in methods):
        notes.append("Class means are charged for every class, as in the paper; in brackets for held ones and a mask.")
    if not searched:
        notes.append(
            "Nothing is tuned: equal steps and learning rates, each method's own defaults; --search gives "
            "each the same search on other seeds first."
        )
    notes += [f"Left out: {label}. {why}" for label, why in unfit.items()]
    return notes


def count_questions(rows: Sequence[Row]) -> int:
    """How many intervals are read together; one seed has none."""
    return sum(row.verdict() not in ("", "twin") for row in rows)


def overview(conditions: Mapping[str, Sequence[Row]], seeds: Mapping[str, int], *, own: bool = False) -> Cells:
    """A row for each condition: its best twin, and the gain of every method, on average best first.

    The gain is over the best twin, or over a method's own.
    """
    labels = list(dict.fromkeys(row.label for rows in conditions.values() for row in rows if not row.twin))
    gains: dict[str, list[float]] = {label: [] for label in labels}
    for row in (row for rows in conditions.values() for row in rows if not row.twin):
        if (gain := row.own_difference if own else row.difference) is not None:
            gains[row.label].append(gain.mean)
    labels.sort(key=lambda label: -sum(gains[label]) / max(len(gains[label]), 1))
    cells: Cells = {"condition": list(conditions)}
    if not own:
        cells["best twin, %"] = [_best(rows) for rows in conditions.values()]
    for label in labels:
        found = [next((row for row in rows if row.label == label), None) for rows in conditions.values()]
        cells[label] = [_mark(row, seeds[name], own=own) for row, name in zip(found, conditions, strict=True)]
    return cells


def _best(rows: Sequence[Row]) -> str:
    best = next(row for row in rows if row.label == row.reference)
    return f"{100 * best.accuracy.mean:.2f} {best.label}"


def _mark(row: Row | None, seeds: int, *, own: bool) -> str:
    """A gain with what is known of it."""
    gain = None if row is None else row.own_difference if own else row.difference
    if row is None or gain is None:
        return DASH
    mark = {"yes": " ✓", "perhaps": " (✓)"}.get(row.verdict(own=own), "")
    fewer = f", {row.accuracy.count}" if row.accuracy.count < seeds else ""
    fewer += f", {len(row.collapsed)} collapsed" if row.collapsed else ""
    return f"{100 * gain.mean:+.2f}{mark}{fewer}".replace("-", "−")


def _verdicts(question: str, methods: Sequence[Row], *, own: bool) -> str:
    """A question with the methods by its answer."""
    words = {"yes": "yes", "perhaps": "perhaps, as only the interval before the correction is above zero", "no": "no"}
    below = [row.label for row in methods if _is_below(row.own_difference if own else row.difference)]
    told = []
    for verdict, word in words.items():
        there = [row.label for row in methods if row.verdict(own=own) == verdict and row.label not in below]
        told += [f"{word}: {', '.join(there)}"] if there else []
    told += [f"no, it is below: {', '.join(below)}"] if below else []
    answer = "; ".join(told) or "nothing can be said"
    return f"{question} {answer[0].upper()}{answer[1:]}."


def _is_below(found: Difference | None) -> bool:
    return found is not None and found.high is not None and found.high < 0


def _kilobits(bits: float, held: float | None = None) -> str:
    text = "0" if bits == 0 else f"{bits / 1000:.3g}" if bits < 1e5 else f"{bits / 1000:,.0f}"
    return text if held is None else f"{text} ({held / 1000:.3g})"


def _part(value: float | None) -> str:
    return DASH if value is None else percent(value, 0)


# A search.


def search_table(
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]], best: Mapping[tuple[str, str], Outcome], seeds: Sequence[int]
) -> Table:
    """What a search found, next to the settings it started from."""
    names = [", ".join(part for part in key if part) for key in best]
    before = [next((one for one in outcomes[key] if one.trial.is_start), None) for key in best]
    cells = {
        "algorithm": names,
        "best setting": [outcome.trial.name for outcome in best.values()],
        "accuracy, %": [outcome.accuracy.text() for outcome in best.values()],
        "as it was, %": [DASH if one is None else one.accuracy.text() for one in before],
        "trials": [str(len(outcomes[key])) for key in best],
    }
    notes = [f"Mean ± standard deviation over development seeds {in_short(seeds)}; report other seeds."]
    edges = [
        (name, at_the_edge(outcome, outcomes[key])) for name, (key, outcome) in zip(names, best.items(), strict=True)
    ]
    narrow = [f"{where} of {name}" for name, where in edges if where is not None]
    if narrow:
        notes.append(f"Best at the edge of what was tried, so a wider search may find better: {', '.join(narrow)}.")
    return Table("Best of the same search for every entry", cells, notes)
