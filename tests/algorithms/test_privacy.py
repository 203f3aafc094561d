"""Noise on knowledge: how far one sample can move it, how large the noise is, and what that guarantees."""

from __future__ import annotations

import builtins
import math
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from kfl.algorithms import FedAvg, Kfl, Local, SharedStem, privacy_cost
from kfl.algorithms.privacy import add_noise
from kfl.core.errors import ConfigError, MissingExtraError
from kfl.engine import RoundKey
from tests.reference.plain_engine import class_means

COUNTS = [0, 3, 7, 0]


def private(z=1.0, **options):
    return Kfl(clip_norm=1.5, noise_multiplier=z, **options)


def analytic_epsilon(z: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8: δ(ε) = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz), solved for ε."""

    def gap(epsilon):
        first = norm.cdf(1 / (2 * z) - epsilon * z)
        return first - math.exp(epsilon + norm.logcdf(-1 / (2 * z) - epsilon * z)) - delta

    return float(brentq(gap, 0, 200, xtol=1e-12))


@pytest.mark.parametrize("rounds", [1, 20, 200])
@pytest.mark.parametrize("z", [2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_epsilon_is_the_analytic_one_and_accountants_agree(rounds, z, delta):
    epsilon = privacy_cost(private(z), rounds, COUNTS, delta).epsilon
    assert epsilon == pytest.approx(analytic_epsilon(z / math.sqrt(rounds), delta), rel=1e-6)
    # Rényi: ε ≤ min over α of T α/(2z²) + ln(1/δ)/(α − 1); looser, never below.
    orders = np.arange(1.01, 300, 0.01)
    renyi = np.min(rounds * orders / (2 * z**2) + math.log(1 / delta) / (orders - 1))
    assert epsilon <= renyi <= 2 * epsilon + 0.5
    composed = dp_accounting.rdp.RdpAccountant()
    composed.compose(dp_accounting.GaussianDpEvent(z), rounds)
    assert epsilon <= composed.get_epsilon(delta) * (1 + 1e-6)


def test_composition_by_privacy_loss_distributions():
    """An accountant that knows nothing of √T arrives at the same ε."""
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(5.0), 30)
    assert privacy_cost(private(5.0), 30, COUNTS).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@settings(max_examples=30)
@given(st.floats(0.5, 20), st.integers(1, 300), st.floats(1e-8, 0.1))
def test_more_rounds_less_noise_or_smaller_delta_cost_more(z, rounds, delta):
    here = privacy_cost(private(z), rounds, COUNTS, delta)
    assert privacy_cost(private(z), rounds + 1, COUNTS, delta).epsilon >= here.epsilon
    assert privacy_cost(private(1.1 * z), rounds, COUNTS, delta).epsilon <= here.epsilon
    assert privacy_cost(private(z), rounds, COUNTS, delta / 2).epsilon >= here.epsilon
    assert here.epsilon_with_training >= here.epsilon


def features(draw, count, clip):
    """Clipped features, pushed to the surface of the ball, where the worst cases are."""
    x = draw.normal(size=(count, 5))
    return clip * x / np.linalg.norm(x, axis=1, keepdims=True)


def release(x, y, classes=4):
    """Sums and counts per class: what the noise is added to."""
    sums = np.stack([x[y == c].sum(0) for c in range(classes)])
    return sums, np.bincount(y, minlength=classes)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.1, 10), st.booleans())
def test_one_sample_moves_the_release_by_at_most_the_sensitivity(seed, clip, labels):
    """In units of the noise (2 S z for sums, 2 z for counts) with z = 1, any replacement is at most 1."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 4, size=12)
    x = features(draw, 12, clip)
    other_x, other_y = x.copy(), y.copy()
    other_x[0] = -x[0] if seed % 2 else features(draw, 1, clip)[0]
    if labels:
        other_y[0] = draw.integers(0, 4)
    (sums, counts), (other_sums, other_counts) = release(x, y), release(other_x, other_y)
    moved = ((sums - other_sums) ** 2).sum() / (2 * clip) ** 2
    if labels:
        moved += ((counts - other_counts) ** 2).sum() / 2**2
    assert math.sqrt(moved) <= 1 + 1e-9
    if not labels:
        size = counts[y[0]]
        change = np.linalg.norm(sums[y[0]] - other_sums[y[0]]) / size
        assert change <= 2 * clip / size + 1e-9
        if seed % 2:
            assert change == pytest.approx(2 * clip / size)  # the bound is reached


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans())
def test_a_body_that_changes_in_any_way_stays_within_the_unconditional_bound(seed, labels):
    """ε with training inverts to noise over sensitivity; every feature is replaced by its opposite."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 4, size=12)
    x, other_y = features(draw, 12, 1.5), y.copy()
    if labels:
        other_y[0] = draw.integers(0, 4)
    (sums, counts), (other_sums, other_counts) = release(x, y), release(-x, other_y)
    moved = ((sums - other_sums) ** 2).sum() / 3.0**2
    if labels:
        moved += ((counts - other_counts) ** 2).sum() / 2**2
    z = 40.0
    algorithm = private(z, noise_counts=labels)
    needed = analytic_epsilon(z / max(math.sqrt(moved), 1e-3), 1e-5)
    assert privacy_cost(algorithm, 1, counts.tolist()).epsilon_with_training >= needed * (1 - 1e-6)


@pytest.mark.parametrize("noise_counts", [False, True])
def test_noise_has_the_stated_size(noise_counts):
    """Standard deviation 2 S z on sums, so 2 S z / D on means; 20,000 draws are within 3 %."""
    clip, z, repeats = 1.5, 0.4, 4_000
    means, counts = torch.zeros(4, 5), torch.tensor([0, 30, 70, 0])
    draw = torch.Generator().manual_seed(2)
    sums, weights = [], []
    for _ in range(repeats):
        noisy, weight = add_noise(means, counts, clip, z, draw, noise_counts=noise_counts)
        sums.append(noisy[1:3].double() * weight[1:3, None])
        weights.append(weight.double())
    spread = torch.stack(sums).std((0, 2))
    torch.testing.assert_close(spread, torch.full((2,), 2 * clip * z, dtype=torch.float64), rtol=0.03, atol=0)
    found = torch.stack(weights)
    if noise_counts:
        torch.testing.assert_close(
            found[:, 1:3].std(0), torch.full((2,), 2 * z, dtype=torch.float64), rtol=0.05, atol=0
        )
        assert 0 < (found[:, [0, 3]] > 0).float().mean() < 0.5  # absent classes show up now and then
    else:
        assert torch.equal(found[0], counts.double())


def test_without_noise_what_leaves_is_what_was_there():
    """A count of 1 is reported, one below is not; a class that is not reported has mean 0, whatever was in its row."""
    means = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    draw = torch.Generator().manual_seed(0)
    for counts, noise_counts in ((torch.tensor([0, 1, 2, 30]), True), (torch.tensor([0, 1, 2, 30]), False)):
        found, weights = add_noise(means, counts, 1.0, 0.0, draw, noise_counts=noise_counts)
        assert found.tolist() == [[0.0, 0.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]] and found.dtype == means.dtype
        assert weights.tolist() == [0, 1, 2, 30]
        assert weights.dtype == (torch.float64 if noise_counts else torch.int64)
    below = torch.tensor([0.0, 1.0, 0.75, 30.0], dtype=torch.float64)
    found, weights = add_noise(means, below, 1.0, 0.0, draw, noise_counts=True)
    assert weights.tolist() == [0.0, 1.0, 0.0, 30.0] and found[2].tolist() == [0.0, 0.0]


def test_noise_is_on_the_sums_and_is_drawn_in_float64():
    """One draw of all sums, then one of the counts, from the device's own generator."""
    means, counts, clip, z = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([4, 20]), 1.5, 0.2
    draw = torch.Generator().manual_seed(5)
    of_sums = torch.randn(2, 2, generator=draw, dtype=torch.float64)
    of_counts = torch.randn(2, generator=draw, dtype=torch.float64)
    sums = counts[:, None] * means + 2 * clip * z * of_sums
    found, weights = add_noise(means, counts, clip, z, torch.Generator().manual_seed(5), noise_counts=False)
    assert weights is counts
    torch.testing.assert_close(found, (sums / counts[:, None]).float())
    found, weights = add_noise(means, counts, clip, z, torch.Generator().manual_seed(5), noise_counts=True)
    assert torch.equal(weights, counts + 2 * z * of_counts)
    torch.testing.assert_close(found, (sums / weights[:, None]).float())


