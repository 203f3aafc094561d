"""The traces of an experiment: files of gains, harvest and availability that its run reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.encoders.names import AUTO
from kfl.wireless import GainTrace, HarvestTrace
from kfl.wireless.trace import Quantity, Trace, open_trace, true_or_false

if TYPE_CHECKING:
    from kfl.experiment.experiment import Experiment

AVAILABLE = Quantity("available", "1 or true, or 0 or false", parse=true_or_false)
"""Whether a device can be asked."""


def open_traces(experiment: Experiment) -> dict[str, Trace]:
    """The traces of gain, harvest and availability that a run reads, every row checked; TraceError if one is wrong."""
    cell, found = experiment.cell_config, {}
    if cell is not None:
        for name, model in (("gain", cell.channel), ("harvest", cell.source)):
            if isinstance(model, GainTrace | HarvestTrace):
                found[name] = model.trace(cell, experiment.devices)
    present = _availability(experiment)
    if present is not None:
        found["availability"] = present
    for trace in found.values() if experiment.radio != AUTO else ():  # whose rounds are as long as the data say
        trace.check_end((experiment.rounds - 1) * experiment.period_s)
    return found


def can_be_asked(experiment: Experiment, round_index: int) -> NDArray[np.bool_]:
    """Which devices can be asked in a round by the trace of availability; all without one."""
    trace = _availability(experiment)
    if trace is None:
        return np.ones(experiment.devices, dtype=bool)
    return trace.at(round_index * experiment.period_s) > 0


def check_availability(path: str | None, repeat_s: float | None) -> None:
    """Refuse a period that cannot work."""
    if repeat_s is not None and path is None:
        raise ConfigError("availability_repeat_s", repeat_s, "none without availability_trace")
    if repeat_s is not None and not 0 < repeat_s < math.inf:
        raise ConfigError("availability_repeat_s", repeat_s, "a positive number of seconds, or none")


def _availability(experiment: Experiment) -> Trace | None:
    path, repeat_s = experiment.availability_trace, experiment.availability_repeat_s
    if path is None:
        return None
    return open_trace(path, [AVAILABLE], experiment.devices, experiment.period_s, repeat_s=repeat_s)
