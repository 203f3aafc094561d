"""What a person writes for a device: one function that returns its data and its model.

    # my_fleet/device.py
    from kfl_fleet import DeviceSetup

    def device(partition: int, config: Mapping[str, Any]) -> DeviceSetup:
        x, y = load_my_images(config["folder"])
        return DeviceSetup(model=build_my_model, train_x=x, train_y=y, classes=10)

`partition` is the device's number in the fleet, from 0; `config` what its own TOML file says (empty without one). The
function is called once per run, in a process that keeps what it returns; large arrays may be memory-mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from kfl.core.errors import ConfigError
from kfl.core.lazy import import_object
from kfl.encoders import AUTO, NONE, check_encoder

if TYPE_CHECKING:
    from torch import nn

    from kfl.data import Dataset


@dataclass(frozen=True)
class Advice:
    """What the server's scheduler decided for one device in one round."""

    round: int
    share: float
    """Fraction of the band."""
    power_w: float
    """Transmit power."""
    upload_time_s: float
    """Time the upload may take at that share and power."""
    compute_energy_j: float
    """What the cell's formulas say the local work costs this device: κ τ D C f² / n as printed."""
    upload_energy_j: float
    """What its radio spends: power × time as printed."""
    deadline_s: float
    """Seconds of real time until the server stops waiting."""
    clock_hz: float = 0.0
    """Clock to compute with; 0 where the cell's energy model leaves no choice."""


Apply = Callable[[Advice], None]
"""A device's own way to set its radio or its processor by the server's advice."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Hardware:
    """What a device's hardware can do; None leaves a number to the server's cell."""

    cpu_hz: float | None = None
    """Clock; None takes the one the server's cell gives this device."""
    flops_per_cycle: float | None = None
    power_coefficient: float | None = None
    """κ of the chip, joule · second² per cycle³."""
    max_power_w: float | None = None
    """Largest transmit power; None for the cell's."""
    min_cpu_hz: float | None = None
    """Slowest clock the device may be slowed to."""
    static_power_w: float | None = None
    """Drawn while the processor computes, besides κ f³."""
    circuit_power_w: float | None = None
    """Drawn while the radio sends, besides the amplifier."""
    amplifier_efficiency: float | None = None
    """Radiated over drawn power, above 0 and at most 1."""
    min_power_w: float | None = None
    """Least radiated power while sending."""
    tail_j: float | None = None
    """Joules of opening a connection and keeping it after the last packet, once per round."""
    receive_power_w: float | None = None
    """Drawn while the broadcast is on the air."""
    budget_j: float | None = None
    """Energy for the whole run; None for the cell's, infinity for none."""
    gain: float | None = None
    """Channel gain as the device measures it now, linear; used when the server's channel is `reported`."""

    def hardware(self) -> dict[str, Any]:
        """These numbers alone, by name."""
        return {one.name: getattr(self, one.name) for one in fields(Hardware)}


@dataclass(frozen=True)
class Bound:
    """What one number of a device's hardware can be.

    >>> print(Bound(1.0)), Bound(1.0, zero=True).holds(0.0), Bound(1.0).holds(0.0)
    above 0 and at most 1
    (None, True, False)
    """

    most: float
    """Infinite where infinity is a value, too."""
    zero: bool = False
    """Whether it can be 0."""

    def holds(self, value: float) -> bool:
        """Whether a number is within the bound; NaN is not."""
        return (value > 0 or (self.zero and value == 0)) and value <= self.most

    def __str__(self) -> str:
        limit = "" if self.most == inf else f" and at most {self.most:g}"
        return f"{'0 or more' if self.zero else 'above 0'}{limit}"


HARDWARE = {
    "cpu_hz": Bound(1e12),
    "flops_per_cycle": Bound(1e12),
    "power_coefficient": Bound(1.0, zero=True),
    "max_power_w": Bound(1e6),
    "min_cpu_hz": Bound(1e12),
    "static_power_w": Bound(1e4, zero=True),
    "circuit_power_w": Bound(1e4, zero=True),
    "amplifier_efficiency": Bound(1.0),
    "min_power_w": Bound(1e4, zero=True),
    "tail_j": Bound(1e6, zero=True),
    "receive_power_w": Bound(1e4, zero=True),
    "budget_j": Bound(inf),
    "gain": Bound(1e6),
}
"""What a device may say about its hardware: a person in a `DeviceSetup`, and its node to the server."""


