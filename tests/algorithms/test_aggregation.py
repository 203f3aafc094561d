"""What servers make of uploads, in cases small enough to compute by hand; and what a round costs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from kfl.algorithms import (
    Apfl,
    ArrayFormat,
    Fd,
    FedAvg,
    FedGh,
    FedKd,
    FedProto,
    FedRep,
    FedTgp,
    FixedKnowledge,
    Kfl,
    Local,
    SelfKnowledge,
    Upload,
)
from kfl.algorithms.averaging import Reports, equal_uploads, part_of
from kfl.algorithms.local import pull_to
from kfl.algorithms.targets import fixed_targets
from kfl.algorithms.uploads import MOST_SAMPLES
from kfl.core.errors import ConfigError, DataError, ModelError
from kfl.engine import DeviceProfile, LocalData, RoundKey, Sgd, Supervised
from kfl.engine.sequential import SequentialEngine
from kfl.models import ModelProfile, SplitModel, cnn, fleet_from_modules, inspect_model, mlp


def aggregate(algorithm, server, uploads):
    """These algorithms need neither an engine nor a draw to aggregate."""
    return algorithm.aggregate(server, uploads, engine=None, key=None)


def knowledge(device, means, counts):
    return Upload(device, {"means": torch.tensor(means), "counts": torch.tensor(counts)})


REPORTS = [
    knowledge(0, [[1.0, 0.0], [5.0, 5.0], [math.nan, 7.0]], [1, 2, 0]),
    knowledge(1, [[4.0, 3.0], [0.0, 0.0], [0.0, 0.0]], [2, 0, 0]),
]
BEFORE = {"knowledge": torch.tensor([[9.0, 9.0], [9.0, 9.0], [8.0, 8.0]]), "known": torch.tensor([True, False, True])}


def test_kfl_weighs_by_samples():
    """(1·(1, 0) + 2·(4, 3))/3 = (3, 2); one reporter gives its own mean; nobody leaves the last."""
    after, rejected = aggregate(Kfl(), BEFORE, REPORTS)
    assert rejected == []
    assert after["knowledge"].tolist() == [[3.0, 2.0], [5.0, 5.0], [8.0, 8.0]]
    assert after["known"].tolist() == [True, True, True]


def test_kfl_without_memory_forgets():
    after, _ = aggregate(Kfl(memory=False), BEFORE, REPORTS)
    assert after["knowledge"].tolist() == [[3.0, 2.0], [5.0, 5.0], [0.0, 0.0]]
    assert after["known"].tolist() == [True, True, False]


def test_kfl_without_memory_keeps_what_it_has_when_nothing_usable_arrives():
    bad = knowledge(0, [[math.nan, 0.0]] * 3, [1, 1, 1])
    for uploads in ([], [bad]):
        after, rejected = aggregate(Kfl(memory=False), BEFORE, uploads)
        assert len(rejected) == len(uploads)
        assert after is BEFORE


@pytest.mark.parametrize("counts", [([1, 2, 0], [2, 0, 0]), ([1, 1, 0], [1, 0, 0])], ids=["counts", "flags"])
def test_fedproto_weighs_devices_alike(counts):
    """((1, 0) + (4, 3))/2 = (2.5, 1.5), whatever counts a device claims."""
    uploads = [Upload(u.device, {**u.arrays, "counts": torch.tensor(c)}) for u, c in zip(REPORTS, counts, strict=True)]
    after, _ = aggregate(FedProto(), BEFORE, uploads)
    assert after["knowledge"].tolist() == [[2.5, 1.5], [5.0, 5.0], [8.0, 8.0]]


def test_fedproto_tells_no_counts(toy, play):
    run = play(FedProto(), toy, [[0, 1]])
    assert all(set(upload.arrays["counts"].tolist()) == {0, 1} for upload in run.uploads[0])


@pytest.mark.parametrize("algorithm", [FedAvg(), FedRep(), Apfl()], ids=lambda a: a.name)
def test_weights_are_weighed_by_samples(algorithm):
    """(1·1 + 3·5)/4 = 4. A counter, 2 and 3, is 2.75, which is 3; what else is in an upload is ignored."""
    server = {"body.0.weight": torch.tensor([[0.0]]), "body.1.num_batches_tracked": torch.tensor(0)}

    def upload(device, weight, counter, samples):
        arrays = {"body.0.weight": torch.tensor([[weight]]), "body.1.num_batches_tracked": torch.tensor(counter)}
        return Upload(device, {**arrays, "samples": torch.tensor(samples), "more": torch.tensor(math.nan)})

    after, rejected = aggregate(algorithm, server, [upload(0, 1.0, 2, 1.0), upload(1, 5.0, 3, 3.0)])
    assert rejected == []
    assert after["body.0.weight"].tolist() == [[4.0]]
    assert after["body.1.num_batches_tracked"].item() == 3
    assert {name: value.dtype for name, value in after.items()} == {n: v.dtype for n, v in server.items()}


def test_fedkd_averages_logits():
    server = {"consensus": torch.zeros(1, 2), "known": torch.tensor(False)}
    uploads = [Upload(k, {"logits": torch.tensor([said])}) for k, said in enumerate([[1.0, -1.0], [3.0, 5.0]])]
    after, _ = aggregate(FedKd(), server, uploads)
    assert after["consensus"].tolist() == [[2.0, 2.0]]
    assert bool(after["known"])


def test_apfl_mixes_with_the_current_global_model():
    server = {"head.bias": torch.tensor([10.0]), "body.n": torch.tensor(4)}
    device = {
        "personal/head.bias": torch.tensor([2.0]),
        "personal/body.n": torch.tensor(6),
        "mixing": torch.tensor(0.25),
    }
    mixed = Apfl().predictor(server, device)
    assert mixed["head.bias"].tolist() == [8.0]
    assert mixed["body.n"].item() == 6


def test_self_knowledge_remembers_its_own_means(toy, play):
    algorithm = SelfKnowledge()
    start = algorithm.device_init(toy.engine, 0, toy.seed)
    assert not start["own/known"].any()
    state = play(algorithm, toy, [[0]]).devices[0]
    means, counts = toy.engine.class_means([0], [algorithm.predictor({}, state)])
    assert torch.equal(state["own/knowledge"], means[0])
    assert torch.equal(state["own/known"], counts[0] > 0)


@pytest.mark.parametrize("kind", ["random", "simplex"])
def test_fixed_targets_are_one_draw_for_all(kind):
    targets = fixed_targets(kind, 10, 64, 3.0, seed=5)
    assert torch.equal(targets, fixed_targets(kind, 10, 64, 3.0, seed=5))
    assert not torch.equal(targets, fixed_targets(kind, 10, 64, 3.0, seed=6))
    assert (targets >= 0).all()
    torch.testing.assert_close(targets.norm(dim=1), torch.full((10,), 3.0))
    assert torch.linalg.matrix_rank(targets) == 10


def test_corners_of_a_simplex_are_equally_far_apart_and_need_a_feature_each():
    targets = fixed_targets("simplex", 10, 64, 3.0, seed=5)
    apart = torch.pdist(targets)
    torch.testing.assert_close(apart, torch.full_like(apart, 3.0 * 2**0.5))
    with pytest.raises(ConfigError, match="10 corners of a simplex need 10 features, not 9"):
        fixed_targets("simplex", 10, 9, 3.0, seed=5)


def test_fedkd_without_proxy_samples_says_so(toy):
    engine = SequentialEngine(LocalData(toy.dataset, toy.partition), toy.models)
    with pytest.raises(DataError, match="fedkd needs proxy samples"):
        FedKd().server_init(engine, 0)


def test_fedrep_gives_each_part_as_many_steps_as_the_others_take_or_what_is_asked_for():
    assert FedRep(local_steps=3).steps() == (3, 3)
    assert FedRep(head_steps=10).steps() == (10, 5)
    assert FedRep(body_steps=1).steps() == (5, 1)
    FedRep(local_steps=1).validate()
    for part in ("head_steps", "body_steps"):
        with pytest.raises(ConfigError, match=rf"algorithm\.{part} is 0, but must be 1 or more"):
            FedRep(**{part: 0}).validate()


MLP = ModelProfile(
    features=64,
    classes=10,
    parameters=550_346,
    body_parameters=549_696,
    flops=550_346,
    body_flops=549_696,
    input_shape=(1, 28, 28),
)
TAU_D_C = 5 * 600 * 550_346


@pytest.mark.parametrize(
    ("algorithm", "real", "values_up"),
    [
        (Kfl(), 3 * TAU_D_C + 600 * 549_696, 640),
        (Local(), 3 * TAU_D_C, 0),
        (FedAvg(), 3 * TAU_D_C, 550_346),
        # 5 head steps of C + 2·650 and 5 body steps of C + 2·549,696 + 650.
        (FedRep(), 2 * TAU_D_C + 600 * 5 * (1300 + 2 * 549_696 + 650), 549_696),
        (Apfl(), 6 * TAU_D_C, 550_346),
        # 500 proxy samples: distill_steps passes forward and backward, one more forward for the logits.
        (FedKd(distill_steps=4), 3 * TAU_D_C + 13 * 500 * 550_346, 5_000),
        (FedProto(), 3 * TAU_D_C + 600 * 549_696, 640),
        (SelfKnowledge(), 3 * TAU_D_C + 600 * 549_696, 0),
        (FixedKnowledge(), 3 * TAU_D_C, 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_cost_of_the_papers_mlp(algorithm, real, values_up):
    """The numbers of V-A and V-B: 640 parameters for KFL, all 550 thousand for FedAvg, 5,000 for FedKD."""
    profile = DeviceProfile(MLP, 600)
    printed = algorithm.cost(profile, real_work=False)
    assert (printed.flops, printed.bits_up, printed.bits_down) == (TAU_D_C, 32 * values_up, 32 * values_up)
    assert algorithm.cost(profile, real_work=True).flops == real


@pytest.mark.parametrize(
    ("algorithm", "real", "up", "down"),
    [
        (FedTgp(), 3 * TAU_D_C + 600 * 549_696, 2 * 64, 640),
        (FedGh(), 3 * TAU_D_C + 600 * 549_696, 2 * 64, 650),
        (Fd(), 3 * TAU_D_C + 600 * 550_346, 2 * 10, 100),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_only_classes_that_a_device_holds_are_charged(algorithm, real, up, down):
    """Two of ten classes, and a bit for each of the ten that says which; all of them where that is not known."""
    cost = algorithm.cost(DeviceProfile(MLP, 600, held_classes=2), real_work=True)
    assert (cost.flops, cost.bits_up, cost.bits_down) == (real, 32 * up + 10, 32 * down)
    assert algorithm.cost(DeviceProfile(MLP, 600), real_work=True).bits_up == 32 * 5 * up + 10


@pytest.mark.parametrize(
    "heads",
    [
        (nn.Linear(6, 3), nn.Linear(6, 3, bias=False)),
        (nn.Sequential(nn.Linear(6, 3), nn.Tanh()),) * 2,
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),) * 2,
    ],
    ids=["different", "not linear", "two layers"],
)
def test_fedgh_needs_one_linear_head(heads):
    models = fleet_from_modules([SplitModel(nn.Linear(4, 6), head) for head in heads], 2, (4,), 3)
    with pytest.raises(ModelError, match="fedgh trains one head for all devices"):
        FedGh().check_models(models)


@pytest.mark.parametrize(("model", "shape"), [(mlp(), (1, 28, 28)), (cnn(), (3, 32, 32))], ids=["mlp", "cnn"])
def test_four_steps_of_each_part_make_fedrep_as_much_work_as_kfl(model, shape):
    """The row at equal work: 4 C + 4 · 3 C against τ · 3 C and the knowledge pass, both 16 C."""
    profile = DeviceProfile(inspect_model(model, shape, 10), 600)
    ours, theirs = (one.cost(profile, real_work=True).flops for one in (Kfl(), FedRep(head_steps=4, body_steps=4)))
    forward = 600 * profile.model.flops
    assert ours == pytest.approx(16 * forward, rel=2e-4)
    assert theirs == pytest.approx(ours, rel=4e-4)
    assert FedRep().cost(profile, real_work=True).flops == pytest.approx(20 * forward, rel=4e-4)


def test_kfl_may_be_charged_for_what_it_sends():
    """Two held classes of ten: 128 values and a mask of ten bits up; a broadcast has all classes for everybody."""
    profile = DeviceProfile(MLP, 600, held_classes=2)
    assert Kfl().bits(profile) == (20_480, 20_480)
    assert Kfl(charge="held").bits(profile) == (2 * 64 * 32 + 10, 20_480 + 10)
    assert Kfl(charge="held", bits_per_value=8).bits(profile) == (2 * 64 * 8 + 64 + 10, 640 * 8 + 64 + 10)
    secret = Kfl(charge="held", noise_counts=True, noise_multiplier=1.0, clip_norm=1.0)
    assert secret.bits(profile)[0] == 20_480 + 320  # noisy counts report every class, so nobody needs a mask
    assert Kfl(charge="held").bits(DeviceProfile(MLP, 600))[0] == 20_480 + 10


# Knowledge

ONE = {"knowledge": torch.tensor([[9.0, -9.0], [8.0, 8.0]], dtype=torch.float64), "known": torch.tensor([True, True])}


def fine(device, means, counts):
    return Upload(device, {"means": torch.tensor(means, dtype=torch.float64), "counts": torch.tensor(counts)})


RULES = ("mean", "clip", "median", "trimmed")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [False, True], ids=["all sound", "one refused"])
def test_a_class_of_a_single_sample_is_knowledge_and_no_digit_is_lost(rule, bad):
    """The server's own type decides how exactly: here float64, where 1 + 1e-12 is not 1."""
    odd = [fine(7, [[math.inf, 0.0], [0.0, 0.0]], [1, 0])] if bad else []
    # A class without samples may hold anything, and does not make the rest of an upload useless.
    sound = [fine(0, [[1 + 1e-12, -2.0], [math.nan, 0.0]], [1, 0]), fine(1, [[50.0, 50.0], [50.0, 50.0]], [0, 0])]
    after, rejected = aggregate(Kfl(aggregation=rule, memory=False), ONE, [*sound, *odd])
    assert [(one.device, one.code) for one in rejected] == [(one.device, "not_finite") for one in odd]
    assert after["knowledge"].dtype == torch.float64
    assert after["knowledge"][0].tolist() == pytest.approx([1 + 1e-12, -2.0], rel=1e-14)
    assert not after["knowledge"][1].any() and after["known"].tolist() == [True, False]
    assert ONE["knowledge"].tolist() == [[9.0, -9.0], [8.0, 8.0]]


