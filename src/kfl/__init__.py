"""Federated learning that fits the battery and the band.

Devices with different neural networks learn together by sharing knowledge, the mean feature of each class,
instead of weights; a scheduler decides who takes part so that energy budgets last.

>>> import kfl
>>> history = kfl.run(kfl.Experiment(dataset="mnist-5k", devices=20, rounds=2))
>>> len(history.rounds), history.rounds[0].bits_up == 10 * 640 * 32
(2, True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl._version import __version__
from kfl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from kfl.comparison import Comparison as Comparison
    from kfl.comparison import compare as compare
    from kfl.comparison import run_many as run_many
    from kfl.core.errors import KflError as KflError
    from kfl.data import Dataset as Dataset
    from kfl.data import load_dataset as load_dataset
    from kfl.experiment import Experiment as Experiment
    from kfl.experiment import Faults as Faults
    from kfl.models import SplitModel as SplitModel
    from kfl.runfolder import load_run as load_run
    from kfl.runner import resume as resume
    from kfl.runner import run as run
    from kfl.scheduling import allocate as allocate
    from kfl.scheduling.allocation import AllocationProblem as AllocationProblem
    from kfl.simulation import History as History
    from kfl.wireless import CellConfig as CellConfig

_LAZY = {
    "AllocationProblem": "kfl.scheduling.allocation",
    "CellConfig": "kfl.wireless",
    "Comparison": "kfl.comparison",
    "Dataset": "kfl.data",
    "Experiment": "kfl.experiment",
    "Faults": "kfl.experiment",
    "History": "kfl.simulation",
    "KflError": "kfl.core.errors",
    "SplitModel": "kfl.models",
    "allocate": "kfl.scheduling",
    "compare": "kfl.comparison",
    "load_dataset": "kfl.data",
    "load_run": "kfl.runfolder",
    "resume": "kfl.runner",
    "run": "kfl.runner",
    "run_many": "kfl.comparison",
}
"""Where each public name comes from: it is imported when it is first used, so that help need not wait for PyTorch."""

__all__ = ["__version__", *_LAZY]  # noqa: PLE0604  # names, all of them


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name[:1].isupper() and name in (registered := _registered()):
        return registered[name]
    return lazy_exports(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_registered()})


def _registered() -> dict[str, type]:
    """Every registered algorithm and scheduler by the name of its class, such as `kfl.FedAvg`."""
    from kfl.algorithms import ALGORITHMS
    from kfl.scheduling import SCHEDULERS

    return {cls.__name__: cls for cls in (*ALGORITHMS.values(), *SCHEDULERS.values())}
