"""Chooses an engine for a processor, a fleet of models and a precision, and makes its plan."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from kfl.core.errors import ConfigError, MissingExtraError
from kfl.data import LocalData
from kfl.engine.base import Engine, Path, Plan, Precision
from kfl.models import FleetModels

log = logging.getLogger("kfl")


def make_engine(
    data: LocalData,
    models: FleetModels,
    device: str = "cpu",
    precision: str = "float32",
    plan: Plan | None = None,
) -> Engine:
    """The engine for this machine. With a plan, of an earlier run, it executes exactly as that run did.

    >>> import numpy as np
    >>> from kfl.data import Dataset, partition
    >>> from kfl.models import fleet_from_name
    >>> y = np.arange(40) % 2
    >>> dataset = Dataset.from_arrays(np.random.default_rng(0).random((40, 6), dtype=np.float32), y)
    >>> split = partition("iid", dataset.train_y, dataset.test_y, classes=2, devices=4, seed=0)
    >>> engine = make_engine(LocalData(dataset, split), fleet_from_name("mlp", (8,), 4, (6,), 2, seed=0))
    >>> engine.plan.paths
    ('mlp',)
    """
    if plan is None:
        plan = make_plan(models, device, precision)
    # Run folders of older versions may have a stacked plan on a CPU: seeds that shared a batch.
    if check_device(plan.device) == "cuda" or (plan.paths and set(plan.paths) == {"stacked"}):
        from kfl.engine.stacked import StackedEngine

        return StackedEngine(data, models, plan.device, plan.precision)
    from kfl.engine.cpu import CpuEngine

    if len(plan.paths) != len(models.builders):
        raise ConfigError("plan.paths", list(plan.paths), f"one of {get_args(Path)} for each architecture")
    if ("cnn" in plan.paths or plan.compiled) and not _compiles():
        raise MissingExtraError("llvmlite", "fast", "The plan of this run")
    return CpuEngine(data, models, plan)


def make_plan(models: FleetModels, device: str = "cpu", precision: str = "float32") -> Plan:
    """How a fleet's models would be trained on a processor."""
    import torch

    if precision not in get_args(Precision):
        raise ConfigError(
            "precision", precision, f"one of {', '.join(get_args(Precision))}", choices=get_args(Precision)
        )
    if check_device(device) == "cuda":
        return Plan("cuda", precision, workers=1, paths=("stacked",) * len(models.builders))  # type: ignore[arg-type]  # checked above
    paths = tuple(_path(models, index) for index in range(len(models.builders)))
    _say(models, paths)
    compiled = _compiles() and set(paths) != {"mlp"}
    plan = Plan(workers=torch.get_num_threads(), gram=True, paths=paths, otherwise="worker", compiled=compiled)
    return replace(plan, precision=precision)  # type: ignore[arg-type]  # checked above


def check_device(device: str) -> str:
    """The processor a name stands for: auto is the GPU where there is one."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ConfigError("device", device, "auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", device, "cpu or auto: PyTorch finds no GPU on this machine")
    return device


def _path(models: FleetModels, index: int) -> Path:
    """The way of one architecture on a CPU."""
    from kfl._kernels.cpu import kind

    found = kind(models.profiles[index].network)
    return "worker" if found is None or (found == "cnn" and not _compiles()) else found


def _say(models: FleetModels, paths: Sequence[Path]) -> None:
    """One sentence for the architectures that are not written out by hand, and why they are not."""
    from kfl._kernels.cpu import kind
    from kfl.engine.workers import few

    others = [index for index, path in enumerate(paths) if path == "worker"]
    for without_compiler in (False, True):
        names = [models.names[i] for i in others if (kind(models.profiles[i].network) is None) != without_compiler]
        if not names:
            continue
        why = "other layers than the paper's networks"
        if without_compiler:
            why = "convolutions several times slower than with: pip install 'kfl[fast]'"
        _log_once(f"{few(list(dict.fromkeys(names)))}: trained by autograd, one device per core ({why}).")


_logged: set[str] = set()


def _log_once(sentence: str) -> None:
    if sentence not in _logged:
        _logged.add(sentence)
        log.info(sentence)


def _compiles() -> bool:
    """Whether the package that compiles kernels is installed."""
    return importlib.util.find_spec("llvmlite") is not None
