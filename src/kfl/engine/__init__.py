"""Many devices' models, trained, read and evaluated behind one small interface."""

from kfl.data import LocalData
from kfl.engine.base import DeviceProfile, Engine, RoundKey, SecretKey, Sgd
from kfl.engine.objectives import (
    Distillation,
    FeatureTargets,
    LabelDistillation,
    Matryoshka,
    Mixture,
    Objective,
    Supervised,
)

__all__ = [
    "DeviceProfile",
    "Distillation",
    "Engine",
    "FeatureTargets",
    "LabelDistillation",
    "LocalData",
    "Matryoshka",
    "Mixture",
    "Objective",
    "RoundKey",
    "SecretKey",
    "Sgd",
    "Supervised",
]
