"""How many uploads become one: a weighted mean, the same as sums that hide single devices, or a robust rule.

Every array of an upload declares what weighs it (`ArrayFormat.weight`): the number of a device's samples, counts per
class, which weigh row by row, or nothing, so that all devices weigh the same.

**Mean.** x = Σ_k w_k x_k / Σ_k w_k, in float64, so that the order of the devices does not matter beyond rounding of the
result. A server that needs Σ_k w_k x_k and Σ_k w_k alone need not see what a single device sent: a fleet can add them
under masks. That holds for every algorithm whose `aggregate` is the default and whose rule is the mean.

**Robust rules.** A mean follows the largest report: one report, scaled far enough, moves it anywhere. The three
rules here bound what a minority of the reports of one round can do. A rule sees all arrays that one number weighs as
one vector, the whole update of a model, and arrays that counts weigh row by row. For class c let x_1 … x_n be the
means reported by the n devices that hold it.

- `clip` (Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019; around the last aggregate
  as in Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021):
  Ω_c = m + Σ w_k (x_k − m) min(1, r/‖x_k − m‖) / Σ w_k. The center m is the last knowledge of the class, or the
  coordinate median of the reports where there is none. There is no radius to choose r: it is the median of the
  distances ‖x_k − m‖, and at most ‖m‖ where m is known knowledge, so that even a round in which the poisoned are
  a majority cannot move knowledge by more than its own length. While fewer than half of the reports are poisoned,
  ‖Ω_c − m‖ is at most the largest distance of an honest report. A whole update is measured from the server's model,
  which is zero for an update, and has no limit by its length.
- `median` (Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, Definition 1): each
  coordinate is the median of that coordinate over the reports; of an even number, the mean of the middle two. While
  fewer than half are poisoned, each coordinate lies within the range of the honest ones.
- `trimmed` (the same, Definition 2): each coordinate without its ⌈βn⌉ smallest and ⌈βn⌉ largest values (at least one
  stays), averaged. While at most that many are poisoned, each coordinate lies within the range of the honest ones.

Where we decide: the number of samples behind a report is a claim of the device like any other, and a claim of a
billion would turn a weighted median into that device's word. So `median` and `trimmed` let each device that holds
a class weigh the same, and `clip` weighs by samples up to the median number that the round's devices claim for
the class. One or two reports of a class have no majority: of two, `median` and `trimmed` give the mean. Counters, which
are integers, are rounded means, and medians with every robust rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from kfl.algorithms.uploads import UploadFormat, as_rows

if TYPE_CHECKING:
    from torch import Tensor

    Arrays = Mapping[str, Tensor]

Aggregation = Literal["mean", "clip", "median", "trimmed"]
"""How reports become one; `mean` is equation (9) of the paper, and FedAvg's Algorithm 1."""
RULES = get_args(Aggregation)
DEVICES = "devices"
"""Name of the weight of arrays that declare none: 1 for each device."""