SOUND = {"means": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "counts": torch.tensor([2, 3])}
KNOWN = {"knowledge": torch.zeros(2, 2), "known": torch.zeros(2, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"counts": torch.tensor([-1, 3])}, "negative_count"),
        ({"counts": torch.tensor([2.0, -0.5])}, "negative_count"),
        ({"counts": torch.tensor([2, MOST_SAMPLES + 1])}, "too_many_samples"),
        ({"counts": torch.tensor([2.0, math.nan])}, "not_finite"),
        ({"counts": torch.tensor([2.0, math.inf])}, "not_finite"),
        ({"counts": torch.tensor([2 + 0j, 3])}, "not_finite"),
        ({"counts": torch.tensor([2, 3, 4])}, "shape"),
        ({"counts": torch.tensor([[2, 3]])}, "shape"),
        ({"counts": torch.tensor([[2, 3], [1, 1]])}, "shape"),
        ({"counts": torch.tensor(2)}, "shape"),
        ({"counts": None}, "missing_array"),
        ({"means": None}, "missing_array"),
        ({"means": torch.ones(3, 2)}, "shape"),
        ({"means": torch.ones(2, 3)}, "shape"),
        ({"means": torch.ones(2)}, "shape"),
        ({"means": torch.tensor([[1.0, 2.0], [math.nan, 4.0]])}, "not_finite"),
        ({"means": torch.tensor([[1.0, 2.0], [3.0, -math.inf]])}, "not_finite"),
        ({"means": torch.tensor([[1.0, 2.0], [3.0, 1e300]], dtype=torch.float64)}, "not_finite"),
        ({"means": torch.ones(2, 2, dtype=torch.complex64)}, "not_finite"),
    ],
)
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_knowledge_that_cannot_be_is_refused_and_the_rest_is_used(arrays, code, rule):
    bad = Upload(5, {name: value for name, value in {**SOUND, **arrays}.items() if value is not None})
    for others in ([], [Upload(1, SOUND)]):
        after, rejected = aggregate(Kfl(aggregation=rule), KNOWN, [bad, *others])
        assert [(one.device, one.code) for one in rejected] == [(5, code)]
        assert after["knowledge"].tolist() == (SOUND["means"].tolist() if others else [[0.0, 0.0]] * 2)


