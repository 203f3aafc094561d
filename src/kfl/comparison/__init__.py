"""Compare anything: labelled experiments over seeds, none run twice; one table and one plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from kfl.comparison._compare import Comparison, compare
    from kfl.comparison.entries import Row
    from kfl.comparison.execution import RunsFailedError, run_many
    from kfl.comparison.statistics import Difference, Spread

_LAZY = {
    "Comparison": "kfl.comparison._compare",
    "Difference": "kfl.comparison.statistics",
    "Row": "kfl.comparison.entries",
    "RunsFailedError": "kfl.comparison.execution",
    "Spread": "kfl.comparison.statistics",
    "compare": "kfl.comparison._compare",
    "run_many": "kfl.comparison.execution",
}


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = ["Comparison", "Difference", "Row", "RunsFailedError", "Spread", "compare", "run_many"]
