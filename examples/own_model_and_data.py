"""Bring your own model and data: eighteen machines with vibration sensors learn to name their faults together.

    python examples/own_model_and_data.py

Every machine has seen two of the six faults only. Half of the sensors can afford a small convolutional network, the
others a plain one; they share nothing but the mean feature of each fault, so the networks may differ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

import kfl

FAULTS, LENGTH, FEATURES = 6, 64, 16


def vibrations(samples: int = 1800) -> kfl.Dataset:
    """Made-up signals: each fault hums at its own frequency, in noise. Put your own arrays here."""
    draw = np.random.default_rng(0)
    fault = np.arange(samples) % FAULTS
    time = np.arange(LENGTH) / LENGTH
    start = draw.random((samples, 1))
    signal = np.sin(2 * np.pi * (3 + 2 * fault[:, None]) * time + 2 * np.pi * start)
    signal += draw.normal(scale=0.7, size=signal.shape)
    return kfl.Dataset.from_arrays(signal[:, None, :], fault, name="vibrations")  # a fifth is set aside for testing


def network(device: int) -> nn.Module:
    """The network of one device: a body that gives a feature vector, and a head that gives one value per fault."""
    torch.manual_seed(device)  # its own starting weights
    if device % 2:
        body = nn.Sequential(nn.Flatten(), nn.Linear(LENGTH, 48), nn.ReLU(), nn.Linear(48, FEATURES), nn.ReLU())
    else:
        body = nn.Sequential(
            nn.Conv1d(1, 8, kernel_size=9, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 28, FEATURES), nn.ReLU()
        )
    return kfl.SplitModel(body, nn.Linear(FEATURES, FAULTS))


def main() -> None:
    """Learn together, then the same devices alone, and say what it was worth."""
    data = vibrations()
    setting = kfl.Experiment(devices=18, rounds=30, classes_per_device=2, scheduler=kfl.Uniform(count=6))
    together = kfl.run(replace(setting, algorithm=kfl.Kfl(knowledge_weight=0.1)), dataset=data, models=network)
    alone = kfl.run(replace(setting, algorithm=kfl.Local()), dataset=data, models=network)
    print(f"together {together.accuracy:.1%}, alone {alone.accuracy:.1%} (one seed only)")
    print(f"worst tenth of the devices: together {together.worst_tenth:.1%}, alone {alone.worst_tenth:.1%}")
    print(f"uploaded {together.bits_up / 1e3:.0f} kbit in {len(together.rounds)} rounds")


if __name__ == "__main__":
    main()
