"""Methods that train, on the same encoder: a small network on each device instead of a closed form."""

from __future__ import annotations

from dataclasses import replace

import kfl
from kfl.algorithms import Algorithm, FedAvg, FedRep, FixedKnowledge, Kfl, Local
from kfl.scheduling import Uniform
from kfl.wireless import PRESETS
from studies.common_encoder.conditions import CONDITIONS, Seen, experiment
from studies.common_encoder.curves import FLOPS_PER_CYCLE

ROUNDS = 100
METHODS: dict[str, Algorithm] = {
    "own network": Local(),
    "fixed-knowledge": FixedKnowledge(),
    "kfl": Kfl(),
    "fedavg": FedAvg(),
    "fedrep": FedRep(),
}
"""With the settings that all algorithms have by default: nothing is tuned."""


def play(name: str, seed: int, seen: Seen) -> list[dict[str, object]]:
    """One line for each method: its accuracy, and bits and joules in all."""
    found: list[dict[str, object]] = []
    for label, algorithm in METHODS.items():
        history = kfl.run(
            replace(
                experiment(CONDITIONS[name], seed),
                algorithm=algorithm,
                model="mlp",
                widths=(64,),
                rounds=ROUNDS,
                evaluate_every=ROUNDS,
                scheduler=Uniform(count=10),
                radio=replace(PRESETS[f"paper-{CONDITIONS[name].dataset}"], flops_per_cycle=FLOPS_PER_CYCLE),
                real_work=True,
            ),
            dataset=seen.data,
        )
        line = {"condition": name, "seed": seed, "method": label, "accuracy": history.accuracy}
        found.append({**line, "bits": history.bits_up / 100, "energy_j": history.energy_j})
    return found
