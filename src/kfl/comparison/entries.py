"""What is compared: labeled experiments, and how they are made from one by tables of fields.

An entry is a label and an experiment. Entries may differ in anything: the algorithm, the scheduler, one of their
fields, the radio. Runs of one seed share what their experiments have in common, so differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from kfl.algorithms import ALGORITHMS, Algorithm
from kfl.comparison.twins import ENCODED_TWINS, METHODS, is_twin
from kfl.core.config import Table, from_table, read_config, to_table
from kfl.core.errors import ConfigError, ModelError
from kfl.experiment import Experiment, class_of, common_settings
from kfl.models import PAPER_WIDTHS, names_widths, read_model
from kfl.scheduling import Scheduler
from kfl.wireless import CellConfig

STANDARD = ("kfl", *(name for name, cls in ALGORITHMS.items() if not (cls.sends() or cls.needs_encoder)))
"""The algorithms of a comparison by default: ours, and those that upload nothing, which sharing has to beat."""
KINDS: dict[str, type[Any]] = {"algorithm": Algorithm, "scheduler": Scheduler}
"""Fields of an experiment whose value has fields of its own, which depend on the name of it."""


@dataclass(frozen=True)
class Entry:
    """One row of a comparison."""

    label: str
    experiment: Experiment
    """Its seed does not count."""
    condition: str = ""
    """Rows of one condition are compared with each other."""
    search_in: str = ""
    """The condition whose search it uses; its own where this is empty."""
    reported: bool = True
    """False for one that is only searched, for others that use its search."""
    tuned: str = ""
    """Where its settings come from, such as the file or the command that chose them; empty for defaults."""


@dataclass(frozen=True)
class Run:
    """One run of an entry."""

    label: str
    condition: str
    experiment: Experiment
    trial: str = ""
    """Of a search, what this run tries."""

    @property
    def name(self) -> str:
        """What progress calls it.

        >>> Run("kfl", "", Experiment(seed=3)).name
        'kfl, seed 3'
        """
        words = [self.condition, self.label, self.trial, f"seed {self.experiment.seed}"]
        return ", ".join(word for word in words if word)


Entries = Mapping[str, Experiment] | Iterable[Entry]
"""What `compare` takes: experiments by label, or entries."""


def as_entries(given: Entries) -> list[Entry]:
    """Entries from a mapping or a list; ConfigError for what cannot be compared."""
    there: object = given
    if not isinstance(there, Iterable) or not given:
        raise ConfigError("entries", given, 'experiments by label, such as {"kfl": Experiment()}')
    items: list[tuple[object, object]] = list(given.items()) if isinstance(given, Mapping) else list(enumerate(given))
    found = []
    for key, value in items:
        entry = value
        if isinstance(value, Experiment) and isinstance(given, Mapping):
            entry = Entry(key, value) if isinstance(key, str) else key
        if not isinstance(entry, Entry):
            raise ConfigError(f"entries[{key!r}]", value, "an Experiment")
        if not entry.label.strip():
            raise ConfigError("entries", entry.label, "labeled by a text that is not empty")
        found.append(entry)
    names = [(entry.condition, entry.label) for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("entries", name[1], "a label of its own; another entry has it")
    return found


def with_seeds(entries: Iterable[Entry], seeds: Sequence[int]) -> list[Run]:
    """Every entry with every seed."""
    return [
        Run(entry.label, entry.condition, replace(entry.experiment, seed=seed)) for entry in entries for seed in seeds
    ]


def vary(base: Experiment, fields_of: Mapping[str, Sequence[Any]]) -> dict[str, Experiment]:
    """Return every combination of some values of some fields, labeled by what differs.

    Args:
        base: what all have in common.
        fields_of: values by the name of the field, with dots as on the command line, such as `scheduler.v`.

    Returns:
        Experiments by label, for `compare`. A field that only some of the algorithms or schedulers have is varied for
        those alone.

    >>> base = Experiment(scheduler="lyapunov")
    >>> list(vary(base, {"algorithm": ["kfl", "local"], "scheduler.v": [0.01, 0.1]}))
    ['kfl v=0.01', 'kfl v=0.1', 'local v=0.01', 'local v=0.1']
    >>> list(vary(base, {"algorithm": ["kfl", "local"], "algorithm.knowledge_weight": [0.1, 1]}))
    ['kfl knowledge_weight=0.1', 'kfl knowledge_weight=1', 'local']
    """
    tables = combinations(fields_of, base)
    return {label: with_fields(base, table) for label, table in tables.items()}


def combinations(values: Mapping[str, Sequence[Any]], base: Experiment) -> dict[str, Table]:
    """Tables of fields by label, one for every combination."""
    last = [name.rpartition(".")[2] for name in values]
    short = {name: name if last.count(end) > 1 else end for name, end in zip(values, last, strict=True)}
    picks = [dict(zip(values, some, strict=True)) for some in product(*values.values())]
    found: dict[str, Table] = {}
    for pick in picks:
        fitting = {name: value for name, value in pick.items() if _is_for(name, pick, picks, base)}
        several = [name for name in fitting if len(values[name]) > 1]
        words = [str(fitting[name]) if name in KINDS else f"{short[name]}={fitting[name]}" for name in several]
        found.setdefault(" ".join(words) or str(next(iter(pick.values()), "")), fitting)
    return found


def _is_for(name: str, table: Table, others: Iterable[Table], base: Experiment) -> bool:
    """Whether a field is one that the algorithm or scheduler of a table has, or none of the others has it either."""
    return has_field(name, table, base) or not any(has_field(name, other, base) for other in others)


def has_field(name: str, table: Mapping[str, Any], base: Experiment) -> bool:
    """Whether a field such as algorithm.momentum is one of the algorithm that a table of fields names.

    >>> has_field("algorithm.knowledge_weight", {"algorithm": "local"}, Experiment())
    False
    """
    part, _, rest = name.partition(".")
    if part not in KINDS or not rest:
        return True
    word = table.get(part)
    cls = type(getattr(base, part)) if word is None else _class_named(part, word)
    return rest.partition(".")[0].replace("-", "_") in {field.name for field in fields(cls)}


def _class_named(part: str, word: Any) -> type[Any]:
    if part == "algorithm" and word in METHODS:
        return type(METHODS[word])
    found: type[Any] = class_of(KINDS[part], word, f"{part}s")
    return found


def with_fields(base: Experiment, table: Mapping[str, Any]) -> Experiment:
    """Return an experiment with other values for some fields, whose names have dots as on the command line.

    Another algorithm keeps the settings that all algorithms have; another scheduler or radio has its own defaults.

    >>> found = with_fields(Experiment(), {"algorithm": "fedavg", "scheduler.count": 3, "radio.deadline_s": 2})
    >>> found.algorithm.name, found.scheduler.count, found.cell_config.deadline_s
    ('fedavg', 3, 2.0)
    """
    nested: dict[str, Any] = {}
    names: dict[str, Any] = {}
    for name, value in table.items():
        part, _, rest = name.replace("-", "_").partition(".")
        if rest and rest != "name":
            nested.setdefault(part, {})[rest] = value
        else:
            names[part] = value
    if "widths" in names and not isinstance(names["widths"], list | tuple | str):
        names["widths"] = [names["widths"]]
    found = base
    if "algorithm" in names:
        found = replace(found, algorithm=algorithm_named(names.pop("algorithm"), found.algorithm))
    found = Experiment.from_table(names, found)
    for part in KINDS:
        if part in nested:
            current = getattr(found, part)
            found = replace(found, **{part: from_table(type(current), nested.pop(part), f"{part}.", current)})
    if "radio" in nested:
        found = replace(found, radio=_radio_with(found.cell_config or CellConfig(), nested.pop("radio")))
    if "faults" in nested:
        faults = {**to_table(found)["faults"], **nested.pop("faults")}
        found = Experiment.from_table({"faults": faults}, found)
    return Experiment.from_table(nested, found)


def _radio_with(cell: CellConfig, table: Mapping[str, Any]) -> CellConfig:
    """A cell with other values for some fields; those of its models are added to the model that is there."""
    changed: dict[str, Any] = {}
    for name, value in table.items():
        part, _, rest = name.partition(".")
        if not rest:
            changed[part] = value
            continue
        before = changed.get(part, to_table(cell).get(part))
        named = {"name": before} if isinstance(before, str) else dict(before or {})
        changed[part] = {**named, rest: value}
    return from_table(CellConfig, changed, "radio.", cell)


def algorithm_named(word: Any, start: Algorithm) -> Algorithm:
    """The algorithm that a word selects, with the settings that all algorithms have from another one.

    A word is the name of an algorithm, a label of `kfl.comparison.twins`, or package.module:Class for one of your own.
    """
    if isinstance(word, str) and word in METHODS and word not in ALGORITHMS:
        chosen = METHODS[word]
        return replace(chosen, **vars(common_settings(start, ALGORITHMS["local"])))
    cls: type[Algorithm] = class_of(Algorithm, word, "algorithms")
    return start if type(start) is cls else common_settings(start, cls)


def with_settings(entry: Entry, settings: Mapping[str, Mapping[str, Any]], source: str = "settings") -> Entry:
    """An entry with the hyper-parameters that a file has for its label, or else for its algorithm, if it has any."""
    algorithm = entry.experiment.algorithm
    table = settings.get(entry.label, settings.get(_word_of(algorithm)))
    if table is None:
        return entry
    tuned = from_table(type(algorithm), table, f"{entry.label}.", algorithm)
    tuned.validate()
    return replace(entry, experiment=replace(entry.experiment, algorithm=tuned), tuned=source)


def _word_of(algorithm: Algorithm) -> str:
    cls = type(algorithm)
    return algorithm.name if ALGORITHMS.get(algorithm.name) is cls else f"{cls.__module__}:{cls.__qualname__}"


def read_settings(path: Path, labels: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Hyper-parameters from a TOML file with one table per algorithm or label, as `kfl compare --search` writes it.

    The table of an algorithm of your own is `["package.module:Class"]`, in quotes.
    """
    tables = read_config(path, "settings")
    known = {*ALGORITHMS, *METHODS, *labels}
    for name, table in tables.items():
        if not isinstance(table, dict) or (name not in known and ":" not in name):
            names = ", ".join(dict.fromkeys((*labels, *ALGORITHMS)))
            expected = f"a table named after an algorithm: {names}, or package.module:Class in quotes"
            raise ConfigError("settings", name, expected, choices=known)
    return tables


