"""Networks as body and head, what they cost, and the models of a whole fleet."""

from kfl.models.fleet import MODELS, FleetModels, State, fleet_from_modules, fleet_from_name
from kfl.models.inspect import ModelProfile, inspect_model, parts
from kfl.models.networks import SplitModel, cnn, mlp

__all__ = [
    "MODELS",
    "FleetModels",
    "ModelProfile",
    "SplitModel",
    "State",
    "cnn",
    "fleet_from_modules",
    "fleet_from_name",
    "inspect_model",
    "mlp",
    "parts",
]