@pytest.mark.parametrize(
    "arrays",
    [
        {"counts": torch.tensor([2, MOST_SAMPLES])},
        {"counts": torch.tensor([0.25, 0.5])},
        {"means": torch.tensor([[1.0, 2.0], [3.0, 1e30]], dtype=torch.float64)},
        {"means": torch.tensor([[1, 2], [3, 4]])},
        {"means": torch.tensor([[3e38, -3e38], [3e38, 3e38]])},
        {"counts": torch.tensor([0, 2]), "means": torch.tensor([[math.nan, math.inf], [3.0, 4.0]])},
        {"counts": torch.tensor([0.0, 2.0]), "means": torch.tensor([[1e300, math.inf], [3.0, 4.0]]).double()},
        {"more": torch.tensor(math.nan)},
    ],
)
def test_knowledge_that_can_be_is_used(arrays):
    """Also counts that are not whole or of another type, and anything in the row of a class that is not held."""
    upload = Upload(5, {**SOUND, **arrays})
    counts = upload.arrays["counts"]
    after, rejected = aggregate(Kfl(), KNOWN, [upload])
    assert rejected == [] and after["known"].tolist() == (counts > 0).tolist()
    for c in range(2):
        wanted = upload.arrays["means"][c].float() if counts[c] > 0 else torch.zeros(2)
        torch.testing.assert_close(after["knowledge"][c], wanted)


