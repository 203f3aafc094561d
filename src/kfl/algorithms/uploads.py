"""What devices send: the arrays an algorithm declares, their size on the air, and uploads that are something else.

A radio link or an untrusted device can deliver anything. `Algorithm.upload_format` declares the arrays of an upload;
everything a server averages is checked against that first. An upload that fails is refused with a code, and the round
goes on with the rest. The scheduler plans with the size that the formats declare (`wire_size`); what a run reports is
counted from the arrays that devices send (`sent_bits`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from kfl.core.refusals import Facts, describe, stored_refusal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_SAMPLES = 2**53
"""Counts above this are not exact in float64, and a few of them would overflow a weighted sum."""
BITS_PER_VALUE = 32
"""Bits of one number on the air, the paper's q: float32."""
RANGE_BITS = 64
"""Bits of the least and the largest value, which travel with values in fewer bits."""


@dataclass(frozen=True, eq=False)
class Upload:
    """What one device sends to the server after its local work."""

    device: int
    arrays: Mapping[str, Tensor]


@dataclass(frozen=True)
class ArrayFormat:
    """One array of an upload, as its algorithm declares it: what it looks like, what weighs it, how it is sent.

    >>> ArrayFormat((10, 64), weight="counts", held_rows=True).weight
    'counts'
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    """PyTorch's and NumPy's name of the type."""
    holds: Literal["values", "counts", "samples"] = "values"
    """Any finite numbers; numbers of samples, one for each class; or the number of all samples of the device."""
    noise: float = 0.0
    """Standard deviation of noise that is added to counts on purpose; such counts are not integers."""
    bits: int | None = None
    """Bits of one value on the air, where that is not what its type has: values that stand on a grid of 2^bits."""
    weight: str = ""
    """Name of the array that weighs this one in an average: a number, or one per row. Empty: all devices weigh 1."""
    held_rows: bool = False
    """Whether only rows with a weight travel, and one bit per row that says which these are."""
    most: float = MOST_SAMPLES
    """The largest number that counts as a weight; above it, an array of weights is cut, not refused."""

    @staticmethod
    def like(array: Tensor, weight: str = "") -> ArrayFormat:
        """Values of the shape and type of an array."""
        return ArrayFormat(tuple(array.shape), str(array.dtype).removeprefix("torch."), weight=weight)


UploadFormat = Mapping[str, ArrayFormat]
"""The arrays of an upload by name; empty where devices send nothing."""


@dataclass(frozen=True)
class Rejection:
    """An upload that was not used: a code, and the facts that a sentence needs.

    >>> print(Rejection(3, "shape", {"array": "means", "found": (2, 4), "expected": (2, 5)}).describe())
    its means has the shape (2, 4), not (2, 5)
    """

    device: int
    code: str
    facts: Facts = field(default_factory=dict)

    def describe(self) -> str:
        """Why the upload was not used, in words."""
        return describe(self.code, self.facts)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a run folder."""
        return {"device": self.device, "code": self.code, **self.facts}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Rejection:
        """Read what `to_dict` gave, or the `device` and `reason` of a run folder from before there were codes."""
        return Rejection(values["device"], *stored_refusal(values))


Problem = tuple[str, Facts]
"""A code and its facts: what is wrong with an upload."""


def usable(uploads: Sequence[Upload], formats: UploadFormat) -> tuple[list[Upload], list[Rejection]]:
    """Separate the uploads that have the declared arrays from those that are refused.

    All are checked together first: on a GPU every single check waits for the device. Only if something is wrong is
    each checked alone. Another type is accepted where its values fit; a fleet, which knows what its devices run, is
    stricter. A row without weight, such as that of a class without samples, may hold anything.

    Args:
        uploads: What arrived.
        formats: What the algorithm declares, by name.

    Returns:
        The uploads that can be used, and a rejection for each of the others.
    """
    if _all_sound(uploads, formats):
        return list(uploads), []
    good, rejected = [], []
    for upload in uploads:
        problem = find_problem(upload, formats)
        if problem is None:
            good.append(upload)
        else:
            rejected.append(Rejection(upload.device, *problem))
    return good, rejected


