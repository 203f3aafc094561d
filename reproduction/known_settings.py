"""Is each baseline trained properly? Our algorithms in settings of others, next to the others' numbers.

    python -m reproduction.known_settings --device cuda --data-dir DIR --out docs/results/known-settings.jsonl
    python -m reproduction.known_settings --page      # puts the committed results into docs/results/baselines.md

Their network, split, batch size, passes, rate, momentum, devices per round and rounds; `differs` says what is not
theirs. Nothing here is tuned. Runs come in the order of `settings`, one line of JSON for each as it ends; what the
file has already is not run again, and nothing is started once `--limit-s` seconds have passed.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import kfl
from kfl.core.text import DASH
from kfl.data import load_dataset

Table = dict[str, Any]
RESULTS = Path("docs/results/known-settings.jsonl")
PAGE = Path("docs/results/baselines.md")


@dataclass(frozen=True)
class Setting:
    """One experiment of someone else, in our words, with their number."""

    name: str
    algorithm: str
    """As a reader knows it."""
    about: str
    """What is trained on what."""
    table: Table
    """Our configuration, without the seed."""
    theirs: Mapping[int, tuple[float, ...]]
    """Accuracy in per cent after so many rounds, one for each of their runs; none where we could read no source. With a
    target, the rounds they needed, under the most rounds that we play."""
    source: str
    differs: str
    """What our run does otherwise."""
    target: float | None = None
    """Count the rounds until this accuracy is reached."""
    seeds: tuple[int, ...] = (0,)
    paired: bool = False
    """Whether their runs have the splits and the devices in each round of our seeds, from the first on."""
    standardised: bool = False
    """Whether their inputs are (x − mean) / standard deviation of MNIST, where ours are x in [0, 1]."""

    def experiment(self, seed: int) -> kfl.Experiment:
        """The run with one seed."""
        return kfl.Experiment.from_table({**self.table, "seed": seed})

    def measured(self, curve: Sequence[float | None], rounds: int) -> float | None:
        """The number to compare: accuracy in per cent, or rounds; None where the target is never reached."""
        if self.target is None:
            value = curve[rounds - 1]
            return None if value is None else 100 * value
        return next((float(number) for number, value in enumerate(curve, 1) if (value or 0) >= self.target), None)


FLEET: Table = {
    "dataset": "mnist",
    "devices": 100,
    "distinct_classes": False,
    "radio": "none",
    "scheduler": {"name": "uniform", "count": 10},
}
EQUAL: Table = {"split": "shards", "classes_per_device": 2, "samples_per_device": 540}
"""Two shards for each device, cut to the size of the smallest device, so that all take equally many batches."""
IID: Table = {"split": "iid"}
CUT = "540 samples on each device (theirs 600)"


def sgd(algorithm: str, passes: int, rate: float, momentum: float = 0.0, **more: Any) -> Table:
    """Mini-batches of 10, unless it is said otherwise."""
    common = {"local_steps": passes, "learning_rate": rate, "momentum": momentum, "batch_size": 10}
    return {"algorithm": {"name": algorithm, **common, **more}}


def network(name: str, width: int) -> Table:
    """A network of `studies.known_networks`."""
    return {"model": f"studies.known_networks:{name}", "widths": [width]}


# ── PFLlib, run by us on the very same split, with the same devices in each round ──

PFLLIB_RUNS: dict[str, dict[int, tuple[float, ...]]] = {
    "FedAvg": {10: (46.26, 43.27), 20: (64.74, 76.46)},
    "FedRep": {10: (72.49,), 20: (86.61,)},
    "APFL": {10: (64.67,), 20: (81.60,)},
    "FedProto": {10: (61.14,), 20: (77.52,)},
    "local": {10: (60.16,), 20: (76.31,)},
    "LG-FedAvg": {10: (63.33,), 20: (81.99,)},
    "FD": {10: (62.38,), 20: (79.19,)},
    "FedGH": {10: (58.16,), 20: (76.83,)},
    "FedTGP": {10: (64.77,), 20: (80.20,)},
}
"""Accuracy in per cent after so many rounds, one for each split: seeds 100, 101, …"""
OWN_START = "each device has its own first weights (PFLlib: one start for all)"
PFLLIB_OURS: dict[str, tuple[str, Table, str]] = {
    "FedAvg": ("fedavg", {}, "–"),
    "FedRep": ("fedrep", {"head_steps": 1, "body_steps": 1}, "–"),
    "APFL": ("apfl", {"mixing": 0.5, "mixing_rate": 0.01}, "PFLlib trains v alone and mixes w into it after the round"),
    "FedProto": (
        "fedproto",
        {},
        f"{OWN_START}; prototypes after the last step, not of the features met during the pass",
    ),
    "local": ("local", {}, OWN_START),
    "LG-FedAvg": (
        "lg-fedavg",
        {"share": "head"},
        "each device has its own first weights under the head (PFLlib: one start for all)",
    ),
    "FD": ("fd", {}, f"{OWN_START}; logits after the last step, not those met during the pass; no label is forgotten"),
    "FedGH": (
        "fedgh",
        {"server_batch_size": 10},
        f"{OWN_START}; the server's head is its own (PFLlib: that of device 0, which trains it too)",
    ),
    "FedTGP": (
        "fedtgp",
        {},
        f"{OWN_START.replace('PFLlib', 'theirs')}; prototypes after the last step (theirs: before the first); "
        "batches drawn anew in each round; no pull toward a class that no device has reported",
    ),
}
PFLLIB_PROGRAM = {"FD": "PFLlib 87689a0", "FedTGP": "TsingZ0/FedTGP c77cbbb"}
"""Where it is not PFLlib d832e76."""
PFLLIB_ONCE = ("LG-FedAvg", "FD", "FedGH", "FedTGP")
"""Played by us with one seed only."""


def pfllib() -> Iterator[Setting]:
    """Nine algorithms in the setting of PFLlib's own CNN."""
    for shown, (name, own, differs) in PFLLIB_OURS.items():
        yield Setting(
            f"pfllib-{name}",
            shown,
            "MNIST, 2 shards, CNN 32–64–512, 1 pass, rate 0.01",
            {**FLEET, **EQUAL, **network("plain_cnn", 512), **sgd(name, 1, 0.01, **own), "rounds": 20},
            PFLLIB_RUNS[shown],
            f"{PFLLIB_PROGRAM.get(shown, 'PFLlib d832e76')}, run by us: same split, same devices in each round",
            differs,
            seeds=(100,) if shown in PFLLIB_ONCE else (100, 101, 102),
            paired=True,
        )