@pytest.mark.parametrize("shape", [(2, 0), (0, 2)], ids=["features", "classes"])
def test_knowledge_of_nothing_at_all_is_no_error(shape):
    empty = {"knowledge": torch.zeros(shape), "known": torch.zeros(shape[0], dtype=torch.bool)}
    upload = Upload(0, {"means": torch.zeros(shape), "counts": torch.tensor([1, 0])[: shape[0]]})
    after, rejected = aggregate(Kfl(), empty, [upload])
    assert rejected == [] and after["known"].tolist() == [True, False][: shape[0]]


def test_equal_uploads_say_whether_a_class_is_held_and_need_a_mean_for_every_device():
    means, counts = torch.arange(8.0).reshape(2, 2, 2), torch.tensor([[5, 0], [1, 2]])
    first, second = equal_uploads([4, 9], means, counts)
    assert (first.device, second.device) == (4, 9)
    assert first.arrays["counts"].tolist() == [1, 0] and second.arrays["counts"].tolist() == [1, 1]
    assert torch.equal(first.arrays["means"], means[0]) and torch.equal(second.arrays["means"], means[1])
    with pytest.raises(ValueError, match="argument"):
        equal_uploads([4, 9, 11], means, counts)


def test_a_server_starts_with_no_knowledge_which_is_zero(toy):
    for algorithm in (Kfl(), FedProto()):
        start = algorithm.server_init(toy.engine, toy.seed)
        assert torch.equal(start["knowledge"], torch.zeros(4, 5)) and start["known"].tolist() == [False] * 4
        assert start["known"].dtype == torch.bool
        vectors, known = algorithm.class_vectors(start)
        assert vectors is start["knowledge"] and known is start["known"]


