"""The allocator against a general convex solver over wide regimes (the same comparison as the benchmark)."""

from tests.reference.convex_solver import compare, instances


def test_three_hundred_random_instances() -> None:
    problems = instances(330, seed=7)
    summary = compare(problems, tolerance=1e-8)
    print(summary)
    compared = len(problems) - summary.outcomes["infeasible"]
    assert compared >= 300  # feasible instances are the majority
    assert summary.outcomes["OURS WORSE"] == 0
    # Where the solver stalls or fails, our own conditions judge; but it must be able to judge most.
    assert summary.outcomes["agree"] >= 0.85 * compared
    assert summary.worst_residual < 1e-9
    assert summary.worst_sum < 1e-12
    assert summary.worst_power < 1e-9
