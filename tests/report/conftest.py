"""Small real runs for the pages, each played once: with faults, without a radio, with batteries, and a comparison."""

import shutil
from dataclasses import replace

import pytest

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.experiment import common_settings
from kfl.experiment.faults import Faults
from kfl.scheduling import Lyapunov
from kfl.wireless import PRESETS, SolarHarvest
from tests.reference.runs import SMALL, data

EXPERIMENT = replace(
    SMALL,
    rounds=15,
    scheduler=Lyapunov(v=0.01),
    faults=Faults(drop_before=0.1, late=0.1, corrupt=0.2),
)
SEEDS = (5, 6, 7)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder of run folders: kfl with the same devices training alone inside, fedavg, plain without a radio."""
    base = tmp_path_factory.mktemp("runs")
    kfl.run(EXPERIMENT, base / "kfl", dataset=data())
    alone = replace(EXPERIMENT, algorithm=common_settings(EXPERIMENT.algorithm, kfl.algorithms.Local))
    kfl.run(alone, base / "kfl" / "local-only", dataset=data(), keep_models=False)
    averaging = ALGORITHMS["fedavg"]()
    kfl.run(replace(EXPERIMENT, algorithm=averaging, widths=(8,), seed=3), base / "fedavg", dataset=data())
    kfl.run(replace(SMALL, rounds=3, radio=None), base / "plain", dataset=data())
    return base


@pytest.fixture
def copy(runs, tmp_path):
    """One of these runs, to damage."""
    return shutil.copytree(runs / "kfl", tmp_path / "run")


@pytest.fixture(scope="session")
def sunny(tmp_path_factory):
    """A run of whole devices whose batteries fill by day and run empty by night."""
    cell = replace(
        PRESETS["wifi"],
        receive_power_w=0.2,
        downlink_power_dbm=20.0,
        battery_capacity_j=0.15,
        initial_charge=0.1,
        round_period_s=3600.0,
        harvest=SolarHarvest(peak_w=3e-5),
    )
    folder = tmp_path_factory.mktemp("sunny") / "run"
    kfl.run(replace(SMALL, rounds=30, radio=cell, scheduler=Lyapunov()), folder, dataset=data())
    return folder


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """A comparison as `kfl compare` leaves it: three algorithms, three seeds, names with hashes."""
    base = tmp_path_factory.mktemp("compared")
    for name in ("kfl", "local", "fixed-knowledge"):
        algorithm = common_settings(SMALL.algorithm, ALGORITHMS[name])
        for seed in SEEDS:
            run = replace(SMALL, rounds=12, algorithm=algorithm, seed=seed, radio=PRESETS["paper-mnist"])
            kfl.run(run, base / f"{name}-seed{seed}-{run.digest()}", dataset=data(), keep_models=False)
    return base