def test_reports_are_samples_with_labels_for_a_server_that_trains():
    reports = Reports(torch.arange(12.0).reshape(2, 3, 2), torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.5, 0.0]]))
    vectors, labels = reports.labelled()
    assert vectors.tolist() == [[0.0, 1.0], [4.0, 5.0], [8.0, 9.0]] and labels.tolist() == [0, 2, 1]
    # Without a limit 1 and 2, with one of 0.5 alike.
    means, known = Reports(reports.means, torch.tensor([[1.0, 0.0, 2.0], [2.0, 0.0, 0.5]])).average()
    assert means[0].tolist() == pytest.approx([(0 + 2 * 6) / 3, (1 + 2 * 7) / 3]) and known.tolist() == [
        True,
        False,
        True,
    ]
    means, _ = Reports(reports.means, torch.tensor([[1.0, 0.0, 2.0], [2.0, 0.0, 0.5]])).average(0.5)
    assert means[0].tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("settings", "means", "counts"),
    [
        ({}, ArrayFormat((2, 2)), ArrayFormat((2,), "int64", "counts")),
        ({"bits_per_value": 8}, ArrayFormat((2, 2), bits=8), ArrayFormat((2,), "int64", "counts")),
        ({"charge": "held"}, ArrayFormat((2, 2), rows="counts"), ArrayFormat((2,), "int64", "counts")),
        ({"clip_norm": 1.0, "noise_multiplier": 0.7}, ArrayFormat((2, 2)), ArrayFormat((2,), "int64", "counts")),
        (
            {"clip_norm": 1.0, "noise_multiplier": 0.7, "noise_counts": True, "charge": "held", "bits_per_value": 31},
            ArrayFormat((2, 2), bits=31),
            ArrayFormat((2,), "float64", "counts", 1.4),
        ),
    ],
)
def test_kfl_declares_what_it_sends(settings, means, counts):
    """Noisy counts are declared with their noise, 2 z, and then every row is sent, since they hide which are held."""
    assert Kfl(**settings).upload_format(KNOWN) == {"means": means, "counts": counts}
    assert FedProto().upload_format(KNOWN) == {
        "means": ArrayFormat((2, 2)),
        "counts": ArrayFormat((2,), "int64", "counts"),
    }


