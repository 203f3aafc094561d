"""Knowledge: one mean feature per class, with how many samples stand behind it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from kfl.algorithms.base import Rejection, Upload
from kfl.algorithms.uploads import refuse_arrays, refuse_count

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

    before, known = server["knowledge"], server["known"]
    rejected = []
    # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
    total = torch.zeros(before.shape, dtype=torch.float64)
    weight = torch.zeros(len(before), dtype=torch.float64)
    for upload in uploads:
        reason = refuse_knowledge(upload, before)
        if reason:
            rejected.append(Rejection(upload.device, reason))
            continue
        count = upload.arrays["counts"].double().cpu().clamp(max=heaviest)
        total += torch.where(count[:, None] > 0, count[:, None] * upload.arrays["means"].double().cpu(), 0.0)
        weight += count
    if len(rejected) == len(uploads):
        return server, rejected
    reported = weight > 0
    mean = (total / torch.where(reported, weight, 1.0)[:, None]).to(before.dtype).to(before.device)
    reported = reported.to(before.device)
    keep = known & memory
    knowledge = torch.where(reported[:, None], mean, torch.where(keep[:, None], before, 0.0))
    return {"knowledge": knowledge, "known": reported | keep}, rejected


def refuse_knowledge(upload: Upload, before: Tensor) -> str | None:
    """Why an upload of class means cannot be used; None where it can. A class of count 0 may hold anything."""
    import torch

    reason = refuse_count(upload, "counts", (len(before),))
    means = upload.arrays.get("means")
    if reason or not isinstance(means, torch.Tensor) or means.shape != before.shape:
        return reason or refuse_arrays(upload, {"means": before})
    held = (upload.arrays["counts"] > 0).to(means.device)
    return refuse_arrays(Upload(upload.device, {"means": means[held]}), {"means": before[held.to(before.device)]})
