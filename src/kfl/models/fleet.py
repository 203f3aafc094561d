"""The models of a whole fleet: which architecture each device has, and how each model starts.

Devices with the same architecture share one template. No device's weights exist until they are asked for: an
untouched device's model is its seed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kfl.core.errors import ConfigError, ModelError
from kfl.core.lazy import import_object
from kfl.core.randomness import stream, torch_seed
from kfl.models.names import architectures
from kfl.models.network import SharedLayers, shared_layers
from kfl.models.profile import ModelProfile, inspect_model
from kfl.models.zoo import MODELS, ModelBuilder

State = dict[str, Tensor]
"""A model's parameters and buffers by name."""
Models = nn.Module | Sequence[nn.Module] | Callable[[], nn.Module] | Callable[[int], nn.Module]
"""Custom networks: one for all devices, one per device, or a function of nothing or of the device's number."""


@dataclass(frozen=True, eq=False)
class FleetModels:
    """Architecture and starting point of every device's model."""

    builders: tuple[Callable[[], nn.Module], ...]
    """One per architecture: builds a fresh module, initialized from PyTorch's current random state."""
    architecture: NDArray[np.int64]
    """For each device, the index of its architecture."""
    profiles: tuple[ModelProfile, ...]
    """One per architecture."""
    starts: tuple[State | None, ...]
    """One per architecture: given starting weights (a user's own module), or None to draw them by seed. What given
    ones leave out is drawn too."""
    names: tuple[str, ...]
    added: Mapping[str, int] | None = None
    """Sizes of what an algorithm put around each device's own network; None for nothing."""

    @property
    def features(self) -> int:
        """Length of the feature vector, the same for all."""
        return self.profiles[0].features

    @property
    def mixed(self) -> bool:
        """Whether devices have different architectures."""
        return len(set(self.architecture.tolist())) > 1

    @cached_property
    def shared(self) -> SharedLayers:
        """The layers that the models of all devices have in the same shape: the first ones, and the head."""
        with torch.random.fork_rng(devices=[]):
            return shared_layers([self.builders[index]() for index in sorted(set(self.architecture.tolist()))])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample, the same for all."""
        return self.profiles[0].input_shape

    @property
    def classes(self) -> int:
        """Number of logits, the same for all."""
        return self.profiles[0].classes

    def profile(self, device: int) -> ModelProfile:
        """The sizes of a device's model."""
        return self.profiles[int(self.architecture[device])]

    def initial(self, device: int, seed: int, *, common: bool = False) -> State:
        """A device's starting weights: its own by name, or with `common` one start for all devices."""
        index = int(self.architecture[device])
        given = {name: value.clone() for name, value in (self.starts[index] or {}).items()}
        if given and self.added is None:
            return given
        if common:
            return {**_common_start(self, index, seed), **given}
        return {**_drawn(self.builders[index], torch_seed(seed, "initial model", device)), **given}


@lru_cache(maxsize=8)
def _common_start(models: FleetModels, index: int, seed: int) -> State:
    """One start for all devices of an architecture, cached; states are never changed."""
    return _drawn(models.builders[index], torch_seed(seed, "initial model"))