def literal(text: str) -> Any:
    """The value that a text on the command line stands for: yes or no, a number, a list of numbers, or itself.

    >>> [literal(text) for text in ("true", "3", "1e3", "0.5", "8,12", "none", "resnet8-8,cnn-16")]
    [True, 3, 1000, 0.5, [8, 12], 'none', 'resnet8-8,cnn-16']
    """
    word = text.strip()
    if word.lower() in ("true", "yes", "on", "false", "no", "off"):
        return word.lower() in ("true", "yes", "on")
    if "," in word:
        parts = [literal(part) for part in word.split(",") if part.strip()]
        return parts if all(isinstance(part, int | float) for part in parts) else text
    try:
        number = float(word)
    except ValueError:
        return text
    is_whole = math.isfinite(number) and number.is_integer() and "." not in word
    return int(number) if is_whole else number


def refuse_mixed_models(entries: Iterable[Entry]) -> None:
    """Raise ModelError, before anything runs, for algorithms that cannot work with different networks."""
    problems: dict[tuple[str, str], list[str]] = {}
    asked = list(entries)
    algorithms = {entry.experiment.algorithm.name for entry in asked}
    for entry in asked:
        if entry.experiment.algorithm.needs_equal_models and (found := _mixed_models(entry.experiment)) is not None:
            problems.setdefault(found, []).append(entry.label)
    for (mixed, right), equal in problems.items():
        alone = len(equal) == len(asked) > 1 == len(algorithms)  # settings of one algorithm: nothing would be left
        who = [*algorithms] if alone else equal
        raise ModelError(
            f"{and_list(who)} {'averages' if len(who) == 1 else 'average'} weights, which needs equal models, but "
            f"{mixed}: give all devices {right}{'' if alone else f', or leave {and_list(who)} out'}."
        )


