"""The run folder: one package that writes it and reads it, safely."""

from kfl.runfolder._checkpoint import Checkpoints, RunState
from kfl.runfolder._environment import describe_environment
from kfl.runfolder._history import History, RoundLog, totals
from kfl.runfolder._read import TWIN, RunData, find_runs, read_run
from kfl.runfolder._rounds import Incident, Rounds
from kfl.runfolder._tensors import MODELS, as_safetensors, device_name, read_state, require_safetensors
from kfl.runfolder._trail import Snapshot, kept_rounds, read_trail, snapshot
from kfl.runfolder._write import LOCK, RunFolder, cannot_write, load_experiment, load_run, read_environment

__all__ = [
    "LOCK",
    "MODELS",
    "TWIN",
    "Checkpoints",
    "History",
    "Incident",
    "RoundLog",
    "Rounds",
    "RunData",
    "RunFolder",
    "RunState",
    "Snapshot",
    "as_safetensors",
    "cannot_write",
    "describe_environment",
    "device_name",
    "find_runs",
    "kept_rounds",
    "load_experiment",
    "load_run",
    "read_environment",
    "read_run",
    "read_state",
    "read_trail",
    "require_safetensors",
    "snapshot",
    "totals",
]
