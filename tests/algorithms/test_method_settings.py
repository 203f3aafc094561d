"""What a method does when nobody sets anything: the values of its authors, or ours where the pages say why.

Results are published under the names of methods, and run files leave most settings out. So a value that changes here
changes what a name means.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from kfl.algorithms import ALGORITHMS, Algorithm, Fd, FedGh, FedKd, FedMrl, FedTgp, LgFedAvg, PlotStyle, SharedStem
from kfl.data import Partition
from kfl.engine import LocalData
from kfl.engine.sequential import SequentialEngine

SETTINGS = {
    SharedStem: {
        "bits_per_value": 4,
        "bits_down": 7,
        "budget_bits": None,
        "pull": "random",
        "knowledge_weight": 0.03125,
        "scale": 3.0,
        "aggregation": "mean",
        "trim": 0.25,
        "clip_norm": None,
        "noise_multiplier": 0.0,
    },
    FedTgp: {
        "prototype_weight": 10.0,
        "server_epochs": 100,
        "server_learning_rate": 0.01,
        "server_batch_size": 10,
        "margin_limit": 100.0,
    },
    FedGh: {"head": "trained", "server_epochs": 1, "server_learning_rate": 0.01, "server_batch_size": 1},
    FedKd: {"proxy_per_class": 50, "distill_steps": 1, "distill_rate": 0.01, "temperature": 2.0},
    FedMrl: {"small_features": 16, "small_width": 32, "small_loss_weight": 1.0},
    Fd: {"distill_weight": 1.0},
    LgFedAvg: {"share": "head"},
}
TRIED = {
    SharedStem: ("knowledge_weight", (0.01, 0.03125, 0.1)),
    FedTgp: ("prototype_weight", (0.32, 1.0, 10.0)),
    FedGh: ("server_learning_rate", (0.001, 0.01, 0.1)),
    FedKd: ("distill_rate", (0.003, 0.01, 0.03)),
    FedMrl: ("small_features", (8, 16, 32)),
    Fd: ("distill_weight", (0.3, 1.0, 3.0)),
    LgFedAvg: None,
}
"""What `kfl tune` tries beside learning rates: the searches behind the published settings went over these."""
LINES = {
    SharedStem: PlotStyle("#c1272d", (), 2.4),
    FedTgp: PlotStyle("#3a9bd9", (6, 2), 1.7),
    FedGh: PlotStyle("#8e5bb5", (2, 1.2), 1.7),
    FedKd: PlotStyle("#b07d00", (3, 1.2), 1.7),
    FedMrl: PlotStyle("#7b5ea7", (7, 1.5, 2, 1.5), 1.7),
    Fd: PlotStyle("#8a5a44", (4, 1.5), 1.7),
    LgFedAvg: PlotStyle("#7a6bb5", (7, 1.5, 2, 1.5), 1.7),
}
"""Lines of the published figures: one that is drawn later must be found in them."""


@pytest.mark.parametrize("cls", SETTINGS, ids=lambda cls: cls.name)
def test_a_name_alone_means_the_published_settings(cls):
    own = {field.name for field in dataclasses.fields(cls)} - {field.name for field in dataclasses.fields(Algorithm)}
    assert {name: getattr(cls(), name) for name in own} == SETTINGS[cls]
    cls(**SETTINGS[cls]).validate()
    assert cls.main_parameter == TRIED[cls]
    assert cls.style == LINES[cls]


@pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_server_that_declares_no_need_of_networks_starts_alike_beside_any(cls, toy, mixed_toy):
    """A fleet's server then has a stand-in with the right number of features, and must still hold the right arrays."""
    settings = [{}, {"share": "stem"}] if cls is LgFedAvg else [{}]
    differs = False
    for algorithm in (cls(**setting) for setting in settings):
        worlds = [world.of(algorithm) for world in (toy, mixed_toy)]
        one, other = (algorithm.server_init(world.engine, toy.seed) for world in worlds)
        differs |= {n: v.shape for n, v in one.items()} != {n: v.shape for n, v in other.items()}
    assert differs == (cls.needs_equal_models or cls.server_needs_models)


@pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_fleet_of_one_device_plays_a_round(cls, toy, play):
    algorithm = cls()
    own = toy.of(algorithm)
    first = Partition(
        *(values[:1] for values in (own.partition.train, own.partition.test)),
        *(counts[:1] for counts in (own.partition.train_counts, own.partition.test_counts)),
    )
    models = replace(own.models, architecture=own.models.architecture[:1])
    engine = SequentialEngine(LocalData(own.dataset, first, own.proxy), models)
    alone = replace(own, partition=first, models=models, engine=engine)
    algorithm.check_models(models)
    assert play(algorithm, alone, [[0], [0]]).rejections == [[], []]
