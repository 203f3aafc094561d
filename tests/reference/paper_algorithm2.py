"""Algorithm 2 as the paper prints it, with its faults: the reference implementation of `kfl.scheduling.allocate`."""

from __future__ import annotations

import numpy as np
from scipy.special import lambertw

from kfl.scheduling.allocation import SHARE_TOLERANCE, Allocation
from kfl.scheduling.curve import FloatArray, UploadCurve
from kfl.scheduling.status import Status
from tests.reference.uplinks import SharingProblem


def printed_algorithm2(problem: SharingProblem, precision: float = 1e-6) -> Allocation:
    """Algorithm 2 line by line: bisection for Σ θ_k(μ) = 1, then shares lifted to θ^min.

    Its three faults are kept: the lift comes after the search, so that Σ θ > 1 whenever a minimum binds; the
    upper end (equation 29) is for equal shares without minima; and `precision` is absolute, in units of μ.
    `feasible` and `status` say what came out.
    """
    uplink, q, floor = problem.uplink(), problem.weight, problem.floor()
    curve = uplink.curve
    assert isinstance(curve, UploadCurve)  # the print knows no other
    a, b = curve.scale_j, curve.exponent
    n = len(b)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        phi = n * b
        high = float(np.max(a * q * ((phi - 1.0) * np.exp(phi) + 1.0)))
    low, mu = 0.0, high
    while True:
        mu = 0.5 * (low + high)
        total = float(_printed_share(mu, a, b, q).sum())
        if total > 1.0:
            low = mu
        elif 0.0 < total < 1.0 - precision:
            high = mu
        else:
            break
        if not abs(high - low) >= precision:
            break
    share = np.maximum(_printed_share(mu, a, b, q), floor)
    energy = curve.energy_j(share)
    total = float(share.sum())
    fits = total <= 1.0 + SHARE_TOLERANCE
    return Allocation(
        share=share,
        power_w=energy / uplink.upload_time_s,
        energy_j=energy,
        upload_time_s=uplink.upload_time_s,
        multiplier=np.asarray(mu),
        residual=np.asarray(abs(total - 1.0)),
        objective=np.asarray(float(np.sum(np.where(q > 0, q * energy, 0.0)))),
        feasible=np.asarray(fits),
        status=Status() if fits else Status("band_exceeded", facts={"total": total}),
    )


def _printed_share(mu: float, a: FloatArray, b: FloatArray, q: FloatArray) -> FloatArray:
    """Equation (28) as printed, with Lambert's function: b / (W₀((μ/(a q) − 1)/e) + 1); 0 for q = 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        argument = (mu / (a * np.where(q > 0, q, 1.0)) - 1.0) / np.e
        share = b / (lambertw(argument, 0).real + 1.0)
    return np.where(q > 0, share, 0.0)
