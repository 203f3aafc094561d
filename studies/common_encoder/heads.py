"""All methods in one condition with one seed: accuracy of every device, and bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kfl.algorithms import CommonKnowledge, Upload
from kfl.algorithms.gaussian import Common, personal
from kfl.algorithms.kernel_expert import KernelExpert, fit_kernel, weigh_experts
from kfl.algorithms.local_classifier import fit_linear
from kfl.algorithms.reports import dither_of, pack_means, unpack_means
from kfl.data import LocalData
from kfl.engine import RoundKey
from kfl.engine.autograd import AutogradEngine
from kfl.models import State, fleet_from_name
from studies.common_encoder.conditions import CONDITIONS, Device, Seen, as_dataset, deal
from studies.common_encoder.rivals import RIVALS, VALUE_BITS, Moments, Rival, added

Result = dict[str, object]
OURS = "common-knowledge"
CODED_BITS = 4


def play(name: str, seed: int, seen: Seen, methods: Sequence[str] = ()) -> list[Result]:
    """One line for each method: its accuracy on each device's classes, on all classes, and bits."""
    condition = CONDITIONS[name]
    devices = deal(condition, seed, seen)
    classes = seen.data.classes
    everything = None
    if not condition.by_person:
        rows = torch.arange(0, len(seen.data.test_y), 5)
        everything = torch.from_numpy(seen.data.test_x[rows.numpy()]), torch.from_numpy(seen.data.test_y[rows.numpy()])
    found: list[Result] = []

    def note(method: str, right: Sequence[float], bits: float = 0.0, all_classes: float | None = None) -> None:
        line: Result = {"condition": name, "seed": seed, "method": method, "bits": bits}
        line |= {"all": all_classes, "devices": [round(one, 4) for one in right]}
        found.append(line)

    kernels = [_kernel(one, None) for one in devices]
    wholes = kernels if devices[0].whole is None else [_kernel(one, one.whole) for one in devices]
    for kind in ("lda", "ridge"):
        note(f"own {kind}", [_own_linear(kind, one) for one in devices])
    note("own kernel", [_right(fitted[2], one) for fitted, one in zip(kernels, devices, strict=True)])
    if wholes is not kernels:
        note("own kernel, all numbers", [_right(f[2], one) for f, one in zip(wholes, devices, strict=True)])

    for label, algorithm in (
        (OURS, CommonKnowledge()),
        (f"{OURS}, 32 bits, full covariance", CommonKnowledge(covariance="full", mean_bits=32)),
    ):
        reports = report(algorithm, devices, seen, seed)
        common, bits = reports.common(), reports.bits
        over_all = None if everything is None else _accuracy(-common.distances(everything[0]), everything[1], None)
        note(f"{label}: common head", [_common(common, one) for one in devices], bits, over_all)
        closed, experts, with_whole = [], [], []
        for one, (expert, place, _), (whole, _, _) in zip(devices, kernels, wholes, strict=True):
            head = personal(common, one.x, one.y)
            scores = head.scores(one.tests)
            closed.append(_right(scores, one))
            experts.append(_right(_weighed(head.left_out, scores, expert, place, one.tests), one))
            if whole is not expert and one.whole is not None:
                with_whole.append(_right(_weighed(head.left_out, scores, whole, place, one.whole[1]), one))
        note(f"{label}: closed form", closed, bits)
        note(label, experts, bits)
        if with_whole:
            note(f"{label}, kernel of all numbers", with_whole, bits)
        found[-1]["difference"] = common.difference
        if label == OURS:
            budget = bits
    for label, rival in RIVALS.items():
        held = len(devices[0].y.unique())
        d = devices[0].x.shape[1]
        note(label, *_rival(rival, devices, classes, d, everything, seen.data.whitened))
        if not rival.moments and seen.data.whitened:  # means alone go through our quantizer
            note(f"{label}, 4 bits", *_rival(rival, devices, classes, d, everything, True, coded=True))
        fits = rival.most_numbers(int(budget), d, held)
        if 0 < fits < d and not condition.by_person:
            note(f"{label}, in our bits", *_rival(rival, devices, classes, fits, everything, seen.data.whitened))
    return found


@dataclass(frozen=True, eq=False)
class Reports:
    """What all devices of a fleet sent."""

    algorithm: CommonKnowledge
    engine: AutogradEngine
    key: RoundKey
    start: State
    uploads: Sequence[Upload]
    bits: float
    """Of one report on average."""

    def server(self, devices: Sequence[int] | None = None) -> State:
        """The server's state when some devices have reported; all, if none are named."""
        some = self.uploads if devices is None else [self.uploads[k] for k in devices]
        found, rejected = self.algorithm.aggregate(self.start, some, engine=self.engine, key=self.key)
        if rejected:
            raise ValueError(f"{len(rejected)} reports were refused")
        return found

    def common(self, devices: Sequence[int] | None = None) -> Common:
        """What devices are then told."""
        return self.algorithm.common(dict(self.algorithm.broadcast(self.server(devices))))


