"""Servers that learn from class means: FD, FedGH and FedTGP beyond their twins."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from kfl.algorithms import FederatedDistillation, FedGh, FedTgp, Upload
from kfl.core.errors import ConfigError, ModelError
from kfl.engine import RoundKey
from kfl.models import SplitModel, fleet_from_modules

KEY = RoundKey(7, 1)
prototype_servers = pytest.mark.parametrize("cls", [FederatedDistillation, FedGh, FedTgp], ids=lambda cls: cls.name)


def report(device, means, counts):
    return Upload(device, {"means": torch.tensor(means), "counts": torch.tensor(counts)})


@pytest.fixture
def reports(toy):
    """Three devices with features of their own, which all hold class 1; no device holds class 3."""
    draw = torch.Generator().manual_seed(2)
    held = ([1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0])

    def made(columns):
        # Classes lie one behind the other, so that FedTGP's margin follows from the mean of the middle one.
        apart = 6 * torch.arange(4.0)[:, None]
        means = [torch.randn(4, columns, generator=draw) + apart for _ in held]
        return [report(k, mean.tolist(), counts) for k, (mean, counts) in enumerate(zip(means, held, strict=True))]

    return lambda algorithm: made(toy.engine.classes if algorithm.of == "logits" else toy.engine.features)


@prototype_servers
def test_a_device_weighs_one_whatever_number_it_claims(cls, toy, reports):
    algorithm = cls()
    server, honest = algorithm.server_init(toy.engine, 7), reports(algorithm)
    boast = [Upload(u.device, {**u.arrays, "counts": u.arrays["counts"] * (1 + 3 * u.device)}) for u in honest]
    (plain, _), (loud, _) = (algorithm.aggregate(server, sent, engine=toy.engine, key=KEY) for sent in (honest, boast))
    assert all(torch.equal(plain[name], loud[name]) for name in plain)


def test_class_means_are_samples_with_labels_in_the_order_of_devices(toy):
    means = torch.arange(20.0).reshape(4, 5)
    late, broken, early = (
        report(device, means.tolist(), counts)
        for device, counts in ((7, [0, 0, 3, 0]), (4, [-1, 0, 3, 0]), (2, [1, 0, 0, 2]))
    )

    class Collector(FedGh):
        def learned(self, server, samples, mean, reported, key):
            return {"vectors": samples[0], "labels": samples[1], "reported": reported}

    server = Collector().server_init(toy.engine, 7)
    found, rejected = Collector().aggregate(server, [late, broken, early], engine=toy.engine, key=KEY)
    assert [(one.device, one.code) for one in rejected] == [(4, "negative_count")]
    assert found["labels"].tolist() == [0, 3, 2] and found["vectors"].equal(means[[0, 3, 2]].double())
    assert found["reported"].tolist() == [True, False, True, True]


@prototype_servers
def test_a_class_keeps_what_was_said_of_it_and_one_of_which_nothing_was_said_has_zeros(cls, toy, reports):
    algorithm = cls()
    once, _ = algorithm.aggregate(algorithm.server_init(toy.engine, 7), reports(algorithm), engine=toy.engine, key=KEY)
    assert once["known"].tolist() == [True, True, True, False] and not once["knowledge"][3].any()
    twice, _ = algorithm.aggregate(once, reports(algorithm)[2:], engine=toy.engine, key=RoundKey(7, 2))
    assert twice["known"].tolist() == [True, True, True, False] and not twice["knowledge"][3].any()
    if cls is not FederatedDistillation:  # which has no vectors of features to show
        rows, known = algorithm.class_vectors(twice)
        assert rows is twice["knowledge"] and known is twice["known"]
    if cls is not FedTgp:  # whose server trains all prototypes at once
        assert twice["knowledge"][[0, 2]].equal(once["knowledge"][[0, 2]])
        assert not twice["knowledge"][1].equal(once["knowledge"][1])


def test_fedgh_keeps_the_mean_prototype_of_each_class_for_reports(toy, reports):
    algorithm, sent = FedGh(), reports(FedGh())
    after, _ = algorithm.aggregate(algorithm.server_init(toy.engine, 7), sent, engine=toy.engine, key=KEY)
    rows, known = algorithm.class_vectors(after)
    assert known.tolist() == [True, True, True, False]
    means = [upload.arrays["means"] for upload in sent]
    wanted = torch.stack([means[0][0], (means[0][1] + means[1][1] + means[2][1]) / 3, means[1][2]])
    torch.testing.assert_close(rows[:3], wanted)


def test_fedghs_devices_take_the_head_as_soon_as_anybody_has_reported(toy, play):
    """Device 0 knows two of the four classes; its word is enough."""
    algorithm = FedGh(local_steps=1, learning_rate=1e-30)
    fresh = algorithm.server_init(toy.engine, toy.seed)
    assert not bool(algorithm.broadcast(fresh)["trained"])
    after = play(algorithm, toy, [[0], [2]])
    own = [algorithm.device_init(toy.engine, device, toy.seed)["head.weight"] for device in (0, 2)]
    assert after.devices[0]["head.weight"].equal(own[0])
    assert not after.devices[2]["head.weight"].equal(own[1])
    once = play(algorithm, toy, [[0]]).server
    assert after.devices[2]["head.weight"].equal(once["head.weight"])
    assert not once["head.weight"].equal(fresh["head.weight"])


def test_first_weights_of_a_server_are_drawn_as_pytorch_draws_a_linear_layer(toy):
    """Uniform within 1/√p, p = 5 features: within it, nearly up to it, on both sides, and of the right variance."""
    bound = 1 / math.sqrt(5)
    drawn = {
        "fedgh": [FedGh().server_init(toy.engine, seed) for seed in range(40)],
        "fedtgp": [FedTgp().server_init(toy.engine, seed) for seed in range(20)],
    }
    for method, names in {"fedgh": ("head.weight", "head.bias"), "fedtgp": ("hidden", "output")}.items():
        for name in names:
            found = torch.cat([v.flatten() for state in drawn[method] for n, v in state.items() if name in n])
            assert bool((found.abs() <= bound).all())
            assert float(found.max()) > 0.97 * bound and float(found.min()) < -0.97 * bound
            assert float(found.square().mean()) == pytest.approx(bound**2 / 3, rel=0.2)
    embedding = torch.cat([state["generator/embedding"].flatten() for state in drawn["fedtgp"]])
    assert float(embedding.std()) == pytest.approx(1.0, rel=0.15) and float(embedding.abs().max()) > 2


class Scaled(nn.Linear):
    """A head with the arrays of a linear layer that is none."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("heads", "taken"),
    [
        ([nn.Linear(5, 3), nn.Linear(5, 3)], True),
        ([nn.Linear(5, 3, bias=False), nn.Linear(5, 3, bias=False)], True),
        ([nn.Linear(5, 3), Scaled(5, 3)], False),
        ([Scaled(5, 3), nn.Linear(5, 3)], False),
        ([Scaled(5, 3), Scaled(5, 3)], False),
        ([nn.Linear(5, 3), nn.Linear(5, 3, bias=False)], False),
    ],
)
def test_fedgh_takes_heads_that_are_one_linear_layer_of_one_shape(heads, taken):
    models = [SplitModel(nn.Sequential(nn.Linear(6, 4 + k), nn.Linear(4 + k, 5)), head) for k, head in enumerate(heads)]
    fleet = fleet_from_modules(models, 2, (6,), 3)
    before = torch.random.get_rng_state()
    if taken:
        FedGh().check_models(fleet)
    else:
        with pytest.raises(ModelError, match=r"one linear layer of the same shape, such as torch.nn.Linear\(64, 10\)"):
            FedGh().check_models(fleet)
    assert torch.random.get_rng_state().equal(before)  # networks are built to look at, no device's draws are used up


