"""The gradient of every objective, against finite differences in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kfl.engine import (
    Distillation,
    FeatureTargets,
    LabelDistillation,
    Matryoshka,
    Mixture,
    Objective,
    Proximal,
    Sgd,
    Supervised,
)
from kfl.engine.objectives import MIXING, PERSONAL

CLASSES, FEATURES, INPUTS, SAMPLES = 3, 4, 5, 7


def forward(state, inputs):
    """A smooth model, so that finite differences have no kink to fall over."""
    feature = torch.tanh(inputs @ state["body.weight"].T)
    return feature, feature @ state["head.weight"].T


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def model(prefix=""):
    return {prefix + "body.weight": draw(FEATURES, INPUTS), prefix + "head.weight": draw(CLASSES, FEATURES)}


INPUT, LABELS = draw(SAMPLES, INPUTS), torch.arange(SAMPLES) % CLASSES
PULL = FeatureTargets(0.7, draw(CLASSES, FEATURES), torch.tensor([True, False, True]))
EACH = FeatureTargets(0.7, draw(2, CLASSES, FEATURES), torch.tensor([[True] * 3, [False, True, True]]))
NAMES = tuple(model())
NUMBERS = sum(value.numel() for value in model().values())
CASES = {
    "proximal": (Proximal(0.7, NAMES, draw(NUMBERS)), LABELS),
    "own slope": (Proximal(0.7, NAMES, draw(NUMBERS), draw(2, NUMBERS)).for_device(1), LABELS),
    "supervised": (Supervised(), LABELS),
    "pull": (Supervised(PULL), LABELS),
    "own pull": (Supervised(EACH).for_device(1), LABELS),
    "distillation": (Distillation(2.5), draw(SAMPLES, CLASSES)),
    "label distillation": (LabelDistillation(0.7, draw(CLASSES, CLASSES), PULL.known), LABELS),
}


def gradients(loss, state):
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    found = torch.autograd.grad(loss(leaves), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def differences(loss, state, step=1e-6):
    """Central differences, number by number."""
    result = {}
    for name, value in state.items():
        slope = torch.zeros_like(value)
        for place in range(value.numel()):
            sides = []
            for sign in (1, -1):
                moved = {n: v.clone() for n, v in state.items()}
                moved[name].view(-1)[place] += sign * step
                sides.append(float(loss({n: v.requires_grad_() for n, v in moved.items()}).detach()))
            slope.view(-1)[place] = (sides[0] - sides[1]) / (2 * step)
        result[name] = slope
    return result


@pytest.mark.parametrize("name", CASES)
def test_gradient(name):
    objective, targets = CASES[name]

    def loss(state):
        return objective.loss(forward, state, INPUT, targets)

    exact, numeric = gradients(loss, model()), differences(loss, model())
    for key in exact:
        torch.testing.assert_close(exact[key], numeric[key], rtol=1e-6, atol=1e-8)


def test_gradients_of_the_mixture():
    """For w the slope of F(w) alone (the mixture's w is held), for v and α the slope of F(α v + (1 − α) w)."""
    shared = {name: value + 0.3 for name, value in model().items()}
    state = {**shared, **model(PERSONAL), MIXING: torch.tensor(0.3, dtype=torch.float64)}
    exact = gradients(lambda s: Mixture(0.1).loss(forward, s, INPUT, LABELS), state)

    def of_shared(s):
        return functional.cross_entropy(forward(s, INPUT)[1], LABELS)

    def of_mixture(s):
        a = s[MIXING]
        return of_shared({name: a * s[PERSONAL + name] + (1 - a) * state[name] for name in shared})

    expected = {
        **differences(of_shared, shared),
        **differences(of_mixture, {n: state[n] for n in state if n not in shared}),
    }
    assert exact.keys() == expected.keys()
    for name in exact:
        torch.testing.assert_close(exact[name], expected[name], rtol=1e-6, atol=1e-8)


def test_gradients_of_two_nested_heads():
    """The small head sees the first two of four numbers; with weights a sample counts as often as they say."""
    state = {**model(), "head.small.weight": draw(CLASSES, 2), "head.small.bias": draw(CLASSES)}
    objective = Matryoshka(0.6)

    def loss(s):
        return objective.loss(forward, s, INPUT, LABELS)

    def by_hand(s):
        feature, logits = forward(s, INPUT)
        small = feature[:, :2] @ s["head.small.weight"].T + s["head.small.bias"]
        return functional.cross_entropy(logits, LABELS) + 0.6 * functional.cross_entropy(small, LABELS)

    exact, expected = gradients(loss, state), differences(by_hand, state)
    for name in state:
        torch.testing.assert_close(exact[name], expected[name], rtol=1e-6, atol=1e-8)
    weights = torch.tensor([2.0, 1, 1, 0, 0, 0, 0], dtype=torch.float64) / 4
    some = [0, 0, 1, 2]
    torch.testing.assert_close(
        objective.loss(forward, state, INPUT, LABELS, weights),
        objective.loss(forward, state, INPUT[some], LABELS[some]),
    )


def test_no_objective_is_left_out():
    public = {kind for kind in Objective.__subclasses__() if kind.__module__ == Objective.__module__}
    assert public == {Supervised, Distillation, LabelDistillation, Mixture, Matryoshka, Proximal}


def test_rates_and_projection_of_the_mixture():
    objective, sgd = Mixture(0.7), Sgd(5, body_rate=0.1, head_rate=0.2, momentum=0.9)
    names = {
        MIXING: 0.7,
        "body.weight": 0.1,
        "head.weight": 0.2,
        PERSONAL + "body.weight": 0.1,
        PERSONAL + "head.x": 0.2,
    }
    assert {name: objective.rate(name, sgd) for name in names} == names
    assert [float(objective.project(MIXING, torch.tensor(x))) for x in (-0.1, 0.4, 1.2)] == pytest.approx([0, 0.4, 1])
    assert float(objective.project("body.weight", torch.tensor(1.2))) == pytest.approx(1.2)


def test_distillation_vanishes_at_the_goal_and_only_there():
    state = model()
    said = forward(state, INPUT)[1]
    goal = Distillation(2.0)
    assert float(goal.loss(forward, state, INPUT, said + 5.0)) == pytest.approx(0, abs=1e-12)  # a shift says nothing
    assert float(goal.loss(forward, state, INPUT, said.flip(1))) > 0.01


@pytest.mark.parametrize("temperature", [1.0, 4.0, 50.0])
def test_temperature_keeps_the_size_of_the_gradient(temperature):
    """Without the factor T² it would shrink by 2,500 at T = 50."""
    wanted = draw(SAMPLES, CLASSES)
    reference = gradients(lambda s: Distillation(1.0).loss(forward, s, INPUT, wanted), model())
    found = gradients(lambda s: Distillation(temperature).loss(forward, s, INPUT, wanted), model())
    for name in found:
        assert 0.3 < float(found[name].norm() / reference[name].norm()) < 3
