"""Many short runs on a Ray cluster of two nodes, one of which is killed in the middle.

    python -m studies.ray_sweep --out docs/results/ray-sweep.txt

Two nodes as processes of this machine, each with one core, share a comparison of 200 runs. When a third of them are
finished, all processes of one node are killed; no other takes its place. Counted afterward: lines of the store by
digest, rounds of every run, how often each run was begun and where, and whether each is bit for bit what one process
alone makes of it. Then the same with nodes that do not see the run folders and send the files home. Takes about five
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kfl
from benchmarks.machine import machine
from kfl.comparison import ray as on_ray
from kfl.comparison import run_many
from kfl.comparison.execution import run_paths
from kfl.comparison.pool import Job
from kfl.runner import RunOptions
from studies.ray_witness import BOOK, Noted

WEIGHTS = (0.03, 0.1)
ROUNDS = 4
SAME = ("config.toml", "rounds.jsonl", "devices.json")


@dataclass
class Seen:
    """What was counted of one sweep."""

    title: str
    seconds: float
    at_kill: int
    """Runs that were finished when the node was killed."""
    begun: dict[tuple[str, str], set[tuple[str, str]]]
    """The nodes and processes that began each run or went on with it."""
    killed: str
    """The node that died."""
    rewritten: int
    """Runs that were finished before the kill and whose files changed after it."""
    different: int
    """Runs that are not bit for bit what one process makes of them."""
    rounds: Counter[int]
    """Of all runs: how many have so many rounds, each once and in order."""

    def report(self, runs: int) -> list[str]:
        """What a person reads."""
        there = sum(any(node == self.killed for node, _ in players) for players in self.begun.values())
        return [
            f"{self.title}: {self.seconds:.0f} s",
            f"  runs begun                                  {len(self.begun)} of {runs}, {there} on the node that died",
            f"  finished when the node died                 {self.at_kill}, of them written again {self.rewritten}",
            f"  played by more than one process             {self.twice}",
            f"  runs with all {ROUNDS} rounds, each once           {self.rounds[ROUNDS]} of {runs}",
            f"  not as one process alone makes them         {self.different}",
        ]

    @property
    def twice(self) -> int:
        """Runs that more than one process began: that which the node was at when it died."""
        return sum(len(players) > 1 for players in self.begun.values())

    def good(self, runs: int, cores: int = 1) -> bool:
        """Whether nothing was lost, and nothing played twice but what the node was at when it died."""
        whole = len(self.begun) == runs == self.rounds[ROUNDS]
        return whole and self.twice <= cores and not self.rewritten and not self.different


def experiments(runs: int) -> list[kfl.Experiment]:
    """Short runs: two settings, a hundred seeds each."""
    base = kfl.Experiment(
        devices=6, rounds=ROUNDS, widths=(16, 24), scheduler=kfl.Uniform(count=3), radio="paper-mnist"
    )
    each = runs // len(WEIGHTS)
    return [
        replace(base, algorithm=Noted(knowledge_weight=weight), seed=seed) for weight in WEIGHTS for seed in range(each)
    ]


def made_up() -> kfl.Dataset:
    """Data of its own, so that no file is needed."""
    draw = np.random.default_rng(0)
    y = np.arange(600) % 4
    x = draw.normal(size=(600, 1, 6, 6)).astype(np.float32) + y[:, None, None, None]
    return kfl.Dataset.from_arrays(x, y)


@contextmanager
def two_nodes() -> Any:
    """A cluster of two nodes with a core each; the address, and what kills the second node."""
    import ray.cluster_utils

    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    cluster: Any = ray.cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster.address, second.node_id, lambda: cluster.remove_node(second, allow_graceful=False)
    finally:
        cluster.shutdown()


def sweep(
    title: str,
    runs: list[kfl.Experiment],
    folder: Path,
    alone: Path,
    play: Callable[[str, Callable[[int], None]], None],
) -> Seen:
    """Play runs on two nodes of which one dies when a third is finished, and count."""
    book = folder.with_suffix(".book")
    os.environ[BOOK] = str(book)
    paths = run_paths(runs, folder)
    before: dict[Path, int] = {}
    with two_nodes() as (address, node, kill):

        def watch(done: int) -> None:
            if not before and done >= len(runs) // 3:
                before.update({path: stamp(path) for path in paths if (path / "summary.json").exists()})
                kill()

        started = time.monotonic()
        play(address, watch)
        seconds = time.monotonic() - started
    begun: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for weight, seed, where, process in (line.split() for line in book.read_text().splitlines()):
        if int(process) != os.getpid():  # it looks at the data, and plays nothing
            begun[weight, seed].add((where, process))
    expected = run_paths(runs, alone)
    return Seen(
        title=title,
        seconds=seconds,
        at_kill=len(before),
        begun=begun,
        killed=node,
        rewritten=sum(stamp(path) != then for path, then in before.items()),
        different=sum(contents(path) != contents(other) for path, other in zip(paths, expected, strict=True)),
        rounds=Counter(rounds_of(path) for path in paths),
    )


def stamp(path: Path) -> int:
    """When a run's summary was written."""
    return (path / "summary.json").stat().st_mtime_ns


