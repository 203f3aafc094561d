"""What the paper proves, evaluated: Theorem 1 as printed, its constants estimated, and Proposition 2 for a run.

>>> from reproduction.theory import Constants, equal_counts, pattern_schedule, theorem1
>>> constants = Constants(
...     body_smoothness=2.0, head_smoothness=1.0, cross_sensitivity=0.5, body_gradient=1.0, head_gradient=1.0,
...     feature_gradient=2.0, feature_norm=2.0, body_rate=0.01, head_rate=0.02, local_steps=5,
...     knowledge_weight=1 / 32, initial_gap=2.3,
... )
>>> counts = equal_counts(devices=100, classes=10, classes_per_device=2, samples=600)
>>> late, early = (theorem1(constants, counts, pattern_schedule(name, 200, 100)) for name in ("ascend", "descend"))
>>> late.total < early.total  # the bound as printed favors late rounds
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports
from reproduction.theory._bound import (
    PATTERNS,
    Bound,
    Constants,
    equal_counts,
    pattern_schedule,
    round_weights,
    theorem1,
)
from reproduction.theory._gaps import GAPS, PAGE, Gap

if TYPE_CHECKING:
    from reproduction.theory._curvature import PointMeasures, measure_model
    from reproduction.theory._energy import EnergyAccount, EnergyBound, energy_account, proposition2_energy
    from reproduction.theory._estimate import Estimate, estimate_constants
    from reproduction.theory._finished import RunBound, bound_of_run
    from reproduction.theory._lemmas import KnowledgeGap, LemmaCheck, LocalRound, knowledge_gap, local_round
    from reproduction.theory._proposition2 import (
        VolumeBound,
        everybody_energy,
        offline_upper,
        proposition2_of_run,
        proposition2_volume,
    )

_LAZY = {
    "EnergyAccount": "reproduction.theory._energy",
    "EnergyBound": "reproduction.theory._energy",
    "Estimate": "reproduction.theory._estimate",
    "KnowledgeGap": "reproduction.theory._lemmas",
    "LemmaCheck": "reproduction.theory._lemmas",
    "LocalRound": "reproduction.theory._lemmas",
    "PointMeasures": "reproduction.theory._curvature",
    "RunBound": "reproduction.theory._finished",
    "VolumeBound": "reproduction.theory._proposition2",
    "bound_of_run": "reproduction.theory._finished",
    "estimate_constants": "reproduction.theory._estimate",
    "energy_account": "reproduction.theory._energy",
    "everybody_energy": "reproduction.theory._proposition2",
    "knowledge_gap": "reproduction.theory._lemmas",
    "local_round": "reproduction.theory._lemmas",
    "measure_model": "reproduction.theory._curvature",
    "offline_upper": "reproduction.theory._proposition2",
    "proposition2_energy": "reproduction.theory._energy",
    "proposition2_of_run": "reproduction.theory._proposition2",
    "proposition2_volume": "reproduction.theory._proposition2",
}


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = [
    "GAPS",
    "PAGE",
    "PATTERNS",
    "Bound",
    "Constants",
    "EnergyAccount",
    "EnergyBound",
    "Estimate",
    "Gap",
    "KnowledgeGap",
    "LemmaCheck",
    "LocalRound",
    "PointMeasures",
    "RunBound",
    "VolumeBound",
    "bound_of_run",
    "energy_account",
    "equal_counts",
    "estimate_constants",
    "everybody_energy",
    "knowledge_gap",
    "local_round",
    "measure_model",
    "offline_upper",
    "pattern_schedule",
    "proposition2_energy",
    "proposition2_of_run",
    "proposition2_volume",
    "round_weights",
    "theorem1",
]
