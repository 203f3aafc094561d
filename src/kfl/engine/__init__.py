"""Many devices' models, trained, read and evaluated behind one small interface."""

from kfl.data import LocalData
from kfl.engine.base import ClassStatistics, DeviceProfile, Engine, RoundKey, SecretKey, Sgd
from kfl.engine.objectives import (
    Distillation,
    FeatureTargets,
    Forward,
    LabelDistillation,
    Matryoshka,
    Mixture,
    Objective,
    Proximal,
    Supervised,
)
from kfl.engine.plan import Plan, check_device, make_engine

__all__ = [
    "ClassStatistics",
    "DeviceProfile",
    "Distillation",
    "Engine",
    "FeatureTargets",
    "Forward",
    "LabelDistillation",
    "LocalData",
    "Matryoshka",
    "Mixture",
    "Objective",
    "Plan",
    "Proximal",
    "RoundKey",
    "SecretKey",
    "Sgd",
    "Supervised",
    "check_device",
    "make_engine",
]
