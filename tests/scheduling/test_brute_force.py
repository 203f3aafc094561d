"""Both schedulers against all 2^K sets: a smaller run of `python -m studies.solvers sets`."""

import pytest

from kfl.scheduling import Dual, Lyapunov
from tests.reference.brute_force import V, instance, run

CASES = [instance(seed, hard_budget=seed % 4 == 3) for seed in range(60)]
WHOLE = [instance(seed, hard_budget=seed % 4 == 3, whole_device=True) for seed in range(24)]


def test_the_band_is_truly_scarce_in_half_of_the_cases() -> None:
    assert 2 * sum(case.scarce for case in CASES) >= len(CASES)


@pytest.mark.parametrize("scheduler", [Lyapunov(v=V), Dual(v=V)], ids=lambda s: s.name)
def test_nobody_beats_brute_force(scheduler: Lyapunov | Dual) -> None:
    for case in CASES:
        assert run(scheduler, case).distance >= -1e-9


def test_the_dual_is_optimal_and_its_bound_is_one() -> None:
    rows = [run(Dual(v=V), case) for case in CASES]
    assert max(row.bound_excess for row in rows) <= 0
    assert max(row.certified_devices for row in rows) <= 1
    # So are all of the first 3000 such rounds (python -m studies.solvers sets --count 3000); these are 60 of them.
    assert all(row.optimal for row in rows)
    assert max(row.distance for row in rows) < 1e-6


def test_algorithm_3_is_not_optimal_when_the_band_is_scarce() -> None:
    """What the paper's Proposition 2 assumes, exact minimization in every round, Algorithm 3 does not give."""
    rows = [run(Lyapunov(v=V), case) for case in CASES if case.scarce]
    assert sum(not row.optimal for row in rows) > len(rows) / 4


def test_the_dual_is_optimal_for_whole_devices_too() -> None:
    """Clocks, circuits and power limits change the curves and nothing else."""
    assert 2 * sum(case.scarce for case in WHOLE) >= len(WHOLE)
    rows = [run(Dual(v=V), case) for case in WHOLE]
    assert max(row.bound_excess for row in rows) <= 0
    assert max(row.certified_devices for row in rows) <= 1
    assert all(row.optimal for row in rows)
    # The set is the best one; joules within budget have a small price of their own, kept below 0.1 % of a device.
    assert max(row.distance_devices for row in rows) < 1e-3
