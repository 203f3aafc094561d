"""What a round of a method costs, counted by hand or from what really goes down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kfl.algorithms import Fd, FedGh, FedKd, FedMrl, FedTgp, LgFedAvg, SharedStem
from kfl.core.errors import KflError
from kfl.engine import DeviceProfile
from kfl.models import fleet_from_name, inspect_model, mlp

SENT = [FedTgp(), FedGh(), Fd(), FedKd(proxy_per_class=3), FedMrl(small_features=2), LgFedAvg(), LgFedAvg(share="stem")]


@pytest.mark.parametrize("algorithm", SENT, ids=lambda algorithm: algorithm.name)
def test_bits_down_are_the_numbers_that_are_broadcast(algorithm, mixed_toy):
    """32 bits for each; which classes are known, a bit or a few, is not charged to these methods."""
    toy = mixed_toy.of(algorithm)
    message = algorithm.broadcast(algorithm.server_init(toy.engine, toy.seed))
    numbers = sum(value.numel() for value in message.values() if value.is_floating_point())
    for device in range(5):
        _, down = algorithm.bits(toy.engine.profile(device))
        assert down == 32 * numbers


STEPS, SAMPLES, CLASSES = 4, 50, 10
BODY, HEAD = 785 * 512 + 513 * 16 + 17 * 64, 65 * 10
"""Multiply-adds of the paper's MLP with 512 and 16 units on 28 × 28 pixels."""
WORK = {
    FedTgp: 3 * STEPS * SAMPLES * (BODY + HEAD) + SAMPLES * BODY,
    FedGh: 3 * STEPS * SAMPLES * (BODY + HEAD) + SAMPLES * BODY,
    Fd: 3 * STEPS * SAMPLES * (BODY + HEAD) + SAMPLES * (BODY + HEAD),
    FedKd: (3 * STEPS * SAMPLES + 3 * 2 * 30 + 30) * (BODY + HEAD),
    LgFedAvg: 3 * STEPS * SAMPLES * (BODY + HEAD),
    SharedStem: 3 * STEPS * SAMPLES * (BODY + HEAD),
    FedMrl: 3 * STEPS * SAMPLES * (BODY + HEAD + 17 * CLASSES),
}
"""Forward and backward passes of the local steps, and what comes after or beside them."""


@pytest.mark.parametrize("cls", WORK, ids=lambda cls: cls.name)
def test_real_work_is_that_of_all_passes(cls):
    profile = DeviceProfile(inspect_model(mlp(width=16), (1, 28, 28), CLASSES), SAMPLES)
    assert profile.model.body_flops == BODY and profile.model.flops == BODY + HEAD
    more = {"proxy_per_class": 3, "distill_steps": 2} if cls is FedKd else {}
    assert cls(local_steps=STEPS, **more).real_flops(profile) == WORK[cls]


def test_a_shared_stem_with_kfls_pull_reads_features_too():
    profile = DeviceProfile(inspect_model(mlp(width=16), (1, 28, 28), CLASSES), SAMPLES)
    work = SharedStem(local_steps=STEPS, pull="knowledge").real_flops(profile)
    assert work == WORK[SharedStem] + SAMPLES * BODY


def test_a_fleet_whose_networks_begin_with_two_equal_layers_sends_both():
    fleet = fleet_from_name("cnn", (64, 128), 6, (3, 32, 32), 10, 0)
    profile = DeviceProfile(fleet.profile(0), 50, shared=fleet.shared)
    stem, head = 450 + 6 + 2400 + 16, 650
    assert LgFedAvg(share="stem").bits(profile) == (32 * stem, 32 * stem)
    assert LgFedAvg(share="head").bits(profile) == (32 * head, 32 * head)


@pytest.mark.parametrize("algorithm", [LgFedAvg(), SharedStem()], ids=lambda algorithm: algorithm.name)
def test_what_depends_on_shared_layers_cannot_be_charged_without_them(algorithm, toy):
    with pytest.raises(KflError, match=rf"What {algorithm.name} sends depends on the layers that all networks share"):
        algorithm.bits(replace(toy.engine.profile(0), shared=None))


def test_the_small_model_and_the_projector_are_what_fedmrl_adds(mixed_toy):
    for algorithm in (FedMrl(small_features=2, small_width=7), FedMrl()):
        toy = mixed_toy.of(algorithm)
        for device in range(5):
            own, wrapped = mixed_toy.engine.profile(device), toy.engine.profile(device)
            assert algorithm.added_parameters(own) == wrapped.model.parameters - own.model.parameters
