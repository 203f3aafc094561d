"""Speed of Algorithm 3 against its literal form, with the same decisions.

    python -m benchmarks.algorithm3 [--sizes 100 300 1000 3000 10000] [--literal-up-to 1000]

Four kinds of round, each a whole call of `Lyapunov.decide`:

    paper    the paper's MNIST cell in mid-run: the uplink is almost free, and queues decide where the loop stops
    scarce   as many devices as the band can hold; every prefix is in play and the last ones are crowded
    costly   the upload costs about what the data is worth: the loop stops somewhere in the middle
    crowded  each further device makes the others' uploads dearer: the best prefix lies well before the stop
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from kfl.scheduling import Observation, SchedulerState
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.lyapunov import Lyapunov, line_up
from tests.reference.literal_algorithm3 import literal_best_prefix
from tests.reference.rounds import KINDS, instance


def measure(kind: str, devices: int, seed: int, literal: bool) -> dict[str, float]:
    scheduler, state, observation = instance(kind, devices, seed)
    scheduler.decide(state, observation)  # warm up
    times = []
    for _ in range(3):
        start = time.perf_counter()
        decision = scheduler.decide(state, observation)
        times.append(time.perf_counter() - start)
    row = {
        "ours": min(times),
        "chosen": float(decision.chosen.sum()),
        "literal": np.nan,
        "same": np.nan,
        "looked": np.nan,
    }
    if literal:
        start = time.perf_counter()
        candidates, order = line_up(*_arguments(scheduler, state, observation))
        count, looked = literal_best_prefix(candidates)
        row["literal"] = time.perf_counter() - start
        row["looked"] = looked
        row["same"] = float(set(order[:count].tolist()) == set(np.flatnonzero(decision.chosen).tolist()))
    return row


def _arguments(
    scheduler: Lyapunov, state: SchedulerState, observation: Observation
) -> tuple[float, float, FloatArray, Observation]:
    value = scheduler.printed_v(state, observation.samples) / (observation.round + 1)
    return value, scheduler.epsilon * float(state.allowance_j.mean()), state.queue_j, observation


def _exponent(sizes: list[int], seconds: list[float]) -> float:
    known = [(k, s) for k, s in zip(sizes, seconds, strict=True) if np.isfinite(s)]
    if len(known) < 2:
        return float("nan")
    return float(np.polyfit(np.log([k for k, _ in known]), np.log([s for _, s in known]), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000, 3000, 10000])
    parser.add_argument("--literal-up-to", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(
        f"{'round':8}{'K':>7}{'chosen':>8}{'looked at':>10}{'literal s':>11}{'ours s':>10}{'ratio':>8}  same decision"
    )
    for kind in KINDS:
        ours, literal = [], []
        for size in options.sizes:
            row = measure(kind, size, options.seed, size <= options.literal_up_to)
            ours.append(row["ours"])
            literal.append(row["literal"])
            same = {1.0: "yes", 0.0: "NO"}.get(row["same"], "–")
            print(
                f"{kind:8}{size:>7}{row['chosen']:>8.0f}{row['looked']:>10.0f}{row['literal']:>11.3f}"
                f"{row['ours']:>10.4f}{row['literal'] / row['ours']:>8.0f}  {same}",
                flush=True,
            )
        print(
            f"{kind:8}time grows as K^{_exponent(options.sizes, literal):.2f} (literal) "
            f"and K^{_exponent(options.sizes, ours):.2f} (ours)"
        )


if __name__ == "__main__":
    main()
