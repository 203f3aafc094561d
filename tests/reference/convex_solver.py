"""The allocator's yardstick: a general convex solver, on random problems over wide regimes.

Each problem is written as an exponential-cone problem for cvxpy with Clarabel: ExpCone(b, θ, z) says z ≥ θ e^{b/θ}, and
Σ a w (z − θ) is minimized. The solver's shares are put through the exact objective, so the comparison does not depend
on how it rounds z − θ. Both points are feasible, so the lower value is the better one: "solver worse" means that it
stalled above ours. The optimality conditions judge ours in any case.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kfl.core.randomness import stream
from kfl.scheduling.curve import UploadCurve
from tests.reference.uplinks import SharingProblem

NOISE_W_PER_HZ = 4e-21
_RESCALINGS = 12
FloatArray = NDArray[np.float64]


def random_problem(rng: np.random.Generator) -> SharingProblem:
    """1–100 devices, 10 kHz–100 MHz, 5 kbit–20 Mbit, queues 0–1e4, gains over 8 decades."""
    devices = int(np.exp(rng.uniform(0.0, np.log(101.0))))
    bandwidth = 10.0 ** rng.uniform(4.0, 8.0)
    center = rng.uniform(np.log10(5e3), np.log10(2e7))
    payload = np.clip(10.0 ** rng.normal(center, rng.choice([0.0, 0.5]), devices), 5e3, 2e7)
    gain = 10.0 ** rng.uniform(-14.0, -6.0, devices)
    queue = np.where(rng.random(devices) < rng.choice([0.0, 0.3]), 0.0, 10.0 ** rng.uniform(-4.0, 4.0, devices))
    return SharingProblem(
        bandwidth_hz=bandwidth,
        noise_w_per_hz=NOISE_W_PER_HZ,
        gain=gain,
        payload_bits=payload,
        upload_time_s=rng.uniform(0.1, 2.0, devices),
        max_power_w=10.0 ** rng.uniform(-1.0, 0.5, devices),
        weight=queue + rng.choice([0.0, 1e-7]),
    )


def instances(count: int, seed: int) -> list[SharingProblem]:
    """Mostly feasible instances: an infeasible draw is kept only one time in twenty."""
    found: list[SharingProblem] = []
    rng = stream(seed, "allocation-benchmark")
    while len(found) < count:
        problem = random_problem(rng)
        if problem.solve().feasible or rng.random() < 0.05:
            found.append(problem)
    return found


def solver_shares(problem: SharingProblem) -> FloatArray | None:
    """Shares from Clarabel, put exactly on the constraints; None where it never finishes.

    Exponentials of real rounds span 12 decades, and one call of the solver then stalls at 1e-3. So the problem
    is scaled around a point, solved, and scaled again around what came out, until that no longer improves.
    The first point is the band split in proportion to b; nothing comes from our allocator.
    """
    scale, exponent, weight, least = _curves(problem)
    priced = weight > 0  # a device whose joules are free keeps its least share and leaves the problem
    share = np.array(least)
    band = 1.0 - float(share[~priced].sum())
    b, floor = exponent[priced] / band, share[priced] / band
    cost = scale[priced] * weight[priced] * band

    def value(theta: FloatArray) -> float:
        return float(np.sum(cost * theta * np.expm1(b / theta)))

    around: FloatArray = floor + (1.0 - floor.sum()) * b / b.sum()
    best: FloatArray | None = None
    for _ in range(_RESCALINGS):
        found = _solve_scaled(b, floor, cost, around)
        if found is None:
            break
        gained = np.inf if best is None else 1.0 - value(found) / value(best)
        if gained > 0:
            around = best = found
        if gained < 1e-11:
            break
    if best is None:
        return None
    share[priced] = best * band
    return share


def _solve_scaled(b: FloatArray, floor: FloatArray, cost: FloatArray, around: FloatArray) -> FloatArray | None:
    """One call of the solver in t = θ/θ₀ and z = θ e^{x − x₀}/θ₀, both 1 at the point θ₀ it is scaled around."""
    import cvxpy as cp
    from cvxpy.atoms.affine.binary_operators import multiply
    from cvxpy.constraints.exponential import ExpCone

    x0 = b / around
    scale = cost * around / float(np.sum(cost * around * np.expm1(x0)))
    t, z = cp.Variable(len(b)), cp.Variable(len(b))
    problem = cp.Problem(
        cp.Minimize(z @ (scale * np.exp(x0)) - t @ scale),
        [ExpCone(multiply(x0, 1 - t), t, z), t @ around <= 1, t >= floor / around],
    )
    tolerances = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    solve: Callable[..., object] = problem.solve
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "solution may be inaccurate": we judge that ourselves
            solve(solver=cp.CLARABEL, **tolerances)
    except cp.error.SolverError:
        return None
    if t.value is None:
        return None
    above = np.maximum(np.asarray(t.value, float) * around - floor, 0.0)
    spare = max(1.0 - float(floor.sum()), 0.0)
    return np.asarray(floor + above * (spare / float(above.sum())) if above.sum() > 0 else floor)


def exact_objective(problem: SharingProblem, share: FloatArray) -> float:
    """Σ w a θ (e^{b/θ} − 1), written out here so that it does not share code with the allocator."""
    scale, exponent, weight, _ = _curves(problem)
    return float(np.sum(weight * scale * share * np.expm1(exponent / share)))


def _curves(problem: SharingProblem) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """a, b, the price of a joule (1 where no device's has one) and the least share of every device."""
    uplink, weight, floor = problem.uplink(), problem.weight, problem.floor()
    assert isinstance(uplink.curve, UploadCurve)
    price = weight if (weight > 0).any() else np.ones_like(weight)
    return uplink.curve.scale_j, uplink.curve.exponent, price, floor


@dataclass
class Summary:
    """What came out of a comparison."""

    outcomes: Counter[str] = field(default_factory=Counter)
    worst_excess: float = 0.0
    """Largest relative excess of our objective over the solver's."""
    worst_residual: float = 0.0
    worst_sum: float = 0.0
    worst_power: float = 0.0
    ours_s: float = 0.0
    solver_s: float = 0.0

    def __str__(self) -> str:
        """The summary as a table."""
        lines = [f"{name:<46}{count:>6}" for name, count in sorted(self.outcomes.items())]
        return "\n".join(
            [
                *lines,
                f"{'our objective above the solver, relative':<46}{self.worst_excess:>10.1e}",
                f"{'optimality residual':<46}{self.worst_residual:>10.1e}",
                f"{'sum of shares above 1':<46}{self.worst_sum:>10.1e}",
                f"{'power above its limit, relative':<46}{self.worst_power:>10.1e}",
                f"{'seconds, ours':<46}{self.ours_s:>10.3f}",
                f"{'seconds, solver':<46}{self.solver_s:>10.1f}",
            ]
        )


def compare(problems: list[SharingProblem], tolerance: float = 1e-8) -> Summary:
    """Solve each problem both ways."""
    summary = Summary()
    for problem in problems:
        start = time.perf_counter()
        ours = problem.solve()
        summary.ours_s += time.perf_counter() - start
        if not ours.feasible:
            summary.outcomes["infeasible"] += 1
            continue
        limit = np.asarray(problem.max_power_w)
        summary.worst_residual = max(summary.worst_residual, float(ours.residual))
        summary.worst_sum = max(summary.worst_sum, float(ours.share.sum()) - 1.0)
        summary.worst_power = max(summary.worst_power, float((ours.power_w / limit).max()) - 1.0)
        start = time.perf_counter()
        share = solver_shares(problem)
        summary.solver_s += time.perf_counter() - start
        if share is None:
            summary.outcomes["solver failed"] += 1
            continue
        theirs = exact_objective(problem, share)
        excess = (exact_objective(problem, ours.share) - theirs) / theirs
        summary.worst_excess = max(summary.worst_excess, excess)
        if excess > tolerance:
            summary.outcomes["OURS WORSE"] += 1
        elif excess < -tolerance:
            summary.outcomes["solver worse than ours"] += 1
        else:
            summary.outcomes["agree"] += 1
    return summary