def test_class_means_clip_each_sample(toy):
    device, state = 0, toy.engine.initial(0, toy.seed)
    x, y = toy.train(device)
    module = toy.models.builders[0]()
    module.load_state_dict(state)
    with torch.no_grad():
        feature = module.body(x)
        limit = float(feature.norm(dim=1).median())
        clipped = torch.stack([h * min(1.0, limit / float(h.norm())) for h in feature])
    means, counts = class_means(toy.engine, [device], [state], clip_norm=limit)
    for c in y.unique().tolist():
        torch.testing.assert_close(means[0, c], clipped[y == c].mean(0), rtol=1e-5, atol=1e-6)
    plain = class_means(toy.engine, [device], [state])[0]
    assert not torch.allclose(means, plain)
    torch.testing.assert_close(class_means(toy.engine, [device], [state], clip_norm=1e9)[0], plain)
    assert counts[0].tolist() == torch.bincount(y, minlength=4).tolist()


def test_a_feature_of_norm_zero_survives_clipping(toy):
    state = {name: torch.zeros_like(value) for name, value in toy.engine.initial(0, 0).items()}
    means, _ = class_means(toy.engine, [0], [state], clip_norm=1.0)
    assert bool((means == 0).all())


def test_kfl_uploads_noisy_means_by_name_and_the_models_stay_exact(toy, play):
    """Noise is on what leaves the device, not on its own training."""
    cohorts = [[0, 1, 2]]
    quiet, noisy, again = (play(a, toy, cohorts) for a in (Kfl(clip_norm=1.5), private(), private()))
    for k in (0, 1, 2):
        assert torch.equal(quiet.devices[k]["body.0.weight"], noisy.devices[k]["body.0.weight"])
        means = [run.uploads[0][k].arrays["means"] for run in (quiet, noisy, again)]
        held = quiet.uploads[0][k].arrays["counts"] > 0
        assert not torch.equal(means[0][held], means[1][held])
        assert torch.equal(means[1], means[2])
        assert bool((means[1][~held] == 0).all())
    noise = [noisy.uploads[0][k].arrays["means"] - quiet.uploads[0][k].arrays["means"] for k in (0, 1)]
    assert not torch.allclose(noise[0][1] * 7, noise[1][1] * 4)  # devices do not share their noise
    hidden = play(private(noise_counts=True, bits_per_value=8), toy, cohorts)
    assert all(not rejected for rejected in hidden.rejections)
    counts = hidden.uploads[0][0].arrays["counts"]
    assert not torch.equal(counts, counts.round())


