"""The sizes and the work of a model, measured before anything runs.

Work is counted from the operations that one forward pass really calls, whatever calls them: a layer, a function in a
user's `forward`, a layer that is used twice. The paper counts a linear layer as its parameters and a convolution as two
operations per multiply-add; with that, its CNN has the printed 1,245,834 FLOPs. Its rule for all operations:

    product of matrices     1 per multiply-add, and 1 per number for a bias: linear and recurrent layers, attention
    convolution             2 per multiply-add, whatever its groups; its bias is free
    normalization           5 per number, 4 without scale and shift: mean, variance, difference, scale, shift
    + − × ÷ a parameter     1 per number: positions, scales
    everything else         free, as in the paper: activations, pooling, softmax, sums of two branches
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kfl.core.errors import ModelError
from kfl.core.threads import torch_threads
from kfl.models.network import Layer, Network, further_state, layers_of, parts, read_network


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
    input_shape: tuple[int, ...]
    """Of one sample."""
    network: Network | None = None
    """Its layers as a recipe, where all of them are of known kinds."""
    layers: tuple[Layer, ...] = field(default=(), hash=False)
    """Every layer with its name and the shapes of its parameters, the body's first; empty where they are not known, as
    of a fleet's device whose network the server does not build."""
    further: tuple[Layer, ...] = field(default=(), hash=False)
    """Non-parameter buffers, such as running means of a normalization; empty where not known."""

    @property
    def state_values(self) -> int:
        """Numbers of the whole state: parameters and what stands next to them, where that is known."""
        return self.parameters + sum(layer.values for layer in self.further)


def inspect_model(model: nn.Module, input_shape: tuple[int, ...], classes: int, who: str = "The model") -> ModelProfile:
    """Check that a model has a body and a head that fit together and the data, and measure it.

    Args:
        model: With a `body` and a `head`.
        input_shape: Of one sample.
        classes: Of the data.
        who: How the sentence about a fault begins.

    Raises:
        ModelError: The model cannot be trained here; the sentence says why.

    >>> from kfl.models import cnn, inspect_model
    >>> inspect_model(cnn(), (3, 32, 32), 10).flops
    1245834
    """
    body, head = parts(model, who)
    # Hundreds of tiny operations: shared out over threads they took 8 to 30 times the processor time.
    with torch_threads(1):
        return _profile(model, body, head, input_shape, classes, who)


def _profile(
    model: nn.Module, body: nn.Module, head: nn.Module, input_shape: tuple[int, ...], classes: int, who: str
) -> ModelProfile:
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
        input_shape=tuple(input_shape),
        network=read_network(model, input_shape),
        layers=(*layers_of(body, "body"), *layers_of(head, "head")),
        further=tuple(further_state(model)),
    )


def count_flops(module: nn.Module, input_shape: tuple[int, ...], who: str = "The module") -> int:
    """Count the work of one forward pass on one sample, by the rule above.

    Args:
        module: Any module, with or without a `head`.
        input_shape: Of one sample.
        who: How the sentence about a fault begins.

    Returns:
        Operations; none of what is computed outside PyTorch.

    Raises:
        ModelError: The module cannot process such a sample.

    >>> count_flops(nn.Linear(784, 256), (784,))
    200960
    """
    with torch_threads(1):
        return _measure(module, torch.zeros(2, *input_shape), who)[1]


def _measure(module: nn.Module, x: Tensor, who: str) -> tuple[Tensor, int]:
    """Run one batch of two through a module and count the work of one sample."""
    was_training, was_fused = module.training, torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation for a whole layer, which could not be counted
    try:
        with torch.no_grad(), _Counter() as counter:  # type: ignore[no-untyped-call]  # TorchDispatchMode's
            output = module(x)
    except Exception as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise ModelError(f"{who} cannot process an input of shape {tuple(x.shape)}: {reason}") from problem
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fused)
        module.train(was_training)
    if not isinstance(output, Tensor):
        raise ModelError(f"{who} returns {type(output).__name__}, but must return one torch.Tensor.")
    return output, counter.operations // 2


# ── The count ────────────────────────────────────────────────────────────────


class _Counter(TorchDispatchMode):
    """Counts the work of every operation that PyTorch executes."""

    operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: else PyTorch imports its whole compiler, two seconds, to keep it out of the method below."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        rule = RULES.get(func.overloadpacket)
        if rule is not None:
            self.operations += rule(args, result)
        return result


def _product(args: Any, out: Tensor) -> int:
    """Left, right."""
    return out.numel() * int(args[0].shape[-1])


def _product_and_sum(args: Any, out: Tensor) -> int:
    """What is added, left, right."""
    return out.numel() * (int(args[1].shape[-1]) + 1)


def _convolution(args: Any, out: Tensor) -> int:
    x, weight, transposed = args[0], args[1], args[6]
    return 2 * int(weight.numel()) * int(x.shape[0]) * math.prod((x if transposed else out).shape[2:])


def _attention(args: Any, _out: Any) -> int:
    query, key, value = args[:3]
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return int(pairs * (query.shape[-1] + value.shape[-1]))


def _recurrent(args: Any, _out: Any) -> int:
    """A layer of an LSTM for all time steps: its parameters in each; biases come last and may be absent."""
    x, weights, has_biases = args[0], args[1:5], args[12]
    numbers = sum(int(weight.numel()) for weight in weights[: 4 if has_biases else 2])
    return int(x.shape[0] * x.shape[1]) * numbers


def _bilinear(args: Any, _out: Tensor) -> int:
    return int(args[0].shape[0]) * int(args[1].numel())


def _normalisation(args: Any, out: Any) -> int:
    """The weight follows the input, in layer normalization after the shape."""
    scaled = any(isinstance(value, Tensor) for value in args[1:3])
    return int(out[0].numel()) * (5 if scaled else 4)


def _with_parameter(args: Any, out: Tensor) -> int:
    return out.numel() if any(isinstance(value, nn.Parameter) for value in args) else 0


_aten = torch.ops.aten

RULES: dict[Any, Callable[[Any, Any], int]] = {
    **dict.fromkeys((_aten.mm, _aten.bmm, _aten.mv, _aten.dot), _product),
    **dict.fromkeys((_aten.addmm, _aten.baddbmm, _aten.addmv), _product_and_sum),
    _aten.convolution: _convolution,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten.mkldnn_rnn_layer: _recurrent,
    _aten._trilinear: _bilinear,
    **dict.fromkeys((_aten.native_batch_norm, _aten.native_layer_norm, _aten.native_group_norm), _normalisation),
    **dict.fromkeys(
        (_aten.add, _aten.add_, _aten.sub, _aten.sub_, _aten.mul, _aten.mul_, _aten.div, _aten.div_), _with_parameter
    ),
}
"""By operation: how much work it is, from its arguments and its result."""
