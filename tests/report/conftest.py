"""Small real runs for the pages: with faults and a radio, their local-only twin, and one without a radio."""

from dataclasses import replace

import pytest

import kfl
from kfl.experiment import common_settings
from kfl.experiment.faults import Faults
from kfl.scheduling import Lyapunov
from tests.reference.runs import SMALL, data

EXPERIMENT = replace(
    SMALL,
    rounds=15,
    scheduler=Lyapunov(v=0.01),
    faults=Faults(drop_before=0.1, late=0.1, corrupt=0.2),
)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder of run folders: kfl with its twin, fedavg, plain without a radio."""
    base = tmp_path_factory.mktemp("runs")
    kfl.run(EXPERIMENT, base / "kfl", dataset=data())
    alone = replace(EXPERIMENT, algorithm=common_settings(EXPERIMENT.algorithm, kfl.algorithms.Local))
    kfl.run(alone, base / "kfl" / "local-only", dataset=data(), keep_models=False)
    averaging = kfl.algorithms.ALGORITHMS["fedavg"]()
    kfl.run(replace(EXPERIMENT, algorithm=averaging, widths=(8,), seed=3), base / "fedavg", dataset=data())
    kfl.run(replace(SMALL, rounds=3, radio=None), base / "plain", dataset=data())
    return base
