"""A claim and what the runs say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kfl.paper.measures import NOT_RUN
from kfl.paper.setting import Scale
from kfl.paper.store import Store
from kfl.paper.verdict import Verdict


@dataclass(frozen=True)
class Finding:
    """What the runs say about a claim."""

    ours: str
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """One claim, where it stands, and how it is judged."""

    where: str
    says: str
    paper: str
    """The paper's number, or its word."""
    command: str
    judge: Callable[[Store, Scale], Finding]

    def finding(self, store: Store, scale: Scale) -> Finding:
        """What the runs say; nothing is judged by a quick look, or while runs are missing."""
        found = self.judge(store, scale)
        if scale.quick or NOT_RUN in found.ours:
            return Finding(found.ours, "cannot be judged")
        return found
