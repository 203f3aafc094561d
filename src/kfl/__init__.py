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
    from kfl.algorithms import Kfl, Local
    from kfl.core.errors import KflError
    from kfl.data import Dataset, load_dataset
    from kfl.models import SplitModel
    from kfl.scheduling import Uniform
    from kfl.simulation import Experiment, History, load_run, resume, run
    from kfl.wireless import CellConfig

_LAZY = {
    "Dataset": "kfl.data",
    "Experiment": "kfl.simulation",
    "History": "kfl.simulation",
    "Kfl": "kfl.algorithms",
    "KflError": "kfl.core.errors",
    "Local": "kfl.algorithms",
    "CellConfig": "kfl.wireless",
    "SplitModel": "kfl.models",
    "Uniform": "kfl.scheduling",
    "load_dataset": "kfl.data",
    "load_run": "kfl.simulation",
    "resume": "kfl.simulation",
    "run": "kfl.simulation",
}


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = [
    "CellConfig",
    "Dataset",
    "Experiment",
    "History",
    "Kfl",
    "KflError",
    "Local",
    "SplitModel",
    "Uniform",
    "__version__",
    "load_dataset",
    "load_run",
    "resume",
    "run",
]
