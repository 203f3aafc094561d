"""What devices send: the arrays an algorithm declares, and what becomes of an upload that is something else.

A radio link or a stranger's device can deliver anything. `Algorithm.upload_format` declares the arrays of an upload;
everything a server averages is checked against that first. An upload that fails is refused with a code, and the round
goes on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from kfl.core.refusals import Facts, describe, stored_refusal

if TYPE_CHECKING:
    from torch import Tensor

MOST_SAMPLES = 2**53
"""Counts above this are not exact in float64, and a few of them would overflow a weighted sum."""


@dataclass(frozen=True, eq=False)
class Upload:
    """What one device sends to the server after its local work."""

    device: int
    arrays: Mapping[str, Tensor]


@dataclass(frozen=True)
class ArrayFormat:
    """One array of an upload, as its algorithm declares it.

    >>> ArrayFormat((10,), "int64", holds="counts")
    ArrayFormat(shape=(10,), dtype='int64', holds='counts', noise=0.0, bits=None, rows='')
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    """PyTorch's and NumPy's name of the type."""
    holds: Literal["values", "counts", "samples"] = "values"
    """Any finite numbers; numbers of samples, one for each class; or the number of all samples of the device."""
    noise: float = 0.0
    """Standard deviation of noise that is added to counts on purpose; such counts are not whole numbers."""
    bits: int | None = None
    """Bits of one value on the air, where that is not what its type has: values that stand on a grid of 2^bits."""
    rows: str = ""
    """Name of the counts that say which rows are sent: those of classes that the device holds. Empty for all rows."""

    @staticmethod
    def like(array: Tensor) -> ArrayFormat:
        """Values of the shape and type of an array."""
        return ArrayFormat(tuple(array.shape), str(array.dtype).removeprefix("torch."))


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
    """The uploads that have the declared arrays, and why each of the others is refused.

    All are checked together first: on a GPU every single check waits for the device. Only if something is wrong is
    each checked alone. Another type is accepted where its values fit; a fleet, which knows what its devices run, is
    stricter (`kfl_fleet.server.verdicts`).
    """
    if _all_sound(uploads, formats):
        return list(uploads), []
    return separate(uploads, lambda upload: find_problem(upload, formats))


def separate(
    uploads: Sequence[Upload], problem_of: Callable[[Upload], Problem | None]
) -> tuple[list[Upload], list[Rejection]]:
    """The uploads without a problem, and a rejection for each of the others."""
    good, rejected = [], []
    for upload in uploads:
        problem = problem_of(upload)
        if problem is None:
            good.append(upload)
        else:
            rejected.append(Rejection(upload.device, *problem))
    return good, rejected


def find_problem(upload: Upload, formats: UploadFormat) -> Problem | None:
    """What is wrong with an upload; None where all declared arrays are there and make sense."""
    for name, form in formats.items():
        found = upload.arrays.get(name)
        if not is_plain(found):
            return "missing_array", {"array": name}
        problem = array_problem(name, found, form)
        if problem is not None:
            return problem
    return None


def array_problem(name: str, found: Tensor, form: ArrayFormat) -> Problem | None:
    """What is wrong with one array: its shape, a value that is not finite, or numbers of samples that cannot be."""
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


def is_plain(found: object) -> TypeGuard[Tensor]:
    """Whether this is an array with a value in every place: a tensor that is not sparse, quantised or without data.

    Types that PyTorch stores but hardly computes with (long integers without a sign, 8-bit floats) do not count.
    """
    import torch

    if not isinstance(found, torch.Tensor):
        return False
    unsigned = found.dtype in (torch.uint16, torch.uint32, torch.uint64)
    tiny = found.is_floating_point() and found.dtype.itemsize == 1
    return found.layout == torch.strided and not found.is_meta and not found.is_quantized and not (unsigned or tiny)


def plain_arrays(uploads: Sequence[Upload], names: Sequence[str]) -> list[list[Tensor]] | None:
    """The arrays of these names of every upload; None where one is missing or not plain."""
    arrays = [[upload.arrays.get(name) for name in names] for upload in uploads]
    found = [[array for array in row if is_plain(array)] for row in arrays]
    return found if all(len(row) == len(names) for row in found) else None


def _all_sound(uploads: Sequence[Upload], formats: UploadFormat) -> bool:
    """Whether nothing is wrong with any upload; False also where that takes a closer look."""
    import torch

    arrays = []
    for upload in uploads:
        for name, form in formats.items():
            found = upload.arrays.get(name)
            if not is_plain(found):
                return False
            if form.holds != "values":
                if array_problem(name, found, form) is not None:
                    return False
                continue
            if tuple(found.shape) != form.shape or found.dtype != getattr(torch, form.dtype):
                return False
            if found.is_floating_point() and found.numel():
                arrays.append(found)
    if len({(array.dtype, array.device) for array in arrays}) > 1:
        return False
    largest = list(torch._foreach_norm(arrays, float("inf"))) if arrays else []
    return not largest or bool(torch.isfinite(torch.stack(largest)).all())
