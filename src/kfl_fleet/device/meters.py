"""How a device knows what its work cost: the paper's formula by default, or a meter that measures.

    formula      E_L = κ τ D C f² / n and E_U = p T_U, as the server computed them from this device's own numbers
    rapl         the processor's own counters, /sys/class/powercap (Linux on Intel and AMD, readable by root)
    codecarbon   the package CodeCarbon: RAPL, NVIDIA and Apple counters, or an estimate from the processor's name
    fake:J       J joules for every round, for tests

A meter sees the whole machine while the device trains; what the radio spends on the upload no such meter sees, so that
part is the formula's with all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfl.core.errors import ConfigError, KflError, MissingExtraError

POWERCAP = Path("/sys/class/powercap")
MICRO = 1e-6
JOULE_PER_KWH = 3.6e6


class Meter(ABC):
    """Measures the energy of a stretch of work."""

    name: str

    @abstractmethod
    def start(self) -> None:
        """The work begins."""

    @abstractmethod
    def stop(self, formula_j: float) -> float:
        """The work has ended: joules it took. `formula_j` is what the paper's formula says."""


class FormulaMeter(Meter):
    """Believes the formula."""

    name = "formula"

    def start(self) -> None:
        """Nothing to do."""

    def stop(self, formula_j: float) -> float:
        """What the formula says."""
        return formula_j


@dataclass
class FakeMeter(Meter):
    """Says the same for every round.

    >>> meter = make_meter("fake:2.5")
    >>> meter.start()
    >>> meter.stop(formula_j=1.0)
    2.5
    """

    joules: float
    name: str = "fake"

    def start(self) -> None:
        """Nothing to do."""

    def stop(self, formula_j: float) -> float:
        """The same joules every time."""
        return self.joules


@dataclass
class RaplMeter(Meter):
    """Adds up the energy counters of all processor packages; they count microjoules and start again at a maximum."""

    folder: Path = POWERCAP
    name: str = "rapl"
    _before: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self._zones():
            raise KflError(
                f"There is no readable energy counter under {self.folder}; use another meter (formula or "
                "codecarbon), or run the device as a user who may read the counters."
            )

    def _zones(self) -> dict[Path, int]:
        """The counter of every package: zones of the first level, intel-rapl:0 but not its parts intel-rapl:0:1."""
        found = {}
        for zone in sorted(self.folder.glob("*-rapl:*")):
            if zone.name.count(":") == 1:
                try:
                    found[zone] = int((zone / "energy_uj").read_text())
                except (OSError, ValueError):
                    continue
        return found

    def start(self) -> None:
        """Read all counters."""
        self._before = self._zones()

    def stop(self, formula_j: float) -> float:
        """Read them again. A counter that went backwards has started again once."""
        total = 0
        for zone, now in self._zones().items():
            before = self._before.get(zone, now)
            total += now - before if now >= before else now - before + self._range(zone)
        return total * MICRO

    def _range(self, zone: Path) -> int:
        try:
            return int((zone / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            return 2**32


@dataclass
class CodeCarbonMeter(Meter):
    """Asks CodeCarbon, without its files, messages or requests to the network."""

    name: str = "codecarbon"
    _tracker: Any = None

    def start(self) -> None:
        """Start a tracker."""
        try:
            from codecarbon import OfflineEmissionsTracker  # the other one asks the network where it is
        except ImportError as problem:
            raise MissingExtraError("codecarbon", "meter", "The meter 'codecarbon'") from problem
        # The country only decides grams of CO2, which is not used.
        self._tracker = OfflineEmissionsTracker(
            country_iso_code="USA",
            save_to_file=False,
            log_level="error",
            measure_power_secs=1,
            allow_multiple_runs=True,
        )
        self._tracker.start()

    def stop(self, formula_j: float) -> float:
        """Stop it: kilowatt hours become joules."""
        self._tracker.stop()
        return float(self._tracker.final_emissions_data.energy_consumed) * JOULE_PER_KWH


def make_meter(name: str) -> Meter:
    """The meter a device's configuration names.

    >>> make_meter("formula").name
    'formula'
    """
    kind, _, value = name.partition(":")
    if kind == "fake":
        try:
            return FakeMeter(float(value))
        except ValueError:
            raise ConfigError("meter", name, "fake:J with J a number of joules") from None
    kinds: dict[str, type[Meter]] = {"formula": FormulaMeter, "rapl": RaplMeter, "codecarbon": CodeCarbonMeter}
    if name not in kinds:
        raise ConfigError("meter", name, f"one of {', '.join(kinds)}, or fake:J for tests", choices=kinds)
    return kinds[name]()