# ── Published numbers ──

MCMAHAN = "McMahan et al. 2017, Table {}, as copied in Lorenc1o.github.io 521c42e"


def mcmahan(network_name: str, table: Table, about: str, rounds: int, theirs: float, **more: Any) -> Setting:
    """One cell of their Tables 1 and 2: rounds until the accuracy is reached, E passes, 10 of 100 devices."""
    target = 0.97 if network_name == "2nn" else 0.99
    differs = "rate 0.1 (theirs is the best of a grid)" + (f"; {CUT}" if "samples_per_device" in table else "")
    iid = "iid" if table["split"] == "iid" else "shards"
    return Setting(
        f"mcmahan-{network_name}-{iid}",
        "FedAvg",
        f"MNIST, {about}, rounds to {100 * target:.0f} %",
        {**FLEET, **table, "rounds": rounds},
        {rounds: (theirs,)},
        MCMAHAN.format(1 if network_name == "2nn" else 2),
        differs,
        target=target,
        **more,
    )


def ji(split: Table, theirs: Mapping[int, tuple[float, ...]]) -> Setting:
    """Ji's repetition of McMahan et al.: an MLP of one hidden layer."""
    iid = split["split"] == "iid"
    return Setting(
        f"ji-mlp-{'iid' if iid else 'shards'}",
        "FedAvg",
        f"MNIST, {'IID' if iid else '2 shards'}, MLP 200, 5 passes, rate 0.01, momentum 0.5",
        {**FLEET, **split, **network("dense", 200), **sgd("fedavg", 5, 0.01, 0.5), "rounds": 50},
        theirs,
        "shaoxiongji/federated-learning 5a9da1a, README, Tables 1 and 2",
        "no dropout" + ("" if iid else f"; {CUT}"),
        seeds=(0,) if iid else (0, 1, 2),
        standardised=True,
    )


