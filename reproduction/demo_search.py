"""The settings of `kfl demo`: steps, rates and pulls of each method, searched in its cell on development seeds.

    python -m reproduction.demo_search [folder]      about 180 runs of two seconds

Every method has the same batteries: more steps in a round are fewer rounds. Where the best trial was at an edge of the
grid, trials beyond it were added. What comes out is `docs/results/demo/search.md`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

from kfl.algorithms import Algorithm, FedAvg, FixedKnowledge, Kfl, Local, SharedStem
from kfl.comparison import run_many
from kfl.comparison.presets import DEMO as METHODS
from kfl.comparison.presets import DEMO_SETTING as SETTING
from kfl.core.names import markdown_table

SEEDS = (100, 101)
"""Never those that are reported."""
PULLS = (0.01, 1 / 32, 0.1)


def trials() -> Iterator[Algorithm]:
    """The grid, and what was added at its edges."""
    for cls, steps, rate, pull in product((Kfl, SharedStem, FixedKnowledge), (5, 10), (0.05, 0.1, 0.2), PULLS):
        yield cls(local_steps=steps, learning_rate=rate, knowledge_weight=pull)
    for cls, steps, rate in product((Local, FedAvg), (5, 10), (0.025, 0.05, 0.1, 0.2, 0.4)):
        yield cls(local_steps=steps, learning_rate=rate)
    yield FedAvg(local_steps=10, learning_rate=0.0125)
    for rate in (0.00625, 0.0125, 0.025, 0.05):
        yield FedAvg(local_steps=20, learning_rate=rate)
    for rate in (0.0125, 0.025):
        yield Local(local_steps=20, learning_rate=rate)
    yield SharedStem(learning_rate=0.4, knowledge_weight=0.1)
    yield SharedStem(learning_rate=0.2, knowledge_weight=0.3)
    for rate in (0.05, 0.1):
        yield SharedStem(local_steps=20, learning_rate=rate)
    yield Kfl(learning_rate=0.1, knowledge_weight=0.3)
    for rate in (0.025, 0.05):
        yield Kfl(local_steps=20, learning_rate=rate, knowledge_weight=0.01)
    yield FixedKnowledge(local_steps=20, learning_rate=0.1)


def search(folder: Path) -> dict[Algorithm, list[float]]:
    """Accuracies of every trial, one for each seed."""
    tried = list(trials())
    base = replace(SETTING, evaluate_every=SETTING.rounds)
    histories = iter(run_many([replace(base, algorithm=one, seed=seed) for one in tried for seed in SEEDS], folder, 2))
    return {one: [next(histories).accuracy for _ in SEEDS] for one in tried}


def page(found: dict[Algorithm, list[float]]) -> str:
    """The three best trials of each method, and how many it had."""
    cells: dict[str, list[str]] = {name: [] for name in ("method", "trials", "steps", "rate", "pull", "accuracy, %")}
    for name in METHODS:
        mine = {one: values for one, values in found.items() if one.name == name}
        for place, one in enumerate(sorted(mine, key=lambda one: -mean(mine[one]))[:3]):
            pull = getattr(one, "knowledge_weight", None)
            row = (
                name * (place == 0),
                str(len(mine)) * (place == 0),
                str(one.local_steps),
                f"{one.learning_rate:g}",
                "–" if pull is None else f"{pull:.3g}",
                ", ".join(f"{100 * value:.1f}" for value in mine[one]),
            )
            for column, text in zip(cells.values(), row, strict=True):
                column.append(text)
    return "\n".join(markdown_table(cells)) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        found = search(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
    print(page(found), end="")
    for name, chosen in METHODS.items():
        best = max((one for one in found if one.name == name), key=lambda one: mean(found[one]))
        if best != chosen:
            print(f"kfl demo has {chosen}, but {best} is best.", file=sys.stderr)


if __name__ == "__main__":
    main()
