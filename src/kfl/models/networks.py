"""The paper's two networks, as a body (input → feature vector) and a head (feature vector → logits).

    MLP   784 – 512 – width – 64 | 10             ReLU after every body layer
    CNN   conv 5×5, 6 – pool – conv 5×5, 16 – pool – 400 – width – 64 | 10

The feature is the 64-unit layer after its ReLU. Weights start as PyTorch initialises them by default.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from kfl.core.errors import ModelError

FEATURES = 64
"""Size of the feature vector in both networks of the paper."""


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


def mlp(input_shape: tuple[int, ...] = (1, 28, 28), classes: int = 10, width: int = 256) -> SplitModel:
    """The paper's multilayer perceptron; `width` is its d_MLP.

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


def cnn(input_shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 128) -> SplitModel:
    """The paper's convolutional network; `width` is its d_CNN. Images must be at least 16×16.

    >>> sum(p.numel() for p in cnn().parameters())
    63106
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 16:
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
        nn.Linear(width, FEATURES),
        nn.ReLU(),
    )
    return SplitModel(body, nn.Linear(FEATURES, classes))


def _after_conv_and_pool(size: int) -> int:
    """Side length after two rounds of a 5×5 convolution without padding and a 2×2 pooling."""
    for _ in range(2):
        size = (size - 4) // 2
    return size
