"""What is probably not meant, in a sentence each: said before the first round, and the run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kfl.core.units import dbm_to_watt
from kfl.scheduling.uplink import LARGEST_POWER_W

if TYPE_CHECKING:
    from kfl.simulation.world import World

DOUBTFUL = 0.2
"""From this share of devices with a single class on, accuracy is questioned."""
LARGE_INPUT = 30.0
"""Networks as PyTorch initializes them expect numbers around 1; training on much larger ones diverges."""
SAMPLES_READ = 256


def sanity_warnings(world: World) -> list[str]:
    """What a person should look at before they believe the results of a run in this world."""
    return [*_single_classes(world), *_large_inputs(world), *_strange_radio(world)]


def _single_classes(world: World) -> list[str]:
    """Accuracy tells little where a device has one class: it is tested on it, and cannot be wrong for long."""
    if world.dataset.classes == 1:
        return ["The data has one class only, so that every prediction is right: there is nothing to learn."]
    held = (world.partition.train_counts > 0).sum(axis=1)
    single = int((held == 1).sum())
    if single <= DOUBTFUL * len(held):
        return []
    more = "--classes-per-device, --distinct-classes or --split"
    return [
        f"{single} of {len(held)} devices hold samples of one class and are tested on that class: always predicting it "
        f"scores 100 %. More classes: {more}."
    ]


def _large_inputs(world: World) -> list[str]:
    """Images of numbers from 0 to 255, say."""
    data = world.dataset
    rows = np.arange(0, len(data.train_y), max(1, len(data.train_y) // SAMPLES_READ))
    largest = float(data.inputs("train", rows).abs().max())
    if largest <= LARGE_INPUT or not world.experiment.algorithm.trains:
        return []
    return [
        f"Inputs reach {largest:.4g}, where networks expect numbers around 1: divide them (images: by 255) or "
        "standardize them, or training may diverge."
    ]


def _strange_radio(world: World) -> list[str]:
    """Gains and powers that no radio of a battery device has."""
    cell = world.experiment.cell_config
    if cell is None:
        return []
    found = []
    if cell.reference_gain_db > 0:
        found.append(
            f"radio.reference_gain_db is {cell.reference_gain_db:g}, so more power arrives than is sent: a path loss "
            f"of {cell.reference_gain_db:g} dB is a gain of {-cell.reference_gain_db:g}."
        )
    watts = dbm_to_watt(cell.max_power_dbm)
    if watts > LARGEST_POWER_W:
        found.append(
            f"radio.max_power_dbm is {cell.max_power_dbm:g}, that is {watts:.3g} W, more than any battery device has: "
            "a phone has 23 dBm."
        )
    return found
