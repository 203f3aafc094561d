"""Claims as questions to the runs, and their verdicts: the rule of `verdict`, applied to two families of claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kfl.comparison.statistics import Difference, holm
from reproduction.results import IDENTICAL, NOT_RUN, Measure, Store, beyond, final, gap, identical, told
from reproduction.setting import Scale
from reproduction.verdict import LEVEL, Asks, Verdict, better, chance, equal, together, weakest


@dataclass(frozen=True)
class Question:
    """One comparison of two lines: is the first above the second, or equal to it?"""

    ours: str
    """Key of the first line."""
    theirs: str | None
    """Key of the second line; None compares with zero."""
    margin: float
    """What counts as equal."""
    label: str = field(default="", compare=False)
    measure: Measure = final
    asks: Asks = "above"
    by: float = field(default=0.0, compare=False)
    """How much better, where the paper says so."""
    digits: int = field(default=2, compare=False)


@dataclass(frozen=True)
class Finding:
    """What the runs say about a claim."""

    ours: str
    """What was measured, in words."""
    verdict: Verdict
    alone: Verdict
    """The verdict if every interval stood alone, without correction for their number."""
    seeds: int | None = None
    """Seeds behind the difference that has the fewest, 0 where a run is missing; None where seeds do not matter."""

    @staticmethod
    def counted(ours: str, holds: bool | None) -> Finding:
        """Of something that is counted; None where it holds for some only."""
        verdict: Verdict = "holds in part" if holds is None else "holds" if holds else "does not hold"
        return Finding(ours, verdict, verdict)


Fact = Callable[[Store, Scale], Finding]
"""What can be counted without a test."""
MISSING = Finding(NOT_RUN, "cannot be judged", "cannot be judged", 0)
"""No run is there yet."""


@dataclass(frozen=True)
class Claim:
    """One claim, where it stands, and what decides it: questions to the runs, or a fact that is counted."""

    where: str
    says: str
    paper: str
    """The paper's number, or its word."""
    command: str
    questions: tuple[Question, ...] = ()
    fact: Fact | None = None
    beside: tuple[Question, ...] = ()
    """Shown behind the answers, but not judged."""
    beside_when: str = ""
    """What those are measured at."""
    note: str = ""
    """What a reader must know about how it is measured."""
    against_best: bool = False
    """Whether the questions are one: is it above the best of these rivals?"""
    own: bool = False
    """Ours, not the paper's: another family, counted apart."""


def judge(claims: Sequence[Claim], store: Store, scale: Scale) -> list[Finding]:
    """A finding for each claim; the paper's own are one family of questions, ours another."""
    levels = {own: _levels((claim for claim in claims if claim.own == own), store, scale) for own in (False, True)}
    return [_finding(claim, levels[claim.own], store, scale) for claim in claims]


def questions(claims: Iterable[Claim], store: Store, scale: Scale) -> int:
    """How many questions the claims ask that the runs can answer; what Holm's correction is for."""
    return len(_levels(claims, store, scale))


def _levels(claims: Iterable[Claim], store: Store, scale: Scale) -> dict[Question, float]:
    """The level that each question of one family is granted."""
    asked = dict.fromkeys(question for claim in claims for question in claim.questions)
    chances = {}
    for question in asked:
        found = _answer(question, store, scale)
        if found is not None and not identical(store, scale, question.ours, question.theirs):
            chances[question] = chance(found, question.margin, question.asks)
    return holm(chances, LEVEL)


def _answer(question: Question, store: Store, scale: Scale) -> Difference | None:
    return gap(store, scale, question.ours, question.theirs, question.measure)


def _finding(claim: Claim, levels: Mapping[Question, float], store: Store, scale: Scale) -> Finding:
    if claim.fact is not None:
        found = claim.fact(store, scale)
    else:
        asked = claim.questions + claim.beside
        answers = {question: _answer(question, store, scale) for question in asked}
        words = {question: _words(question, answers[question], store, scale) for question in asked}
        told_of = "; ".join(words[question] for question in claim.questions)
        if claim.beside:
            told_of += f"; {claim.beside_when}: " + "; ".join(words[question] for question in claim.beside)

        def verdict(granted: Mapping[Question, float]) -> Verdict:
            each = [_verdict(q, answers[q], granted.get(q, LEVEL), store, scale) for q in claim.questions]
            return weakest(each) if claim.against_best else together(each)

        counts = [0 if (answer := answers[question]) is None else answer.count for question in claim.questions]
        found = Finding(told_of, verdict(levels), verdict({}), min(counts))
    found = replace(found, ours=found.ours + (f" ({claim.note})" if claim.note else ""))
    if scale.quick or found.seeds == 0:
        return replace(found, verdict="cannot be judged", alone="cannot be judged")
    return found


def _verdict(question: Question, found: Difference | None, level: float, store: Store, scale: Scale) -> Verdict:
    if identical(store, scale, question.ours, question.theirs):
        return "identical runs"
    if question.asks == "equal":
        return equal(found, question.margin, level)
    return better(found, question.margin, question.by, level)


def _words(question: Question, found: Difference | None, store: Store, scale: Scale) -> str:
    label = f"{question.label} " if question.label else ""
    if identical(store, scale, question.ours, question.theirs):
        return f"{label}{IDENTICAL}"
    size = beyond(found, question.by) if question.by else ""
    return f"{label}{told(found, question.digits)}{size}"
