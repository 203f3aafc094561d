"""How a device knows what its work cost: the paper's formula by default, or a meter that measures.

    formula      E_L = κ τ D C f² / n and E_U = p T_U, as the server computed them from this device's own numbers
    codecarbon   the package CodeCarbon: RAPL, NVIDIA and Apple counters, or an estimate from the processor's name
    rapl         the same, by its name in earlier versions; the counters are readable by root
    fake:J       J joules for every round, for tests

A meter sees the whole machine while the device trains; what the radio spends on the upload no such meter sees, so that
part is the formula's with all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from kfl.core.errors import ConfigError, MissingExtraError

JOULE_PER_KWH = 3.6e6
MEASURED = ("codecarbon", "rapl")
"""Names of the meter that measures; a profile keeps the one that its device was given."""


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
class CodeCarbonMeter(Meter):
    """Asks CodeCarbon, without its files, messages or requests to the network."""

    name: str = "codecarbon"
    _tracker: Any = None

    def __post_init__(self) -> None:
        if find_spec("codecarbon") is None:  # said when the device starts, not in the middle of a round
            raise MissingExtraError("codecarbon", "meter", f"The meter {self.name!r}")

    def start(self) -> None:
        """Start a tracker."""
        from codecarbon import OfflineEmissionsTracker  # the other one asks the network where it is

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
    if name == "formula":
        return FormulaMeter()
    if name in MEASURED:
        return CodeCarbonMeter(name)
    kinds = ("formula", *MEASURED)
    raise ConfigError("meter", name, f"one of {', '.join(kinds)}, or fake:J for tests", choices=kinds)
