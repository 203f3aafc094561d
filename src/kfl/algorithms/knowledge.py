"""Knowledge: one mean feature per class, with how many samples stand behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kfl.algorithms.base import Rejection, Upload

if TYPE_CHECKING:
    from kfl.models import State


def empty_knowledge(classes: int, features: int) -> State:
    """Knowledge of no class at all: what the server starts with."""
    import torch

    return {
        "knowledge": torch.zeros(classes, features),
        "known": torch.zeros(classes, dtype=torch.bool),
    }


def average_knowledge(server: State, uploads: Sequence[Upload], *, memory: bool) -> tuple[State, list[Rejection]]:
    """Count-weighted mean of the uploaded class means, equation (9), without the uploads that make no sense.

    A class that nobody reports keeps its knowledge with `memory`, and is forgotten without.
    """
    import torch

    before, known = server["knowledge"], server["known"]
    rejected = []
    # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
    total = torch.zeros(before.shape, dtype=torch.float64)
    weight = torch.zeros(len(before), dtype=torch.float64)
    for upload in uploads:
        reason = refuse_knowledge(upload, before.shape)
        if reason:
            rejected.append(Rejection(upload.device, reason))
            continue
        count = upload.arrays["counts"].double().cpu()
        total += torch.where(count[:, None] > 0, count[:, None] * upload.arrays["means"].double().cpu(), 0.0)
        weight += count
    reported = weight > 0
    mean = (total / weight.clamp(min=1e-300)[:, None]).to(before.dtype).to(before.device)
    reported = reported.to(before.device)
    keep = known & memory
    knowledge = torch.where(reported[:, None], mean, torch.where(keep[:, None], before, 0.0))
    return {"knowledge": knowledge, "known": reported | keep}, rejected


def refuse_knowledge(upload: Upload, shape: Sequence[int]) -> str | None:
    """Why an upload of class means cannot be used; None where it can."""
    import torch

    means, counts = upload.arrays.get("means"), upload.arrays.get("counts")
    if means is None or counts is None:
        return "it has no class means or no counts"
    if tuple(means.shape) != tuple(shape) or tuple(counts.shape) != (shape[0],):
        return (
            f"its shapes are {tuple(means.shape)} and {tuple(counts.shape)}, not {tuple(shape)} and ({shape[0]},)"
        )
    if not bool(torch.isfinite(counts.double()).all()) or bool((counts < 0).any()):
        return "a count is negative or not a number"
    if not bool(torch.isfinite(means[counts > 0]).all()):
        return "a class mean is infinite or not a number"
    return None
