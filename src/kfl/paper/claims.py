"""Every claim of the paper's text, what our runs say, and the verdict by the rule in `verdict`."""

from __future__ import annotations

from kfl.paper.claim import Claim
from kfl.paper.learning_claims import learning_m2, learning_m3, new_class_claim, pattern_claim
from kfl.paper.scheduler_claims import scheduler_claims
from kfl.paper.uploads import upload_claims


def claims() -> list[Claim]:
    """All of them, in the order of the paper."""
    return [
        *upload_claims(),
        *learning_m2(),
        *(pattern_claim(2, models) for models in ("equal", "mixed")),
        *scheduler_claims(2),
        *learning_m3(),
        *(pattern_claim(3, models) for models in ("equal", "mixed")),
        *scheduler_claims(3),
        new_class_claim(),
    ]
