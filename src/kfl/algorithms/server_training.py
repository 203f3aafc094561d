"""Training on the server: gradient descent on the class means that devices sent, each a sample with a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.engine import RoundKey
    from kfl.models import State

    Loss = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]
    """(parameters, vectors, labels) → mean loss of a batch."""


def descend_on_server(
    parameters: Mapping[str, Tensor],
    loss: Loss,
    samples: tuple[Tensor, Tensor],
    *,
    epochs: int,
    rate: float,
    batch_size: int,
    key: RoundKey,
) -> State:
    """The parameters after passes over labelled vectors, in float64 on the CPU: w ← w − η ∇, without momentum.

    The order of the samples in each pass is drawn by name. It follows from how many there are, so they must come in an
    order that does not depend on which upload arrived first.
    """
    import torch

    vectors, labels = samples
    now = {name: value.detach().double().cpu().clone().requires_grad_() for name, value in parameters.items()}
    for epoch in range(epochs):
        draw = torch.Generator().manual_seed(key.torch_seed("server batches", 0, epoch))
        for batch in torch.randperm(len(labels), generator=draw).split(batch_size):
            with torch.enable_grad():
                value = loss(now, vectors[batch], labels[batch])
            gradients = torch.autograd.grad(value, list(now.values()))
            with torch.no_grad():
                for own, gradient in zip(now.values(), gradients, strict=True):
                    own.sub_(gradient, alpha=rate)
    return {name: value.detach() for name, value in now.items()}
