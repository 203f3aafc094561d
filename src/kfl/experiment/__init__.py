"""The configuration of a run, and what can go wrong in it. Nothing here imports PyTorch."""

from kfl.experiment.experiment import DataSettings, Experiment
from kfl.experiment.faults import Faults

__all__ = ["DataSettings", "Experiment", "Faults"]
