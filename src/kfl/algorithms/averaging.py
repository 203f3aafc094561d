"""What a server makes of uploads: the mean of weights, or the mean feature of each class, its *knowledge*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import Algorithm
from kfl.algorithms.robust import Aggregation, check_rule, combine, coordinate_median
from kfl.algorithms.sums import Shapes, Summation, Sums
from kfl.algorithms.uploads import (
    MOST_SAMPLES,
    ArrayFormat,
    Rejection,
    Upload,
    UploadFormat,
    find_problem,
    is_plain,
    plain_arrays,
    separate,
    usable,
)

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.algorithms.uploads import Problem
    from kfl.engine import Engine, RoundKey
    from kfl.models import State

SAMPLES = "samples"
"""Name under which a device sends its number of training samples D_k, the weight of its upload."""


@dataclass(frozen=True)
class WeightAveraging(Algorithm):
    """An algorithm whose server holds one model for all, or a part of it, and averages what devices make of it."""

    needs_equal_models: ClassVar[bool] = True
    predicts_alone: ClassVar[bool] = False

    _: KW_ONLY
    aggregation: Aggregation = "mean"
    """How the server combines models: the mean, or against poisoned ones clip, median or trimmed."""
    trim: float = 0.25
    """Share of the models that trimmed leaves out at either end, value by value."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        check_rule(self.aggregation, self.trim)

    def server_init(self, engine: Engine, seed: int) -> State:
        """The common start."""
        return engine.initial(0, seed, common=True)

    def broadcast(self, server: State) -> Message:
        """All that the server holds."""
        return server

    def upload_format(self, server: State) -> UploadFormat:
        """Arrays like the server's, and the number of samples behind them."""
        return weights_format(server)

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """w = Σ_k D_k w_k / Σ_k D_k, or a robust rule."""
        if self.aggregation != "mean":
            return robust_weights(server, uploads, self.aggregation, trim=self.trim)
        return average_weights(server, uploads)

    def summation(self) -> Summation | None:
        """Σ_k D_k w_k and Σ_k D_k; none with a robust rule, which compares models."""
        return WeightSums() if self.aggregation == "mean" else None


def weights_format(server: Mapping[str, Tensor]) -> UploadFormat:
    """An upload of arrays like the server's own, with the number of samples behind them."""
    values = {name: ArrayFormat.like(value) for name, value in server.items()}
    return {**values, SAMPLES: ArrayFormat((), "float64", "samples")}


def weights_upload(device: int, weights: Mapping[str, Tensor], engine: Engine) -> Upload:
    """A device's weights with its number of samples."""
    import torch

    samples = torch.tensor(float(engine.profile(device).samples), dtype=torch.float64)
    return Upload(device, {**weights, SAMPLES: samples})


def average_weights(server: State, uploads: Sequence[Upload]) -> tuple[State, list[Rejection]]:
    """w = Σ_k D_k w_k / Σ_k D_k over the uploads that make sense; the server's own where there is none.

    McMahan et al. 2017, Algorithm 1. Running statistics are averaged like weights, and counters (whole
    numbers) are rounded.
    """
    import torch

    good, rejected = usable(uploads, weights_format(server))
    if not good:
        return server, rejected
    samples = torch.stack([upload.arrays[SAMPLES].double().cpu() for upload in good])
    if float(samples.sum()) == 0:
        return server, rejected
    share = samples / samples.sum()
    averaged = {}
    for name, like in server.items():
        stacked = torch.stack([upload.arrays[name] for upload in good])
        # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
        mean = torch.tensordot(share.to(stacked.device), stacked.double(), dims=1)
        averaged[name] = (mean if like.is_floating_point() else mean.round()).to(like.dtype).to(like.device)
    return averaged, rejected


def robust_weights(
    server: State, uploads: Sequence[Upload], rule: Aggregation, *, trim: float
) -> tuple[State, list[Rejection]]:
    """w ← w + a robust rule over the updates w_k − w; counters (whole numbers) are medians.

    Clipping is by the length of a whole update: one that is small in every layer but one is still too long.
    """
    import torch

    good, rejected = usable(uploads, weights_format(server))
    samples = torch.tensor([float(upload.arrays[SAMPLES]) for upload in good], dtype=torch.float64)
    if not samples.any():
        return server, rejected
    good, samples = [upload for upload in good if upload.arrays[SAMPLES] > 0], samples[samples > 0]
    names = [name for name, like in server.items() if like.is_floating_point()]
    before = torch.cat([server[name].double().cpu().flatten() for name in names])
    updates = torch.stack([torch.cat([up.arrays[name].double().cpu().flatten() for name in names]) for up in good])
    updates -= before
    after = before + combine(rule, updates, samples, torch.zeros_like(before), trim)
    parts = dict(zip(names, after.split([server[name].numel() for name in names]), strict=True))
    renewed_weights = {}
    for name, like in server.items():
        if name not in parts:
            counters = torch.stack([upload.arrays[name].double().cpu().flatten() for upload in good])
            parts[name] = coordinate_median(counters).round()
        renewed_weights[name] = parts[name].reshape(like.shape).to(like.dtype).to(like.device)
    return renewed_weights, rejected


