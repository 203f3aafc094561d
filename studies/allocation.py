"""The allocator against a general convex solver, on random problems over wide regimes.

    python -m studies.allocation [--count 400] [--seed 0]

How they are compared: `tests/reference/convex_solver.py`, which the tests use on fewer problems.
"""

from __future__ import annotations

import argparse

from tests.reference.convex_solver import compare, instances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(compare(instances(options.count, options.seed)))


if __name__ == "__main__":
    main()
