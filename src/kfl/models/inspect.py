"""What a model is made of: its sizes, its parameters and its work, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kfl.core.errors import ModelError


@dataclass(frozen=True)
class ModelProfile:
    """The sizes of one model that the rest of kfl needs."""

    features: int
    """Length of the feature vector p."""
    classes: int
    """Number of logits."""
    parameters: int
    body_parameters: int
    flops: int
    """Floating-point operations of one forward pass of one sample, in the paper's count."""
    body_flops: int


def parts(model: nn.Module, who: str = "The model") -> tuple[nn.Module, nn.Module]:
    """The body and the head of a model, which every model must have."""
    found = []
    for name in ("body", "head"):
        part = getattr(model, name, None)
        if not isinstance(part, nn.Module):
            raise ModelError(
                f"{who} ({type(model).__name__}) has no '{name}': a model needs two torch.nn.Modules, "
                "'body' (input → feature vector) and 'head' (feature vector → logits)."
            )
        found.append(part)
    return found[0], found[1]


def inspect_model(model: nn.Module, input_shape: tuple[int, ...], classes: int, who: str = "The model") -> ModelProfile:
    """Check that a model has a body and a head that fit together and the data, and measure it.

    >>> from kfl.models import cnn, inspect_model
    >>> inspect_model(cnn(), (3, 32, 32), 10).flops
    1245834
    """
    body, head = parts(model, who)
    features, body_flops = _measure(body, torch.zeros(2, *input_shape), f"{who}'s body")
    if features.dim() != 2 or features.shape[0] != 2:
        raise ModelError(
            f"{who}'s body gives an output of shape {tuple(features.shape)} for 2 samples, "
            "but must give one feature vector per sample, shape (2, p): end it with nn.Flatten()."
        )
    logits, head_flops = _measure(head, features, f"{who}'s head")
    if tuple(logits.shape) != (2, classes):
        raise ModelError(
            f"{who}'s head gives an output of shape {tuple(logits.shape)} for 2 samples, "
            f"but the dataset has {classes} classes, so it must be (2, {classes})."
        )
    return ModelProfile(
        features=features.shape[1],
        classes=classes,
        parameters=sum(p.numel() for p in model.parameters()),
        body_parameters=sum(p.numel() for p in body.parameters()),
        flops=body_flops + head_flops,
        body_flops=body_flops,
    )


def _measure(module: nn.Module, x: Tensor, who: str) -> tuple[Tensor, int]:
    """Run one batch of two through a module and count the work of one sample.

    The paper counts a linear layer as its parameters (one multiply-add per weight is one operation) and a
    convolution as two operations per multiply-add; with that, its CNN has the printed 1,245,834 FLOPs. Layers
    of other kinds that hold parameters are counted as their parameters.
    """
    counted = 0
    handles = []

    def count(layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal counted
        own = sum(p.numel() for p in layer.parameters(recurse=False))
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            counted += 2 * layer.weight.numel() * (output[0, 0].numel())
        elif isinstance(layer, nn.Linear):
            counted += own * (output[0].numel() // layer.out_features)
        else:
            counted += own

    for layer in module.modules():
        if next(layer.parameters(recurse=False), None) is not None:
            handles.append(layer.register_forward_hook(count))
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            output = module(x)
    except Exception as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise ModelError(f"{who} cannot process an input of shape {tuple(x.shape)}: {reason}") from problem
    finally:
        module.train(was_training)
        for handle in handles:
            handle.remove()
    if not isinstance(output, Tensor):
        raise ModelError(f"{who} returns {type(output).__name__}, but must return one torch.Tensor.")
    return output, counted