def test_noisy_counts_are_charged(toy):
    profile = toy.engine.profile(0)
    server = private().server_init(toy.engine, toy.seed)
    some = [private(noise_counts=flag).costs([profile], server, real_work=False) for flag in (False, True)]
    (plain,), (counted,) = some
    assert counted.bits_up - plain.bits_up == 4 * 32
    assert counted.bits_down == plain.bits_down


def test_words_and_edges():
    cost = privacy_cost(private(4.0), 10, COUNTS)
    for word in (
        "10 uploads",
        "replacement of one sample",
        "counts per class are sent as they are",
        "no amplification",
    ):
        assert word in cost.sentence
    assert "vacuous" in privacy_cost(private(4.0), 10, [300, 300]).sentence
    hidden = privacy_cost(private(4.0, noise_counts=True), 10, COUNTS)
    assert "label included" in hidden.sentence and "as they are" not in hidden.sentence
    assert hidden.epsilon == cost.epsilon
    for algorithm in (Kfl(), Kfl(clip_norm=1.0), Local(), FedAvg()):
        nothing = privacy_cost(algorithm, 5, COUNTS)
        assert nothing.epsilon == math.inf and algorithm.name in nothing.sentence
    assert privacy_cost(Kfl(), 0, COUNTS).epsilon == 0
    with pytest.raises(ConfigError, match="delta"):
        privacy_cost(private(), 1, COUNTS, delta=0.0)
    with pytest.raises(ConfigError, match="rounds_taken"):
        privacy_cost(private(), -1, COUNTS)


@pytest.mark.parametrize(
    ("labels", "sensitivity"),
    [(False, math.sqrt(9 + 49)), (True, math.sqrt(0.25 + 3.5**2 + 7.5**2 + 0.25 + 0.5))],
)
def test_with_training_every_class_sum_may_move_across_its_ball(labels, sensitivity):
    """Classes of 0, 3, 7 and 0 samples: sums move by D in units of 2 S, and with labels by D + ½, two counts by ½."""
    z, rounds = 40.0, 9
    cost = privacy_cost(private(z, noise_counts=labels), rounds, COUNTS)
    assert cost.epsilon_with_training == pytest.approx(analytic_epsilon(z / 3 / sensitivity, 1e-5), rel=1e-6)
    assert cost.epsilon == pytest.approx(analytic_epsilon(z / 3, 1e-5), rel=1e-6)


def test_a_guarantee_above_100_is_called_vacuous():
    """One sample of one class: the sensitivity is 1, and both ε are the same."""

    def noise_for(epsilon):
        return float(brentq(lambda z: analytic_epsilon(z, 1e-5) - epsilon, 0.0625, 1.0))

    for epsilon, vacuous in ((95.0, False), (105.0, True), (190.0, True)):
        cost = privacy_cost(private(noise_for(epsilon)), 1, [1])
        assert cost.epsilon_with_training == pytest.approx(epsilon, rel=1e-4)
        assert ("vacuous" in cost.sentence) == vacuous


