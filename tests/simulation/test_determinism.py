"""What is promised about repeating a run on a CPU, and what `deterministic` does."""

import json
import os
from dataclasses import replace

import pytest
import torch

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.cli.main import main
from kfl.runner import CUBLAS_WORKSPACE, deterministic_algorithms
from tests.reference.runs import SMALL, data, difference

SHORT = replace(SMALL, rounds=5)


@pytest.mark.parametrize(
    "experiment",
    [
        SHORT,
        replace(SHORT, algorithm=kfl.Kfl(batch_size=7, aggregation="clip")),
        replace(SHORT, algorithm=ALGORITHMS["fedkd"](proxy_per_class=5), widths=(8,)),
        replace(SHORT, algorithm=ALGORITHMS["apfl"](), widths=(8,)),
    ],
    ids=["kfl", "batches", "fedkd", "apfl"],
)
def test_a_run_repeats_bit_for_bit_with_and_without_the_option(experiment, tmp_path):
    for name, wanted in (("one", False), ("two", False), ("three", True)):
        kfl.run(experiment, tmp_path / name, dataset=data(), deterministic=wanted)
    assert difference(tmp_path / "one", tmp_path / "two") is None
    assert difference(tmp_path / "one", tmp_path / "three") is None


def test_the_global_switch_is_set_for_the_run_only(tmp_path, monkeypatch):
    monkeypatch.delenv(CUBLAS_WORKSPACE, raising=False)
    seen = []
    kfl.run(SHORT, dataset=data(), on_round=lambda _: seen.append(torch.are_deterministic_algorithms_enabled()))
    assert not any(seen) and CUBLAS_WORKSPACE not in os.environ
    seen.clear()
    kfl.run(
        SHORT,
        dataset=data(),
        deterministic=True,
        on_round=lambda _: seen.append(torch.are_deterministic_algorithms_enabled()),
    )
    assert all(seen) and os.environ[CUBLAS_WORKSPACE] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ZeroDivisionError), deterministic_algorithms(True):
        _ = 1 // 0
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_command_keeps_the_option_for_resume(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["run", "--devices", "4", "--rounds", "2", "--widths", "8", "--deterministic"]
    assert main([*words, "--out", str(folder)]) == 0
    assert json.loads((folder / "job.json").read_text())["deterministic"] is True
    assert json.loads((folder / "environment.json").read_text())["deterministic"] is True
