"""One malicious member out of n: what it can do at most under each aggregation rule. The table of docs/results.

    python -m studies.fleet.malicious_member --out docs/results/malicious-member.json

mnist-5k, split unevenly (Dirichlet, 0.5; at most 60 training samples each) over 5, 10 or 50 devices that all take part
in every round; accuracy is over the honest ones. Device 0 does the same in every round:

    silence    uploads zeros and claims 2^53 samples
    loud       uploads its values times −100, with honest counts
    both       uploads its values times −100 and claims 2^53 samples
    constant   uploads ones (shared-stem: an update with all scales one), with honest counts
    labels     trains on wrong labels, 9 − y, and otherwise does what it is asked to

and the server takes the mean as it was (`mean`), the mean of samples and weights as a fleet bounds them by default
(`bounded`: 10 times the median, at most half of an average), or a robust rule on top of the same bounds on samples.
Networks are small and begin with the same layer, so that shared-stem can share it. Runs
that are in the file are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kfl
from kfl.algorithms import Algorithm, Upload, UploadFormat
from kfl.core.files import write_json
from kfl.data import LocalData
from kfl.engine.plan import make_engine
from kfl.models import SplitModel
from kfl.scheduling import SCHEDULERS
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.world import World, build_world
from kfl_fleet import FleetSettings
from kfl_fleet.messages.profile import Profile
from kfl_fleet.server.caps import cap_weights
from kfl_fleet.server.claim_limits import Belief, believe
from kfl_fleet.server.verdicts import lower_counts

LIAR = 0
CLAIM = 2**53
RATE = 0.1
MEMBERS = (5, 10, 50)
ATTACKS = ("nobody", "silence", "loud", "both", "constant", "labels")
RULES = ("mean", "bounded", "clip", "median", "trimmed")
METHODS: dict[str, Callable[[Any], Algorithm]] = {
    "kfl": lambda rule: kfl.Kfl(aggregation=rule, learning_rate=RATE),
    "shared-stem": lambda rule: kfl.SharedStem(aggregation=rule, budget_bits=10**6, learning_rate=RATE),
    "fedavg": lambda rule: kfl.FedAvg(aggregation=rule, learning_rate=RATE),
}


def network(*, input_shape: tuple[int, ...], classes: int, width: int) -> nn.Module:
    """A network of 16 features whose first layer does not depend on its width."""
    first = nn.Linear(math.prod(input_shape), 16)
    body = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 16))
    return SplitModel(body, nn.Linear(16, classes))


class LyingFleet(SimulatedFleet):
    """A simulated fleet with one malicious member, whose uploads the server bounds as that of a real fleet does."""

    def __init__(self, world: World, attack: str, settings: FleetSettings) -> None:
        super().__init__(world)
        self.attack, self.settings = attack, settings
        self.claims = {device: int(count) for device, count in enumerate(self.table.samples)}
        if attack in ("silence", "both"):
            self.claims[LIAR] = CLAIM
        profiles = {
            device: Profile(device, world.engine.classes, 16, 1, 1, 1, 1, (1,), samples, (), 0, 0)
            for device, samples in self.claims.items()
        }
        self.beliefs = believe(profiles, settings, None)

    def exchange(self, state: Any, conditions: Any, decision: Any, message: Any) -> Any:
        """A round's replies, with the liar's upload and the server's bounds."""
        replies = super().exchange(state, conditions, decision, message)
        formats = self.experiment.algorithm.upload_format(state.server)
        uploads = [self._lie(upload, formats) if upload.device == LIAR else upload for upload in replies.uploads]
        uploads = [_believed(upload, formats, self.beliefs[upload.device]) for upload in uploads]
        uploads, _ = cap_weights(uploads, formats, self.settings.largest_weight)
        return replace(replies, uploads=uploads)

    def _lie(self, upload: Upload, formats: UploadFormat) -> Upload:
        arrays = dict(upload.arrays)
        for name, form in formats.items():
            value = arrays[name]
            if form.holds != "values":
                if self.attack in ("silence", "both"):
                    arrays[name] = torch.full_like(value, CLAIM // max(value.numel(), 1))
            elif value.is_floating_point():
                change = {"silence": 0.0, "loud": -100.0, "both": -100.0}.get(self.attack, 1.0)
                arrays[name] = torch.ones_like(value) if self.attack == "constant" else value * change
        return replace(upload, arrays=arrays)


def _believed(upload: Upload, formats: UploadFormat, belief: Belief) -> Upload:
    arrays, _ = lower_counts({name: value.numpy() for name, value in upload.arrays.items()}, formats, belief)
    return upload if belief.weight_cut is None else replace(upload, arrays=_tensors(arrays))


def _tensors(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.asarray(value)) for name, value in arrays.items()}


