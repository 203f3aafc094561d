"""Runs on a Ray cluster: one task per run; Ray decides where and when.

A node that sees the run folders (one machine, or a shared disk) writes into them. Any other node plays the run in a
folder of its own and sends the finished files here, where they are written whole, the summary last.
A worker or node that dies costs time, not the run: Ray starts it again, and it resumes from its last checkpoint where
that can still be read.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kfl._version import __version__
from kfl.comparison.pool import FAILURE, Failure, Job, Tell, attempt
from kfl.core.errors import ConfigError, KflError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.core.telemetry import hush
from kfl.runfolder import RunFolder, RunReader, cannot_write, runs_in

RETRIES = 3
"""How often a run is restarted after its worker died."""
POLL_S = 0.3
"""Seconds between two progress updates."""
GRACE_S = 10.0
"""Seconds that interrupted runs have to end by themselves."""

CONNECT_S = 5.0
CLIENT_PORT = 10001
"""Default port of Ray's client server."""

Files = dict[str, bytes]


@dataclass(frozen=True)
class Sweep:
    """What all tasks of one sweep share."""

    beacon: str
    """Name of a file next to the run folders: a node that sees it sees the folders."""
    shared: bool
    """Whether to look for the beacon at all."""
    threads: int
    version: str
    command: tuple[str, ...]
    data_dir: str | None
    """KFL_DATA_DIR here, for nodes that have none."""


def play_on_ray(
    jobs: Sequence[Job], address: str, threads: int, tell: Tell, *, workers: int | None = None, shared: bool = True
) -> None:
    """Play all jobs as tasks of the Ray cluster at `address`; an interrupt cancels them all.

    `local` is a cluster of this machine alone, with room for `workers` runs side by side, that ends with the call;
    `auto` is the one that runs here already. `shared=False` treats all nodes as if they could not see the run folders.
    """
    if not jobs:
        return
    with _connected(address, None if workers is None else workers * threads) as ray:
        _check_room(ray, jobs, address, threads)
        with _beacon(jobs) as beacon:
            where = os.environ.get("KFL_DATA_DIR")
            sweep = Sweep(beacon, shared, threads, __version__, tuple(sys.argv), where)
            _play_all(ray, [_absolute(job) for job in jobs], sweep, lambda index, *news: tell(jobs[index], *news))


def _play_all(ray: Any, jobs: list[Job], sweep: Sweep, tell: Callable[[int, bool, Failure | None], None]) -> None:
    """Submit every job and follow all of them to the end."""
    board = _board(ray)
    # A worker that has used a GPU is not used again: PyTorch would stay with the first one it saw.
    share = {"num_cpus": sweep.threads, "max_retries": RETRIES}
    play = {0: ray.remote(**share)(play_there), 1: ray.remote(num_gpus=1, max_calls=1, **share)(play_there)}
    datasets: dict[int, Any] = {}
    tasks: dict[Any, int] = {}
    reported = [0] * len(jobs)
    try:
        for index, job in enumerate(jobs):
            if id(job.dataset) not in datasets:  # the same data for hundreds of runs travels once
                datasets[id(job.dataset)] = ray.put(job.dataset)
            given = (replace(job, dataset=None), datasets[id(job.dataset)], sweep, index, board)
            tasks[play[_gpus(ray, job)].options(name=job.path.name).remote(*given)] = index
        while tasks:
            done, _ = ray.wait(list(tasks), num_returns=1, timeout=POLL_S)
            for index, rounds in _rounds_done(ray, board).items():
                while reported[index] < rounds and index in tasks.values():
                    reported[index] += 1
                    tell(index, False, None)
            for task in done:
                index = tasks.pop(task)
                tell(index, True, _result(ray, task, jobs[index]))
    finally:
        _stop(ray, list(tasks))


def play_there(job: Job, data: Any, sweep: Sweep, index: int, board: Any) -> tuple[Failure | None, Files]:
    """The task, on some node: why the run failed, if it did, and the files of a folder that only the node sees."""
    import torch

    if sweep.version != __version__:
        sentence = f"A node of the cluster has kfl {__version__}, but this is {sweep.version}; install the same."
        return Failure(sentence), {}
    torch.set_num_threads(sweep.threads)
    sys.argv = list(sweep.command)  # for the run folder, which records the command
    if sweep.data_dir is not None:
        os.environ.setdefault("KFL_DATA_DIR", sweep.data_dir)
    job = replace(job, dataset=data)
    report = _Reporter(board, index)
    if sweep.shared and (job.path.parent / sweep.beacon).exists():
        return attempt(job, report), {}
    # A name that a second attempt on the same node finds again, and no other sweep.
    scratch = Path(tempfile.gettempdir()) / f"kfl{sweep.beacon}-{index}"
    there = replace(job, path=scratch / job.path.name)
    try:
        problem = attempt(there, report)
        files = read_files(scratch, finished=problem is None)
    finally:  # unless the process is killed, when another attempt goes on from here
        shutil.rmtree(scratch, ignore_errors=True)
    if problem is not None:
        problem = replace(problem, sentence=problem.sentence.replace(str(there.path), str(job.path)))
    return problem, files


class _Reporter:
    """Counts the rounds of one run, called after each, and updates the board now and then."""

    def __init__(self, board: Any, index: int) -> None:
        self._board, self._index = board, index
        self._rounds, self._last = 0, 0.0

    def __call__(self) -> None:
        self._rounds += 1
        if time.monotonic() - self._last > POLL_S:
            self._last = time.monotonic()
            self._board.write.remote(self._index, self._rounds)