@dataclass(frozen=True, eq=False)
class Sums:
    """What a round adds up: of one device its own terms, of the server their sums. All in float64."""

    values: Arrays
    """Weighted values Σ_k w_k x_k."""
    weights: Arrays
    """Their weights Σ_k w_k: none is negative, and none of a device is above its number of samples."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            {name: value + other.values[name] for name, value in self.values.items()},
            {name: weight + other.weights[name] for name, weight in self.weights.items()},
        )


def weighted_sums(formats: UploadFormat, uploads: Sequence[Arrays]) -> Sums:
    """Add up the arrays of one or more uploads, each times its weight.

    Args:
        formats: The arrays that are averaged, with their weights.
        uploads: The arrays of sound uploads; a row without weight may hold anything.

    Returns:
        Σ_k w_k x_k where the values are, and Σ_k w_k.
    """

    weights, values = _weights(formats, uploads), {}
    for name in averaged(formats):
        values[name] = _weighted(_stacked(uploads, name), weights[formats[name].weight or DEVICES])
    return Sums(values, {name: weight.sum(0) for name, weight in weights.items()})


def _weighted(values: Tensor, weight: Tensor) -> Tensor:
    """Σ_k w_k x_k over the first dimension; the weights are one number per device, or one per row."""
    import torch

    weight = weight.to(values.device)
    rows = as_rows(weight, values)
    plain = weight.dim() == 1
    total: Tensor = torch.tensordot(weight, values, dims=1) if plain else (rows * values.where(rows > 0, 0.0)).sum(0)
    return total


def means(formats: UploadFormat, sums: Sums) -> Arrays | None:
    """Divide weighted sums by their weights.

    Returns:
        The mean of each array, zero in rows without weight; None where a whole array has no weight.
    """
    found = {}
    for name, total in sums.values.items():
        weight = sums.weights[formats[name].weight or DEVICES].to(total.device)
        if not weight.dim() and not float(weight) > 0:
            return None
        found[name] = total / as_rows(weight.where(weight > 0, 1.0), total)
    return found


def combine(
    formats: UploadFormat, uploads: Sequence[Arrays], rule: Aggregation, trim: float, center: Arrays
) -> tuple[Arrays, Arrays] | None:
    """Combine the arrays of sound uploads by a rule.

    Args:
        formats: The arrays that are averaged, with their weights.
        uploads: Their values in each upload.
        rule: The mean, or a robust rule.
        trim: The share of the reports that `trimmed` leaves out at either end.
        center: What `clip` measures from, by array; a row that is not finite is not known.

    Returns:
        The combined arrays in float64, and the sums of their weights. None where a whole array has no weight.
    """
    weights = _weights(formats, uploads)
    found: dict[str, Tensor] = {}
    for weight_name, weight in weights.items():
        names = [name for name in averaged(formats) if (formats[name].weight or DEVICES) == weight_name]
        held = weight > 0
        if weight.dim() == 1 and not bool(held.any()):
            return None
        if rule == "mean":
            found |= {
                name: _mean(_stacked(uploads, name), None if weight_name == DEVICES else weight) for name in names
            }
            continue
        if weight.dim() > 1:
            found |= {name: _by_row(_stacked(uploads, name), weight, rule, trim, center.get(name)) for name in names}
            continue
        sound = [upload for upload, counts in zip(uploads, held.tolist(), strict=True) if counts]
        found |= _whole({name: formats[name] for name in names}, sound, weight[held], rule, trim, center)
    return found, {name: weight.sum(0) for name, weight in weights.items()}


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """The weighted mean over the first dimension, zero in rows without weight; the plain one where none weighs more."""
    if weight is None:
        return values.mean(0)
    total = weight.sum(0)
    if weight.dim() == 1:
        return _weighted(values, weight / total)
    summed = _weighted(values, weight)
    return summed / as_rows(total.where(total > 0, 1.0).to(summed.device), summed)


def _by_row(values: Tensor, weight: Tensor, rule: Aggregation, trim: float, center: Tensor | None) -> Tensor:
    """A rule on each row by itself, over the devices that hold it: (devices, rows, …) → (rows, …)."""
    import torch

    weight, result = weight.to(values.device), torch.zeros_like(values[0])
    for row in range(weight.shape[1]):
        held = weight[:, row] > 0
        if not bool(held.any()):
            continue
        last = None if center is None else center[row].to(values)
        known = last.flatten() if last is not None and bool(torch.isfinite(last).all()) else None
        result[row] = apply_rule(rule, values[held, row].flatten(1), weight[held, row], known, trim).view(
            result[row].shape
        )
    return result


def _whole(
    formats: UploadFormat,
    uploads: Sequence[Arrays],
    weight: Tensor,
    rule: Aggregation,
    trim: float,
    center: Arrays,
) -> dict[str, Tensor]:
    """A rule on all arrays together: one that is small in every layer but one is still a long update."""
    import torch

    rows = {name: _stacked(uploads, name).reshape(len(uploads), math.prod(formats[name].shape)) for name in formats}
    moving = [name for name, form in formats.items() if getattr(torch, form.dtype).is_floating_point]
    found = {name: coordinate_median(rows[name]) for name in formats if name not in moving}
    if moving:
        reports = torch.cat([rows[name] for name in moving], dim=1)
        weight = weight.to(reports.device)
        if all(name in center for name in moving):
            origin = torch.cat([center[name].to(reports).flatten() for name in moving])
            moved = origin + apply_rule(rule, reports - origin, weight, torch.zeros_like(origin), trim)
        else:
            moved = apply_rule(rule, reports, weight, None, trim)
        found |= dict(zip(moving, moved.split([rows[name].shape[1] for name in moving]), strict=True))
    return {name: found[name].reshape(form.shape) for name, form in formats.items()}


def _weights(formats: UploadFormat, uploads: Sequence[Arrays]) -> dict[str, Tensor]:
    """The weights of each device by name, in float64, in the order in which they are declared."""
    import torch

    used = {formats[name].weight for name in averaged(formats)}
    found = {name: _stacked(uploads, name).clamp(max=form.most) for name, form in formats.items() if name in used}
    return {**({DEVICES: torch.ones(len(uploads), dtype=torch.float64)} if "" in used else {}), **found}


def averaged(formats: UploadFormat) -> list[str]:
    """Return the names of the arrays that are averaged: all but the weights."""
    return [name for name, form in formats.items() if form.holds == "values"]


def _stacked(uploads: Sequence[Arrays], name: str) -> Tensor:
    """One array of all uploads in float64. Of one type they are stacked first, which is quicker."""
    import torch

    arrays = [upload[name] for upload in uploads]
    if len({array.dtype for array in arrays}) > 1:
        arrays = [array.double() for array in arrays]
    return torch.stack(arrays).double()


def stored_like(mean: Tensor, before: Tensor) -> Tensor:
    """Return a mean as the server stores it: in the type of its own array, and integers rounded."""
    value = mean if before.is_floating_point() else mean.round()
    return value.to(before.dtype).to(before.device)


def apply_rule(rule: Aggregation, reports: Tensor, weights: Tensor, center: Tensor | None, trim: float) -> Tensor:
    """Return one vector from several reports (n × p) with their weights; `center` is what `clip` measures from."""
    if rule == "clip":
        return clipped_mean(reports, weights, center)
    if rule == "median":
        return coordinate_median(reports)
    if rule == "trimmed":
        return trimmed_mean(reports, trim)
    return weights @ reports / weights.sum()


def clipped_mean(reports: Tensor, weights: Tensor, center: Tensor | None = None) -> Tensor:
    """Return the weighted mean of reports (n × p), each drawn to within the median distance of a center.

    Where the length of the center is shorter than that distance, it is the limit.

    >>> import torch
    >>> clipped_mean(torch.tensor([[4.0], [5.0], [90.0]]), torch.ones(3), torch.tensor([3.0]))
    tensor([4.6667])
    """
    import torch

    middle = coordinate_median(reports) if center is None else center
    away = reports - middle
    distance = away.norm(dim=1)
    # torch.median is the smaller of the middle two, so that of two reports the nearer one sets the radius.
    radius = distance.median()
    if center is not None and center.any():  # knowledge of length zero must be able to grow
        radius = radius.minimum(center.norm())
    shrink = torch.where(distance > 0, (radius / distance).clamp(max=1.0), 1.0)
    weight = weights.clamp(max=float(weights.median()))
    return middle + (weight * shrink) @ away / weight.sum()


def coordinate_median(reports: Tensor) -> Tensor:
    """Return each coordinate's median over the reports (n × p); of an even number, the mean of the middle two.

    >>> import torch
    >>> coordinate_median(torch.tensor([[1.0, 5.0], [2.0, 0.0], [90.0, 1.0]]))
    tensor([2., 1.])
    """
    ordered = reports.sort(dim=0).values
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed_mean(reports: Tensor, trim: float) -> Tensor:
    """Return each coordinate's mean without the ⌈trim·n⌉ smallest and largest of the n reports; at least one stays.

    >>> import torch
    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [4.0], [90.0]]), trim=0.2)
    tensor([3.])
    """
    n = len(reports)
    cut = min(math.ceil(trim * n), (n - 1) // 2)
    return reports.sort(dim=0).values[cut : n - cut].mean(dim=0)
