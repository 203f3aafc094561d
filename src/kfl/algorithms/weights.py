"""Averages of weights: what a server makes of models, or parts of models, of one architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kfl.algorithms.base import Rejection, Upload
from kfl.algorithms.uploads import is_plain, refuse_arrays, refuse_count

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

    good, rejected = usable_weights(server, uploads)
    if not good:
        return server, rejected
    samples = torch.stack([upload.arrays[SAMPLES].double().cpu() for upload in good])
    if float(samples.sum()) == 0:
        return server, rejected
    share = samples / samples.sum()
    averaged = {}
    for name, like in server.items():
        stacked = torch.stack([upload.arrays[name] for upload in good])
        # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
        mean = torch.tensordot(share.to(stacked.device), stacked.double(), dims=1)
        averaged[name] = _stored(mean, like)
    return averaged, rejected


def usable_weights(server: State, uploads: Sequence[Upload]) -> tuple[list[Upload], list[Rejection]]:
    """The uploads that can stand for the server's arrays, and why each of the others cannot.

    All are looked at together first: on a GPU every single look waits for the device. Only if something is wrong
    is each looked at alone.
    """
    if _all_sound(server, uploads):
        return list(uploads), []
    good, rejected = [], []
    for upload in uploads:
        reason = refuse_arrays(upload, server) or refuse_count(upload, SAMPLES, ())
        if reason:
            rejected.append(Rejection(upload.device, reason))
        else:
            good.append(upload)
    return good, rejected


def _all_sound(server: State, uploads: Sequence[Upload]) -> bool:
    """Whether nothing is wrong with any upload; False also where that takes a closer look."""
    import torch

    arrays = []
    for upload in uploads:
        if refuse_count(upload, SAMPLES, ()):
            return False
        for name, like in server.items():
            found = upload.arrays.get(name)
            if not is_plain(found) or found.shape != like.shape or found.dtype != like.dtype:
                return False
            if found.is_floating_point() and found.numel():
                arrays.append(found)
    if len({(array.dtype, array.device) for array in arrays}) > 1:
        return False
    largest = list(torch._foreach_norm(arrays, float("inf"))) if arrays else []
    return not largest or bool(torch.isfinite(torch.stack(largest)).all())


def _stored(value: Tensor, like: Tensor) -> Tensor:
    """A float64 mean in the type and place of the server's own."""
    return (value if like.is_floating_point() else value.round()).to(like.dtype).to(like.device)


def part_of(state: Mapping[str, Tensor], prefix: str) -> State:
    """The entries whose name starts with `prefix`: "body." or "head."."""
    return {name: value for name, value in state.items() if name.startswith(prefix)}
