"""The objectives of a cohort as one: what they share, and the tensors in which they differ.

`torch.func.vmap` runs one function for all devices. Objectives are dataclasses, so the tensors in their fields can
be taken out, stacked over devices, and put back inside that function.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from kfl.engine.objectives import Objective

Path = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ObjectiveParts:
    """One objective for all devices of a cohort, with its tensors taken out."""

    sample: Objective
    """The first device's, to put tensors into."""
    shared: dict[Path, Tensor]
    """Tensors that are the same for all devices."""
    stacked: dict[Path, Tensor]
    """Tensors with one row per device."""
    spec: Hashable
    """Everything but the tensors: equal specs are the same function of them."""

    def with_tensors(self, tensors: dict[Path, Tensor]) -> Objective:
        """The objective with other tensors in the same places."""
        return cast(Objective, _rebuilt(self.sample, (), tensors))


def split_objective(objectives: Sequence[Objective]) -> ObjectiveParts | None:
    """Take the tensors out of the objectives of a cohort; None where they differ in more than tensors."""
    first = objectives[0]
    spec = spec_of(first)
    # Devices mostly share one object: few are looked at, however many devices there are.
    distinct = {id(objective): objective for objective in objectives}
    if len(distinct) > 1 and any(spec_of(objective) != spec for objective in distinct.values()):
        return None
    leaves = {key: dict(_leaves(objective, ())) for key, objective in distinct.items()}
    own = leaves[id(first)]
    shared = {path: leaf for path, leaf in own.items() if all(other[path] is leaf for other in leaves.values())}
    rows = [leaves[id(objective)] for objective in objectives]
    stacked = {path: torch.stack([row[path] for row in rows]) for path in own if path not in shared}
    return ObjectiveParts(first, shared, stacked, spec)


@cache
def takes_weights(kind: type[Objective]) -> bool:
    """Whether a loss can be told how much each sample weighs."""
    return "weights" in inspect.signature(kind.loss).parameters


def _leaves(thing: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    for field in fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, Tensor):
            yield (*path, field.name), value
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _leaves(value, (*path, field.name))


def spec_of(thing: Any) -> Hashable:
    """Everything of an objective but its tensors' values: with equal specs, two can be one batch."""
    found: list[Any] = [type(thing)]
    for field in fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, Tensor):
            found.append((field.name, value.shape, value.dtype))
        elif is_dataclass(value) and not isinstance(value, type):
            found.append((field.name, spec_of(value)))
        else:
            # What cannot be compared by value is compared by identity: too careful is only slow.
            found.append((field.name, value if isinstance(value, Hashable) else id(value)))
    return tuple(found)


def _rebuilt(thing: Any, path: Path, tensors: dict[Path, Tensor]) -> Any:
    new = copy.copy(thing)
    for field in fields(thing):
        value, place = getattr(thing, field.name), (*path, field.name)
        if place in tensors:
            object.__setattr__(new, field.name, tensors[place])
        elif is_dataclass(value) and not isinstance(value, type):
            object.__setattr__(new, field.name, _rebuilt(value, place, tensors))
    return new