# Worlds of other sizes


def lone_sample(toy):
    """The world in which device 0 has one sample of class 0 beside its others, all that it has."""
    labels = toy.dataset.labels("train", toy.partition.train[0]).numpy()
    own = np.concatenate([toy.partition.train[0][labels == 0][:1], toy.partition.train[0][labels != 0]])
    counts = toy.partition.train_counts.copy()
    counts[0, 0] = 1
    train = (np.sort(own), *toy.partition.train[1:])
    partition = dataclasses.replace(toy.partition, train=train, train_counts=counts)
    data = LocalData(toy.dataset, partition, toy.proxy)
    return dataclasses.replace(toy, partition=partition, engine=SequentialEngine(data, toy.models))


def test_a_single_sample_of_a_class_is_sent_and_remembered(toy, play):
    world = lone_sample(toy)
    exact = play(Kfl(), world, [[0]]).uploads[0][0].arrays
    assert exact["counts"].tolist() == [1, 7, 0, 0]
    state = play(SelfKnowledge(), world, [[0]]).devices[0]
    assert state["own/known"].tolist() == [True, True, False, False]
    assert play(FedProto(), world, [[0]]).uploads[0][0].arrays["counts"].tolist() == [1, 1, 0, 0]


def test_a_single_bit_carries_the_least_and_the_largest_value_of_the_classes_that_are_held():
    """One sample is enough to hold a class, and a class that is not held has no say in the range."""
    means = torch.tensor([[2.0, 3.0], [0.0, 0.0], [5.0, 2.5]])
    rough = [Kfl(bits_per_value=1)._upload(k, means, torch.tensor([1, 0, 3]), RoundKey(7, 0)) for k in range(20)]
    found = torch.stack([upload.arrays["means"] for upload in rough])
    assert not found[:, 1].any()
    assert set(found[:, [0, 2]].flatten().tolist()) == {2.0, 5.0}
    assert set(found[:, 0, 0].tolist()) == {2.0} and set(found[:, 2, 0].tolist()) == {5.0}
    assert set(found[:, 0, 1].tolist()) == {2.0, 5.0}  # at random, and every device draws for itself


