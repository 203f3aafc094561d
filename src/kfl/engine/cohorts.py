"""Which devices can be one batch: those whose models are built alike, or alike up to the width of hidden layers."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kfl.engine.precision import Arithmetic
from kfl.engine.vectorized import Vectorizability, try_module
from kfl.models.network import Network, build_wide, tied, widest

if TYPE_CHECKING:
    from kfl.data import LocalData
    from kfl.models import FleetModels

TRIED_SAMPLES = 3
LOGGED = 8
"""Families whose way is logged."""

log = logging.getLogger("kfl")


@dataclass(frozen=True, eq=False)
class Family:
    """Architectures that share a batch."""

    name: str
    template: nn.Module
    """A module of the widest architecture, where the engine computes."""
    network: Network | None
    """The widest; None for a module of unknown layers."""
    shapes: dict[str, tuple[int, ...]]
    """Shape of every entry of the widest model's state."""
    buffers: frozenset[str]
    """Those of them that are no parameters."""
    verdict: Vectorizability


class Families:
    """The family of each device. Modules are built and tried when they are first asked for."""

    def __init__(self, data: LocalData, models: FleetModels, arithmetic: Arithmetic, where: torch.device) -> None:
        self._data = data
        self._models = models
        self._arithmetic = arithmetic
        self._where = where
        self._modules: dict[int, nn.Module] = {}
        self._networks: dict[int, Network | None] = {}
        self._keys: dict[int, Hashable] = {}
        self._built: dict[Hashable, Family] = {}
        self._of: dict[tuple[int, bool], Family] = {}

    def of(self, device: int, *, exact: bool = False) -> Family:
        """A device's family; with `exact`, only architectures of the same widths are in it."""
        index = int(self._models.architecture[device])
        found = self._of.get((index, exact))
        if found is None:
            network = self._network(index)
            key = (False, self._key(index)) if network is None or not exact else (True, network)
            if key not in self._built:
                self._built[key] = self._build(index, exact=exact)
                self._log(self._built[key])
            found = self._of[index, exact] = self._built[key]
        return found

    def architecture(self, device: int) -> int:
        """The number of a device's architecture."""
        return int(self._models.architecture[device])

    def built(self) -> list[Family]:
        """The families that were asked for so far."""
        return list(self._built.values())

    def _module(self, index: int) -> nn.Module:
        if index not in self._modules:
            with torch.random.fork_rng(devices=[]):
                self._modules[index] = self._models.builders[index]()
        return self._modules[index]

    def _network(self, index: int) -> Network | None:
        if index not in self._networks:
            module = self._module(index)
            single = all(value.dtype == torch.float32 for value in module.parameters())
            self._networks[index] = self._models.profiles[index].network if single else None
        return self._networks[index]

    def _key(self, index: int) -> Hashable:
        if index not in self._keys:
            network = self._network(index)
            self._keys[index] = structure(self._module(index)) if network is None else ("network", network.family)
        return self._keys[index]

    def _build(self, index: int, *, exact: bool) -> Family:
        network, module = self._network(index), self._module(index)
        if network is None:
            template = copy.deepcopy(module)
            verdict = self._tried(index, template)
        else:
            alike = [self._network(other) for other in range(len(self._models.builders))]
            family = [other for other in alike if other is not None and other.family == network.family]
            network = network if exact else widest(family)
            with torch.random.fork_rng(devices=[]):
                template = build_wide(module, network)
            verdict = Vectorizability(True, True, "known layers")
        shapes = {name: tuple(value.shape) for name, value in template.state_dict().items()}
        buffers = frozenset(name for name, _ in template.named_buffers())
        template = template.to(self._where, self._arithmetic.dtype)
        return Family(self._models.names[index], template, network, shapes, buffers, verdict)

    def _tried(self, index: int, module: nn.Module) -> Vectorizability:
        rows = [index % len(self._data.dataset.train_y) for index in range(TRIED_SAMPLES)]
        inputs, labels = self._data.dataset.inputs("train", rows), self._data.dataset.labels("train", rows)
        return try_module(module, inputs, labels)

    def _log(self, family: Family) -> None:
        """Say once how a family runs and why; of a fleet with many, the first few and those that are slow."""
        many = len(self._built) > LOGGED
        if not family.verdict.vectorized:
            log.log(
                logging.DEBUG if many else logging.WARNING,
                "%s cannot be vectorized: %s. Its devices are trained one after another.",
                family.name,
                family.verdict.reason,
            )
        elif family.network is None and not many:
            log.info("%s: its devices are one batch, by torch.func.", family.name)
        if len(self._built) == LOGGED + 1:
            log.info("The fleet has more architectures; how each of them runs is said at the level DEBUG.")


def structure(module: nn.Module) -> Hashable:
    """A value that is equal for modules that are built alike, whatever their weights; too careful where unsure.

    >>> structure(nn.Linear(2, 3)) == structure(nn.Linear(2, 3)), structure(nn.ReLU()) == structure(nn.Tanh())
    (True, False)
    """
    found: list[Any] = []
    common = set(vars(nn.Module()))
    state = module.state_dict()
    weights = {id(value) for value in module.parameters()}
    for name, part in module.named_modules():
        own = {key: _plain(value, weights) for key, value in vars(part).items() if key not in common}
        hooked = id(part) if any(vars(part)[key] for key in common if key.endswith("hooks")) else 0
        found.append((name, type(part), tuple(sorted(own.items(), key=lambda item: item[0])), hooked))
    found.extend((name, tuple(value.shape), value.dtype) for name, value in state.items())
    found.extend((name, _plain(value, set())) for name, value in module.named_buffers() if name not in state)
    found.extend(tied(module).items())
    return tuple(found)


def _plain(value: Any, weights: set[int]) -> Hashable:
    """A value that can be compared; an object without a value of its own stands for itself.

    A layer may hold its weights, by their ids in `weights`, a second time in a list, as recurrent ones do.
    """
    if isinstance(value, weakref.ref):
        value = value()
    if id(value) in weights:
        return "a weight"
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy().tobytes()
    if isinstance(value, list | tuple):
        return tuple(_plain(item, weights) for item in value)
    if isinstance(value, FunctionType) and not value.__kwdefaults__:
        # A lambda that a builder makes anew for every module: alike where its code and all that it sees are.
        seen = tuple(cell.cell_contents for cell in value.__closure__ or ())
        return value.__code__, id(value.__globals__), _plain((value.__defaults__, seen), weights)
    return value if isinstance(value, int | float | str | bool | type(None)) else id(value)
