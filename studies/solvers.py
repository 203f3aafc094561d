"""The solvers against independent ones, on random problems over wide regimes.

    python -m studies.solvers allocation [--count 400] [--seed 0]
    python -m studies.solvers curve [--points 1000] [--count 300] [--seed 0]
    python -m studies.solvers sets [--count 300] [--whole-device]

`allocation` compares the allocator with a general convex solver. `curve` compares the cost curve of the whole device
with a minimization in 40 digits, then splits of the band with Clarabel (SLSQP where a device has a least power), with a
proof by weak duality that no split is better. `sets` compares Algorithm 3 and the dual scheduler with all 2^K sets of
up to 10 devices; with --whole-device there are as many rounds as it takes to have `count` in which the band is truly
scarce.
The tests compare fewer problems in the same ways: `tests/reference/`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from itertools import count

import numpy as np

from kfl.core.randomness import stream
from kfl.scheduling import Dual, Lyapunov
from kfl.scheduling.device_curve import DeviceCurve
from tests.reference import convex_solver, device_solver
from tests.reference.brute_force import Instance, V, instance, run
from tests.reference.whole_device import exact, random_devices


def worst_point(count: int, seed: int) -> tuple[int, float, float]:
    """How many points were compared, and the largest relative errors of the energy and of the base."""
    compared, worst, worst_base = 0, 0.0, 0.0
    draw = stream(seed, "device-points")
    while compared < count:
        devices = random_devices(draw, 4)
        curve = DeviceCurve.of(**{field.name: getattr(devices, field.name) for field in fields(devices)})
        floor = devices.least_share()
        near = draw.random(4) < 0.3  # near the least share, where the power limit binds
        share = np.where(near, floor * (1 + 10 ** draw.uniform(-9, -1, 4)), floor ** draw.random(4))
        share = np.minimum(np.where(np.isfinite(floor), share, 1.0), 1.0)
        energy = curve.energy_j(share)
        worst_base = max(worst_base, float(np.max(np.abs(curve.base_j / devices.base_j - 1))))
        for k in np.flatnonzero(np.isfinite(floor)):
            worst = max(worst, abs(float(energy[k]) / exact(devices, int(k), float(share[k]))[0] - 1))
            compared += 1
    return compared, worst, worst_base


def compare_curves(points: int, problems: int, seed: int) -> bool:
    """Print how far the curve is from the references; return whether something is wrong."""
    compared, worst, worst_base = worst_point(points, seed)
    print(f"{compared} single devices at one share each: joules beyond the base off by at most {worst:.1e} (relative),")
    print(f"base off by at most {worst_base:.1e}")
    summary = device_solver.compare(device_solver.problems(problems, seed))
    print(f"\n{problems} problems\n{summary}")
    if summary.worse:
        print(f"ours is worse or not proven on the problems {summary.worse}")
    return bool(summary.worse) or worst > 1e-7


def compare_sets(wanted: int, whole_device: bool) -> bool:
    """Print how often the schedulers find the best set, and by how much they miss it; return whether a bound fails."""
    rounds = (instance(seed, hard_budget=seed % 4 == 3, whole_device=whole_device) for seed in count())
    cases: list[Instance] = []
    scarce: list[Instance] = []
    while len(scarce if whole_device else cases) < wanted:
        cases.append(next(rounds))
        scarce += [cases[-1]] if cases[-1].scarce else []
    print(f"{len(cases)} rounds of 4 to 10 devices, the band truly scarce in {len(scarce)}")
    print(f"{'scheduler':12}{'rounds':>8}{'optimal':>11}{'worst gap':>11}{'in devices':>12}{'mean gap':>11}")
    for scheduler in (Lyapunov(v=V), Dual(v=V)):
        for label, group in (("all", cases), ("scarce", scarce)):
            rows = [run(scheduler, case) for case in group]
            print(
                f"{scheduler.name:12}{label:>8}{sum(row.optimal for row in rows):>6}/{len(rows):<4}"
                f"{max(row.distance for row in rows):>11.2%}{max(row.distance_devices for row in rows):>12.3g}"
                f"{np.mean([row.distance for row in rows]):>11.3%}"
            )
    rows = [run(Dual(v=V), case) for case in cases]
    print(f"dual: certified gap at most {max(row.certified_devices for row in rows):.3f} devices;", end=" ")
    print(f"bound − optimum at most {max(row.bound_excess for row in rows):.1e} (relative; must not be positive)")
    wrong = [row for row in rows if row.bound_excess > 0 or row.distance_devices > row.certified_devices + 1e-9]
    print(f"dual: {len(wrong)} rounds outside its certificate (bound ≤ optimum ≤ value)")
    return bool(wrong) or 2 * len(scarce) < len(cases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("allocation", "curve", "sets"))
    parser.add_argument("--count", type=int, help="problems or rounds; 400 for allocation, else 300")
    parser.add_argument("--points", type=int, default=1000, help="devices at one share each, for curve")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole-device", action="store_true", help="devices with clocks, circuits and power limits")
    options = parser.parse_args()
    if options.what == "allocation":
        print(convex_solver.compare(convex_solver.instances(options.count or 400, options.seed)))
        return 0
    if options.what == "curve":
        return int(compare_curves(options.points, options.count or 300, options.seed))
    return int(compare_sets(options.count or 300, options.whole_device))


if __name__ == "__main__":
    sys.exit(main())
