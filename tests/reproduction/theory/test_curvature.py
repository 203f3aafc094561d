"""Curvature, gradients and features against models whose Hessian is known, and against finite differences."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from kfl.core.errors import ConfigError
from kfl.models import SplitModel
from reproduction.theory.curvature import hessian_product, measure_model


@pytest.fixture(autouse=True)
def _one_seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        yield


def squared(outputs, targets):
    return 0.5 * (outputs - targets).square().sum(1).mean()


def linear_model():
    """Two linear layers without bias: h = Ux, output = Vh."""
    return SplitModel(nn.Linear(5, 3, bias=False), nn.Linear(3, 2, bias=False)).double()


def smooth_model():
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), nn.Tanh())
    return SplitModel(body, nn.Linear(3, 3)).double()


def full_hessian(model, x, y, loss):
    """∂²F/∂w² with one backward pass per weight."""
    weights = list(model.parameters())
    slope = torch.autograd.grad(loss(model(x), y), weights, create_graph=True)
    rows = [torch.autograd.grad(s, weights, retain_graph=True) for part in slope for s in part.flatten()]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).detach().numpy()


def test_two_linear_layers_with_a_squared_loss():
    """F = ½ mean ‖V U x − y‖². With S = mean xxᵀ: ∂²F/∂v² = I ⊗ U S Uᵀ, ∂²F/∂u² = VᵀV ⊗ S, ∂h/∂u = I ⊗ xᵀ."""
    model, x, y = linear_model(), torch.randn(12, 5).double(), torch.randn(12, 2).double()
    found = measure_model(model, x, y, iterations=150, jacobians=12, loss=squared)
    u, v = model.body.weight.detach().numpy(), model.head.weight.detach().numpy()
    second = (x.T @ x / 12).numpy()
    assert found.head_smoothness == pytest.approx(np.linalg.norm(u @ second @ u.T, 2), rel=1e-6)
    assert found.body_smoothness == pytest.approx(np.linalg.norm(v.T @ v, 2) * np.linalg.norm(second, 2), rel=1e-6)
    assert found.feature_gradient == pytest.approx(x.norm(dim=1).max().item(), rel=1e-9)
    assert found.feature_norm == pytest.approx((x @ model.body.weight.T).norm(dim=1).max().item())
    error = ((x @ model.body.weight.T) @ model.head.weight.T - y).detach().numpy()
    assert found.loss == pytest.approx(0.5 * (error**2).sum(1).mean())
    slope_v = error.T @ (x.numpy() @ u.T) / 12
    slope_u = v.T @ error.T @ x.numpy() / 12
    assert found.head_gradient == pytest.approx(np.linalg.norm(slope_v))
    assert found.body_gradient == pytest.approx(np.linalg.norm(slope_u))


def test_blocks_of_a_network_against_its_whole_hessian():
    model, x, y = smooth_model(), torch.randn(30, 4).double(), torch.arange(30) % 3
    hessian = full_hessian(model, x, y, functional.cross_entropy)
    assert hessian == pytest.approx(hessian.T)
    size = sum(weight.numel() for weight in model.body.parameters())
    found = measure_model(model, x, y, iterations=300)
    assert found.body_smoothness == pytest.approx(np.linalg.norm(hessian[:size, :size], 2), rel=1e-4)
    assert found.head_smoothness == pytest.approx(np.linalg.norm(hessian[size:, size:], 2), rel=1e-4)
    assert found.cross_smoothness == pytest.approx(np.linalg.norm(hessian[:size, size:], 2), rel=1e-4)


def test_jacobian_of_features_against_the_whole_jacobian():
    model, x = smooth_model(), torch.randn(6, 4).double()
    found = measure_model(model, x, torch.arange(6) % 3, iterations=300, jacobians=6)
    weights, largest = list(model.body.parameters()), 0.0
    for sample in x:
        rows = [torch.autograd.grad(h, weights, retain_graph=True) for h in model.body(sample[None])[0]]
        jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
        largest = max(largest, torch.linalg.matrix_norm(jacobian, 2).item())
    assert found.feature_gradient == pytest.approx(largest, rel=1e-6)


def test_hessian_products_against_finite_differences():
    model, x, y = smooth_model(), torch.randn(30, 4).double(), torch.arange(30) % 3

    def slope(shifted):
        weights = list(shifted.parameters())
        return torch.autograd.grad(functional.cross_entropy(shifted(x), y), weights, create_graph=True)

    direction = [torch.randn_like(weight) for weight in model.parameters()]
    product = hessian_product(slope(model), direction, list(model.parameters()))
    step, sides = 1e-5, []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for weight, part in zip(moved.parameters(), direction, strict=True):
                weight.add_(sign * step * part)
        sides.append(slope(moved))
    for exact, plus, minus in zip(product, *sides, strict=True):
        assert torch.allclose(exact, (plus - minus) / (2 * step), atol=1e-8)


def test_few_iterations_stay_below_the_true_norm_and_more_come_nearer():
    model, x, y = smooth_model(), torch.randn(30, 4).double(), torch.arange(30) % 3
    found = [measure_model(model, x, y, iterations=n) for n in (1, 3, 10, 200)]
    for name in ("body_smoothness", "head_smoothness", "cross_smoothness", "feature_gradient"):
        values = [getattr(one, name) for one in found]
        assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(values)), name


def test_the_model_is_left_as_it_was_and_a_body_without_weights_counts_as_flat():
    model = SplitModel(nn.Flatten(), nn.Linear(4, 3)).double().train()
    before = copy.deepcopy(model.state_dict())
    found = measure_model(model, torch.randn(8, 4).double(), torch.arange(8) % 3)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert (found.body_smoothness, found.cross_smoothness, found.body_gradient, found.feature_gradient) == (0, 0, 0, 0)
    assert found.head_smoothness > 0


def test_a_number_below_one_is_refused():
    with pytest.raises(ConfigError, match="iterations is 0"):
        measure_model(smooth_model(), torch.randn(2, 4).double(), torch.zeros(2, dtype=torch.long), iterations=0)
