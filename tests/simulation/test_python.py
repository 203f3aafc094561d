"""Python as people type it: names, arrays, one network, progress, a result to read; mistakes name their fix."""

from __future__ import annotations

import os
import pty
import select
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.scheduling import SCHEDULERS

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(120, 6)).astype(np.float32), np.arange(120) % 4
TINY = kfl.Experiment(devices=3, rounds=2, widths=8, radio=None)
OWN = kfl.Experiment(devices=3, rounds=2, radio=None)


class Net(nn.Module):
    """A custom network, built without arguments."""

    def __init__(self, features: int = 5) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, features), nn.ReLU()), nn.Linear(features, 4)


class Wide(Net):
    def __init__(self, features: int) -> None:
        super().__init__(features)


@pytest.mark.parametrize("cls", [*ALGORITHMS.values(), *SCHEDULERS.values()])
def test_everything_that_has_a_name_is_at_the_top_and_goes_by_it(cls):
    assert getattr(kfl, cls.__name__) is cls and cls.__name__ in dir(kfl)
    field = "algorithm" if cls in ALGORITHMS.values() else "scheduler"
    for given in (cls.name, cls, {"name": cls.name}):
        assert getattr(kfl.Experiment(**{field: given}), field) == cls()
    assert replace(kfl.Experiment(), **{field: cls.name}) == kfl.Experiment(**{field: cls()})


def test_own_classes_go_by_their_address():
    assert kfl.Experiment(algorithm="kfl.algorithms.fd:FederatedDistillation").algorithm == kfl.FederatedDistillation()


def test_values_are_taken_as_people_have_them(tmp_path):
    typed = kfl.Experiment(dataset=tmp_path / "a.npz", devices=np.int64(7), widths=[8, np.int64(16)])
    assert typed == kfl.Experiment(dataset=str(tmp_path / "a.npz"), devices=7, widths=(8, 16))
    assert kfl.Experiment(widths=256) == kfl.Experiment(widths=(256,))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (lambda: kfl.Experiment(algorithm="fedvag"), "did you mean fedavg?"),
        (lambda: replace(kfl.Experiment(), scheduler="lyapunv"), "did you mean lyapunov?"),
        (lambda: kfl.Experiment(algorithm=3), "kfl.FedAvg(), say, or a name"),
        (lambda: kfl.Experiment(device=3), "did you mean devices?"),
        (lambda: kfl.Experiment(clients=3), "did you mean devices?"),
        (lambda: kfl.Experiment(lr=0.1), "algorithm=kfl.Kfl(learning_rate=…)"),
        (lambda: kfl.Experiment(bandwidth=1e6), "radio=kfl.CellConfig(bandwidth_hz=…)"),
        (lambda: kfl.Experiment(seeds=(0, 1)), "kfl.run_many("),
        (lambda: kfl.Experiment(seed=[0, 1]), "an integer"),
        (lambda: kfl.Experiment(devices="10"), "an integer"),
        (lambda: kfl.Experiment(split="shard"), "did you mean shards?"),
        (lambda: kfl.Experiment(dataset=(X, Y)), "kfl.run(experiment, dataset=…)"),
        (lambda: kfl.Experiment(model=Net()), "kfl.run(experiment, models=…)"),
        (lambda: kfl.FedAvg(lr=0.1), "did you mean learning_rate?"),
        (lambda: kfl.CellConfig(bandwith_hz=1.0), "did you mean bandwidth_hz?"),
        (lambda: kfl.Experiment.from_toml("clients = 3"), "did you mean devices?"),
        (lambda: kfl.Experiment.from_toml("[algorithm]\nlr = 0.1"), "did you mean learning_rate?"),
        (lambda: kfl.run("mnist"), "kfl.run(kfl.Experiment(dataset='mnist'))"),
        (lambda: kfl.run((X, Y)), "kfl.run(kfl.Experiment(…), dataset=…)"),
        (lambda: kfl.run_many(TINY, "unused"), "a list: [experiment]"),
        (lambda: kfl.run(TINY, dataset="mnist"), "kfl.Experiment(dataset='mnist')"),
        (lambda: kfl.run(TINY, dataset=X), "one array of shape (120, 6), without labels"),
        (lambda: kfl.run(TINY, dataset=(Y, X)), "must be (x, y)"),
        (lambda: kfl.run(TINY, dataset=(X, X, Y, Y)), "train_test_split"),
        (lambda: kfl.run(TINY, dataset=(X, Y, X)), "3 things"),
        (lambda: kfl.run(TINY, dataset=(X, np.eye(4)[Y])), "one label per sample"),
        (lambda: kfl.run(TINY, dataset=(X, Y[:50])), "120 samples, but train_y has 50"),
        (lambda: kfl.run(OWN, dataset=(X, Y), models=3), "must be a torch.nn.Module for all devices"),
        (lambda: kfl.run(OWN, dataset=(X, Y), models=Wide), "lambda: Wide(…)"),
        (lambda: kfl.run(OWN, dataset=(X, Y), models=nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))), "model[:-1]"),
    ],
)
def test_mistakes_name_their_fix_in_one_line(wrong, right):
    with pytest.raises(kfl.KflError) as found:
        wrong()
    assert right in str(found.value) and "\n" not in str(found.value)


