"""What the server believes of what devices say about themselves.

A profile is a claim. What decides a device's weight in an average, its place in the schedule or its part of the fleet's
accuracy is used only as far as something else than the device speaks for it:

    samples, test_samples   what the device is registered with, or a multiple of the fleet's median
    processor               no processor computes with less than `LEAST_J_PER_FLOP` or faster than `MOST_FLOPS_PER_S`
    transmit power          what the cell allows
    gain                    no channel hands over more power than was sent
    budget_j                what the settings allow

What is beyond is cut to the bound, never refused: a device with more data than expected still learns with the others.
Every cut is a code with its facts, in `fleet.json` next to the profile and in the record of each round it matters in.

A belief follows from the profiles of the devices that have joined and from the settings alone: a server that continues
a run believes what it believed before. The median is the smaller of the middle two, so that a minority of liars cannot
raise it. Work is planned with the samples that a device claims: to say more than is true costs the liar alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from kfl.core.units import dbm_to_watt
from kfl_fleet.messages.profile import Profile

if TYPE_CHECKING:
    from kfl.wireless import CellConfig
    from kfl_fleet.settings import FleetSettings

LEAST_J_PER_FLOP = 1e-13
"""Accelerators of 2024 take about seven times as much, phones a thousand times."""
MOST_HZ = 1e11
MOST_FLOPS_PER_S = 1e16
MOST_GAIN = 1.0
"""0 dB."""
ROUNDING = 1e-9
"""What is beyond a bound by less than this is a rounding error."""

Cut = dict[str, Any]
"""A claim that was cut: a code of `kfl.core.refusals` and its facts."""
CutTo = Callable[[str, float], None]


@dataclass(frozen=True)
class Belief:
    """What the server believes of one device."""

    profile: Profile
    """As the device said it, but for hardware that cannot be."""
    samples: int
    """With which it weighs and is scheduled."""
    test_samples: int
    """With which it counts in the fleet's accuracy."""
    cuts: tuple[Cut, ...] = ()

    def correct(self, reported: int) -> int:
        """Right predictions among the test samples that are believed, in the same proportion as reported."""
        said = self.profile.test_samples
        return reported if self.test_samples >= said else reported * self.test_samples // said

    @property
    def weight_cut(self) -> Cut | None:
        """Why its uploads weigh less than it says; None where they weigh what it says."""
        return next((cut for cut in self.cuts if cut.get("field") == "samples"), None)


def believe(profiles: Mapping[int, Profile], settings: FleetSettings, config: CellConfig | None) -> dict[int, Belief]:
    """What to believe of each device that has joined; `config` is the cell's, None without one."""
    most = settings.most_samples
    samples_median = lower_median(profile.samples for profile in profiles.values())
    tests_median = lower_median(profile.test_samples for profile in profiles.values() if profile.test_samples)
    found = {}
    for device, profile in sorted(profiles.items()):
        registered, cuts = settings.registered(device), []
        samples, tests = profile.samples, profile.test_samples
        if registered is not None and samples > registered:
            cuts.append({"code": "more_than_registered", "field": "samples", "found": samples, "limit": registered})
            samples = registered
        elif registered is None and samples > most * samples_median:
            samples = max(int(most * samples_median), 1)
            cuts.append(_beyond_median("samples", profile.samples, samples, most))
        if tests > most * tests_median:
            tests = max(int(most * tests_median), 1)
            cuts.append(_beyond_median("test_samples", profile.test_samples, tests, most))
        bounded, more = _possible(profile, settings, config)
        found[device] = Belief(bounded, samples, tests, (*cuts, *more))
    return found


def lower_median(values: Iterable[int]) -> int:
    """The smaller of the middle two; 0 of nothing.

    >>> lower_median([500, 2**53]), lower_median([400, 500, 2**53])
    (500, 500)
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0


def _beyond_median(field: str, found: int, limit: int, times: float) -> Cut:
    return {"code": "more_than_median", "field": field, "found": found, "limit": limit, "times": times}


def _possible(profile: Profile, settings: FleetSettings, config: CellConfig | None) -> tuple[Profile, list[Cut]]:
    """The profile with hardware that can be, and what was cut."""
    changes: dict[str, Any] = {}
    cuts: list[Cut] = []

    def cut(field: str, limit: float) -> None:
        changes[field] = limit
        cuts.append({"code": "claim_cut", "field": field, "found": _plain(getattr(profile, field)), "limit": limit})

    if profile.gain is not None and profile.gain > MOST_GAIN:
        changes["gain"] = None
        cuts.append({"code": "gain_impossible", "field": "gain", "found": profile.gain, "limit": MOST_GAIN})
    if profile.budget_j is not None and profile.budget_j > settings.most_budget_j:
        cut("budget_j", settings.most_budget_j)
    if config is not None:
        _bound_processor(profile, config, cut)
        _bound_radio(profile, config, cut)
    return replace(profile, **changes) if changes else profile, cuts


def _plain(value: float | None) -> float | str | None:
    """As JSON can hold it, which has no infinity."""
    return "inf" if value == inf else value


def _bound_processor(profile: Profile, config: CellConfig, cut: CutTo) -> None:
    """Cut clock and work per cycle to what processors reach, then raise κ until an operation costs what it must."""
    clock_hz = min(config.cpu_frequencies_hz) if profile.cpu_hz is None else profile.cpu_hz
    per_cycle = config.flops_per_cycle if profile.flops_per_cycle is None else profile.flops_per_cycle
    if clock_hz > MOST_HZ and profile.cpu_hz is not None:
        clock_hz = MOST_HZ
        cut("cpu_hz", clock_hz)
    if clock_hz * per_cycle > MOST_FLOPS_PER_S * (1 + ROUNDING) and profile.flops_per_cycle is not None:
        per_cycle = MOST_FLOPS_PER_S / clock_hz
        cut("flops_per_cycle", per_cycle)
    claimed = any(v is not None for v in (profile.power_coefficient, profile.flops_per_cycle, profile.cpu_hz))
    coefficient = config.power_coefficient if profile.power_coefficient is None else profile.power_coefficient
    least = LEAST_J_PER_FLOP * per_cycle / clock_hz**2
    if claimed and coefficient < least * (1 - ROUNDING) and (profile.power_coefficient is not None or coefficient > 0):
        cut("power_coefficient", least)


def _bound_radio(profile: Profile, config: CellConfig, cut: CutTo) -> None:
    allowed_w = dbm_to_watt(config.max_power_dbm)
    if profile.max_power_w is not None and profile.max_power_w > allowed_w * (1 + ROUNDING):
        cut("max_power_w", allowed_w)
