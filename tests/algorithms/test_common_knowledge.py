"""Reports of common knowledge: what they add up to, replace and cost, and what devices make of them."""

import dataclasses

import numpy as np
import pytest
import torch

import kfl
from kfl.algorithms import CommonKnowledge, Upload, privacy_cost
from kfl.algorithms.residual_network import fit_residual
from kfl.algorithms.sums import summation_of
from kfl.core.errors import ConfigError
from kfl.data import Dataset, partition
from kfl.engine import LocalData, RoundKey
from kfl.engine.autograd import AutogradEngine
from kfl.models import fleet_from_name

D = 8


def engine_of(seed=0, *, classes=4, devices=12, split="shards", samples=600, shift=0.0):
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % classes
    x = 3 * rng.normal(size=(classes, D))[y] + rng.normal(size=(samples, D))
    data = Dataset.from_arrays(x.astype(np.float32), y)
    held = partition(split, data.train_y, data.test_y, classes, devices, seed, classes_per_device=2)
    for rows in held.train:
        data.train_x[rows] += shift * rng.normal(size=D)
    models = fleet_from_name("linear", (1,), devices, (D,), classes, 0)
    return AutogradEngine(LocalData(data, held), models)


def number_tested(engine, device):
    return len(engine.samples(device, "test")[1])


def report(algorithm, engine, devices, server, round_=0):
    states = [algorithm.device_init(engine, k, 0) for k in devices]
    return algorithm.local_update(algorithm.broadcast(server), list(devices), states, engine, RoundKey(0, round_))[1]


def take(algorithm, engine, server, uploads):
    found, rejected = algorithm.aggregate(server, uploads, engine=engine, key=RoundKey(0, 0))
    assert rejected == []
    return found


SUMS = ("counts", "totals", "squares", "outer", "noise", "within", "signs", "numbers")


@pytest.mark.parametrize("algorithm", [CommonKnowledge(), CommonKnowledge(covariance="full", mean_bits=32)])
def test_reports_add_up_whatever_the_rounds_they_arrive_in(algorithm):
    engine = engine_of()
    start = algorithm.server_init(engine, 0)
    uploads = report(algorithm, engine, range(12), start)
    together = take(algorithm, engine, start, uploads)
    apart = start
    for upload in reversed(uploads):
        apart = take(algorithm, engine, apart, [upload])
    for name in SUMS:
        torch.testing.assert_close(together[name], apart[name], msg=name)
    assert together["reported"].tolist() == apart["reported"].tolist() == list(range(12))


def test_full_moments_are_those_of_all_samples_and_do_not_depend_on_the_split():
    """Means weighed by counts and the pooled scatter: the same for any split of the samples."""
    algorithm, found = CommonKnowledge(covariance="full", mean_bits=32), []
    for split, devices in (("shards", 12), ("iid", 5)):
        engine = engine_of(devices=devices, split=split)
        start = algorithm.server_init(engine, 0)
        found.append(take(algorithm, engine, start, report(algorithm, engine, range(devices), start)))
    torch.testing.assert_close(found[0]["counts"], found[1]["counts"])
    torch.testing.assert_close(found[0]["totals"], found[1]["totals"], rtol=1e-5, atol=1e-4)
    # Within and between devices together are the second moment.
    moments = [one["signs"][0] + one["outer"] for one in found]
    torch.testing.assert_close(*moments, rtol=1e-5, atol=1e-3)


def test_a_report_that_comes_again_replaces_the_one_before():
    algorithm, engine, other = CommonKnowledge(), engine_of(0), engine_of(1)
    start = algorithm.server_init(engine, 0)
    first = take(algorithm, engine, start, report(algorithm, engine, range(6), start))
    new = report(algorithm, other, [2], start)  # device 2 has other samples now
    after = take(algorithm, engine, first, new)
    others = [upload for upload in report(algorithm, engine, range(6), start) if upload.device != 2]
    expected = take(algorithm, engine, start, [*others, *new])
    for name in SUMS:
        torch.testing.assert_close(after[name], expected[name], rtol=1e-9, atol=1e-9, msg=name)
    assert after["reported"].tolist() == [0, 1, 2, 3, 4, 5]
    twice = take(algorithm, engine, after, new)
    for name in SUMS:
        torch.testing.assert_close(twice[name], after[name], rtol=1e-9, atol=1e-9, msg=name)


def test_sums_that_hide_devices_give_the_same_server():
    algorithm, engine = CommonKnowledge(), engine_of()
    start = algorithm.server_init(engine, 0)
    uploads = report(algorithm, engine, range(5), start)
    summation = summation_of(algorithm)
    message = algorithm.broadcast(start)
    total = summation.terms(uploads[0], message, engine)
    for upload in uploads[1:]:
        total = total + summation.terms(upload, message, engine)
    hidden, seen = summation.apply(start, total), take(algorithm, engine, start, uploads)
    for name in SUMS:
        torch.testing.assert_close(hidden[name], seen[name], msg=name)


