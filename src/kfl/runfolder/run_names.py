"""Names for the folders of many runs: a person reads what differs, a short hash makes each its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from kfl.experiment.experiment import Experiment

LONGEST = 96
"""Characters of the readable part: far below what file systems allow."""


def digest(experiment: Experiment) -> str:
    """Eight characters that stand for a whole configuration, its seed included.

    >>> digest(Experiment()) == digest(Experiment()), digest(Experiment()) == digest(Experiment(seed=1))
    (True, False)
    """
    return blake2b(experiment.identity().encode(), digest_size=4).hexdigest()


def run_names(experiments: Sequence[Experiment]) -> list[str]:
    """One name per experiment: algorithm, what differs among them, seed, hash.

    >>> from kfl.algorithms import Kfl, Local
    >>> some = [Kfl(), Kfl(knowledge_weight=0.1), Local()]
    >>> [name.rpartition("-")[0] for name in run_names([Experiment(algorithm=one) for one in some])]
    ['kfl-knowledge_weight0.03125-seed0', 'kfl-knowledge_weight0.1-seed0', 'local-seed0']
    """
    tables = [_flat(experiment.to_table()) for experiment in experiments]
    scopes = [{name: _scope(name, table) for name in table} for table in tables]
    values: dict[tuple[str, str], set[str]] = {}
    for table, scope in zip(tables, scopes, strict=True):
        for name, value in table.items():
            values.setdefault((scope[name], name), set()).add(str(value))
    names = []
    for experiment, table, scope in zip(experiments, tables, scopes, strict=True):
        told = [experiment.algorithm.name]
        for name, value in table.items():
            if name not in ("seed", "algorithm.name") and len(values[scope[name], name]) > 1:
                told.append(str(value) if name.endswith(".name") else f"{name.rpartition('.')[2]}{value}")
        readable = re.sub(r"[^A-Za-z0-9._-]+", "", "-".join(told))[:LONGEST]
        names.append(f"{readable}-seed{experiment.seed}-{digest(experiment)}")
    return names


def _scope(name: str, table: Mapping[str, Any]) -> str:
    """Parameters of an algorithm or a scheduler are compared with others of the same one only."""
    part, dot, rest = name.partition(".")
    return str(table[f"{part}.name"]) if dot and rest != "name" and f"{part}.name" in table else ""


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
