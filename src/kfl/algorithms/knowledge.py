"""Knowledge: one mean feature per class, with how many samples stand behind it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
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

    good, rejected = usable(server, uploads)
    if not good:
        return server, rejected
    # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
    means, counts = stack(good)
    weights = counts.clamp(max=heaviest)
    total = torch.where(weights[:, :, None] > 0, weights[:, :, None] * means, 0.0).sum(0)
    weight = weights.sum(0)
    reported = weight > 0
    mean = total / torch.where(reported, weight, 1.0)[:, None]
    return renewed(server, mean, reported, memory=memory), rejected


def usable(server: State, uploads: Sequence[Upload]) -> tuple[list[Upload], list[Rejection]]:
    """The uploads that can stand for knowledge, and why each of the others cannot.

    All are looked at together first, which is what counts on a GPU; only if something is wrong is each looked at
    alone.
    """
    if all_sound(uploads, server["knowledge"]):
        return list(uploads), []
    good, rejected = [], []
    for upload in uploads:
        reason = refuse_knowledge(upload, server["knowledge"])
        if reason:
            rejected.append(Rejection(upload.device, reason))
        else:
            good.append(upload)
    return good, rejected


def stack(uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
    """The class means (devices, classes, features) and counts (devices, classes) of all uploads, float64 on the CPU."""
    import torch

    means = torch.stack([upload.arrays["means"] for upload in uploads])
    counts = torch.stack([upload.arrays["counts"] for upload in uploads])
    return means.cpu().double(), counts.cpu().double()


def all_sound(uploads: Sequence[Upload], before: Tensor) -> bool:
    """Whether nothing is wrong with any upload: every count a number of samples, every mean finite as stored."""
    import torch

    for upload in uploads:
        means, counts = upload.arrays.get("means"), upload.arrays.get("counts")
        if not (is_plain(means) and is_plain(counts)):
            return False
        if means.shape != before.shape or counts.shape != before.shape[:1]:
            return False
        if means.dtype != before.dtype or counts.is_complex():
            return False
    if not uploads:
        return True
    means, counts = stack(uploads)
    fine = torch.isfinite(means).all(2) | (counts == 0)
    return bool((fine & torch.isfinite(counts) & (counts >= 0) & (counts <= MOST_SAMPLES)).all())


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
