"""Play conditions side by side, and keep a line of each method and seed."""

from __future__ import annotations

import gzip
import importlib
import json
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from kfl.core.text import quantity

LINES = "heads.jsonl.gz"
CURVES = "curves.jsonl.gz"
PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "heads": (LINES, ()),
    "curves": (CURVES, ("cifar10-m2-all", "cifar10-m5-all", "cifar10-m5-50")),
}
"""Modules of this study by name: the file of their lines, and their conditions if these are not all."""


def run(out: Path, part: str, seeds: Sequence[int], words: str, workers: int) -> None:
    """Play conditions that are not played yet; the lines of each are written when it is done."""
    from studies.common_encoder.conditions import CONDITIONS

    file_name, usual = PARTS[part]
    names = words.split(",") if words else list(usual or CONDITIONS)
    out.mkdir(parents=True, exist_ok=True)
    path = out / file_name
    done = {(line["condition"], line["seed"]) for line in read(path)} if path.exists() else set()
    tasks = [(name, seed) for name in names for seed in seeds if (name, seed) not in done]
    began = time.monotonic()
    for dataset in dict.fromkeys(CONDITIONS[name].dataset for name, _ in tasks):
        _see(dataset)  # once, before workers share it
        mine = [task for task in tasks if CONDITIONS[task[0]].dataset == dataset]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, spawn, initializer=_one_thread) as pool:
            for future in as_completed([pool.submit(_play, part, *task) for task in mine]):
                lines = future.result()
                with gzip.open(path, "at", compresslevel=9) as file:
                    file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
                said = f"{lines[0]['condition']} seed {lines[0]['seed']}"
                print(f"{quantity(time.monotonic() - began, 's'):>8}  {said}", file=sys.stderr, flush=True)


def read(path: Path) -> list[dict[str, object]]:
    """The lines of a file."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def _see(dataset: str) -> None:
    from studies.common_encoder.conditions import see

    see(dataset)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _play(part: str, name: str, seed: int) -> list[dict[str, object]]:
    from studies.common_encoder.conditions import CONDITIONS, see

    found: list[dict[str, object]] = importlib.import_module(f"studies.common_encoder.{part}").play(
        name, seed, see(CONDITIONS[name].dataset)
    )
    return found
