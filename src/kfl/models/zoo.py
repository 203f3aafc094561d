"""Networks that are chosen by name: the paper's two, five more for comparisons, and a linear classifier.

Each is a body (input → feature vector) and a head (feature vector → logits). All bodies but that of the linear
classifier end in a linear layer with 64 outputs and its ReLU, so that any of them can be mixed in a fleet: the feature
has the same length. The paper's two:

    MLP   784 – 512 – width – 64 | 10             ReLU after every body layer
    CNN   conv 5×5, 6 – pool – conv 5×5, 16 – pool – 400 – width – 64 | 10

The others follow a published layout up to that last layer, and their docstrings say where they differ. Where the
original has batch normalization they have group normalization with two groups: statistics of a batch do not fit
devices with different classes (Hsieh et al., "The non-IID data quagmire of decentralized machine learning", 2020), and
a device's weights are then all there is to its model. None has dropout. Weights start as PyTorch initializes them by
default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor, nn

from kfl.core.errors import ModelError
from kfl.models.names import CNN_PIXELS, SENSOR_STEPS

FEATURES = 64
"""Length of the feature vector in all networks here."""

GROUPS = 2
"""Groups of a normalization, as in the ResNets of federated learning (Reddi et al. 2021)."""

HEADS = 4
"""Attention heads of the transformer."""


class SplitModel(nn.Module):
    """A network in two parts: `head(body(x))`.

    >>> import torch
    >>> model = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    >>> model(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.head(self.body(x))
        return logits


# ── The paper's two ──────────────────────────────────────────────────────────


def mlp(input_shape: tuple[int, ...] = (1, 28, 28), classes: int = 10, width: int = 256) -> SplitModel:
    """The paper's multilayer perceptron; `width` is its d_MLP.

    Args:
        input_shape: Of one sample.
        classes: Of the head.
        width: d_MLP.

    >>> sum(p.numel() for p in mlp().parameters())
    550346
    """
    inputs = math.prod(input_shape)
    body = nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, 512),
        nn.ReLU(),
        nn.Linear(512, width),
        nn.ReLU(),
        nn.Linear(width, FEATURES),
        nn.ReLU(),
    )
    return SplitModel(body, nn.Linear(FEATURES, classes))


def cnn(
    input_shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 128, features: int = FEATURES
) -> SplitModel:
    """The paper's convolutional network; `width` is its d_CNN. Images must be at least 16×16.

    Args:
        input_shape: Of one sample.
        classes: Of the head.
        width: d_CNN.
        features: Numbers that the body gives the head.

    >>> sum(p.numel() for p in cnn().parameters())
    63106
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < CNN_PIXELS:
        raise ModelError(f"The cnn needs images of at least 16×16 pixels (channels, height, width), not {input_shape}.")
    channels, height, wide = input_shape
    flat = 16 * _after_conv_and_pool(height) * _after_conv_and_pool(wide)
    body = nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, width),
        nn.ReLU(),
        nn.Linear(width, features),
        nn.ReLU(),
    )
    return SplitModel(body, nn.Linear(features, classes))


def _after_conv_and_pool(size: int) -> int:
    """Side length after two rounds of a 5×5 convolution without padding and a 2×2 pooling."""
    for _ in range(2):
        size = (size - 4) // 2
    return size


# ── Residual networks ────────────────────────────────────────────────────────


def resnet8(input_shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 16) -> SplitModel:
    """ResNet-8: three stages of one residual block with width, 2·width and 4·width channels.

    The CIFAR layout of He et al. ("Deep residual learning for image recognition", 2016, section 4.2) with n = 1: 6n + 2
    layers. It differs in the group normalization, in shortcuts that change the shape by a 1×1 convolution (their option
    B; on CIFAR they pad with zeros) and in the layer of 64 units before the head.

    Args:
        input_shape: Of one sample.
        classes: Of the head.
        width: Channels of the first stage.

    >>> sum(p.numel() for p in resnet8().parameters())
    82202
    """
    channels = _image_channels("resnet8", input_shape, width)
    return _residual(channels, (width, 2 * width, 4 * width), 1, classes)


def resnet18(input_shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 64) -> SplitModel:
    """ResNet-18: four stages of two residual blocks with width to 8·width channels.

    The ImageNet layout of He et al. (2016, table 1) as it is used for small images: the first layer is a 3×3
    convolution that keeps the size, and no pooling follows it. It differs further in the group normalization, as Reddi
    et al. ("Adaptive federated optimization", 2021) train it, and in the layer of 64 units before the head.

    Args:
        input_shape: Of one sample.
        classes: Of the head.
        width: Channels of the first stage.

    >>> sum(p.numel() for p in resnet18().parameters())
    11202314
    """
    channels = _image_channels("resnet18", input_shape, width)
    return _residual(channels, (width, 2 * width, 4 * width, 8 * width), 2, classes)


def _residual(channels: int, stages: tuple[int, ...], blocks: int, classes: int) -> SplitModel:
    """A 3×3 convolution, then stages of residual blocks; each stage but the first halves the image."""
    layers: list[nn.Module] = [*_normalised(_conv3x3(channels, stages[0])), nn.ReLU()]
    inputs = stages[0]
    for stage, outputs in enumerate(stages):
        for block in range(blocks):
            layers.append(ResidualBlock(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return _pooled(layers, inputs, classes)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with normalization next to a shortcut, then ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_normalised(_conv3x3(inputs, outputs, stride)), nn.ReLU(), *_normalised(_conv3x3(outputs, outputs))
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_normalised(nn.Conv2d(inputs, outputs, 1, stride, bias=False)))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for a batch."""
        return torch.relu(self.inner(x) + self.shortcut(x))


