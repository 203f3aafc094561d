"""The help of a command: the options that are used most, or all of them by group, then examples."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from kfl.cli.flags import Flag
from kfl.cli.values import optional_kind, shown

WIDEST, INDENT, GAP = 100, 2, 2
LONGEST_NAME = 26
"""Characters of an option above which its text begins on the next line."""

GROUPS = {
    "Entries": "algorithms schedulers vary entry entries twins settings equal-models reference",
    "Search": "search search-only search-schedulers search-seeds rates allow-report-seeds",
    "Data": "dataset data-dir split classes-per-device distinct-classes dirichlet-alpha samples-per-device "
    "tested-devices new-class-samples",
    "Networks": "model widths encoder",
    "Devices and energy": "devices hard-budget real-work radio radio.fading radio.mobility radio.harvest gain-trace "
    "harvest-trace availability-trace availability-repeat-s",
    "Run": "algorithm scheduler rounds seed seeds evaluate-every config",
    "Execution": "device precision deterministic workers ray shard quiet",
    "Output": "out x from keep-models keep-runs no-models track no-baseline json save next plot open live port",
}
"""Titles of groups with their options; others with a prefix form a group of their own."""
PREFIXES = {
    "algorithm": "Algorithm (of --algorithm)",
    "scheduler": "Scheduler (of --scheduler)",
    "radio": "Cell (of --radio)",
    "faults": "Faults",
}


def help_of(
    prog: str,
    description: str,
    flags: Sequence[Flag],
    examples: str = "",
    only: Sequence[str] = (),
    *,
    listed: Sequence[str] = (),
) -> str:
    """Return the help of a command.

    Args:
        prog: The command, such as `kfl run`.
        description: What it does.
        flags: All its options and arguments.
        examples: Commands, a line each, for the end.
        only: Names of the options to show, in this order; empty for all.
        listed: Names of the options that lead where all are shown.

    Returns:
        The text, wrapped to the terminal.
    """
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    arguments = [flag for flag in flags if flag.positional]
    options = {flag.name.lstrip("-"): flag for flag in flags if not flag.positional}
    words = "".join(f" {flag.name}" if flag.value is MISSING else f" [{flag.name}]" for flag in arguments)
    lines = [f"usage: {prog}{words} [OPTIONS]", "", *_paragraphs(description, width)]
    if arguments:
        lines += ["", "Arguments:", *_entries([(flag.name, flag.text) for flag in arguments], width)]
    groups = {"Most used": [name for name in only or listed if name in options]}
    if not only:
        seen = set(groups["Most used"])
        for name in options:
            if name not in seen:
                groups.setdefault(_group_of(name) if listed else "Options", []).append(name)
    order = ["Most used", *GROUPS, *PREFIXES.values(), "Options"]
    for title in sorted(groups, key=order.index):
        pairs = [(_left(options[name]), _right(options[name])) for name in groups[title]]
        if pairs:
            lines += ["", f"{title}:", *_entries(pairs, width)]
    rest = len(options) - len(groups["Most used"])
    if only and rest:
        lines += ["", f"{rest} more options: {prog} --help-all"]
    if examples:
        lines += ["", "Examples:", *(f"{' ' * INDENT}{line}" for line in examples.strip().splitlines())]
    return "\n".join(lines) + "\n"


def _group_of(name: str) -> str:
    """Return the title of the group of an option."""
    for title, names in GROUPS.items():
        if name in names.split():
            return title
    return PREFIXES.get(name.partition(".")[0], "Options")


def _left(flag: Flag) -> str:
    """Return an option as it is typed, with what its value is."""
    short = "-q, " if flag.name == "--quiet" else ""
    value = flag.metavar or metavar_of(flag.hint)
    return f"{short}{flag.name} {value}".rstrip()


def metavar_of(hint: Any) -> str:
    """Return what stands for a value of a type in help.

    >>> from typing import Literal
    >>> metavar_of(int | None), metavar_of(Literal["a", "b"]), metavar_of(tuple[float, ...]), metavar_of(bool)
    ('N|none', 'a|b', 'X …', '')
    """
    kind, optional = optional_kind(hint)
    if kind is bool:
        return "yes|no" if optional else ""
    if get_origin(kind) is Literal:
        name = "|".join(map(str, get_args(kind)))
    elif get_origin(kind) is tuple:
        name = f"{metavar_of(get_args(kind)[0])} …"
    else:
        name = {int: "N", float: "X", Path: "FILE"}.get(kind, "TEXT")
    return f"{name}|none" if optional else name


def _right(flag: Flag) -> str:
    """Return the help of an option with its default, and how to turn a switch off that is on."""
    if flag.value is MISSING:
        return f"{flag.text} (required)"
    if flag.value is None or flag.value == () or "Default:" in flag.text:
        return flag.text
    if isinstance(flag.value, bool):
        return f"{flag.text} (default: yes; {flag.opposite})" if flag.value else flag.text
    value = " ".join(map(shown, flag.value)) if isinstance(flag.value, tuple) else shown(flag.value)
    return f"{flag.text} (default: {value})"


def _entries(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Return options in two columns."""
    pairs = list(pairs)
    column = INDENT + GAP + max(len(left) for left, _ in pairs if len(left) <= LONGEST_NAME or len(pairs) == 1)
    lines: list[str] = []
    for left, right in pairs:
        text = textwrap.wrap(right, max(width - column, 30), break_long_words=False, break_on_hyphens=False) or [""]
        head = " " * INDENT + left
        if len(head) + GAP > column:
            lines.append(head)
            head = ""
        lines += [f"{head:<{column}}{text[0]}".rstrip(), *(" " * column + line for line in text[1:])]
    return lines


def _paragraphs(text: str, width: int) -> list[str]:
    """Return a text with its paragraphs wrapped; indented lines are left as they are."""
    lines: list[str] = []
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        lines += [""] * (number > 0)
        if "\n  " in f"\n{paragraph}":
            lines += paragraph.splitlines()
        else:
            lines += textwrap.wrap(" ".join(paragraph.split()), width, break_on_hyphens=False)
    return lines
