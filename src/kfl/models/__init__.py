"""Networks as body and head, what they cost, and the models of a whole fleet."""

from kfl.models.fleet import MODELS, FleetModels, State, fleet_from_modules, fleet_from_name
from kfl.models.inspect import ModelProfile, inspect_model, parts
from kfl.models.network import Convolution, Dense, Network, build_wide, read_network, widest
from kfl.models.networks import SplitModel, cnn, mlp

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
    "parts",
    "read_network",
    "widest",
]