def bounds(rule: str) -> FleetSettings:
    """What a server believes: everything under `mean`, a fleet's defaults under `bounded`; robust rules need no cap."""
    if rule == "mean":
        return FleetSettings(most_samples=math.inf, largest_weight=1.0)
    return FleetSettings() if rule == "bounded" else FleetSettings(largest_weight=1.0)


def make_world(method: str, members: int, seed: int, rounds: int, *, wrong_labels: bool) -> World:
    """Data, networks and engine of one fleet."""
    experiment = kfl.Experiment(
        devices=members,
        rounds=rounds,
        seed=seed,
        split="dirichlet",
        samples_per_device=60,
        model="studies.fleet.malicious_member:network",
        widths=(24,) if method == "fedavg" else (16, 24, 32),
        algorithm=METHODS[method]("mean"),
        scheduler=SCHEDULERS["all"](),
        radio=None,
        evaluate_every=rounds,
    )
    world = build_world(experiment)
    if not wrong_labels:
        return world
    rows, labels = world.partition.train[LIAR], world.dataset.train_y.copy()
    labels[rows] = world.dataset.classes - 1 - labels[rows]
    data, counts = replace(world.dataset, train_y=labels), world.partition.train_counts.copy()
    counts[LIAR] = counts[LIAR][::-1]
    split = replace(world.partition, train_counts=counts)
    return replace(world, dataset=data, partition=split, engine=make_engine(LocalData(data, split), world.models))


def accuracy(world: World, algorithm: Algorithm, attack: str, rule: str) -> float:
    """Right predictions of the honest devices after the last round."""
    fleet = LyingFleet(replace(world, experiment=replace(world.experiment, algorithm=algorithm)), attack, bounds(rule))
    state = begin(fleet)
    for _ in range(world.experiment.rounds):
        state, _ = play_round(fleet, state)
    honest = np.arange(fleet.table.size) != LIAR
    return float(state.correct[honest].sum() / fleet.table.test_samples[honest].sum())


def table(runs: dict[str, Any], method: str) -> str:
    """Points lost against the same seeds and rule without a liar: mean over seeds, and the worst seed in brackets."""
    lines = ["| rule | members | seeds | no member, % | " + " | ".join(ATTACKS[1:]) + " |", "| --- |" + " ---: |" * 8]
    for rule, members in itertools.product(RULES, MEMBERS):
        found = {attack: _per_seed(runs, method, members, rule, attack) for attack in ATTACKS}
        honest = found["nobody"]
        if not honest:
            continue
        cells = []
        for attack in ATTACKS[1:]:
            lost = [100 * (honest[seed] - found[attack][seed]) for seed in honest if seed in found[attack]]
            cells.append(f"{statistics.mean(lost):.1f} ({max(lost):.1f})" if lost else "")
        before = f"{100 * statistics.mean(honest.values()):.1f}"
        lines.append(f"| {rule} | {members} | {len(honest)} | {before} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _per_seed(runs: dict[str, Any], method: str, members: int, rule: str, attack: str) -> dict[int, float]:
    prefix = f"{method}, {members}, {rule}, {attack}, seed "
    return {int(key.removeprefix(prefix)): value for key, value in runs.items() if key.startswith(prefix)}


def main() -> None:
    """Play what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--members", type=int, nargs="+", default=list(MEMBERS))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=ATTACKS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(options.out.read_text()) if options.out.exists() else {"rounds": options.rounds, "runs": {}}
    if stored["rounds"] != options.rounds:
        parser.error(f"{options.out} is of {stored['rounds']} rounds; use another file.")
    runs = stored["runs"]
    for seed, members, method in itertools.product(options.seeds, options.members, options.methods):
        wanted = [(rule, attack) for rule in RULES for attack in options.attacks]
        keys = {f"{method}, {members}, {rule}, {attack}, seed {seed}": (rule, attack) for rule, attack in wanted}
        missing = {key: pair for key, pair in keys.items() if key not in runs}
        worlds: dict[bool, World] = {}
        began = time.process_time()
        for key, (rule, attack) in missing.items():
            wrong = attack == "labels"
            if wrong not in worlds:
                worlds[wrong] = make_world(method, members, seed, options.rounds, wrong_labels=wrong)
            algorithm = METHODS[method]("mean" if rule == "bounded" else rule)
            runs[key] = accuracy(worlds[wrong], algorithm, attack, rule)
            write_json(options.out, {"rounds": options.rounds, "runs": runs})
        if missing:
            spent = time.process_time() - began
            print(
                f"{method}, {members} members, seed {seed}: {len(missing)} runs, {spent:.0f} s of one core", flush=True
            )
    for method in options.methods:
        print(f"\n{method}: points lost to one member, mean over seeds (worst seed)\n\n{table(runs, method)}")


if __name__ == "__main__":
    main()
