"""Algorithm 3 and the dual scheduler against all 2^K sets, for up to 10 devices.

    python -m studies.brute_force [--instances 300] [--whole-device]

With --whole-device the devices have clocks, circuits, amplifiers, tails and power limits, and there are as many rounds
as it takes to have `instances` with a band that is truly scarce.
"""

from __future__ import annotations

import argparse
import sys
from itertools import count

import numpy as np

from kfl.scheduling import Dual, Lyapunov
from tests.reference.brute_force import Instance, V, instance, run


def main() -> int:
    parser = argparse.ArgumentParser(description="Algorithm 3 and the dual scheduler against all sets.")
    parser.add_argument("--instances", type=int, default=300)
    parser.add_argument("--whole-device", action="store_true", help="devices with clocks, circuits and power limits")
    options = parser.parse_args()
    rounds = (instance(seed, hard_budget=seed % 4 == 3, whole_device=options.whole_device) for seed in count())
    cases: list[Instance] = []
    scarce: list[Instance] = []
    while len(scarce if options.whole_device else cases) < options.instances:
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
    return int(bool(wrong) or 2 * len(scarce) < len(cases))


if __name__ == "__main__":
    sys.exit(main())
