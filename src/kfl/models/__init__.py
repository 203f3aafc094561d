"""Networks as body and head, what they cost, and the models of a whole fleet."""

from kfl.models.fleet import FleetModels, State, fleet_from_modules, fleet_from_name
from kfl.models.network import Convolution, Dense, Network, build_wide, parts, read_network, widest
from kfl.models.profile import ModelProfile, inspect_model
from kfl.models.zoo import MODELS, SplitModel, cnn, mlp, mobilenet, resnet8, resnet18, sensor, transformer

__all__ = [
    "MODELS",
    "Convolution",
    "Dense",
    "FleetModels",
    "ModelProfile",
    "Network",
    "SplitModel",
    "State",
    "build_wide",
    "cnn",
    "fleet_from_modules",
    "fleet_from_name",
    "inspect_model",
    "mlp",
    "mobilenet",
    "parts",
    "read_network",
    "resnet8",
    "resnet18",
    "sensor",
    "transformer",
    "widest",
]
