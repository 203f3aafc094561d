"""What `kfl compare` compares: lists of algorithms and schedulers, varied fields and labeled options, as entries.

Everything becomes a table of fields by label, which is put on the experiment that all entries share. A field of an
algorithm or a scheduler that only other entries have is left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kfl.comparison.entries import (
    Entry,
    algorithm_named,
    combinations,
    has_field,
    literal,
    read_settings,
    with_fields,
    with_settings,
)
from kfl.core.config import Table, flatten, read_config
from kfl.core.errors import ConfigError
from kfl.experiment import Experiment, class_of
from kfl.scheduling import Scheduler

HOW = 'of the form "LABEL: FLAGS", with options of kfl run, such as "thrifty: --scheduler lyapunov --scheduler.v 0.01"'
NOT_OF_AN_ENTRY = (
    *("out", "data_dir", "device", "precision", "workers", "ray", "shard", "keep_models", "keep_runs", "settings"),
    *("seed", "seeds", "reference", "x", "from", "algorithms", "schedulers", "vary", "entry", "entries", "twins"),
)
"""Options that are about the whole comparison."""


def asked_entries(
    base: Experiment,
    fields: Mapping[str, Any],
    *,
    algorithms: str | None,
    schedulers: str | None,
    vary: Sequence[str],
    entry: Sequence[str],
    file: Path | None,
    settings: Path | None,
    twins: bool,
) -> list[Entry]:
    """The entries that a command line asks for.

    Args:
        base: the experiment that all entries share.
        fields: given fields of algorithms and schedulers, for every entry that has them.
        algorithms: names with commas between.
        schedulers: names with commas between.
        vary: fields with their values, `FIELD=VALUE,VALUE`.
        entry: labeled options, `LABEL: FLAGS`.
        file: TOML file with a table of options for each label.
        settings: TOML file with hyper-parameters for each algorithm or label.
        twins: whether rows are compared with twins: then everything but the algorithm makes a condition.
    """
    names = [] if algorithms is None else listed(algorithms, "algorithms", ())
    values: dict[str, list[Any]] = {}
    if schedulers is not None:
        values["scheduler"] = listed(schedulers, "schedulers", ())
    for word in names:
        algorithm_named(word, base.algorithm)  # a wrong name is answered here
    for word in values.get("scheduler", ()):
        class_of(Scheduler, word, "schedulers")
    values |= _varied(vary)
    tables: list[tuple[str, str, Table]] = []
    if twins:
        conditions = combinations(values, base) if values else {"": {}}
        for condition, table in conditions.items():
            place = condition if len(conditions) > 1 else ""
            tables += [(place, name, {"algorithm": name, **table}) for name in names]
    elif names or values:
        asked = {"algorithm": names, **values} if names else values
        tables += [("", label, table) for label, table in combinations(asked, base).items()]
    tables += [("", label, table) for label, table in _labelled_tables(entry, file)]
    labels = [label for _, label, _ in tables]
    places = [(condition, label) for condition, label, _ in tables]
    for one in places:
        if places.count(one) > 1:
            raise ConfigError("entry", one[1], "a label of its own; another entry has it")
    tuned = {} if settings is None else read_settings(settings, labels)
    every, source = [table for _, _, table in tables], "" if settings is None else settings.name
    found: list[Entry] = []
    for condition, label, table in tables:
        made = _entry(base, label, {**_fitting(fields, table, every, base), **table}, tuned, source)
        found.append(replace(made, condition=condition))
    if settings is not None and not any(made.tuned for made in found):
        right = f"a file with a table for one of {', '.join(labels)}"
        raise ConfigError("settings", str(settings), right, choices=labels)
    return found


def _fitting(fields: Mapping[str, Any], table: Table, every: Sequence[Table], base: Experiment) -> Table:
    """The fields that an entry's algorithm and scheduler have, or that none has (refused with those that exist)."""
    return {
        name: value
        for name, value in fields.items()
        if has_field(name, table, base) or not any(has_field(name, other, base) for other in every)
    }


