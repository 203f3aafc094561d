"""FedKD beyond its twin: when there is something to digest, in which order, and what the consensus is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kfl.algorithms import FedKd, Upload
from kfl.core.errors import DataError
from kfl.engine import Distillation, LocalData, RoundKey, Sgd, Supervised
from kfl.engine.autograd import AutogradEngine


def with_proxy(toy, count):
    """The engine of a world with so many proxy samples."""
    return AutogradEngine(LocalData(toy.dataset, toy.partition, toy.proxy[:count]), toy.models)


def test_a_proxy_set_of_one_sample_is_enough_and_none_is_not(toy):
    start = FedKd().server_init(with_proxy(toy, 1), 0)
    assert start["consensus"].tolist() == [[0.0] * 4] and start["known"].item() is False
    with pytest.raises(DataError, match="fedkd needs proxy samples that every device knows, but there are none"):
        FedKd().server_init(with_proxy(toy, 0), 0)


@pytest.mark.parametrize(("known", "steps"), [(False, 1), (True, 0), (True, 1), (True, 3)])
def test_a_consensus_is_digested_once_there_is_one_and_then_the_own_data(known, steps, toy):
    """In batches, whose order is drawn anew for each of the two trainings of a round."""
    inputs, consensus = toy.engine.proxy()[0], torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    algorithm = FedKd(distill_steps=steps, distill_rate=0.1, temperature=3.0, batch_size=4, local_steps=2)
    message = {"consensus": consensus, "known": torch.tensor(known)}
    states, key = [algorithm.device_init(toy.engine, k, toy.seed) for k in (0, 2)], RoundKey(7, 1)
    after, uploads = algorithm.local_update(message, [0, 2], states, toy.engine, key)
    if known and steps:
        digest = Sgd(steps, 0.1, 0.1, 0.9, 4)
        distillation = Distillation(3.0)
        states = toy.engine.train([0, 2], states, distillation, digest, replace(key, phase=1), (inputs, consensus))
    wanted = toy.engine.train([0, 2], states, Supervised(), Sgd(2, 0.05, 0.05, 0.9, 4), key)
    for device, upload, found, expected in zip((0, 2), uploads, after, wanted, strict=True):
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert upload.device == device
        assert torch.equal(upload.arrays["logits"], toy.engine.logits([device], [expected], inputs)[0])


def test_the_consensus_is_the_mean_of_those_that_reported_in_any_order(toy):
    algorithm = FedKd()
    server = algorithm.server_init(with_proxy(toy, 2), 0)
    said = [torch.full((2, 4), value) for value in (1e8, 1.0, -1e8)]  # float32 would lose the one in between

    def after(*order):
        uploads = [Upload(k, {"logits": said[k]}) for k in order]
        state, rejected = algorithm.aggregate(server, uploads, engine=None, key=RoundKey(0, 0))
        assert not rejected and state["known"].item() is True and state["consensus"].dtype == torch.float32
        return state["consensus"]

    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        torch.testing.assert_close(after(*order), torch.full((2, 4), 1 / 3))
    assert after(1).equal(said[1])
