"""Display of `python -m reproduction claims`: a table in sections, how each came out, and a count; or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kfl.cli.display import WIDE
from kfl.core.errors import ConfigError
from kfl.core.terminal import plain_console, tell_json
from reproduction.judging import Claim, Finding
from reproduction.setting import Scale
from reproduction.tables import COUNTED, why_not_judged

STYLES = {"holds": "green", "holds in part": "yellow", "does not hold": "red"}


@dataclass(frozen=True)
class Judged:
    """One claim and how it came out."""

    where: str
    claim: str
    paper: str
    """The paper's number, or its word."""
    here: str
    """What was measured."""
    verdict: str
    alone: str
    """The verdict without the correction for the number of questions."""
    why_not: str
    """Why it cannot be judged; empty where it can."""
    command: str
    own: bool
    """Whether it is our question and not the paper's claim."""


def judged(claims: Sequence[Claim], findings: Sequence[Finding], scale: Scale, only: str = "") -> list[Judged]:
    """The claims that have all words of `only` in their place, text, command or verdict, in their order."""
    every = [
        Judged(
            where=claim.where,
            claim=claim.says,
            paper=claim.paper,
            here=found.ours,
            verdict=found.verdict,
            alone=found.alone,
            why_not=why_not_judged(found, scale) if found.verdict == "cannot be judged" else "",
            command=claim.command + " --quick" * scale.quick,
            own=claim.own,
        )
        for claim, found in zip(claims, findings, strict=True)
    ]
    words = only.casefold().split()
    chosen = [one for one in every if all(word in _searched(one) for word in words)]
    if not chosen:
        places = "; ".join(dict.fromkeys(one.where for one in every))
        raise ConfigError("only", only, f"words that a claim has, such as fig2a, 'does not hold', or a place: {places}")
    return chosen


def _searched(one: Judged) -> str:
    return f"{one.where} {one.claim} {one.verdict} {one.command}".casefold()


def print_claims(rows: Sequence[Judged]) -> None:
    """The table in sections by place, then how many came out how."""
    shown = plain_console()
    if not shown.is_terminal:
        shown = plain_console(width=max(shown.width, WIDE))
    ordered = sorted(rows, key=lambda one: one.own)  # the paper's first; the order within stays
    for (own, where), members in groupby(ordered, key=lambda one: (one.own, one.where)):
        table = Table(box=SIMPLE_HEAD, title=f"{where}{' (our questions)' * own}", title_justify="left", pad_edge=False)
        table.expand = True  # so that the columns of all sections stand below each other
        table.add_column("claim", ratio=5)
        table.add_column("paper", ratio=2)
        table.add_column("here", ratio=4)
        table.add_column("verdict", ratio=2)
        for one in members:
            verdict = Text(one.verdict, style=STYLES.get(one.verdict, "dim"))
            if one.why_not:
                verdict.append(f": {one.why_not}")
            elif one.verdict != one.alone:
                verdict.append(f" (for itself: {one.alone})")
            table.add_row(Text(one.claim), Text(one.paper), Text(one.here), verdict)
        shown.print(table)
    for own, whose in ((False, "Claims of the paper"), (True, "Questions of our own")):
        count = Counter(one.verdict for one in rows if one.own == own)
        if count:
            told = ", ".join(f"{count[verdict]} {words}" for verdict, words in COUNTED.items() if count[verdict])
            shown.print(f"{whose}, {sum(count.values())}: {told}.", soft_wrap=True)


def print_json(rows: Sequence[Judged]) -> None:
    """The claims for programs."""
    tell_json(json.dumps([asdict(one) for one in rows], indent=2, ensure_ascii=False))