@dataclass(frozen=True, eq=False)
class DeviceSetup(Hardware):
    """A device: its model, its data, and what its hardware can do.

    >>> import numpy as np
    >>> from kfl.models import mlp
    >>> x, y = np.zeros((20, 1, 8, 8), dtype=np.float32), np.arange(20) % 2
    >>> setup = DeviceSetup(lambda: mlp(input_shape=(1, 8, 8), classes=2, width=16), x, y, classes=2)
    >>> setup.dataset().input_shape
    (1, 8, 8)
    """

    model: nn.Module | Callable[[], nn.Module]
    """A module with `body` and `head`, or a function that builds one. A function's model starts from weights drawn by
    the run's seed and the device's number, as in the simulator; a module starts with the weights it has."""
    train_x: ArrayLike
    """(samples, *input_shape), uint8 or float."""
    train_y: ArrayLike
    test_x: ArrayLike | None = None
    """Without a test set, a fifth of the training samples is set aside."""
    test_y: ArrayLike | None = None
    classes: int | None = None
    """Classes of the whole fleet; by default the largest label plus one, right only if this device holds that class."""
    scale: float | None = None
    """Inputs are (x · scale − mean) / std; none for 1/255 of bytes and 1 of all else."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    encoder: str = NONE
    """What makes numbers of every sample before anything is learned, as `--encoder` names it: the same on all devices
    and in server.toml. `model` then takes these numbers."""
    apply: Apply | None = None
    """Called with the server's advice before the upload, so that the radio can use its share and power."""
    prepare: Apply | None = None
    """Called with the server's advice before training, so that the processor can use its clock."""
    masked_only: bool = False
    """Refuse rounds in which the server would see what this device uploads (`fleet.secure_sums` is off)."""
    name: str = "device"
    """Of the data, for logs."""
    model_name: str | None = None
    """Of the model, for tables; None for the name of its class."""

    @property
    def has_no_test(self) -> bool:
        """Whether the device says that it has no test samples: empty arrays, not None."""
        return self.test_y is not None and len(np.asarray(self.test_y)) == 0

    def dataset(self) -> Dataset:
        """The samples as kfl reads them. A dataset needs a test set; a device without one is never tested on it."""
        from kfl.data import Dataset

        stand_in = self.has_no_test
        found = Dataset.from_arrays(
            self.train_x,
            self.train_y,
            np.asarray(self.train_x)[:1] if stand_in else self.test_x,
            np.asarray(self.train_y)[:1] if stand_in else self.test_y,
            name=self.name,
            classes=self.classes,
            scale=self.scale,
            mean=self.mean,
            std=self.std,
        )
        if self.encoder == NONE:
            return found
        from kfl.encoders import encoded

        return encoded(found, self.encoder)

    def validate(self) -> None:
        """Raise ConfigError for a number that hardware cannot have, and for an encoder that does not exist."""
        check_encoder(self.encoder)
        if self.encoder == AUTO:
            raise ConfigError("encoder", AUTO, "named, as in server.toml: all devices must have the same")
        for name, bound in HARDWARE.items():
            value = getattr(self, name)
            if value is not None and not bound.holds(value):
                raise ConfigError(name, value, f"{bound}, or none")
        if self.min_cpu_hz is not None and self.cpu_hz is not None and self.min_cpu_hz > self.cpu_hz:
            raise ConfigError("min_cpu_hz", self.min_cpu_hz, f"at most cpu_hz, {self.cpu_hz:g}")


DeviceFunction = Callable[[int, Mapping[str, Any]], DeviceSetup]


def device_function(address: str) -> DeviceFunction:
    """The function that `package.module:function` names.

    >>> device_function("kfl_fleet.device.simulated:device").__name__
    'device'
    """
    try:
        found: Any = import_object(address)
    except ImportError as problem:
        expected = f"package.module:function, a function that can be imported ({problem})"
        raise ConfigError("device", address, expected) from problem
    if not callable(found):
        raise ConfigError("device", address, "a function of the device's number and its config")
    function: DeviceFunction = found
    return function


def make_setup(address: str, partition: int, config: Mapping[str, Any]) -> DeviceSetup:
    """Call a person's device function and check what it returns."""
    setup = device_function(address)(partition, config)
    if not isinstance(setup, DeviceSetup):
        raise ConfigError("device", address, f"a function that returns a DeviceSetup, not {type(setup).__name__}")
    setup.validate()
    return setup
