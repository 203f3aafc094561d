"""What a command line may say, and whether it does: the options of a command, and the words of a user held to them.

tyro turns dataclasses into options. Before it reads the words, they are checked here, so that a wrong one is answered
in one sentence with the right one, and spelled as tyro wants them: people type `--hard-budget no`, `--widths 8,12`,
`--tested_devices none` and `--rounds 1e3`.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kfl.cli.foreign import Translation, meanings, translate
from kfl.core.errors import ConfigError, KflError
from kfl.core.suggest import nearest

Kind = Literal["flag", "yes or no", "whole", "number", "word", "text"]
"""What an option takes: nothing, yes or no, whole numbers, numbers, one of some words, or any text."""

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
"""Words for yes and for no, in any capitals."""

WHOLE = ("PORT", "WIDTH", "DEVICE")
"""What commands call a whole number."""

_SUFFIX = re.compile(r"\s*\((?:default: (?P<default>.*?)|required|repeatable)\)\s*$", re.DOTALL)


@dataclass(frozen=True)
class Option:
    """One option of a command, or an argument without a dash."""

    flag: str
    """As it is typed, such as --algorithm.learning-rate; of an argument without a dash, its name in capitals."""
    also: tuple[str, ...]
    """Other ways to type it, such as -q."""
    help: str
    """What it does, without its default."""
    default: str
    """Its default as tyro prints it; empty where it has none to show."""
    group: str
    """The object whose field it is, such as algorithm; empty for a field of the command itself."""
    about: str
    """What the group is, in a sentence."""
    metavar: str
    """What tyro calls its value."""
    kind: Kind
    many: bool
    """Whether it takes several values."""
    choices: tuple[str, ...]
    optional: bool
    """Whether it also takes the word none."""
    required: bool
    inverse: bool
    """Whether it is a flag that turns off what is on without it: it is shown by what it turns off."""

    @property
    def positional(self) -> bool:
        """Whether it is an argument without a dash."""
        return not self.flag.startswith("-")

    @property
    def shown(self) -> str:
        """The flag by which people know it: --algorithm.memory for --algorithm.no-memory."""
        head, _, last = self.flag.rpartition(".")
        if not self.inverse:
            return self.flag
        return f"{head}.{last.removeprefix('no-')}" if head else f"--{last.removeprefix('--no-')}"


def read_options(parser: argparse.ArgumentParser) -> list[Option]:
    """The options of a parser, in its order, without --help."""
    groups = {id(action): group for group in parser._action_groups for action in group._group_actions}
    found = []
    for action in parser._actions:  # argparse has no other way to list what a parser knows
        if "--help" in action.option_strings:
            continue
        group = groups[id(action)]
        title = (group.title or "").removesuffix("options").strip()
        name = str(action.metavar or "")
        name = name if re.fullmatch(r"[A-Z_…]+", name) else action.dest.upper()
        flags = [flag for flag in action.option_strings if flag.startswith("--")] or [name]
        found.append(_option(action, flags[0], title if "." in flags[0] else "", str(group.description or "").strip()))
    return found


def _option(action: argparse.Action, flag: str, group: str, about: str) -> Option:
    text = str(action.help or "").replace("%%", "%")
    match = _SUFFIX.search(text)
    metavar = str(action.metavar or "")
    optional = metavar.startswith("{None}|")
    choices = tuple(str(choice) for choice in action.choices or ())
    if not choices and (words := re.fullmatch(r"\{([^{}|\[\]]+)\}", metavar.removeprefix("{None}|"))):
        choices = tuple(words[1].split(","))
    optional = optional or "None" in choices
    choices = tuple(choice for choice in choices if choice != "None")
    return Option(
        flag=flag,
        also=tuple(other for other in action.option_strings if other != flag),
        help=re.sub(r"\bNone\b", "none", " ".join(_SUFFIX.sub("", text).split())),
        default=(match["default"] or "").strip() if match else "",
        group=group,
        about=about,
        metavar=metavar,
        kind=_kind(action, metavar, choices),
        many=action.nargs in ("*", "+"),
        choices=choices,
        optional=optional,
        required=match is not None and "(required)" in match[0],
        inverse=action.nargs == 0 and action.default is True,
    )


def _kind(action: argparse.Action, metavar: str, choices: Sequence[str]) -> Kind:
    if action.option_strings and action.nargs == 0:
        return "flag"
    if choices:
        return "yes or no" if set(choices) == {"True", "False"} else "word"
    if re.search(r"\bINT\b", metavar) or metavar in WHOLE:
        return "whole"
    return "number" if re.search(r"\bFLOAT\b", metavar) else "text"


# ── The words of a user ──────────────────────────────────────────────────────


@dataclass(frozen=True)
class Given:
    """A flag as it was typed, and the words after it up to the next one; without a flag, the words before the first."""

    flag: str
    values: tuple[str, ...]


def read_words(words: Iterable[str]) -> list[Given]:
    """The words of a command line, sorted by flag.

    >>> read_words(["a.json", "--rounds", "3", "--power=-3", "-q"])
    [Given(flag='', values=('a.json',)), Given(flag='--rounds', values=('3',)), Given(flag='--power', values=('-3',)), \
Given(flag='-q', values=())]
    """
    found = [Given("", ())]
    for word in words:
        if not _is_flag(word):
            found[-1] = Given(found[-1].flag, (*found[-1].values, word))
            continue
        flag, equals, value = word.partition("=")
        found.append(Given(flag, (value,) if equals else ()))
    return found if found[0].values else found[1:]


def _is_flag(word: str) -> bool:
    return re.fullmatch(r"--?[A-Za-z][^=\s]*(=.*)?", word, re.DOTALL) is not None and not re.fullmatch(
        r"-(inf|nan)", word
    )


@dataclass(frozen=True)
class Grammar:
    """The options of a command, to hold words to."""

    prog: str
    """The command, such as kfl run."""
    options: Sequence[Option]
    names: Mapping[str, Sequence[str]]
    """The words that some options know besides what their type says."""
    elsewhere: Callable[[str], str]
    """For a flag that the command does not have: where it is one, in a clause; empty where it is none anywhere."""

    @cached_property
    def flags(self) -> dict[str, Option]:
        """The options by every way to type them."""
        known = {name: option for option in self.options for name in (option.flag, *option.also)}
        return known | {option.shown: option for option in self.options}

    @property
    def places(self) -> list[Option]:
        """The arguments without a dash."""
        return [option for option in self.options if option.positional]

    def checked(self, words: Sequence[str]) -> list[str]:
        """The words as tyro wants them; the first fault of one is a KflError."""
        given = [Given(_spelled(one.flag, self.flags), one.values) for one in read_words(words)]
        if any(one.flag and one.flag not in self.flags for one in given):
            raise KflError(unknown_flags(self, given))
        found: list[str] = []
        loose: list[str] = []
        for one in given:
            own, rest = _own_words(self.flags[one.flag], one) if one.flag else ([], list(one.values))
            if rest and not self.places:
                raise KflError(superfluous(self, rest[0], one.flag))
            found += own
            loose += rest
        for place in self.places:
            if place.required and not loose:
                raise KflError(f"{self.prog} needs {place.flag}: {place.help[:1].lower()}{place.help[1:]}")
        missing = [option.flag for option in self.options if option.required and not option.positional]
        missing = [flag for flag in missing if flag not in found]
        if missing:
            listed = " and ".join([", ".join(missing[:-1]), missing[-1]] if missing[1:] else missing)
            raise KflError(f"{self.prog} needs {listed}; {self.prog} --help says what they are.")
        if len(self.places) == 1:
            loose = [_value(self.places[0], word) for word in loose]
        return [*loose, *found]


def _spelled(flag: str, known: Iterable[str]) -> str:
    """A flag with hyphens for underscores, which everyone mixes up."""
    hyphens = flag.replace("_", "-")
    return hyphens if hyphens in known else flag


def _own_words(option: Option, given: Given) -> tuple[list[str], list[str]]:
    """A flag with the words that are its own, and the words that follow it."""
    values = list(given.values)
    if option.kind in ("flag", "yes or no"):
        return _yes_or_no(option, given.flag, values)
    if option.many:
        return [option.flag, *(_value(option, part) for value in values for part in _parts(option, value))], []
    if not values:
        raise KflError(f"{given.flag} needs a value: {_wanted(option)}.")
    return [option.flag, _value(option, values[0])], values[1:]


def _yes_or_no(option: Option, typed: str, values: list[str]) -> tuple[list[str], list[str]]:
    """A switch, alone or with a word for yes or no after it."""
    word = values[0].casefold() if values else ""
    own = word in (*TRUE, *FALSE)
    rest = values[own:]
    yes = word not in FALSE
    if option.kind == "yes or no":
        if word == "none" and option.optional:
            return [option.flag, "None"], values[1:]
        return [option.flag, str(yes)], rest
    if option.inverse and typed == option.shown != option.flag:
        yes = not yes
    return ([option.flag] if yes else []), rest


def _parts(option: Option, value: str) -> list[str]:
    return [part for part in value.split(",") if part] if option.kind in ("whole", "number") else [value]


def _value(option: Option, value: str) -> str:
    """A value as tyro wants it."""
    if option.optional and value.casefold() == "none":
        return "None"
    if option.kind == "word" and value not in option.choices:
        raise ConfigError(option.flag, value, f"one of {', '.join(option.choices)}", choices=option.choices)
    if option.kind not in ("whole", "number"):
        return value
    try:
        number = float(value.replace("_", ""))
    except ValueError:
        raise ConfigError(option.flag, value, _wanted(option), choices=_with_point(value)) from None
    if option.kind == "number":
        return value
    if re.fullmatch(r"[-+]?[\d_]+", value):
        return value
    if not number.is_integer():
        raise ConfigError(option.flag, value, _wanted(option))
    return str(int(number))  # 1e3 is a thousand


def _with_point(value: str) -> tuple[str, ...]:
    return (value.replace(",", "."),) if re.fullmatch(r"[-+]?\d+,\d+", value) else ()


def _wanted(option: Option) -> str:
    words = {"whole": "a whole number", "number": "a number", "word": f"one of {', '.join(option.choices)}"}
    places = {"FILE": "the name of a file", "FOLDER": "the name of a folder", "NAME": "a name"}
    place = next((text for word, text in places.items() if word in option.metavar), "a value")
    return words.get(option.kind, place) + (" or none" if option.optional else "")


# ── What is wrong, in a sentence ─────────────────────────────────────────────


def superfluous(grammar: Grammar, word: str, after: str) -> str:
    """The sentence about a word that belongs to no option."""
    prog = grammar.prog
    if after:
        takes = "yes, no or nothing" if grammar.flags[after].kind in ("flag", "yes or no") else "one value"
        return f"{prog} does not know what {word!r} after {after} is for; {after} takes {takes}."
    owners = [
        option.flag for option in grammar.options if word in (*option.choices, *grammar.names.get(option.flag, ()))
    ]
    hint = f"did you mean {owners[0]} {word}?" if owners else f"{prog} --help lists its options."
    return f"{prog} takes options only, and {word!r} belongs to none; {hint}"


def unknown_flags(grammar: Grammar, given: Sequence[Given]) -> str:
    """The sentence about all flags that the command does not have, and the line that would be right."""
    values = {flag: option.default for flag, option in grammar.flags.items()}
    for one in given:  # twice: a number of devices may be asked for before it is said
        meant = (
            Translation("", (one.flag, *one.values)) if one.flag in grammar.flags else _translation(one, grammar, {})
        )
        if meant is not None and len(meant.words) > 1:
            values[meant.words[-2]] = meant.words[-1]
    answers, line, whole = [], [], True
    for one in given:
        if not one.flag or one.flag in grammar.flags:
            line += [word for word in (one.flag, *one.values) if word]
            continue
        meant = _translation(one, grammar, values)
        if meant is None:
            meant = Translation("", (one.flag, *one.values))
            whole = False
        answers.append(f"{one.flag} ({meant.reason})" if meant.reason else one.flag)
        whole = whole and bool(meant.reason) and one.flag not in meant.words
        line += meant.words
    listed = ", ".join(answers[:-1]) + " and " * (len(answers) > 1) + answers[-1]
    hint = (
        f"Try: {shlex.join([*grammar.prog.split(), *line])}" if whole else f"{grammar.prog} --help lists its options."
    )
    return f"{grammar.prog} does not know {listed}. {hint}"


def _translation(one: Given, grammar: Grammar, values: Mapping[str, str]) -> Translation | None:
    """What a flag that the command does not have was meant to be; with the flag itself in its words, if elsewhere."""
    known = [option.flag for option in grammar.options]
    found = translate(one.flag, one.values, known, values)
    if found is not None:
        return found
    for flag in (one.flag.replace("_", "-"), *meanings(one.flag)):
        if place := grammar.elsewhere(flag):
            return Translation(
                f"{'' if flag == one.flag else f'kfl calls it {flag}, '}{place}", (one.flag, *one.values)
            )
    near = _near(one.flag, grammar.flags)
    return None if near is None else Translation(f"did you mean {near}?", (near, *one.values))


def _near(flag: str, known: Iterable[str]) -> str | None:
    """The option that was meant: one that ends with the same word, else one that is spelled nearly so."""
    wanted = flag.lstrip("-").replace("_", "-").casefold()
    long = [name for name in known if name.startswith("--")]
    last = {name.rpartition(".")[2].lstrip("-"): name for name in reversed(long)}
    if wanted in last:
        return last[wanted]
    near = nearest(wanted, [name.removeprefix("--") for name in long])
    if near is not None:
        return f"--{near}"
    word = nearest(wanted, last)
    return None if word is None else last[word]
