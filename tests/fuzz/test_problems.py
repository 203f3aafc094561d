"""Scheduling problems that are almost right, in JSON and CSV: decided soundly, or refused in one sentence."""

import json
import random

import numpy as np
import pytest

from kfl.cli.schedule import example
from kfl.core.errors import KflError
from kfl.scheduling import SCHEDULERS, read_problem, schedule

STRANGE = (
    -1,
    0,
    1,
    10**400,
    0.5,
    1e308,
    -1e308,
    1e-320,
    "",
    "a",
    "-7",
    "none",
    True,
    False,
    None,
    [],
    [1],
    {},
    {"a": 1},
)
CASES = 400


def check(text, scheduler, judged):
    problem = judged(lambda: read_problem(text if "\n" in text else text + "\n"))
    if isinstance(problem, KflError):
        return "refused"
    horizon = judged(lambda: schedule(problem, scheduler))
    if isinstance(horizon, KflError):
        return "refused"
    for played in horizon.rounds:
        share = played.share
        assert np.isfinite(share).all() and (share >= 0).all() and share.sum() <= 1 + 1e-9
        assert np.isfinite(played.upload_energy_j).all() and (played.upload_energy_j >= 0).all()
    return "decided"


def some_scheduler(draw):
    return SCHEDULERS[draw.choice(list(SCHEDULERS))]()


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_one_mutation_of_the_text(kind, mutated, judged):
    draw = random.Random(3)
    results = []
    for _ in range(CASES // 2):
        text = mutated(example(kind).encode(), draw).decode("utf-8", "replace")
        results.append(check(text, some_scheduler(draw), judged))
    assert results.count("decided") > CASES / 80 and results.count("refused") > CASES / 12


def test_one_strange_value(judged):
    draw = random.Random(4)
    results = []
    for _ in range(CASES):
        table = json.loads(example("json"))
        inner = draw.choice([table, *table["devices"]])
        key = draw.choice(list(inner))
        if draw.random() < 0.2:
            inner[key + "x"] = inner.pop(key)
        else:
            inner[key] = draw.choice(STRANGE)
        results.append(check(json.dumps(table), some_scheduler(draw), judged))
    assert results.count("decided") > CASES / 12 and results.count("refused") > CASES / 3


def test_a_file_is_read_and_left_alone(mutated, judged, tmp_path):
    draw = random.Random(5)
    for number in range(60):
        kind = draw.choice(("json", "csv"))
        path = tmp_path / f"{number}.{kind}"
        path.write_bytes(broken := mutated(example(kind).encode(), draw))
        judged(lambda path=path: read_problem(path))
        assert path.read_bytes() == broken
