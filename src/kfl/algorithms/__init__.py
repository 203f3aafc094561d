"""How devices learn: each algorithm is one module and one line here.

>>> sorted(ALGORITHMS)
['apfl', 'fedavg', 'fedkd', 'fedproto', 'fedrep', 'fixed-knowledge', 'kfl', 'local', 'self-knowledge']
>>> ALGORITHMS["fedrep"](local_steps=4)
FedRep(local_steps=4, learning_rate=0.05, head_learning_rate=None, momentum=0.9, batch_size=None, head_steps=None)
"""

from kfl.algorithms.ablations import FixedKnowledge, SelfKnowledge
from kfl.algorithms.apfl import Apfl
from kfl.algorithms.base import Algorithm, Cost, Rejection, Upload
from kfl.algorithms.fedavg import FedAvg
from kfl.algorithms.fedkd import FedKd
from kfl.algorithms.fedproto import FedProto
from kfl.algorithms.fedrep import FedRep
from kfl.algorithms.kfl import Kfl
from kfl.algorithms.local import Local
from kfl.algorithms.privacy import PrivacyCost, privacy_cost

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.name: cls for cls in (Kfl, Local, FedAvg, FedRep, Apfl, FedKd, FedProto, SelfKnowledge, FixedKnowledge)
}
"""Algorithms by the word that selects them."""

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Apfl",
    "Cost",
    "FedAvg",
    "FedKd",
    "FedProto",
    "FedRep",
    "FixedKnowledge",
    "Kfl",
    "Local",
    "PrivacyCost",
    "Rejection",
    "SelfKnowledge",
    "Upload",
    "privacy_cost",
]
