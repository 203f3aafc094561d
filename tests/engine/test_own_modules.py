"""Any module, in mini-batches, on every engine: what a plain PyTorch loop gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.loop import LoopRun
from benchmarks.rounds import EngineRun
from kfl.algorithms import Kfl
from kfl.data import Dataset, LocalData, Partition
from kfl.engine import Engine, RoundKey, Supervised
from kfl.engine.cohorts import structure
from kfl.engine.plan import make_engine, make_plan
from kfl.engine.stacked import StackedEngine
from kfl.models import FleetModels, fleet_from_modules, fleet_from_name
from tests.reference.own_modules import ODD, Through

DEVICES, CLASSES = 6, 4
COUNTS = [23, 40, 12, 31, 23, 7]
"""Training samples of each device: unequal, and one with fewer than a mini-batch."""
ALGORITHM = Kfl(local_steps=2, batch_size=9)
ROUNDS = [[0, 1, 2, 5], [1, 3, 4, 5], [0, 1, 3, 4]]
ENGINES = ["cpu", "stacked"]
NETWORKS = {
    "mlp": ((1, 4, 5), (8, 12)),
    "cnn": ((2, 16, 18), (6, 10)),
    "resnet8": ((3, 8, 8), (4, 8)),
    "resnet18": ((1, 8, 8), (2,)),
    "mobilenet": ((3, 8, 8), (2, 4)),
    "sensor": ((3, 30), (4, 6)),
    "transformer": ((3, 8, 8), (8, 12)),
}
"""Small, so that it is quick."""
STEADY = [name for name in NETWORKS if name not in ("resnet18", "mobilenet")]
"""Networks in which float32 stays within 1e-5 for three rounds. A channel that is zero for all samples is normalized by
almost nothing, which enlarges rounding a hundredfold in each layer; the deep ones have such channels."""


def local_data(shape):
    draw = np.random.default_rng(0)
    total = sum(COUNTS)
    y = draw.integers(0, CLASSES, size=total)
    x = (0.5 * draw.normal(size=(total, *shape)) + 0.4 * y.reshape(-1, *[1] * len(shape))).astype(np.float32)
    rows = np.split(draw.permutation(total), np.cumsum(COUNTS)[:-1])
    test = [own[: len(own) // 2] for own in rows]
    tables = [np.stack([np.bincount(y[own], minlength=CLASSES) for own in part]) for part in (rows, test)]
    data = Dataset.from_arrays(x, y, x, y, classes=CLASSES)
    return LocalData(data, Partition(tuple(rows), tuple(test), *tables))


def engine_of(kind: str, data: LocalData, models: FleetModels, precision: str = "float32") -> Engine:
    if kind == "cpu":
        return make_engine(data, models, "cpu", precision, replace(make_plan(models, "cpu", precision), workers=2))
    return StackedEngine(data, models, "cpu", precision)


def agree(engine: Engine, data: LocalData, models: FleetModels, tolerance: float = 1e-5) -> None:
    """Three rounds through the engine and by the loop give the same models, knowledge and right predictions."""
    run = EngineRun(engine, ALGORITHM, devices=DEVICES)
    weight = ALGORITHM.knowledge_weight
    loop = LoopRun(data, models, ALGORITHM.sgd(), weight, precision=engine.plan.precision)
    for chosen in ROUNDS:
        run.play(chosen)
        assert sum(run.right[device] for device in chosen) == loop.play(chosen)
    close = {"atol": tolerance, "rtol": tolerance}
    for device in range(DEVICES):
        found, wanted = run.state(device), loop.state(device)
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, **close)
    torch.testing.assert_close(run.server["knowledge"].to(loop.knowledge.dtype), loop.knowledge, **close)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("network", STEADY)
def test_each_network_by_name_learns_what_the_loop_learns(network, kind):
    shape, widths = NETWORKS[network]
    data, models = local_data(shape), fleet_from_name(network, widths, DEVICES, shape, CLASSES, seed=3)
    agree(engine_of(kind, data, models), data, models)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("network", NETWORKS)
def test_each_network_by_name_in_float64(network, kind):
    shape, widths = NETWORKS[network]
    data, models = local_data(shape), fleet_from_name(network, widths, DEVICES, shape, CLASSES, seed=3)
    agree(engine_of(kind, data, models, "float64"), data, models, 1e-7)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_fleet_of_several_architectures_learns_what_the_loop_learns(kind):
    shape = (3, 16, 16)
    names = [("resnet8", 2), ("mobilenet", 2), ("cnn", 6), ("transformer", 8), ("resnet8", 4), ("mlp", 7)]
    apart = [fleet_from_name(name, (width,), DEVICES, shape, CLASSES, seed=0) for name, width in names]
    models = FleetModels(
        tuple(fleet.builders[0] for fleet in apart),
        np.arange(DEVICES),
        tuple(fleet.profiles[0] for fleet in apart),
        (None,) * DEVICES,
        tuple(fleet.names[0] for fleet in apart),
    )
    data = local_data(shape)
    agree(engine_of(kind, data, models, "float64"), data, models, 1e-7)


def odd_fleet(what: str) -> FleetModels:
    def model(device):
        torch.manual_seed(device)
        return ODD[what](8 if device % 3 else 12)

    with torch.random.fork_rng(devices=[]):
        return fleet_from_modules(model, DEVICES, (5,), CLASSES)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("what", [what for what in ODD if what != "dropout"])
def test_odd_modules_learn_what_the_loop_learns(what, kind):
    data, models = local_data((5,)), odd_fleet(what)
    agree(engine_of(kind, data, models), data, models)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("what", ["batch norm", "layer used twice", "head tied to the body", "counts its batches"])
def test_odd_modules_in_float64(what, kind):
    data, models = local_data((5,)), odd_fleet(what)
    agree(engine_of(kind, data, models, "float64"), data, models, 1e-7)


@pytest.mark.parametrize("what", [*ODD, *NETWORKS])
def test_bf16_is_near_float32_for_any_module(what):
    if what in ODD:
        data, models = local_data((5,)), odd_fleet(what)
    else:
        shape, widths = NETWORKS[what]
        data, models = local_data(shape), fleet_from_name(what, widths, DEVICES, shape, CLASSES, seed=3)
    exact, short = engine_of("cpu", data, models), engine_of("cpu", data, models, "bf16")
    states = [exact.initial(device, 0) for device in range(DEVICES)]
    sgd = ALGORITHM.sgd()
    one, other = (e.train(range(DEVICES), states, Supervised(), sgd, RoundKey(0, 0)) for e in (exact, short))
    for before, mine, theirs in zip(states, one, other, strict=True):
        weights = [name for name in mine if mine[name].is_floating_point() and "running" not in name]
        moved = sum(float((mine[name] - before[name]).square().sum()) for name in weights) ** 0.5
        apart = sum(float((mine[name] - theirs[name]).square().sum()) for name in weights) ** 0.5
        assert 0 < apart < (0.5 if what not in NETWORKS or what in STEADY else 2.0) * moved
    assert len(short.correct(range(DEVICES), other)) == DEVICES


@pytest.mark.parametrize("kind", ENGINES)
def test_dropout_is_drawn_by_name(kind):
    data, models = local_data((5,)), odd_fleet("dropout")
    runs = [EngineRun(engine_of(kind, data, models), ALGORITHM, devices=DEVICES) for _ in range(2)]
    outside = torch.random.get_rng_state()
    for chosen in ROUNDS:
        assert runs[0].play(chosen) == runs[1].play(chosen[::-1])  # in whatever order and company
        assert torch.equal(torch.random.get_rng_state(), outside)
    loop = LoopRun(data, models, ALGORITHM.sgd(), ALGORITHM.knowledge_weight)
    for module in loop.models:
        module.body[1].p = 0.0
    for chosen in ROUNDS:
        loop.play(chosen)
    for device in range(DEVICES):
        one, other, without = runs[0].state(device), runs[1].state(device), loop.state(device)
        assert all(torch.allclose(one[name], other[name], rtol=1e-6, atol=1e-7) for name in one)
        difference = max(float((one[name] - without[name]).abs().max()) for name in one)
        assert 1e-3 < difference < 0.5


def test_dropout_is_the_same_on_every_engine():
    data, models = local_data((5,)), odd_fleet("dropout")
    runs = [EngineRun(engine_of(kind, data, models), ALGORITHM, devices=DEVICES) for kind in ENGINES]
    for chosen in ROUNDS:
        assert runs[0].play(chosen) == runs[1].play(chosen)
    for device in range(DEVICES):
        for name, value in runs[0].state(device).items():
            torch.testing.assert_close(runs[1].state(device)[name], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("cannot be vectorized", "it writes in place into a tensor that it makes itself"),
        ("branch on data", "it decides in Python by what is in a batch"),
        ("lstm", "Batching rule not implemented for aten::lstm.input"),
    ],
)
def test_why_devices_are_not_stacked_is_one_sentence_for_each_architecture(what, reason, caplog):
    data, models = local_data((5,)), odd_fleet(what)
    run = EngineRun(StackedEngine(data, models, "cpu"), ALGORITHM, devices=DEVICES)
    run.play(list(range(DEVICES)))
    sentence = f"cannot be vectorized: {reason}. Its devices are trained one after another."
    assert [record.getMessage().endswith(sentence) for record in caplog.records] == [True, True]  # of two widths


def test_modules_that_differ_only_in_what_they_share_are_not_alike():
    tied, apart = ODD["head tied to the body"](8), ODD["head tied to the body"](8)
    apart.head[0].weight = torch.nn.Parameter(apart.body[2].weight.detach().clone())
    assert structure(tied) != structure(apart)
    assert structure(tied) == structure(ODD["head tied to the body"](8))


def test_lambdas_are_alike_by_what_they_do():
    def scaled(factor):
        return ODD["lambda"](8) if factor is None else Through(lambda x: factor * x)

    assert structure(scaled(None)) == structure(scaled(None))
    assert structure(scaled(2)) == structure(scaled(2)) != structure(scaled(3))
