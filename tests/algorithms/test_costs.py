"""What a round of a method costs: counted manually, from the paper's numbers, and from what really goes up and down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import kfl
from kfl.algorithms import (
    Apfl,
    FedAvg,
    FederatedDistillation,
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
    SelfKnowledge,
    SharedStem,
)
from kfl.algorithms.gaussian import Common, personal, personal_flops
from kfl.algorithms.kernel_expert import RIDGES, fit_kernel, kernel_flops
from kfl.data import Dataset
from kfl.engine import DeviceProfile
from kfl.models import cnn, inspect_model, mlp
from kfl.simulation.world import build_world

SENT = [
    FedTgp(),
    FedGh(),
    FederatedDistillation(),
    FedKd(proxy_per_class=3),
    FedMrl(small_features=2),
    LgFedAvg(),
    LgFedAvg(share="stem"),
]


@pytest.mark.parametrize("algorithm", SENT, ids=lambda algorithm: algorithm.name)
def test_bits_down_are_the_numbers_that_are_broadcast(algorithm, mixed_toy):
    """32 bits for each; which classes are known, a bit or a few, is not charged to these methods."""
    toy = mixed_toy.of(algorithm)
    server = algorithm.server_init(toy.engine, toy.seed)
    numbers = sum(value.numel() for value in algorithm.broadcast(server).values() if value.is_floating_point())
    costs = algorithm.costs([toy.engine.profile(device) for device in range(5)], server, real_work=False)
    assert [cost.bits_down for cost in costs] == [32 * numbers] * 5


# ── On networks of the paper ─────────────────────────────────────────────────

STEPS, SAMPLES, CLASSES = 4, 50, 10
BODY, HEAD = 785 * 512 + 513 * 16 + 17 * 64, 65 * 10
"""Multiply-adds of the paper's MLP with 512 and 16 units on 28 × 28 pixels."""
TRAINING, FEATURES = 3 * STEPS * SAMPLES * (BODY + HEAD), SAMPLES * BODY
"""Forward and backward passes of the local steps, and the pass that reads features."""
WORK = [
    *((cls(local_steps=STEPS), TRAINING) for cls in (Local, FedAvg, LgFedAvg, SharedStem, FixedKnowledge)),
    *((cls(local_steps=STEPS), TRAINING + FEATURES) for cls in (Kfl, FedProto, FedTgp, FedGh, SelfKnowledge)),
    (SharedStem(local_steps=STEPS, pull="knowledge"), TRAINING + FEATURES),
    (FederatedDistillation(local_steps=STEPS), TRAINING + SAMPLES * (BODY + HEAD)),
    (Apfl(local_steps=STEPS), 2 * TRAINING),
    # A head step is a forward pass and the head's backward pass; a body step goes backward through the head as well.
    (FedRep(local_steps=STEPS), STEPS * SAMPLES * ((BODY + HEAD + 2 * HEAD) + (BODY + HEAD + 2 * BODY + HEAD))),
    # Distillation on 30 proxy samples, and one more pass over them for the logits.
    (FedKd(local_steps=STEPS, proxy_per_class=3, distill_steps=2), TRAINING + (3 * 2 * 30 + 30) * (BODY + HEAD)),
    (FedMrl(local_steps=STEPS), TRAINING + 3 * STEPS * SAMPLES * 17 * CLASSES),
]


@pytest.mark.parametrize(("algorithm", "work"), WORK, ids=lambda value: getattr(value, "name", ""))
def test_real_work_is_that_of_all_passes(algorithm, work):
    profile = DeviceProfile(inspect_model(mlp(width=16), (1, 28, 28), CLASSES), SAMPLES)
    assert profile.model.body_flops == BODY and profile.model.flops == BODY + HEAD
    assert algorithm.real_flops(profile) == work


@pytest.mark.parametrize(("model", "shape"), [(mlp(), (1, 28, 28)), (cnn(), (3, 32, 32))], ids=["mlp", "cnn"])
def test_four_steps_of_each_part_make_fedrep_as_much_work_as_kfl(model, shape):
    """The row at equal work: 4 C + 4 · 3 C against τ · 3 C and the knowledge pass, both 16 C."""
    profile = DeviceProfile(inspect_model(model, shape, 10), 600)
    ours, theirs = (one.real_flops(profile) for one in (Kfl(), FedRep(head_steps=4, body_steps=4)))
    forward = 600 * profile.model.flops
    assert ours == pytest.approx(16 * forward, rel=2e-4)
    assert theirs == pytest.approx(ours, rel=4e-4)
    assert FedRep().real_flops(profile) == pytest.approx(20 * forward, rel=4e-4)


