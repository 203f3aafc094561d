"""Reports of common knowledge of many devices at once: made, added up, and kept by the server.

What a device sends is in `kfl.algorithms.reports`. Devices with equal numbers of samples make their reports as one
batch; the server adds up many reports by one product for each sum, without the d × d terms of any single one; and it
keeps them without the rows that devices did not send (`kept`, `with_reports`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kfl.algorithms import reports
from kfl.algorithms.aggregation import Sums
from kfl.algorithms.common_knowledge import REPORTED
from kfl.algorithms.quantize import FULL_PRECISION_BITS
from kfl.algorithms.uploads import Upload, UploadFormat, weighs_rows
from kfl.engine.workers import spread

if TYPE_CHECKING:
    from kfl.algorithms.common_knowledge import CommonKnowledge
    from kfl.data import SharedSamples
    from kfl.engine import RoundKey
    from kfl.models import State

NUMBERS_AT_ONCE = 2**21
"""Of the samples of devices that report as one batch."""
ADDED_AT_ONCE = 256
"""Reports that are unpacked together."""


def make_reports(
    algorithm: CommonKnowledge,
    devices: Sequence[int],
    samples: SharedSamples,
    server: State,
    key: RoundKey,
    workers: int = 1,
) -> list[Upload]:
    """Make the reports of several devices.

    Args:
        algorithm: Its settings.
        devices: Their numbers.
        samples: The training samples of each.
        server: What devices know of the server.
        key: Of the round, for noise.
        workers: Number of threads.

    Returns:
        One upload for each device, in their order.
    """
    numbers, whole = np.array(devices), dict[str, Tensor]()

    def work(places: NDArray[np.int64]) -> None:
        rows = samples.of(places)[0].reshape(len(places), -1)
        x, y = samples.inputs[rows].flatten(2).double(), samples.labels[rows]
        for name, values in _report(algorithm, numbers[places].tolist(), x, y, server, key).items():
            if name not in whole:  # the first batch, before the others begin
                whole[name] = torch.empty((len(devices), *values.shape[1:]), dtype=values.dtype)
            whole[name][places] = values

    # Into arrays for all devices: small ones that outlive a batch would keep its large ones' memory in pieces.
    batches = list(_equal_sizes(samples))
    spread(work, batches[:1], 1)
    spread(work, batches[1:], workers)
    each = {name: values.unbind() for name, values in whole.items()}
    return [
        Upload(device, {name: values[place] for name, values in each.items()}) for place, device in enumerate(devices)
    ]


def _equal_sizes(samples: SharedSamples) -> Iterator[NDArray[np.int64]]:
    """The places of devices with equal numbers of samples, as many as are computed together."""
    numbers = max(1, samples.inputs[0].numel()) if len(samples.inputs) else 1
    for size in np.unique(samples.sizes):
        places = np.flatnonzero(samples.sizes == size)
        at_once = max(1, NUMBERS_AT_ONCE // (max(int(size), 1) * numbers))
        yield from (places[start : start + at_once] for start in range(0, len(places), at_once))


def _report(
    algorithm: CommonKnowledge, devices: list[int], x: Tensor, y: Tensor, server: State, key: RoundKey
) -> dict[str, Tensor]:
    """The arrays of reports, one row for each device, from samples x (devices, n, d) and labels y (devices, n)."""
    count, n, d = x.shape
    classes, seed = len(server["totals"]), int(server["seed"])
    if algorithm.clip_norm is not None:
        x = x * (algorithm.clip_norm / x.norm(dim=2, keepdim=True).clamp(min=1e-300)).clamp(max=1)
    one_hot = torch.nn.functional.one_hot(y, classes).double()
    counts = one_hot.sum(1)
    means = one_hot.transpose(1, 2) @ x / counts.clamp(min=1)[..., None]
    away = x - means.gather(1, y[..., None].expand(-1, -1, d))
    arrays, held = {"counts": counts.long()}, counts > 0
    center, spread = torch.zeros(count, d, dtype=torch.float64), torch.ones(count, d, dtype=torch.float64)
    if algorithm.noise_multiplier and algorithm.clip_norm is not None:
        scale = 2 * algorithm.clip_norm * algorithm.noise_multiplier
        means = means + scale * _noise(means[0].shape, devices, key) / counts.clamp(min=1)[..., None]
    else:
        own_center, own_spread = _own_statistics(means, counts, away)
        if not bool(server["whitened"]):
            arrays["center"], arrays["center_range"] = reports.pack_range(own_center, reports.CENTER_BITS)
            center = reports.unpack_range(arrays["center"], arrays["center_range"], d, reports.CENTER_BITS)
        arrays["spread"], arrays["spread_range"] = reports.pack_range(own_spread.log(), reports.SPREAD_BITS)
        spread = reports.unpack_range(arrays["spread"], arrays["spread_range"], d, reports.SPREAD_BITS).exp()
    if algorithm.mean_bits == FULL_PRECISION_BITS:
        arrays["means"] = (means * held[..., None]).float()
    else:
        relative = (means - center[:, None]) / spread[:, None]
        dither = reports.dither_of(classes, d, seed, devices)
        codes, largest = reports.pack_means(relative, held, algorithm.mean_bits, seed, dither)
        arrays["means"] = torch.zeros(count, classes, codes.shape[1], dtype=torch.uint8)
        arrays["ranges"] = torch.zeros(count, classes)
        arrays["means"][held], arrays["ranges"][held] = codes, largest
    if "spread" not in arrays:
        return arrays
    if algorithm.covariance == "signs":
        number = min(algorithm.sketches, n // 2)
        signs = torch.zeros(count, algorithm.sketches, -(-d // 8), dtype=torch.uint8)
        above = reports.sketch_signs(away, number, seed, devices)
        signs[:, :number] = reports.pack_codes(above.flatten(0, 1).long(), 1).unflatten(0, (count, number))
        arrays["signs"], arrays["drawn"] = signs, (torch.arange(algorithm.sketches) < number).repeat(count, 1)
    elif algorithm.covariance == "full":
        arrays["scatter"] = torch.stack([reports.triangle(one.T @ one).float() for one in away])
    return arrays


def _noise(shape: torch.Size, devices: list[int], key: RoundKey) -> Tensor:
    """Standard Gaussian noise of each device, from a secret of its own on a real one."""
    draws = [torch.Generator().manual_seed(key.secret_seed("privacy noise", device)) for device in devices]
    return torch.stack([torch.randn(shape, generator=draw, dtype=torch.float64) for draw in draws])


def _own_statistics(means: Tensor, counts: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    """Each device's own mean and its standard deviation within classes, (devices, d); the latter is never zero."""
    center = (counts[..., None] * means).sum(1) / counts.sum(1).clamp(min=1)[:, None]
    freedom = counts.sum(1) - (counts > 0).sum(1)
    spread = (away.square().sum(1) / freedom.clamp(min=1)[:, None]).sqrt()
    largest = spread.amax(1, keepdim=True)
    told = (freedom[:, None] > 0) & (largest > 0)
    return center, torch.where(told, spread.maximum(reports.SMALLEST_SPREAD * largest), 1.0)


