"""FedMRL's networks: what is kept, what is drawn, what is counted and sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import kfl
from kfl.algorithms import FedMrl, Local
from kfl.algorithms.small_network import SmallNetwork, with_small
from kfl.core.errors import ConfigError
from kfl.engine import RoundKey
from kfl.models import SplitModel, cnn, fleet_from_modules, fleet_from_name, inspect_model, mlp
from kfl.simulation import build_world

SMALL = SmallNetwork(features=3, width=5)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def part(state, prefix):
    return {name: value for name, value in state.items() if name.startswith(prefix)}


def test_a_projector_stays_with_its_device(mixed_toy):
    """The second round starts from the projector that the first one left, whatever the server sends."""
    algorithm = FedMrl()
    toy = mixed_toy.of(algorithm)
    server = algorithm.server_init(toy.engine, toy.seed)
    states = [algorithm.device_init(toy.engine, k, toy.seed) for k in (0, 1)]
    first = part(states[0], "body.projector")
    (one, two), _ = algorithm.local_update(algorithm.broadcast(server), [0, 1], states, toy.engine, RoundKey(7, 0))
    assert not same(part(one, "body.projector"), first)
    assert not same(part(one, "body.projector"), part(two, "body.projector"))
    still = FedMrl(local_steps=1, learning_rate=1e-30)
    ((after, _), uploads) = still.local_update(server, [0, 1], [one, two], toy.engine, RoundKey(7, 1))
    assert same(part(after, "body.projector"), part(one, "body.projector"))
    assert same(part(after, "body.own"), part(one, "body.own"))
    assert same(part(after, "body.small"), part(server, "body.small"))  # replaced by the server's
    assert set(uploads[0].arrays) == {*server, "samples"}
    assert not [name for name in server if "projector" in name or ".own." in name]


def test_everybody_starts_from_one_small_model_and_one_projector(mixed_toy):
    algorithm = FedMrl()
    toy = mixed_toy.of(algorithm)
    server = algorithm.server_init(toy.engine, toy.seed)
    starts = [algorithm.device_init(toy.engine, k, toy.seed) for k in range(5)]
    for device, start in enumerate(starts):
        assert same({name: start[name] for name in server}, server)
        assert same(part(start, "body.projector"), part(starts[0], "body.projector"))
        own = {name.replace(".own.", "."): value for name, value in start.items() if ".own." in name}
        assert same(own, Local().device_init(mixed_toy.engine, device, toy.seed))  # as in any other algorithm
    assert not torch.equal(starts[0]["head.own.weight"], starts[3]["head.own.weight"])
    other = algorithm.server_init(toy.engine, toy.seed + 1)
    assert not same(other, server)


def test_modules_of_ones_own_keep_their_weights():
    modules = [
        SplitModel(nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 4)), nn.Linear(4, 2))
        for width in (3, 7)
    ]
    fleet = with_small(fleet_from_modules(modules, 2, (6,), 2), SMALL)
    for device, module in enumerate(modules):
        start, twice = (fleet.initial(device, seed=3) for _ in range(2))
        assert list(start) == list(fleet.builders[device]().state_dict())
        for name, value in module.state_dict().items():
            head, _, rest = name.partition(".")
            assert torch.equal(start[f"{head}.own.{rest}"], value)
        assert same(start, twice)
        assert not same(part(start, "body.small"), part(fleet.initial(device, seed=4), "body.small"))
    common = [fleet.initial(device, seed=3, common=True) for device in range(2)]
    assert same(part(common[0], "body.small"), part(common[1], "body.small"))


def test_a_run_of_own_modules():
    draw = np.random.default_rng(0)
    y = np.arange(120) % 3
    data = kfl.Dataset.from_arrays((draw.normal(size=(120, 6)) + y[:, None]).astype(np.float32), y)
    experiment = kfl.Experiment(devices=4, rounds=2, algorithm=kfl.FedMrl(small_width=4), radio="none")

    def model(device):
        return SplitModel(nn.Sequential(nn.Linear(6, 4 + device), nn.Tanh(), nn.Linear(4 + device, 5)), nn.Linear(5, 3))

    history = kfl.run(experiment, dataset=data, models=model)
    values = 6 * 4 + 4 + 4 * 5 + 5 + 5 * 3 + 3  # d₁ is 5: an own network has no more
    assert all(log.bits_up == 32 * values * len(log.devices) for log in history.rounds)


@pytest.mark.parametrize(
    ("network", "shape", "values"), [(cnn, (3, 32, 32), 16_402), (mlp, (1, 28, 28), 25_818), (mlp, (3, 12, 12), 14_554)]
)
def test_what_goes_over_the_air(network, shape, values):
    """The small model, whatever stands next to it; counted from the networks themselves."""
    fleet = FedMrl().device_models(fleet_from_name(network.__name__, (128,), 1, shape, 10, seed=0))
    start = fleet.initial(0, seed=0)
    assert sum(value.numel() for name, value in start.items() if ".small." in name) == values
    projector = (16 + 64) * 64 + 64
    own = fleet_from_name(network.__name__, (128,), 1, shape, 10, seed=0).profile(0)
    assert fleet.profile(0).parameters == own.parameters + values + projector
    small = inspect_model(SmallNetwork(16, 32).build(shape, 10), shape, 10)
    assert fleet.profile(0).flops == own.flops + small.body_flops + projector
    assert fleet.names == (f"{network.__name__}-128",)


def test_without_the_small_loss_its_head_stays_as_it_was_sent(toy):
    algorithm = FedMrl(small_loss_weight=0.0)
    own = toy.of(algorithm)
    server = algorithm.server_init(own.engine, own.seed)
    state = algorithm.device_init(own.engine, 0, own.seed)
    (after,), _ = algorithm.local_update(server, [0], [state], own.engine, RoundKey(7, 0))
    assert same(part(after, "head.small"), part(server, "head.small"))
    assert not same(part(after, "body.small"), part(server, "body.small"))


@pytest.mark.parametrize("field", ["small_features", "small_width"])
def test_sizes_below_one_are_refused(field):
    with pytest.raises(ConfigError, match=rf"algorithm\.{field} is 0, but must be 1 or more"):
        FedMrl(**{field: 0}).validate()


def test_a_world_charges_the_wrapped_network():
    world = build_world(kfl.Experiment(devices=3, widths=(8,), algorithm=FedMrl(), real_work=True))
    profile = world.engine.profile(0)
    small_head = 17 * 10
    assert world.table.flops[0] == 3 * 5 * profile.samples * (profile.model.flops + small_head)
    own = inspect_model(mlp(width=8), (1, 28, 28), 10).parameters
    assert world.table.model_bits.tolist() == [32 * own] * 3  # what FedAvg would upload