class WeightSums(Summation):
    """`average_weights` as sums."""

    def shapes(self, server: State) -> tuple[Shapes, Shapes]:
        """Arrays like the server's, and one number of samples."""
        return {name: tuple(value.shape) for name, value in server.items()}, {SAMPLES: ()}

    def terms(self, upload: Upload, message: Message, engine: Engine) -> Sums:
        """D_k w_k and D_k."""
        samples = upload.arrays[SAMPLES].double().cpu()
        weights = {name: value for name, value in upload.arrays.items() if name != SAMPLES}
        return Sums({name: samples * value.double().cpu() for name, value in weights.items()}, {SAMPLES: samples})

    def apply(self, server: State, sums: Sums) -> State:
        """w = Σ_k D_k w_k / Σ_k D_k; the server's own where nobody has samples."""
        samples = sums.weights[SAMPLES]
        if not float(samples) > 0:
            return server
        means = {name: sums.values[name] / samples for name in server}
        return {
            name: (means[name] if like.is_floating_point() else means[name].round()).to(like.dtype).to(like.device)
            for name, like in server.items()
        }


def part_of(state: Mapping[str, Tensor], prefix: str) -> State:
    """The entries whose name starts with `prefix`: "body." or "head."."""
    return {name: value for name, value in state.items() if name.startswith(prefix)}


def empty_knowledge(classes: int, features: int) -> State:
    """Knowledge of no class at all: what the server starts with."""
    import torch

    return {
        "knowledge": torch.zeros(classes, features),
        "known": torch.zeros(classes, dtype=torch.bool),
    }


def knowledge_format(
    server: State, count_noise: float = 0.0, *, bits: int | None = None, held: bool = False
) -> UploadFormat:
    """An upload of class means with their counts, which may have noise of a given standard deviation on purpose.

    Means take `bits` bits per value on the air, where that is not 32; with `held`, only those of classes that the
    device holds are sent.
    """
    classes = len(server["known"])
    return {
        "means": replace(ArrayFormat.like(server["knowledge"]), bits=bits, rows="counts" if held else ""),
        "counts": ArrayFormat((classes,), "float64" if count_noise else "int64", "counts", count_noise),
    }


def equal_uploads(devices: Sequence[int], means: Tensor, counts: Tensor) -> list[Upload]:
    """Class means of devices, and for each class only whether a device has samples of it, 1 or 0, not how many."""
    return [
        Upload(device, {"means": mean, "counts": count.clamp(max=1)})
        for device, mean, count in zip(devices, means, counts, strict=True)
    ]


def average_knowledge(
    server: State, uploads: Sequence[Upload], *, memory: bool, heaviest: float = inf
) -> tuple[State, list[Rejection]]:
    """Count-weighted mean of the uploaded class means, equation (9), without the uploads that make no sense.

    A class that nobody reports keeps its knowledge with `memory`, and is forgotten without. No count weighs more
    than `heaviest`: with 1, each device that holds a class weighs the same. Where no upload can be used, the
    server keeps what it has.
    """
    reports, rejected = usable_reports(server, uploads)
    if reports is None:
        return server, rejected
    return renewed(server, *reports.average(heaviest), memory=memory), rejected


def robust_knowledge(
    server: State, uploads: Sequence[Upload], rule: Aggregation, *, trim: float, memory: bool
) -> tuple[State, list[Rejection]]:
    """New knowledge by a robust rule; what is not usable at all is refused as ever."""
    import torch

    reports, rejected = usable_reports(server, uploads)
    if reports is None:
        return server, rejected
    before, known = server["knowledge"], server["known"]
    means, counts = reports.means, reports.counts
    result = torch.zeros(before.shape, dtype=torch.float64)
    for c in range(len(before)):
        held = counts[:, c] > 0
        if held.any():
            centre = before[c].double().cpu() if known[c] else None
            result[c] = combine(rule, means[held, c], counts[held, c], centre, trim)
    return renewed(server, result, (counts > 0).any(dim=0), memory=memory), rejected


@dataclass(frozen=True, eq=False)
class Reports:
    """The knowledge of several devices, float64 on the CPU."""

    means: Tensor
    """(devices, classes, features), all finite, also where a device has no sample of a class."""
    counts: Tensor
    """(devices, classes)."""

    def average(self, heaviest: float = inf) -> tuple[Tensor, Tensor]:
        """The mean of each class over devices, no count weighing more than `heaviest`, and which classes have one."""
        import torch

        # Sums in float64, so that the order of the devices does not matter beyond rounding of the result.
        weights = self.counts.clamp(max=heaviest)
        total = (weights[:, :, None] * self.means).sum(0)
        weight = weights.sum(0)
        reported = weight > 0
        return total / torch.where(reported, weight, 1.0)[:, None], reported

    def labelled(self) -> tuple[Tensor, Tensor]:
        """Each device's mean of each class that it holds as one sample of that class: vectors, and their labels."""
        held = self.counts > 0
        return self.means[held], held.nonzero()[:, 1]


