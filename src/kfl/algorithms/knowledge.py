"""Knowledge: one mean feature per class, with how many samples stand behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

from kfl.algorithms.base import Rejection, Upload
from kfl.algorithms.uploads import MOST_SAMPLES, is_plain, refuse_arrays, refuse_count

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.models import State


def empty_knowledge(classes: int, features: int) -> State:
    """Knowledge of no class at all: what the server starts with."""
    import torch

    return {
        "knowledge": torch.zeros(classes, features),
        "known": torch.zeros(classes, dtype=torch.bool),
    }


def average_knowledge(
    server: State, uploads: Sequence[Upload], *, memory: bool, heaviest: float = inf
) -> tuple[State, list[Rejection]]:
    """Count-weighted mean of the uploaded class means, equation (9), without the uploads that make no sense.

    A class that nobody reports keeps its knowledge with `memory`, and is forgotten without. No count weighs more
    than `heaviest`: with 1, each device that holds a class weighs the same. Where no upload can be used, the
    server keeps what it has.
    """
    import torch

    reports, rejected = usable(server, uploads)
    if reports is None:
        return server, rejected
    # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
    weights = reports.counts.clamp(max=heaviest)
    total = (weights[:, :, None] * reports.means).sum(0)
    weight = weights.sum(0)
    reported = weight > 0
    mean = total / torch.where(reported, weight, 1.0)[:, None]
    return renewed(server, mean, reported, memory=memory), rejected


@dataclass(frozen=True, eq=False)
class Reports:
    """The knowledge of several devices, float64 on the CPU."""

    means: Tensor
    """(devices, classes, features), all finite, also where a device has no sample of a class."""
    counts: Tensor
    """(devices, classes)."""


def usable(server: State, uploads: Sequence[Upload]) -> tuple[Reports | None, list[Rejection]]:
    """The reports that can stand for knowledge, None where there are none, and why each of the others cannot.

    All are looked at together first, which is what counts for a round's time; only if something is wrong is each
    looked at alone.
    """
    before = server["knowledge"]
    reports = read_together(uploads, before)
    if reports is not None:
        return reports, []
    good, rejected = [], []
    for upload in uploads:
        reason = refuse_knowledge(upload, before)
        if reason:
            rejected.append(Rejection(upload.device, reason))
        else:
            good.append(upload)
    if not good:
        return None, rejected
    reports = stack(good)
    # A class of count 0 may hold anything.
    return Reports(reports.means.where(reports.counts[:, :, None] > 0, 0.0), reports.counts), rejected


def read_together(uploads: Sequence[Upload], before: Tensor) -> Reports | None:
    """All reports, where every count is a number of samples and every mean is finite; None if anything is amiss."""
    for upload in uploads:
        means, counts = upload.arrays.get("means"), upload.arrays.get("counts")
        if not (is_plain(means) and is_plain(counts)):
            return None
        if means.shape != before.shape or counts.shape != before.shape[:1]:
            return None
        if means.dtype != before.dtype or counts.is_complex():
            return None
    if not uploads or not before.numel():
        return None
    reports = stack(uploads)
    least, most = reports.counts.aminmax()
    # A sum is finite where every term is: in float64 no number of float32 values overflows. NaN fails both tests.
    sound = least >= 0 and most <= MOST_SAMPLES and isfinite(float(reports.means.sum()))
    return reports if sound else None


def stack(uploads: Sequence[Upload]) -> Reports:
    """The reports of all uploads, as they are."""
    return Reports(_in_double(uploads, "means"), _in_double(uploads, "counts"))


def _in_double(uploads: Sequence[Upload], name: str) -> Tensor:
    """One array of all uploads. Of one type they are stacked first, which is quicker; another might not hold them."""
    import torch

    arrays = [upload.arrays[name] for upload in uploads]
    if len({array.dtype for array in arrays}) > 1:
        arrays = [array.double() for array in arrays]
    return torch.stack(arrays).cpu().double()


def renewed(server: State, mean: Tensor, reported: Tensor, *, memory: bool) -> State:
    """The server's state with new knowledge of reported classes; others are kept, or forgotten without memory."""
    import torch

    before, reported = server["knowledge"], reported.to(server["knowledge"].device)
    keep = server["known"] & memory
    mean = mean.to(before.dtype).to(before.device)
    knowledge = torch.where(reported[:, None], mean, torch.where(keep[:, None], before, 0.0))
    return {"knowledge": knowledge, "known": reported | keep}


def refuse_knowledge(upload: Upload, before: Tensor) -> str | None:
    """Why an upload of class means cannot be used; None where it can. A class of count 0 may hold anything."""

    reason = refuse_count(upload, "counts", (len(before),))
    means = upload.arrays.get("means")
    if reason or not is_plain(means) or means.shape != before.shape:
        return reason or refuse_arrays(upload, {"means": before})
    held = (upload.arrays["counts"] > 0).to(means.device)
    return refuse_arrays(Upload(upload.device, {"means": means[held]}), {"means": before[held.to(before.device)]})
