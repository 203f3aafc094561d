"""What the paper proves, evaluated: Theorem 1 as printed, its constants estimated, and Proposition 2 for a run.

>>> from kfl.theory import Constants, equal_counts, pattern_schedule, theorem1
>>> constants = Constants(
...     body_smoothness=2.0, head_smoothness=1.0, cross_sensitivity=0.5, body_gradient=1.0, head_gradient=1.0,
...     feature_gradient=2.0, feature_norm=2.0, body_rate=0.01, head_rate=0.02, local_steps=5,
...     knowledge_weight=1 / 32, initial_gap=2.3,
... )
>>> counts = equal_counts(devices=100, classes=10, classes_per_device=2, samples=600)
>>> late, early = (theorem1(constants, counts, pattern_schedule(name, 200, 100)) for name in ("ascend", "descend"))
>>> late.total < early.total  # the bound as printed favours late rounds
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports
from kfl.theory._bound import PATTERNS, Bound, Constants, equal_counts, pattern_schedule, round_weights, theorem1
from kfl.theory._gaps import GAPS, PAGE, Gap

if TYPE_CHECKING:
    from kfl.theory._curvature import PointMeasures, measure_model
    from kfl.theory._estimate import Estimate, estimate_constants
    from kfl.theory._finished import RunBound, bound_of_run
    from kfl.theory._lemmas import KnowledgeGap, LemmaCheck, LocalRound, knowledge_gap, local_round
    from kfl.theory._proposition2 import (
        VolumeBound,
        everybody_energy,
        offline_upper,
        proposition2_of_run,
        proposition2_volume,
    )

_LAZY = {
    "Estimate": "kfl.theory._estimate",
    "KnowledgeGap": "kfl.theory._lemmas",
    "LemmaCheck": "kfl.theory._lemmas",
    "LocalRound": "kfl.theory._lemmas",
    "PointMeasures": "kfl.theory._curvature",
    "RunBound": "kfl.theory._finished",
    "VolumeBound": "kfl.theory._proposition2",
    "bound_of_run": "kfl.theory._finished",
    "estimate_constants": "kfl.theory._estimate",
    "everybody_energy": "kfl.theory._proposition2",
    "knowledge_gap": "kfl.theory._lemmas",
    "local_round": "kfl.theory._lemmas",
    "measure_model": "kfl.theory._curvature",
    "offline_upper": "kfl.theory._proposition2",
    "proposition2_of_run": "kfl.theory._proposition2",
    "proposition2_volume": "kfl.theory._proposition2",
}


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = [
    "GAPS",
    "PAGE",
    "PATTERNS",
    "Bound",
    "Constants",
    "Estimate",
    "Gap",
    "KnowledgeGap",
    "LemmaCheck",
    "LocalRound",
    "PointMeasures",
    "RunBound",
    "VolumeBound",
    "bound_of_run",
    "equal_counts",
    "estimate_constants",
    "everybody_energy",
    "knowledge_gap",
    "local_round",
    "measure_model",
    "offline_upper",
    "pattern_schedule",
    "proposition2_of_run",
    "proposition2_volume",
    "round_weights",
    "theorem1",
]
