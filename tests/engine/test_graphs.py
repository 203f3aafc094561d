"""CUDA graphs without a GPU: every operation of a computation is written down and done again on the same memory.

That is what a graph does, so it shows what a graph would: a computation that reads anything but its fixed inputs,
or whose results are not copied in time, gives wrong numbers here too.
"""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kfl.data import Dataset, Partition, partition
from kfl.engine import Distillation, FeatureTargets, LocalData, Mixture, RoundKey, Sgd, Supervised
from kfl.engine.graphs import GraphRunner, Input
from kfl.engine.objectives import MIXING, PERSONAL
from kfl.engine.samples import ResidentTable, StoredTable
from kfl.engine.stacked import StackedEngine
from kfl.models import SplitModel, fleet_from_modules, fleet_from_name
from tests.reference.plain_engine import PlainEngine, class_means

torch.set_num_threads(1)
CPU = torch.device("cpu")


class Recorder(TorchDispatchMode):
    """A graph: operations with their memory."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.before = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.is_mutable:
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor):
                    self.before.setdefault(value.data_ptr(), (value, value.clone()))
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def restore(self):
        """What is recorded is not done."""
        for value, before in self.before.values():
            value.copy_(before)

    @torch.no_grad()
    def replay(self):
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def recorded(monkeypatch):
    @contextlib.contextmanager
    def record(graph, pool):
        with graph:
            yield
        graph.restore()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorder)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_the_first_call_runs_the_second_records_the_third_plays(recorded):
    runner, ran = GraphRunner(enabled=True), []

    def body(held):
        ran.append(1)
        held["x"].add_(1)
        return {"x": held["x"], "double": 2 * held["x"]}

    results = []
    for number in range(5):
        value = torch.full((3,), float(number))
        fill = Input((3,), lambda memory, v=value: v.clone() if memory is None else memory.copy_(v))
        results.append(runner.run("key", {"x": fill}, body))
    assert len(ran) == 2 and runner.recorded == 1
    for number, result in enumerate(results):
        assert torch.equal(result["x"], torch.full((3,), number + 1.0))
        assert torch.equal(result["double"], torch.full((3,), 2 * number + 2.0))
    other = Input((4,), lambda memory: torch.zeros(4))
    assert torch.equal(runner.run("key", {"x": other}, body)["x"], torch.ones(4)), "another shape is another graph"


def test_what_cannot_be_recorded_runs_directly_and_says_why(recorded, caplog):
    runner = GraphRunner(enabled=True)

    def body(held):
        if torch.utils._python_dispatch._len_torch_dispatch_stack():
            raise RuntimeError("operation not permitted when stream is capturing")
        return {"x": held["x"] + 1}

    fill = Input((1,), lambda memory: torch.zeros(1) if memory is None else memory.zero_())
    for _ in range(4):
        assert runner.run("key", {"x": fill}, body)["x"] == 1
    assert "not permitted" in runner.problem and runner.recorded == 0
    assert len(caplog.records) == 1


def world(model):
    shape = (1, 4, 4) if model == "mlp" else (2, 16, 16)
    draw = np.random.default_rng(0)
    y = np.arange(160) % 4
    x = (draw.random((160, *shape)) * 200 + 10 * y.reshape(-1, 1, 1, 1)).astype(np.uint8)
    statistics = {"mean": (0.4,) * shape[0], "std": (0.3,) * shape[0]}
    data = Dataset.from_arrays(x, y, x[:60], y[:60], scale=1 / 255, **statistics)
    split = partition("dirichlet", data.train_y, data.test_y, 4, 8, 0)
    return LocalData(data, split, np.arange(9)), fleet_from_name(model, (6, 9), 8, shape, 4, seed=0)


def test_a_resident_table_has_exactly_the_numbers_of_the_dataset():
    data, _ = world("cnn")
    rows = torch.tensor([[3, 5, 3], [0, 1, 159]])
    wanted, labels = StoredTable(data.dataset, "train", torch.float32, CPU).gather(rows)
    for ready in (True, False):
        found, own = ResidentTable(data.dataset, "train", torch.float32, CPU, ready=ready).gather(rows)
        assert torch.equal(found, wanted) and torch.equal(own, labels)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("task", ["labels", "own targets", "mini-batches", "mixture", "distillation"])
def test_rounds_played_from_graphs_equal_rounds_one_by_one(recorded, model, task):
    data, models = world(model)
    plain, stacked = PlainEngine(data, models), StackedEngine(data, models, "cpu")
    stacked._work.graphs.enabled = True
    for split in ("train", "test"):
        stacked._work._tables[split] = ResidentTable(data.dataset, split, torch.float32, CPU, ready=True)
    # Devices with equal numbers of samples give one shape, whichever they are.
    devices = list(range(8))
    draw = torch.Generator().manual_seed(0)
    states = {id(engine): [engine.initial(device, 0) for device in devices] for engine in (plain, stacked)}
    if task == "mixture":
        for own in states.values():
            for place, state in enumerate(own):
                own[place] = {
                    **state,
                    **{PERSONAL + name: 0.9 * value for name, value in state.items()},
                    MIXING: torch.tensor(0.5),
                }
    sgd = Sgd(2, 0.05, 0.03, 0.9, batch_size=7 if task == "mini-batches" else None)
    for number in range(4):
        given = None
        first = (8,) if task == "own targets" else ()
        targets = torch.randn(*first, 4, 64, generator=draw)
        known = torch.rand(*first, 4, generator=draw) < 0.7
        objective = Supervised(FeatureTargets(0.3, targets, known))
        if task == "mixture":
            objective = Mixture(0.1)
        if task == "distillation":
            objective = Distillation(2.0)
            given = (plain.proxy()[0], torch.randn(9, 4, generator=draw))
        for engine in (plain, stacked):
            key = RoundKey(0, number)
            states[id(engine)] = engine.train(devices, states[id(engine)], objective, sgd, key, given)
        for one, other in zip(states[id(stacked)], states[id(plain)], strict=True):
            for name in other:
                torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)
        if task == "mixture":
            continue
        for of in ("features", "logits"):
            wanted, counts = class_means(plain, devices, states[id(plain)], of=of)
            found, numbers = class_means(stacked, devices, states[id(stacked)], of=of)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
            assert torch.equal(numbers, counts)
        assert stacked.correct(devices, states[id(stacked)]) == plain.correct(devices, states[id(plain)])
    assert stacked.choices.graphs_recorded > 0 and not stacked.choices.graphs_problem


def test_a_graph_serves_cohorts_of_one_width_and_of_several(recorded):
    shape, y = (1, 4, 4), np.arange(160) % 4
    x = np.random.default_rng(0).integers(0, 200, (160, *shape), dtype=np.uint8)
    data = Dataset.from_arrays(x, y, x[:60], y[:60], scale=1 / 255)
    split = partition("iid", data.train_y, data.test_y, 4, 8, 0)
    local, models = LocalData(data, split), fleet_from_name("mlp", (6, 9), 8, shape, 4, seed=0)
    wide = [k for k in range(8) if models.initial(k, 0)["body.3.weight"].shape[0] == 9]
    narrow = [k for k in range(8) if k not in wide]
    assert len(wide) >= 2 and len(narrow) >= 2
    plain, stacked = PlainEngine(local, models), StackedEngine(local, models, "cpu")
    stacked._work.graphs.enabled = True
    stacked._work._tables["train"] = ResidentTable(data, "train", torch.float32, CPU, ready=True)
    mixed, sgd = [wide[0], narrow[0]], Sgd(3, 0.05, 0.03, 0.9)
    for number, devices in enumerate([mixed, mixed, wide[:2], narrow[:2], wide[:2], mixed]):
        found, wanted = (
            engine.train(devices, [engine.initial(k, 0) for k in devices], Supervised(), sgd, RoundKey(0, number))
            for engine in (stacked, plain)
        )
        for one, other in zip(found, wanted, strict=True):
            for name in other:
                torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)
    assert stacked.choices.graphs_recorded == 1


def own_body():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(96, 5)
    )


def test_own_modules_train_step_by_step_from_one_graph_whoever_takes_part(recorded):
    """Unequal numbers of samples and steps, rounds of any size, ragged batches: one graph, each device as alone."""
    shape, counts = (1, 4, 4), (20, 13, 10, 17, 20, 11, 14, 16)
    draw = np.random.default_rng(0)
    y = np.arange(sum(counts)) % 4
    data = Dataset.from_arrays(draw.normal(size=(len(y), *shape)).astype(np.float32), y, name="own")
    rows = np.split(np.arange(len(y)) % len(data.train_y), np.cumsum(counts)[:-1])
    table = np.stack([np.bincount(data.train_y[own], minlength=4) for own in rows])
    local = LocalData(data, Partition(tuple(rows), tuple(own[:3] % len(data.test_y) for own in rows), table, table))
    torch.manual_seed(0)
    models = fleet_from_modules([SplitModel(own_body(), nn.Linear(5, 4)) for _ in counts], len(counts), shape, 4)
    plain, stacked = PlainEngine(local, models), StackedEngine(local, models, "cpu")
    stacked._work.graphs.enabled = True
    for split in ("train", "test"):
        stacked._work._tables[split] = ResidentTable(data, split, torch.float32, CPU, ready=True)
    sgd = Sgd(3, 0.05, 0.03, 0.9, batch_size=6)
    recorded_then = []
    for number, devices in enumerate([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7, 1], [7, 0, 2, 4, 6], [1, 2, 3, 4, 5, 6]]):
        states = [plain.initial(device, number) for device in devices]
        found, wanted = (
            engine.train(devices, states, Supervised(), sgd, RoundKey(0, number)) for engine in (stacked, plain)
        )
        for one, other in zip(found, wanted, strict=True):
            assert one.keys() == other.keys()
            for name in other:
                torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)
        recorded_then.append(stacked.choices.graphs_recorded)
    assert list(stacked.choices.families.values()) == ["torch.func"]
    assert recorded_then == [1] * 4 and not stacked.choices.graphs_problem