def test_noise_of_an_algorithm_of_ones_own_is_judged_without_noise_on_counts():
    @dataclass(frozen=True)
    class Noisy(Local):
        name: ClassVar[str] = "noisy"
        noise_multiplier: float = 40.0

    cost = privacy_cost(Noisy(), 1, COUNTS)
    assert cost == privacy_cost(private(40.0), 1, COUNTS)
    assert "counts per class are sent as they are" in cost.sentence


def test_the_promise_of_nothing_is_infinite_and_that_of_no_upload_is_0():
    nothing = privacy_cost(Kfl(), 3, COUNTS, delta=1e-6)
    assert (nothing.epsilon, nothing.epsilon_with_training, nothing.delta) == (math.inf, math.inf, 1e-6)
    for algorithm in (Kfl(), private(), SharedStem(clip_norm=1.0, noise_multiplier=1.0)):
        unused = privacy_cost(algorithm, 0, COUNTS)
        assert (unused.epsilon, unused.epsilon_with_training, unused.delta) == (0.0, 0.0, 1e-5)
        assert "uploaded nothing" in unused.sentence
    for delta in (0.0, 1.0, -0.1, 1.5, math.nan):
        with pytest.raises(ConfigError, match="delta"):
            privacy_cost(private(), 1, COUNTS, delta)
    assert privacy_cost(private(), 1, COUNTS, 0.999).epsilon == pytest.approx(0.0, abs=1e-9)


def test_combinations_that_protect_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"clip_norm is None, but must be set"):
        Kfl(noise_multiplier=1.0).validate()
    with pytest.raises(ConfigError, match="noise_counts"):
        Kfl(clip_norm=1.0, noise_counts=True).validate()
    with pytest.raises(ConfigError, match="clip_norm"):
        Kfl(clip_norm=0.0).validate()


def test_a_missing_library_names_its_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **options):
        if name == "dp_accounting":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"kfl\[privacy\]"):
        privacy_cost(private(), 1, COUNTS)


def test_round_keys_of_phases_differ():
    first, second = RoundKey(0, 3), RoundKey(0, 3, phase=1)
    assert first.torch_seed("batches", 2, 0) != second.torch_seed("batches", 2, 0)


def test_noise_on_a_whole_update_covers_the_training_too():
    """Clipped updates of whatever data lie in a ball of radius S, so 2 S z of noise is z times the sensitivity."""
    cost = privacy_cost(SharedStem(clip_norm=0.5, noise_multiplier=4.0), 16, COUNTS)
    assert cost.epsilon == cost.epsilon_with_training == pytest.approx(analytic_epsilon(4.0 / 4, 1e-5), rel=1e-6)
    assert "all its samples, the training included" in cost.sentence
    assert privacy_cost(SharedStem(), 16, COUNTS).epsilon == math.inf


def test_an_update_leaves_its_device_clipped_and_with_noise_of_the_right_size(mixed_toy):
    """At 32 bits per value what is sent is the clipped update plus noise; there is nothing left to feed back."""
    engine, seed = mixed_toy.engine, mixed_toy.seed
    sizes = {"bits_per_value": 32, "bits_down": 32, "budget_bits": 2000, "pull": "none"}

    def sent(algorithm, round_index=0):
        message = algorithm.broadcast(algorithm.server_init(engine, seed))
        state = algorithm.device_init(engine, 1, seed)
        _, (upload,) = algorithm.local_update(message, [1], [state], engine, RoundKey(seed, round_index))
        return upload.arrays["values"].double()

    plain, clipped = sent(SharedStem(**sizes)), sent(SharedStem(clip_norm=0.01, **sizes))
    assert float(clipped.norm()) == pytest.approx(0.01, rel=1e-5)
    assert float(plain.norm()) > 0.01
    torch.testing.assert_close(clipped / clipped.norm(), plain / plain.norm(), rtol=1e-4, atol=1e-6)
    noisy = SharedStem(clip_norm=0.01, noise_multiplier=3.0, **sizes)
    noise = torch.cat([sent(noisy, number) - sent(SharedStem(clip_norm=0.01, **sizes), number) for number in range(60)])
    assert float(noise.std()) == pytest.approx(2 * 0.01 * 3.0, rel=0.05)
    assert abs(float(noise.mean())) < 5 * float(noise.std()) / math.sqrt(len(noise))