TAN_RUNS = (98.52,)
"""Accuracy in per cent after 100 rounds with their seed, 1234, each device with its own head."""


def tan() -> Setting:
    """FedProto's own program: 20 devices, all in every round, with 2 to 5 classes each and 100 samples of each."""
    fleet = {**FLEET, "devices": 20, "scheduler": {"name": "all"}}
    split = {"split": "overlap", "classes_per_device": 3, "samples_per_device": 300}
    return Setting(
        "tan-fedproto-3",
        "FedProto",
        "MNIST, 20 devices, 100 samples of 2 to 5 classes, CNN 10–20–50, batches of 4, 1 pass, rate 0.01, momentum 0.5",
        {**fleet, **split, **network("small_cnn", 50), **sgd("fedproto", 1, 0.01, 0.5, batch_size=4), "rounds": 100},
        {100: TAN_RUNS},
        "yuetan031/FedProto 97e42e2, run by us, its README's first command",
        "3 classes on every device; no dropout; tested on all test samples of its classes (theirs 40 of each)",
        standardised=True,
    )


CHEN_RUNS = {"kfl": {10: (59.57,), 20: (75.32,)}, "local": {10: (58.21,), 20: (74.23,)}}
"""Accuracy in per cent after so many rounds; "local" is their program with --ld 0."""


def chen(name: str, shown: str) -> Setting:
    """The program of KFL's authors, 10 devices in a round."""
    fleet = {**FLEET, "dataset": "cifar10", "split": "shards", "classes_per_device": 2, "model": "cnn", "widths": [128]}
    differs = "no weight decay" + (
        "" if name == "local" else "; means weighted by samples; a class no device reports is kept"
    )
    return Setting(
        f"chen-{name}",
        shown,
        "CIFAR-10, 2 shards, the paper's CNN, 5 passes, rate 0.01, momentum 0.5",
        {**fleet, **sgd(name, 5, 0.01, 0.5), "rounds": 20},
        CHEN_RUNS[name],
        "chfocus/KFL 0c59a5e, run by us: same split, same devices in each round, without its crops and flips",
        differs,
    )


def settings() -> list[Setting]:
    """All settings, the most telling for a second of work first."""
    one, five = sgd("fedavg", 1, 0.1), sgd("fedavg", 5, 0.1)
    two_nn, cnn = network("two_nn", 200), network("padded_cnn", 512)
    collins = {**FLEET, "dataset": "cifar10", "split": "shards", "classes_per_device": 2, **network("fedrep_cnn", 120)}
    return [
        *pfllib(),
        chen("kfl", "KFL"),
        chen("local", "local"),
        mcmahan("2nn", {**IID, **two_nn, **one}, "IID, 2NN, 1 pass", 150, 87, seeds=(0, 1, 2)),
        ji(IID, {10: (94.57,), 50: (97.21,)}),
        ji(EQUAL, {10: (70.44,), 50: (93.03,)}),
        tan(),
        mcmahan("cnn", {**IID, **cnn, **five}, "IID, CNN, 5 passes", 30, 20),
        mcmahan("2nn", {**EQUAL, **two_nn, **one}, "2 shards, 2NN, 1 pass", 1000, 664),
        Setting(
            "collins-fedrep",
            "FedRep",
            "CIFAR-10, 2 shards, CNN 64–64–120–64, 10 + 1 passes, rate 0.01, momentum 0.5",
            {**collins, **sgd("fedrep", 1, 0.01, 0.5, head_steps=10, body_steps=1), "rounds": 100, "evaluate_every": 5},
            {50: (), 100: ()},
            "lgcollins/FedRep d82e629, scripts/FedRep_cifar10_2shards.sh",
            "no crops and flips, no weight decay, heads not trained once more after the last round",
        ),
        mcmahan("cnn", {**EQUAL, **cnn, **one}, "2 shards, CNN, 1 pass", 500, 350),
    ]


# ── Running ──


