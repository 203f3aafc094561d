"""No device outweighs the others: a cap on the share that one upload has in an average.

How many samples stand behind an upload is a claim of its device, and decides its weight. A server that does not trust
its devices cuts weights down until none is more than a given share of their sum, for each class by itself where there
is a weight per class:

    w_k ← min(w_k, t)   with the largest t for which   min(w_k, t) ≤ s · Σ_j min(w_j, t)   for all k

Of n uploads a device always has 1/n, so s is the given share or 1/n, whichever is more: two weigh the same with any
s up to one half, and who alone reports a class is the whole average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms.uploads import Upload, UploadFormat

FloatArray = NDArray[np.float64]
ROUNDING = 1e-9
"""A share that is more than allowed by less than this is a rounding error."""


@dataclass(frozen=True)
class Capped:
    """A device whose weight was cut."""

    device: int
    array: str
    """Which weight: the name of its array in the upload."""
    found: float
    """The share it would have had; with a weight per class, in the class where that is largest."""
    limit: float
    """The share it has there."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a run folder."""
        facts = {"array": self.array, "found": self.found, "limit": self.limit}
        return {"device": self.device, "code": "weight_capped", **facts}


def weight_limits(weights: FloatArray, largest: float) -> FloatArray:
    """The t of each column of weights (devices × columns) that leaves no device a larger share; infinite for no cut.

    >>> weight_limits(np.array([[90.0, 1.0], [5.0, 1.0], [5.0, 1.0]]), 0.5).tolist()
    [10.0, inf]
    """
    ordered = -np.sort(-weights, axis=0)
    rest = ordered[::-1].cumsum(axis=0)[::-1]
    share = np.maximum(largest, 1 / np.maximum((weights > 0).sum(axis=0), 1))
    # If the k largest are cut to t, t = s (k t + rest), and no other is larger than t. Some k ≤ 1/s always fits.
    room = 1 - np.arange(len(weights))[:, None] * share
    limit = np.divide(share * rest, room, out=np.zeros_like(rest), where=room > ROUNDING)
    cut = (ordered <= limit * (1 + ROUNDING)).argmax(axis=0)
    found: FloatArray = np.where(cut > 0, np.take_along_axis(limit, cut[None], axis=0)[0], np.inf)
    return found


def cap_weights(
    uploads: Sequence[Upload], formats: UploadFormat, largest: float
) -> tuple[list[Upload], tuple[Capped, ...]]:
    """Uploads of which none has a larger share, and whose weight was cut; what is not cut is the same object.

    The uploads are sound (`kfl.algorithms.usable`), and `formats` says which arrays are weights.

    >>> import torch
    >>> from kfl.algorithms import ArrayFormat
    >>> uploads = [Upload(d, {"samples": torch.tensor(n)}) for d, n in enumerate((9000.0, 10.0, 20.0))]
    >>> after, cut = cap_weights(uploads, {"samples": ArrayFormat((), "float64", "samples")}, 0.5)
    >>> [float(upload.arrays["samples"]) for upload in after], [one.device for one in cut]
    ([30.0, 10.0, 20.0], [0])
    """
    import torch

    after, capped = list(uploads), []
    for name, form in formats.items():
        if form.holds == "values" or len(after) < 2 or largest >= 1:
            continue
        weights = np.stack([upload.arrays[name].double().cpu().numpy().reshape(-1) for upload in after])
        limits = weight_limits(weights, largest)
        before, lowered = _shares(weights), np.minimum(weights, limits)
        if np.dtype(form.dtype).kind in "iu":  # limits of whole weights are 1 or more, but for rounding
            lowered = np.where(weights > lowered, np.maximum(np.floor(lowered * (1 + ROUNDING)), 1), lowered)
        share = _shares(lowered)
        for index in np.flatnonzero((weights > limits).any(axis=1)).tolist():
            own = after[index]
            values = torch.from_numpy(lowered[index].reshape(form.shape)).to(own.arrays[name])
            after[index] = replace(own, arrays={**own.arrays, name: values})
            worst = int(np.where(weights[index] > limits, before[index], 0.0).argmax())
            capped.append(Capped(own.device, name, float(before[index, worst]), float(share[index, worst])))
    return after, tuple(capped)


def _shares(weights: FloatArray) -> FloatArray:
    total = weights.sum(axis=0)
    shares: FloatArray = weights / np.where(total > 0, total, 1.0)
    return shares