def contents(path: Path) -> dict[str, bytes]:
    """The files of a run that say what happened in it."""
    return {name: (path / name).read_bytes() for name in SAME}


def rounds_of(path: Path) -> int:
    """Rounds on record, or -1 where one is missing or there twice."""
    found = [json.loads(line)["round"] for line in (path / "rounds.jsonl").read_text().splitlines()]
    return len(found) if found == list(range(len(found))) else -1


def main() -> int:
    """Play all of it, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs, data = experiments(options.runs), made_up()
    lines = [f"python -m studies.ray_sweep --runs {options.runs}; {machine()}", ""]
    print(lines[0], flush=True)
    with tempfile.TemporaryDirectory(prefix="kfl-sweep-") as place:
        root = Path(place)
        run_many(runs, root / "alone", dataset=data)
        shared = root / "shared"
        store: list[str] = []

        def compared(address: str, watch: Callable[[int], None]) -> None:
            entries = {
                f"weight {weight:g}": next(run for run in runs if run.algorithm == Noted(knowledge_weight=weight))
                for weight in WEIGHTS
            }
            found = kfl.compare(
                entries, range(len(runs) // len(WEIGHTS)), shared, ray=address, dataset=data,
                on_progress=lambda progress: watch(progress.runs_done),
            )  # fmt: skip
            store.extend(json.loads(line)["digest"] for line in (shared / "results.jsonl").read_text().splitlines())
            print("\n".join(str(found).splitlines()[:4]), flush=True)

        def sent(address: str, watch: Callable[[int], None]) -> None:
            jobs = [
                Job(run, path, data, RunOptions(keep_models=False))
                for run, path in zip(runs, run_paths(runs, root / "sent"), strict=True)
            ]
            done: list[Job] = []

            def tell(job: Job, ended: bool, failure: object) -> None:
                if ended:
                    if failure is not None:
                        print(failure, file=sys.stderr)
                    done.append(job)
                    watch(len(done))

            on_ray.play_on_ray(jobs, address, 1, tell, shared=False)

        first = sweep("Nodes that see the run folders", runs, shared, root / "alone", compared)
        lines += [
            *first.report(len(runs)),
            f"  lines of the store, and different digests   {len(store)}, {len(set(store))}",
        ]
        print("\n".join(lines[2:]), flush=True)
        second = sweep("Nodes that send the files home", runs, root / "sent", root / "alone", sent)
        lines += ["", *second.report(len(runs))]
        print("\n".join(second.report(len(runs))), flush=True)
    good = first.good(len(runs)) and second.good(len(runs)) and len(store) == len(set(store)) == len(runs)
    lines += ["", "Nothing lost and nothing played twice." if good else "Something was lost or played twice."]
    print(lines[-1])
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
