"""Common knowledge: class means of one fixed encoder, reported once; every device then classifies in closed form.

In KFL each device has its own network, so a class mean of one says little to another. Here all devices look at their
samples through the same encoder that nobody trains (`kfl.encoders`). Means then add up: a device sends, once,

    counts n_kc,   class means μ_kc at 4 bits a number,   its covariance as 32 vectors of signs

and the server sums what arrives to class means M, a covariance Σ within classes, and a covariance B between devices
(`kfl.algorithms.gaussian`). From those every device makes its own classifier, without a gradient: it mixes in its own
covariance, shrinks its own means towards the common ones as far as devices agree, and weighs the result against a
kernel regression on its own samples alone by what each says of samples left out. With plenty of data it so keeps its
own, with little it gets the common one.

Ancestors: class means of a frozen encoder (FedNCM, Legate et al. 2023); a covariance from the scatter of means (FedCOF,
Goswami et al. 2025); sums of moments in one round (Fed3R, Fanì et al. 2024; AFL, He et al. 2025; GH-OFL 2026); between
devices and within, PLDA (Prince and Elder 2007). New are an encoder that takes no data and no download, signs instead
of moments, and the split that tells differences between devices from noise.

**Again.** The server keeps every report, and one that comes again replaces the one before. A new device, a new class or
one that left changes nothing else. Once a device has reported it is worth nothing to the scheduler until its data
change.

**Sums.** Everything the server uses is a sum over devices, so uploads may be added unseen; it then cannot tell reports
apart, and a second one of the same device would count twice.

**Against poison** the rules of `kfl.algorithms.aggregation` combine the reports of a round class by class.

**Privacy.** With `clip_norm` S and `noise_multiplier` z every sample's numbers are scaled down to norm S and class sums
get Gaussian noise of standard deviation 2 S z, as in KFL. A device reports once and the encoder is fixed: that is all
that is revealed, and ε for one report is the price for good. The covariance is then not sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from kfl.algorithms.base import Cost, RobustRules, require
from kfl.algorithms.quantize import FULL_PRECISION_BITS
from kfl.algorithms.uploads import ArrayFormat, Upload, UploadFormat
from kfl.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.algorithms.gaussian import Common, Sums
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import FleetModels, State

Covariance = Literal["signs", "full", "none"]
"""What a device says of how its samples vary within classes."""
PersonalHead = Literal["experts", "closed-form", "network", "none"]
"""What a device makes of the common knowledge."""
Worth = Literal["missing", "samples"]
"""What a scheduler weighs a device by."""

COUNT_BITS = 16
"""Of one count on the air."""
REPORTED = "reported"
"""Name under which the server keeps the devices that have reported, and before the names of their reports."""
NUMBERS = ("pairs", "freedom", "first", "second")
"""Single numbers that are summed, in this order: pairs of device and class, n − m, and sketches of each half."""


@dataclass(frozen=True)
class CommonKnowledge(RobustRules):
    """Class means and a covariance in the space of one fixed encoder, reported once; classifiers in closed form.

    >>> import kfl
    >>> algorithm = kfl.CommonKnowledge()
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=2, algorithm=algorithm, encoder="raw"))
    >>> history.summary["algorithm"]
    'common-knowledge'
    """

    name: ClassVar[str] = "common-knowledge"
    trains: ClassVar[bool] = False
    needs_encoder: ClassVar[bool] = True
    predicts_alone: ClassVar[bool] = False
    fixed_features: ClassVar[bool] = True

    mean_bits: int = 4
    """Bits of one number of a class mean, 1 to 16, or 32 for the number as it is."""
    covariance: Covariance = "signs"
    """How devices tell how samples vary within classes: random signs, the full matrix, or not at all."""
    sketches: int = 32
    """Vectors of signs that a device sends, at most half as many as it has samples."""
    personal: PersonalHead = "experts"
    """What a device predicts with: its closed form weighed with its own kernel regression, that form, that form and a
    network on what it leaves unexplained, or the common classifier."""
    worth_of: Worth = "missing"
    """What a scheduler weighs a device by: the samples of each class that the server still lacks, or all it has."""
    clip_norm: float | None = None
    """Largest norm of one sample's numbers in the reported means; none for no limit. Needed for noise."""
    noise_multiplier: float = 0.0
    """Gaussian noise on class sums, relative to what one sample can change; 0 for none, 1 is strong."""

    def twin(self) -> str:
        """A classifier of the device's own samples."""
        return "local-classifier"

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        inf, bits, clip, noise = float("inf"), self.mean_bits, self.clip_norm, self.noise_multiplier
        require(1 <= bits <= 16 or bits == FULL_PRECISION_BITS, "mean_bits", bits, "from 1 to 16, or 32")
        for name, kinds in (("covariance", Covariance), ("personal", PersonalHead), ("worth_of", Worth)):
            require(getattr(self, name) in get_args(kinds), name, getattr(self, name), f"one of {_words(kinds)}")
        require(1 <= self.sketches <= 1024, "sketches", self.sketches, "from 1 to 1024")
        require(clip is None or 0 < clip < inf, "clip_norm", clip, "a number above 0, or none")
        require(0 <= noise < inf, "noise_multiplier", noise, "0 or more")
        require(noise == 0 or clip is not None, "clip_norm", clip, "set when noise_multiplier is above 0")
        quiet = noise == 0 or self.covariance == "none"
        require(quiet, "covariance", self.covariance, "none when noise_multiplier is above 0: it has no noise")

    def device_models(self, models: FleetModels) -> FleetModels:
        """A linear layer on the encoder's numbers for every device: nothing else is trained or sent."""
        from kfl.models import fleet_from_name

        profile = models.profiles[0]
        devices = len(models.architecture)
        return fleet_from_name("linear", (1,), devices, models.input_shape, profile.classes, 0)

    # ── What the server holds ──

    def server_init(self, engine: Engine, seed: int) -> State:
        """No sample of any class."""
        import torch

        classes, d, kind = engine.classes, engine.inputs, torch.float64
        if self.noise_multiplier and not engine.whitened:
            right = "0 with an encoder whose numbers have no common scale: its report would need one, without noise"
            raise ConfigError("algorithm.noise_multiplier", self.noise_multiplier, right)
        return {
            "seed": torch.tensor(seed),
            "whitened": torch.tensor(engine.whitened),
            "counts": torch.zeros(classes, dtype=kind),
            "totals": torch.zeros(classes, d, dtype=kind),
            "squares": torch.zeros(classes, dtype=kind),
            "outer": torch.zeros(d, d, dtype=kind),
            "noise": torch.zeros(d, dtype=kind),
            "within": torch.zeros(d, dtype=kind),
            "signs": torch.zeros(2, d, d, dtype=kind),
            "numbers": torch.zeros(len(NUMBERS), dtype=kind),
            REPORTED: torch.zeros(0, dtype=torch.int64),
        }

    def common(self, server: State) -> Common:
        """Return what the server knows: class means, Σ and B. A device reads them from what it was sent last."""
        from kfl.algorithms import reports
        from kfl.algorithms.gaussian import Common, estimate

        if "outer" in server:
            return estimate(_sums(server), full=self.covariance == "full")
        found = {name: server[name].double().cpu() for name in ("means", "counts", "scale", "within", "between")}
        d = len(found["scale"])
        within, between = (
            reports.square(found[name], d) if len(found[name]) else None for name in ("within", "between")
        )
        assert within is not None  # always sent
        zero = within.new_zeros(d, d)
        means, counts, scale = found["means"], found["counts"], found["scale"]
        return Common(means, counts, scale, within, zero if between is None else between, float(server["weight"]))

    def broadcast(self, server: State) -> Message:
        """Class means and counts, the scale, Σ, B and what Σ is worth; the seed that codes follow from."""
        import torch

        from kfl.algorithms.reports import triangle

        common = self.common(server)
        found = {
            "means": common.means,
            "counts": common.counts,
            "scale": common.scale,
            "within": triangle(common.within),
            "between": triangle(common.between) if bool(common.between.any()) else torch.zeros(0),
            "weight": torch.tensor(common.weight),
        }
        return {"seed": server["seed"], "whitened": server["whitened"], **{n: v.float() for n, v in found.items()}}

    def received(self, message: Message, engine: Engine) -> State:
        """The message itself: a device needs the shapes of sums to report."""
        return {**message, "totals": message["means"]}

    # ── What a device sends ──

    @property
    def upload_bits(self) -> int:
        """Of one number of a class mean."""
        return self.mean_bits

    def upload_format(self, server: State) -> UploadFormat:
        """Counts, codes of class means and their ranges, the spread, and signs or the scatter."""
        classes, d = server["totals"].shape
        found = {"counts": ArrayFormat((classes,), "int64", "counts", bits=COUNT_BITS)}
        if self.mean_bits == FULL_PRECISION_BITS:
            found["means"] = ArrayFormat((classes, d), weight="counts", held_rows=True)
        else:
            found["means"] = ArrayFormat((classes, _bytes(d, self.mean_bits)), "uint8", weight="counts", held_rows=True)
            found["ranges"] = ArrayFormat((classes,), weight="counts", held_rows=True)
        if self.noise_multiplier:
            return found
        if not bool(server["whitened"]):
            found["center"] = ArrayFormat((_bytes(d, _center_bits()),), "uint8")
            found["center_range"] = ArrayFormat((2,))
        found["spread"] = ArrayFormat((_bytes(d, _spread_bits()),), "uint8")
        found["spread_range"] = ArrayFormat((2,))
        if self.covariance == "signs":
            found["drawn"] = ArrayFormat((self.sketches,), "bool")
            found["signs"] = ArrayFormat((self.sketches, _bytes(d, 1)), "uint8", weight="drawn", held_rows=True)
        elif self.covariance == "full":
            found["scatter"] = ArrayFormat((d * (d + 1) // 2,))
        return found

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """Encode the local samples once, and report them."""
        import torch

        server = self.received({name: value.cpu() for name, value in message.items()}, engine)
        uploads = [
            Upload(device, self._report(device, *engine.samples(device, "train"), server, key)) for device in devices
        ]
        return [{**state, "encoded": torch.tensor(True)} for state in states], uploads

    def _report(self, device: int, x: Tensor, y: Tensor, server: State, key: RoundKey) -> dict[str, Tensor]:
        """One device's report."""
        import torch

        from kfl.algorithms import reports

        classes, seed = len(server["totals"]), int(server["seed"])
        x, y = x.flatten(1).double().cpu(), y.cpu()
        if self.clip_norm is not None:
            x = x * (self.clip_norm / x.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1)
        counts, means, away = reports.moments(x, y, classes)
        arrays: dict[str, Tensor] = {"counts": counts.long()}
        center, spread = torch.zeros(x.shape[1], dtype=torch.float64), torch.ones(x.shape[1], dtype=torch.float64)
        if self.noise_multiplier and self.clip_norm is not None:
            draw = torch.Generator().manual_seed(key.secret_seed("privacy noise", device))
            noise = torch.randn(means.shape, generator=draw, dtype=torch.float64)
            means = means + 2 * self.clip_norm * self.noise_multiplier * noise / counts.clamp(min=1)[:, None]
        else:
            own_center, own_spread = reports.own_statistics(means, counts, away)
            if not bool(server["whitened"]):
                arrays["center"], arrays["center_range"] = reports.pack_range(own_center, reports.CENTER_BITS)
                center = _unpacked(arrays, "center", x.shape[1], reports.CENTER_BITS)
            arrays["spread"], arrays["spread_range"] = reports.pack_range(own_spread.log(), reports.SPREAD_BITS)
            spread = _unpacked(arrays, "spread", x.shape[1], reports.SPREAD_BITS).exp()
        held = counts > 0
        if self.mean_bits == FULL_PRECISION_BITS:
            arrays["means"] = (means * held[:, None]).float()
        else:
            relative = (means - center) / spread
            arrays["means"], arrays["ranges"] = reports.pack_means(relative, held, self.mean_bits, seed, device)
        if "spread" not in arrays:
            return arrays
        if self.covariance == "signs":
            number = min(self.sketches, len(x) // 2)
            signs = torch.zeros(self.sketches, x.shape[1], dtype=torch.int64)
            signs[:number] = (reports.sketch_signs(away, number, seed, device) > 0).long()
            arrays["signs"], arrays["drawn"] = reports.pack_codes(signs, 1), torch.arange(self.sketches) < number
        elif self.covariance == "full":
            arrays["scatter"] = reports.triangle(away.T @ away).float()
        return arrays

    # ── What the server makes of it ──

    def averaged_format(self, server: State) -> UploadFormat:
        """The terms of one device that are added up; class means are weighed by their counts."""
        classes, d = server["totals"].shape
        found = {"counts": ArrayFormat((classes,), "int64", "counts")}
        found["totals"] = ArrayFormat((classes, d), "float64", weight="counts")
        shapes = {"squares": (classes,), "outer": (d, d), "noise": (d,), "within": (d,), "signs": (2, d, d)}
        found["present"] = ArrayFormat((), "int64", "samples")  # 1, or 0 in a report of nothing
        for name, shape in {**shapes, "numbers": (len(NUMBERS),)}.items():
            found[name] = ArrayFormat(shape, "float64", weight="present")
        return found

    def decoded(self, upload: Upload, server: State) -> Mapping[str, Tensor]:
        """Return what a report adds to each sum."""
        import torch

        from kfl.algorithms import reports

        arrays = {name: value.cpu() for name, value in upload.arrays.items()}
        counts = arrays["counts"].double()
        classes, d = server["totals"].shape
        seed, held = int(server["seed"]), counts > 0
        center, spread = torch.zeros(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64)
        if "center" in arrays:
            center = _unpacked(arrays, "center", d, reports.CENTER_BITS)
        if "spread" in arrays:
            spread = _unpacked(arrays, "spread", d, reports.SPREAD_BITS).exp()
        if self.mean_bits == FULL_PRECISION_BITS:
            means, variance = arrays["means"].double(), torch.zeros(classes, dtype=torch.float64)
        else:
            sent = (arrays["means"], arrays["ranges"], d, self.mean_bits, seed, upload.device)
            relative, variance = reports.unpack_means(*sent)
            means = relative * spread + center
        means = torch.where(held[:, None], means, 0.0)
        noise = (counts * variance * held).sum() * spread.square()
        if self.noise_multiplier and self.clip_norm is not None:
            added = (2 * self.clip_norm * self.noise_multiplier) ** 2 / counts.clamp(min=1)
            noise = noise + torch.where(held, added, 0.0).sum()
        signs, drawn = torch.zeros(2, d, d, dtype=torch.float64), [0.0, 0.0]
        if "signs" in arrays:
            rows = reports.unpack_codes(arrays["signs"], 1, d)[arrays["drawn"]].double() * 2 - 1
            for half in (0, 1):
                signs[half], drawn[half] = rows[half::2].T @ rows[half::2], float(len(rows[half::2]))
        elif "scatter" in arrays:
            signs[:] = reports.square(arrays["scatter"].double(), d)
        freedom = float(counts.sum() - held.sum())
        return {
            "counts": arrays["counts"],
            "present": held.any().long(),
            "totals": means,
            "squares": counts.square(),
            "outer": (means * counts[:, None]).T @ means,
            "noise": noise,
            "within": max(freedom, 0.0) * spread.square(),
            "signs": signs,
            "numbers": torch.tensor([float(held.sum()), freedom, *drawn], dtype=torch.float64),
        }

    def updated(self, server: State, mean: Mapping[str, Tensor], weight: Mapping[str, Tensor]) -> State:
        """Add what arrived to the sums."""
        counts, devices = weight["counts"].double().cpu(), float(weight["present"])
        found = {**server, "counts": server["counts"] + counts}
        for name, value in mean.items():
            factor = counts[:, None] if name == "totals" else devices
            found[name] = server[name] + factor * value.cpu()
        return found

    def noted(self, server: State, uploads: Sequence[Upload]) -> State:
        """Keep single reports, and take out those that they replace."""
        import torch

        found = dict(server)
        for upload in uploads:
            if not bool((upload.arrays["counts"] > 0).any()):
                continue
            place = (found[REPORTED] == upload.device).nonzero().flatten()
            arrays = {f"{REPORTED} {name}": value.cpu() for name, value in upload.arrays.items()}
            if not len(place):
                found[REPORTED] = torch.cat([found[REPORTED], torch.tensor([upload.device])])
                for name, value in arrays.items():
                    found[name] = torch.cat([found[name], value[None]]) if name in found else value[None]
                continue
            before = {name: found[f"{REPORTED} {name}"][int(place)] for name in upload.arrays}
            for name, value in self.decoded(Upload(upload.device, before), server).items():
                factor = before["counts"].double()[:, None] if name == "totals" else 1.0
                if name in found:
                    found[name] = found[name] - factor * value
            for name, value in arrays.items():
                found[name] = found[name].index_copy(0, place, value[None])
        order = found[REPORTED].argsort()  # whoever came first
        return {name: value[order] if name.startswith(REPORTED) else value for name, value in found.items()}

    def worth(
        self, server: State, samples: NDArray[np.float64], counts: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return what a report would add; 0 for a device whose report has arrived."""
        if self.worth_of == "missing" and counts is not None:
            known = server["counts"].numpy()
            found = np.log((known + counts + 1) / (known + 1)).sum(axis=1)
        else:
            found = samples.copy()
        there = server[REPORTED].numpy()
        found[there[there < len(found)]] = 0.0
        result: NDArray[np.float64] = found
        return result

    def remark(self, server: State) -> str:
        """Say whether devices differ in more than the classes they hold."""
        from kfl.algorithms.gaussian import DIFFER

        if self.covariance == "none" or len(server[REPORTED]) < 2:
            return ""
        found = self.common(server).difference
        if found <= DIFFER:
            return "Devices do not differ beyond the classes that they hold."
        return (
            f"Devices differ: the means of a class vary between them {found:.2g} times as much as samples of a class "
            "do, so each trusts its own data more."
        )

    # ── What a device predicts ──

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """Nothing, until the device has encoded its samples."""
        return {}

    def correct(self, server: State, devices: Sequence[int], states: Sequence[State], engine: Engine) -> list[int]:
        """Classify each device's test samples by its own classifier; before its first round, by the common one."""
        from kfl.algorithms.kernel_expert import classify

        common = self.common(server)
        found = []
        for device, state in zip(devices, states, strict=True):
            x, y = (value.cpu() for value in engine.samples(device, "test"))
            train_x, train_y = (value.cpu() for value in engine.samples(device, "train"))
            own = bool(state.get("encoded", False)) and self.personal != "none"
            parts = {"kernel": self.personal == "experts", "network": self.personal == "network"}
            said = classify(common, train_x.flatten(1), train_y, x.flatten(1), own=own, **parts)
            found.append(int((said == y).sum()))
        return found

    def why_not_exported(self) -> str | None:
        """A device's classifier is made of its samples each time, which a run folder does not hold."""
        return "devices of 'common-knowledge' classify with their own samples"

    def predictor(self, server: State, device: State) -> State:
        """The common classifier as a linear layer over all classes."""
        import torch

        common = self.common(server)
        inverse = torch.linalg.inv(common.within + common.between)
        scaled = common.means / common.scale
        weight = scaled @ inverse
        bias = torch.where(common.counts > 0, -0.5 * (weight * scaled).sum(1), float("-1e30"))
        return {"head.weight": (weight / common.scale).float(), "head.bias": bias.float()}

    def costs(self, profiles: Sequence[DeviceProfile], server: State, *, real_work: bool) -> list[Cost]:
        """As for all, but for devices with fewer samples than take all sketches: these send fewer."""
        row = 8 * _bytes(math.prod(profiles[0].model.input_shape), 1) if profiles and self.covariance == "signs" else 0
        found = super().costs(profiles, server, real_work=real_work)
        fewer = [max(self.sketches - profile.samples // 2, 0) for profile in profiles]
        return [replace(cost, bits_up=cost.bits_up - row * number) for cost, number in zip(found, fewer, strict=True)]

    def printed_flops(self, profile: DeviceProfile) -> float:
        """Nothing is trained: what is computed is charged either way."""
        return self.real_flops(profile)

    def classifier_flops(self, profile: DeviceProfile) -> float:
        """Of the closed form, and of the kernel regression or the network."""
        from kfl.algorithms.gaussian import personal_flops
        from kfl.algorithms.kernel_expert import kernel_flops
        from kfl.algorithms.residual_network import residual_flops

        model = profile.model
        sizes = profile.samples, math.prod(model.input_shape), profile.held_classes or model.classes
        further = {"experts": kernel_flops, "network": residual_flops}.get(self.personal)
        closed = 0.0 if self.personal == "none" else personal_flops(*sizes)
        return closed + (0.0 if further is None else further(*sizes))

    def real_flops(self, profile: DeviceProfile) -> float:
        """Products for the means, their rotation, and signs or the scatter. The encoder is charged apart."""
        n, d, classes = profile.samples, math.prod(profile.model.input_shape), profile.model.classes
        passes = {"signs": min(self.sketches, n // 2), "full": d, "none": 0}[self.covariance]
        turned = d if self.mean_bits < FULL_PRECISION_BITS else 0
        return float(n * d * (classes + passes) + classes * d * turned)


def _sums(server: State) -> Sums:
    from kfl.algorithms.gaussian import Sums

    pairs, freedom, first, second = server["numbers"]
    import torch

    names = ("counts", "totals", "outer", "noise", "squares", "within", "signs")
    return Sums(
        **{name: server[name] for name in names}, pairs=pairs, freedom=freedom, sketches=torch.stack([first, second])
    )


def _unpacked(arrays: Mapping[str, Tensor], name: str, d: int, bits: int) -> Tensor:
    from kfl.algorithms.reports import unpack_range

    return unpack_range(arrays[name], arrays[f"{name}_range"], d, bits)


def _bytes(numbers: int, bits: int) -> int:
    return -(-numbers * bits // 8)


def _center_bits() -> int:
    from kfl.algorithms.reports import CENTER_BITS

    return CENTER_BITS


def _spread_bits() -> int:
    from kfl.algorithms.reports import SPREAD_BITS

    return SPREAD_BITS


def _words(kinds: object) -> str:
    return ", ".join(get_args(kinds))