# ── MobileNet ────────────────────────────────────────────────────────────────


def mobilenet(input_shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 16) -> SplitModel:
    """A small MobileNet: a convolution, then six depthwise separable ones up to 16·width channels.

    Howard et al. ("MobileNets", 2017, table 1) with width = 32 begins with these layers; the rest, at 512 and 1024
    channels, is left out. It differs further in a first layer that keeps the size of the image, as images are small, in
    the group normalization and in the layer of 64 units before the head.

    Args:
        input_shape: Of one sample.
        classes: Of the head.
        width: Channels of the first layer.

    >>> sum(p.numel() for p in mobilenet().parameters())
    87658
    """
    channels = _image_channels("mobilenet", input_shape, width)
    layers: list[nn.Module] = [*_normalised(_conv3x3(channels, width)), nn.ReLU()]
    inputs = width
    for times, stride in ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2)):
        outputs = times * width
        layers += [*_normalised(_conv3x3(inputs, inputs, stride, groups=inputs)), nn.ReLU()]
        layers += [*_normalised(nn.Conv2d(inputs, outputs, 1, bias=False)), nn.ReLU()]
        inputs = outputs
    return _pooled(layers, inputs, classes)


# ── Sensors ──────────────────────────────────────────────────────────────────


def sensor(input_shape: tuple[int, ...] = (9, 128), classes: int = 6, width: int = 32) -> SplitModel:
    """A network for sensor data, (channels, time): three convolutions along time, each with ReLU and max pooling.

    The layout is that of Ronao and Cho ("Human activity recognition with smartphone sensors using deep learning neural
    networks", 2016): three pairs of convolution and pooling, then a dense layer. The sizes are our choice: width,
    2·width and 2·width maps, windows of 9 time steps that are padded, so that short series fit, pooling over 3, and 64
    units.

    Args:
        input_shape: Of one sample.
        classes: Of the head.
        width: Maps of the first convolution.

    >>> sum(p.numel() for p in sensor().parameters())
    74886
    """
    if len(input_shape) != 2:
        _refuse("sensor", "samples of the shape (channels, time), such as (9, 128)", input_shape)
    channels, time = input_shape
    if time < SENSOR_STEPS:
        _refuse("sensor", f"at least {SENSOR_STEPS} time steps", input_shape)
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv1d(inputs, outputs, 9, padding=4), nn.ReLU(), nn.MaxPool1d(3)]
        time //= 3
    body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * time, FEATURES), nn.ReLU())
    return SplitModel(body, nn.Linear(FEATURES, classes))


# ── Transformer ──────────────────────────────────────────────────────────────


def transformer(input_shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 64) -> SplitModel:
    """A small transformer over patches of images (4×4 pixels) or of series (channels, time), 8 time steps each.

    The vision transformer of Dosovitskiy et al. ("An image is worth 16×16 words", 2021) with two blocks of four heads:
    normalization before attention and before the two dense layers, the inner one four times as wide, and learned
    positions. It differs in the mean of all patches instead of a class token, and in the layer of 64 units before the
    head. An image or a series that is no integer of patches is filled up with zeros.

    Args:
        input_shape: Of one sample.
        classes: Of the head.
        width: Numbers of a patch, divisible by four.

    >>> sum(p.numel() for p in transformer().parameters())
    112138
    """
    if len(input_shape) not in (2, 3):
        _refuse("transformer", "images (channels, height, width) or series (channels, time)", input_shape)
    if width % HEADS:
        raise ModelError(
            f"The transformer's width must be a multiple of {HEADS}, the number of its heads, and is {width}."
        )
    patches = Patches(input_shape, 4 if len(input_shape) == 3 else 8)
    body = nn.Sequential(
        patches,
        nn.Linear(patches.size, width),
        Positions(patches.count, width),
        TransformerBlock(width),
        TransformerBlock(width),
        nn.LayerNorm(width),
        Mean(1),
        nn.Linear(width, FEATURES),
        nn.ReLU(),
    )
    return SplitModel(body, nn.Linear(FEATURES, classes))


