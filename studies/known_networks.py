"""The networks that `reproduction.known_settings` trains, as `--model studies.known_networks:NAME`.

The address is part of the digests of its committed results, so the module stays here.
"""

from __future__ import annotations

import math

from torch import nn

import kfl


def dense(input_shape: tuple[int, ...], classes: int, width: int) -> kfl.SplitModel:
    """One hidden layer: Ji's MLP without its dropout."""
    inputs = math.prod(input_shape)
    return kfl.SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU()), nn.Linear(width, classes))


def two_nn(input_shape: tuple[int, ...], classes: int, width: int) -> kfl.SplitModel:
    """Two hidden layers of the same width: McMahan's 2NN, 199,210 parameters at width 200."""
    inputs = math.prod(input_shape)
    layers = (nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return kfl.SplitModel(nn.Sequential(nn.Flatten(), *layers), nn.Linear(width, classes))


def padded_cnn(input_shape: tuple[int, ...], classes: int, width: int) -> kfl.SplitModel:
    """McMahan's CNN, 1,663,370 parameters at width 512: two padded 5×5 convolutions of 32 and 64 channels."""
    return _cnn(input_shape, classes, (32, 64), (width,), padding=2)


def plain_cnn(input_shape: tuple[int, ...], classes: int, width: int) -> kfl.SplitModel:
    """PFLlib's CNN at width 512: the same without padding."""
    return _cnn(input_shape, classes, (32, 64), (width,))


def fedrep_cnn(input_shape: tuple[int, ...], classes: int, width: int) -> kfl.SplitModel:
    """FedRep's CNN for CIFAR-10 at width 120: 64 channels twice, then dense layers of 120 and 64."""
    return _cnn(input_shape, classes, (64, 64), (width, 64))


def small_cnn(input_shape: tuple[int, ...], classes: int, width: int) -> kfl.SplitModel:
    """FedProto's CNN for MNIST at width 50, without its dropout: 10 and 20 channels."""
    return _cnn(input_shape, classes, (10, 20), (width,))


def _cnn(
    shape: tuple[int, ...], classes: int, channels: tuple[int, ...], widths: tuple[int, ...], padding: int = 0
) -> kfl.SplitModel:
    """Blocks of a 5×5 convolution, ReLU and 2×2 pooling, then dense layers with ReLU, then a linear head."""
    before, height, wide = shape
    layers: list[nn.Module] = []
    for count in channels:
        layers += [nn.Conv2d(before, count, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        before, height, wide = count, (height + 2 * padding - 4) // 2, (wide + 2 * padding - 4) // 2
    layers.append(nn.Flatten())
    size = before * height * wide
    for width in widths:
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return kfl.SplitModel(nn.Sequential(*layers), nn.Linear(size, classes))
