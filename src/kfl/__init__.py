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
    from kfl.algorithms import (
        Apfl,
        CommonKnowledge,
        Fd,
        FedAvg,
        FederatedDistillation,
        FedGh,
        FedKd,
        FedMrl,
        FedProto,
        FedRep,
        FedTgp,
        FixedKnowledge,
        Kfl,
        LgFedAvg,
        Local,
        LocalClassifier,
        SelfKnowledge,
        SharedStem,
    )
    from kfl.comparison import Comparison, compare, run_many
    from kfl.core.errors import KflError
    from kfl.data import Dataset, load_dataset
    from kfl.experiment import Experiment, Faults
    from kfl.models import SplitModel
    from kfl.runfolder import load_run
    from kfl.runner import resume, run
    from kfl.scheduling import (
        AllDevices,
        AllocationProblem,
        Ascend,
        Descend,
        Dual,
        FixedSet,
        GreedyEnergy,
        Lyapunov,
        Myopic,
        RoundRobin,
        Uniform,
        allocate,
    )
    from kfl.simulation import History
    from kfl.wireless import CellConfig

_LAZY = {
    "AllDevices": "kfl.scheduling",
    "AllocationProblem": "kfl.scheduling",
    "Apfl": "kfl.algorithms",
    "Ascend": "kfl.scheduling",
    "CellConfig": "kfl.wireless",
    "CommonKnowledge": "kfl.algorithms",
    "Comparison": "kfl.comparison",
    "Dataset": "kfl.data",
    "Descend": "kfl.scheduling",
    "Dual": "kfl.scheduling",
    "Experiment": "kfl.experiment",
    "Faults": "kfl.experiment",
    "Fd": "kfl.algorithms",
    "FederatedDistillation": "kfl.algorithms",
    "FedAvg": "kfl.algorithms",
    "FedGh": "kfl.algorithms",
    "FedKd": "kfl.algorithms",
    "FedMrl": "kfl.algorithms",
    "FedProto": "kfl.algorithms",
    "FedRep": "kfl.algorithms",
    "FedTgp": "kfl.algorithms",
    "FixedKnowledge": "kfl.algorithms",
    "FixedSet": "kfl.scheduling",
    "GreedyEnergy": "kfl.scheduling",
    "History": "kfl.simulation",
    "Kfl": "kfl.algorithms",
    "KflError": "kfl.core.errors",
    "LgFedAvg": "kfl.algorithms",
    "Local": "kfl.algorithms",
    "LocalClassifier": "kfl.algorithms",
    "Lyapunov": "kfl.scheduling",
    "Myopic": "kfl.scheduling",
    "RoundRobin": "kfl.scheduling",
    "SelfKnowledge": "kfl.algorithms",
    "SharedStem": "kfl.algorithms",
    "SplitModel": "kfl.models",
    "Uniform": "kfl.scheduling",
    "allocate": "kfl.scheduling",
    "compare": "kfl.comparison",
    "load_dataset": "kfl.data",
    "load_run": "kfl.runfolder",
    "resume": "kfl.runner",
    "run": "kfl.runner",
    "run_many": "kfl.comparison",
}
"""Where each public name comes from: it is imported when it is first used, so that help need not wait for PyTorch."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name[:1].isupper():  # a class that is registered, and not yet in the list above
        from kfl.algorithms import ALGORITHMS
        from kfl.scheduling import SCHEDULERS

        for cls in (*ALGORITHMS.values(), *SCHEDULERS.values()):
            if cls.__name__ == name:
                return cls
    return lazy_exports(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "AllDevices",
    "AllocationProblem",
    "Apfl",
    "Ascend",
    "CellConfig",
    "CommonKnowledge",
    "Comparison",
    "Dataset",
    "Descend",
    "Dual",
    "Experiment",
    "Faults",
    "Fd",
    "FedAvg",
    "FedGh",
    "FedKd",
    "FedMrl",
    "FedProto",
    "FedRep",
    "FedTgp",
    "FederatedDistillation",
    "FixedKnowledge",
    "FixedSet",
    "GreedyEnergy",
    "History",
    "Kfl",
    "KflError",
    "LgFedAvg",
    "Local",
    "LocalClassifier",
    "Lyapunov",
    "Myopic",
    "RoundRobin",
    "SelfKnowledge",
    "SharedStem",
    "SplitModel",
    "Uniform",
    "__version__",
    "allocate",
    "compare",
    "load_dataset",
    "load_run",
    "resume",
    "run",
    "run_many",
]
