"""Who takes part in a round, with which share of the band and which transmit power."""

from kfl.scheduling.base import Decision, Fleet, Observation, Scheduler, SchedulerState, Uplink
from kfl.scheduling.baselines import AllDevices, Ascend, Descend, Myopic, RoundRobin, Uniform
from kfl.scheduling.dual import Dual

SCHEDULERS: dict[str, type[Scheduler]] = {
    cls.name: cls for cls in (Uniform, Ascend, Descend, AllDevices, RoundRobin, Myopic, Dual)
}
"""Schedulers by the word that selects them."""

__all__ = [
    "SCHEDULERS",
    "AllDevices",
    "Ascend",
    "Decision",
    "Descend",
    "Dual",
    "Fleet",
    "Myopic",
    "Observation",
    "RoundRobin",
    "Scheduler",
    "SchedulerState",
    "Uniform",
    "Uplink",
]
