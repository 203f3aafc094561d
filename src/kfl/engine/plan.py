"""How an engine executes: a plan, made once, kept in the run folder and used again when a run is resumed.

The same plan on the same machine gives the same numbers bit for bit. Different plans agree to a tolerance.
Nothing here imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kfl.core.config import Table, from_table, to_table

Precision = Literal["float32", "tf32", "bf16", "float64"]
Path = Literal["mlp", "cnn", "plain", "stacked"]


@dataclass(frozen=True)
class Plan:
    """How an engine executes.

    >>> plan = Plan(paths=("mlp", "plain"), workers=2)
    >>> Plan.read(plan.table()) == plan
    True
    """

    device: Literal["cpu", "cuda"] = "cpu"
    precision: Precision = "float32"
    """Type of the numbers. tf32 is a GPU's and means float32 on a CPU; with bf16 only products are shortened."""
    workers: int = 1
    """Devices trained side by side on the CPU, each by one thread."""
    gram: bool = True
    """Whether an MLP's first layer may go through the Gram matrix of the samples where that is less work."""
    paths: tuple[Path, ...] = ()
    """For each architecture: mlp or cnn (written out by hand), stacked (many devices in one batch), or plain
    autograd, one device after another."""

    def table(self) -> Table:
        """As plain values, for a file."""
        return to_table(self)

    @staticmethod
    def read(table: Mapping[str, Any]) -> Plan:
        """From plain values; a ConfigError names what does not fit.

        A plan of an older version may have `together`, how many seeds shared a batch. It did not change what was
        computed and is ignored.

        >>> Plan.read({"precision": "bf16", "together": 5}).precision
        'bf16'
        """
        return from_table(Plan, {name: value for name, value in table.items() if name != "together"}, "plan.")
