"""What trackers are shown of a round: plain numbers with names, the same for every tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kfl.experiment import Experiment
from kfl.runfolder import RoundLog


class RunningMetrics:
    """Turns round logs, in their order, into named numbers; sums and virtual queues are kept on the way.

    >>> from kfl.scheduling import Status
    >>> from kfl.wireless import CellConfig
    >>> metrics = RunningMetrics(Experiment(devices=2, rounds=10, radio=CellConfig(budget_j_per_round=0.1)))
    >>> log = RoundLog(round=0, accuracy=0.5, devices=(1,), share=(1.0,), power_w=(0.1,), compute_energy_j=(0.25,),
    ...     upload_energy_j=(0.05,), time_s=0.9, bits_up=640.0, bits_down=640.0, objective=-1.5, lower_bound=-2.0,
    ...     status=Status())
    >>> shown = metrics.of(log)
    >>> shown["accuracy"], shown["energy/total_j"], round(shown["queue/largest_j"], 3), shown["scheduler/gap"]
    (0.5, 0.3, 0.2, 0.5)
    """

    def __init__(self, experiment: Experiment) -> None:
        cell = experiment.cell_config
        budgeted = cell is not None and not cell.source.fills
        self._allowance_j = cell.budget_j_per_round if cell is not None and budgeted else float("inf")
        self._budget_j = self._allowance_j * experiment.rounds
        self._spent_j = np.zeros(experiment.devices)
        self._queue_j = np.zeros(experiment.devices)
        self._energy_j = self._time_s = self._bits_up = 0.0

    def of(self, log: RoundLog) -> dict[str, float]:
        """The numbers of one round; each round must be shown once."""
        self._energy_j += log.energy_j
        self._time_s += log.time_s
        self._bits_up += log.bits_up
        shown = {
            "accuracy": log.accuracy,
            "energy/compute_j": sum(log.compute_energy_j),
            "energy/upload_j": sum(log.upload_energy_j),
            "energy/total_j": log.energy_j,
            "energy/so_far_j": self._energy_j,
            **({f"energy/{part}_j": sum(each) for part, each in log.parts_j().items()} if log.clock_hz else {}),
            **({"energy/harvested_j": sum(log.harvest_j)} if log.harvest_j else {}),
            "time/round_s": log.time_s,
            "time/so_far_s": self._time_s,
            "bits/up": log.bits_up,
            "bits/down": log.bits_down,
            "bits/up_so_far": self._bits_up,
            "devices/scheduled": float(len(log.devices)),
            **({"devices/empty": float(len(log.empty))} if log.charge_j or log.empty else {}),
            "devices/missed": float(len(log.missed)),
            "devices/lost": float(len(log.lost)),
            "devices/rejected": float(len(log.rejected)),
            "devices/faults": float(len(log.faults)),
            "devices/diverged": float(len(log.diverged)),
            "scheduler/objective": log.objective,
            "scheduler/gap": _difference(log.objective, log.lower_bound),
            **self._budgets(log),
        }
        return {name: value for name, value in shown.items() if value is not None and np.isfinite(value)}

    def _budgets(self, log: RoundLog) -> dict[str, float]:
        """Use of the budgets so far, and the virtual queues after the round by equation (21); none, none."""
        if not np.isfinite(self._budget_j):
            return {}
        round_j = np.zeros_like(self._spent_j)
        round_j[list(log.devices)] = np.add(log.compute_energy_j, log.upload_energy_j)
        self._spent_j += round_j
        self._queue_j = np.maximum(self._queue_j + round_j - self._allowance_j, 0.0)
        used = self._spent_j / self._budget_j
        return {
            "budget/mean_used": float(used.mean()),
            "budget/largest_used": float(used.max()),
            "budget/devices_over": float((used > 1 + 1e-9).sum()),
            "queue/mean_j": float(self._queue_j.mean()),
            "queue/largest_j": float(self._queue_j.max()),
        }


def _difference(value: float | None, bound: float | None) -> float | None:
    return None if value is None or bound is None else value - bound


def numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the facts of a summary.

    >>> numbers({"accuracy": 0.5, "algorithm": "kfl", "rounds": 3})
    {'accuracy': 0.5, 'rounds': 3.0}
    """
    plain = {name: value for name, value in summary.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in plain.items() if np.isfinite(value)}
