"""The common and the personal classifier against their definitions, written out slowly, and against the truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import reports
from kfl.algorithms.gaussian import Common, Sums, estimate, personal
from kfl.algorithms.kernel_expert import fit_kernel, weigh_experts


def draw_fleet(seed, *, devices=60, classes=4, d=6, n=40, differ=0.0):
    """Devices with two classes each, samples N(m_kc, Σ), class means of a device N(M_c, B) along one direction."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(d) + 0.4 * rng.normal(size=(d, d)) / math.sqrt(d)
    means = 2 * rng.normal(size=(classes, d))
    direction = rng.normal(size=d)
    direction /= np.linalg.norm(direction)
    fleet = []
    for _ in range(devices):
        held = rng.choice(classes, 2, replace=False)
        y = rng.choice(held, n)
        y[:2] = held
        own = {c: means[c] + differ * rng.normal() * direction for c in held}
        x = np.stack([own[c] for c in y]) + rng.normal(size=(n, d)) @ mixing.T
        fleet.append((torch.from_numpy(x), torch.from_numpy(y)))
    return fleet, means, mixing @ mixing.T, direction


def sums_of(fleet, classes=4, *, full=False, seed=0):
    """What a server adds up, from samples themselves: means as they are, signs or scatter."""
    d = fleet[0][0].shape[1]
    found = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in {
        "counts": classes, "totals": (classes, d), "outer": (d, d), "noise": d, "squares": classes, "pairs": (),
        "within": d, "freedom": (), "signs": (2, d, d), "sketches": 2,
    }.items()}  # fmt: skip
    for device, (x, y) in enumerate(fleet):
        one_hot = torch.nn.functional.one_hot(y, classes).double()
        counts = one_hot.sum(0)
        means = one_hot.T @ x / counts.clamp(min=1)[:, None]
        away = x - means[y]
        found["counts"] += counts
        found["totals"] += counts[:, None] * means
        found["outer"] += (means * counts[:, None]).T @ means
        found["squares"] += counts**2
        found["pairs"] += (counts > 0).sum()
        found["within"] += away.square().sum(0)
        found["freedom"] += len(x) - (counts > 0).sum()
        if full:
            found["signs"] += away.T @ away
        else:
            signs = reports.sketch_signs(away[None], 16, seed, [device])[0].double() * 2 - 1
            for half in (0, 1):
                found["signs"][half] += signs[half::2].T @ signs[half::2]
                found["sketches"][half] += len(signs[half::2])
    return Sums(**found)


@pytest.mark.parametrize("full", [False, True])
def test_estimate_finds_means_covariance_and_that_devices_agree(full):
    fleet, means, covariance, _ = draw_fleet(0, devices=400)
    common = estimate(sums_of(fleet, full=full), full=full)
    assert common.difference < 0.01
    np.testing.assert_allclose(common.means.numpy(), means, atol=0.1)
    found = (common.within * common.scale * common.scale[:, None]).numpy()
    assert np.abs(found - covariance).max() < 0.12 * np.abs(covariance).max()


@pytest.mark.parametrize("full", [False, True])
def test_estimate_finds_the_direction_in_which_devices_differ(full):
    fleet, _, _, direction = draw_fleet(1, devices=400, differ=1.5)
    common = estimate(sums_of(fleet, full=full), full=full)
    between = (common.between * common.scale * common.scale[:, None]).numpy()
    values, vectors = np.linalg.eigh(between)
    assert abs(vectors[:, -1] @ direction) > 0.98 and values[-1] == pytest.approx(1.5**2, rel=0.25)
    assert values[:-1].max() < 0.1 * values[-1]


@pytest.mark.parametrize("seed", range(5))
def test_sketches_alone_do_not_make_devices_differ(seed):
    """Few samples and more features than sketches: the case in which halves that are not split report differences."""
    fleet, _, _, _ = draw_fleet(seed, devices=40, d=24, n=12)
    assert estimate(sums_of(fleet)).difference < 0.1


def slowly(common: Common, x, y, p, leave_out=None):
    """Scores of all samples by the definition; with `leave_out`, by a classifier that never saw that sample.

    The scale, Σ, B and the degrees of freedom stay those of all samples, as documented.
    """
    z, scale = x / common.scale, common.scale
    classes = y.unique()
    keep = torch.ones(len(x), dtype=torch.bool)
    if leave_out is not None:
        keep[leave_out] = False
    freedom = len(x) - len(classes)
    scatter = torch.zeros(len(scale), len(scale), dtype=torch.float64)
    own, theirs, gains = [], [], []
    for c in classes:
        mine = z[keep & (y == c)]
        away = mine - mine.mean(0)
        scatter += away.T @ away
        own.append(mine.mean(0))
        total, number = common.means[c] * common.counts[c] / scale, float(common.counts[c])
        if leave_out is not None and y[leave_out] == c:
            total, number = total - z[leave_out], number - 1
        theirs.append(total / number)
    sigma = (1 - p) * common.within + p * scatter / freedom
    everything = (1 - p) * common.within + p * full_scatter(z, y) / freedom
    hat = sigma.clone()
    for c, (mine, their) in enumerate(zip(own, theirs, strict=True)):
        n = int((y == classes[c]).sum()) - int(leave_out is not None and bool(y[leave_out] == classes[c]))
        gains.append(common.between @ torch.linalg.inv(common.between + everything / n))
        own[c] = their + gains[-1] @ (mine - their)
    for c in classes:
        n = int((y == c).sum())
        gain = common.between @ torch.linalg.inv(common.between + everything / n)
        hat += (torch.eye(len(scale), dtype=torch.float64) - gain) @ common.between / len(classes)
    inverse = torch.linalg.inv((hat + hat.T) / 2)
    return torch.stack([((z - m) @ inverse * (z - m)).sum(1) for m in own], 1)


