"""What an algorithm does when nothing is set: the values of its authors, or ours where the pages say why.

Run files leave most settings out and results are published under the names of methods, so a value that changes here
changes what a name means.
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from kfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    Apfl,
    FedAvg,
    FedProto,
    FedRep,
    FixedKnowledge,
    Kfl,
    LgFedAvg,
    Local,
    SelfKnowledge,
)
from kfl.algorithms.sums import summation_of
from kfl.core.config import to_table
from kfl.core.errors import ModelError
from kfl.data import Partition
from kfl.engine import LocalData, RoundKey, Sgd
from kfl.engine.autograd import AutogradEngine

COMMON = {"local_steps": 5, "learning_rate": 0.05, "head_learning_rate": None, "momentum": 0.9, "batch_size": None}
PUBLISHED = tomllib.loads(Path(__file__).with_name("defaults.toml").read_text())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_name_alone_means_the_published_settings(name):
    cls = ALGORITHMS[name]
    settings = dict(PUBLISHED[name])
    searched = settings.pop("searched by kfl tune", {})
    cls().validate()
    assert to_table(cls()) == settings
    tried = cls.main_parameter
    assert searched == ({} if tried is None else {tried[0]: list(tried[1])})
    for field, values in searched.items():
        for value in values:
            cls(**{field: value}).validate()


def test_who_averages_whole_models_needs_one_architecture_and_predicts_with_what_others_did(toy):
    for cls in (Kfl, Local, SelfKnowledge, FixedKnowledge, FedAvg, FedProto, FedRep, Apfl):
        averages = cls in (FedAvg, FedRep, Apfl)
        assert (cls.needs_equal_models, cls.predicts_alone, cls.server_needs_models) == (averages, not averages, False)
        server = cls().server_init(toy.engine, 7)
        assert any(name.startswith("body.") for name in cls().broadcast(server)) == averages
    assert FedAvg().device_init(toy.engine, 0, 7) == {}  # a device of federated averaging keeps nothing


@dataclasses.dataclass(frozen=True)
class Silent(Algorithm):
    """A custom algorithm that writes what must be written and nothing else."""

    name: ClassVar[str] = "silent"

    def local_update(self, message, devices, states, engine, key):
        return list(states), []


def test_an_algorithm_that_says_nothing_shares_nothing(toy):
    algorithm, profile = Silent(), toy.engine.profile(1)
    algorithm.validate()
    assert dataclasses.asdict(algorithm) == COMMON
    assert (Silent.needs_equal_models, Silent.server_needs_models, Silent.predicts_alone) == (False, False, True)
    assert Silent.main_parameter is None and not Silent.sends()
    assert algorithm.device_models(toy.models) is toy.models
    assert algorithm.proxy_per_class == algorithm.added_parameters(profile) == 0
    server = algorithm.server_init(toy.engine, 7)
    assert server == algorithm.broadcast(server) == algorithm.upload_format(server) == {}
    assert summation_of(algorithm) is None and algorithm.class_vectors(server) is None
    state = algorithm.device_init(toy.engine, 1, 7)
    own = toy.engine.initial(1, 7)
    assert state.keys() == own.keys() and all(torch.equal(state[name], own[name]) for name in own)
    assert algorithm.predictor({"x": torch.ones(1)}, state) is state
    after, rejected = algorithm.aggregate(server, [], engine=toy.engine, key=RoundKey(7, 0))
    assert after is server and rejected == []
    (cost,) = algorithm.costs([profile], server, real_work=True)
    assert (cost.flops, cost.bits_up, cost.bits_down) == (15 * profile.samples * profile.model.flops, 0, 0)


def test_mixed_models_are_fine_where_nothing_is_averaged_and_compared_by_their_arrays_where_it_is(toy, mixed_toy):
    Silent().check_models(mixed_toy.models)
    # Two architectures of one shape can be averaged.
    alike = dataclasses.replace(
        toy.models,
        builders=toy.models.builders * 2,
        profiles=toy.models.profiles * 2,
        starts=toy.models.starts * 2,
        names=("a", "b"),
        architecture=mixed_toy.models.architecture % 2,
    )
    FedAvg().check_models(alike)
    two = dataclasses.replace(mixed_toy.models, architecture=mixed_toy.models.architecture % 2)
    Silent().check_models(two)
    with pytest.raises(ModelError, match=r"fedavg averages weights.*there are 2"):
        FedAvg().check_models(two)


@pytest.mark.parametrize(("settings", "head"), [({}, 0.05), ({"head_learning_rate": 0.3}, 0.3)])
def test_the_head_has_the_rate_of_the_body_unless_it_has_its_own(settings, head):
    assert Silent(**settings).sgd() == Sgd(5, 0.05, head, 0.9, None)
    other = Silent(local_steps=2, learning_rate=0.1, momentum=0.5, batch_size=8, head_learning_rate=0.2)
    assert other.sgd() == Sgd(2, 0.1, 0.2, 0.5, 8)


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
    models = dataclasses.replace(own.models, architecture=own.models.architecture[:1])
    engine = AutogradEngine(LocalData(own.dataset, first, own.proxy), models)
    alone = dataclasses.replace(own, partition=first, models=models, engine=engine)
    algorithm.check_models(models)
    assert play(algorithm, alone, [[0], [0]]).rejections == [[], []]
