"""What can be set in the playground: a cell, its devices, a scheduler; in the page, in its address, and as programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal
from urllib.parse import urlencode

from kfl.core.errors import ConfigError
from kfl.scheduling import SCHEDULERS, DriftScheduler, Scheduler
from kfl.wireless import PRESETS, CellConfig

PAPER_FLOPS = 5 * 600 * 550_346
"""Five steps over 600 digits with the paper's MLP, as the paper counts them: τ D C."""
KNOWLEDGE_BITS = 640 * 32
"""One upload of knowledge: ten classes of 64 numbers."""
MODEL_BITS = 550_346 * 32
"""One upload of the whole MLP."""
NO_LEAST_DBM = -60.0
"""A least power of this is none: a nanowatt."""
MOST_DECISIONS = 100_000
"""Devices × rounds, so that a page is never worked on for minutes."""


@dataclass(frozen=True)
class Settings:
    """One state of the playground, in SI units.

    >>> Settings.from_query({"devices": "20", "scheduler": "dual"}).query()
    'cell=paper-mnist&scheduler=dual&devices=20'
    """

    cell: str = "paper-mnist"
    """The preset that gives noise, path loss and processors."""
    scheduler: str = "lyapunov"
    relative_v: float = DriftScheduler.relative_v
    gamma: str = "inverse"
    count: int = 5
    hard_budget: bool = False
    devices: int = 50
    rounds: int = 60
    seed: int = 0
    bandwidth_hz: float = 5e6
    radius_m: float = 500.0
    payload_bits: float = float(KNOWLEDGE_BITS)
    max_power_dbm: float = 30.0
    power_coefficient: float = 1e-27
    budget_j_per_round: float = 0.1
    deadline_s: float = 1.0
    flops: float = float(PAPER_FLOPS)
    samples: float = 600.0
    min_cpu_hz: float = 0.0
    """Slowest clock; 0: the clock is fixed."""
    static_power_w: float = 0.0
    amplifier_efficiency: float = 1.0
    circuit_power_w: float = 0.0
    min_power_dbm: float = NO_LEAST_DBM
    """Least radiated power; at the lower end of its slider there is none."""
    tail_energy_j: float = 0.0
    """Connecting and tail together."""

    def __post_init__(self) -> None:
        known = {"cell": tuple(PRESETS), "scheduler": tuple(SCHEDULERS), "gamma": ("inverse", "constant")}
        for name, words in known.items():
            if getattr(self, name) not in words:
                raise ConfigError(name, getattr(self, name), f"one of {', '.join(words)}", choices=words)
        for control in CONTROLS:
            control.check(getattr(self, control.name))
        if self.devices * self.rounds > MOST_DECISIONS:
            right = f"at most {MOST_DECISIONS // self.devices} with {self.devices} devices"
            raise ConfigError("rounds", self.rounds, right)
        self.radio.validate()

    @staticmethod
    def from_query(query: Mapping[str, str]) -> Settings:
        """Return settings from the words of an address; what is not given keeps its default.

        `round`, the round that pages of earlier versions showed, is ignored.
        """
        query = {name: value for name, value in query.items() if name != "round"}
        kinds = {field.name: type(field.default) for field in fields(Settings)}
        unknown = next((name for name in query if name not in kinds), None)
        if unknown is not None:
            raise ConfigError("setting", unknown, f"one of {', '.join(kinds)}", choices=kinds)
        return Settings(**{name: _read(name, kinds[name], value) for name, value in query.items()})

    def query(self) -> str:
        """Return the words of an address that hold these settings: the cell, and what is not the default.

        An address without words is where the page opens, see `OPENING`.
        """
        table = self.table()
        changed = {name: value for name, value in table.items() if name == "cell" or value != getattr(_DEFAULT, name)}
        return urlencode({name: _written(value) for name, value in changed.items()})

    def table(self) -> dict[str, Any]:
        """Return every setting by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def radio(self) -> CellConfig:
        """The preset with what was moved on top."""
        return replace(PRESETS[self.cell], **self.moved())

    def moved(self) -> dict[str, Any]:
        """Return the fields of the radio that controls set.

        Two sliders that contradict each other are no error: a slowest clock above the fastest is that one, and with the
        largest power below the least there is no least.
        """
        preset = PRESETS[self.cell]
        least = self.min_power_dbm if NO_LEAST_DBM < self.min_power_dbm < self.max_power_dbm else None
        slowest = min(self.min_cpu_hz, *preset.cpu_frequencies_hz) if self.min_cpu_hz > 0 else None
        same_tail = self.tail_energy_j == _tail_j(preset)
        once = {} if same_tail else {"connect_energy_j": self.tail_energy_j, "tail_power_w": 0.0, "tail_s": 0.0}
        fixed = {name: getattr(self, name) for name in _AS_THEY_ARE}
        return {**fixed, "min_cpu_hz": slowest, "min_power_dbm": least, **once}

    def make_scheduler(self) -> Scheduler:
        """Return the chosen scheduler with those of its parameters that there are controls for."""
        kind = SCHEDULERS[self.scheduler]
        given = {"relative_v": self.relative_v, "gamma": self.gamma, "count": self.count}
        return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})


_AS_THEY_ARE = (
    "bandwidth_hz", "radius_m", "max_power_dbm", "power_coefficient", "budget_j_per_round", "deadline_s",
    "static_power_w", "amplifier_efficiency", "circuit_power_w",
)  # fmt: skip


def _tail_j(preset: CellConfig) -> float:
    return preset.connect_energy_j + preset.tail_power_w * preset.tail_s


@dataclass(frozen=True)
class Control:
    """A slider with a number next to it, which is shown in a unit that is easy to read."""

    name: str
    label: str
    unit: str
    least: float
    """Smallest and largest value of the slider and of what may be typed, in SI units."""
    most: float
    scale: Literal["log", "zero", "linear", "integer"] = "log"
    """"zero" is logarithmic too, with 0 at the left end of the slider."""
    per_unit: float = 1.0
    """SI units in one unit of the number that is shown."""
    help: str = ""

    def check(self, value: float) -> None:
        """Refuse a value outside the range, with a little room for rounding."""
        inside = math.isfinite(value) and self.least * (1 - 1e-9) <= value <= self.most * (1 + 1e-9)
        if self.scale == "zero":
            inside = inside or value == 0
        if self.scale == "linear":
            inside = math.isfinite(value) and self.least - 1e-9 <= value <= self.most + 1e-9
        if not inside:
            low, high = (f"{bound / self.per_unit:g}" for bound in (self.least, self.most))
            low = f"0 or {low}" if self.scale == "zero" else low
            shown = float(f"{value / self.per_unit:.6g}")
            shown = int(shown) if shown.is_integer() else shown
            unit = f" {self.unit}" if self.unit else ""
            raise ConfigError(self.label, shown, f"from {low} to {high}{unit}")


MILLI, KILO, MEGA = 1e-3, 1e3, 1e6
CONTROLS = (
    Control("relative_v", "Relative V", "", 1e-3, 1e6,
            help="Weight of a device's data against the joules of one that is ahead of its budget, in units of the "
            "mean device's samples and of the mean budget per round. Larger: more devices, more energy."),
    Control("count", "Devices per round", "", 1, 100, "integer", help="How many devices the scheduler asks for."),
    Control("budget_j_per_round", "Budget per round", "mJ", 1e-5, 100.0, per_unit=MILLI,
            help="What each device may spend in a round, on average over the horizon: E/T."),
    Control("bandwidth_hz", "Band", "kHz", 1e4, 1e8, per_unit=KILO, help="The uplink band that the devices share."),
    Control("radius_m", "Cell radius", "m", 50.0, 5000.0, help="Radius of the disc in which devices are placed."),
    Control("payload_bits", "Payload", "kbit", 1e3, 1e8, per_unit=KILO,
            help="What a device uploads: knowledge is 20.48 kbit, the paper's whole MLP 17,611 kbit."),
    Control("max_power_dbm", "Largest power", "dBm", 0.0, 40.0, "linear", help="30 dBm is 1 W, 23 dBm is 0.2 W."),
    Control("power_coefficient", "κ of the chip", "", 1e-30, 1e-25,
            help="A cycle at f hertz costs κ f² joule. 1e-27 is the commonest published value."),
    Control("deadline_s", "Deadline", "s", 0.1, 60.0, help="Computing and sending must be done within this time."),
    Control("flops", "Computation", "MFLOP", 1e7, 1e11, per_unit=MEGA, help="Work of a device in a round: τ D C."),
    Control("min_cpu_hz", "Slowest clock", "MHz", 1e7, 2e9, "zero", per_unit=MEGA,
            help="How far a processor may slow down to save energy. 0: its clock is fixed."),
    Control("static_power_w", "Static power", "mW", 1e-4, 10.0, "zero", per_unit=MILLI,
            help="Drawn while the processor computes, at any clock: it makes slow clocks expensive."),
    Control("amplifier_efficiency", "Amplifier", "%", 0.01, 1.0, per_unit=0.01,
            help="Radiated power over what the amplifier draws for it, η."),
    Control("circuit_power_w", "Circuits", "mW", 1e-4, 10.0, "zero", per_unit=MILLI,
            help="Drawn by the radio while it sends, besides the amplifier: it makes long uploads expensive."),
    Control("min_power_dbm", "Least power", "dBm", NO_LEAST_DBM, 30.0, "linear",
            help="A radio cannot send with less than this; -60 dBm, a nanowatt, is no limit."),
    Control("tail_energy_j", "Connection and tail", "mJ", 1e-4, 100.0, "zero", per_unit=MILLI,
            help="To open the connection and to keep it after the last packet, once per upload."),
    Control("samples", "Samples per device", "", 1, 10_000, "integer", help="D: the weight of a device in a round."),
    Control("devices", "Devices", "", 1, 300, "integer", help="How many devices there are, K."),
    Control("rounds", "Horizon", "rounds", 1, 500, "integer", help="How many rounds are simulated, T."),
    Control("seed", "Seed", "", 0, 999_999, "integer",
            help="Places, processors and fading: the same seed, the same cell."),
)  # fmt: skip
GROUPS = {
    "Scheduler": ("relative_v", "count"),
    "Energy": ("budget_j_per_round", "power_coefficient", "flops", "deadline_s"),
    "Radio": ("bandwidth_hz", "payload_bits", "radius_m", "max_power_dbm"),
    "Device": (
        "min_cpu_hz", "static_power_w", "circuit_power_w", "amplifier_efficiency", "min_power_dbm", "tail_energy_j",
    ),
    "Fleet": ("devices", "samples", "rounds", "seed"),
}  # fmt: skip
"""Controls by the heading above them."""

_DEFAULT = Settings()

_LABELS = {
    "paper-mnist": "The paper's cell",
    "paper-cifar10": "The paper's cell for CIFAR-10",
    "paper-mnist-free-clock": "The paper's cell, free clock",
    "paper-cifar10-free-clock": "CIFAR-10, free clock",
    "paper-mnist-modem": "The paper's cell, real modem",
    "paper-cifar10-modem": "CIFAR-10, real modem",
    "small-cell": "Small cell, whole models",
    "nb-iot": "NB-IoT meters",
    "lte-m": "LTE-M trackers",
    "5g-phone": "5G phones",
    "wifi": "Wi-Fi microcontrollers",
}
STARTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (_LABELS.get(name, name), {"cell": name}) for name in PRESETS},
    "paper-kappa": ("The paper's cell, κ = 4e-27", {"power_coefficient": 4e-27}),
    "small-cell": (_LABELS["small-cell"], {"cell": "small-cell", "payload_bits": float(MODEL_BITS)}),
}
"""Where to start from: a label, and what differs from the defaults; the rest of a cell is its preset's."""
OPENING = "small-cell"
"""Where the page opens: sending costs more than computing there, so that the scheduler selects in every round."""


