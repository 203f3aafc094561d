"""What servers make of uploads, in cases small enough to compute by hand; and what a round costs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from kfl.algorithms import (
    Apfl,
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
from kfl.algorithms.targets import fixed_targets
from kfl.core.errors import ConfigError, DataError, ModelError
from kfl.engine import DeviceProfile, LocalData
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
    assert secret.bits(profile)[0] == 20_480 + 320  # noisy counts report every class, so there is no mask
    assert Kfl(charge="held").bits(DeviceProfile(MLP, 600))[0] == 20_480 + 10