# ── What the server adds up ──


def sum_reports(algorithm: CommonKnowledge, uploads: Sequence[Upload], server: State) -> Sums:
    """Add up what reports say.

    Args:
        algorithm: Its settings.
        uploads: At least one report, each with the declared arrays.
        server: The server's state.
    """
    total: Sums | None = None
    for start in range(0, len(uploads), ADDED_AT_ONCE):
        part = _added(algorithm, uploads[start : start + ADDED_AT_ONCE], server)
        total = part if total is None else total + part
    assert total is not None  # there is at least one report
    return total


def _added(algorithm: CommonKnowledge, uploads: Sequence[Upload], server: State) -> Sums:
    """The sums of some reports."""
    classes, d = server["totals"].shape
    arrays = {name: torch.stack([one.arrays[name].cpu() for one in uploads]) for name in uploads[0].arrays}
    devices, seed, count = [one.device for one in uploads], int(server["seed"]), len(uploads)
    counts = arrays["counts"].double()
    held = counts > 0
    whose, which = held.nonzero(as_tuple=True)
    there = held.any(1)
    center, spread = torch.zeros(count, d, dtype=torch.float64), torch.ones(count, d, dtype=torch.float64)
    if "center" in arrays:
        center = reports.unpack_range(arrays["center"], arrays["center_range"], d, reports.CENTER_BITS)
    if "spread" in arrays:
        spread = reports.unpack_range(arrays["spread"], arrays["spread_range"], d, reports.SPREAD_BITS).exp()
    number, error = counts[held], torch.zeros(count, dtype=torch.float64)
    if algorithm.mean_bits == FULL_PRECISION_BITS:
        means = arrays["means"][held].double()
    else:
        dither = reports.dither_of(classes, d, seed, devices)[held]
        sent = (arrays["means"][held], arrays["ranges"][held], d, algorithm.mean_bits, seed, dither)
        relative, variance = reports.unpack_means(*sent)
        means = relative * spread[whose] + center[whose]
        error = error.index_add(0, whose, number * variance)
    squares = spread.square()
    noise = error @ squares
    if algorithm.noise_multiplier and algorithm.clip_norm is not None:
        noise = noise + ((2 * algorithm.clip_norm * algorithm.noise_multiplier) ** 2 / number.clamp(min=1)).sum()
    freedom = counts.sum(1) - held.sum(1)
    signs, drawn = _sign_products(arrays, there, d)
    weighed = means * number[:, None]
    of_class = torch.nn.functional.one_hot(which, classes).double()
    values = {
        "totals": of_class.T @ weighed,
        "squares": counts.square().sum(0),
        "outer": weighed.T @ means,
        "noise": noise,
        "within": freedom.clamp(min=0) @ squares,
        "signs": signs,
        "numbers": torch.tensor([float(len(number)), float(freedom.sum()), *drawn], dtype=torch.float64),
    }
    return Sums(values, {"counts": counts.sum(0), "present": there.sum().double()})


