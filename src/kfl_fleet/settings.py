"""The server's configuration file: an experiment, as `kfl run --config` takes it, with one more table `[fleet]`.

    rounds = 200
    devices = 12
    seed = 0
    [algorithm]
    name = "kfl"
    [scheduler]
    name = "lyapunov"
    [radio]
    bandwidth_hz = 1e6
    [fleet]
    deadline_s = 60.0
    quorum = 0.5
    channel = "simulated"

What devices hold is not in it: data and models are theirs. Of the experiment, a fleet uses `devices`, `rounds`,
`seed`, `algorithm`, `scheduler`, `radio`, `hard_budget` and `real_work`; the fields that describe simulated data and
models (`dataset`, `split`, `widths`, ...) only matter for simulated devices (`kfl_fleet.device.simulated`).
Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Any, Literal

from kfl.algorithms.sums import why_not_summed
from kfl.core.config import Table, dump_toml, from_table, load_toml, read_config, to_table
from kfl.core.errors import ConfigError
from kfl.encoders import AUTO
from kfl.experiment import Experiment
from kfl_fleet.logs import LogFormat
from kfl_fleet.secure import LEAST_DEVICES, RANGES

ChannelKind = Literal["simulated", "measured", "reported"]


@dataclass(frozen=True)
class FleetSettings:
    """How a server runs a fleet of real devices: real time, real ports, real channels.

    >>> FleetSettings(deadline_s=30).validate()
    >>> FleetSettings(quorum=2.0).validate()
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: fleet.quorum is 2.0, but must be from 0 to 1.
    """

    deadline_s: float = 120.0
    """Seconds of real time in which a chosen device must answer; later answers are not used. The radio's own
    deadline_s is different: the T_max of the paper's cost model, from which shares and powers are computed."""
    poll_s: float = 0.2
    """Seconds between two looks for answers."""
    quorum: float = 0.5
    """Share of the chosen devices whose upload must be usable; with fewer the round passes without a change."""
    min_devices: int = 1
    """Devices that must be there before a round begins; the server waits for them."""
    join_deadline_s: float = 60.0
    """Before the first round, wait this long for all devices; then continue as soon as min_devices are there."""
    profile_deadline_s: float = 60.0
    """Seconds in which a device that appears must say what it has."""
    pause_s: float = 0.0
    """Seconds of rest between two rounds."""
    channel: ChannelKind = "simulated"
    """Channel gains: drawn by the seed as the simulator does, measured (from the file gains), or reported by devices
    with every answer."""
    gains: str | None = None
    """Trace of measured gains, CSV with the columns round (or time_s), device, and gain (or gain_db), its rows in any
    order. A device without a gain yet takes no part."""
    max_compute_power_w: float = 100.0
    """No device draws more than this while it computes: reported energy above this times deadline_s is refused."""
    registered_samples: tuple[int, ...] = ()
    """Training samples that devices are known to have: one number for each device, or one for all. Who says more counts
    with these. Empty where unknown; then most_samples decides."""
    most_samples: float = 10.0
    """No device counts with more samples than this times the fleet's median, nor with more test samples than this times
    their median; infinite for no bound."""
    largest_weight: float = 0.5
    """Largest share of one device in an average, for each class by itself where a class has its own average; 1 for no
    bound. Of n devices none has less than 1/n, so two weigh the same. Robust rules bound weights themselves."""
    most_budget_j: float = inf
    """Largest budget that a device may claim for the whole run, in joules; infinite: each knows its own battery."""
    metrics_port: int | None = None
    """Port for Prometheus; 0 takes a free one, none serves nothing."""
    metrics_host: str = "127.0.0.1"
    """Address the port is opened on. Metrics ask for no password: another than 127.0.0.1 belongs behind a firewall or a
    network of containers."""
    metrics_devices: int = 1000
    """A fleet of more devices has no series per device, which Prometheus would have to keep; 0 for none at all."""
    privacy_delta: float = 1e-5
    """The δ for which metrics and status compute the ε that devices have spent, where uploads have noise."""
    privacy_alert_epsilon: float | None = None
    """Alerts fire when a device has spent nine tenths of this ε; none for no alert. Nothing else depends on it."""
    log_format: LogFormat = "text"
    """What the server logs: sentences (text), or one JSON object per line (json)."""
    secure_sums: bool = False
    """Add uploads under masks, so that the server learns sums and no upload; needs an algorithm that averages."""
    secure_threshold: float = 2 / 3
    """Share of a round's devices that must see its sum through, always a majority; with fewer nothing changes."""
    secure_neighbours: int | None = None
    """With how many others a device masks its upload, an even number; none for all, right for up to 100 devices."""
    secure_bits: int = 32
    """Bits of a masked number, 32 or 64: sums of 64 are exact to float64, and uploads twice as large."""
    secure_range: float = 64.0
    """Largest magnitude of a value that is averaged. A device clips its value times its samples to this times the most
    samples of a device (rounded up to a power of two) before it masks it."""
    secure_deadline_s: float = 30.0
    """Seconds in which a device must answer each of the three short steps of a secure sum."""

    def validate(self) -> None:
        """Raise ConfigError for the first field that cannot work."""
        for name in ("deadline_s", "poll_s", "profile_deadline_s", "max_compute_power_w", "secure_deadline_s"):
            _require(0 < getattr(self, name) < inf, name, getattr(self, name), "a positive number")
        for name in ("join_deadline_s", "pause_s"):
            _require(0 <= getattr(self, name) < inf, name, getattr(self, name), "0 or more")
        _require(self.most_samples >= 1, "most_samples", self.most_samples, "1 or more")
        _require(0 < self.largest_weight <= 1, "largest_weight", self.largest_weight, "above 0 and at most 1")
        _require(self.most_budget_j > 0, "most_budget_j", self.most_budget_j, "a positive number of joules")
        told = self.registered_samples
        _require(all(count >= 1 for count in told), "registered_samples", list(told), "numbers of samples, 1 or more")
        _require(0 <= self.quorum <= 1, "quorum", self.quorum, "from 0 to 1")
        _require(self.min_devices >= 1, "min_devices", self.min_devices, "1 or more")
        _require(self.metrics_devices >= 0, "metrics_devices", self.metrics_devices, "0 or more")
        _require(0 < self.privacy_delta < 1, "privacy_delta", self.privacy_delta, "above 0 and below 1")
        alert = self.privacy_alert_epsilon
        _require(alert is None or 0 < alert < inf, "privacy_alert_epsilon", alert, "a positive number, or none")
        _require(_is_address(self.metrics_host), "metrics_host", self.metrics_host, "an address, such as 127.0.0.1")
        port = self.metrics_port
        _require(port is None or 0 <= port < 2**16, "metrics_port", port, "a port from 0 to 65535, or none")
        _require(0 < self.secure_threshold <= 1, "secure_threshold", self.secure_threshold, "above 0 and at most 1")
        least, most = RANGES
        _require(least <= self.secure_range <= most, "secure_range", self.secure_range, f"from {least:g} to {most:g}")
        _require(self.secure_bits in (32, 64), "secure_bits", self.secure_bits, "32 or 64")
        near = self.secure_neighbours
        even = near is None or (near >= 4 and near % 2 == 0)
        _require(even, "secure_neighbours", near, "an even number of at least 4, or none for all")
        if (self.channel == "measured") != (self.gains is not None):
            raise ConfigError("fleet.gains", self.gains, "a file when fleet.channel is 'measured', and none otherwise")

    def registered(self, device: int) -> int | None:
        """The samples that a device is known to have; None where unknown.

        >>> FleetSettings(registered_samples=(500,)).registered(3), FleetSettings().registered(3)
        (500, None)
        """
        told = self.registered_samples
        return None if not told else told[0] if len(told) == 1 else told[device]


