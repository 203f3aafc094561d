"""Many devices of common knowledge at once: the numbers of one after another."""

import dataclasses

import numpy as np
import pytest
import torch

from kfl.algorithms import CommonKnowledge, Upload
from kfl.algorithms.aggregation import combine
from kfl.algorithms.gaussian import personal
from kfl.algorithms.kernel_expert import classify, fit_kernel
from kfl.algorithms.many_classifiers import Fleet, Lens
from kfl.algorithms.many_reports import kept
from kfl.algorithms.uploads import sent_bits, wire_size
from kfl.data import Dataset, LocalData, partition
from kfl.engine import RoundKey
from kfl.engine.autograd import AutogradEngine
from kfl.models import fleet_from_name

D = 12


def engine_of(split="dirichlet", devices=24, shift=0.0, samples=900, m=2):
    """Devices with different numbers of samples and classes, whose classes may lie elsewhere on each."""
    rng = np.random.default_rng(3)
    y = np.arange(samples) % 5
    x = 2 * rng.normal(size=(5, D))[y] + rng.normal(size=(samples, D)) @ rng.normal(size=(D, D))
    data = Dataset.from_arrays(x.astype(np.float32), y)
    held = partition(
        split, data.train_y, data.test_y, 5, devices, 0, classes_per_device=m, alpha=0.3, samples=9, distinct=True
    )
    if shift:
        for rows in held.train:
            data.train_x[rows] += (shift * rng.normal(size=3) @ np.eye(3, D)).astype(np.float32)
    return AutogradEngine(LocalData(data, held), fleet_from_name("linear", (1,), devices, (D,), 5, 0))


def report(algorithm, engine, devices, server, round_=0):
    states = [algorithm.device_init(engine, device, 0) for device in devices]
    return algorithm.local_update(algorithm.broadcast(server), list(devices), states, engine, RoundKey(0, round_))[1]


SETTINGS = [
    CommonKnowledge(),
    CommonKnowledge(covariance="full", mean_bits=32),
    CommonKnowledge(covariance="none", mean_bits=7, clip_norm=3.0),
]


