"""The table of a comparison, for the terminal and as Markdown, and what its numbers mean in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kfl.cli.number_list import in_short
from kfl.core.text import quantity
from kfl.simulation.compare import Row
from kfl.simulation.records import Record
from kfl.simulation.statistics import Difference, Spread

WIDE = 150
"""Characters of a line where nobody's terminal is: log files do not wrap."""


def columns(rows: Sequence[Row], records: Sequence[Record], reference: str) -> dict[str, list[str]]:
    """Cells by column, one per row."""
    rounds = max(line["rounds"] for line in records)
    found = {
        "algorithm": [row.algorithm for row in rows],
        "accuracy, %": [mean_and_deviation(row.accuracy) for row in rows],
        f"minus {reference}, points [95 %]": [
            difference(row.difference) if row.feasible else "not feasible" for row in rows
        ],
        "worst tenth, %": [mean_and_deviation(row.worst_tenth) for row in rows],
        "uploaded": [quantity(row.bits_up / 8, "B") for row in rows],
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
        return "–"
    if value.low is None or value.high is None:
        return _signed(value.mean)
    return f"{_signed(value.mean)} [{_signed(value.low)}, {_signed(value.high)}]"


def _signed(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "−")


def title_of(records: Sequence[Record]) -> str:
    """What was compared, in a line."""
    first, seeds = records[0], sorted({line["seed"] for line in records})
    few = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {in_short(seeds)}"
    tested = f" ({first['tested_devices']:,} tested)" if "tested_devices" in first else ""
    fleet = f"{first['devices']:,} devices{tested}"
    return f"{first['dataset']}: {fleet}, {first['rounds']} rounds, {first['scheduler']}, {few}"


def sentences(rows: Sequence[Row], records: Sequence[Record], reference: str) -> list[str]:
    """What the numbers are and what they say."""
    seeds = len({line["seed"] for line in records})
    said = [_how_to_read(seeds)]
    compared = {row.algorithm: row.difference for row in rows if row.difference is not None and row.feasible}
    above = [name for name, found in compared.items() if found.clear and found.mean > 0]
    below = [name for name, found in compared.items() if found.clear and found.mean < 0]
    open_ = [name for name, found in compared.items() if not found.clear]
    if seeds > 1:
        parts = [f"above {reference}: {', '.join(above)}"] if above else []
        parts += [f"below {reference}: {', '.join(below)}"] if below else []
        parts += [f"not told apart from {reference} by these seeds: {', '.join(open_)}"] if open_ else []
        if parts:
            joined = "; ".join(parts)
            said.append(f"{joined[0].upper()}{joined[1:]}.")
    said += [sentence for row in rows if (sentence := feasibility(row, records))]
    said += sorted({f"Note: {line['note']}" for line in records if line["note"]})
    return said


def _how_to_read(seeds: int) -> str:
    if seeds == 1:
        return "One seed, so no spread and no interval; --seeds 0..4 gives both."
    return (
        f"Mean ± standard deviation over {seeds} seeds; differences are paired by seed, with the 95 % interval of a "
        "paired t-test, each taken alone."
    )


def feasibility(row: Row, records: Sequence[Record]) -> str:
    """Whether an algorithm could run at all under the radio and the budgets; empty where it could."""
    rounds = max(line["rounds"] for line in records)
    devices = max(line["devices"] for line in records)
    if not row.feasible:
        return f"{row.algorithm} is not feasible here, its accuracy is that of untrained models. {row.why_nobody}"
    if row.rounds_with_nobody > 0:
        never = f" {row.devices_never_chosen:.3g} of {devices} devices never took part." * bool(
            row.devices_never_chosen
        )
        return (
            f"{row.algorithm}: nobody took part in {row.rounds_with_nobody:.3g} of {rounds} rounds on average.{never} "
            f"{row.why_nobody}"
        )
    return ""


def print_table(cells: dict[str, list[str]], title: str, said: Sequence[str]) -> None:
    """The table and the sentences on the terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, WIDE))
    whole = _table(cells, title)
    parts = [whole]
    if (
        Console(width=10 * WIDE).measure(whole).maximum > console.width
    ):  # a narrow terminal: first how good, then at which price
        names = list(cells)
        halves = (names[:4], [names[0], *names[4:]])
        parts = [_table({name: cells[name] for name in half}, title * (half is halves[0])) for half in halves]
    for part in parts:
        console.print()
        console.print(part)
    for sentence in said:
        console.print(sentence, soft_wrap=True, markup=False)


def _table(cells: dict[str, list[str]], title: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for number, name in enumerate(cells):
        table.add_column(
            _folded(name), justify="left" if number == 0 else "right", style="bold" if number == 0 else "", no_wrap=True
        )
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table


def _folded(header: str) -> str:
    """A long header over two lines."""
    if len(header) < 12:
        return header
    middle = min((at for at, letter in enumerate(header) if letter == " "), key=lambda at: abs(at - len(header) / 2))
    return f"{header[:middle]}\n{header[middle + 1 :]}"


def markdown(cells: dict[str, list[str]], title: str, said: Sequence[str], command: str) -> str:
    """The same as a page."""
    lines = [f"# {title}", "", f"| {' | '.join(cells)} |", f"| --- |{' ---: |' * (len(cells) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in zip(*cells.values(), strict=True)]
    lines += ["", *(f"{sentence}\n" for sentence in said), "```", command, "```"]
    return "\n".join(lines) + "\n"