def test_fedgh_knows_two_kinds_of_head():
    with pytest.raises(ConfigError, match=r"algorithm\.head is 'own', but must be one of trained, as-released"):
        FedGh(head="own").validate()


@pytest.mark.parametrize(
    ("points", "margin"),
    [
        ([[0.0, 0.0]], 100.0),  # one class has no other
        ([[0.0, 0.0], [3.0, 4.0]], 5.0),
        ([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0], [-12.0, 5.0]], 13.0),
        ([[0.0, 0.0], [300.0, 400.0]], 100.0),
    ],
)
def test_fedtgps_margin_is_that_of_the_class_furthest_from_its_nearest_other(points, margin):
    assert FedTgp()._margin(torch.tensor(points)) == pytest.approx(margin)


def test_fedtgps_distances_are_exact_far_from_zero():
    """Only distances count, so moving all prototypes and reports alike changes nothing but where they are.

    From products of vectors, distances of 0.01 between points that are a million away would be noise.
    """
    draw, classes, size = torch.Generator().manual_seed(4), 30, 3
    algorithm = FedTgp(server_epochs=3, server_learning_rate=1.0, server_batch_size=30, margin_limit=0.02)

    def normal(*shape):
        return 0.01 * torch.randn(*shape, generator=draw, dtype=torch.float64)

    server = {
        "knowledge": torch.zeros(classes, size, dtype=torch.float64),
        "known": torch.zeros(classes, dtype=torch.bool),
        "generator/embedding": 100 * normal(classes, size),
        "generator/hidden.weight": 100 * normal(size, size),
        "generator/hidden.bias": normal(size),
        "generator/output.weight": normal(size, size),
        "generator/output.bias": normal(size),
    }
    means, counts = normal(classes, size), torch.ones(classes, dtype=torch.int64)
    far, upload = {**server}, Upload(0, {"means": means, "counts": counts})
    far["generator/output.bias"] = server["generator/output.bias"] + 2.0**20
    moved = Upload(0, {"means": means + 2.0**20, "counts": counts})
    near, _ = algorithm.aggregate(server, [upload], engine=None, key=KEY)
    away, _ = algorithm.aggregate(far, [moved], engine=None, key=KEY)
    torch.testing.assert_close(away["knowledge"] - 2.0**20, near["knowledge"], rtol=0, atol=1e-7)
    for name in ("generator/embedding", "generator/hidden.weight", "generator/output.weight"):
        assert float((near[name] - server[name]).abs().max()) > 1e-4
        torch.testing.assert_close(away[name], near[name], rtol=0, atol=1e-7)
    spread = 2.0**20 + 0.01 * torch.arange(30, dtype=torch.float64)[:, None].expand(30, 3)
    assert FedTgp()._margin(spread) == pytest.approx(0.01 * math.sqrt(3), rel=1e-6)


