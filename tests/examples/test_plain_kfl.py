"""The package against the plain loop: every model parameter after three rounds, on the same seed."""

import importlib.util
from pathlib import Path

import pytest
import torch

import kfl
from kfl.simulation import build_world
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet

spec = importlib.util.spec_from_file_location("plain_kfl", Path(__file__).parents[2] / "examples" / "plain_kfl.py")
plain = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plain)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_package_agrees_with_the_plain_loop(seed):
    experiment = kfl.Experiment(dataset="mnist-5k", devices=20, rounds=3, seed=seed, scheduler=kfl.Uniform(count=6))
    world = build_world(experiment)
    fleet = SimulatedFleet(world)
    state, schedule = begin(fleet), []
    for _ in range(3):
        state, log = play_round(fleet, state)
        schedule.append(list(log.devices))
    starts = plain.starting_models(world)
    trained, knowledge = plain.plain_kfl(starts, plain.local_samples(world, "train"), schedule, 10, 64)
    for k, model in enumerate(trained):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(fleet.device_state(state, k)[name], value, atol=1e-5, rtol=0)
    torch.testing.assert_close(state.server["knowledge"], knowledge, atol=1e-5, rtol=0)
    assert plain.accuracy(trained, plain.local_samples(world, "test")) == pytest.approx(log.accuracy, abs=0.002)
    # The comparison means something only if training moved the models and knowledge was used.
    moved = max(
        float((trained[k].state_dict()[n] - v).abs().max())
        for k in schedule[0]
        for n, v in starts[k].state_dict().items()
    )
    assert moved > 1e-3
    assert int(state.server["known"].sum()) >= 8
