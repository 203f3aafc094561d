"""A small network on an encoder's numbers. Runs are repeated where this file changes: nothing else is in it."""

from __future__ import annotations

import math

from torch import nn

import kfl


def hidden(input_shape: tuple[int, ...], classes: int, width: int = 64) -> kfl.SplitModel:
    """One hidden layer, whose units are the features: 17,098 parameters on 256 numbers."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.ReLU())
    return kfl.SplitModel(body, nn.Linear(width, classes))
