"""A small run, the comparison of two runs byte for byte, and finished run folders with made-up numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import kfl
from kfl.runfolder import RunFolder, Snapshot, kept_rounds
from kfl.scheduling import Status, Uniform
from kfl.simulation import History, RoundLog
from kfl.simulation.logs import totals
from tests.reference.toy import toy_data

SAME = ("config.toml", "rounds.jsonl", "trail.jsonl", "devices.json", "server.npz")
"""Files that must be equal to the byte; environment.json and summary.json hold times."""
SMALL = kfl.Experiment(devices=8, rounds=40, widths=(8, 12), scheduler=kfl.Uniform(count=3))
REASON = "its means has the shape (320,), not (10, 64)"


def data() -> kfl.Dataset:
    """Four classes of points in five dimensions: small enough that a round takes milliseconds."""
    return toy_data(480, (5,))


def difference(one: Path, other: Path) -> str | None:
    """The first file in which two finished runs differ; None if they are equal to the byte."""
    models = sorted(path.name for path in (one / "models").iterdir())
    if models != sorted(path.name for path in (other / "models").iterdir()):
        return "the list of models"
    for name in (*SAME, *(f"models/{name}" for name in models)):
        if (one / name).read_bytes() != (other / name).read_bytes():
            return name
    left = [path.name for path in other.rglob("*") if path.name.endswith(".part") or path.name == "state"]
    return f"left behind: {', '.join(left)}" if left else None


def made_up_run(folder: Path, devices: int, rounds: int, chosen: int, seed: int = 0) -> Path:
    """A finished run folder with numbers that look like a run's."""
    draw = np.random.default_rng(seed)
    scheduler = Uniform(count=chosen)
    experiment = kfl.Experiment(devices=devices, rounds=rounds, scheduler=scheduler, seed=seed, radio="paper-mnist")
    target = RunFolder(folder)
    with target.locked():
        target.prepare(experiment)
        target.write_environment({"dataset": {"name": "mnist-5k", "note": ""}, "given_as_objects": []})
        skill, knowledge = draw.beta(8, 2, devices), draw.normal(size=(10, 64))
        logs = []
        for number in range(rounds):
            log = made_up_round(draw, number, devices, chosen, rounds)
            logs.append(log)
            knowledge = knowledge + draw.normal(size=(10, 64)) / (number + 1)
            grown = skill * (1 - 0.6 * np.exp(-6 * number / rounds))
            seen = Snapshot(number, knowledge, np.ones(10, dtype=bool), grown)
            target.append(target.lines(log, seen if number in kept_rounds(rounds) else None))
        records = [{"device": device, "accuracy": float(skill[device])} for device in range(devices)]
        summary = {"accuracy": logs[-1].accuracy, "rounds": rounds, "wall_s": 1.0, **totals(logs)}
        target.finish(History(tuple(logs), summary, tuple(records)), {"knowledge": torch.zeros(10, 64)})
    return folder


def made_up_round(draw: np.random.Generator, number: int, devices: int, chosen: int, rounds: int) -> RoundLog:
    """One round in which some uploads are late and some refused."""
    who = np.sort(draw.choice(devices, chosen, replace=False))
    late, refused = who[draw.random(chosen) < 0.02], who[draw.random(chosen) < 0.01]
    return RoundLog(
        round=number,
        accuracy=float(0.95 - 0.6 * np.exp(-8 * number / rounds) + draw.normal(0, 0.002)),
        devices=tuple(who.tolist()),
        share=tuple(draw.dirichlet(np.ones(chosen)).tolist()),
        power_w=tuple((10 ** draw.uniform(-6, -2, chosen)).tolist()),
        compute_energy_j=tuple(draw.uniform(0.3, 0.9, chosen).tolist()),
        upload_energy_j=tuple((10 ** draw.uniform(-8, -3, chosen)).tolist()),
        time_s=1.0,
        bits_up=20480.0 * chosen,
        bits_down=20480.0 * chosen,
        objective=None,
        lower_bound=None,
        status=Status(),
        lost=tuple(late.tolist()),
        rejected=tuple({"device": int(device), "reason": REASON} for device in refused),
        faults=tuple({"device": int(device), "fault": "late"} for device in late),
    )
