"""General solvers on the dual scheduler's relaxation: seconds, and how far their value is from ours.

    python -m benchmarks.dual_peers [--sizes 100 1000 10000] [--out FILE]

With a fraction z of a device and the share s = θ z, the best price's bound is the value of the convex program

    minimize   Σ q a s (e^{b z/s} − 1) − v z     subject to   Σ s ≤ 1,   f z ≤ s ≤ z,   0 ≤ z ≤ 1,

whose terms are exponential cones: Clarabel and SCS take them as they are. HiGHS (`scipy.optimize.linprog`) gets
tangents of each E in their place, a linear program from below. SciPy maximizes the bound over the one price by Brent's
method, with the energies of `kfl`. All solve less than `dual` does, which goes on to a set with shares and its
certificate. Seconds are the solvers' own where they tell them. Rounds are `benchmarks.dual`'s "half" of the printed
model.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize_scalar
from scipy.sparse import coo_matrix

from benchmarks.dual import round_of
from kfl.scheduling._band_price import Candidates
from kfl.scheduling._relaxation import reduced_values
from kfl.scheduling.curve import UploadCurve

cp: Any = cvxpy
TANGENTS = 32
LIMIT_S = 60.0
"""Time limit of a solver that takes one."""

Floats = NDArray[np.float64]


class Program:
    """The relaxation of one round: devices that are worth something and can send."""

    def __init__(self, devices: int) -> None:
        self.scheduler, self.state, self.observation = round_of(devices, "half")
        seen, worth = self.observation, self.scheduler.worth(self.state, self.observation)
        able = np.flatnonzero((worth > 0) & np.isfinite(seen.power_floor))
        curve = seen.take(able).curve
        assert isinstance(curve, UploadCurve)
        self.devices = Candidates.of(curve, seen.power_floor[able], self.state.queue_j[able], worth[able])
        self.a, self.b = curve.scale_j, curve.exponent
        self.scale = float(worth[able].max())
        """Solvers see values around 1 and shares in units of one device's part of the band."""
        self.q, self.v, self.f = self.state.queue_j[able] / self.scale, worth[able] / self.scale, self.devices.floor
        self.size = len(able)
        # A device breaks even at x = ln(v / (q a b)) and never sends with a larger one.
        with np.errstate(divide="ignore"):
            largest = np.log(self.v / (self.q * self.a * self.b))
        self.largest_x = np.clip(largest, 1e-3, self.b / self.f)

    def cones(self, solver: str) -> tuple[float, float]:
        """Value and seconds by an interior-point or a splitting method."""
        n, paying = self.size, np.flatnonzero(self.q > 0)  # joules of the others are free: no cone
        z, part, grown = cp.Variable(n), cp.Variable(n), cp.Variable(len(paying))  # s = part / n
        weight, need, typical = (self.q * self.a / n)[paying], n * self.b[paying], self.largest_x[paying] - 3.0
        cost = weight @ (cp.multiply(np.exp(typical), grown) - part[paying]) - self.v @ z
        limits = [cp.sum(part) <= n, part >= cp.multiply(n * self.f, z), part <= n * z, z >= 0, z <= 1]
        # grown ≥ part e^{x − typical}, x = n b z / part
        cone = cp.constraints.ExpCone(
            cp.multiply(need, z[paying]) - cp.multiply(typical, part[paying]), part[paying], grown
        )
        problem = cp.Problem(cp.Minimize(cost), [*limits, cone])
        given: dict[str, Any] = {"time_limit": LIMIT_S} if solver == cp.CLARABEL else {"time_limit_secs": LIMIT_S}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of solutions that may be inaccurate: the gap says how much
            problem.solve(solver=solver, **given)
        return float(problem.value) * self.scale, float(problem.solver_stats.solve_time)

    def tangents(self) -> tuple[float, float]:
        """Value and seconds of HiGHS with tangents of E: t ≥ (E − θ E') z + E' s at points up to the largest x."""
        n, start = self.size, time.perf_counter()
        rows, columns, entries = [], [], []
        each = np.arange(n)
        for index, x in enumerate(np.linspace(0.2 * self.largest_x, self.largest_x, TANGENTS)):
            theta = self.b / x
            energy, slope = self.a * theta * np.expm1(x), -self.a * ((x - 1.0) * np.exp(x) + 1.0)
            unit = np.maximum(self.q * energy, 1e-9)
            line = index * n + each
            for column, entry in (
                (each, self.q * (energy - theta * slope) / unit),
                (n + each, self.q * slope / n / unit),
                (2 * n + each, -1.0 / unit),
            ):
                rows.append(line)
                columns.append(column)
                entries.append(entry)
        bound = TANGENTS * n
        rows += [np.full(n, bound), bound + 1 + each, bound + 1 + each, bound + 1 + n + each, bound + 1 + n + each]
        columns += [n + each, each, n + each, each, n + each]
        entries += [np.full(n, 1.0 / n), n * self.f, -np.ones(n), -np.full(n, float(n)), np.ones(n)]
        shape = (bound + 1 + 2 * n, 3 * n)
        matrix = coo_matrix((np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))), shape).tocsr()
        right = np.zeros(shape[0])
        right[bound] = 1.0
        solve: Any = linprog
        found = solve(
            np.concatenate([-self.v, np.zeros(n), np.ones(n)]),
            A_ub=matrix,
            b_ub=right,
            bounds=[(0, 1)] * n + [(0, None)] * (2 * n),
            method="highs",
            options={"time_limit": LIMIT_S},
        )
        return (float(found.fun) if found.fun is not None else math.nan) * self.scale, time.perf_counter() - start

    def brent(self) -> tuple[float, float]:
        """Value and seconds of SciPy's search for the price with the highest bound."""
        start = time.perf_counter()

        def fall(log_price: float) -> float:
            return math.exp(log_price) - float(np.sum(np.minimum(reduced_values(self.devices, log_price), 0.0)))

        top = math.log(self.v.sum() * self.scale)
        search: Any = minimize_scalar
        found = search(fall, bounds=(top - 40.0, top), method="bounded", options={"xatol": 1e-10})
        return -float(found.fun), time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000], help="numbers of devices")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    lines = [f"{'devices':>8} {'solver':10}{'seconds':>10}{'over dual':>11}{'value':>20}{'off the bound':>15}"]
    print(lines[0])
    for size in options.sizes:
        program = Program(size)
        program.scheduler.decide(program.state, program.observation)
        uplink = program.observation.uplink
        assert uplink is not None
        seconds = []
        for _ in range(5):
            fresh = replace(program.observation, uplink=replace(uplink))
            start = time.perf_counter()
            decision = replace(program.scheduler).decide(program.state, fresh)
            seconds.append(time.perf_counter() - start)
        ours, bound = float(np.median(seconds)), decision.lower_bound
        found = {"dual": (bound, ours)}
        found |= {"clarabel": program.cones(cp.CLARABEL), "scs": program.cones(cp.SCS)}
        found |= {"highs": program.tangents(), "scipy": program.brent()}
        for name, (value, spent) in found.items():
            off = (value - bound) / -bound
            lines.append(f"{size:>8,} {name:10}{spent:>10.4f}{spent / ours:>11.1f}{value:>20.10g}{off:>15.1e}")
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(["python -m benchmarks.dual_peers", "", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