@pytest.mark.parametrize("algorithm", SETTINGS)
@pytest.mark.parametrize("split", ["dirichlet", "overlap"])
def test_reports_made_together_are_those_made_one_by_one(algorithm, split):
    engine = engine_of(split)
    start = algorithm.server_init(engine, 0)
    together = report(algorithm, engine, range(24), start)
    for device, upload in enumerate(together):
        alone = report(algorithm, engine, [device], start)[0]
        assert upload.device == device and list(upload.arrays) == list(alone.arrays)
        for name, value in upload.arrays.items():
            torch.testing.assert_close(value, alone.arrays[name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_sums_of_many_reports_are_the_mean_of_each_one_unpacked(algorithm):
    engine = engine_of()
    start = algorithm.server_init(engine, 0)
    uploads = report(algorithm, engine, range(24), start)
    formats = algorithm.averaged_format(start)
    slow, weights = combine(formats, [algorithm.decoded(one, start) for one in uploads], "mean", 0.0, {})
    expected = algorithm.updated(start, slow, weights)
    found, rejected = algorithm.aggregate(start, uploads, engine=engine, key=RoundKey(0, 0))
    assert rejected == []
    for name in ("counts", "totals", "squares", "outer", "noise", "within", "signs", "numbers"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-11, atol=1e-11, msg=name)


def test_a_report_that_is_not_finite_is_refused_and_the_others_are_added():
    algorithm, engine = CommonKnowledge(), engine_of()
    start = algorithm.server_init(engine, 0)
    good, bad = report(algorithm, engine, [0, 1], start), report(algorithm, engine, [2], start)[0]
    wild = Upload(2, {**bad.arrays, "spread_range": torch.tensor([3e38, 3e38])})
    found, rejected = algorithm.aggregate(start, [*good, wild], engine=engine, key=RoundKey(0, 0))
    assert [one.device for one in rejected] == [2] and found["reported"].tolist() == [0, 1]
    expected, _ = algorithm.aggregate(start, good, engine=engine, key=RoundKey(0, 0))
    torch.testing.assert_close(found["outer"], expected["outer"])


def test_kept_reports_are_those_that_were_sent_whatever_the_order_they_came_in():
    algorithm, engine = CommonKnowledge(), engine_of()
    server = start = algorithm.server_init(engine, 0)
    uploads = {one.device: one for one in report(algorithm, engine, range(24), start)}
    for devices in ([20, 3, 7], [5], [7, 21, 0]):  # 7 comes again
        server, _ = algorithm.aggregate(server, [uploads[k] for k in devices], engine=engine, key=RoundKey(0, 0))
    assert server["reported"].tolist() == [0, 3, 5, 7, 20, 21]
    for place, device in enumerate(server["reported"].tolist()):
        stored = kept(server, algorithm.upload_format(server), place)
        for name, value in uploads[device].arrays.items():
            assert torch.equal(stored[name], value), name


@pytest.mark.parametrize("split, m", [("overlap", 2), ("overlap", 5), ("dirichlet", 2)])
@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize("kernel", [False, True])
def test_a_batch_classifies_as_each_device_alone_does(split, m, shift, kernel):
    algorithm, engine = CommonKnowledge(), engine_of(split, shift=shift, m=m)
    start = algorithm.server_init(engine, 0)
    uploads = report(algorithm, engine, range(20), start)
    server, _ = algorithm.aggregate(start, uploads, engine=engine, key=RoundKey(0, 0))
    common = algorithm.common(server)
    if shift:  # devices differ along two directions, whatever the sketches say
        along = torch.eye(D, dtype=torch.float64)[:, :2] * torch.tensor([1.5, 0.4])
        common = dataclasses.replace(common, between=along @ along.T)
    samples = [engine.shared_samples(range(24), kind) for kind in ("train", "test")]
    fleet = Fleet(Lens.of(common), *samples, kernel)
    right = np.zeros(24, dtype=np.int64)
    for batch in fleet.batches(np.arange(24)):
        right[batch] = fleet.own_right(batch)
    for device in range(24):
        x, y = engine.samples(device, "train")
        tests, labels = engine.samples(device, "test")
        said = classify(common, x, y, tests, own=True, kernel=kernel)
        assert right[device] == int((said == labels).sum()), device


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_scores_of_a_batch_are_those_of_each_device_to_nine_digits(shift):
    from kfl.algorithms import many_classifiers as many

    algorithm, engine = CommonKnowledge(), engine_of("overlap", shift=shift)
    start = algorithm.server_init(engine, 0)
    server, _ = algorithm.aggregate(
        start, report(algorithm, engine, range(20), start), engine=engine, key=RoundKey(0, 0)
    )
    common = algorithm.common(server)
    if shift:
        common = dataclasses.replace(common, between=torch.diag(torch.arange(D).double() / D))
    lens, train = Lens.of(common), engine.shared_samples(range(24), "train")
    rows = train.of(np.arange(24))[0].reshape(24, -1)
    labels = train.labels[rows]
    classes = torch.stack([one.unique() for one in labels])
    place = (labels[:, :, None] > classes[:, None]).sum(2)
    tests = torch.randn(24, 4, D, generator=torch.Generator().manual_seed(0))
    left, scores = many._closed_form(
        many._Own.of(lens, lens.seen(train.inputs)[rows], place, classes), lens, lens.seen(tests)
    )
    kernel_left, kernel_scores = many._kernel(train.inputs[rows], place, 2, tests)
    for device in range(24):
        alone = personal(common, train.inputs[rows[device]], labels[device])
        torch.testing.assert_close(left[device], alone.left_out, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(scores[device], alone.scores(tests[device]), rtol=1e-9, atol=1e-9)
        expert = fit_kernel(train.inputs[rows[device]], place[device], 2)
        torch.testing.assert_close(kernel_left[device], expert.left_out, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kernel_scores[device], expert.scores(tests[device]), rtol=1e-4, atol=1e-5)


def test_samples_of_many_devices_are_those_of_each():
    engine = engine_of("overlap")
    for devices in ([5], [3, 0, 17], list(range(24))):
        shared = engine.shared_samples(devices, "train")
        assert len(shared.inputs) == len(np.unique(shared.rows)) or len(shared.inputs) == 720
        for place, device in enumerate(devices):
            x, y = engine.samples(device, "train")
            assert torch.equal(shared.inputs[shared[place]], x) and torch.equal(shared.labels[shared[place]], y)


def test_sizes_that_are_remembered_are_those_that_were_counted():
    algorithm, engine = CommonKnowledge(), engine_of("overlap")
    start = algorithm.server_init(engine, 0)
    formats = algorithm.upload_format(start)
    for upload in report(algorithm, engine, [0, 1], start):
        whole = wire_size({name: form for name, form in formats.items() if name != "signs"}, 2)
        drawn = int(upload.arrays["drawn"].sum())
        signs = formats["signs"].shape
        assert sent_bits(upload, formats) == whole + signs[0] + drawn * signs[1] * 8
