"""Compare anything: labeled experiments over seeds, none run twice; one table and one plot.

`compare` runs entries, after the same search for each and with twins where requested, and returns a `Comparison`.
`ResultStore` holds one line per finished run, found by the digest of its experiment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from kfl.comparison.entries import Entry as Entry
    from kfl.comparison.entries import vary as vary
    from kfl.comparison.execution import Execution as Execution
    from kfl.comparison.execution import RunsFailedError as RunsFailedError
    from kfl.comparison.execution import run_many as run_many
    from kfl.comparison.question import compare as compare
    from kfl.comparison.question import read as read
    from kfl.comparison.result import Comparison as Comparison
    from kfl.comparison.rows import Row as Row
    from kfl.comparison.schedulers import SCHEDULER_SET as SCHEDULER_SET
    from kfl.comparison.schedulers import choose_schedulers as choose_schedulers
    from kfl.comparison.search import Search as Search
    from kfl.comparison.statistics import Difference as Difference
    from kfl.comparison.statistics import Spread as Spread
    from kfl.comparison.statistics import holm as holm
    from kfl.comparison.statistics import paired_difference as paired_difference
    from kfl.comparison.store import ResultStore as ResultStore
    from kfl.comparison.store import Shard as Shard
    from kfl.comparison.tables import Table as Table

_LAZY = {
    "SCHEDULER_SET": "kfl.comparison.schedulers",
    "Comparison": "kfl.comparison.result",
    "Difference": "kfl.comparison.statistics",
    "Entry": "kfl.comparison.entries",
    "Execution": "kfl.comparison.execution",
    "ResultStore": "kfl.comparison.store",
    "Row": "kfl.comparison.rows",
    "RunsFailedError": "kfl.comparison.execution",
    "Search": "kfl.comparison.search",
    "Shard": "kfl.comparison.store",
    "Spread": "kfl.comparison.statistics",
    "Table": "kfl.comparison.tables",
    "choose_schedulers": "kfl.comparison.schedulers",
    "compare": "kfl.comparison.question",
    "holm": "kfl.comparison.statistics",
    "paired_difference": "kfl.comparison.statistics",
    "read": "kfl.comparison.question",
    "run_many": "kfl.comparison.execution",
    "vary": "kfl.comparison.entries",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)
