"""Networks as body and head, what they cost, and the models of a whole fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports
from kfl.models.names import PAPER_WIDTHS, WIDTHS, architectures, default_widths, names_widths, read_model

if TYPE_CHECKING:
    from kfl.models.fleet import FleetModels, Models, State, fleet_from_modules, fleet_from_name
    from kfl.models.network import (
        Layer,
        SharedLayers,
        parts,
    )
    from kfl.models.profile import ModelProfile, inspect_model
    from kfl.models.zoo import MODELS, SplitModel, cnn, mlp, mobilenet, resnet8, resnet18, sensor, transformer

_LAZY = {
    "MODELS": "kfl.models.zoo",
    "FleetModels": "kfl.models.fleet",
    "Layer": "kfl.models.network",
    "ModelProfile": "kfl.models.profile",
    "SharedLayers": "kfl.models.network",
    "SmallNetwork": "kfl.algorithms.small_network",  # with `beside`: exported models of earlier versions ask here
    "SplitModel": "kfl.models.zoo",
    "beside": "kfl.algorithms.small_network",
    "State": "kfl.models.fleet",
    "cnn": "kfl.models.zoo",
    "Models": "kfl.models.fleet",
    "fleet_from_modules": "kfl.models.fleet",
    "fleet_from_name": "kfl.models.fleet",
    "inspect_model": "kfl.models.profile",
    "mlp": "kfl.models.zoo",
    "mobilenet": "kfl.models.zoo",
    "parts": "kfl.models.network",
    "resnet8": "kfl.models.zoo",
    "resnet18": "kfl.models.zoo",
    "sensor": "kfl.models.zoo",
    "transformer": "kfl.models.zoo",
}
"""Where each name comes from: imported on first use, because the names of networks are known without PyTorch."""


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = [
    "MODELS",
    "PAPER_WIDTHS",
    "WIDTHS",
    "FleetModels",
    "Layer",
    "ModelProfile",
    "Models",
    "SharedLayers",
    "SplitModel",
    "State",
    "architectures",
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
    "resnet8",
    "resnet18",
    "sensor",
    "transformer",
]