def full_scatter(z, y):
    total = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64)
    for c in y.unique():
        away = z[y == c] - z[y == c].mean(0)
        total += away.T @ away
    return total


@pytest.mark.parametrize("differ", [0.0, 2.0])
def test_what_a_sample_left_out_gets_is_what_a_classifier_without_it_says(differ):
    fleet, _, _, _ = draw_fleet(3, devices=80, differ=differ)
    common = estimate(sums_of(fleet))
    assert bool(common.between.any()) == (differ > 0)
    x, y = fleet[0]
    head = personal(common, x, y)
    for sample in range(0, len(x), 7):
        distance = slowly(common, x, y, head.own_share, leave_out=sample)[sample]
        expected = torch.log_softmax(-distance / (2 * head.temperature), 0)
        torch.testing.assert_close(head.left_out[sample], expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        head.scores(x), torch.log_softmax(-slowly(common, x, y, head.own_share) / (2 * head.temperature), 1)
    )


def test_a_device_that_differs_keeps_its_own_means_and_one_that_does_not_takes_the_common_ones():
    alike, apart = (draw_fleet(4, devices=200, n=60, differ=differ)[0] for differ in (0.0, 3.0))
    for fleet, moves in ((alike, False), (apart, True)):
        common = estimate(sums_of(fleet))
        x, y = fleet[0]
        head = personal(common, x, y)
        own = torch.stack([(x[y == c] / common.scale).mean(0) for c in head.classes])
        theirs = common.means[head.classes] / common.scale
        if moves:
            assert (head.means - own).norm() < 0.5 * (theirs - own).norm()
        else:
            torch.testing.assert_close(head.means, theirs)


@settings(max_examples=30, deadline=None)
@given(
    bits=st.integers(1, 16),
    d=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    held=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_means_arrive_within_a_step_of_the_grid_and_codes_within_their_bytes(bits, d, seed, held):
    held = torch.tensor(held)
    rows = torch.randn(len(held), d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    dither = reports.dither_of(len(held), d, seed, [3])[0]
    codes, largest = reports.pack_means(rows, held, bits, seed, dither)
    assert codes.shape == (int(held.sum()), -(-d * bits // 8))
    found, variance = reports.unpack_means(codes, largest, d, bits, seed, dither[held])
    step = 2 * largest.double() / (2**bits - 1)
    turned = (reports.rotated(found - rows[held], seed)).abs()
    assert (turned <= step[:, None] * (1 + 1e-6) + 1e-12).all()
    torch.testing.assert_close(variance, step**2 / 12)
    torch.testing.assert_close(reports.rotated(reports.rotated(rows, seed), seed, back=True), rows)


def test_the_error_of_a_mean_in_few_bits_has_the_variance_it_says():
    rows = torch.randn(50, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    dither = reports.dither_of(50, 200, 7, [0])[0]
    codes, largest = reports.pack_means(rows, torch.ones(50, dtype=torch.bool), 4, 7, dither)
    found, variance = reports.unpack_means(codes, largest, 200, 4, 7, dither)
    assert float((found - rows).square().mean()) == pytest.approx(float(variance.mean()), rel=0.05)
    assert abs(float((found - rows).mean())) < 4 * float((variance.mean() / 10000).sqrt())


def test_a_kernel_regression_without_a_sample_says_what_left_out_says():
    fleet, _, _, _ = draw_fleet(5, n=25)
    x, y = fleet[0]
    place = y.unique(return_inverse=True)[1]
    expert = fit_kernel(x, place, 2)
    points = x.float()
    kernel = torch.exp(-torch.cdist(points, points).square() / (2 * expert.width2)).double()
    targets = torch.nn.functional.one_hot(place, 2).double()
    ridge = float(((targets - kernel @ expert.weights) / expert.weights).mean())  # λ A = Y − K A
    for sample in (0, 9):
        keep = torch.arange(25) != sample
        weights = torch.linalg.solve(kernel[keep][:, keep] + ridge * torch.eye(24), targets[keep])
        said = (kernel[sample, keep] @ weights).clamp(0.001, 1)
        torch.testing.assert_close(expert.left_out[sample].exp(), said / said.sum(), rtol=1e-3, atol=1e-5)


def test_a_better_expert_gets_the_weight():
    place = torch.arange(200) % 2
    right = torch.log_softmax(torch.nn.functional.one_hot(place, 2).double() * 3, 1)
    useless = torch.full_like(right, math.log(0.5))
    assert weigh_experts(right, useless, place) == (1.0, 0.0)
    assert weigh_experts(useless, right, place)[1] >= 1.5
