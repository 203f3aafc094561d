"""How an engine executes: the plan, made once for a fleet and a processor, and the engine for it.

A plan is kept in the run folder and used again when a run is resumed. The same plan on the same machine gives the same
numbers bit for bit. Different plans agree to a tolerance.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from kfl.core.config import Table, from_table
from kfl.core.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from kfl.data import LocalData
    from kfl.engine.base import Engine
    from kfl.models import FleetModels

Precision = Literal["float32", "tf32", "bf16", "float64"]

OLDER = ("gram", "paths", "otherwise", "compiled", "together")
"""What plans of older versions have besides: hand-written passes for some networks, which no longer exist."""
ANY_COMPILER = "any"
SHOWN_NAMES = 4
"""Architectures that one sentence of the log names."""

log = logging.getLogger("kfl")
_logged: set[str] = set()


@dataclass(frozen=True)
class Plan:
    """How an engine executes.

    >>> plan = Plan(precision="bf16", workers=2)
    >>> Plan.read(plan.table()) == plan
    True
    """

    device: Literal["cpu", "cuda"] = "cpu"
    precision: Precision = "float32"
    """Type of the numbers. tf32 is a GPU's and means float32 on a CPU; with bf16 only products are shortened."""
    workers: int = 1
    """Devices trained side by side on the CPU, each by one thread."""
    compiler: str = ""
    """The C compiler that blocks of convolution, ReLU and pooling are compiled by; empty: they are PyTorch's."""
    older: tuple[tuple[str, Any], ...] = ()
    """What an older version wrote besides, kept as it was: a checkpoint belongs to a plan as it is written."""

    @property
    def stacked(self) -> bool:
        """Whether devices share batches: on a GPU, and in run folders of older versions on a CPU too."""
        return self.device == "cuda" or set(dict(self.older).get("paths", ())) == {"stacked"}

    def table(self) -> Table:
        """As plain values, for a file."""
        found: Table = {"device": self.device, "precision": self.precision, "workers": self.workers}
        if self.compiler and not self.older:
            found["compiler"] = self.compiler
        return {**found, **dict(self.older)}

    @staticmethod
    def read(table: Mapping[str, Any]) -> Plan:
        """Read a plan from plain values, of this version or an older one.

        A run that began with hand-written passes (paths mlp, cnn) goes on by autograd: to 1e-5 the same numbers.

        Raises:
            ConfigError: If a value does not fit; it names which.

        >>> Plan.read({"precision": "bf16", "paths": ["cnn"], "gram": True}).compiler
        'any'
        """
        plan = from_table(Plan, {name: value for name, value in table.items() if name not in OLDER}, "plan.")
        kept = {name: table[name] for name in OLDER[:-1] if name in table}
        older = tuple((name, list(value) if isinstance(value, tuple) else value) for name, value in kept.items())
        if "cnn" in table.get("paths", ()) and plan.device == "cpu":
            plan = replace(plan, compiler=ANY_COMPILER)
        return replace(plan, older=older)


def make_engine(
    data: LocalData,
    models: FleetModels,
    device: str = "cpu",
    precision: str = "float32",
    plan: Plan | None = None,
) -> Engine:
    """Return the engine for this machine.

    Args:
        data: Every device's samples.
        models: Every device's network.
        device: cpu, cuda, or auto for the GPU where there is one.
        precision: float32, tf32, bf16 or float64.
        plan: The plan of an earlier run, which is then executed exactly so, whatever `device` and `precision` say.

    Raises:
        ConfigError: If there is no such device or precision.
        MissingExtraError: If the plan needs a C compiler and there is none.

    >>> import numpy as np
    >>> from kfl.data import Dataset, LocalData, partition
    >>> from kfl.models import fleet_from_name
    >>> y = np.arange(40) % 2
    >>> dataset = Dataset.from_arrays(np.random.default_rng(0).random((40, 6), dtype=np.float32), y)
    >>> split = partition("iid", dataset.train_y, dataset.test_y, classes=2, devices=4, seed=0)
    >>> engine = make_engine(LocalData(dataset, split), fleet_from_name("mlp", (8,), 4, (6,), 2, seed=0))
    >>> engine.plan.precision
    'float32'
    """
    if plan is None:
        plan = make_plan(models, device, precision)
    check_device(plan.device)
    if plan.stacked:
        from kfl.engine.stacked import StackedEngine

        return StackedEngine(data, models, plan.device, plan.precision, plan=plan)
    from kfl.engine.autograd import AutogradEngine
    from kfl.engine.compile import find_compiler

    compiler = find_compiler() if plan.compiler else None
    if plan.compiler and compiler is None:
        if not plan.older:
            raise MissingExtraError("ziglang", "fast", "The plan of this run, which has compiled convolutions,")
        _log_once("No C compiler: convolutions of this run are computed by PyTorch, several times slower.")
        plan = replace(plan, compiler="")
    elif plan.compiler not in ("", ANY_COMPILER) and compiler is not None and plan.compiler != compiler.name:
        _log_once(
            f"The plan of this run has {plan.compiler}, but this machine {compiler.name}: last digits may differ."
        )
    return AutogradEngine(data, models, plan)


def make_plan(models: FleetModels, device: str = "cpu", precision: str = "float32") -> Plan:
    """Return how a fleet's models would be trained on a processor."""
    import torch

    from kfl.engine.compile import find_compiler
    from kfl.engine.fused import has_blocks

    if precision not in get_args(Precision):
        raise ConfigError(
            "precision", precision, f"one of {', '.join(get_args(Precision))}", choices=get_args(Precision)
        )
    plan = replace(Plan(), precision=precision)  # type: ignore[arg-type]  # checked above
    if check_device(device) == "cuda":
        return replace(plan, device="cuda")
    plan = replace(plan, workers=torch.get_num_threads())
    with torch.random.fork_rng(devices=[]):
        profits = [name for build, name in zip(models.builders, models.names, strict=True) if has_blocks(build())]
    if not profits:
        return plan
    compiler = find_compiler()
    if compiler is None:
        _log_once(
            f"{few(list(dict.fromkeys(profits)))}: convolutions several times slower than with a C compiler: "
            "install gcc or clang, or pip install 'kfl[fast]'."
        )
        return plan
    return replace(plan, compiler=compiler.name)


def check_device(device: str) -> str:
    """Return the processor that a name stands for: auto is the GPU where there is one."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ConfigError("device", device, "auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", device, "cpu or auto: PyTorch finds no GPU on this machine")
    return device


def few(names: Sequence[str]) -> str:
    """Names in a sentence, however many there are.

    >>> few(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d and 2 more'
    """
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _log_once(sentence: str) -> None:
    if sentence not in _logged:
        _logged.add(sentence)
        log.info(sentence)
