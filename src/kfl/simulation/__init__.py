"""Experiments, and running them: world, rounds, history, run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports
from kfl.experiment import Experiment
from kfl.runfolder import History, RoundLog

if TYPE_CHECKING:
    from kfl.runfolder import load_run
    from kfl.simulation.export import export_models, load_model
    from kfl.simulation.many import Progress, RunsFailedError, run_many
    from kfl.simulation.runner import resume, run
    from kfl.simulation.world import World, build_world

_LAZY = {
    "Progress": "kfl.simulation.many",
    "RunsFailedError": "kfl.simulation.many",
    "World": "kfl.simulation.world",
    "build_world": "kfl.simulation.world",
    "export_models": "kfl.simulation.export",
    "load_model": "kfl.simulation.export",
    "load_run": "kfl.runfolder",
    "resume": "kfl.simulation.runner",
    "run": "kfl.simulation.runner",
    "run_many": "kfl.simulation.many",
}


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = [
    "Experiment",
    "History",
    "Progress",
    "RoundLog",
    "RunsFailedError",
    "World",
    "build_world",
    "export_models",
    "load_model",
    "load_run",
    "resume",
    "run",
    "run_many",
]
