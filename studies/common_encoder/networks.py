"""Methods that train, on the same encoder: small networks on its numbers, all after the same search.

Common knowledge stands among them, in the same cell, tested on the same part of the test set. A network has one hidden
layer of 64 units or is a linear layer; settings are searched in every condition, on seeds that are not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kfl.algorithms import Algorithm, CommonKnowledge, FedAvg, FedMrl, FedRep, Kfl, LocalClassifier, SharedStem
from kfl.comparison import Comparison, Entry, Search, compare
from kfl.comparison.twins import TWINS, UNLIMITED
from kfl.progress import ManyDisplay
from kfl.scheduling import Uniform
from kfl.wireless import PRESETS
from studies.common_encoder.conditions import CONDITIONS, experiment
from studies.common_encoder.curves import FLOPS_PER_CYCLE

ROUNDS = 100
EACH_ROUND = 10
"""Devices in a round; each takes part ten times, or once where it reports once."""
METHODS: dict[str, Algorithm] = {
    "common-knowledge": CommonKnowledge(),
    "common-knowledge, residual network": CommonKnowledge(personal="network"),
    "kfl": Kfl(),
    "shared-stem": SharedStem(budget_bits=UNLIMITED),
    "fedmrl": FedMrl(largest_gradient=50.0),
    "fedmrl, 2 bits": FedMrl(largest_gradient=50.0, bits_per_value=2),
    "fedavg": FedAvg(),
    "fedrep": FedRep(),
    **{label: TWINS[label] for label in ("local", "self-knowledge", "fixed-knowledge")},
    "own-kernel": LocalClassifier(),
}
"""FedMRL's authors limit its gradients so. Those that a network does not allow are left out with the reason."""
NETWORKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "hidden": ("studies.common_encoder.small_network:hidden", (64,)),
    "linear": ("linear", (1,)),
}
"""Models and widths by the name of their folder."""
USUAL = ("cifar10-m5-50",)
SEARCH = Search(seeds=(100,))
"""One development seed: the search is four fifths of the study's time."""


def play(
    out: Path, conditions: Sequence[str], seeds: Sequence[int], workers: int, methods: Sequence[str] = tuple(METHODS)
) -> list[Comparison]:
    """Search, and run what is missing, each network in a folder of its own."""
    found = []
    for network in NETWORKS:
        entries = [entry for name in conditions for entry in _entries(name, network) if entry.label in methods]
        with ManyDisplay(network) as display:
            found.append(
                compare(
                    entries,
                    seeds,
                    out / network,
                    twins=True,
                    search=SEARCH,
                    workers=workers,
                    keep_runs=False,
                    on_progress=display.on_progress,
                )
            )
    return found


def _entries(name: str, network: str) -> list[Entry]:
    """Every method in a condition on a network."""
    common = replace(
        experiment(CONDITIONS[name], 0),
        model=NETWORKS[network][0],
        widths=NETWORKS[network][1],
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
        scheduler=Uniform(count=EACH_ROUND),
        radio=replace(PRESETS[f"paper-{CONDITIONS[name].dataset}"], flops_per_cycle=FLOPS_PER_CYCLE),
        real_work=True,
    )
    return [
        Entry(label, replace(common, algorithm=algorithm), f"{name}, {network}") for label, algorithm in METHODS.items()
    ]
