"""What the methods of a twin study are compared on."""

from __future__ import annotations

from dataclasses import dataclass

from kfl.experiment import Experiment


@dataclass(frozen=True)
class Condition:
    """One setting in which all methods are compared."""

    name: str
    """The word that selects it."""
    title: str
    """In words."""
    experiment: Experiment
    """Without algorithm and seed."""
    searched: Condition | None = None
    """The condition in which hyper-parameters are searched for it; none for this one."""
