"""The methods that are asked whether they share, and the twins that upload nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    FederatedDistillation,
    FedGh,
    FedMrl,
    FedProto,
    FedTgp,
    FixedKnowledge,
    Kfl,
    LgFedAvg,
    Local,
    SelfKnowledge,
    SharedStem,
)
from kfl.core.config import from_table, read_config
from kfl.core.errors import ConfigError
from kfl.experiment import class_of, common_settings

TWINS: dict[str, Algorithm] = {
    "local": Local(),
    "self-knowledge": SelfKnowledge(),
    "fixed-knowledge": FixedKnowledge(),
    "simplex": FixedKnowledge(targets="simplex"),
}
"""They upload nothing: training alone, and pulls of the features to one's own class means, to random points, and to the
corners of a simplex."""
METHODS: dict[str, Algorithm] = {
    "kfl": Kfl(),
    "shared-stem": SharedStem(),
    "lg-fedavg-stem": LgFedAvg(share="stem"),
    "lg-fedavg-head": LgFedAvg(share="head"),
    "fd": FederatedDistillation(),
    "fedproto": FedProto(),
    "fedtgp": FedTgp(),
    "fedgh": FedGh(),
    "fedgh-released": FedGh(head="as-released"),
    "fedmrl": FedMrl(),
}
"""Methods that upload something, by the label they have in tables."""
UNLIMITED = 10**12
"""A budget in bits that any stem fits."""
BITS: dict[str, Algorithm] = {
    f"shared-stem-{bits}": SharedStem(bits_per_value=bits, budget_bits=UNLIMITED) for bits in (1, 2, 8, 32)
}
"""The shared stem with fewer and more bits per value, whatever an upload then takes."""
LABELS: dict[str, Algorithm] = {**METHODS, **BITS, **TWINS}
"""Everything that has a label of its own."""
STANDARD = (*METHODS, *TWINS)
"""What is compared by default."""


def is_twin(algorithm: Algorithm) -> bool:
    """Whether a device that runs it uploads nothing."""
    return not algorithm.sends()


def chosen(labels: Sequence[str], start: Algorithm | None = None) -> dict[str, Algorithm]:
    """Methods by label: a label from this page, the name of an algorithm, or package.module:Class.

    What all algorithms have, such as the learning rate, is taken from `start`. Somebody has to be the twin: without one
    among the labels nothing could be said.

    >>> chosen(["kfl", "local"], Local(learning_rate=0.1))["kfl"].learning_rate
    0.1
    """
    found: dict[str, Algorithm] = {}
    for label in dict.fromkeys(labels):
        algorithm = LABELS.get(label) or _class_of(label)()
        found[label] = algorithm if start is None else _with_common(algorithm, start)
        found[label].validate()
    if not any(is_twin(algorithm) for algorithm in found.values()):
        raise ConfigError("methods", ",".join(labels), f"a list with a twin that uploads nothing: {', '.join(TWINS)}")
    return found


def with_settings(methods: Mapping[str, Algorithm], path: Path) -> dict[str, Algorithm]:
    """Methods with hyper-parameters from a TOML file that has a table for a label or for an algorithm."""
    tables = read_config(path, "settings")
    for name, table in tables.items():
        if not isinstance(table, dict) or name not in {*LABELS, *ALGORITHMS, *methods}:
            raise ConfigError("settings", name, f"a table named after a method: {', '.join(methods)}")
    found = {}
    for label, algorithm in methods.items():
        table = tables.get(label) or tables.get(algorithm.name) or {}
        found[label] = from_table(type(algorithm), table, f"{label}.", algorithm)
        found[label].validate()
    return found


def _class_of(label: str) -> type[Algorithm]:
    if ":" not in label and label not in ALGORITHMS:
        known = f"one of {', '.join(LABELS)}, another algorithm, or package.module:Class of your own"
        raise ConfigError("methods", label, known, choices=(*LABELS, *ALGORITHMS))
    found: type[Algorithm] = class_of(Algorithm, label, "methods")
    return found


def _with_common(algorithm: Algorithm, start: Algorithm) -> Algorithm:
    """The algorithm with the fields that all algorithms have from another."""
    common: dict[str, Any] = vars(common_settings(start, Local))
    return replace(algorithm, **common)
