"""The configuration of a run, and what can go wrong in it. Nothing here imports PyTorch."""

from kfl.experiment.experiment import (
    DataSettings,
    Experiment,
    class_of,
    common_settings,
    require_experiment,
)
from kfl.experiment.faults import Faults
from kfl.experiment.identity import identity_fields, in_todays_words
from kfl.experiment.idle import check_idle

__all__ = [
    "DataSettings",
    "Experiment",
    "Faults",
    "check_idle",
    "class_of",
    "common_settings",
    "identity_fields",
    "in_todays_words",
    "require_experiment",
]