def _sign_products(arrays: Mapping[str, Tensor], there: Tensor, d: int) -> tuple[Tensor, list[float]]:
    """Σ sign signᵀ over the sketches of either half, (2, d, d), and how many these are; or the scatter, twice."""
    found, drawn = torch.zeros(2, d, d, dtype=torch.float64), [0.0, 0.0]
    if "signs" in arrays:
        sent = arrays["drawn"] & there[:, None]
        half = (sent.cumsum(1) - 1)[sent] % 2  # of each device's sketches, every other one
        rows = reports.unpack_codes(arrays["signs"][sent], 1, d).float() * 2 - 1
        for index in (0, 1):
            of_half = rows[half == index]  # sums of ±1: exact in float32 for so few
            found[index], drawn[index] = (of_half.T @ of_half).double(), float(len(of_half))
    elif "scatter" in arrays:
        found[:] = reports.square(arrays["scatter"][there].double().sum(0), d)
    return found, drawn


# ── What the server keeps of single reports ──


def kept(server: State, formats: UploadFormat, place: int) -> dict[str, Tensor]:
    """The arrays of a report that the server keeps, as they were sent.

    Args:
        server: Its state.
        formats: The arrays of an upload.
        place: Which of the reports.
    """
    found: dict[str, Tensor] = {}
    for name, form in formats.items():
        stored = server[f"{REPORTED} {name}"]
        if not weighs_rows(formats, name):
            found[name] = stored[place]
            continue
        weights = server[f"{REPORTED} {form.weight}"] > 0
        start, rows = int(weights[:place].sum()), weights[place]
        found[name] = torch.zeros(form.shape, dtype=stored.dtype)
        found[name][rows] = stored[start : start + int(rows.sum())]
    return found


def with_reports(server: State, formats: UploadFormat, uploads: Sequence[Upload], gone: Sequence[int]) -> State:
    """The server's state with the reports of further devices, in the order of the devices, and without others.

    Of arrays that are weighed row by row, only rows with a weight are kept: a device sends no others.

    Args:
        server: Its state.
        formats: The arrays of an upload.
        uploads: Reports of devices of which none is kept, but for those that are `gone`.
        gone: Places of the reports that are left out.
    """
    before = server[REPORTED]
    stays = torch.ones(len(before), dtype=torch.bool)
    stays[list(gone)] = False
    devices = torch.cat([before[stays], torch.tensor([one.device for one in uploads], dtype=torch.int64)])
    order = devices.argsort()
    found = {**server, REPORTED: devices[order]}
    for name, form in formats.items():
        new = torch.stack([one.arrays[name].cpu() for one in uploads])
        stored = server.get(f"{REPORTED} {name}", new[:0] if not weighs_rows(formats, name) else new[0][:0])
        if not weighs_rows(formats, name):
            found[f"{REPORTED} {name}"] = torch.cat([stored[stays], new])[order]
            continue
        weights = torch.stack([one.arrays[form.weight].cpu() for one in uploads]) > 0
        old = server.get(f"{REPORTED} {form.weight}", weights[:0]) > 0
        rows = torch.cat([stored[stays.repeat_interleave(old.sum(1))], new[weights]])
        sizes = torch.cat([old[stays].sum(1), weights.sum(1)])
        starts, sizes = (sizes.cumsum(0) - sizes)[order], sizes[order]
        within = torch.arange(len(rows)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        found[f"{REPORTED} {name}"] = rows[starts.repeat_interleave(sizes) + within]
    return found
