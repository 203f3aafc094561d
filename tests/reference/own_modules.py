"""Networks as users write them, each with something that makes an engine's work harder.

All take samples of five numbers to a feature of sixteen and four classes, the data of `tests.reference.runs`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

FEATURES, CLASSES = 16, 4


class Net(nn.Module):
    """A body and a head."""

    def __init__(self, *body: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body: nn.Module = nn.Sequential(*body) if len(body) > 1 else body[0]
        self.head = nn.Linear(FEATURES, CLASSES) if head is None else head


class FillsInPlace(nn.Module):
    """Writes its halves into a tensor of its own, which cannot be vectorized."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, FEATURES // 2), nn.Linear(5, width)
        self.last = nn.Linear(width, FEATURES // 2)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), FEATURES, dtype=x.dtype)
        out[:, : FEATURES // 2] = self.left(x).relu()
        out[:, FEATURES // 2 :] = self.last(self.right(x).relu()).relu()
        return out


class Branches(nn.Module):
    """Takes one way or another by what is in the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.low, self.high = nn.Linear(5, width), nn.Linear(width, FEATURES), nn.Linear(width, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        if x.mean() > 1.5:
            return torch.relu(self.high(hidden))
        return torch.relu(self.low(hidden))


class UsesALayerTwice(nn.Module):
    """One layer, called twice and known by two names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, FEATURES)
        self.again = self.inner

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return torch.relu(self.last(self.again(self.inner(hidden).relu()).relu()))


class TiedHead(nn.Module):
    """A head whose weight is a layer of the body."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, CLASSES))
        self.head[0].weight = self.body[2].weight


class NearestCorner(nn.Module):
    """A head without parameters: fixed directions for the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("corners", torch.eye(CLASSES).repeat_interleave(FEATURES // CLASSES, dim=1))

    def forward(self, feature: Tensor) -> Tensor:
        return feature @ self.corners.T


class Masked(nn.Module):
    """Has buffers that are no floating-point numbers: a mask, an index, and a counter that it does not change."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, FEATURES)
        self.register_buffer("mask", torch.arange(width) % 3 > 0)
        self.register_buffer("order", torch.arange(width).flip(0))
        self.register_buffer("version", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.first(x) * self.mask)[:, self.order]
        return torch.relu(self.last(hidden.relu()))


class Counts(nn.Module):
    """Counts its batches in a buffer, in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, FEATURES)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return torch.relu(self.last(self.first(x).relu()))


class Recurrent(nn.Module):
    """Reads its five numbers one after another."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(width, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(self.layer(x[:, :, None])[0][:, -1]))


class Through(nn.Module):
    """Calls a function that it was given: a lambda cannot be pickled."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def local_class(width: int) -> nn.Module:
    """A body whose class exists in this function alone, as in a notebook's cell."""

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, width), nn.Linear(width, FEATURES)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.last(functional.gelu(self.first(x))))

    return Local()


def _dense(width: int, *between: nn.Module) -> list[nn.Module]:
    return [nn.Linear(5, width), *between, nn.ReLU(), nn.Linear(width, FEATURES), nn.ReLU()]


ODD: dict[str, Callable[[int], nn.Module]] = {
    "cannot be vectorized": lambda width: Net(FillsInPlace(width)),
    "branch on data": lambda width: Net(Branches(width)),
    "batch norm": lambda width: Net(*_dense(width, nn.BatchNorm1d(width))),
    "batch norm without statistics": lambda width: Net(
        *_dense(width, nn.BatchNorm1d(width, track_running_stats=False))
    ),
    "layer used twice": lambda width: Net(UsesALayerTwice(width)),
    "head tied to the body": TiedHead,
    "head without parameters": lambda width: Net(*_dense(width), head=NearestCorner()),
    "head that is nothing": lambda width: Net(*_dense(width), nn.Linear(FEATURES, CLASSES), head=nn.Identity()),
    "dropout": lambda width: Net(*_dense(width, nn.Dropout(0.3))),
    "lambda": lambda width: Net(*_dense(width), Through(lambda x: x * 0.5)),
    "local class": lambda width: Net(local_class(width)),
    "buffers of integers": lambda width: Net(Masked(width)),
    "counts its batches": lambda width: Net(Counts(width)),
    "lstm": lambda width: Net(Recurrent(nn.LSTM(1, width, batch_first=True), width)),
    "gru": lambda width: Net(Recurrent(nn.GRU(1, width, batch_first=True), width)),
}
"""By what is odd about them; each a function of a width."""

MIXABLE = [what for what in ODD if what != "head that is nothing"]
"""Those with a feature of the same length."""


def build(input_shape: tuple[int, ...], classes: int, width: int) -> nn.Module:
    """For `--model tests.reference.own_modules:build`: the width says which one, by its place in `MIXABLE`."""
    assert (input_shape, classes) == ((5,), CLASSES)
    return ODD[MIXABLE[width - 1]](8)


def with_batch_norm(input_shape: tuple[int, ...], classes: int, width: int) -> nn.Module:
    """For `--model tests.reference.own_modules:with_batch_norm`."""
    assert (input_shape, classes) == ((5,), CLASSES)
    return ODD["batch norm"](width)
