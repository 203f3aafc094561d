"""Do two versions of kfl give the same numbers, bit for bit? Run it with each, then compare the two files.

    python -m studies.same_numbers before.json                                    # with the version that is installed
    PYTHONPATH=/path/to/other/src python studies/same_numbers.py after.json       # with another one
    python -m studies.same_numbers --compare before.json after.json               # bit for bit
    python -m studies.same_numbers --compare before.json after.json --within 1e-5 # where arithmetic was changed

Plays short runs on made-up images, one per algorithm, scheduler, split, fault, precision and network, and writes down
what each run folder says: who took part, with which shares, powers and joules, every upload lost or rejected, every
device's accuracy, and a checksum and 64 numbers of every array of the server and of every model. It uses only what
both versions have: `kfl.run`, configurations as tables, and the files of a run folder. `--device cuda` plays the runs
that a GPU can, `--only WORD` those with this word in their name, `--float64` all of them in float64, where another
order of the same sums does not show. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import kfl

Table = dict[str, Any]
IMAGES = {"mlp": (1, 28, 28), "cnn": (3, 32, 32)}
SIZE: Table = {"distinct_classes": False, "devices": 20, "rounds": 3, "widths": [48, 64, 96]}
ALONE = ("kfl", "local", "fedkd", "fedproto", "self-knowledge", "fixed-knowledge")
"""Algorithms for devices with different networks."""
AVERAGING = ("fedavg", "fedrep", "apfl")
SCHEDULERS = ("lyapunov", "dual", "round-robin", "myopic", "uniform", "ascend", "descend", "all")
NARROW_BAND: Table = {
    "bandwidth_hz": 180e3,
    "noise_dbm_per_hz": -171.0,
    "radius_m": 1000.0,
    "reference_gain_db": -38.1,
    "path_loss_exponent": 3.76,
    "min_distance_m": 35.0,
    "max_power_dbm": 23.0,
    "deadline_s": 20.0,
    "cpu_frequencies_hz": [96e6, 128e6, 160e6, 192e6],
    "flops_per_cycle": 1.0,
    "power_coefficient": 3.6e-28,
    "budget_j_per_round": 0.02,
}
"""A cell with the printed energy model in which uploads cost something. Spelled out: presets may change."""
ROUND_FACTS = (
    *("round", "accuracy", "devices", "share", "power_w", "compute_energy_j", "upload_energy_j", "time_s"),
    *("bits_up", "bits_down", "objective", "lower_bound", "lost", "diverged"),
)


def cases(device: str) -> dict[str, tuple[Table, str]]:
    """The configuration and precision of every run, by name."""
    found: dict[str, tuple[Table, str]] = {}
    precisions = ("float32", "tf32", "bf16") if device == "cuda" else ("float32", "bf16", "float64")
    for network in IMAGES:
        for name in (*ALONE, *AVERAGING):
            table: Table = {**SIZE, "model": network, "algorithm": {"name": name}, "radio": "none"}
            if name in AVERAGING:
                table["widths"] = [64]
            for precision in precisions if name in ("kfl", "apfl") else precisions[:1]:
                found[f"{network} {name} {precision}"] = table, precision
            if name in ("kfl", "fedavg", "apfl"):
                batches = {**table, "algorithm": {"name": name, "batch_size": 50}}
                found[f"{network} {name} mini-batches"] = batches, "float32"
    if device == "cuda":
        return found
    for scheduler in SCHEDULERS:
        for name, cell, hard in (("narrow band", NARROW_BAND, True), ("small-cell", "small-cell", False)):
            table = {**SIZE, "scheduler": scheduler, "radio": cell, "hard_budget": hard}
            found[f"{scheduler} in {name}"] = table, "float32"
    faults = dict.fromkeys(("drop_before", "battery_empty", "drop_after", "late", "outage", "join", "leave"), 0.1)
    changes: dict[str, Table] = {
        "faults": {"faults": {**faults, "corrupt": 0.2, "poisoned": 0.2, "poison": "noise"}},
        "resource blocks": {"scheduler": "dual", "radio": {**NARROW_BAND, "resource_blocks": 30}},
        "outages": {"radio": {**NARROW_BAND, "channel_error": 0.2, "downlink_power_dbm": 20.0}},
        "iid": {"split": "iid"},
        "dirichlet": {"split": "dirichlet"},
        "overlap": {"split": "overlap", "samples_per_device": 40, "tested_devices": 5},
        "new class": {"new_class_samples": 5},
        "real work": {"real_work": True},
        "every second round": {"evaluate_every": 2},
        "quantized": {"algorithm": {"name": "kfl", "bits_per_value": 6}},
        "noise": {"algorithm": {"name": "kfl", "clip_norm": 5.0, "noise_multiplier": 0.5, "noise_counts": True}},
        **{rule: {"algorithm": {"name": "kfl", "aggregation": rule}} for rule in ("trimmed", "median", "clip")},
    }
    return found | {name: ({**SIZE, **change}, "float32") for name, change in changes.items()}


def made_up(shape: tuple[int, ...]) -> kfl.Dataset:
    """Images of noise that are brighter for a higher class."""
    draw, labels = np.random.default_rng(0), np.arange(4000) % 10
    images = draw.integers(0, 200, size=(len(labels), *shape), dtype=np.uint8)
    images += (5 * labels).astype(np.uint8).reshape(-1, *(1 for _ in shape))
    return kfl.Dataset.from_arrays(images, labels, images[:800], labels[:800], scale=1 / 255)


def play(device: str, only: str, float64: bool) -> Table:
    """What every run gives."""
    data = {network: made_up(shape) for network, shape in IMAGES.items()}
    found: Table = {}
    for name, (table, usual) in cases(device).items():
        precision = "float64" if float64 else usual
        if only not in name:
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            images = data[table.get("model", "mlp")]
            experiment = kfl.Experiment.from_table(table)
            deterministic = device == "cuda"
            kfl.run(experiment, folder, dataset=images, device=device, precision=precision, deterministic=deterministic)
            found[name] = read(folder)
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    return found


def read(folder: Path) -> Table:
    """The facts of a run folder that must not change; read directly, since the two versions may read differently."""
    from safetensors.numpy import load_file

    rounds = []
    for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        facts = {name: values[name] for name in ROUND_FACTS}
        facts["faults"] = [[entry["device"], entry["fault"]] for entry in values["faults"]]
        rounds.append({**facts, "rejected": [entry["device"] for entry in values["rejected"]]})
    server = next(path for path in (folder / "server.npz", folder / "knowledge.npz") if path.exists())
    with np.load(server) as arrays:
        sums = {f"server {name}": checksum(arrays[name]) for name in arrays.files}
    for path in sorted((folder / "models").glob("*.safetensors")):
        sums |= {f"{path.stem} {name}": checksum(array) for name, array in load_file(path).items()}
    devices = json.loads((folder / "devices.json").read_text(encoding="utf-8"))
    return {"rounds": rounds, "arrays": sums, "devices": devices}


def checksum(array: np.ndarray[Any, Any]) -> Table:
    """Of an array's bits, shape and type; and numbers from all over it, for versions that round differently."""
    digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()
    some = array.ravel()[np.linspace(0, max(array.size - 1, 0), 64).astype(int)] if array.size else array.ravel()
    return {"bits": f"{digest} {array.dtype} {array.shape}", "some": [float(value) for value in some]}


