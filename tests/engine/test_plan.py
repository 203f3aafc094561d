"""Plans: what is chosen for a fleet, what older run folders say, and what a machine without a compiler does."""

import logging

import pytest
import torch

from kfl.core.errors import ConfigError, MissingExtraError
from kfl.engine import RoundKey, Sgd, Supervised, plan
from kfl.engine.plan import Plan, check_device, make_engine, make_plan
from kfl.engine.stacked import StackedEngine
from tests.engine.test_autograd import fleet

KEY, SGD = RoundKey(0, 0), Sgd(2, 0.05, 0.05, 0.9)


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr("kfl.engine.compile.find_compiler", lambda: None)
    monkeypatch.setattr(plan, "_logged", set())


def test_choices_that_cannot_be():
    data, models = fleet()
    with pytest.raises(ConfigError, match="precision is 'half'"):
        make_plan(models, precision="half")
    with pytest.raises(ConfigError, match="device is 'tpu'"):
        check_device("tpu")
    if not torch.cuda.is_available():
        assert check_device("auto") == "cpu"
        with pytest.raises(ConfigError, match="finds no GPU"):
            make_engine(data, models, device="cuda")
        with pytest.raises(ConfigError, match="finds no GPU"):
            make_plan(models, device="cuda")
    with pytest.raises(ConfigError, match=r"plan\.workers"):
        Plan.read({"workers": "two"})
    with pytest.raises(ConfigError, match=r"plan\.speed"):
        Plan.read({"speed": "high"})


def test_blocks_are_compiled_for_networks_that_have_them():
    assert make_plan(fleet("mlp")[1]).compiler == ""
    compiler = make_plan(fleet("cnn", (3, 20, 20))[1]).compiler
    assert compiler and Plan.read(make_plan(fleet("cnn", (3, 20, 20))[1]).table()).compiler == compiler


def test_without_a_compiler_convolutions_are_pytorchs_and_one_line_says_so(no_compiler, caplog):
    data, models = fleet("cnn", (3, 20, 20))
    with caplog.at_level(logging.INFO, "kfl"):
        engine = make_engine(data, models)
        make_engine(data, models)
    assert engine.plan.compiler == ""
    assert len(caplog.records) == 1 and "kfl[fast]" in caplog.text
    state = engine.initial(0, 0)
    with_blocks = make_engine(data, models, plan=Plan())
    one, other = (e.train([0], [state], Supervised(), SGD, KEY)[0] for e in (engine, with_blocks))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(MissingExtraError, match="ziglang"):
        make_engine(data, models, plan=Plan(compiler="gcc 12"))


OLD = [
    {"device": "cpu", "precision": "float32", "workers": 2, "gram": True, "paths": ["mlp", "mlp"]},
    {"device": "cpu", "precision": "bf16", "workers": 1, "gram": False, "paths": ["plain"], "otherwise": "worker"},
    {
        **{"device": "cpu", "precision": "float32", "workers": 2, "gram": True, "paths": ["cnn", "worker"]},
        **{"otherwise": "worker", "compiled": True},
    },
]


@pytest.mark.parametrize("old", OLD)
def test_a_plan_of_an_older_version_goes_on_and_keeps_its_table(old):
    """A checkpoint belongs to the plan as it was written."""
    found = Plan.read(old)
    assert found.table() == old and Plan.read(found.table()) == found
    data, models = fleet("cnn" if "cnn" in old["paths"] else "mlp", (3, 20, 20))
    engine = make_engine(data, models, plan=found)
    assert engine.plan.table() == old
    state = engine.initial(0, 0)
    after = engine.train([0], [state], Supervised(), SGD, KEY)[0]
    expected = make_engine(data, models, precision=old["precision"]).train([0], [state], Supervised(), SGD, KEY)[0]
    assert all(torch.equal(after[name], expected[name]) for name in after)


def test_an_older_plan_that_needed_a_compiler_goes_on_without(no_compiler, caplog):
    data, models = fleet("cnn", (3, 20, 20))
    with caplog.at_level(logging.INFO, "kfl"):
        engine = make_engine(data, models, plan=Plan.read(OLD[2]))
    assert "several times slower" in caplog.text
    assert len(engine.train([0], [engine.initial(0, 0)], Supervised(), SGD, KEY)) == 1


def test_seeds_that_once_shared_a_batch_are_ignored_and_batches_on_a_cpu_are_not():
    data, models = fleet()
    old = {"device": "cpu", "precision": "float32", "workers": 1, "gram": True, "paths": ["stacked", "stacked"]}
    engine = make_engine(data, models, plan=Plan.read({**old, "together": 5}))
    assert isinstance(engine, StackedEngine) and engine.plan.table() == old


def test_another_compiler_than_the_plans_is_told(caplog, monkeypatch):
    monkeypatch.setattr(plan, "_logged", set())
    data, models = fleet("cnn", (3, 20, 20))
    with caplog.at_level(logging.INFO, "kfl"):
        make_engine(data, models, plan=Plan(compiler="icc 1"))
    assert "The plan of this run has icc 1" in caplog.text
