"""The cost curve of the whole device against general solvers, over wide regimes.

    python -m studies.device_curve [--points 1000] [--problems 300] [--seed 0]

First single devices: joules at a share, against a minimisation in 40 digits. Then problems of up to 12 devices: the
split of the band against Clarabel (SLSQP where somebody has a least power), with a proof by weak duality that no split
is better. How they are compared: `tests/reference/whole_device.py` and `device_solver.py`.
`python -m studies.brute_force --whole-device` continues with all sets of devices.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

import numpy as np

from kfl.core.randomness import stream
from kfl.scheduling.device_curve import DeviceCurve
from tests.reference.device_solver import compare, problems
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    compared, worst, worst_base = worst_point(options.points, options.seed)
    print(f"{compared} single devices at one share each: joules beyond the base off by at most {worst:.1e} (relative),")
    print(f"base off by at most {worst_base:.1e}")
    summary = compare(problems(options.problems, options.seed))
    print(f"\n{options.problems} problems\n{summary}")
    if summary.worse:
        print(f"ours is worse or not proven on the problems {summary.worse}")
    return int(bool(summary.worse) or worst > 1e-7)


if __name__ == "__main__":
    sys.exit(main())