def test_data_in_any_shape_is_the_same_data():
    x, y = torch.tensor(X, requires_grad=True), torch.tensor(Y)
    pairs = TensorDataset(x.detach(), y)
    expected = kfl.run(TINY, dataset=kfl.Dataset.from_arrays(X, Y)).accuracy
    for given in ((X, Y), [X.tolist(), Y.tolist()], (x, y), (X, Y[:, None]), pairs):
        assert kfl.run(TINY, dataset=given).accuracy == expected
    tested = kfl.run(TINY, dataset=kfl.Dataset.from_arrays(X, Y, X[:40], Y[:40])).accuracy
    for given in ((X, Y, X[:40], Y[:40]), ((X, Y), (X[:40], Y[:40])), (pairs, TensorDataset(x.detach()[:40], y[:40]))):
        assert kfl.run(TINY, dataset=given).accuracy == tested
    assert repr(kfl.Dataset.from_arrays(X, Y)) == (
        "<Dataset arrays: 96 training and 24 test samples of shape (6,), 4 classes>"
    )


def weights_of(models) -> list[torch.Tensor]:
    from kfl.models import fleet_from_modules

    fleet = fleet_from_modules(models, 3, (6,), 4)
    return [fleet.initial(device, seed=1)["head.weight"] for device in range(3)]


def test_one_module_is_everybodys_start_and_one_class_gives_each_its_own():
    own = Net()
    assert all(torch.equal(weights, own.head.weight) for weights in weights_of(own))
    for build in (Net, lambda: Net(5)):
        first, second, third = weights_of(build)
        assert not torch.equal(first, second) and not torch.equal(second, third)
        assert torch.equal(first, weights_of(build)[0])  # by the seed
    many = [Net() for _ in range(3)]
    for models in (many, lambda device: many[device], lambda k: many[k], lambda device=0: many[device]):
        assert [torch.equal(a, b.head.weight) for a, b in zip(weights_of(models), many, strict=True)] == [True] * 3
    for models in (own, Net):
        history = kfl.run(replace(OWN, algorithm="fedavg"), dataset=(X, Y), models=models)
        assert {device["model"] for device in history.devices} == {"Net"}


def on_screen(terminal):
    """All that a terminal was sent: a slow run draws more than one read gives."""
    seen = b""
    while select.select([terminal], [], [], 0.5)[0]:
        seen += os.read(terminal, 100_000)
    return seen.decode()


def test_progress_is_shown_to_those_who_look(capsys, monkeypatch, tmp_path):
    quiet = replace(TINY, rounds=1)
    kfl.run(quiet, dataset=(X, Y))
    kfl.run_many([quiet], tmp_path / "quiet", dataset=(X, Y))
    assert capsys.readouterr() == ("", "")
    kfl.run(quiet, dataset=(X, Y), progress=True)
    kfl.run_many([quiet], tmp_path / "shown", dataset=(X, Y), progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "kfl: round 1/1  accuracy" in err and "[1/1] kfl · seed 0: " in err
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        kfl.run(quiet, dataset=(X, Y))
        seen = on_screen(ours)
        assert "accuracy" in seen and "1/1" in seen
        logs = []
        kfl.run(quiet, dataset=(X, Y), on_round=logs.append)  # watched already
        kfl.run(quiet, dataset=(X, Y), progress=False)
        terminal.write("nothing else")
        terminal.flush()
        assert on_screen(ours) == "nothing else" and len(logs) == 1
    os.close(ours)


def test_a_history_is_short_to_look_at_and_easy_to_take_away(tmp_path):
    pytest.importorskip("pandas")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    history = kfl.run(replace(TINY, radio="auto", rounds=3, evaluate_every=2), tmp_path / "run", dataset=(X, Y))
    assert len(repr(history)) < 120 + len(str(tmp_path)) and "3 rounds, accuracy" in repr(history)
    frame = history.to_pandas()
    assert list(frame.index) == [0, 1, 2] and frame["accuracy"].isna().tolist() == [True, False, False]
    assert frame["energy_j"].sum() == pytest.approx(history.energy_j) and frame["bits_up"].sum() == history.bits_up
    ends = {"rounds": 3, "joules": history.energy_j, "seconds": history.summary["time_s"], "bits": history.bits_up}
    for x, end in ends.items():
        axes = history.plot(x)
        (line,) = axes.lines
        assert line.get_xdata()[-1] == pytest.approx(end, rel=1e-6)
        assert line.get_ydata()[-1] == pytest.approx(100 * history.accuracy, rel=1e-6)
    assert history.plot("bits", axes) is axes and len(axes.lines) == 2
    pyplot.close("all")
    with pytest.raises(kfl.KflError, match="one of rounds, joules, seconds, bits"):
        history.plot("energy")


def test_without_pandas_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(kfl.KflError, match=r"needs the package 'pandas'.*kfl\[pandas\]"):
        kfl.History(()).to_pandas()