def as_declared(upload: Upload, formats: UploadFormat) -> Upload:
    """Return a usable upload with nothing but the declared arrays, in their declared types."""
    import torch

    arrays = {name: upload.arrays[name].to(getattr(torch, form.dtype)) for name, form in formats.items()}
    return Upload(upload.device, arrays)


def find_problem(upload: Upload, formats: UploadFormat) -> Problem | None:
    """Return what is wrong with an upload; None where all declared arrays are there and make sense."""
    # Rows are judged last: which of them count follows from arrays that must make sense themselves.
    for name in sorted(formats, key=lambda name: weighs_rows(formats, name)):
        form, found = formats[name], upload.arrays.get(name)
        if not is_plain(found):
            return "missing_array", {"array": name}
        if weighs_rows(formats, name) and tuple(found.shape) == form.shape:
            held = upload.arrays[form.weight].to(found.device) > 0
            found = found.where(as_rows(held, found), 0)
        problem = array_problem(name, found, form)
        if problem is not None:
            return problem
    return None


def array_problem(name: str, found: Tensor, form: ArrayFormat) -> Problem | None:
    """Return what is wrong with one array: its shape, a value that is not finite, or impossible numbers of samples."""
    import torch

    if tuple(found.shape) != form.shape:
        return "shape", {"array": name, "found": list(found.shape), "expected": list(form.shape)}
    # Finite is judged as the server stores it: 1e300 is finite in float64 and infinite in float32.
    kind = getattr(torch, form.dtype)
    stored = found.to(kind) if kind.is_floating_point and not found.is_complex() else found
    if found.is_complex() or not bool(torch.isfinite(stored).all()):
        return "not_finite", {"array": name}
    if form.holds == "values":
        return None
    if bool((found < 0).any()):
        return "negative_count", {"array": name}
    if bool((found > MOST_SAMPLES).any()):
        return "too_many_samples", {"array": name}
    return None


def weighs_rows(formats: UploadFormat, name: str) -> bool:
    """Return whether an array is weighed row by row."""
    weight = formats.get(formats[name].weight)
    return weight is not None and len(weight.shape) > 0


def as_rows(per_row: Tensor, like: Tensor) -> Tensor:
    """Give numbers of rows the dimensions that they need to be multiplied with these rows."""
    return per_row.reshape((*per_row.shape, *(1,) * (like.dim() - per_row.dim())))


def is_plain(found: object) -> TypeGuard[Tensor]:
    """Return whether this is an array with a value in every place: a tensor that is not sparse, quantized or empty.

    Types that PyTorch stores but hardly computes with (long integers without a sign, 8-bit floats) do not count.
    """
    import torch

    if not isinstance(found, torch.Tensor):
        return False
    unsigned = found.dtype in (torch.uint16, torch.uint32, torch.uint64)
    tiny = found.is_floating_point() and found.dtype.itemsize == 1
    return found.layout == torch.strided and not found.is_meta and not found.is_quantized and not (unsigned or tiny)


def _all_sound(uploads: Sequence[Upload], formats: UploadFormat) -> bool:
    """Whether nothing is wrong with any upload; False also where that takes a closer look."""
    import torch

    values = []
    for name, form in formats.items():
        column = [upload.arrays.get(name) for upload in uploads]
        arrays = [found for found in column if is_plain(found) and tuple(found.shape) == form.shape]
        if len(arrays) < len(uploads) or len({(found.dtype, found.device) for found in arrays}) > 1:
            return False
        if not arrays or not arrays[0].numel():
            continue
        if form.holds != "values":
            if arrays[0].is_complex():
                return False
            # NaN fails both comparisons. 2^53 + 1 may round to 2^53, so the limit itself is left to a closer look.
            least, most = (float(value) for value in torch.stack(arrays).aminmax())
            if not (least >= 0 and most < MOST_SAMPLES):
                return False
        elif arrays[0].dtype != getattr(torch, form.dtype):
            return False
        elif arrays[0].is_floating_point():
            values += arrays
    if len({(array.dtype, array.device) for array in values}) > 1:
        return False
    largest = list(torch._foreach_norm(values, float("inf"))) if values else []
    return not largest or bool(torch.isfinite(torch.stack(largest)).all())


