"""A small network, the same on every device, next to a device's own: one feature vector is made of both.

    own body   → d numbers  ┐
                            ├ projector, linear: d₁ + d → d   → own head
    small body → d₁ numbers ┘                          └ its first d₁ numbers → small head

This is the device of FedMRL (Yi et al. 2024). The result is a body and a head again: `body.own`, `body.small` and
`body.projector` make the feature, `head.own` predicts, and `head.small` is there for methods that train it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from kfl.models.fleet import FleetModels, State
from kfl.models.network import parts
from kfl.models.profile import ModelProfile, inspect_model
from kfl.models.zoo import SplitModel, cnn

CONVOLVED = 16
"""Least height and width of images that a convolutional network takes."""


@dataclass(frozen=True)
class SmallNetwork:
    """A small network for any kind of sample: the paper's CNN, narrow, for color images; else a narrow MLP.

    That is the kind of network that `--model auto` gives to devices, so that no device gets convolutions unasked.
    Series get an MLP too.

    >>> SmallNetwork(16, 32).parameters((3, 32, 32), 10), SmallNetwork(16, 32).parameters((1, 28, 28), 10)
    (16402, 25818)
    """

    features: int
    """Length of its feature vector, d₁."""
    width: int
    """Units of its hidden layer."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> SplitModel:
        """Build a fresh one, initialized from PyTorch's current random state."""
        if len(input_shape) == 3 and input_shape[0] == 3 and min(input_shape[1:]) >= CONVOLVED:
            return cnn(input_shape, classes, self.width, self.features)
        body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.features),
            nn.ReLU(),
        )
        return SplitModel(body, nn.Linear(self.features, classes))

    def parameters(self, input_shape: tuple[int, ...], classes: int) -> int:
        """How many numbers it has."""
        return _parameters(self, tuple(input_shape), classes)


@lru_cache(maxsize=64)
def _parameters(small: SmallNetwork, input_shape: tuple[int, ...], classes: int) -> int:
    with torch.device("meta"):
        return sum(value.numel() for value in small.build(input_shape, classes).parameters())


class FusedBody(nn.Module):
    """Both bodies' features, side by side, brought to the length of the own one's."""

    def __init__(self, small: nn.Module, own: nn.Module, projector: nn.Linear) -> None:
        super().__init__()
        self.small = small
        self.own = own
        self.projector = projector

    def forward(self, x: Tensor) -> Tensor:
        """The feature vectors of a batch."""
        feature: Tensor = self.projector(torch.cat([self.small(x), self.own(x)], dim=1))
        return feature


class TwoHeads(nn.Module):
    """The own head, which predicts, and the small one, which only a loss looks at."""

    def __init__(self, small: nn.Module, own: nn.Module) -> None:
        super().__init__()
        self.small = small
        self.own = own

    def forward(self, feature: Tensor) -> Tensor:
        """The own head's logits."""
        logits: Tensor = self.own(feature)
        return logits


def beside(
    build: Callable[[], nn.Module], small: SmallNetwork, features: int, input_shape: tuple[int, ...], classes: int
) -> SplitModel:
    """A small network next to the one that `build` makes, whose feature vectors have so many numbers.

    Both are drawn from the random state as it is now: the own network starts as it would alone, and the small one and
    the projector do not depend on what they stand next to.
    """
    now = torch.get_rng_state()
    added = small.build(input_shape, classes)
    projector = nn.Linear(small.features + features, features)
    torch.set_rng_state(now)
    body, head = parts(build())
    return SplitModel(FusedBody(added.body, body, projector), TwoHeads(added.head, head))


def with_small(models: FleetModels, small: SmallNetwork) -> FleetModels:
    """A fleet in which a small network stands next to each device's own; weights that were given are kept.

    >>> from kfl.models import fleet_from_name
    >>> fleet = with_small(fleet_from_name("mlp", (8,), 2, (6,), 4, seed=0), SmallNetwork(features=3, width=5))
    >>> [name for name in fleet.initial(0, seed=0) if "small" in name and "weight" in name]
    ['body.small.1.weight', 'body.small.3.weight', 'head.small.weight']
    """
    shape, classes, features = models.input_shape, models.classes, models.features

    def around(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        return lambda: beside(build, small, features, shape, classes)

    def inspected(build: Callable[[], nn.Module], name: str) -> ModelProfile:
        with torch.random.fork_rng(devices=[]):
            return inspect_model(build(), shape, classes, f"The model {name}")

    builders = tuple(around(build) for build in models.builders)
    return replace(
        models,
        builders=builders,
        profiles=tuple(inspected(build, name) for build, name in zip(builders, models.names, strict=True)),
        starts=tuple(None if start is None else _renamed(start) for start in models.starts),
        added=asdict(small),
    )


def _renamed(start: State) -> State:
    """Weights of a network under the names that they have next to a small one; those of neither part are left out."""
    found = {}
    for name, value in start.items():
        part, _, rest = name.partition(".")
        if part in ("body", "head"):
            found[f"{part}.own.{rest}"] = value
    return found