def _mixed_models(experiment: Experiment) -> tuple[str, str] | None:
    """That its devices have different networks, and what would be right, in words; None where they are equal."""
    kinds: Sequence[object]
    if names_widths(experiment.model):
        kinds = read_model(experiment.model)
        mixed, right = f"the models are {experiment.model}", f"one with --model {experiment.model.partition(',')[0]}"
    else:
        widths = experiment.resolved().widths
        kinds = widths or PAPER_WIDTHS  # or others, which the data will say
        mixed = f"the widths are {', '.join(map(str, widths))}" if widths else "each device draws its width"
        right = f"one width with --equal-models {kinds[len(kinds) // 2]}"
    return None if len(set(kinds)) == 1 else (mixed, right)


def pick_reference(
    labels: Sequence[str], asked: str | None = None, parts: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """The entry the others are compared with: the one asked for; else one that trains alone; else, where all have the
    same algorithm, one with random devices; else the first.

    `parts` are the algorithm and the scheduler of each label, where these are not its name.

    >>> pick_reference(["kfl", "local"]), pick_reference(["fedavg", "kfl"]), pick_reference(["lyapunov", "uniform"])
    ('local', 'fedavg', 'uniform')
    >>> pick_reference(["V = 1", "random"], parts={"V = 1": ("kfl", "lyapunov"), "random": ("kfl", "uniform")})
    'random'
    """
    if asked is not None:
        if asked not in labels:
            expected = f"one of those that are compared: {', '.join(labels)}"
            raise ConfigError("reference", asked, expected, choices=labels)
        return asked
    known = {label: (parts or {}).get(label, (label, label)) for label in labels}
    alone = [label for label, (algorithm, _) in known.items() if algorithm == "local"]
    if 0 < len(alone) < len(labels):
        return alone[0]
    random = [label for label, (_, scheduler) in known.items() if scheduler == "uniform"]
    one_algorithm = parts is None or len({algorithm for algorithm, _ in known.values()}) == 1
    return random[0] if random and one_algorithm else labels[0]


def and_list(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> and_list(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def zero_upload_twins(entries: Sequence[Entry], twins: Mapping[str, Algorithm]) -> list[Entry]:
    """Twins for the conditions that have none yet: each is the condition's first entry but for the algorithm.

    Raises:
        ConfigError: entries of one condition differ in more than the algorithm, so that one twin cannot stand for all.
    """
    found = []
    for condition in dict.fromkeys(entry.condition for entry in entries):
        own = [entry for entry in entries if entry.condition == condition]
        if has_twin(own):
            continue
        first = own[0]
        for entry in own:
            if replace(entry.experiment, algorithm=first.experiment.algorithm, seed=0) != replace(
                first.experiment, seed=0
            ):
                expected = "only with entries that differ in nothing but the algorithm; or name the twins as entries"
                raise ConfigError("twins", entry.label, expected)
        common = vars(common_settings(first.experiment.algorithm, ALGORITHMS["local"]))
        chosen = {label: replace(twin, **common) for label, twin in twins.items()}
        if any(entry.experiment.algorithm.needs_encoder for entry in own):
            chosen |= ENCODED_TWINS
        found += [
            replace(first, label=label, experiment=replace(first.experiment, algorithm=twin))
            for label, twin in chosen.items()
        ]
    return found


def has_twin(entries: Iterable[Entry]) -> bool:
    """Whether any of them uploads nothing."""
    return any(is_twin(entry.experiment.algorithm) for entry in entries)
