"""Methods that train, on the same encoder: small networks on its numbers, all after the same search.

Common knowledge stands among them, in the same cell, tested on the same part of the test set. A network is one hidden
layer of 64 units or none; settings are searched in every condition, on seeds that are not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kfl.algorithms import CommonKnowledge
from kfl.comparison import Comparison, Entry, Search, compare
from kfl.comparison.entries import algorithm_named
from kfl.progress import ManyDisplay
from kfl.scheduling import Uniform
from kfl.wireless import PRESETS
from studies.common_encoder.conditions import CONDITIONS, DEVICES, experiment
from studies.common_encoder.curves import FLOPS_PER_CYCLE

ROUNDS = 100
EACH_ROUND = 10
"""Devices in a round; each takes part ten times, or once where it reports once."""
METHODS = ("kfl", "shared-stem", "fedmrl", "fedavg", "fedrep", "fedprox", "scaffold", "ditto", "local")
NETWORKS: dict[str, tuple[int, ...]] = {"mlp": (64,), "linear": (1,)}
"""Widths by the network's name."""
CONDITIONS_WITH_NETWORKS = ("cifar10-m5-50", "cifar10-m10-50", "cifar10-m5-all", "cifar10-m2-50", "mnist-m5-50")
SEARCH = Search()


def entries(conditions: Sequence[str], networks: Sequence[str] = tuple(NETWORKS)) -> list[Entry]:
    """Every method in every condition on every network."""
    return [
        entry for network in networks for name in conditions for entry in _entries(name, network, f"{name}, {network}")
    ]


def play(out: Path, conditions: Sequence[str], seeds: Sequence[int], workers: int) -> Comparison:
    """Search, and run what is missing."""
    with ManyDisplay("networks") as display:
        return compare(
            entries(conditions),
            seeds,
            out,
            twins=True,
            search=SEARCH,
            workers=workers,
            keep_runs=False,
            on_progress=display.on_progress,
        )


def _entries(name: str, network: str, condition: str) -> list[Entry]:
    common = replace(
        experiment(CONDITIONS[name], 0),
        model=network,
        widths=NETWORKS[network],
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
        scheduler=Uniform(count=EACH_ROUND),
        radio=replace(PRESETS[f"paper-{CONDITIONS[name].dataset}"], flops_per_cycle=FLOPS_PER_CYCLE),
        real_work=True,
    )
    once = replace(common, algorithm=CommonKnowledge(), rounds=DEVICES // EACH_ROUND, evaluate_every=ROUNDS)
    trained = [
        Entry(label, replace(common, algorithm=algorithm_named(label, common.algorithm)), condition)
        for label in METHODS
    ]
    return [Entry("common-knowledge", once, condition), *trained]