class Patches(nn.Module):
    """Cuts a batch of images or series into patches: (samples, patches, numbers in a patch)."""

    def __init__(self, input_shape: tuple[int, ...], side: int) -> None:
        super().__init__()
        channels, *sizes = input_shape
        self.side = side
        self.missing = [pad for size in reversed(sizes) for pad in (0, -size % side)]
        self.count = math.prod(-(-size // side) for size in sizes)
        self.size = channels * side ** len(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """The patches, row by row."""
        x = nn.functional.pad(x, self.missing) if any(self.missing) else x
        for axis in range(x.dim() - 1, 1, -1):
            x = x.unflatten(axis, (-1, self.side))
        # (samples, channels, rows, side, columns, side) → (samples, rows, columns, channels, side, side)
        order = [0, *range(2, x.dim(), 2), 1, *range(3, x.dim(), 2)]
        return x.permute(order).reshape(-1, self.count, self.size)


class Positions(nn.Module):
    """Adds a learned vector to each patch. It starts as an embedding of PyTorch does, from a normal distribution."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width))

    def forward(self, x: Tensor) -> Tensor:
        """Patches that know their place."""
        return x + self.weight


class TransformerBlock(nn.Module):
    """Attention, then two dense layers, each after a normalization and next to a shortcut.

    Written out rather than taken from `nn.TransformerEncoderLayer`, whose fused evaluation cannot be stacked.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attended = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for a batch of patches."""
        # (samples, patches, 3, heads, numbers) → three of (samples, heads, patches, numbers)
        query, key, value = self.attended(self.before(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(query.shape[3]), dim=3)
        x = x + self.joined((weights @ value).transpose(1, 2).flatten(2))
        summed: Tensor = x + self.dense(x)
        return summed


class Mean(nn.Module):
    """The mean over axes: one number per channel of an image, or one vector for all patches."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """One vector per sample."""
        return x.mean(dim=self.axes)


# ── What they have in common ─────────────────────────────────────────────────


def _conv3x3(inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, groups=groups, bias=False)


def _normalised(conv: nn.Conv2d) -> tuple[nn.Module, nn.Module]:
    return conv, nn.GroupNorm(GROUPS, conv.out_channels)


def _pooled(layers: list[nn.Module], channels: int, classes: int) -> SplitModel:
    """A model whose body ends in the mean of every channel and the layer of the feature."""
    ends = [Mean(2, 3), nn.Linear(channels, FEATURES), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers, *ends), nn.Linear(FEATURES, classes))


def _image_channels(model: str, input_shape: tuple[int, ...], width: int) -> int:
    """The channels of images that fit a normalized network of this width."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 8:
        _refuse(model, "images of at least 8×8 pixels (channels, height, width)", input_shape)
    if width % GROUPS:
        raise ModelError(
            f"The {model}'s width must be even, because its channels are normalized in {GROUPS} groups, and is {width}."
        )
    return input_shape[0]


def _refuse(model: str, right: str, input_shape: tuple[int, ...]) -> NoReturn:
    raise ModelError(f"The {model} needs {right}, not {tuple(input_shape)}.")


# ── No network at all ────────────────────────────────────────────────────────


def linear(input_shape: tuple[int, ...] = (1, 28, 28), classes: int = 10, width: int = 1) -> SplitModel:
    """A linear classifier: the body hands its input on, so that the feature is the input itself, and the head is all.

    It has no hidden layer, so that its only width is 1. Devices whose features are of another length cannot share with
    it.

    >>> sum(p.numel() for p in linear().parameters())
    7850
    """
    if width != 1:
        raise ModelError(f"The linear model has no hidden layer, so that its width must be 1, not {width}.")
    return SplitModel(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


ModelBuilder = Callable[..., nn.Module]
"""A function (input_shape, classes, width) → module, as those above are."""

MODELS: dict[str, ModelBuilder] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "mobilenet": mobilenet,
    "sensor": sensor,
    "transformer": transformer,
    "linear": linear,
}
"""Networks that can be chosen by name; a new one is one line here and one in `kfl.models.names`."""