class Board:
    """How many rounds each task has played; an actor on the caller's node."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}

    def write(self, index: int, rounds: int) -> None:
        """Counts only grow, so that a restarted run does not count its rounds twice."""
        self._rounds[index] = max(rounds, self._rounds.get(index, 0))

    def read(self) -> dict[int, int]:
        """Rounds by the index of the job."""
        return self._rounds


def _board(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(Board).options(num_cpus=0, scheduling_strategy=here, max_restarts=-1).remote()


def _rounds_done(ray: Any, board: Any) -> dict[int, int]:
    """How far the runs are. This is only shown, so a board that does not answer stops nothing."""
    try:
        rounds: dict[int, int] = ray.get(board.read.remote(), timeout=GRACE_S)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return {}
    return rounds


def _result(ray: Any, task: Any, job: Job) -> Failure | None:
    """Write the files of a task that ended; why it failed, if it did."""
    try:
        problem: Failure | None
        problem, files = ray.get(task)
        write_files(job.path, files)
    except KflError as failure:
        return Failure(str(failure))
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError):
        return Failure(f"Its Ray worker died {RETRIES + 1} times; memory may have run out.")
    except ray.exceptions.RayError as failure:
        reason = _reason(getattr(failure, "cause", None) or failure)
        return Failure(f"Ray could not run it ({reason}); every node needs kfl {__version__} and your own modules.")
    return problem


def read_files(folder: Path, finished: bool) -> Files:
    """What a node sends home, by relative path: the files of a finished run, or only the traceback of a failed one."""
    if not finished:
        return {path.name: path.read_bytes() for path in sorted(folder.glob(f"*{FAILURE}"))}
    found: Files = {}
    for run in runs_in(folder):
        found |= {f"{run.name}/{name}": data for name, data in RunReader(run).contents().items()}
    return found


def write_files(path: Path, files: Files) -> None:
    """Write what a node sent for the run folder `path`: whole files, the summary last, because it says finished."""
    inside = {name.partition("/")[2]: data for name, data in files.items() if name.startswith(f"{path.name}/")}
    beside = {name: data for name, data in files.items() if "/" not in name}
    try:
        for name, data in beside.items():  # a traceback, next to the run folder
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path.parent / name, data)
        if inside:
            RunFolder(path).receive(inside)
            path.with_name(f"{path.name}{FAILURE}").unlink(missing_ok=True)
    except OSError as problem:
        raise cannot_write(path, problem) from problem


@contextmanager
def _connected(address: str, cores: int | None) -> Iterator[Any]:
    """Ray, connected for the block. An existing connection is used and left open."""
    hush()
    # The default of Ray's next release: a task that asks for no GPU sees what its node shows.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as problem:
        raise MissingExtraError("ray", "ray", "Running on a Ray cluster") from problem
    if ray.is_initialized():
        yield ray
        return
    check_address(address)
    started_here: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False} if address == "local" else {}
    init = partial(ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR, **started_here)
    try:
        try:
            init()
        except ConnectionAbortedError:
            # A cluster that has just been started loses its first client's server, and says so after half a minute.
            logging.getLogger("kfl").info("The Ray cluster at %s was not ready; trying once more.", address)
            ray.shutdown()
            init()
    except (ImportError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
        raise KflError(f"Ray at {address!r} cannot be used ({_reason(problem)}).") from problem
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_room(ray: Any, jobs: Sequence[Job], address: str, threads: int) -> None:
    """Raise ConfigError for what no node has; Ray would wait for it forever."""
    room = ray.cluster_resources()
    if room.get("CPU", 0) < threads:
        raise ConfigError("threads", threads, f"at most the {room.get('CPU', 0):.0f} cores of the cluster at {address}")
    if any(job.options.device == "cuda" for job in jobs) and room.get("GPU", 0) < 1:
        raise ConfigError("device", "cuda", f"cpu, because no node of the Ray cluster at {address} has a GPU")


def _gpus(ray: Any, job: Job) -> int:
    device = job.options.device
    return int(device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1))


@contextmanager
def _beacon(jobs: Sequence[Job]) -> Iterator[str]:
    """A file next to the run folders while the sweep lasts: a node that sees it sees the folders too."""
    folder, name = jobs[0].path.parent, f".{uuid.uuid4().hex[:12]}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    except OSError as problem:
        raise cannot_write(folder, problem) from problem
    try:
        yield name
    finally:
        (folder / name).unlink(missing_ok=True)


def _absolute(job: Job) -> Job:
    """The job with absolute paths, because a worker may run in another folder."""
    where = job.options.data_dir
    options = replace(job.options, data_dir=None if where is None else where.absolute())
    return replace(job, path=job.path.absolute(), options=options)


def _stop(ray: Any, tasks: list[Any]) -> None:
    """Cancel what still runs: gently first, so that nothing is left on the nodes, then by force."""
    for force in (False, True):
        if tasks and ray.is_initialized():
            for task in tasks:
                with suppress(ray.exceptions.RayError, ValueError):
                    ray.cancel(task, force=force)
            _, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=GRACE_S)


def _reason(problem: BaseException) -> str:
    """The kind of a failure and the first line of what it says."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {(lines or [''])[0]}".rstrip(".: ")


def check_address(address: str) -> None:
    """Raise ConfigError unless the address is `local`, `auto`, or one at which something answers.

    Where nothing does, Ray itself waits for minutes and then ends the process.

    >>> check_address("local")
    >>> check_address("head-node")
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: ray is 'head-node', but must be local, auto, HOST:PORT or ray://HOST:PORT.
    """
    if address in ("local", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host and address.startswith("ray://") and port:
        host, port = port, str(CLIENT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError("ray", address, "local, auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ConfigError("ray", address, f"the address of a running Ray cluster (here: {reason})") from problem
