"""Measurements of the constants of Theorem 1 at one model and one device's samples, by automatic differentiation.

Curvature comes from Hessian–vector products and power iteration, so that no Hessian is ever formed. Every number is
a lower bound of the constant that the assumptions ask for: a Lipschitz constant holds everywhere, and this is one
point; and power iteration approaches a spectral norm from below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from kfl.core.errors import ConfigError
from kfl.core.randomness import torch_seed
from kfl.engine.objectives import class_loss
from kfl.models import parts

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) → mean loss over samples."""


@dataclass(frozen=True)
class PointMeasures:
    """What was measured at one point: one model's weights on one device's samples."""

    body_smoothness: float
    """Spectral norm of ∂²F/∂u²."""
    head_smoothness: float
    """Spectral norm of ∂²F/∂v²."""
    cross_smoothness: float
    """Largest singular value of ∂²F/∂u∂v, which is L_uv and L_vu at once: the one block is the other transposed."""
    body_gradient: float
    head_gradient: float
    feature_gradient: float
    """Largest spectral norm of ∂h(x)/∂u over the samples looked at."""
    feature_norm: float
    """Largest ‖h(x)‖ over all samples."""
    loss: float

    def max(self, other: PointMeasures) -> PointMeasures:
        """The larger of each."""
        return PointMeasures(*(max(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))


def measure_model(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    iterations: int = 10,
    jacobians: int = 4,
    seed: int = 0,
    loss: Loss = class_loss,
) -> PointMeasures:
    """Gradients, curvature and features of a model on samples; its weights are not changed.

    `iterations` are steps of each power iteration, `jacobians` how many samples' feature Jacobians are looked at.

    >>> from kfl.models import mlp
    >>> x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    >>> found = measure_model(mlp(width=8), x, y, iterations=2)
    >>> found.body_smoothness > 0, round(found.loss, 1)
    (True, 2.3)
    """
    for name, number in (("iterations", iterations), ("jacobians", jacobians), ("samples", len(inputs))):
        if number < 1:
            raise ConfigError(name, number, "1 or more")
    body, head = parts(model)
    u = [weight for weight in body.parameters() if weight.requires_grad]
    v = [weight for weight in head.parameters() if weight.requires_grad]
    was_training = model.training
    model.eval()
    try:
        features = body(inputs)
        value = loss(head(features), labels)
        gradient = _gradient([value], [torch.ones_like(value)], [*u, *v], keep=True)
        slope_u, slope_v = gradient[: len(u)], gradient[len(u) :]
        draw = torch.Generator().manual_seed(torch_seed(seed, "power iteration"))
        chosen = torch.linspace(0, len(inputs) - 1, min(jacobians, len(inputs))).round().long().unique().tolist()
        return PointMeasures(
            body_smoothness=largest_stretch([(slope_u, u)], u, iterations, draw),
            head_smoothness=largest_stretch([(slope_v, v)], v, iterations, draw),
            cross_smoothness=largest_stretch([(slope_v, u), (slope_u, v)], v, iterations, draw),
            body_gradient=float(_norm(slope_u)),
            head_gradient=float(_norm(slope_v)),
            feature_gradient=max(jacobian_norm(body, u, inputs[i : i + 1], iterations, draw) for i in chosen),
            feature_norm=float(features.detach().flatten(1).norm(dim=1).max()),
            loss=float(value.detach()),
        )
    finally:
        model.train(was_training)


def hessian_product(
    slope: Sequence[Tensor], direction: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """(∂ slope/∂ weights)ᵀ direction, where `slope` is a gradient that autograd can follow.

    For the gradient in the same weights this is the Hessian times the direction.
    """
    return _gradient(slope, direction, weights)


def largest_stretch(
    blocks: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]],
    start: Sequence[Tensor],
    steps: int,
    draw: torch.Generator,
) -> float:
    """Spectral norm of a block of the Hessian by power iteration: the largest ‖Hw‖ met for a unit w.

    A block is a gradient and the weights it is derived in. One symmetric block is applied again and again, for its
    largest |eigenvalue|; a cross block and its transpose take turns, for their largest singular value. `start` has the
    shapes of the first direction.
    """
    direction, found = _random_unit(start, draw), 0.0
    for _ in range(steps):
        for slope, weights in blocks:
            product = hessian_product(slope, direction, weights)
            size = float(_norm(product))
            found = max(found, size)
            if size == 0:
                return found
            direction = tuple(part / size for part in product)
    return found


def jacobian_norm(body: nn.Module, u: Sequence[Tensor], sample: Tensor, steps: int, draw: torch.Generator) -> float:
    """Spectral norm of ∂h(x)/∂u at one sample. J v is the derivative in w of Jᵀw, which is linear in w."""
    feature = body(sample).flatten()
    dual = torch.zeros_like(feature, requires_grad=True)
    pulled = _gradient([feature], [dual], u, keep=True)
    (direction,) = _random_unit([feature], draw)
    found = 0.0
    for _ in range(steps):
        back = _gradient([feature], [direction], u)
        size = float(_norm(back))
        found = max(found, size)
        if size == 0:
            break
        (forth,) = _gradient(pulled, [part / size for part in back], [dual])
        reach = float(forth.norm())
        found = max(found, reach)
        if reach == 0:
            break
        direction = forth / reach
    return found


def _gradient(
    outputs: Sequence[Tensor], directions: Sequence[Tensor], weights: Sequence[Tensor], *, keep: bool = False
) -> tuple[Tensor, ...]:
    """Σ directions · ∂outputs/∂weights; zero where nothing depends on a weight. `keep` lets autograd go on from it."""
    pairs = [(o, d) for o, d in zip(outputs, directions, strict=True) if o.requires_grad]
    if not pairs or not weights:
        return tuple(torch.zeros_like(weight) for weight in weights)
    return torch.autograd.grad(
        [o for o, _ in pairs],
        list(weights),
        [d for _, d in pairs],
        retain_graph=True,
        create_graph=keep,
        materialize_grads=True,
    )


def _norm(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.detach().double().square().sum() for part in vectors] or [torch.zeros(())]).sum().sqrt()


def _random_unit(like: Sequence[Tensor], draw: torch.Generator) -> tuple[Tensor, ...]:
    drawn = [torch.randn(part.shape, generator=draw).to(part) for part in like]
    size = _norm(drawn)
    return tuple(part / size.to(part) for part in drawn)
