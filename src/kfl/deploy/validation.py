"""Whether an answer can be used: each array, count and joule of it is checked before anything is averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import ArrayFormat, UploadFormat
from kfl.core.arrays import read_npy
from kfl.core.text import scrub
from kfl.deploy.protocol import RawArray, RefusedError

if TYPE_CHECKING:
    from kfl.deploy.profile import Profile

HEADER_BYTES = 4096
"""A npy file is its numbers and a header, which is never this long."""


def read_arrays(raw: Mapping[str, RawArray], formats: UploadFormat) -> dict[str, NDArray[Any]]:
    """The arrays of an answer if they are exactly those declared: names, storage, size, type and shape, all finite."""
    missing, strange = sorted(set(formats) - set(raw)), sorted(set(raw) - set(formats))
    if missing:
        raise RefusedError("missing_array", array=missing[0])
    if strange:
        raise RefusedError("unexpected_array", array=scrub(strange[0], 40))
    return {name: _read(name, raw[name], form) for name, form in formats.items()}


def _read(name: str, raw: RawArray, form: ArrayFormat) -> NDArray[Any]:
    if raw.kind != "numpy.ndarray":
        raise RefusedError("storage", array=name, found=scrub(raw.kind, 40), expected="numpy.ndarray")
    size = int(np.prod(form.shape, dtype=np.int64)) * np.dtype(form.dtype).itemsize
    if len(raw.data) > size + HEADER_BYTES:
        raise RefusedError("size", array=name, found=len(raw.data), expected=size)
    try:
        array = read_npy(raw.data)
    except ValueError as problem:
        raise RefusedError("unreadable", array=name, text=scrub(problem, 80)) from problem
    if array.shape != form.shape:
        raise RefusedError("shape", array=name, found=list(array.shape), expected=list(form.shape))
    if array.dtype != np.dtype(form.dtype):
        raise RefusedError("dtype", array=name, found=scrub(array.dtype, 40), expected=form.dtype)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RefusedError("not_finite", array=name)
    return array


def check_counts(arrays: Mapping[str, NDArray[Any]], formats: UploadFormat, profile: Profile) -> None:
    """Counts are whole numbers of samples, and no more than the device said it has.

    Counts with noise on purpose are not whole; they may exceed all samples by ten standard deviations of the noise,
    which happens once in 10²³ draws.
    """
    for name, form in formats.items():
        if form.holds == "values":
            continue
        found = np.atleast_1d(arrays[name])
        if bool((found < 0).any()):
            raise RefusedError("negative_count", array=name)
        if form.noise > 0:
            if bool((found > profile.samples + 10 * form.noise).any()):
                raise RefusedError("too_many_samples", array=name, limit=profile.samples)
            continue
        if found.dtype.kind == "f" and bool((found != np.trunc(found)).any()):
            raise RefusedError("not_whole", array=name)
        limit = np.array([profile.samples] if form.holds == "samples" else profile.samples_per_class or profile.samples)
        over = np.flatnonzero(found > limit)
        if len(over):
            label = {"label": int(over[0])} if form.holds == "counts" else {}
            most = int(np.broadcast_to(limit, found.shape)[over[0]])
            raise RefusedError("too_many_samples", array=name, found=int(found[over[0]]), limit=most, **label)


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
