"""Every claim of the paper's text that runs or counting can judge, and the questions of ours that stand next to them.

What is judged nowhere, because no experiment here measures it, is listed in `docs/paper.md`.
"""

from __future__ import annotations

from reproduction.judging import Claim
from reproduction.learning_claims import (
    equal_work_questions,
    learning_m2,
    learning_m3,
    local_only_questions,
    more_data_claim,
    new_class_claim,
    pattern_claims,
)
from reproduction.scheduler_claims import scheduler_claims, trade_off_claims
from reproduction.setting import Models
from reproduction.upload_claims import upload_claims


def claims() -> list[Claim]:
    """All of them, in the order of the paper, then ours."""
    both: tuple[Models, ...] = ("equal", "mixed")
    return [
        *upload_claims(),
        new_class_claim(),
        *(more_data_claim(classes, models) for classes in (2, 3) for models in both),
        *(claim for classes in (2, 3) for models in both for claim in pattern_claims(classes, models)),
        *(claim for classes in (2, 3) for claim in trade_off_claims(classes)),
        *learning_m2(),
        *scheduler_claims(2),
        *learning_m3(),
        *scheduler_claims(3),
        *equal_work_questions(),
        *local_only_questions(),
    ]
