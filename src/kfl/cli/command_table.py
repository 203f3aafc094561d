"""Every command with its options and what their values can be, asked from the commands' own parsers."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from kfl.cli.main import COMMANDS, serve
from kfl.cli.options import ALGORITHM_NAMES, MODELS, RADIO_NAMES, SCHEDULER_NAMES, ParserFound, only_parser
from kfl.comparison.presets import SENSORS_NAME
from kfl.comparison.twins import METHODS
from kfl.core.errors import KflError
from kfl.data import DATASETS
from kfl.models import WIDTHS
from kfl.report.trackers import TRACKERS

Kind = Literal["none", "text", "file", "folder", "run", "words", "words or file", "list"]
"""What a value is: none for a flag, a run folder, one of some words or else a file, several with commas between."""


@dataclass(frozen=True)
class Argument:
    """An option (its name begins with a dash) or a positional argument of a command."""

    name: str
    help: str
    kind: Kind
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """A command as it is typed after `kfl`, such as ("data", "show")."""

    path: tuple[str, ...]
    help: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> list[Argument]:
        """Arguments that begin with a dash."""
        return [argument for argument in self.arguments if argument.name.startswith("-")]

    @property
    def positional(self) -> Argument | None:
        """The first argument without a dash, if there is one."""
        return next((argument for argument in self.arguments if not argument.name.startswith("-")), None)


INNER = "COMMAND"
"""Name of the argument that a command of commands is chosen by."""

_WORDS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "--algorithm": ("words", ALGORITHM_NAMES),
    "--algorithms": ("list", ALGORITHM_NAMES),
    "--schedulers": ("list", SCHEDULER_NAMES),
    "--reference": ("words", ALGORITHM_NAMES),
    "--methods": ("list", tuple(METHODS)),
    "--scheduler": ("words", SCHEDULER_NAMES),
    "--radio": ("words", RADIO_NAMES),
    **{f"--radio.{field}": ("words", tuple(kind.registry())) for field, kind in MODELS.items()},
    "--preset": ("words", RADIO_NAMES[2:]),
    "--availability-trace": ("file", ()),
    "--dataset": ("words or file", tuple(DATASETS)),
    "--model": ("list", ("auto", *WIDTHS)),
    "--track": ("list", tuple(TRACKERS)),
}
"""Options whose values have names that their parser does not know."""
_OF_METAVAR: dict[str, tuple[Kind, tuple[str, ...]]] = {"CELL": ("words", (SENSORS_NAME, *RADIO_NAMES[2:]))}
"""The same where one option means different things in different commands: by its metavar."""


def commands() -> list[Command]:
    """Every command of kfl, in the order of its help; commands of commands follow the one they belong to."""
    found = []
    for name, (address, text) in COMMANDS.items():
        nested: dict[str, tuple[str, str]] = getattr(_module(address), "COMMANDS", {})
        inner = [Command((name, word), line, _arguments(its, [])) for word, (its, line) in nested.items()]
        first = (Argument(INNER, "", "words", tuple(nested)),) if nested else _arguments(address, [])
        found += [Command((name,), text, first), *inner]
    return found


def _module(address: str) -> ModuleType:
    return importlib.import_module(address.partition(":")[0])


def _arguments(address: str, words: list[str]) -> tuple[Argument, ...]:
    """The arguments of a command, with the options of every algorithm and scheduler it can be told to use."""
    plain = _parser(address, words)
    if plain is None:
        return ()
    found = {argument.name: argument for argument in _read(plain)}
    for option, names in (("--algorithm", ALGORITHM_NAMES), ("--scheduler", SCHEDULER_NAMES)):
        for name in names if option in found else ():
            parser = _parser(address, [*words, option, name])
            others = [] if parser is None else list(_read(parser))
            found |= {other.name: other for other in others if other.name not in found}
    return tuple(found.values())


def _parser(address: str, words: Sequence[str]) -> argparse.ArgumentParser | None:
    """The parser that a command would use for these words; None for one that parses by itself."""
    module = _module(address)
    if hasattr(module, "parser"):
        made: argparse.ArgumentParser = module.parser()
        return made
    token = only_parser.set(True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            serve(address, list(words))
    except ParserFound as found:
        parser: argparse.ArgumentParser = found.parser
        return parser
    except (KflError, SystemExit):
        return None
    finally:
        only_parser.reset(token)
    return None


def _read(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    for action in parser._actions:  # argparse has no other way to list what a parser knows
        text = _first_sentence(action.help or "")
        names = [name for name in action.option_strings if name.startswith("--")] or [
            str(action.metavar or action.dest)
        ]
        for name in names:
            kind, words = _values(name, action)
            yield Argument(name, text, kind, words)


def _values(name: str, action: argparse.Action) -> tuple[Kind, tuple[str, ...]]:
    """What can stand after an option, from its name, its choices or its metavar."""
    if action.option_strings and action.nargs == 0:
        return "none", ()
    metavar = str(action.metavar or "").upper()
    if metavar in _OF_METAVAR:
        return _OF_METAVAR[metavar]
    if name in _WORDS:
        return _WORDS[name]
    if action.choices:
        words = [str(choice) for choice in action.choices if str(choice) != "None"]  # None: the option is left out
        return "words", tuple(sorted(words) if isinstance(action.choices, set | frozenset) else words)
    kinds: dict[str, Kind] = {"RUN": "run", "FOLDER": "folder", "FILE": "file"}
    return next((kind for word, kind in kinds.items() if word in metavar), "text"), ()


def _first_sentence(text: str) -> str:
    """The first sentence of a help text, on one line and without its full stop, and without what tyro adds.

    >>> _first_sentence("How devices learn. (default: kfl)"), _first_sentence("Budget, E_k / T; infinite for none.")
    ('How devices learn', 'Budget, E_k / T; infinite for none')
    """
    line = " ".join(text.replace("%%", "%").split()).partition(" (default")[0].partition(" (required")[0]
    return line.partition(". ")[0].rstrip(".")
