"""Help of a command: the options that people change first, then the others by what they are about."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from kfl.cli.arguments import Option

WIDEST, NARROWEST = 120, 60
COLUMN = 30
"""Where the text of an option begins; one that is longer has its text below it."""
MANY = 15
"""A command with more options than this shows them by subject."""

SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "What people change first": (
        "--dataset",
        "--devices",
        "--rounds",
        "--algorithm",
        "--algorithms",
        "--methods",
        "--scheduler",
        "--radio",
        "--hard-budget",
        "--model",
        "--seed",
        "--seeds",
        "--out",
        "--device",
        "--quiet",
    ),
    "Data": (
        "--split",
        "--classes-per-device",
        "--distinct-classes",
        "--dirichlet-alpha",
        "--samples-per-device",
        "--new-class-samples",
        "--data-dir",
    ),
    "Networks and evaluation": ("--widths", "--equal-models", "--evaluate-every", "--tested-devices"),
    "Energy and time": (
        "--real-work",
        "--radio.fading",
        "--radio.mobility",
        "--radio.harvest",
        "--gain-trace",
        "--harvest-trace",
        "--availability-trace",
        "--availability-repeat-s",
    ),
}
"""Options of the commands that run experiments, by what they are about; what is in none of them follows."""

GROUPS = {
    "algorithm": "of the algorithm that is chosen",
    "scheduler": "of the scheduler that is chosen",
    "radio": "of the cell that is chosen",
}
"""What the options of a group are, where the field's own sentence is about choosing it."""

METAVARS = {
    "--dataset": "NAME|FILE",
    "--model": "NAME",
    "--availability-trace": "FILE|none",
    "--faults.schedule": "FAULT …",
}
"""What the values of options are that tyro only calls a text."""


def help_text(prog: str, description: str, options: Sequence[Option], names: Mapping[str, Iterable[str]]) -> str:
    """The whole help of a command; `names` are the words that some options know besides what their type says."""
    width = max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))
    places = [option for option in options if option.positional]
    usage = " ".join(["usage:", prog, *(f"[{_value(option)}]" for option in places), "[OPTIONS]"])
    blocks = [usage, *(_paragraph(block, width) for block in description.strip().split("\n\n"))]
    for title, about, some in _sections(options):
        lines = [line for option in some for line in _entry(option, width, names.get(option.flag, ()))]
        head = f"{_bold(title)}{f': {about}' if about else ''}"
        blocks.append("\n".join([*textwrap.wrap(head, width), *lines]))
    return "\n\n".join(blocks)


def _sections(options: Sequence[Option]) -> Iterable[tuple[str, str, list[Option]]]:
    """Title, sentence and options of each section."""
    places = [option for option in options if option.positional]
    if places:
        yield "Arguments", "", places
    plain = [option for option in options if not option.positional and not option.group]
    if len(plain) > MANY:
        flags = {option.shown: option for option in plain}
        for title, members in SUBJECTS.items():
            if some := [flags.pop(flag) for flag in members if flag in flags]:
                yield title, "", some
        plain = list(flags.values())
    if plain:
        yield "Other options" if len(plain) != len(options) - len(places) else "Options", "", plain
    for group in dict.fromkeys(option.group for option in options if option.group):
        some = [option for option in options if option.group == group]
        yield f"--{group}.…", GROUPS.get(group) or _first_sentence(some[0].about), some


def _first_sentence(text: str) -> str:
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")


def _entry(option: Option, width: int, names: Iterable[str]) -> list[str]:
    head = "  " + ", ".join((*option.also, option.shown)) + (f" {_value(option)}" * (not option.positional))
    head = f"  {_value(option)}" if option.positional else head.rstrip()
    text = option.help
    if names := list(names):
        text = (
            f"{text.rstrip('.')}: {', '.join(names)}."
            if not set(":,") & set(text)
            else f"{text} Names: {', '.join(names)}."
        )
    if default := shown_default(option):
        text = f"{text} (default: {default})"
    lines = textwrap.wrap(text, width - COLUMN, break_long_words=False, break_on_hyphens=False) or [""]
    if len(head) > COLUMN - 2:
        return [head, *(" " * COLUMN + line for line in lines)]
    return [f"{head:<{COLUMN}}{lines[0]}", *(" " * COLUMN + line for line in lines[1:])]


def _value(option: Option) -> str:
    """What stands after an option, for people: N is a whole number, X a number."""
    if option.flag in METAVARS:
        return METAVARS[option.flag]
    if option.kind == "flag":
        return "yes|no" if option.inverse else ""
    if option.kind == "yes or no":
        return "yes|no"
    if option.choices:
        return "|".join((*option.choices, *["none"] * (option.optional and option.metavar.startswith("{None}|"))))
    words = {"whole": "N", "number": "X"}
    given = option.metavar if re.fullmatch(r"[A-Z_…/\[\],]+", option.metavar) else "TEXT"
    own = words.get(option.kind, "TEXT" if given == "STR" else given)
    return own + " …" * (option.many and "…" not in own) + "|none" * option.optional


def shown_default(option: Option) -> str:
    """A default as one would type it; empty where there is none to show.

    False is not shown: what is off without its flag needs no word.
    """
    if option.default in ("", "None", "False"):
        return "none" if option.default == "None" and option.optional and "efault:" not in option.help else ""
    if option.kind in ("flag", "yes or no"):
        return "yes"
    return " ".join(_short(word) for word in option.default.split())


def _short(word: str) -> str:
    """A number as one would type it.

    >>> _short("5000000.0"), _short("0.03125"), _short("-174.0"), _short("1e-27"), _short("mnist-5k")
    ('5e6', '0.03125', '-174', '1e-27', 'mnist-5k')
    """
    if not re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", word):
        return word
    number = float(word)
    text = f"{number:.10g}"
    exact = re.sub(r"e\+?0*(\d)", r"e\1", f"{number:.3e}".replace(".000e", "e"))
    exact = re.sub(r"(\.\d*?)0+e", r"\1e", exact)
    return exact if abs(number) >= 1e6 and float(exact) == number else text


def _paragraph(block: str, width: int) -> str:
    """Running text is filled; lines that are indented stay as they are."""
    if any(line.startswith("  ") for line in block.splitlines()):
        return block
    return "\n".join(textwrap.wrap(" ".join(block.split()), width, break_long_words=False, break_on_hyphens=False))


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text
