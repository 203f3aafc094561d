"""Uploads that make no sense: each is refused with a reason, and the round goes on with the rest.

A radio link or a stranger's device can deliver anything. Whatever a server averages goes through here first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from kfl.algorithms.base import Rejection, Upload

if TYPE_CHECKING:
    from torch import Tensor


MOST_SAMPLES = 2**53
"""Counts above this are not exact in float64, and a few of them would overflow a weighted sum."""


def is_plain(found: object) -> TypeGuard[Tensor]:
    """Whether this is an array with a value in every place: a tensor that is not sparse, quantised or without data.

    Types that PyTorch stores but hardly computes with (long integers without a sign, 8-bit floats) do not count.
    """
    import torch

    if not isinstance(found, torch.Tensor):
        return False
    unsigned = found.dtype in (torch.uint16, torch.uint32, torch.uint64)
    tiny = found.is_floating_point() and found.dtype.itemsize == 1
    return found.layout == torch.strided and not found.is_meta and not found.is_quantized and not (unsigned or tiny)


def refuse_arrays(upload: Upload, like: Mapping[str, Tensor]) -> str | None:
    """Why an upload cannot stand for arrays of these names, shapes and types; None where it can."""
    import torch

    for name, model in like.items():
        found = upload.arrays.get(name)
        if not is_plain(found):
            return f"it has no array {name}"
        if found.shape != model.shape:
            return f"its {name} has the shape {tuple(found.shape)}, not {tuple(model.shape)}"
        # Finite is judged as the server stores it: 1e300 is finite in float64 and infinite in float32.
        stored = found.to(model.dtype) if model.is_floating_point() and not found.is_complex() else found
        if found.is_complex() or not bool(torch.isfinite(stored).all()):
            return f"its {name} has a value that is infinite or not a number"
    return None


def refuse_count(upload: Upload, name: str, shape: Sequence[int]) -> str | None:
    """Why the numbers of samples in an upload cannot be used as weights; None where they can."""
    import torch

    found = upload.arrays.get(name)
    if not is_plain(found):
        return f"it has no array {name}"
    if tuple(found.shape) != tuple(shape):
        return f"its {name} has the shape {tuple(found.shape)}, not {tuple(shape)}"
    if found.is_complex() or not bool(torch.isfinite(found).all()):
        return f"its {name} has a value that is infinite or not a number"
    if bool((found < 0).any()):
        return f"its {name} has a negative number of samples"
    if bool((found > MOST_SAMPLES).any()):
        return f"its {name} has more samples than a device can hold"
    return None


def refuse_all(uploads: Sequence[Upload], name: str) -> list[Rejection]:
    """Rejections for an algorithm whose devices send nothing."""
    return [Rejection(upload.device, f"devices send nothing in {name}") for upload in uploads]
