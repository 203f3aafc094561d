"""What an algorithm does when nobody sets anything: the values of its authors, or ours where the pages say why.

Run files leave most settings out and results are published under the names of methods, so a value that changes here
changes what a name means.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import torch

from kfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    Apfl,
    Fd,
    FedAvg,
    FedGh,
    FedKd,
    FedMrl,
    FedProto,
    FedRep,
    FedTgp,
    FixedKnowledge,
    Kfl,
    LgFedAvg,
    Local,
    PlotStyle,
    SelfKnowledge,
    SharedStem,
    plot_style,
)
from kfl.algorithms.base import automatic_style, held_bits
from kfl.core.errors import ModelError
from kfl.data import Partition
from kfl.engine import DeviceProfile, LocalData, RoundKey, Sgd
from kfl.engine.sequential import SequentialEngine
from kfl.models import ModelProfile

COMMON = {"local_steps": 5, "learning_rate": 0.05, "head_learning_rate": None, "momentum": 0.9, "batch_size": None}
RULE = {"aggregation": "mean", "trim": 0.25}
LAMBDAS = ("knowledge_weight", (0.01, 1 / 32, 0.1))
METHODS = {
    Kfl: (
        {
            "knowledge_weight": 1 / 32,
            "memory": True,
            "bits_per_value": 32,
            "clip_norm": None,
            "noise_multiplier": 0.0,
            "noise_counts": False,
            **RULE,
            "charge": "printed",
        },
        LAMBDAS,
        PlotStyle("#0b3d91", (), 2.4),
    ),
    Local: ({}, None, PlotStyle("#333333", (5, 2), 1.7)),
    SelfKnowledge: ({"knowledge_weight": 1 / 32}, LAMBDAS, PlotStyle("#6b7f94", (1, 1.2), 1.8)),
    FixedKnowledge: (
        {"knowledge_weight": 1 / 32, "scale": 3.0, "targets": "random"},
        LAMBDAS,
        PlotStyle("#957a52", (6, 1.5, 1, 1.5), 1.6),
    ),
    FedAvg: (RULE, None, PlotStyle("#d55e00", (), 1.6)),
    FedProto: ({"prototype_weight": 1.0}, ("prototype_weight", (0.32, 1.0, 3.2)), PlotStyle("#3a9bd9", (), 1.7)),
    FedRep: (
        {**RULE, "head_steps": None, "body_steps": None},
        ("head_steps", (1, 5, 10)),
        PlotStyle("#00805a", (8, 2), 1.7),
    ),
    Apfl: (
        {**RULE, "mixing": 0.9, "mixing_rate": 0.001},
        ("mixing", (0.5, 0.75, 0.9)),
        PlotStyle("#b2478c", (4, 1, 1, 1, 1, 1), 1.7),
    ),
    SharedStem: (
        {
            "bits_per_value": 4,
            "bits_down": 7,
            "budget_bits": None,
            "pull": "random",
            "knowledge_weight": 1 / 32,
            "scale": 3.0,
            **RULE,
            "clip_norm": None,
            "noise_multiplier": 0.0,
        },
        LAMBDAS,
        PlotStyle("#c1272d", (), 2.4),
    ),
    FedTgp: (
        {
            "prototype_weight": 10.0,
            "server_epochs": 100,
            "server_learning_rate": 0.01,
            "server_batch_size": 10,
            "margin_limit": 100.0,
        },
        ("prototype_weight", (0.32, 1.0, 10.0)),
        PlotStyle("#3a9bd9", (6, 2), 1.7),
    ),
    FedGh: (
        {"head": "trained", "server_epochs": 1, "server_learning_rate": 0.01, "server_batch_size": 1},
        ("server_learning_rate", (0.001, 0.01, 0.1)),
        PlotStyle("#8e5bb5", (2, 1.2), 1.7),
    ),
    FedKd: (
        {"proxy_per_class": 50, "distill_steps": 1, "distill_rate": 0.01, "temperature": 2.0},
        ("distill_rate", (0.003, 0.01, 0.03)),
        PlotStyle("#b07d00", (3, 1.2), 1.7),
    ),
    FedMrl: (
        {**RULE, "small_features": 16, "small_width": 32, "small_loss_weight": 1.0},
        ("small_features", (8, 16, 32)),
        PlotStyle("#7b5ea7", (7, 1.5, 2, 1.5), 1.7),
    ),
    Fd: ({"distill_weight": 1.0}, ("distill_weight", (0.3, 1.0, 3.0)), PlotStyle("#8a5a44", (4, 1.5), 1.7)),
    LgFedAvg: ({"share": "head"}, None, PlotStyle("#7a6bb5", (7, 1.5, 2, 1.5), 1.7)),
}
"""Settings, what `kfl tune` tries beside learning rates, and the line of the published figures."""


def test_a_name_alone_means_the_published_settings():
    assert set(METHODS) == set(ALGORITHMS.values())
    for cls, (settings, tried, line) in METHODS.items():
        cls().validate()
        assert dataclasses.asdict(cls()) == {**COMMON, **settings}
        assert cls.main_parameter == tried, cls.name
        assert cls.style == plot_style(cls.name) == line
        if tried is not None:
            for value in tried[1]:
                cls(**{tried[0]: value}).validate()


def test_who_averages_whole_models_needs_one_architecture_and_predicts_with_what_others_did(toy):
    for cls in (Kfl, Local, SelfKnowledge, FixedKnowledge, FedAvg, FedProto, FedRep, Apfl):
        averages = cls in (FedAvg, FedRep, Apfl)
        assert (cls.needs_equal_models, cls.predicts_alone, cls.server_needs_models) == (averages, not averages, False)
        server = cls().server_init(toy.engine, 7)
        assert any(name.startswith("body.") for name in cls().broadcast(server)) == averages
    # A device of federated averaging keeps nothing. Its line is the one of the published figures.
    assert FedAvg().device_init(toy.engine, 0, 7) == {} and FedAvg.style == METHODS[FedAvg][2]


@dataclasses.dataclass(frozen=True)
class Silent(Algorithm):
    """An algorithm of one's own that writes what must be written and nothing else."""

    name: ClassVar[str] = "silent"

    def local_update(self, message, devices, states, engine, key):
        return list(states), []


