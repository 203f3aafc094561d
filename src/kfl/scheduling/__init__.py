"""Who takes part in a round, with which share of the band and which power.

A scheduler is a frozen dataclass of its parameters. Your own is one class and one line:

    SCHEDULERS["mine"] = Mine

>>> {"lyapunov", "dual", "uniform"} <= set(SCHEDULERS)
True
"""

from kfl.scheduling.accounts import Accounts, Batteries, RoundInputs, decide, observe, settle
from kfl.scheduling.allocation import Allocation, AllocationProblem, allocate
from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.baselines import AllDevices, Ascend, Descend, FixedSet, GreedyEnergy, Myopic, RoundRobin, Uniform
from kfl.scheduling.blocks import BlockSplit, quantize_to_blocks, round_to_blocks
from kfl.scheduling.curve import CostCurve, FloatArray, UploadCurve
from kfl.scheduling.dual import Dual
from kfl.scheduling.energy_report import by_part, dominant
from kfl.scheduling.least_energy import LeastEnergy, least_energy_j
from kfl.scheduling.lyapunov import Lyapunov
from kfl.scheduling.objective import DriftScheduler, drift_objective
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.problem_file import read_problem
from kfl.scheduling.problem_schema import ProblemError
from kfl.scheduling.problem_writer import write_problem
from kfl.scheduling.share_band import serve
from kfl.scheduling.simulate import ScheduledRound, ScheduleResult, schedule, simulate
from kfl.scheduling.status import OUTCOMES, Status, describe
from kfl.scheduling.uplink import ENERGY_PARTS, DeviceEnergyModel, Uplink

SCHEDULERS: dict[str, type[Scheduler]] = {
    scheduler.name: scheduler
    for scheduler in (
        Lyapunov,
        Dual,
        LeastEnergy,
        RoundRobin,
        Myopic,
        Uniform,
        Ascend,
        Descend,
        AllDevices,
        GreedyEnergy,
        FixedSet,
    )
}
"""Every scheduler by the word that selects it. Random-k is "uniform" with its `count`."""

__all__ = [
    "ENERGY_PARTS",
    "OUTCOMES",
    "SCHEDULERS",
    "Accounts",
    "AllDevices",
    "Allocation",
    "AllocationProblem",
    "Ascend",
    "Batteries",
    "BlockSplit",
    "CellProblem",
    "CostCurve",
    "Decision",
    "Descend",
    "DeviceEnergyModel",
    "DriftScheduler",
    "Dual",
    "FixedSet",
    "FloatArray",
    "GreedyEnergy",
    "LeastEnergy",
    "Lyapunov",
    "Myopic",
    "Observation",
    "ProblemError",
    "RoundInputs",
    "RoundRobin",
    "ScheduleResult",
    "ScheduledRound",
    "Scheduler",
    "SchedulerState",
    "Status",
    "Uniform",
    "Uplink",
    "UploadCurve",
    "allocate",
    "by_part",
    "decide",
    "describe",
    "dominant",
    "drift_objective",
    "least_energy_j",
    "observe",
    "quantize_to_blocks",
    "read_problem",
    "round_to_blocks",
    "schedule",
    "serve",
    "settle",
    "simulate",
    "write_problem",
]
