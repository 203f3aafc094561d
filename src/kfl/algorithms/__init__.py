"""How devices learn: each algorithm is one module and one line here.

>>> {"kfl", "local", "fedavg"} <= set(ALGORITHMS)
True
>>> ALGORITHMS["fedrep"](local_steps=4).steps()
(4, 4)
"""

from kfl.algorithms.apfl import Apfl
from kfl.algorithms.base import Algorithm, Cost, feature_flops, training_flops
from kfl.algorithms.common_knowledge import CommonKnowledge
from kfl.algorithms.ditto import Ditto
from kfl.algorithms.fd import FederatedDistillation
from kfl.algorithms.fedavg import FedAvg
from kfl.algorithms.fedgh import FedGh
from kfl.algorithms.fedkd import FedKd
from kfl.algorithms.fedmrl import FedMrl
from kfl.algorithms.fedproto import FedProto
from kfl.algorithms.fedprox import FedProx
from kfl.algorithms.fedrep import FedRep
from kfl.algorithms.fedtgp import FedTgp
from kfl.algorithms.kfl import Kfl
from kfl.algorithms.lgfedavg import LgFedAvg
from kfl.algorithms.local import FixedKnowledge, Local, SelfKnowledge
from kfl.algorithms.local_classifier import LocalClassifier
from kfl.algorithms.privacy import PrivacyCost, privacy_cost
from kfl.algorithms.prototypes import PrototypeMethod
from kfl.algorithms.scaffold import Scaffold
from kfl.algorithms.shared_stem import SharedStem
from kfl.algorithms.uploads import ArrayFormat, Rejection, Upload, UploadFormat, usable, wire_size
from kfl.algorithms.weights import WeightAveraging

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.name: cls
    for cls in (
        *(Kfl, SharedStem, Local, FedAvg, FedRep, Apfl, FedKd, FedProto, FedTgp, FedGh),
        *(FederatedDistillation, FedMrl, LgFedAvg, SelfKnowledge, FixedKnowledge),
        *(CommonKnowledge, LocalClassifier, FedProx, Scaffold, Ditto),
    )
}
"""Algorithms by the word that selects them."""


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Apfl",
    "ArrayFormat",
    "CommonKnowledge",
    "Cost",
    "Ditto",
    "FedAvg",
    "FedGh",
    "FedKd",
    "FedMrl",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedTgp",
    "FederatedDistillation",
    "FixedKnowledge",
    "Kfl",
    "LgFedAvg",
    "Local",
    "LocalClassifier",
    "PrivacyCost",
    "PrototypeMethod",
    "Rejection",
    "Scaffold",
    "SelfKnowledge",
    "SharedStem",
    "Upload",
    "UploadFormat",
    "WeightAveraging",
    "feature_flops",
    "privacy_cost",
    "training_flops",
    "usable",
    "wire_size",
]