@dataclass(frozen=True)
class ServerConfig:
    """What the server of a fleet is to do.

    >>> config = ServerConfig(Experiment(devices=3, rounds=2), FleetSettings(quorum=0.0))
    >>> ServerConfig.from_toml(config.to_toml()) == ServerConfig(config.experiment.resolved(), config.fleet)
    True
    """

    experiment: Experiment
    fleet: FleetSettings = field(default_factory=FleetSettings)

    def __post_init__(self) -> None:
        if self.experiment.radio == AUTO:  # a server has no data to size a cell to: the paper's for MNIST
            object.__setattr__(self, "experiment", replace(self.experiment, radio=self.experiment.cell_config))

    def validate(self) -> None:
        """Raise ConfigError for the first field that cannot work in a fleet."""
        self.experiment.validate()
        self.fleet.validate()
        if self.experiment.algorithm.proxy_per_class > 0:
            raise ConfigError(
                "algorithm.name",
                self.experiment.algorithm.name,
                "one whose devices need no common samples: in a fleet every device has only its own",
            )
        if self.experiment.algorithm.needs_encoder and self.experiment.encoder == AUTO:
            expected = "the encoder that devices name in their DeviceSetup: a server has no data to choose one by"
            raise ConfigError("encoder", AUTO, expected)
        problem = why_not_summed(self.experiment.algorithm) if self.fleet.secure_sums else None
        if problem is not None:
            raise ConfigError("fleet.secure_sums", True, f"false here, since {problem}")
        if self.fleet.secure_sums and self.experiment.devices < LEAST_DEVICES:
            expected = f"{LEAST_DEVICES} or more when fleet.secure_sums is true: a sum of fewer hides nothing"
            raise ConfigError("devices", self.experiment.devices, expected)
        if self.experiment.faults.any:
            raise ConfigError("faults", "given", "left out: those of a fleet are real")
        if self.experiment.cell_config is None and self.fleet.channel != "simulated":
            raise ConfigError("radio", "none", f"a cell when fleet.channel is {self.fleet.channel!r}")
        if len(self.fleet.registered_samples) not in (0, 1, self.experiment.devices):
            raise ConfigError(
                "fleet.registered_samples",
                f"{len(self.fleet.registered_samples)} numbers",
                f"one for each of the {self.experiment.devices} devices, one for all, or none",
            )
        if self.fleet.min_devices > self.experiment.devices:
            raise ConfigError(
                "fleet.min_devices", self.fleet.min_devices, f"at most devices, {self.experiment.devices}"
            )

    def to_table(self) -> Table:
        """As plain values, for a file."""
        return {**self.experiment.to_table(), "fleet": to_table(self.fleet)}

    def to_toml(self) -> str:
        """A file that `ServerConfig.load` reads."""
        return dump_toml(self.to_table())

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> ServerConfig:
        """From plain values; what is not given keeps its default."""
        rest = dict(table)
        fleet = rest.pop("fleet", {})
        if not isinstance(fleet, Mapping):
            raise ConfigError("fleet", fleet, "a table of fields")
        return ServerConfig(Experiment.from_table(rest), from_table(FleetSettings, fleet, "fleet."))

    @staticmethod
    def from_toml(text: str) -> ServerConfig:
        """Read what `to_toml` wrote, or a person."""
        return ServerConfig.from_table(load_toml(text))

    @staticmethod
    def load(path: Path) -> ServerConfig:
        """Read a TOML file."""
        return ServerConfig.from_table(read_config(path))


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise ConfigError(f"fleet.{name}", value, expected)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