@pytest.fixture(scope="module")
def charged():
    """Bits up and down of a device with two of ten classes, by algorithm, network and shape of a sample."""

    def of(algorithm, model="mlp", widths=(256,), shape=(1, 28, 28)):
        labels = np.arange(1200) % 10
        images = np.zeros((len(labels), *shape), dtype=np.uint8)
        data = Dataset.from_arrays(images, labels, images[:10], labels[:10], classes=10)
        experiment = kfl.Experiment(devices=10, model=model, widths=widths, radio="none", algorithm=algorithm)
        table = build_world(experiment, dataset=data).table
        return table.bits_up[0], table.bits_down[0]

    return of


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (Kfl(), 640, 640),
        (Local(), 0, 0),
        (FedAvg(), 550_346, 550_346),
        (FedRep(), 549_696, 549_696),
        (Apfl(), 550_346, 550_346),
        (FedKd(), 5_000, 5_000),
        (FedProto(), 640, 640),
        (SelfKnowledge(), 0, 0),
        (FixedKnowledge(), 0, 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_papers_mlp_sends_the_numbers_that_the_paper_says(algorithm, up, down, charged):
    """V-A and V-B: 640 parameters for KFL, all 550 thousand for FedAvg, 5,000 for FedKD."""
    assert charged(algorithm) == (32 * up, 32 * down)


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (FedTgp(), 32 * 2 * 64 + 10, 32 * 640),
        (FedGh(), 32 * 2 * 64 + 10, 32 * 650),
        (FederatedDistillation(), 32 * 2 * 10 + 10, 32 * 100),
        # KFL may be charged for what it sends; a broadcast has all classes, and says for all devices which these are.
        (Kfl(charge="held"), 2 * 64 * 32 + 10, 20_480 + 10),
        (Kfl(charge="held", bits_per_value=8), 2 * 64 * 8 + 64 + 10, 640 * 8 + 64 + 10),
        # Noisy counts report every class, so no device needs a mask.
        (Kfl(charge="held", noise_counts=True, noise_multiplier=1.0, clip_norm=1.0), 20_480 + 320, 20_480 + 10),
        (Kfl(bits_per_value=8), 640 * 8 + 64, 640 * 8 + 64),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_two_of_ten_classes_are_charged_and_a_bit_for_each_that_says_which(algorithm, up, down, charged):
    assert charged(algorithm) == (up, down)


def test_a_fleet_whose_networks_begin_with_two_equal_layers_sends_both(charged):
    stem, head = 450 + 6 + 2400 + 16, 650
    colour = {"model": "cnn", "widths": (64, 128), "shape": (3, 32, 32)}
    assert charged(LgFedAvg(share="stem"), **colour) == (32 * stem, 32 * stem)
    assert charged(LgFedAvg(share="head"), **colour) == (32 * head, 32 * head)


def test_the_small_model_and_the_projector_are_what_fedmrl_adds(mixed_toy):
    for algorithm in (FedMrl(small_features=2, small_width=7), FedMrl()):
        toy = mixed_toy.of(algorithm)
        for device in range(5):
            own, wrapped = mixed_toy.engine.profile(device), toy.engine.profile(device)
            assert algorithm.added_parameters(own) == wrapped.model.parameters - own.model.parameters


def test_an_algorithm_of_ones_own_may_say_how_large_its_messages_are(toy):
    class Loud(FedAvg):
        def bits(self, profile):
            return 100.0 * profile.samples, 7.0

    profile = replace(toy.engine.profile(0), samples=3)
    (cost,) = Loud().costs([profile], Loud().server_init(toy.engine, 0), real_work=False)
    assert (cost.bits_up, cost.bits_down) == (300, 7)


@pytest.mark.parametrize(("samples", "numbers", "classes"), [(40, 64, 3), (200, 32, 10)])
def test_classifiers_in_closed_form_are_charged_what_pytorch_counts(samples, numbers, classes):
    """Its products; it leaves out inverses, d³, decompositions, 4.5 n³, distances, n² d, and products with vectors."""
    draw = torch.Generator().manual_seed(0)
    place = torch.arange(samples) % classes
    x = torch.randn(samples, numbers, generator=draw) + place[:, None] % 3
    eye = torch.eye(numbers, dtype=torch.float64)
    means = torch.stack([x[place == c].double().mean(0) for c in range(classes)])
    common = Common(means, torch.full((classes,), 50.0), eye[0] + 1, eye, 0 * eye, 500.0)
    for run, charged, uncounted in (
        (lambda: personal(common, x, place), personal_flops(samples, numbers, classes), numbers**3),
        (
            lambda: fit_kernel(x, place, classes),
            kernel_flops(samples, numbers, classes),
            samples**2 * (numbers + 4.5 * samples + len(RIDGES)),
        ),
    ):
        with FlopCounterMode(display=False) as counter:
            run()
        assert charged - uncounted == counter.get_total_flops() / 2
