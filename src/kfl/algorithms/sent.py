"""Bits that an upload takes on the air, counted from the upload itself.

`Algorithm.bits` declares what a round takes: the scheduler plans with it before anything exists. What a run reports is
counted here, from the arrays that devices send and from how `Algorithm.upload_format` says they are sent:

    values          as many bits each as their type has, 32 at most: the paper's q; or `ArrayFormat.bits`, and then the
                    least and the largest value travel along
    rows of classes those that the device holds and one bit per class, where `ArrayFormat.rows` says so; else all
    counts, samples nothing, as in the paper: they are sent once and never change; noisy ones do, and are counted
    anything else   an array that no format declares is sent all the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfl.algorithms.base import BITS_PER_VALUE
from kfl.algorithms.quantise import message_bits
from kfl.algorithms.uploads import ArrayFormat, Upload, UploadFormat

if TYPE_CHECKING:
    from torch import Tensor


def sent_bits(upload: Upload, formats: UploadFormat) -> float:
    """Bits of an upload.

    >>> import torch
    >>> arrays = {"means": torch.zeros(10, 64), "counts": torch.tensor([5, 0, 3, *[0] * 7])}
    >>> everything = {"means": ArrayFormat((10, 64)), "counts": ArrayFormat((10,), "int64", "counts")}
    >>> held = {**everything, "means": ArrayFormat((10, 64), rows="counts")}
    >>> sent_bits(Upload(0, arrays), everything), sent_bits(Upload(0, arrays), held)
    (20480.0, 4106.0)
    """
    return float(sum(_array_bits(array, formats.get(name), upload) for name, array in upload.arrays.items()))


def _array_bits(array: object, form: ArrayFormat | None, upload: Upload) -> int:
    import torch

    if not isinstance(array, torch.Tensor):
        return 0
    if form is None:
        return array.numel() * _own_bits(array)
    if form.holds != "values" and form.noise == 0:
        return 0
    bits = _own_bits(array) if form.bits is None else form.bits
    values, mask = array.numel(), 0
    counts = upload.arrays.get(form.rows) if form.rows else None
    if counts is not None and array.dim():
        mask = array.shape[0]
        values = values // max(mask, 1) * int((counts > 0).sum())
    return (values * bits if form.bits is None else message_bits(values, bits)) + mask


def _own_bits(array: Tensor) -> int:
    """Bits of one value of an array, as its type has them, but never more than the paper's q."""
    import torch

    return 1 if array.dtype == torch.bool else min(8 * array.dtype.itemsize, BITS_PER_VALUE)
