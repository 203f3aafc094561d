"""Networks as body and head, what they cost, and the models of a whole fleet."""

from kfl.models.fleet import MODELS, FleetModels, SplitModel, State, cnn, fleet_from_modules, fleet_from_name, mlp
from kfl.models.network import (
    Convolution,
    Dense,
    ModelProfile,
    Network,
    build_wide,
    inspect_model,
    parts,
    read_network,
    widest,
)

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
