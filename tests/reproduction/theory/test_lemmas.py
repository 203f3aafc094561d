"""Lemmas 1 and 2 against the same round written out in NumPy, and equation (5) against all samples at once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import kfl
from kfl.models import SplitModel
from reproduction.theory import Constants, bound_of_run, knowledge_gap, local_round

CONSTANTS = Constants(
    body_smoothness=4.0,
    head_smoothness=3.0,
    cross_sensitivity=0.7,
    body_gradient=1.5,
    head_gradient=2.5,
    feature_gradient=1.0,
    feature_norm=1.0,
    body_rate=0.02,
    head_rate=0.05,
    local_steps=4,
    knowledge_weight=0.3,
    initial_gap=1.0,
)


def squared(outputs, targets):
    return 0.5 * (outputs - torch.nn.functional.one_hot(targets, outputs.shape[1])).square().sum(1).mean()


def linear_model(draw, inputs=5, features=3, classes=2):
    """h = Ux and outputs Vh, without bias."""
    model = SplitModel(nn.Linear(inputs, features, bias=False), nn.Linear(features, classes, bias=False))
    for weight in model.parameters():
        weight.data = torch.from_numpy(draw.normal(size=tuple(weight.shape))).float()
    return model


@pytest.mark.parametrize("known", [None, [True, True], [True, False]])
def test_both_right_sides_are_the_printed_ones(known):
    draw, c, tau = np.random.default_rng(0), CONSTANTS, CONSTANTS.local_steps
    model = linear_model(draw)
    x, y = draw.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 2
    omega = draw.normal(size=(2, 3))
    knowledge = None if known is None else (torch.from_numpy(omega), torch.tensor(known))
    found = local_round(7, model, torch.from_numpy(x), torch.from_numpy(y), c, knowledge, squared)

    u, v = (part.weight.detach().numpy().astype(float) for part in (model.body, model.head))
    wanted, told = np.eye(2)[y], np.zeros(12) if known is None else np.array(known)[y].astype(float)

    def loss(u, v):
        return 0.5 * np.square(x @ u.T @ v.T - wanted).sum(1).mean()

    def slopes(u, v):
        error = x @ u.T @ v.T - wanted
        away = (x @ u.T - omega[y]) * told[:, None]
        return v.T @ error.T @ x / 12, error.T @ (x @ u.T) / 12, away.T @ x / 12

    (first_u, first_v, _), start, squares = slopes(u, v), (u, v), []
    for _ in range(tau):
        slope_u, slope_v, away = slopes(u, v)
        squares.append(np.sum(away**2))
        u, v = u - c.body_rate * (slope_u + c.knowledge_weight * away), v - c.head_rate * slope_v
    assert found.device == 7
    assert found.change == pytest.approx(loss(u, v) - loss(*start))
    moved_u, moved_v = u - start[0], v - start[1]
    one = np.sum(first_u * moved_u) + (1 + 0.7) / 2 * 4.0 * np.sum(moved_u**2)
    one += np.sum(first_v * moved_v) + (1 + 0.7) / 2 * 3.0 * np.sum(moved_v**2)
    assert found.lemma1 == pytest.approx(one)
    two = (2 * 1.7 * 4.0 * 0.02**2 * 16 - 0.5 * 0.02 * 4) * np.sum(first_u**2)
    two += (1.7 * 3.0 * 0.05**2 * 16 - 0.5 * 0.05 * 4) * np.sum(first_v**2)
    two += 1.25 * 0.02 * 0.3**2 * sum(squares)
    two += 2 * 0.02**2 * 0.3**2 * (3 * 0.02 * 16.0 + 2 * 0.05 * 0.49 * 12.0) * (np.array([4, 3, 2, 1]) @ squares)
    assert found.lemma2 == pytest.approx(two + c.drift)
    assert [weight.requires_grad for weight in model.parameters()] == [True, True]
    assert np.array_equal(model.body.weight.detach().numpy().astype(float), start[0]), "the model stays as it was"


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_with_true_constants_they_hold(seed, tau):
    """A quadratic loss of the body alone has the curvature ‖S‖ everywhere, and its gradients only shrink."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(15, 4)).astype(np.float32), np.arange(15) % 3
    model = SplitModel(nn.Linear(4, 3, bias=False), nn.Identity())
    error = x @ model.body.weight.detach().numpy().T - np.eye(3)[y]
    curvature, slope = np.linalg.norm(x.T @ x / 15, 2), np.linalg.norm(error.T @ x / 15)
    quadratic = replace(
        CONSTANTS,
        body_smoothness=float(curvature),
        head_smoothness=0.0,
        cross_sensitivity=0.0,
        body_gradient=float(slope),
        local_steps=tau,
        knowledge_weight=0.0,
    ).at_largest_rates()
    found = local_round(0, model, torch.from_numpy(x), torch.from_numpy(y), quadratic, None, squared)
    assert found.change < 0 and found.holds == (True, True)
    too_small = replace(quadratic, body_smoothness=float(curvature) / 50)
    assert not local_round(0, model, torch.from_numpy(x), torch.from_numpy(y), too_small, None, squared).holds[0]


def test_equation_5_is_the_mean_over_all_samples():
    draw = np.random.default_rng(1)
    models = [linear_model(draw, classes=4) for _ in range(3)]
    data = [(draw.normal(size=(n, 5)).astype(np.float32), draw.integers(0, 3, n)) for n in (4, 9, 6)]
    given_, known = draw.normal(size=(4, 3)), np.array([True, True, False, True])
    told = [(m, torch.from_numpy(x), torch.from_numpy(y)) for m, (x, y) in zip(models, data, strict=True)]
    found = knowledge_gap(told, given_, known, np.array([True, False, True]))
    h = np.concatenate([x @ m.body.weight.detach().numpy().T for m, (x, _) in zip(models, data, strict=True)])
    labels, who = np.concatenate([y for _, y in data]), np.repeat([0, 1, 2], [4, 9, 6])
    assert found.classes.tolist() == [0, 1], "class 2 is unknown to the server, and no device holds class 3"
    for position, c in enumerate((0, 1)):
        mine = labels == c
        assert found.distance[position] == pytest.approx(np.linalg.norm(h[mine].mean(0) - given_[c]), rel=1e-5)
        missing = np.mean(who[mine] == 1)
        assert found.allowed[position] == pytest.approx(2 * np.linalg.norm(h, axis=1).max() * missing, rel=1e-5)
    assert knowledge_gap(told, given_, np.zeros(4, bool), np.ones(3, bool)) is None


def test_where_everybody_reports_the_server_holds_equation_5(tmp_path):
    experiment = kfl.Experiment(devices=10, rounds=2, widths=(8,), scheduler=kfl.scheduling.SCHEDULERS["all"]())
    kfl.run(experiment, tmp_path / "all")
    found = bound_of_run(tmp_path / "all", devices=1, iterations=1).knowledge
    assert found.allowed == pytest.approx(0) and found.distance == pytest.approx(0, abs=1e-4) and found.holds
    kfl.run(replace(experiment, scheduler=kfl.Uniform(2), rounds=6), tmp_path / "few")
    found = bound_of_run(tmp_path / "few", devices=1, iterations=1).knowledge
    assert found.distance.max() > 0.01 and found.holds


def test_knowledge_that_is_not_the_plain_mean_is_left_out(tmp_path):
    experiment = kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Kfl(bits_per_value=8))
    kfl.run(experiment, tmp_path / "run")
    found = bound_of_run(tmp_path / "run", devices=1, iterations=1)
    assert found.knowledge is None and any("Equation (5) is left out" in note for note in found.notes)