@pytest.mark.parametrize("covariance", ["signs", "full", "none"])
@pytest.mark.parametrize("personal", ["experts", "closed-form", "network", "none"])
def test_devices_classify_well_with_every_setting(covariance, personal):
    algorithm, engine = CommonKnowledge(covariance=covariance, personal=personal), engine_of()
    start = algorithm.server_init(engine, 0)
    server = take(algorithm, engine, start, report(algorithm, engine, range(12), start))
    states = [{"encoded": torch.tensor(True)}] * 12
    for known in (server, algorithm.broadcast(server)):  # in the simulator, and on a device that received it
        right = algorithm.correct(known, range(12), states, engine)
        assert sum(right) > 0.95 * sum(number_tested(engine, k) for k in range(12))


@pytest.mark.parametrize("algorithm", [CommonKnowledge(), CommonKnowledge(covariance="full", mean_bits=32)])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_the_server_says_whether_devices_differ(shift, algorithm):
    engine = engine_of(devices=15, split="iid", samples=1500, shift=shift)
    start = algorithm.server_init(engine, 0)
    assert algorithm.remark(start) == ""
    server = take(algorithm, engine, start, report(algorithm, engine, range(15), start))
    assert algorithm.remark(server).startswith("Devices differ:" if shift else "Devices do not differ")
    if shift or algorithm.covariance == "full":
        assert bool(algorithm.common(server).between.any()) == bool(shift)


def test_a_device_that_has_not_encoded_its_samples_takes_the_common_classifier():
    algorithm, engine = CommonKnowledge(), engine_of()
    start = algorithm.server_init(engine, 0)
    server = take(algorithm, engine, start, report(algorithm, engine, range(6), start))
    assert algorithm.correct(server, [9], [{}], engine)[0] > 0.8 * number_tested(engine, 9)
    assert algorithm.correct(start, [9], [{}], engine)[0] <= number_tested(engine, 9)


def test_worth_is_what_the_server_lacks_and_nothing_after_the_report():
    algorithm, engine = CommonKnowledge(), engine_of()
    start = algorithm.server_init(engine, 0)
    samples, counts = np.full(4, 100.0), np.array([[50, 50, 0, 0], [100, 0, 0, 0], [0, 0, 50, 50], [0, 0, 0, 100]])
    before = algorithm.worth(start, samples, counts)
    assert before[0] == before[2] > before[1] == before[3] > 0
    server = {**start, "counts": torch.tensor([500.0, 500.0, 0, 0]).double(), "reported": torch.tensor([1])}
    after = algorithm.worth(server, samples, counts)
    assert after[1] == 0 and after[2] == before[2] and 0 < after[0] < 0.1 * before[0]
    assert algorithm.worth(server, samples).tolist() == [100.0, 0.0, 100.0, 100.0]


def test_everybody_reports_once_and_the_scheduler_then_rests():
    history = kfl.run(kfl.Experiment(devices=12, rounds=5, algorithm="common-knowledge", encoder="random-32"))
    assert sorted(device for log in history.rounds for device in log.devices) == list(range(12))
    assert [len(log.devices) for log in history.rounds[2:]] == [0, 0, 0]
    assert history.summary["bits_up"] == sum(log.bits_up for log in history.rounds) > 0
    assert "declared_bits_up" not in history.summary


def test_noise_hides_one_sample_and_is_taken_out_of_the_scatter():
    algorithm = CommonKnowledge(covariance="none", clip_norm=4.0, noise_multiplier=1.0, mean_bits=32)
    rough = engine_of()
    with pytest.raises(ConfigError, match=r"algorithm\.noise_multiplier is 1\.0.*no common scale"):
        algorithm.server_init(rough, 0)
    rough.whitened = True
    start = algorithm.server_init(rough, 0)
    quiet = dataclasses.replace(algorithm, noise_multiplier=0.0)
    with_noise, without = (report(one, rough, [0], start)[0].arrays for one in (algorithm, quiet))
    held = with_noise["counts"] > 0
    added = (with_noise["means"] - without["means"])[held] * with_noise["counts"][held, None]
    assert float(added.std()) == pytest.approx(2 * 4.0 * 1.0, rel=0.5)
    assert "spread" not in with_noise and "signs" not in with_noise
    assert float(algorithm.decoded(Upload(0, with_noise), start)["noise"][0]) == pytest.approx(
        float((64 / with_noise["counts"][held].double()).sum())
    )
    cost = privacy_cost(algorithm, 1, [10, 10])
    assert cost.epsilon == cost.epsilon_with_training < 10 and "training of the body" not in cost.sentence


def test_residual_network_learns_what_gaussian_classes_cannot_say_and_adds_nothing_to_a_sure_classifier():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=draw)
    place = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()  # equal means, equal covariances
    unsure, sure = torch.zeros(600, 2).double(), 20.0 * torch.nn.functional.one_hot(place, 2).double()
    learned = fit_residual(x[:400], place[:400], unsure[:400])(x[400:], unsure[400:])
    assert (learned.argmax(1) == place[400:]).double().mean() > 0.9
    assert (fit_residual(x, place, sure)(x, sure).argmax(1) == place).all()
    torch.testing.assert_close(fit_residual(x[:9], place[:9], unsure[:9])(x[9:], unsure[9:]), unsure[9:])
