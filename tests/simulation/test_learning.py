"""A small version of the published results: KFL learns, and on color images it leaves training alone behind.

The full runs (100 devices, 200 rounds, seeds 0 to 4) are made by `python -m reproduction figures`;
docs/results/figures.md has them.
"""

import os
from dataclasses import replace

import pytest

import kfl


def test_kfl_learns_the_embedded_digits_with_mixed_networks():
    history = kfl.run(kfl.Experiment(devices=20, rounds=20, evaluate_every=20, radio="none"))
    assert history.accuracy > 0.95


def test_kfl_is_above_local_only_on_a_part_of_cifar10():
    if "KFL_DATA_DIR" not in os.environ:
        pytest.skip("KFL_DATA_DIR is not set: CIFAR-10 is needed for this test")
    whole = kfl.load_dataset("cifar10")
    part = kfl.Dataset.from_arrays(
        whole.train_x[:4000],
        whole.train_y[:4000],
        whole.test_x[:2000],
        whole.test_y[:2000],
        scale=whole.scale,
        mean=whole.mean,
        std=whole.std,
        classes=10,
    )
    experiment = kfl.Experiment(devices=20, rounds=20, model="cnn", widths=(64, 96), radio="none", evaluate_every=20)
    shared = kfl.run(experiment, dataset=part)
    alone = kfl.run(replace(experiment, algorithm=kfl.Local()), dataset=part)
    assert shared.accuracy > alone.accuracy + 0.02
    assert shared.accuracy > 0.7
