"""Play conditions side by side, and keep a line of each method and seed."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from kfl.core.text import quantity

LINES = "heads.jsonl.gz"
CURVES = "curves.jsonl.gz"
WITH_CURVES = ("cifar10-m2-all", "cifar10-m5-all", "cifar10-m5-50")


def run(out: Path, seeds: Sequence[int], words: str, workers: int, *, curves: bool = False) -> None:
    """Play conditions that are not played yet; the lines of each are written when it is done."""
    from studies.common_encoder.conditions import CONDITIONS

    names = words.split(",") if words else list(WITH_CURVES if curves else CONDITIONS)
    out.mkdir(parents=True, exist_ok=True)
    path = out / (CURVES if curves else LINES)
    done = {(line["condition"], line["seed"]) for line in read(path)} if path.exists() else set()
    tasks = [(name, seed) for name in names for seed in seeds if (name, seed) not in done]
    began = time.monotonic()
    for dataset in dict.fromkeys(CONDITIONS[name].dataset for name, _ in tasks):
        _see(dataset)  # once, before workers share it
        mine = [task for task in tasks if CONDITIONS[task[0]].dataset == dataset]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, spawn, initializer=_one_thread) as pool:
            for future in as_completed([pool.submit(_curves if curves else _play, task) for task in mine]):
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


def _play(task: tuple[str, int]) -> list[dict[str, object]]:
    from studies.common_encoder.conditions import CONDITIONS, see
    from studies.common_encoder.heads import play

    return play(*task, see(CONDITIONS[task[0]].dataset))


def _curves(task: tuple[str, int]) -> list[dict[str, object]]:
    from studies.common_encoder.conditions import CONDITIONS, see
    from studies.common_encoder.curves import play

    return play(*task, see(CONDITIONS[task[0]].dataset))
