"""Dropout by name, and BatchNorm over the samples that count."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap
from torch.nn import functional

from kfl.engine.layers import Layers, draws, step_seed, uniform
from kfl.models import SplitModel


def test_draws_are_uniform_and_independent():
    seeds = [step_seed(2**62 + 1, step) for step in range(3)] + [torch.tensor(5), torch.tensor(5 + 2**33)]
    found = torch.stack([uniform(seed, call, (100, 1000)).flatten() for seed in seeds for call in (1, 2)])
    assert bool((found >= 0).all() and (found < 1).all())
    # Standard errors over 1e5 draws: 0.0009 of a mean, 0.0032 of a correlation.
    assert float((found.mean(1) - 0.5).abs().max()) < 0.005
    assert float((found.std(1) - 12**-0.5).abs().max()) < 0.005
    assert float((torch.corrcoef(found) - torch.eye(len(found))).abs().max()) < 0.02
    neighbours = torch.corrcoef(torch.stack([found[0][:-1], found[0][1:]]))[0, 1]
    assert abs(float(neighbours)) < 0.02
    buckets = torch.histc(found[1], 100, 0, 1)
    assert float(((buckets - 1000) ** 2 / 1000).sum()) < 160  # χ² with 99 degrees of freedom: 1 in 10⁴


@settings(max_examples=30)
@given(seed=st.integers(0, 2**63 - 1), p=st.floats(0.05, 0.9))
def test_a_row_of_a_stack_draws_what_it_would_alone(seed, p):
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)) + 3
    seeds = torch.stack([step_seed(seed, number) for number in range(3)])

    def both(one, own):
        with Layers(seed=own):
            return functional.dropout(one, p) + functional.dropout1d(one, p)

    together = vmap(both)(x, seeds)
    assert torch.equal(together, torch.stack([both(one, own) for one, own in zip(x, seeds, strict=True)]))


def test_dropout_keeps_the_mean_and_leaves_evaluation_alone():
    x = torch.ones(20_000)
    with Layers(seed=torch.tensor(1)):
        kept = functional.dropout(x, 0.3)
        assert torch.equal(functional.dropout(x, 0.3, training=False), x)
        assert float(functional.dropout(x, 1.0).abs().sum()) == 0
        channels = functional.dropout2d(torch.ones(50, 8, 4, 4), 0.5)
    assert abs(float((kept == 0).float().mean()) - 0.3) < 0.02 and abs(float(kept.mean()) - 1) < 0.03
    whole = channels.flatten(2)
    assert torch.equal(whole.amin(2), whole.amax(2)) and 0.3 < float((whole[..., 0] == 0).float().mean()) < 0.7


@settings(max_examples=20)
@given(real=st.integers(2, 6), extra=st.integers(0, 4))
def test_batch_norm_sees_the_samples_that_weigh_something(real, extra):
    draw = torch.Generator().manual_seed(real)
    x = torch.randn(real + extra, 3, 5, generator=draw, dtype=torch.float64)
    weights = torch.cat([torch.full((real,), 1 / real), torch.zeros(extra)]).double()
    alone, together = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    wanted = alone(x[:real])
    with Layers(weights=weights):
        found = together(x)
    torch.testing.assert_close(found[:real], wanted)
    torch.testing.assert_close(dict(together.named_buffers()), dict(alone.named_buffers()))


@settings(max_examples=10)
@given(extra=st.integers(0, 4))
def test_a_sample_alone_is_normalised_by_the_running_statistics(extra):
    norm = nn.BatchNorm1d(3).double()
    norm(torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 + 1)
    before = {name: value.clone() for name, value in norm.named_buffers()}
    x = torch.randn(1 + extra, 3, dtype=torch.float64)
    wanted = norm.eval()(x[:1])
    weights = torch.tensor([1.0] + [0.0] * extra).double() if extra else None
    with Layers(weights=weights):
        found = norm.train()(x)
    torch.testing.assert_close(found[:1], wanted)
    assert torch.equal(norm.running_mean, before["running_mean"])
    assert torch.equal(norm.running_var, before["running_var"])
    with Layers():
        flat = nn.BatchNorm1d(3, track_running_stats=False)(torch.randn(1, 3))
    assert torch.equal(flat, torch.zeros(1, 3)), "without running statistics the value is its own mean"


def test_whether_a_module_draws():
    x = torch.zeros(2, 3)
    quiet = SplitModel(nn.BatchNorm1d(3), nn.Linear(3, 2))
    before = {name: value.clone() for name, value in quiet.state_dict().items()}
    assert not draws(quiet, x)
    assert all(torch.equal(value, before[name]) for name, value in quiet.state_dict().items())
    assert draws(SplitModel(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)), nn.Linear(3, 2)), x)
    assert not draws(SplitModel(nn.Linear(4, 3), nn.Linear(3, 2)), x), "a module that fails says so when it trains"
