"""How fast the playground answers: from a moved slider to the first results, and to the whole horizon.

    python benchmarks/playground.py [--devices 100] [--rounds 60]

Times are the server's, in this process: settings to JSON. The page waits 60 ms for a slider to rest, and draws.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

from kfl.report.controls import STARTS, start
from kfl.report.playground import FIRST_S, Play, answer_json


def measure(begin: str, scheduler: str, devices: int, rounds: int, repeats: int = 5) -> tuple[float, float, int, float]:
    """Milliseconds to the first answer and to all rounds, rounds in the first answer, and kilobytes at the end."""
    first, whole, count, size = [], [], 0, 0.0
    for seed in range(repeats):
        settings = replace(start(begin), scheduler=scheduler, devices=devices, rounds=rounds, seed=seed)
        began = time.perf_counter()
        play = Play(settings)
        play.advance(FIRST_S)
        answer_json(play)
        first.append(time.perf_counter() - began)
        count = len(play.rounds)
        play.advance()
        size = len(answer_json(play)) / 1e3
        whole.append(time.perf_counter() - began)
    return 1e3 * statistics.median(first), 1e3 * statistics.median(whole), count, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    print(f"{options.devices} devices, {options.rounds} rounds; medians of 5 seeds")
    print(
        f"{'cell':<12} {'scheduler':<12} {'first answer':>13} {'rounds in it':>13} {'whole horizon':>14} {'answer':>9}"
    )
    for begin in STARTS:
        for scheduler in ("lyapunov", "dual", "round-robin", "myopic"):
            first, whole, count, size = measure(begin, scheduler, options.devices, options.rounds)
            print(f"{begin:<12} {scheduler:<12} {first:>10.0f} ms {count:>13} {whole:>11.0f} ms {size:>6.0f} kB")


if __name__ == "__main__":
    main()