def usable_reports(server: State, uploads: Sequence[Upload]) -> tuple[Reports | None, list[Rejection]]:
    """The reports that can stand for knowledge, None where there are none, and why each of the others is refused.

    All are checked together first, which is what counts for a round's time; only if something is wrong is each
    checked alone.
    """
    reports = _read_together(uploads, server["knowledge"])
    if reports is not None:
        return reports, []
    formats = knowledge_format(server)
    good, rejected = separate(uploads, lambda upload: _knowledge_problem(upload, formats))
    if not good:
        return None, rejected
    reports = _stack(good)
    # A class of count 0 may hold anything.
    return Reports(reports.means.where(reports.counts[:, :, None] > 0, 0.0), reports.counts), rejected


def _knowledge_problem(upload: Upload, formats: UploadFormat) -> Problem | None:
    """What is wrong with an upload of class means; None for nothing. A class of count 0 may hold anything."""
    problem = find_problem(upload, {"counts": formats["counts"]})
    if problem is not None:
        return problem
    means, counts = upload.arrays.get("means"), upload.arrays["counts"]
    if is_plain(means) and tuple(means.shape) == formats["means"].shape:
        means = means.where((counts > 0).to(means.device)[:, None], 0)
        upload = Upload(upload.device, {"means": means})
    return find_problem(upload, {"means": formats["means"]})


def _read_together(uploads: Sequence[Upload], before: Tensor) -> Reports | None:
    """All reports, where every count is a number of samples and every mean is finite; None if anything is amiss."""
    arrays = plain_arrays(uploads, ("means", "counts"))
    if arrays is None:
        return None
    for means, counts in arrays:
        if means.shape != before.shape or counts.shape != before.shape[:1]:
            return None
        if means.dtype != before.dtype or counts.is_complex():
            return None
    if not uploads or not before.numel():
        return None
    reports = _stack(uploads)
    least, most = reports.counts.aminmax()
    # A sum is finite where every term is: in float64 no number of float32 values overflows. NaN fails both tests.
    # 2^53 + 1 is 2^53 in float64, so at the limit each is looked at as it was sent.
    sound = least >= 0 and most < MOST_SAMPLES and isfinite(float(reports.means.sum()))
    return reports if sound else None


def _stack(uploads: Sequence[Upload]) -> Reports:
    """The reports of all uploads, as they are."""
    return Reports(_in_double(uploads, "means"), _in_double(uploads, "counts"))


def _in_double(uploads: Sequence[Upload], name: str) -> Tensor:
    """One array of all uploads. Of one type they are stacked first, which is quicker; another might not hold them."""
    import torch

    arrays = [upload.arrays[name] for upload in uploads]
    if len({array.dtype for array in arrays}) > 1:
        arrays = [array.double() for array in arrays]
    return torch.stack(arrays).cpu().double()


def renewed(server: State, mean: Tensor, reported: Tensor, *, memory: bool) -> State:
    """The server's state with new knowledge of reported classes; others are kept, or forgotten without memory."""
    import torch

    before, reported = server["knowledge"], reported.to(server["knowledge"].device)
    keep = server["known"] & memory
    mean = mean.to(before.dtype).to(before.device)
    knowledge = torch.where(reported[:, None], mean, torch.where(keep[:, None], before, 0.0))
    return {"knowledge": knowledge, "known": reported | keep}


@dataclass(frozen=True)
class KnowledgeSums(Summation):
    """`average_knowledge` as sums: equation (9) is a ratio of two."""

    memory: bool = True
    heaviest: float = inf

    def shapes(self, server: State) -> tuple[Shapes, Shapes]:
        """Features of each class, and the samples of each class."""
        return {"means": tuple(server["knowledge"].shape)}, {"counts": tuple(server["known"].shape)}

    def terms(self, upload: Upload, message: Message, engine: Engine) -> Sums:
        """D_{k,c} Ω_{k,c} and D_{k,c}; nothing of a class that the device does not hold."""
        counts = upload.arrays["counts"].double().cpu().clamp(max=self.heaviest)
        means = upload.arrays["means"].double().cpu().where(counts[:, None] > 0, 0.0)
        return Sums({"means": counts[:, None] * means}, {"counts": counts})

    def apply(self, server: State, sums: Sums) -> State:
        """Ω_c = Σ_k D_{k,c} Ω_{k,c} / Σ_k D_{k,c} for the classes that somebody holds."""
        counts = sums.weights["counts"]
        reported = counts > 0
        mean = sums.values["means"] / counts.where(reported, 1.0)[:, None]
        return renewed(server, mean, reported, memory=self.memory)
