"""How long a page of `kfl report` takes to make, and how large it is.

    python -m benchmarks.report

Run folders are written by the same writer as a real run's, with made-up rounds: 200 rounds of 100 devices, of 1,000
and of 10,000, a tenth of the fleet in each round, with faults, refused uploads and knowledge of ten classes. The time
is that of reading the folder and writing the page in a process that has imported kfl; the median of five.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from kfl.report import build_report
from tests.reference.runs import made_up_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(f"{'rounds':>8}{'devices':>10}{'seconds':>10}{'MB':>8}")
    with tempfile.TemporaryDirectory() as base:
        for rounds, devices in ((200, 100), (200, 1_000), (200, 10_000)):
            folder = made_up_run(Path(base) / f"{rounds}x{devices}", devices, rounds, devices // 10)
            took = []
            for _ in range(repeats):
                started = time.perf_counter()
                page = build_report([folder])
                took.append(time.perf_counter() - started)
            print(f"{rounds:>8}{devices:>10,}{statistics.median(took):>10.2f}{page.stat().st_size / 1e6:>8.2f}")


if __name__ == "__main__":
    main()
