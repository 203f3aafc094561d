"""What a configuration in a run folder of an earlier version means today.

A run folder's configuration has every field written out, so a field that is missing tells that the version that wrote
it did not have it. Where its default would mean something else than that version did, it is filled in here; a field
whose absence and default mean the same needs only a line in `ADDED_LATER`. A configuration that a person writes leaves
fields out to get today's defaults, and does not come this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfl.core.config import Table


def in_todays_words(table: Mapping[str, Any]) -> Table:
    """The configuration of a run folder, whichever version wrote it, in the fields and meanings of this one.

    >>> old = {"algorithm": {"name": "fedrep", "local_steps": 5, "head_steps": "none"}}
    >>> in_todays_words(old)["algorithm"]
    {'name': 'fedrep', 'local_steps': 5, 'head_steps': 3, 'body_steps': 2}
    """
    algorithm = table.get("algorithm")
    if isinstance(algorithm, Mapping) and algorithm.get("name") == "fedrep":
        return {**table, "algorithm": _fedrep(algorithm)}
    return dict(table)


def _fedrep(algorithm: Mapping[str, Any]) -> Table:
    """Without `body_steps`, τ was the number of steps of both parts together, and the head took half, rounded up."""
    steps, head = algorithm.get("local_steps"), algorithm.get("head_steps")
    if "body_steps" in algorithm or not isinstance(steps, int):
        return dict(algorithm)
    head = head if isinstance(head, int) else (steps + 1) // 2
    return {**algorithm, "head_steps": head, "body_steps": steps - head}
