"""The numbers of a figure as Markdown, and the table of claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from kfl.comparison.records import Record
from kfl.core.text import DASH, percent
from reproduction.judging import Claim, Finding, judge, questions
from reproduction.results import IDENTICAL, Store, between, early, final, gap, identical, told, used, worst_use
from reproduction.setting import Figure, Line, Scale
from reproduction.verdict import FEWEST_SEEDS, Verdict

COUNTED: dict[Verdict, str] = {
    "holds": "hold",
    "holds in part": "hold in part",
    "does not hold": "do not hold",
    "cannot be judged": "cannot be judged",
    "identical runs": "compare identical runs",
}
"""Verdicts as several claims have them."""

COUNTS_EXPLAINED = (
    "Never chosen, over budget: how many of the devices, fewest to most over the seeds. Worst device: the largest part "
    "of its own budget that any device used, over all seeds."
)


def figure_table(figure: Figure, store: Store, scale: Scale) -> str:
    """Means and standard deviations over seeds, one table per panel."""
    parts = [f"**{figure.title}**", ""]
    if scale.mark:
        parts += [f"**{scale.mark}**", ""]
    told_of = set[tuple[Line, ...]]()
    for panel in figure.panels:
        if panel.lines in told_of:  # the same runs over something else
            continue
        told_of.add(panel.lines)
        shown = [line for line in panel.lines if store.seeds(line, scale)]
        if shown:
            parts += [f"### {panel.title}", "", *_panel_table(shown, store, scale), ""]
    command = f"python -m reproduction figures {figure.name}{' --quick' * scale.quick}"
    parts.append(f"Mean ± standard deviation over seeds. Command: `{command}`")
    if any(line.experiment.cell_config is not None for line in figure.lines(scale)):
        parts.append(COUNTS_EXPLAINED)
    return "\n".join(parts) + "\n"


def _panel_table(lines: Sequence[Line], store: Store, scale: Scale) -> list[str]:
    reference = lines[0]
    head = ["", "seeds", "accuracy at the end, %", "first quarter, %", f"{reference.label} minus it [95 %], points"]
    costs = any(line.experiment.cell_config is not None for line in lines)
    if costs:
        head += ["energy, J", "of the budget", "of it uploading", "time, s", "uploaded, Mbit", "devices per round"]
        head += ["never chosen", "over budget", "worst device"]
    rows = [head, ["---"] * len(head)]
    for line in lines:
        found = store.seeds(line, scale)
        cells = [line.label, str(len(found)), _pm([final(row) for row in found.values()])]
        cells.append(_pm([early(row) for row in found.values()]))
        cells.append(_compared(reference, line, store, scale))
        if costs:
            cells += [
                f"{_mean([row['energy_j'] for row in found.values()]):.4g}",
                _pm([100 * used(row) for row in found.values()]) + " %",
                percent(_uploading(found.values()), 1),
                f"{_mean([row['time_s'] for row in found.values()]):.4g}",
                f"{_mean([row['bits_up'] for row in found.values()]) / 1e6:.4g}",
                f"{_mean([row['devices_per_round'] for row in found.values()]):.3g}",
                between(row["devices_never_chosen"] for row in found.values()),
                between(row["devices_over_budget"] for row in found.values()),
                worst_use(found.values()),
            ]
        rows.append(cells)
    return [f"| {' | '.join(cells)} |" for cells in rows]


def _compared(reference: Line, line: Line, store: Store, scale: Scale) -> str:
    if line is reference:
        return DASH
    if identical(store, scale, reference.key, line.key):
        return IDENTICAL
    return told(gap(store, scale, reference.key, line.key))


def claims_table(claims: Sequence[Claim], store: Store, scale: Scale) -> str:
    """The paper's claims and how many came out how, then our own questions in a table apart."""
    findings = judge(claims, store, scale)
    lines = [f"**{scale.mark}**", ""] if scale.mark else []
    for own in (False, True):
        family = [(claim, found) for claim, found in zip(claims, findings, strict=True) if claim.own == own]
        if not family:
            continue
        asked = questions((claim for claim, _ in family), store, scale)
        lines += [*_counts(family, asked, "Questions of our own" if own else "Claims of the paper"), ""]
        lines += ["| where | claim | paper | here: difference [95 %] over seeds | verdict | command |"]
        lines += ["| --- | --- | --- | --- | --- | --- |", *(_claim_row(*one, scale) for one in family), ""]
    return "\n".join(lines)


def _counts(family: Sequence[tuple[Claim, Finding]], asked: int, whose: str) -> list[str]:
    """How many claims came out how, with and without the correction for their number."""
    corrected = Counter(found.verdict for _, found in family)
    alone = Counter(found.alone for _, found in family)

    def told_of(count: Counter[Verdict]) -> str:
        return "; ".join(f"{count[verdict]} {words}" for verdict, words in COUNTED.items())

    return [
        f"{whose}, {len(family)}: {told_of(corrected)}.",
        f"With every interval for itself, without Holm's correction for {asked} questions: {told_of(alone)}.",
    ]


def _claim_row(claim: Claim, found: Finding, scale: Scale) -> str:
    verdict = f"**{found.verdict}**"
    if found.verdict == "cannot be judged":
        verdict += f": {why_not_judged(found, scale)}"
    if found.verdict != found.alone:
        verdict += f" (for itself: {found.alone})"
    commands = f"`{claim.command}{' --quick' * scale.quick}`"
    return f"| {claim.where} | {claim.says} | {claim.paper} | {found.ours} | {verdict} | {commands} |"


def _uploading(rows: Iterable[Record]) -> float:
    """Fraction of the energy that went into uploads; 0 where nothing was spent."""
    spent = [(row["upload_energy_j"], row["energy_j"]) for row in rows]
    return _mean([upload / energy if energy else 0.0 for upload, energy in spent])


def why_not_judged(found: Finding, scale: Scale) -> str:
    """Why a finding is no verdict, in a few words."""
    if found.seeds == 0:
        return "runs are missing"
    if scale.quick:
        return "a quick look"
    few = found.seeds is not None and found.seeds < FEWEST_SEEDS
    return f"fewer than {FEWEST_SEEDS} seeds" if few else "the interval allows both"


def _pm(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
