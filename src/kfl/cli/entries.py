"""What `kfl compare` compares: lists of algorithms and schedulers, varied fields and labelled flags, as entries.

Everything becomes an entry: a label, and flags of `kfl run` that are added to those of the command. So an entry means
what these flags mean to `kfl run`, whatever they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from kfl.algorithms import Algorithm
from kfl.cli.options import peek
from kfl.core.config import flatten, read_config
from kfl.core.errors import ConfigError
from kfl.experiment import class_of
from kfl.scheduling import Scheduler

HOW = 'of the form "LABEL: FLAGS", with flags of kfl run, such as "thrifty: --scheduler lyapunov --scheduler.v 0.01"'
NOT_OF_AN_ENTRY = (
    *("out", "data-dir", "device", "precision", "workers", "ray", "keep-models", "settings", "seed", "seeds"),
    *("reference", "x", "from", "algorithms", "schedulers", "vary", "entry", "entries"),
)
"""Options that are about the whole comparison."""


@dataclass(frozen=True)
class Entry:
    """One row of a comparison, before its flags are read."""

    label: str
    words: tuple[str, ...] = ()
    """Flags that are added to those of the command; `--algorithm` among them."""

    @property
    def algorithm(self) -> str | None:
        """The word that selects its algorithm; None for that of the command's config."""
        return peek(self.words, "algorithm")

    @property
    def scheduler(self) -> str | None:
        """The word that selects its scheduler; None for that of the command."""
        return peek(self.words, "scheduler")

    @property
    def varied(self) -> list[str]:
        """The options that its flags set."""
        return [word[2:].partition("=")[0] for word in self.words if word.startswith("--")]


def combined(algorithms: Sequence[str], schedulers: Sequence[str], varied: Sequence[str]) -> list[Entry]:
    """Every algorithm with every scheduler and every value of the varied fields, labelled by what differs.

    >>> [entry.label for entry in combined(["kfl", "local"], [], ["scheduler.v=1,2"])]
    ['kfl v=1', 'kfl v=2', 'local v=1', 'local v=2']
    >>> combined([], ["dual", "uniform"], [])[0]
    Entry(label='dual', words=('--scheduler', 'dual'))

    A field that only some of the algorithms or schedulers have is varied for those alone:

    >>> [entry.label for entry in combined(["kfl", "local"], [], ["algorithm.knowledge-weight=0.1,1"])]
    ['kfl knowledge-weight=0.1', 'kfl knowledge-weight=1', 'local']
    """
    lists = {"algorithm": algorithms, "scheduler": schedulers}
    choices = [[Entry(name, (f"--{kind}", name)) for name in names] for kind, names in lists.items() if names]
    choices += _variations(varied)
    found: dict[str, Entry] = {}
    known = [(peek(_words(pick), "algorithm"), peek(_words(pick), "scheduler")) for pick in product(*choices)]
    for pick, (algorithm, scheduler) in zip(product(*choices), known, strict=True):
        fitting = [
            (part, len(choice) > 1)
            for part, choice in zip(pick, choices, strict=True)
            if all(_fits(name, algorithm, scheduler) for name in part.varied)
            or not any(_fits(name, *other) for other in known for name in part.varied)
        ]
        label = " ".join(part.label for part, several in fitting if several) or pick[0].label
        found.setdefault(label, Entry(label, tuple(word for part, _ in fitting for word in part.words)))
    return list(found.values())


def _words(parts: Iterable[Entry]) -> list[str]:
    return [word for part in parts for word in part.words]


def _variations(varied: Sequence[str]) -> list[list[Entry]]:
    """The values of each field of --vary."""
    found = []
    names = [text.partition("=")[0].strip().lstrip("-").replace("_", "-") for text in varied]
    for text, name in zip(varied, names, strict=True):
        values = [value.strip() for value in text.partition("=")[2].split(",") if value.strip()]
        if not name or not values:
            raise ConfigError("vary", text, "FIELD=VALUE,VALUE with an option of kfl run, such as scheduler.v=0.01,0.1")
        last = [other.rpartition(".")[2] for other in names]
        short = name if last.count(name.rpartition(".")[2]) > 1 else name.rpartition(".")[2]
        found.append([Entry(f"{short}={value}", _flag(name, value)) for value in dict.fromkeys(values)])
    return found


def _flag(name: str, value: str) -> tuple[str, ...]:
    """An option with its value; a flag that is set or left out for true and false."""
    if value.lower() in ("true", "false"):
        return (f"--{name}",) if value.lower() == "true" else ()
    return (f"--{name}", *value.split())


