"""One vector from reports that may be poisoned: norm clipping, the coordinate median, the trimmed mean.

A mean follows whoever shouts loudest: one report, scaled far enough, moves it anywhere. The three rules here bound
what a minority of the reports of one round can do. They are written for knowledge, *class by class*: for class c let
x_1 … x_n be the means reported by the n devices that hold it. Algorithms that send weights use the same rules on
whole updates, what a device's model differs from the server's, with m = 0 and no limit by its length.

- `clip` (Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019; around the last aggregate
  as in Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021):
  Ω_c = m + Σ w_k (x_k − m) min(1, r/‖x_k − m‖) / Σ w_k. The centre m is the last knowledge of the class, or the
  coordinate median of the reports where there is none. Nobody has to choose the radius r: it is the median of the
  distances ‖x_k − m‖, and at most ‖m‖ where m is known knowledge, so that even a round in which the poisoned are
  a majority cannot move knowledge by more than its own length. While fewer than half of the reports are poisoned,
  ‖Ω_c − m‖ is at most the largest distance of an honest report.
- `median` (Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, Definition 1): each
  coordinate is the median of that coordinate over the reports; of an even number, the mean of the middle two. While
  fewer than half are poisoned, each coordinate lies within the range of the honest ones.
- `trimmed` (the same, Definition 2): each coordinate without its ⌈βn⌉ smallest and ⌈βn⌉ largest values (at least one
  stays), averaged. While at most that many are poisoned, each coordinate lies within the range of the honest ones.

Where we decide: the number of samples behind a report is a claim of the device like any other, and a claim of a
billion would turn a weighted median into that device's word. So `median` and `trimmed` let each device that holds
a class weigh the same, and `clip` weighs by samples up to the median number that the round's devices claim for
the class. One or two reports of a class have no majority: of two, `median` and `trimmed` give the mean.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

from kfl.algorithms.base import require

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal["mean", "clip", "median", "trimmed"]
"""How reports become one; `mean` is equation (9) of the paper, and FedAvg's Algorithm 1."""
RULES = get_args(Aggregation)


def check_rule(rule: str, trim: float) -> None:
    """Raise ConfigError for a rule that is none, or a share that leaves nothing over."""
    require(0 <= trim < 0.5, "trim", trim, "at least 0 and below 0.5")
    require(rule in RULES, "aggregation", rule, f"one of {', '.join(RULES)}")


def combine(rule: Aggregation, reports: Tensor, weights: Tensor, centre: Tensor | None, trim: float) -> Tensor:
    """One vector from several reports (n × p) with their weights, by a rule; `centre` is what `clip` measures from."""
    if rule == "clip":
        return clipped_mean(reports, weights, centre)
    if rule == "median":
        return coordinate_median(reports)
    if rule == "trimmed":
        return trimmed_mean(reports, trim)
    return weights @ reports / weights.sum()


def clipped_mean(reports: Tensor, weights: Tensor, centre: Tensor | None = None) -> Tensor:
    """The weighted mean of reports (n × p) drawn to within the median distance of a centre, or its length if shorter.

    >>> import torch
    >>> clipped_mean(torch.tensor([[4.0], [5.0], [90.0]]), torch.ones(3), torch.tensor([3.0]))
    tensor([4.6667])
    """
    import torch

    middle = coordinate_median(reports) if centre is None else centre
    away = reports - middle
    distance = away.norm(dim=1)
    # torch.median is the smaller of the middle two, so that of two reports the nearer one sets the radius.
    radius = distance.median()
    if centre is not None and centre.any():  # knowledge of length zero must be able to grow
        radius = radius.minimum(centre.norm())
    shrink = torch.where(distance > 0, (radius / distance).clamp(max=1.0), 1.0)
    weight = weights.clamp(max=float(weights.median()))
    return middle + (weight * shrink) @ away / weight.sum()


def coordinate_median(reports: Tensor) -> Tensor:
    """Each coordinate's median over the reports (n × p); of an even number, the mean of the middle two.

    >>> import torch
    >>> coordinate_median(torch.tensor([[1.0, 5.0], [2.0, 0.0], [90.0, 1.0]]))
    tensor([2., 1.])
    """
    ordered = reports.sort(dim=0).values
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed_mean(reports: Tensor, trim: float) -> Tensor:
    """Each coordinate's mean without the ⌈trim·n⌉ smallest and largest of the n reports; at least one stays.

    >>> import torch
    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [4.0], [90.0]]), trim=0.2)
    tensor([3.])
    """
    n = len(reports)
    cut = min(math.ceil(trim * n), (n - 1) // 2)
    return reports.sort(dim=0).values[cut : n - cut].mean(dim=0)