def _entry(base: Experiment, label: str, table: Table, tuned: Mapping[str, Mapping[str, Any]], source: str) -> Entry:
    """An entry: a file of settings goes below what is given as options."""
    own = {name: value for name, value in table.items() if name.startswith("algorithm.") and name != "algorithm.name"}
    found = Entry(label, with_fields(base, {name: value for name, value in table.items() if name not in own}))
    found = with_settings(found, tuned, source)
    return replace(found, experiment=with_fields(found.experiment, own))


def own_fields(arguments: Sequence[str]) -> tuple[Table, list[str]]:
    """The given fields of algorithms and schedulers, which depend on the entry, and the other arguments.

    >>> own_fields(["--devices", "5", "--algorithm.local-steps=3", "--scheduler.v", "0.1", "--scheduler", "dual"])
    ({'algorithm.local_steps': 3, 'scheduler.v': 0.1}, ['--devices', '5', '--scheduler', 'dual'])
    """
    mine: list[str] = []
    others: list[str] = []
    taken = False
    for word in arguments:
        if word.startswith("--"):
            taken = word.startswith(("--algorithm.", "--scheduler."))
        (mine if taken else others).append(word)
    return _table_of(mine), others


def _table_of(words: Iterable[str]) -> Table:
    """The table that options of `kfl run` stand for: a value, several, or none for a switch.

    >>> _table_of(["--widths", "8", "12", "--hard-budget", "--scheduler.v=0.1", "--no-real-work"])
    {'widths': [8, 12], 'hard_budget': True, 'scheduler.v': 0.1, 'real_work': False}
    """
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            given[name.replace("-", "_")] = [value] if equals else []
        elif given:
            given[next(reversed(given))].append(word)
    found: Table = {}
    for name, values in given.items():
        head, dot, last = name.rpartition(".")
        if values:
            found[name] = literal(values[0]) if len(values) == 1 else [literal(value) for value in values]
        elif last.startswith("no_"):
            found[f"{head}{dot}{last[3:]}"] = False
        else:
            found[name] = True
    return found


def _varied(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each field of --vary."""
    found = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().lstrip("-")
        words = [value.strip() for value in values.split(",") if value.strip()]
        if not name or not words:
            raise ConfigError("vary", text, "FIELD=VALUE,VALUE with an option of kfl run, such as scheduler.v=0.01,0.1")
        found[name] = [literal(word) for word in dict.fromkeys(words)]
    return found


def _labelled_tables(texts: Sequence[str], file: Path | None) -> list[tuple[str, Table]]:
    """Entries of --entry and of a file with a table for each."""
    found = [_labelled(text) for text in texts]
    if file is not None:
        for label, table in read_config(file, "entries").items():
            if not isinstance(table, dict):
                raise ConfigError("entries", label, "a table with options of kfl run, named by its label")
            flat = {name.removesuffix(".name"): value for name, value in flatten(table).items()}
            found.append((label, flat))
    for label, table in found:
        for name in table:
            if name in NOT_OF_AN_ENTRY:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError("entry", option, f"outside of {label!r}, because it is for all entries")
    return found


def _labelled(text: str) -> tuple[str, Table]:
    """One --entry: a label and options; without a label the options are it.

    >>> _labelled("thrifty: --scheduler lyapunov --scheduler.v 0.01")
    ('thrifty', {'scheduler': 'lyapunov', 'scheduler.v': 0.01})
    >>> _labelled("--scheduler lyapunov --scheduler.v 0.01")[0]
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
    return match["label"] or " ".join(parts), _table_of(words)


def listed(text: str, field: str, known: Sequence[str]) -> list[str]:
    """The words of a list with commas between, each once.

    >>> listed("kfl, local,kfl", "algorithms", ["kfl", "local"])
    ['kfl', 'local']
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        expected = f"one or more of {', '.join(known)}, or package.module:Class for your own" if known else "not empty"
        raise ConfigError(field, text, expected)
    return list(dict.fromkeys(words))
