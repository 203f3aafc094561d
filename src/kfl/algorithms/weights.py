"""Averages of weights: what a server makes of models, or parts of models, of one architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kfl.algorithms.base import Rejection, Upload
from kfl.algorithms.uploads import refuse_arrays, refuse_count

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.engine import Engine
    from kfl.models import State

SAMPLES = "samples"
"""Name under which a device sends its number of training samples D_k, the weight of its upload."""


def weights_upload(device: int, weights: Mapping[str, Tensor], engine: Engine) -> Upload:
    """A device's weights with its number of samples."""
    import torch

    samples = torch.tensor(float(engine.profile(device).samples), dtype=torch.float64)
    return Upload(device, {**weights, SAMPLES: samples})


def average_weights(server: State, uploads: Sequence[Upload]) -> tuple[State, list[Rejection]]:
    """w = Σ_k D_k w_k / Σ_k D_k over the uploads that make sense; the server's own where there is none.

    McMahan et al. 2017, Algorithm 1. Running statistics are averaged like weights, and counters (whole
    numbers) are rounded.
    """
    import torch

    rejected, total_weight = [], 0.0
    # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
    total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in server.items()}
    for upload in uploads:
        reason = refuse_arrays(upload, server) or refuse_count(upload, SAMPLES, ())
        if reason:
            rejected.append(Rejection(upload.device, reason))
            continue
        samples = float(upload.arrays[SAMPLES])
        total_weight += samples
        for name in total:
            total[name] += samples * upload.arrays[name].double().cpu()
    if total_weight == 0:
        return server, rejected
    return {name: _stored(value / total_weight, server[name]) for name, value in total.items()}, rejected


def _stored(value: Tensor, like: Tensor) -> Tensor:
    """A float64 mean in the type and place of the server's own."""
    return (value if like.is_floating_point() else value.round()).to(like.dtype).to(like.device)


def part_of(state: Mapping[str, Tensor], prefix: str) -> State:
    """The entries whose name starts with `prefix`: "body." or "head."."""
    return {name: value for name, value in state.items() if name.startswith(prefix)}