@pytest.mark.parametrize("algorithm", [FedAvg(), FedRep(), Apfl()], ids=lambda a: a.name)
def test_a_fleet_may_be_one_device(algorithm, toy):
    models = dataclasses.replace(toy.models, architecture=toy.models.architecture[:1])
    partition = dataclasses.replace(
        toy.partition,
        train=toy.partition.train[:1],
        test=toy.partition.test[:1],
        train_counts=toy.partition.train_counts[:1],
        test_counts=toy.partition.test_counts[:1],
    )
    engine = SequentialEngine(LocalData(toy.dataset, partition), models)
    server, state = algorithm.server_init(engine, 3), algorithm.device_init(engine, 0, 3)
    start = engine.initial(0, 3, common=True)
    torch.testing.assert_close(algorithm.predictor(server, state), start)


def test_what_a_device_remembers_lies_beside_its_model_and_has_its_type(toy):
    """PyTorch's device "meta" stands for a GPU: what is on another one cannot be computed with."""
    engine = SequentialEngine(LocalData(toy.dataset, toy.partition), toy.models, device="meta", number="float64")
    apfl = Apfl().device_init(engine, 0, toy.seed)
    assert {(value.device.type, value.dtype) for value in apfl.values()} == {("meta", torch.float64)}
    own = SelfKnowledge().device_init(engine, 0, toy.seed)
    assert {value.device.type for value in own.values()} == {"meta"}
    pull = pull_to(torch.ones(4, 5), 0.5, own)
    assert (pull.targets.device.type, pull.known.device.type) == ("meta", "meta")


def test_the_pull_to_fixed_targets_holds_for_every_class(toy):
    pull = pull_to(torch.ones(4, 5), 0.5, toy.engine.initial(0, 0))
    assert pull.known.tolist() == [True] * 4 and pull.known.dtype == torch.bool
    assert (pull.weight, pull.targets.shape) == (0.5, (4, 5))


def test_fedrep_draws_other_batches_for_the_body_than_for_the_head(toy):
    """The second training of a device in a round is phase 1 of its draws."""
    algorithm, key = FedRep(batch_size=4, head_steps=2, body_steps=3), RoundKey(toy.seed, 6)
    server, state = algorithm.server_init(toy.engine, toy.seed), algorithm.device_init(toy.engine, 1, toy.seed)
    (after,), (upload,) = algorithm.local_update(server, [1], [state], toy.engine, key)
    model, expected = {**server, **state}, Supervised()
    (model,) = toy.engine.train([1], [model], expected, Sgd(2, 0.0, 0.05, 0.9, 4), RoundKey(toy.seed, 6))
    (model,) = toy.engine.train([1], [model], expected, Sgd(3, 0.05, 0.0, 0.9, 4), RoundKey(toy.seed, 6, phase=1))
    for name, value in model.items():
        assert torch.equal({**after, **upload.arrays}[name], value)


def test_parts_of_a_model_are_told_by_their_prefix():
    state = {"body.0.weight": torch.ones(1), "head.weight": torch.zeros(1), "bodyguard": torch.ones(2)}
    assert part_of(state, "body.") == {"body.0.weight": state["body.0.weight"]}
    assert part_of(state, "head.") == {"head.weight": state["head.weight"]}