def message_bits(values: int, bits: int) -> int:
    """Return the bits of a message of so many values; the range travels along when they are quantized.

    >>> message_bits(640, 32), message_bits(640, 8)
    (20480, 5184)
    """
    return values * bits + (RANGE_BITS if bits < BITS_PER_VALUE else 0)


def wire_size(formats: UploadFormat, held_classes: int | None = None) -> float:
    """Return the bits that arrays take on the air, by what their formats declare.

        values          as many bits each as their type has, 32 at most: the paper's q; or `ArrayFormat.bits`, and
                        then the least and the largest value travel along
        held rows       those that the device holds and one bit per row; all rows where it is not known how many
        counts, samples nothing, as in the paper: they are sent once and never change; noisy ones do, and are counted,
                        and so are those that say in how many bits they travel, without a range

    Args:
        formats: The arrays of an upload by name.
        held_classes: How many rows a device holds; None where that is not known.

    >>> everything = {"means": ArrayFormat((10, 64), weight="counts"), "counts": ArrayFormat((10,), "int64", "counts")}
    >>> held = {**everything, "means": ArrayFormat((10, 64), weight="counts", held_rows=True)}
    >>> wire_size(everything), wire_size(held, held_classes=2), wire_size(held)
    (20480.0, 4106.0, 20490.0)
    """
    total = 0
    for form in formats.values():
        if form.holds != "values" and form.noise == 0 and form.bits is None:
            continue
        values, mask = math.prod(form.shape), 0
        if form.held_rows and form.shape:
            mask = form.shape[0]
            by_class = form.weight not in formats or formats[form.weight].holds == "counts"
            values = values // max(mask, 1) * (held_classes if by_class and held_classes is not None else mask)
        total += mask + (
            values * _own_bits(form.dtype)
            if form.bits is None
            else (values * form.bits if form.holds != "values" else message_bits(values, form.bits))
        )
    return float(total)


def sent_bits(upload: Upload, formats: UploadFormat) -> float:
    """Return the bits of an upload, counted from the arrays that are in it; an array without a format is sent too.

    >>> import torch
    >>> formats = {"means": ArrayFormat((3, 4), weight="counts", held_rows=True)}
    >>> sent_bits(Upload(0, {"means": torch.zeros(3, 4), "counts": torch.tensor([5, 0, 1])}), formats)
    355.0
    """
    import torch

    total, arrays = 0.0, dict[str, object](upload.arrays)
    for name, array in arrays.items():
        if not isinstance(array, torch.Tensor):
            continue
        form = formats.get(name, _UNDECLARED)
        counts = upload.arrays.get(form.weight) if form.held_rows else None
        held = None if counts is None else int((counts > 0).sum())
        total += _size_of(name, form, tuple(array.shape), array.dtype, held)
    return total


_UNDECLARED = ArrayFormat(())


@lru_cache(maxsize=4096)
def _size_of(name: str, form: ArrayFormat, shape: tuple[int, ...], dtype: torch.dtype, held: int | None) -> float:
    """The bits of an array as it is; many devices send arrays of the same shapes."""
    found = str(dtype).removeprefix("torch.")
    own = replace(form, shape=shape, dtype=found, held_rows=form.held_rows and held is not None)
    return wire_size({name: own}, held)


def _own_bits(dtype: str) -> int:
    """Bits of one value of this type, but never more than the paper's q."""
    import torch

    return 1 if dtype == "bool" else min(8 * getattr(torch, dtype).itemsize, BITS_PER_VALUE)
