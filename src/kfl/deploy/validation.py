"""Whether an answer can be used: each array, count and joule of it is checked before anything is averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms.weights import SAMPLES
from kfl.core.arrays import read_npy
from kfl.core.text import scrub
from kfl.deploy.protocol import RawArray, RefusedError

if TYPE_CHECKING:
    from kfl.algorithms import Algorithm
    from kfl.deploy.profile import Profile
    from kfl.models import State

HEADER_BYTES = 4096
"""A npy file is its numbers and a header, which is never this long."""


@dataclass(frozen=True)
class Expected:
    """What one array of an upload must be."""

    shape: tuple[int, ...]
    dtype: str
    holds: Literal["values", "counts", "noisy counts", "samples"] = "values"


def expected_upload(algorithm: Algorithm, server: State) -> dict[str, Expected]:
    """The arrays that devices of an algorithm upload: class means with counts, weights with samples, or nothing."""
    if "knowledge" in server:
        classes, features = server["knowledge"].shape
        noisy = bool(getattr(algorithm, "noise_counts", False))
        return {
            "means": Expected((classes, features), _dtype(server["knowledge"])),
            "counts": Expected((classes,), "float64", "noisy counts")
            if noisy
            else Expected((classes,), "int64", "counts"),
        }
    if not server:
        return {}
    return {
        **{name: Expected(tuple(value.shape), _dtype(value)) for name, value in server.items()},
        SAMPLES: Expected((), "float64", "samples"),
    }


def read_arrays(raw: Mapping[str, RawArray], expected: Mapping[str, Expected]) -> dict[str, NDArray[Any]]:
    """The arrays of an answer if they are exactly those expected: names, storage, size, type and shape, all finite."""
    missing, strange = sorted(set(expected) - set(raw)), sorted(set(raw) - set(expected))
    if missing:
        raise RefusedError(f"it has no array {missing[0]}")
    if strange:
        raise RefusedError(f"it has an array {scrub(strange[0], 40)}, which nobody asked for")
    return {name: _read(name, raw[name], want) for name, want in expected.items()}


def _read(name: str, raw: RawArray, want: Expected) -> NDArray[Any]:
    if raw.kind != "numpy.ndarray":
        raise RefusedError(f"its {name} is stored as {scrub(raw.kind, 40)}, not numpy.ndarray")
    size = int(np.prod(want.shape, dtype=np.int64)) * np.dtype(want.dtype).itemsize
    if len(raw.data) > size + HEADER_BYTES:
        raise RefusedError(f"its {name} has {len(raw.data)} bytes, where {size} are enough")
    try:
        array = read_npy(raw.data)
    except ValueError as problem:
        raise RefusedError(f"its {name} cannot be read: {scrub(problem, 80)}") from problem
    if array.shape != want.shape:
        raise RefusedError(f"its {name} has the shape {array.shape}, not {want.shape}")
    if array.dtype != np.dtype(want.dtype):
        raise RefusedError(f"its {name} has the type {scrub(array.dtype, 40)}, not {want.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RefusedError(f"its {name} has a value that is infinite or not a number")
    return array


def check_counts(
    arrays: Mapping[str, NDArray[Any]],
    expected: Mapping[str, Expected],
    profile: Profile,
    noise_multiplier: float = 0.0,
) -> None:
    """Counts are whole numbers of samples, and no more than the device said it has.

    Counts with noise on purpose are not whole; they may exceed all samples by ten standard deviations of the noise,
    which happens once in 10²³ draws.
    """
    for name, want in expected.items():
        if want.holds == "values":
            continue
        found = np.atleast_1d(arrays[name])
        if bool((found < 0).any()):
            raise RefusedError(f"its {name} has a negative number of samples")
        if want.holds == "noisy counts":
            if bool((found > profile.samples + 20 * noise_multiplier).any()):
                raise RefusedError(f"its {name} has more samples than the {profile.samples} it said it has")
            continue
        if found.dtype.kind == "f" and bool((found != np.trunc(found)).any()):
            raise RefusedError(f"its {name} has a number of samples that is not whole")
        limit = np.array([profile.samples] if want.holds == "samples" else profile.samples_per_class or profile.samples)
        over = np.flatnonzero(found > limit)
        if len(over):
            which = (
                f"{int(found[over[0]])} samples of class {over[0]}"
                if want.holds == "counts"
                else f"{found[0]:g} samples"
            )
            most = int(np.broadcast_to(limit, found.shape)[over[0]])
            raise RefusedError(f"its {name} says {which}, more than the {most} it said it has")


@dataclass(frozen=True)
class EnergyLimits:
    """What one device can possibly spend in one round."""

    compute_j: float
    """The largest draw of its processor for the whole deadline, or the formula's amount if that is more."""
    upload_j: float
    """Its largest transmit power for the whole deadline, or what its decision costs if that is more."""


def energy_limits(
    max_compute_power_w: float, max_power_w: float, deadline_s: float, planned_compute_j: float, planned_upload_j: float
) -> EnergyLimits:
    """The most a device can have spent between the server's message and the deadline.

    Twice the plan is always plausible: a simulated radio's plan has another clock than the deadline of real time.

    >>> energy_limits(10.0, 1.0, 60.0, 0.1, 1e-8)
    EnergyLimits(compute_j=600.0, upload_j=60.0)
    """
    return EnergyLimits(
        compute_j=max(max_compute_power_w * deadline_s, 2 * planned_compute_j),
        upload_j=max(max_power_w * deadline_s, 2 * planned_upload_j),
    )


def refuse_energy(compute_j: object, upload_j: object, limits: EnergyLimits) -> str | None:
    """Why reported energy cannot be true; None where it can.

    >>> refuse_energy(-1.0, 0.0, EnergyLimits(10.0, 1.0))
    'its compute energy of -1 J is negative'
    """
    for name, value, most in (("compute", compute_j, limits.compute_j), ("upload", upload_j, limits.upload_j)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"its {name} energy is no number"
        if not isfinite(value):
            return f"its {name} energy is infinite or not a number"
        if value < 0:
            return f"its {name} energy of {value:g} J is negative"
        if value > most:
            return f"its {name} energy of {value:g} J is more than the {most:g} J it can have spent"
    return None


def enough(usable: int, chosen: int, quorum: float) -> bool:
    """Whether a round counts: at least this share of the chosen devices' answers can be used.

    >>> enough(2, 4, 0.5), enough(1, 4, 0.5), enough(0, 4, 0.0)
    (True, False, True)
    """
    return usable >= quorum * chosen - 1e-9


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")
