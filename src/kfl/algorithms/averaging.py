"""Averages of weights under the names of earlier versions, for third-party algorithms written with them.

An algorithm that declares its arrays with `weights_format` needs no `aggregate` of its own any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kfl.algorithms.aggregation import combine, stored_like
from kfl.algorithms.uploads import Rejection, Upload, usable
from kfl.algorithms.weights import WeightAveraging, part_of, weights_format, weights_upload

if TYPE_CHECKING:
    from kfl.models import State

__all__ = ["WeightAveraging", "average_weights", "part_of", "weights_format", "weights_upload"]


def average_weights(server: State, uploads: Sequence[Upload]) -> tuple[State, list[Rejection]]:
    """Return w = Σ_k D_k w_k / Σ_k D_k over the uploads that make sense; the server's own where there is none."""
    formats = weights_format(server)
    good, rejected = usable(uploads, formats)
    found = combine(formats, [upload.arrays for upload in good], "mean", 0.0, {}) if good else None
    if found is None:
        return server, rejected
    return {name: stored_like(value, server[name]) for name, value in found[0].items()}, rejected
