"""Equation (5) at the end of a run: the knowledge of all devices against what the server holds.

Equation (5) defines the knowledge of a class over *all* devices; the server has that of the devices that reported,
equation (9). The proof of Theorem 1 bounds the distance between the two by 2 ς (1 − the reported part of the class's
samples).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kfl.core.text import percent
from kfl.models import parts

FloatArray = NDArray[np.float64]
SINGLE_PRECISION = 1e-5
"""Knowledge was averaged in single precision: a distance may be larger by this part of its norm."""


@dataclass(frozen=True, eq=False)
class KnowledgeGap:
    """Equation (5) against what the server holds after the last round, class by class."""

    classes: NDArray[np.int64]
    """Classes that the server knows."""
    distance: FloatArray
    """‖Ω̄_c − Ω_c‖: the knowledge of all devices, and the server's."""
    norm: FloatArray
    """‖Ω̄_c‖."""
    allowed: FloatArray
    """2 ς (1 − Σ_k α_k D_{k,c}/D_c) with the devices that reported in the last round."""

    @property
    def largest(self) -> int:
        """The position of the class with the largest distance."""
        return int(self.distance.argmax())

    @property
    def holds(self) -> bool:
        """Whether no distance is larger than the proof of Theorem 1 allows."""
        return bool((self.distance <= self.allowed + SINGLE_PRECISION * self.norm).all())

    def __str__(self) -> str:
        worst = self.largest
        part = self.distance[worst] / self.norm[worst] if self.norm[worst] > 0 else 0.0
        return (
            f"Equation (5): the knowledge of all devices and what the server holds, equation (9), are at most "
            f"{self.distance[worst]:.4g} apart (class {self.classes[worst]}, {percent(part, 0)} of its norm). The "
            f"proof of Theorem 1 allows {self.allowed[worst]:.4g} there: {'holds' if self.holds else 'violated'}."
        )


def knowledge_gap(
    modules: Iterable[tuple[nn.Module, Tensor, Tensor]],
    knowledge: FloatArray,
    known: NDArray[np.bool_],
    reported: NDArray[np.bool_],
) -> KnowledgeGap | None:
    """Equation (5) over all devices' models, inputs and labels; None where the server knows no class.

    `knowledge` (C, p) and `known` (C,) are the server's, `reported` (K,) says who reported in the last round.
    """
    classes, features = knowledge.shape
    total, count = torch.zeros(classes, features, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    heard, longest = torch.zeros(classes, dtype=torch.float64), 0.0
    for (model, inputs, labels), reports in zip(modules, reported, strict=True):
        with torch.no_grad():
            h = parts(model.eval())[0](inputs).flatten(1).double()
        mine = torch.bincount(labels, minlength=classes).double()
        total.index_add_(0, labels, h)
        count += mine
        heard += mine * float(reports)
        longest = max(longest, float(h.norm(dim=1).max()))
    told = np.flatnonzero(known & (count.numpy() > 0))
    if not len(told):
        return None
    everybody = (total[told] / count[told, None]).numpy()
    return KnowledgeGap(
        classes=told,
        distance=np.linalg.norm(everybody - knowledge[told], axis=1),
        norm=np.linalg.norm(everybody, axis=1),
        allowed=2 * longest * (1 - (heard[told] / count[told]).numpy()),
    )