def run(setting: Setting, seed: int, device: str, data_dir: Path | None) -> Table:
    """Play one run, and say what came out."""
    experiment = setting.experiment(seed)
    data = load_dataset(experiment.dataset, data_dir)
    if setting.standardised:
        data = replace(data, mean=(0.1307,), std=(0.3081,))
    began = time.perf_counter()
    history = kfl.run(experiment, dataset=data, device=device)
    return {
        "setting": setting.name,
        "seed": seed,
        "digest": experiment.digest(),
        "kfl": kfl.__version__,
        "device": device,
        "seconds": round(time.perf_counter() - began, 2),
        "accuracy": [None if e.accuracy is None else round(e.accuracy, 4) for e in history.rounds],
    }


def read(path: Path) -> list[Table]:
    """The runs that a file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run_all(chosen: Sequence[Setting], out: Path, device: str, data_dir: Path | None, limit_s: float) -> None:
    """Run what is missing."""
    began = time.perf_counter()
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {(entry["setting"], entry["seed"]) for entry in read(out)}
    wanted = [(setting, seed) for setting in chosen for seed in setting.seeds if (setting.name, seed) not in done]
    for setting, seed in wanted:
        if time.perf_counter() - began > limit_s:
            print(f"{limit_s:g} s have passed: {setting.name} with seed {seed} and what follows is left.")
            return
        entry = run(setting, seed, device, data_dir)
        with out.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        shown = ", ".join(_shown(setting, [entry], rounds) for rounds in setting.theirs)
        print(f"{setting.name:20} seed {seed:3}  {entry['seconds']:6.1f} s  {shown}", flush=True)


# ── Showing ──


def _number(setting: Setting, value: float) -> str:
    return f"{value:.0f}" if setting.target is not None else f"{value:.2f}"


def _several(setting: Setting, values: Sequence[float]) -> str:
    """Mean ± standard deviation (number of runs), or each value where they are few or paired."""
    if setting.paired or len(values) < 2:
        return ", ".join(_number(setting, value) for value in values) or DASH
    return f"{_number(setting, mean(values))} ± {_number(setting, stdev(values))} ({len(values)})"


def _shown(setting: Setting, runs: Sequence[Table], rounds: int) -> str:
    found = [setting.measured(entry["accuracy"], rounds) for entry in runs]
    if None in found:
        best = max(max(value or 0 for value in entry["accuracy"]) for entry in runs)
        return f"not in {rounds} (best {100 * best:.2f} %)"
    return _several(setting, [value for value in found if value is not None])


def table(algorithm: str, runs: Sequence[Table]) -> str:
    """Theirs next to ours: accuracy in per cent after so many rounds, or how many rounds a target takes."""
    head = ("setting", "after round", "theirs", "ours", "theirs from", "ours differs")
    lines = [f"| {' | '.join(head)} |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for setting in (one for one in settings() if one.algorithm == algorithm):
        own = sorted((e for e in runs if e["setting"] == setting.name), key=lambda entry: entry["seed"])
        for rounds, values in setting.theirs.items():
            after = DASH if setting.target is not None else str(rounds)
            beside = own[: len(values)] if setting.paired else own
            ours = _shown(setting, beside, rounds) if own else "not run"
            row = (setting.about, after, _several(setting, values), ours, setting.source, setting.differs)
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def fill(page: str, runs: Sequence[Table]) -> str:
    """A page with the table of each algorithm between its marks, `<!-- known: FedAvg -->` and `<!-- end -->`."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}\n\n{table(found[2], runs)}\n\n{found[3]}"

    return re.sub(r"(<!-- known: (.+?) -->).*?(<!-- end -->)", block, page, flags=re.DOTALL)


def main() -> None:
    """Run, or fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help=f"put the results into {PAGE} and run nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="settings with this word in their name")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with MNIST and CIFAR-10")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--limit-s", type=float, default=150.0, help="start no run after this many seconds")
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(fill(PAGE.read_text(), read(given.out)))
        return
    chosen = [setting for setting in settings() if given.only in setting.name]
    run_all(chosen, given.out, given.device, given.data_dir, given.limit_s)


if __name__ == "__main__":
    main()
