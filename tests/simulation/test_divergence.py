"""Training that diverges is said first, wherever its results are shown."""

import numpy as np
import pytest

import kfl
from kfl.cli.display import print_summary
from kfl.cli.main import main
from kfl.core.errors import DivergedError
from kfl.report import build_report

SMALL = {"devices": 6, "rounds": 3, "widths": (8,), "split": "natural", "radio": None}


def one_bad_device():
    """Six devices with samples of their own; those of device 0 are so large that training on them diverges."""
    y, device = np.arange(240) % 4, np.repeat(np.arange(6), 40)
    x = np.random.default_rng(0).normal(size=(240, 5)).astype("float32") + y[:, None]
    x[device == 0] *= 1e25
    return kfl.Dataset.from_arrays(x, y, train_device=device)


@pytest.mark.parametrize("rounds", [1, 3, 8])
def test_a_run_in_which_training_diverges_everywhere_ends_with_an_error(rounds, tmp_path, capsys):
    words = ["--rounds", str(rounds), "--devices", "5", "--widths", "8", "--algorithm.learning-rate", "1e30"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr()
    assert "devices diverged in round" in shown.err and "accuracy, all devices" not in shown.out


def test_rounds_without_devices_do_not_hide_divergence():
    burst = kfl.Experiment(devices=5, rounds=9, widths=(8,), algorithm=kfl.Kfl(learning_rate=1e30), scheduler="dual")
    with pytest.raises(DivergedError, match="diverged in round"):
        kfl.run(burst)


def test_a_run_and_its_page_say_first_that_some_training_diverged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    history = kfl.run(kfl.Experiment(**SMALL), "run", dataset=one_bad_device())
    assert history.summary["diverged"] == 3
    said = "Training diverged in 3 of 18 participations"
    print_summary(kfl.load_run("run")[0], history, tmp_path / "run")
    shown = capsys.readouterr().out
    assert said in shown and shown.index(said) < shown.index("accuracy")
    page = build_report([tmp_path / "run"]).read_text()
    assert page.index(said) < page.index("Worst tenth")
