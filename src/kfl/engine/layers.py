"""Layers that need more than their inputs when many devices share a batch.

A module says `dropout`, `batch_norm`, `conv2d`. Inside the mode `Layers` these mean the same mathematics, done so that
a device computes what it would compute alone:

    dropout        is drawn by name (device, round, step, call, position), not from a generator's next number
    batch_norm     in training takes its statistics over the real samples: those that fill a batch up weigh nothing;
                   a sample that is alone in its batch is normalized by the running statistics, and leaves them alone
    convolutions   of stacked weights go the quickest way (`convolve`)

Everything else passes through. PyTorch calls such a mode for each of its functions, whatever calls them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kfl.models import parts

Convolve = Callable[..., Tensor]
"""As `torch.conv1d` or `torch.conv2d`."""

_CHANNELS = {functional.dropout1d, functional.dropout2d, functional.dropout3d}


class Layers(TorchFunctionMode):
    """What the layers of one device, or of one row of a stack, have besides their inputs.

    >>> ones = torch.ones(1000)
    >>> with Layers(seed=torch.tensor(7)):
    ...     first = functional.dropout(ones, 0.25)
    >>> with Layers(seed=torch.tensor(7)):
    ...     again = functional.dropout(ones, 0.25)
    >>> bool((first == again).all()), round(float((first == 0).float().mean()), 1)
    (True, 0.2)
    """

    def __init__(
        self,
        *,
        seed: Tensor | None = None,
        weights: Tensor | None = None,
        convolve: Convolve | None = None,
    ) -> None:
        """`seed` of this step's draws, an integer; None: dropout stays PyTorch's. `weights`: of the samples."""
        super().__init__()
        self._seed = seed
        self._weights = weights
        self._convolve = convolve
        self._calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do some functions our way."""
        kwargs = kwargs or {}
        if func is functional.dropout or func in _CHANNELS:
            if self._seed is not None:
                return self._dropout(func in _CHANNELS, *args, **kwargs)
        elif func is functional.batch_norm:
            return self._batch_norm(func, *args, **kwargs)
        elif (func is torch.conv2d or func is torch.conv1d) and self._convolve is not None:
            return self._convolve(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self, whole_channels: bool, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        assert self._seed is not None
        self._calls += 1
        shape = input.shape[:2] + (1,) * (input.dim() - 2) if whole_channels else input.shape
        kept = uniform(self._seed, self._calls, shape) >= p
        scaled = kept.to(input.dtype) * (1 / (1 - p) if p < 1 else 0.0)
        return input.mul_(scaled) if inplace else input * scaled

    def _batch_norm(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        weights = self._weights
        places = input[0, 0].numel()
        if weights is None and len(input) * places == 1:  # PyTorch refuses one value, which has no spread
            weights = input.new_ones(1)
        if not training or weights is None or len(weights) != len(input):
            return func(input, running_mean, running_var, weight, bias, training, momentum, eps)
        inner = [axis for axis in range(input.dim()) if axis != 1]
        column = (1, -1, *[1] * (input.dim() - 2))
        share = (weights / places).reshape(-1, *[1] * (input.dim() - 1)).to(input.dtype)
        mean = (input * share).sum(inner)
        away = input - mean.reshape(column)
        variance = (away.square() * share).sum(inner)
        if running_mean is not None and running_var is not None:
            count = (weights > 0).sum() * places
            unbiased = variance.detach() * (count.to(input.dtype) / (count - 1).clamp(min=1))
            alone = count == 1
            away = torch.where(alone, input - running_mean.reshape(column), away)
            variance = torch.where(alone, running_var, variance)
            for running, new in ((running_mean, mean.detach()), (running_var, unbiased)):
                running.copy_(torch.where(alone, running, running * (1 - momentum) + momentum * new))
        output = away * (variance + eps).rsqrt().reshape(column)
        if weight is not None:
            output = output * weight.reshape(column)
        return output if bias is None else output + bias.reshape(column)


def draws(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a module draws random numbers when it trains; its buffers are left as they are.

    >>> from kfl.models import SplitModel
    >>> draws(SplitModel(nn.Dropout(0.5), nn.Linear(2, 2)), torch.zeros(1, 2))
    True
    """
    body, head = parts(copy.deepcopy(module).to("cpu").train())
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.random.get_rng_state()
            head(body(inputs.cpu()))
            return not torch.equal(torch.random.get_rng_state(), before)
    except Exception:  # what is wrong with it shows when it trains
        return False


def uniform(seed: Tensor, call: int, shape: Iterable[int]) -> Tensor:
    """Numbers in [0, 1), a function of the seed, the number of the call and the position: the same on any processor.

    A counter goes through a 32-bit mixing function (C. Wellons' lowbias32), in integers of 64 bits, which every
    processor multiplies alike.
    """
    shape = tuple(shape)
    size = torch.Size(shape).numel()
    stem = _mixed((seed & _LOW) ^ _mixed(((seed >> 32) & _LOW) + 0x9E3779B9 * call & _LOW))
    position = torch.arange(size, device=seed.device)
    mixed = _mixed((position * 0x9E3779B1 & _LOW) ^ stem)
    # 24 bits are exact in float32.
    return ((mixed >> 8).to(torch.float32) * 2.0**-24).reshape(shape)


_LOW = 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ (x >> 16)) * 0x7FEB352D & _LOW
    x = (x ^ (x >> 15)) * 0x846CA68B & _LOW
    return x ^ (x >> 16)


def step_seed(first: Tensor | int, step: Tensor | int) -> Tensor:
    """The seed of one step from the seed of a device's training."""
    return torch.as_tensor(first) + torch.as_tensor(step) * 0x632BE59BD9B4E019