def compare(before: Table, after: Table, within: float) -> int:
    """Print every run that differs by more than allowed, with the first difference; how many do."""
    different = same = 0
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            print(f"{name}: only in one file")
        elif found := first_difference(before[name], after[name], within):
            print(f"{name}: {found}")
        else:
            same += not first_difference(before[name], after[name], 0.0)
            continue
        different += 1
    runs = len({*before, *after})
    close = f", {runs - same - different} within {within:g}" if within else ""
    print(f"{runs} runs: {same} bit for bit{close}, {different} differ")
    return different


def first_difference(before: Any, after: Any, within: float, where: str = "") -> str:
    """The first place in which two nested values differ, or nothing. What only one version records is no difference.

    Numbers may differ by the part `within` of the larger one, those of an array by that part of its largest.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [
            (name, before[name], after[name]) for name in before if name in after and not (name == "bits" and within)
        ]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        if within and where.endswith(" some"):
            return _far(np.array(before), np.array(after), within, where)
        pairs = [(str(index), *pair) for index, pair in enumerate(zip(before, after, strict=True))]
    elif within and isinstance(before, float) and isinstance(after, float):
        return _far(np.array(before), np.array(after), within, where)
    else:
        return "" if before == after else f"{where.strip()} is {before!r} and {after!r}"
    found = (first_difference(one, other, within, f"{where} {name}") for name, one, other in pairs)
    return next((place for place in found if place), "")


def _far(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], within: float, where: str) -> str:
    """What to say of numbers that differ by more than allowed."""
    off, largest = abs(before - after).max(initial=0.0), max(abs(before).max(initial=0.0), abs(after).max(initial=0.0))
    return "" if off <= within * largest else f"{where.strip()} differs by {off:.3g} where the largest is {largest:.3g}"


def main() -> int:
    """Play and write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file to write, or two to compare")
    parser.add_argument("--compare", action="store_true", help="compare two files")
    parser.add_argument("--within", type=float, default=0.0, help="largest relative difference that is none")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", default="", metavar="WORD", help="only runs with this word in their name")
    parser.add_argument("--float64", action="store_true", help="play all runs in float64")
    options = parser.parse_args()
    if len(options.files) != (2 if options.compare else 1):
        parser.error("give one file to write, or --compare and two files")
    if options.compare:
        before, after = (json.loads(path.read_text(encoding="utf-8")) for path in options.files)
        return int(compare(before, after, options.within) > 0)
    print(f"kfl {kfl.__version__} from {Path(kfl.__file__).parent}")
    options.files[0].write_text(json.dumps(play(options.device, options.only, options.float64)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