def start(name: str) -> Settings:
    """Return the settings of one of `STARTS`.

    >>> start("nb-iot").bandwidth_hz
    180000.0
    """
    changes = STARTS[name][1]
    preset = PRESETS[changes.get("cell", _DEFAULT.cell)]
    from_preset = {field: getattr(preset, field) for field in _AS_THEY_ARE}
    from_preset["min_cpu_hz"] = preset.min_cpu_hz or 0.0
    from_preset["min_power_dbm"] = NO_LEAST_DBM if preset.min_power_dbm is None else preset.min_power_dbm
    from_preset["tail_energy_j"] = _tail_j(preset)
    return replace(_DEFAULT, **{**from_preset, **changes})


def _read(name: str, kind: type, text: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text not in ("0", "1", "true", "false"):
            raise ConfigError(name, text, "1 or 0")
        return text in ("1", "true")
    label = next(control.label for control in CONTROLS if control.name == name)
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(label, text[:40], "a number") from None
    if kind is int:
        if not value.is_integer():
            raise ConfigError(label, text[:40], "an integer")
        return int(value)
    return value


def _written(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else (repr(value) if isinstance(value, float) else str(value))


# ── The same decisions by a program or by commands ───────────────────────────


def _changed(settings: Settings) -> dict[str, float]:
    """The fields of the radio that are not as the preset has them."""
    preset = PRESETS[settings.cell]
    return {name: value for name, value in settings.moved().items() if value != getattr(preset, name)}


def _parameters(settings: Settings) -> dict[str, object]:
    """Parameters of the scheduler that are not its defaults."""
    made = settings.make_scheduler()
    return {f.name: getattr(made, f.name) for f in fields(made) if getattr(made, f.name) != f.default}


def python_code(settings: Settings) -> str:
    """Return a program that makes every decision of these settings, by the library alone."""
    kind = type(settings.make_scheduler()).__name__
    given = ", ".join(f"{name}={value!r}" for name, value in _parameters(settings).items())
    radio = f'PRESETS["{settings.cell}"]'
    if changed := _changed(settings):
        radio = f"replace({radio}, {', '.join(f'{name}={value!r}' for name, value in changed.items())})"
    hard = ", hard_budget=True" if settings.hard_budget else ""
    return f"""\
from dataclasses import replace

from kfl.scheduling import {kind}, schedule
from kfl.wireless import PRESETS, Cell

radio = {radio}
cell = Cell.build(radio, devices={settings.devices}, seed={settings.seed})
problem = cell.problem(
    rounds={settings.rounds}, flops={settings.flops!r}, payload_bits={settings.payload_bits!r},
    samples={settings.samples!r}{hard},
)
result = schedule(problem, {kind}({given}))

first = result.rounds[0]
for device, share, power_w in zip(first.devices, first.share, first.power_w):
    print(f"device {{device}}: {{share:.2%}} of the band, {{power_w:.3g}} W")
spent_j = result.compute_energy_j + result.upload_energy_j
print(f"{{len(first.devices)}} devices; the fleet spends {{spent_j.sum():.4g}} J of {{problem.budget_j.sum():.4g}} J")
"""


def command_lines(settings: Settings) -> str:
    """Return the same decisions with `kfl schedule`, and a training run in the same cell with `kfl run`."""
    flags = [f"--scheduler {settings.scheduler}"]
    flags += [f"--scheduler.{name.replace('_', '-')} {value}" for name, value in _parameters(settings).items()]
    cell = [f"--radio {settings.cell}"]
    cell += [f"--radio.{name.replace('_', '-')} {value!r}" for name, value in _changed(settings).items()]
    fleet = [f"--devices {settings.devices}", f"--rounds {settings.rounds}", f"--seed {settings.seed}"]
    fleet += ["--hard-budget"] if settings.hard_budget else []
    return (
        "# The decisions of this page, from its file cell.json:\n"
        f"kfl schedule cell.json {' '.join(flags)}\n\n"
        "# Train in this cell. Payload and computation are then those of the model and the algorithm:\n"
        f"kfl run {' '.join([*fleet, *cell, *flags])}\n"
    )