def report(algorithm: CommonKnowledge, devices: Sequence[Device], seen: Seen, seed: int) -> Reports:
    """Let every device report."""
    data, split = as_dataset(devices, seen)
    models = fleet_from_name("linear", (1,), len(devices), data.input_shape, data.classes, 0)
    engine = AutogradEngine(LocalData(data, split), models)
    key, everybody = RoundKey(seed, 0), range(len(devices))
    start = algorithm.server_init(engine, seed)
    states = [algorithm.device_init(engine, k, seed) for k in everybody]
    _, uploads = algorithm.local_update(algorithm.broadcast(start), everybody, states, engine, key)
    costs = algorithm.costs([engine.profile(k) for k in everybody], start, real_work=True)
    return Reports(algorithm, engine, key, start, uploads, sum(cost.bits_up for cost in costs) / len(costs))


def _kernel(device: Device, whole: tuple[Tensor, Tensor] | None) -> tuple[KernelExpert, Tensor, Tensor]:
    """A device's kernel regression, the places of its samples' classes, and its scores of the tests."""
    x, tests = (device.x, device.tests) if whole is None else (whole[0].float(), whole[1].float())
    classes, place = device.y.unique(return_inverse=True)
    expert = fit_kernel(x, place, len(classes))
    return expert, place, expert.scores(tests)


def _weighed(left_out: Tensor, scores: Tensor, expert: KernelExpert, place: Tensor, tests: Tensor) -> Tensor:
    a, b = weigh_experts(left_out, expert.left_out, place)
    return a * scores + b * expert.scores(tests.float()) if b else a * scores


def _own_linear(kind: str, device: Device) -> float:
    classes, place = device.y.unique(return_inverse=True)
    weight, bias = fit_linear(kind, device.x, place, len(classes))  # type: ignore[arg-type]
    return _right(device.tests.double() @ weight.T + bias, device)


def _common(common: Common, device: Device) -> float:
    return _accuracy(-common.distances(device.tests), device.test_y, device.y.unique())


def _rival(
    rival: Rival,
    devices: Sequence[Device],
    classes: int,
    d: int,
    everything: tuple[Tensor, Tensor] | None,
    whitened: bool,
    *,
    coded: bool = False,
) -> tuple[list[float], float, float | None]:
    """Accuracies, bits and accuracy over all classes; numbers without a common scale are standardized first.

    With `coded`, class means are sent as common knowledge sends them: 4 bits a number and a range for each.
    """
    center, spread = torch.zeros(d).double(), torch.ones(d).double()
    if not whitened:  # from sums that are not charged
        pooled = torch.cat([one.x for one in devices]).double()
        center, spread = pooled.mean(0), pooled.std(0).clamp(min=1e-9)

    def seen(x: Tensor) -> Tensor:
        return (x[:, :d].double() - center) / spread

    single = [Moments.of(seen(one.x), one.y, classes) for one in devices]
    if coded:
        single = [_coded(one, number) for number, one in enumerate(single)]
    known = added(single)
    head = rival.head(known)
    right, bits = [], 0.0
    for device, mine in zip(devices, single, strict=True):
        own = head if rival.personal is None else rival.personal(known, head, seen(device.x), device.y)
        right.append(_accuracy(own.scores(seen(device.tests)), device.test_y, device.y.unique()))
        held = int((mine.counts > 0).sum())
        bits += rival.bits(d, held) - (held * ((VALUE_BITS - CODED_BITS) * d - VALUE_BITS) if coded else 0)
    over_all = None if everything is None else _accuracy(head.scores(seen(everything[0])), everything[1], None)
    return right, bits / len(devices), over_all


def _coded(moments: Moments, device: int) -> Moments:
    """The same with class means as they arrive in 4 bits a number."""
    held, d = moments.counts > 0, moments.sums.shape[1]
    dither = dither_of(len(held), d, 0, [device])[0]
    codes, ranges = pack_means(moments.means, held, CODED_BITS, 0, dither)
    means = torch.zeros_like(moments.means)
    means[held] = unpack_means(codes, ranges, d, CODED_BITS, 0, dither[held])[0]
    return replace(moments, sums=means * moments.counts[:, None])


def _right(scores: Tensor, device: Device) -> float:
    """Accuracy of scores of the classes that a device holds."""
    return float((device.y.unique()[scores.argmax(1)] == device.test_y).double().mean())


def _accuracy(scores: Tensor, y: Tensor, held: Tensor | None) -> float:
    """Accuracy of scores of all classes, among those that are held."""
    found = scores.argmax(1) if held is None else held[scores[:, held].argmax(1)]
    return float((found == y).double().mean())
