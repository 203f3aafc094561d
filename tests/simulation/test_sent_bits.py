"""The bits that a run reports are those of the uploads; what an algorithm declares is what is planned with."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import kfl
from kfl.algorithms import FedAvg, Upload
from kfl.cli.display import sentences
from kfl.simulation import RoundLog

DRAW = np.random.default_rng(0)
DATA = kfl.Dataset.from_arrays(DRAW.normal(size=(120, 6)), np.arange(120) % 4)
SMALL = kfl.Experiment(devices=4, rounds=3, widths=(8,), scheduler=kfl.AllDevices())


@dataclass(frozen=True)
class Encoder(FedAvg):
    """Shares the layers whose name begins with `shared`, and declares 100 values whatever these are."""

    name: ClassVar[str] = "encoder"
    shared: str = "encoder."
    half: bool = False

    def local_update(self, message, devices, states, engine, key):
        """FedAvg's work, of which only some arrays are sent."""
        trained, uploads = super().local_update(message, devices, states, engine, key)
        kind = torch.float16 if self.half else torch.float32
        return trained, [
            Upload(up.device, {n: v.to(kind) for n, v in up.arrays.items() if n.startswith(self.shared)})
            for up in uploads
        ]

    def bits(self, profile):
        """As it was once copied from somewhere."""
        return 3200, 3200


def test_a_shared_layer_that_matches_nothing_is_not_billed(caplog, tmp_path):
    with caplog.at_level(logging.WARNING):
        history = kfl.run(replace(SMALL, algorithm=Encoder()), tmp_path / "run", dataset=DATA)
    assert history.bits_up == 0 and history.summary["bits_up"] == 0
    assert history.summary["declared_bits_up"] == 3 * 4 * 3200
    said = [record.message for record in caplog.records if "declares" in record.message]
    assert len(said) == 1
    assert "sent 0 bits in round 1, but encoder declares 12,800" in said[0]
    assert kfl.load_run(tmp_path / "run")[1].rounds[2].declared_bits_up == 12800
    told = " ".join(sentences(replace(SMALL, algorithm=Encoder()), history))
    assert "encoder declares 4.8 kB" in told and "sent 0 B" in told
    # Plans follow what is declared, as they do for FedAvg that declares the same.
    assert {device["bits_up"] for device in history.devices} == {3200.0}


@pytest.mark.parametrize(("half", "bits"), [(False, 32), (True, 16)])
def test_bits_are_those_of_the_arrays_in_an_upload(half, bits):
    """The head of a model of 64 features and four classes, in full or half precision."""
    one = replace(SMALL, rounds=1, algorithm=Encoder(shared="head.", half=half))
    assert kfl.run(one, dataset=DATA).bits_up == 4 * (64 * 4 + 4) * bits


@pytest.mark.parametrize("algorithm", [kfl.Kfl(), kfl.Kfl(charge="held"), kfl.FedAvg(), kfl.FedGh(), kfl.Local()])
def test_nothing_is_said_where_both_agree(algorithm, caplog):
    history = kfl.run(replace(SMALL, rounds=1, algorithm=algorithm), dataset=DATA)
    log = history.rounds[0]
    assert log.declared_bits_up is None and "declared_bits_up" not in log.to_dict()
    assert "declared_bits_up" not in history.summary and "declares" not in caplog.text
    assert log.bits_up == sum(device["bits_up"] for device in history.devices)
    assert RoundLog.from_dict(log.to_dict()) == log


def test_running_statistics_are_sent_and_charged():
    def network(device):
        body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
        return kfl.SplitModel(body, nn.Linear(5, 4))

    one = replace(SMALL, rounds=1, widths=None, algorithm=kfl.FedAvg())
    log = kfl.run(one, dataset=DATA, models=network).rounds[0]
    values = 6 * 5 + 5 + 2 * 5 + 5 * 4 + 4  # parameters
    assert log.bits_up == 4 * (values + 2 * 5 + 1) * 32 and log.declared_bits_up is None
