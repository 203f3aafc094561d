"""A run in memory: the world it happens in, its rounds, and what happened in them. No files and no terminal.

`play_round` takes a `Fleet` and a `RunState` and returns the next state with a `RoundLog`. `kfl.runner` plays a run to
its end and records it in a run folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports
from kfl.simulation.logs import History, Incident, RoundLog
from kfl.simulation.state import RunState

if TYPE_CHECKING:
    from kfl.simulation.fleet import Fleet
    from kfl.simulation.round import begin, play_round
    from kfl.simulation.simulated_fleet import SimulatedFleet
    from kfl.simulation.world import World, build_world

_LAZY = {
    "Fleet": "kfl.simulation.fleet",
    "SimulatedFleet": "kfl.simulation.simulated_fleet",
    "World": "kfl.simulation.world",
    "begin": "kfl.simulation.round",
    "build_world": "kfl.simulation.world",
    "play_round": "kfl.simulation.round",
}
_MOVED = {
    "Experiment": "kfl.experiment",
    "Progress": "kfl.progress",
    "RunsFailedError": "kfl.comparison",
    "export_models": "kfl.export",
    "load_model": "kfl.export",
    "load_run": "kfl.runfolder",
    "resume": "kfl.runner",
    "run": "kfl.runner",
    "run_many": "kfl.comparison",
}
"""Names that were here until version 1.0; they can be imported from here for one more release."""


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY | _MOVED, name)


__all__ = [
    "Fleet",
    "History",
    "Incident",
    "RoundLog",
    "RunState",
    "SimulatedFleet",
    "World",
    "begin",
    "build_world",
    "play_round",
]