def test_an_algorithm_that_says_nothing_shares_nothing(toy):
    algorithm, profile = Silent(), toy.engine.profile(1)
    algorithm.validate()
    assert dataclasses.asdict(algorithm) == COMMON
    assert (Silent.needs_equal_models, Silent.server_needs_models, Silent.predicts_alone) == (False, False, True)
    assert Silent.main_parameter is None and Silent.style is None and not Silent.sends()
    assert algorithm.device_models(toy.models) is toy.models
    assert algorithm.proxy_per_class == algorithm.added_parameters(profile) == 0
    server = algorithm.server_init(toy.engine, 7)
    assert server == algorithm.broadcast(server) == algorithm.upload_format(server) == {}
    assert algorithm.summation() is None and algorithm.class_vectors(server) is None
    state = algorithm.device_init(toy.engine, 1, 7)
    own = toy.engine.initial(1, 7)
    assert state.keys() == own.keys() and all(torch.equal(state[name], own[name]) for name in own)
    assert algorithm.predictor({"x": torch.ones(1)}, state) is state
    after, rejected = algorithm.aggregate(server, [], engine=toy.engine, key=RoundKey(7, 0))
    assert after is server and rejected == []
    cost = algorithm.cost(profile, real_work=True)
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


def test_bits_of_held_classes():
    """Values of the classes that are held, and a bit for each class; all classes where that is not known."""
    model = ModelProfile(
        features=6, classes=10, parameters=9, body_parameters=5, flops=9, body_flops=5, input_shape=(4,)
    )
    assert held_bits(DeviceProfile(model, 5, held_classes=3), 6) == 3 * 6 * 32 + 10
    assert held_bits(DeviceProfile(model, 5, held_classes=0), 6) == 10
    assert held_bits(DeviceProfile(model, 5, held_classes=3), 6, bits=4) == 3 * 6 * 4 + 10
    assert held_bits(DeviceProfile(model, 5), 6) == 10 * 6 * 32 + 10


def test_the_line_of_a_new_algorithm_follows_from_its_name_and_eight_colours_meet_four_dashes():
    found = [automatic_style(f"method-{number}") for number in range(400)]
    assert len({style.colour for style in found}) == 8
    assert {style.dash for style in found} == {(), (7, 2), (2, 1.5), (6, 1.5, 1.5, 1.5)}
    assert len(set(found)) == 32 and {style.width for style in found} == {1.7}
    # CRC-32 of "123456789" is 0xCBF43926 by definition: colour 6 of 8, and 0xCBF43926 // 8 is 0 modulo 4.
    assert automatic_style("123456789") == PlotStyle("#4b4b8f", ())
    assert plot_style("123456789") == automatic_style("123456789")
    # What a file system may call an algorithm need not be text that can be encoded.
    assert automatic_style("\udcff").colour


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
    engine = SequentialEngine(LocalData(own.dataset, first, own.proxy), models)
    alone = dataclasses.replace(own, partition=first, models=models, engine=engine)
    algorithm.check_models(models)
    assert play(algorithm, alone, [[0], [0]]).rejections == [[], []]
