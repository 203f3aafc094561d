"""Who takes part in a round, with which share of the band and which power.

A scheduler is a frozen dataclass of its parameters. Your own is one class and one line:

    SCHEDULERS["mine"] = Mine

>>> {"lyapunov", "dual", "uniform"} <= set(SCHEDULERS)
True
"""

from kfl.scheduling.allocation import Allocation, allocate
from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.baselines import AllDevices, Ascend, Descend, FixedSet, GreedyEnergy, Myopic, RoundRobin, Uniform
from kfl.scheduling.curve import CostCurve
from kfl.scheduling.dual import Dual
from kfl.scheduling.least_energy import LeastEnergy
from kfl.scheduling.lyapunov import Lyapunov
from kfl.scheduling.objective import DriftScheduler
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.problem_file import read_problem
from kfl.scheduling.problem_writer import write_problem
from kfl.scheduling.share_band import serve
from kfl.scheduling.simulate import ScheduleResult, schedule, simulate
from kfl.scheduling.status import Status
from kfl.scheduling.uplink import DeviceEnergyModel, Uplink

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
    "SCHEDULERS",
    "AllDevices",
    "Allocation",
    "Ascend",
    "CellProblem",
    "CostCurve",
    "Decision",
    "Descend",
    "DeviceEnergyModel",
    "DriftScheduler",
    "Dual",
    "FixedSet",
    "GreedyEnergy",
    "LeastEnergy",
    "Lyapunov",
    "Myopic",
    "Observation",
    "RoundRobin",
    "ScheduleResult",
    "Scheduler",
    "SchedulerState",
    "Status",
    "Uniform",
    "Uplink",
    "allocate",
    "read_problem",
    "schedule",
    "serve",
    "simulate",
    "write_problem",
]
