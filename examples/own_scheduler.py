"""Add a scheduler: one class that says whom it wants, compared with the paper's in a narrow-band cell.

    python examples/own_scheduler.py

`serve` does the rest for any scheduler: it leaves out who cannot finish in time or pay for it, and shares the band
among the others with the least energy. One seed: this shows how to compare schedulers, not which is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import kfl
from kfl.scheduling import SCHEDULERS, Decision, Lyapunov, Observation, Scheduler, SchedulerState, serve


@dataclass(frozen=True)
class BestChannel(Scheduler):
    """The devices with the best channel of the round, whatever they have spent: cheap to send, and unfair."""

    name: ClassVar[str] = "best-channel"

    count: int = 5
    """Devices per round. A field is an option: --scheduler.count on the command line."""

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """Whom to take in this round. `state.queue_j` would say who is ahead of its energy budget."""
        if observation.uplink is None:
            raise ValueError("best-channel needs a radio")
        gain = np.where(observation.available, observation.uplink.gain, -np.inf)
        chosen = np.zeros(len(gain), bool)
        chosen[np.argsort(gain)[::-1][: self.count]] = True
        return serve(observation, chosen, weight=np.ones(len(gain)))


SCHEDULERS[BestChannel.name] = BestChannel  # now its name works in files too, as every other scheduler's does


def main() -> None:
    """Both schedulers with the same devices, data, channel and batteries."""
    print("scheduler      accuracy  worst tenth  never took part  of the budgets   energy")
    for scheduler in (BestChannel(count=5), Lyapunov()):
        experiment = kfl.Experiment(
            devices=20,
            rounds=25,
            widths=(32,),
            radio="nb-iot",  # 180 kHz for all, meters in cellars: sending costs more than computing
            hard_budget=True,
            scheduler=scheduler,
            evaluate_every=25,
        )
        history = kfl.run(experiment)
        never = sum(device["rounds"] == 0 for device in history.devices)
        print(
            f"{scheduler.name:<14} {history.accuracy:8.1%} {history.worst_tenth:12.1%} {never:16d} "
            f"{history.summary['mean_use_of_budget']:15.1%} {history.energy_j:6.2f} J"
        )


if __name__ == "__main__":
    main()