def _drawn(builder: Callable[[], nn.Module], name: int) -> State:
    """Weights as PyTorch initializes them, from a random state of that name."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(name)  # the CPU's alone: a GPU's random state is left as it is
        module = builder()
    return {name: value.detach() for name, value in module.state_dict().items()}


def fleet_from_name(
    model: str,
    widths: Sequence[int] | None,
    devices: int,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
) -> FleetModels:
    """Networks chosen by name: each device draws one.

    `model` is a name in `MODELS`, "auto" (by the kind of sample) or "package.module:function", a function of
    (input_shape, classes, width), and each device draws one of `widths`; None for the network's own. Or it is a name
    with its width, "resnet8-16", or several with commas between them, and each device draws one of these.

    Args:
        model: The name.
        widths: What devices draw from; None for the network's own.
        devices: How many.
        input_shape: Of one sample.
        classes: Of the data.
        seed: Of the draws.

    Raises:
        ModelError: There is no such network, or it does not fit the data.

    >>> fleet_from_name("resnet8-8,cnn-32", None, 5, (3, 32, 32), 10, seed=0).names
    ('resnet8-8', 'cnn-32')
    """
    builders, names = [], []
    for name, width in architectures(model, widths, input_shape):
        builder = MODELS[name] if name in MODELS else _named_builder(name)
        own = _own_width(builder, name) if width is None else width
        builders.append(partial(builder, input_shape=input_shape, classes=classes, width=own))
        names.append(f"{name}-{own}")
    draws = stream(seed, "architecture").random(devices)
    architecture = np.minimum((draws * len(names)).astype(np.int64), len(names) - 1)
    return _checked(tuple(builders), architecture, tuple(names), input_shape, classes)


def fleet_from_modules(
    models: Models,
    devices: int,
    input_shape: tuple[int, ...],
    classes: int,
) -> FleetModels:
    """A user's own modules: one for all devices, one per device, or a function that builds them.

    - A module: every device begins with a copy of it, weights included.
    - A class or a function without arguments: it builds the network of every device, and each device draws initial
      weights of its own by the seed, as with networks that have a name.
    - A function of the device number, or a list with one module per device: each keeps the weights it came with and is
      an architecture of its own here; engines find those built alike.

    Args:
        models: The modules, or what builds them.
        devices: How many.
        input_shape: Of one sample.
        classes: Of the data.

    Raises:
        ModelError: A module has no body and head that fit together and the data.
    """
    everybody = np.zeros(devices, dtype=np.int64)
    if isinstance(models, nn.Module):
        alike = _checked((_constant(models),), everybody, (type(models).__name__,), input_shape, classes)
        return replace(alike, starts=(_weights(models),))
    if callable(models) and not _takes_number(models):
        build = cast("Callable[[], nn.Module]", models)
        name = getattr(build, "__name__", type(build).__name__)
        return _checked((build,), everybody, (name,), input_shape, classes)
    if not callable(models) and not isinstance(models, Sequence):
        raise ModelError(
            f"models is of type {type(models).__name__}, but must be a torch.nn.Module for all devices, a function "
            "that builds one (of the device number, or of nothing), or a list with one per device."
        )
    if not callable(models) and len(models) != devices:
        raise ModelError(f"There are {len(models)} models for {devices} devices; give one model per device.")
    each = cast("Callable[[int], nn.Module]", models)
    modules = [each(device) for device in range(devices)] if callable(models) else list(models)
    for device, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise ModelError(f"The model of device {device} is a {type(module).__name__}, not a torch.nn.Module.")
    builders = tuple(_constant(module) for module in modules)
    names = tuple(f"{type(module).__name__} of device {device}" for device, module in enumerate(modules))
    fleet = _checked(builders, np.arange(devices), names, input_shape, classes)
    # Read the weights after the check: it runs each module once, which gives lazy layers their weights.
    return replace(fleet, starts=tuple(_weights(module) for module in modules))


def _takes_number(build: Callable[..., nn.Module]) -> bool:
    """Whether a function is one of the device's number: it must be given something, or calls that `device`."""
    try:
        wanted = list(inspect.signature(build).parameters.values())
    except ValueError:  # a callable that does not say
        return True
    needed = [
        one
        for one in wanted
        if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)
    ]
    if isinstance(build, type) and needed:
        name = build.__name__
        raise ModelError(
            f"models is the class {name}, which needs {needed[0].name!r}: give one that is built, {name}(…), for the "
            f"same weights on all devices, or lambda: {name}(…) for weights of their own."
        )
    return bool(needed) or (bool(wanted) and wanted[0].name == "device")


def _weights(module: nn.Module) -> State:
    """What a module came with. Read after it was checked: that gives lazy layers their weights."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _checked(
    builders: tuple[Callable[[], nn.Module], ...],
    architecture: NDArray[np.int64],
    names: tuple[str, ...],
    input_shape: tuple[int, ...],
    classes: int,
) -> FleetModels:
    """Build each architecture once and check that all feature sizes agree."""
    profiles = []
    for builder, name in zip(builders, names, strict=True):
        with torch.random.fork_rng(devices=[]):
            module = builder()
        profiles.append(inspect_model(module, input_shape, classes, f"The model {name}"))
    for profile, name in zip(profiles, names, strict=True):
        if profile.features != profiles[0].features:
            raise ModelError(
                f"The model {name} has feature vectors of length {profile.features}, but {names[0]} has "
                f"{profiles[0].features}: knowledge can only be shared when all bodies end in the same size."
            )
    return FleetModels(builders, architecture, tuple(profiles), (None,) * len(names), names)


def _constant(module: nn.Module) -> Callable[[], nn.Module]:
    return lambda: module


def _named_builder(name: str) -> ModelBuilder:
    """Import "package.module:function" and check that it can be called as a builder."""
    try:
        builder = import_object(name)
    except ImportError as problem:
        known = f"one of {', '.join(['auto', *MODELS])}, or package.module:function"
        raise ConfigError("model", name, f"{known} ({problem})") from problem
    if not callable(builder):
        raise ConfigError("model", name, "a function that builds a torch.nn.Module")
    try:
        inspect.signature(builder).bind(input_shape=(1,), classes=2, width=1)
    except (TypeError, ValueError) as problem:
        raise ConfigError("model", name, f"callable as f(input_shape=…, classes=…, width=…) ({problem})") from problem
    found: ModelBuilder = builder
    return found


def _own_width(builder: ModelBuilder, name: str) -> int:
    """The width a network has where none is said: the default of its function."""
    width = inspect.signature(builder).parameters.get("width")
    default = None if width is None else width.default
    if not isinstance(default, int):
        raise ConfigError("model", name, f"given with a width, such as {name}-32: its function has no default")
    return default
