"""Equation (5) against all samples at once, and what a finished run says of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import kfl
from kfl.models import SplitModel
from reproduction.theory.knowledge_gap import knowledge_gap
from reproduction.theory.run_bound import bound_of_run


def linear_model(draw, inputs=5, features=3, classes=2):
    """h = Ux and outputs Vh, without bias."""
    model = SplitModel(nn.Linear(inputs, features, bias=False), nn.Linear(features, classes, bias=False))
    for weight in model.parameters():
        weight.data = torch.from_numpy(draw.normal(size=tuple(weight.shape))).float()
    return model


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
