"""Networks as body and head, what they cost, and the models of a whole fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports
from kfl.models.names import PAPER_WIDTHS, WIDTHS, architectures, default_widths, names_widths, read_model

if TYPE_CHECKING:
    from kfl.models.fleet import FleetModels, Models, State, fleet_from_modules, fleet_from_name
    from kfl.models.network import (
        Convolution,
        Dense,
        Layer,
        Network,
        SharedLayers,
        build_wide,
        parts,
        read_network,
        shared_layers,
        tied,
        widest,
        with_ties,
    )
    from kfl.models.profile import ModelProfile, inspect_model
    from kfl.models.zoo import MODELS, SplitModel, cnn, mlp, mobilenet, resnet8, resnet18, sensor, transformer

_LAZY = {
    "MODELS": "kfl.models.zoo",
    "Convolution": "kfl.models.network",
    "Dense": "kfl.models.network",
    "FleetModels": "kfl.models.fleet",
    "Layer": "kfl.models.network",
    "ModelProfile": "kfl.models.profile",
    "Network": "kfl.models.network",
    "SharedLayers": "kfl.models.network",
    "SmallNetwork": "kfl.algorithms.small_network",  # with `beside`: exported models of earlier versions ask here
    "SplitModel": "kfl.models.zoo",
    "beside": "kfl.algorithms.small_network",
    "State": "kfl.models.fleet",
    "build_wide": "kfl.models.network",
    "cnn": "kfl.models.zoo",
    "Models": "kfl.models.fleet",
    "fleet_from_modules": "kfl.models.fleet",
    "fleet_from_name": "kfl.models.fleet",
    "inspect_model": "kfl.models.profile",
    "mlp": "kfl.models.zoo",
    "mobilenet": "kfl.models.zoo",
    "parts": "kfl.models.network",
    "read_network": "kfl.models.network",
    "resnet8": "kfl.models.zoo",
    "resnet18": "kfl.models.zoo",
    "sensor": "kfl.models.zoo",
    "shared_layers": "kfl.models.network",
    "tied": "kfl.models.network",
    "transformer": "kfl.models.zoo",
    "widest": "kfl.models.network",
    "with_ties": "kfl.models.network",
}
"""Where each name comes from: imported on first use, because the names of networks are known without PyTorch."""


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = [
    "MODELS",
    "PAPER_WIDTHS",
    "WIDTHS",
    "Convolution",
    "Dense",
    "FleetModels",
    "Layer",
    "ModelProfile",
    "Models",
    "Network",
    "SharedLayers",
    "SplitModel",
    "State",
    "architectures",
    "build_wide",
    "cnn",
    "default_widths",
    "fleet_from_modules",
    "fleet_from_name",
    "inspect_model",
    "mlp",
    "mobilenet",
    "names_widths",
    "parts",
    "read_model",
    "read_network",
    "resnet8",
    "resnet18",
    "sensor",
    "shared_layers",
    "tied",
    "transformer",
    "widest",
    "with_ties",
]
