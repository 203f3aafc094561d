"""The answers in words: one table for each condition and what it says, and one of all gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kfl.comparison.statistics import Difference, Spread
from kfl.core.names import markdown_table
from kfl.core.text import DASH, percent
from kfl.sharing.answer import REFERENCE, Answer, Standing


def columns(answer: Answer) -> dict[str, list[str]]:
    """Cells by column, one per row: first the methods by accuracy, then the twins."""
    rows = ordered(answer)
    found = {
        "method": [one.label for one in rows],
        "accuracy, %": [_spread(one.accuracy) for one in rows],
        "minus best twin, points [95 %]": [_gain(one, answer) for one in rows],
        "shares?": [_verdict(one) for one in rows],
        "kbit up": [_kilobits(one.bits_up, one.held_bits_up) for one in rows],
        "kbit down": [_kilobits(one.bits_down) for one in rows],
    }
    if any(one.label == REFERENCE for one in rows):
        found["KFL's accuracy after"] = [_part(one.rounds_to_reference) for one in rows]
        if any(one.joules_to_reference is not None for one in rows):
            found["joules up to then"] = [_part(one.joules_to_reference) for one in rows]
    if len({round(one.devices_per_round, 2) for one in rows}) > 1:
        found["devices per round"] = [f"{one.devices_per_round:.3g}" for one in rows]
    return found


def ordered(answer: Answer) -> list[Standing]:
    """Methods by accuracy, then twins by accuracy."""
    return sorted(answer.standings, key=lambda one: (one.twin, -one.accuracy.mean))


def sentences(answer: Answer, questions: int, unfit: Mapping[str, str], *, searched: bool) -> list[str]:
    """What the table says, and how to read it."""
    methods = [one for one in ordered(answer) if not one.twin]
    adding = [one.label for one in methods if one.shares]
    below = [one.label for one in methods if one.gain is not None and (one.gain.high or 0.0) < 0]
    perhaps = [one.label for one in methods if one.may_share]
    rest = [one.label for one in methods if one.label not in adding + perhaps + below]
    notes = [f"The best twin, which uploads nothing, is {answer.best_twin}."]
    if len(answer.seeds) < 2:
        notes.append("One seed, so no interval and no verdict; --seeds 0..4 gives both.")
    else:
        told = [f"what {_and(adding)} upload{'s' * (len(adding) == 1)} adds something"] if adding else []
        told += [f"{_and(perhaps)} {_verb(perhaps, 'is')} above it, but not after the correction"] if perhaps else []
        told += [f"{_and(rest)} cannot be told from it"] if rest else []
        told += [f"{_and(below)} {_verb(below, 'ends')} below it"] if below else []
        notes.append(_sentence("; ".join(told)))
        notes.append(
            f"Mean ± standard deviation over {len(answer.seeds)} seeds; differences are paired by seed, with the 95 % "
            f"interval of a paired t-test; yes means above zero after Holm's correction for {questions} questions, "
            "perhaps that only its own interval is."
        )
    fewer = [f"{one.label} ({one.accuracy.count})" for one in ordered(answer) if one.accuracy.count < len(answer.seeds)]
    if fewer:
        notes.append(f"With fewer seeds, because a run diverged or is not finished: {_and(fewer)}.")
    notes.append("Bits are those of one device in one round it takes part in.")
    if any(one.held_bits_up is not None for one in methods):
        notes.append("Class means are charged for every class, as in the paper; in brackets for held ones and a mask.")
    if not searched:
        notes.append(
            "Nobody is tuned: the same steps and learning rate for all, and each method's own defaults; --search gives "
            "each the same search on other seeds first."
        )
    notes += [f"Left out: {label}. {why}" for label, why in unfit.items()]
    return notes


def page(
    answers: Sequence[Answer], unfit: Mapping[str, str], command: str, *, searched: bool, heading: str = "###"
) -> str:
    """All answers as Markdown."""
    questions = count_questions(answers)
    lines: list[str] = []
    if len(answers) > 1:
        lines += [f"{heading} {OVERVIEW}", "", *markdown_table(overview(answers)), "", f"{MARKS}\n"]
    for answer in answers:
        lines += [f"{heading} {answer.condition.title}", "", *markdown_table(columns(answer))]
        lines += ["", *(f"{note}\n" for note in sentences(answer, questions, unfit, searched=searched))]
    return "\n".join([*lines, "```", command, "```", ""])


OVERVIEW = "Points over the best twin"
MARKS = "✓: above zero after Holm's correction for all questions; (✓): its own 95 % interval is; n: with n seeds only."


def overview(answers: Sequence[Answer]) -> dict[str, list[str]]:
    """A row for each condition: its best twin, and the gain of every method, on average best first."""
    labels = list(dict.fromkeys(one.label for answer in answers for one in answer.standings if not one.twin))
    gains: dict[str, list[float]] = {label: [] for label in labels}
    for one in (one for answer in answers for one in answer.standings if one.gain is not None and not one.twin):
        gains[one.label].append(one.gain.mean if one.gain is not None else 0.0)
    labels.sort(key=lambda label: -sum(gains[label]) / max(len(gains[label]), 1))
    cells: dict[str, list[str]] = {
        "condition": [answer.condition.title for answer in answers],
        "best twin, %": [_best(answer) for answer in answers],
    }
    for label in labels:
        standings = [{one.label: one for one in answer.standings}.get(label) for answer in answers]
        cells[label] = [_mark(one, len(answer.seeds)) for one, answer in zip(standings, answers, strict=True)]
    return cells


def _best(answer: Answer) -> str:
    return f"{100 * answer[answer.best_twin].accuracy.mean:.2f} {answer.best_twin}"


def _mark(one: Standing | None, seeds: int) -> str:
    """A gain with what is known of it."""
    if one is None or one.gain is None:
        return DASH
    mark = " ✓" if one.shares else " (✓)" if one.may_share else ""
    fewer = f", {one.accuracy.count}" if one.accuracy.count < seeds else ""
    return f"{100 * one.gain.mean:+.2f}{mark}{fewer}".replace("-", "−")


def count_questions(answers: Sequence[Answer]) -> int:
    """How many intervals are read together."""
    return sum(not one.twin and one.gain is not None for answer in answers for one in answer.standings)


def _spread(value: Spread) -> str:
    deviation = "" if value.deviation is None else f" ± {100 * value.deviation:.2f}"
    return f"{100 * value.mean:.2f}{deviation}"


def _gain(one: Standing, answer: Answer) -> str:
    if one.label == answer.best_twin:
        return "best twin"
    return _difference(one.gain)


def _difference(value: Difference | None) -> str:
    if value is None:
        return DASH
    text = f"{100 * value.mean:+.2f}"
    if value.low is not None and value.high is not None:
        text += f" [{100 * value.low:+.2f}, {100 * value.high:+.2f}]"
    return text.replace("-", "−")


def _verdict(one: Standing) -> str:
    if one.twin:
        return "twin"
    if one.gain is None or one.gain.low is None:
        return DASH
    return "yes" if one.shares else "perhaps" if one.may_share else "no"


def _kilobits(bits: float, held: float | None = None) -> str:
    text = "0" if bits == 0 else f"{bits / 1000:.3g}" if bits < 1e5 else f"{bits / 1000:,.0f}"
    return text if held is None else f"{text} ({held / 1000:.3g})"


def _part(value: float | None) -> str:
    return DASH if value is None else percent(value, 0)


def _and(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _verb(labels: Sequence[str], singular: str) -> str:
    return singular if len(labels) == 1 else {"is": "are", "ends": "end"}[singular]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else "No method was run."