def test_training_on_the_server_is_gradient_descent_in_float64():
    """One pass in batches of 2 over 5 samples of a quadratic loss, whose gradient is known, in the order drawn."""
    vectors = torch.arange(10, dtype=torch.float64).reshape(5, 2) / 3
    labels = torch.tensor([0, 1, 0, 1, 1])
    start = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "unused": torch.tensor([5.0])}

    def loss(now, points, classes):
        assert now["w"].dtype == torch.float64
        return 0.5 * (now["w"][classes] - points).square().sum(1).mean() + 0.0 * now["unused"].sum()

    algorithm = FedGh(server_epochs=2, server_learning_rate=0.3, server_batch_size=2)
    found = algorithm.descend(start, loss, (vectors, labels), KEY)
    w = start["w"].double()
    for epoch in range(2):
        order = torch.randperm(
            5, generator=torch.Generator().manual_seed(KEY.torch_seed("server batches", 0, epoch))
        ).tolist()
        for batch in (order[:2], order[2:4], order[4:]):
            step = torch.zeros(2, 2, dtype=torch.float64)
            for sample in batch:
                step[labels[sample]] += (w[labels[sample]] - vectors[sample]) / len(batch)
            w = w - 0.3 * step
    torch.testing.assert_close(found["w"], w, rtol=1e-12, atol=1e-12)
    assert found["unused"].tolist() == [5.0] and not any(value.requires_grad for value in found.values())
    assert start["w"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with torch.no_grad():  # whatever its caller does
        again = algorithm.descend(start, loss, (vectors, labels), KEY)
    assert again["w"].equal(found["w"])


def test_fedghs_server_takes_one_prototype_after_another(toy):
    """Two steps of softmax regression: w ← w + η (1 − p_y) h for the own class, − η p_c h for the others."""
    algorithm = FedGh(server_learning_rate=0.5)
    server, sent = algorithm.server_init(toy.engine, 7), report(0, torch.eye(4, 5).tolist(), [1, 0, 1, 0])
    weight, bias = server["head.weight"].double(), server["head.bias"].double()
    order = torch.randperm(2, generator=torch.Generator().manual_seed(KEY.torch_seed("server batches", 0, 0))).tolist()
    for label in ((0, 2)[place] for place in order):
        h = torch.eye(4, 5, dtype=torch.float64)[label]
        error = functional.one_hot(torch.tensor(label), 4) - torch.softmax(weight @ h + bias, 0)
        weight, bias = weight + 0.5 * error[:, None] * h, bias + 0.5 * error
    after, _ = algorithm.aggregate(server, [sent], engine=toy.engine, key=KEY)
    torch.testing.assert_close(after["head.weight"].double(), weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(after["head.bias"].double(), bias, rtol=0, atol=1e-6)
