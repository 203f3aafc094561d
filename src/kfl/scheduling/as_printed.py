"""The paper's print, kept beside the corrected version so that the difference can be measured.

Nothing here is used unless a caller asks for it: `Lyapunov(as_printed=True)` uses `printed_rule`; Algorithm 2
as printed is the slow twin of `kfl.scheduling.allocate` in a test.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import lambertw

from kfl.scheduling.allocation import SHARE_TOLERANCE, Allocation, AllocationProblem, share_band
from kfl.scheduling.curve import FloatArray, UploadCurve
from kfl.scheduling.status import Status
from kfl.scheduling.uplink import Uplink


def printed_rule(uplink: Uplink, weight: FloatArray, floor: FloatArray) -> Allocation:
    """Section IV-B: a device with q_k = 0 gets "the minimal required bandwidth", θ^min; the rest is optimal.

    At θ^min a device sends at full power for all the time left, so this spends the most energy it can spend.
    `share_band` already gives θ^min to free devices beside others that have a price; only where all of them are
    free does it differ, because there it minimises the total energy. One problem at a time, no batches.
    """
    solved = share_band(uplink, weight, floor)
    if not solved.feasible or ((weight > 0) & uplink.curve.sends).any():
        return solved
    energy = uplink.curve.energy_j(floor)
    run = uplink.operation(floor, energy)
    nothing = np.zeros(())
    return replace(
        solved,
        share=floor,
        power_w=run.power_w,
        energy_j=energy,
        upload_time_s=run.upload_time_s,
        multiplier=nothing,
        residual=nothing,
    )


def printed_algorithm2(problem: AllocationProblem, precision: float = 1e-6) -> Allocation:
    """Algorithm 2 line by line: bisection for Σ θ_k(μ) = 1, then shares lifted to θ^min.

    Its three faults are kept: the lift comes after the search, so that Σ θ > 1 whenever a minimum binds; the
    upper end (equation 29) is for equal shares without minima; and `precision` is absolute, in units of μ.
    `feasible` and `status` say what came out. One problem at a time, no batches.
    """
    uplink, q, floor, _ = problem.checked()
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
