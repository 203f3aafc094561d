"""What a device says about itself once: enough to schedule it and to judge what it sends later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from kfl_fleet.messages.protocol import PROTOCOL_VERSION, RefusedError, Values, number, whole, word
from kfl_fleet.setup import HARDWARE, Hardware

if TYPE_CHECKING:
    from kfl.engine import DeviceProfile
    from kfl.models import ModelProfile, SharedLayers

MOST_SAMPLES = 2**53
MOST_CLASSES = 100_000
MOST_FEATURES = 1_000_000
MOST_PARAMETERS = 10**13
MOST_PROFILE_BYTES = 1 << 20
"""A profile has a count for every class, and not much else."""
WHOLE_DEVICE = (
    *("min_cpu_hz", "static_power_w", "circuit_power_w", "amplifier_efficiency"),
    *("min_power_w", "tail_j", "receive_power_w"),
)
"""Those that make a whole device; earlier versions knew none."""


MODEL_SIZES = ("classes", "features", "parameters", "body_parameters", "flops", "body_flops")


def model_sizes(source: ModelProfile | Profile) -> dict[str, Any]:
    """The sizes of a model that a device tells the server; its layers stay with the device."""
    return {name: getattr(source, name) for name in MODEL_SIZES}


@dataclass(frozen=True)
class Profile(Hardware):
    """One device's data, model and hardware.

    >>> profile = Profile(0, 2, 64, 1000, 900, 2000, 1900, (8,), 30, (10, 20), 5, 3)
    >>> Profile.read(profile.values()) == profile
    True
    """

    device: int
    """Its number in the fleet, its partition."""
    classes: int
    features: int
    parameters: int
    body_parameters: int
    flops: int
    """Of one forward pass of one sample."""
    body_flops: int
    input_shape: tuple[int, ...]
    samples: int
    samples_per_class: tuple[int, ...]
    """Empty where the algorithm hides counts (`noise_counts`)."""
    test_samples: int
    correct: int
    """Right test predictions of its model now."""
    model: str = "model"
    meter: str = "formula"

    def values(self) -> Values:
        """As a table for a message; what is None or empty is left out, since Flower has no type for an empty list."""
        given = {name: value for name, value in asdict(self).items() if value is not None and value != ()}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return {"protocol": PROTOCOL_VERSION, "kind": "profile", **plain}

    def digest(self) -> str:
        """A short name for what a device has: it changes when its data, model or hardware do, not when it learns."""
        unsaid = {name for name in WHOLE_DEVICE if getattr(self, name) is None}  # as an earlier version would not say
        lasting = {name: v for name, v in asdict(self).items() if name not in {"correct", "gain", *unsaid}}
        return hashlib.blake2b(json.dumps(lasting, sort_keys=True).encode(), digest_size=8).hexdigest()

    def for_engine(self, shared: SharedLayers | None = None, network: ModelProfile | None = None) -> DeviceProfile:
        """The same as algorithms know it when they say what a round costs.

        The server knows what networks share, and the layers of the `network` that it builds: where that is the
        device's, by its sizes, an algorithm sees them too.
        """
        from kfl.engine import DeviceProfile
        from kfl.models import ModelProfile

        held = sum(count > 0 for count in self.samples_per_class) or None
        own = ModelProfile(**model_sizes(self), input_shape=self.input_shape)
        if network is not None and model_sizes(network) == model_sizes(self):
            own = network
        return DeviceProfile(own, self.samples, held, shared)

    @staticmethod
    def read(values: Mapping[str, Any]) -> Profile:
        """What a device sent, checked; RefusedError says what is wrong with it."""
        classes = whole(values, "classes", 1, MOST_CLASSES)
        samples = whole(values, "samples", 1, MOST_SAMPLES)
        tests = whole(values, "test_samples", 0, MOST_SAMPLES)
        parameters = whole(values, "parameters", 1, MOST_PARAMETERS)
        flops = whole(values, "flops", 1, MOST_SAMPLES)
        per_class = _wholes(values, "samples_per_class")
        if per_class and (len(per_class) != classes or sum(per_class) != samples):
            raise RefusedError("samples_do_not_add_up", samples=samples, classes=classes)
        shape = _wholes(values, "input_shape")
        if not 1 <= len(shape) <= 8 or min(shape) < 1:
            raise RefusedError("not_shape")
        return Profile(
            device=whole(values, "device", 0, MOST_SAMPLES),
            classes=classes,
            features=whole(values, "features", 1, MOST_FEATURES),
            parameters=parameters,
            body_parameters=whole(values, "body_parameters", 0, parameters),
            flops=flops,
            body_flops=whole(values, "body_flops", 0, flops),
            input_shape=shape,
            samples=samples,
            samples_per_class=per_class,
            test_samples=tests,
            correct=whole(values, "correct", 0, tests),
            model=word(values, "model"),
            meter=word(values, "meter"),
            **{name: _optional(values, name) for name in HARDWARE},
        )

    def to_json(self) -> Values:
        """As plain values for a file; JSON has no infinity, so that is a word."""
        return {name: "inf" if value == inf else value for name, value in self.values().items()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Profile:
        """Read what `to_json` gave; RefusedError where a file holds something else."""
        return Profile.read({name: inf if value == "inf" else value for name, value in values.items()})


def _optional(values: Mapping[str, Any], name: str) -> float | None:
    if values.get(name) is None:
        return None
    value, bound = number(values, name), HARDWARE[name]
    if not bound.holds(value):
        raise RefusedError("not_between", field=name, found=value, above=0.0, most=bound.most)
    return value


def _wholes(values: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = values.get(name, ())
    if not isinstance(found, list | tuple) or len(found) > MOST_CLASSES:
        raise RefusedError("not_list", field=name)
    if any(isinstance(v, bool) or not isinstance(v, int) or not 0 <= v <= MOST_SAMPLES for v in found):
        raise RefusedError("not_samples", field=name)
    return tuple(found)
