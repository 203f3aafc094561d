"""The configuration of a run, and what can go wrong in it. Nothing here imports PyTorch."""

from kfl.experiment._experiment import (
    DataSettings,
    Experiment,
    class_of,
    common_settings,
    identity_fields,
    require_experiment,
)
from kfl.experiment.earlier import in_todays_words
from kfl.experiment.faults import Faults

__all__ = [
    "DataSettings",
    "Experiment",
    "Faults",
    "class_of",
    "common_settings",
    "identity_fields",
    "in_todays_words",
    "require_experiment",
]