def labelled(texts: Sequence[str], file: Path | None) -> list[Entry]:
    """Entries of --entry and of a file with a table for each."""
    found = [_labelled(text) for text in texts]
    if file is not None:
        for label, table in read_config(file, "entries").items():
            if not isinstance(table, dict):
                raise ConfigError("entries", label, "a table with options of kfl run, named by its label")
            found.append(Entry(label, _words_of(table)))
    for entry in found:
        for name in entry.varied:
            if name.replace("_", "-") in NOT_OF_AN_ENTRY:
                raise ConfigError("entry", f"--{name}", f"outside of {entry.label!r}, because it is for all entries")
    return found


def _labelled(text: str) -> Entry:
    """One --entry: a label and flags; without a label the flags are it.

    >>> _labelled("thrifty: --scheduler lyapunov --scheduler.v 0.01").words
    ('--scheduler', 'lyapunov', '--scheduler.v', '0.01')
    >>> _labelled("--scheduler lyapunov --scheduler.v 0.01").label
    'scheduler=lyapunov v=0.01'
    """
    match = re.fullmatch(r"\s*(?!--)(?P<label>.*?\S)\s*:(?:\s+(?P<flags>--.*))?\s*|\s*(?P<alone>--.*)", text)
    try:
        words = None if match is None else shlex.split(match["flags"] or match["alone"] or "")
    except ValueError as problem:
        raise ConfigError("entry", text, f"{HOW} ({problem})") from problem
    if match is None or words is None:
        raise ConfigError("entry", text, HOW)
    parts: list[str] = []
    for word in words:
        if word.startswith("--"):
            parts.append(word[2:].rpartition(".")[2] if "=" not in word else word[2:])
        else:
            parts[-1] += f"{',' if '=' in parts[-1] else '='}{word}"
    return Entry(match["label"] or " ".join(parts), tuple(words))


def _words_of(table: Mapping[str, Any]) -> tuple[str, ...]:
    """The flags that a table of options stands for.

    >>> _words_of({"scheduler": {"name": "lyapunov", "v": 0.01}, "hard_budget": True})
    ('--scheduler', 'lyapunov', '--scheduler.v', '0.01', '--hard-budget')
    """
    words: list[str] = []
    for name, value in flatten(table).items():
        values = value if isinstance(value, list) else [value]
        words += _flag(name.removesuffix(".name").replace("_", "-"), " ".join(map(str, values)))
    return tuple(words)


def unique(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Entries by label; no label may stand for two."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if found.setdefault(entry.label, entry) != entry:
            raise ConfigError("entry", entry.label, "a label of its own; another entry has it")
    return found


def fitted(arguments: Sequence[str], entry: Entry, entries: Iterable[Entry], base: tuple[str, str]) -> list[str]:
    """The flags of the command for one entry: without fields of algorithms or schedulers that only others have, and
    without what the entry says itself. `base` is the algorithm and the scheduler of those that name none."""
    known = [(other.algorithm or base[0], other.scheduler or base[1]) for other in entries]
    own = (entry.algorithm or base[0], entry.scheduler or base[1])
    words: list[str] = []
    keep = True
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("_", "-")
            fits = _fits(name, *own) or not any(_fits(name, *other) for other in known)
            keep = fits and name not in entry.varied
        if keep:
            words.append(word)
    return [*words, *entry.words]


def taken(arguments: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """All values of an option that may be given several times, and the arguments without it.

    >>> taken(["--vary", "rounds=1,2", "--devices", "5", "--vary=seed=1"], "vary")
    (['rounds=1,2', 'seed=1'], ['--devices', '5'])
    """
    values: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == f"--{name}":
            values += [next(words, "")]
        elif word.startswith(f"--{name}="):
            values.append(word.partition("=")[2])
        else:
            rest.append(word)
    return values, rest


def _fits(option: str, algorithm: str | None, scheduler: str | None) -> bool:
    """Whether an option is a field of this algorithm or scheduler, or of neither; whoever is not named may have it."""
    part, dot, rest = option.partition(".")
    if not dot or part not in ("algorithm", "scheduler"):
        return True
    word, kind = {"algorithm": (algorithm, Algorithm), "scheduler": (scheduler, Scheduler)}[part]
    if word is None:
        return True
    cls: Any = class_of(kind, word, f"{part}s")
    return rest.partition(".")[0].replace("-", "_") in {field.name for field in fields(cls)}
