"""What devices do, send and remember, beyond the contract and the twins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from kfl.algorithms import Apfl, FederatedDistillation, FedGh, FedProto, FedRep, FedTgp, Kfl, SelfKnowledge
from kfl.algorithms.targets import pull_to
from kfl.algorithms.weights import part_of
from kfl.core.errors import ConfigError
from kfl.engine import LocalData, RoundKey, Sgd, Supervised
from kfl.engine.autograd import AutogradEngine
from kfl.engine.base import ClassStatistics
from kfl.engine.plan import Plan


@pytest.mark.parametrize("cls", [FedProto, FedTgp, FedGh, FederatedDistillation], ids=lambda cls: cls.name)
def test_prototypes_tell_no_counts(cls, toy, play):
    run = play(cls(), toy, [[0, 1]])
    assert all(set(upload.arrays["counts"].tolist()) == {0, 1} for upload in run.uploads[0])


def test_apfl_mixes_with_the_current_global_model():
    server = {"head.bias": torch.tensor([10.0]), "body.n": torch.tensor(4)}
    device = {
        "personal/head.bias": torch.tensor([2.0]),
        "personal/body.n": torch.tensor(6),
        "mixing": torch.tensor(0.25),
    }
    mixed = Apfl().predictor(server, device)
    assert mixed["head.bias"].tolist() == [8.0]
    assert mixed["body.n"].item() == 6


def test_self_knowledge_remembers_its_own_means(toy, play):
    algorithm = SelfKnowledge()
    start = algorithm.device_init(toy.engine, 0, toy.seed)
    assert not start["own/known"].any()
    state = play(algorithm, toy, [[0]]).devices[0]
    (own,) = toy.engine.class_statistics([0], [algorithm.predictor({}, state)])
    assert torch.equal(state["own/knowledge"], own.means)
    assert torch.equal(state["own/known"], own.counts > 0)


def test_fedrep_gives_each_part_as_many_steps_as_the_others_take_or_what_is_asked_for():
    assert FedRep(local_steps=3).steps() == (3, 3)
    assert FedRep(head_steps=10).steps() == (10, 5)
    assert FedRep(body_steps=1).steps() == (5, 1)
    FedRep(local_steps=1).validate()
    for part in ("head_steps", "body_steps"):
        with pytest.raises(ConfigError, match=rf"algorithm\.{part} is 0, but must be 1 or more"):
            FedRep(**{part: 0}).validate()


def test_fedrep_draws_other_batches_for_the_body_than_for_the_head(toy):
    """The second training of a device in a round is phase 1 of its draws."""
    algorithm, key = FedRep(batch_size=4, head_steps=2, body_steps=3), RoundKey(toy.seed, 6)
    server, state = algorithm.server_init(toy.engine, toy.seed), algorithm.device_init(toy.engine, 1, toy.seed)
    (after,), (upload,) = algorithm.local_update(server, [1], [state], toy.engine, key)
    model, expected = {**server, **state}, Supervised()
    (model,) = toy.engine.train([1], [model], expected, Sgd(2, 0.0, 0.05, 0.9, 4), RoundKey(toy.seed, 6))
    (model,) = toy.engine.train([1], [model], expected, Sgd(3, 0.05, 0.0, 0.9, 4), RoundKey(toy.seed, 6, phase=1))
    for name, value in model.items():
        assert torch.equal({**after, **upload.arrays}[name], value)


def test_a_single_sample_of_a_class_is_sent_and_remembered(toy, play):
    """The world in which device 0 has one sample of class 0 next to its others."""
    labels = toy.dataset.labels("train", toy.partition.train[0]).numpy()
    own = np.concatenate([toy.partition.train[0][labels == 0][:1], toy.partition.train[0][labels != 0]])
    counts = toy.partition.train_counts.copy()
    counts[0, 0] = 1
    partition = dataclasses.replace(toy.partition, train=(np.sort(own), *toy.partition.train[1:]), train_counts=counts)
    engine = AutogradEngine(LocalData(toy.dataset, partition, toy.proxy), toy.models)
    world = dataclasses.replace(toy, partition=partition, engine=engine)
    assert play(Kfl(), world, [[0]]).uploads[0][0].arrays["counts"].tolist() == [1, 7, 0, 0]
    state = play(SelfKnowledge(), world, [[0]]).devices[0]
    assert state["own/known"].tolist() == [True, True, False, False]
    assert play(FedProto(), world, [[0]]).uploads[0][0].arrays["counts"].tolist() == [1, 1, 0, 0]


def test_a_single_bit_carries_the_least_and_the_largest_value_of_the_classes_that_are_held():
    """One sample is enough to hold a class, and a class that is not held has no say in the range."""
    means = torch.tensor([[2.0, 3.0], [0.0, 0.0], [5.0, 2.5]])
    own = ClassStatistics(means, torch.tensor([1, 0, 3]))
    rough = [Kfl(bits_per_value=1).protect(k, own, RoundKey(7, 0)) for k in range(20)]
    found = torch.stack([upload.arrays["means"] for upload in rough])
    assert not found[:, 1].any()
    assert set(found[:, [0, 2]].flatten().tolist()) == {2.0, 5.0}
    assert set(found[:, 0, 0].tolist()) == {2.0} and set(found[:, 2, 0].tolist()) == {5.0}
    assert set(found[:, 0, 1].tolist()) == {2.0, 5.0}  # at random, and every device draws for itself


def test_what_a_device_remembers_lies_beside_its_model_and_has_its_type(toy):
    """PyTorch's device "meta" stands for a GPU: what is on another one cannot be computed with."""
    engine = AutogradEngine(LocalData(toy.dataset, toy.partition), toy.models, Plan(precision="float64"), "meta")
    apfl = Apfl().device_init(engine, 0, toy.seed)
    assert {(value.device.type, value.dtype) for value in apfl.values()} == {("meta", torch.float64)}
    own = SelfKnowledge().device_init(engine, 0, toy.seed)
    assert {value.device.type for value in own.values()} == {"meta"}
    pull = pull_to(torch.ones(4, 5), 0.5, own)
    assert (pull.targets.device.type, pull.known.device.type) == ("meta", "meta")


def test_the_pull_to_fixed_targets_holds_for_every_class(toy):
    pull = pull_to(torch.ones(4, 5), 0.5, toy.engine.initial(0, 0))
    assert pull.known.tolist() == [True] * 4 and pull.known.dtype == torch.bool
    assert (pull.weight, pull.targets.shape) == (0.5, (4, 5))


def test_parts_of_a_model_are_told_by_their_prefix():
    state = {"body.0.weight": torch.ones(1), "head.weight": torch.zeros(1), "bodyguard": torch.ones(2)}
    assert part_of(state, "body.") == {"body.0.weight": state["body.0.weight"]}
    assert part_of(state, "head.") == {"head.weight": state["head.weight"]}
