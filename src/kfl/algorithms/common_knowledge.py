"""Common knowledge: class means of one fixed encoder, reported once; every device then classifies in closed form.

In KFL each device has its own network, so a class mean of one says little to another. Here all devices look at their
samples through the same fixed encoder (`kfl.encoders`). Means then add up: a device sends, once,

    counts n_kc,   class means μ_kc at 4 bits a number,   its covariance as 32 vectors of signs

and the server sums what arrives to class means M, a covariance Σ within classes, and a covariance B between devices
(`kfl.algorithms.gaussian`). From those every device makes its own classifier, without a gradient: it mixes in its own
covariance, shrinks its own means toward the common ones as far as devices agree, and weighs the result against a
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
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from kfl.algorithms.base import Cost, RobustRules, require
from kfl.algorithms.quantize import FULL_PRECISION_BITS
from kfl.algorithms.uploads import ArrayFormat, Upload, UploadFormat
from kfl.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from kfl.algorithms.aggregation import Sums
    from kfl.algorithms.base import Message
    from kfl.algorithms.gaussian import Common
    from kfl.algorithms.gaussian import Sums as GaussianSums
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
    tested_at_once: ClassVar[int] = 10_000  # they have no models, and what is common is prepared once for all

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
        from kfl.algorithms.many_reports import make_reports

        server = self.received({name: value.cpu() for name, value in message.items()}, engine)
        samples = engine.shared_samples(devices, "train")
        uploads = make_reports(self, devices, samples, server, key, engine.plan.workers)
        encoded = _encoded()
        return [{**state, **encoded} if state else encoded for state in states], uploads

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
        """Return what a report adds to each sum, over its weight."""
        from kfl.algorithms.many_reports import sum_reports

        found = sum_reports(self, [upload], server)
        counts = upload.arrays["counts"].cpu()
        present = {"counts": counts, "present": (counts > 0).any().long()}
        totals = found.values["totals"] / counts.double().clamp(min=1)[:, None]
        return {**present, **found.values, "totals": totals}

    def summed(self, uploads: Sequence[Upload], server: State) -> Sums | None:
        """Add up all reports, without the terms of any single one."""
        import torch

        from kfl.algorithms.many_reports import sum_reports

        found = sum_reports(self, uploads, server)
        return found if all(bool(torch.isfinite(value).all()) for value in found.values.values()) else None

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
        from kfl.algorithms.many_reports import kept, with_reports

        formats, said = self.upload_format(server), [one for one in uploads if bool((one.arrays["counts"] > 0).any())]
        first = {upload.device: upload for upload in reversed(said)}
        new = [upload for upload in said if first[upload.device] is upload]
        if not new:
            return server
        found, gone = dict(server), np.flatnonzero(np.isin(server[REPORTED].numpy(), list(first))).tolist()
        for place in gone:
            before = Upload(int(server[REPORTED][place]), kept(server, formats, place))
            for name, value in self._added_by(before, server).items():
                found[name] = found[name] - value
        found = with_reports(found, formats, new, gone)
        again = [upload for upload in said if first[upload.device] is not upload]
        return self.noted(found, again) if again else found

    def _added_by(self, upload: Upload, server: State) -> dict[str, Tensor]:
        """What a report has added to each of the server's sums."""
        found = self.summed([upload], server)
        assert found is not None  # it was added
        return {**found.values, "counts": found.weights["counts"]}

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
        from kfl.algorithms.many_classifiers import Fleet, Lens
        from kfl.engine.workers import spread

        if self.personal == "network":
            return [self._right(self.common(server), engine, *one) for one in zip(devices, states, strict=True)]
        train, test = (engine.shared_samples(devices, split) for split in ("train", "test"))
        fleet = Fleet(Lens.of(self.common(server)), train, test, self.personal == "experts")
        found = np.zeros(len(devices), dtype=np.int64)
        own = np.array([self.personal != "none" and bool(state.get("encoded", False)) for state in states], dtype=bool)
        if not own.all():
            found[~own] = fleet.common_right(np.flatnonzero(~own))
        if own.any():
            batches = list(fleet.batches(np.flatnonzero(own)))
            for batch, right in zip(batches, spread(fleet.own_right, batches, engine.plan.workers), strict=True):
                found[batch] = right
        return list(map(int, found))

    def _right(self, common: Common, engine: Engine, device: int, state: State) -> int:
        """Of one device whose classifier is trained."""
        from kfl.algorithms.kernel_expert import classify

        x, y = (value.cpu() for value in engine.samples(device, "test"))
        train_x, train_y = (value.cpu() for value in engine.samples(device, "train"))
        own = bool(state.get("encoded", False))
        said = classify(common, train_x.flatten(1), train_y, x.flatten(1), own=own, kernel=False, network=True)
        return int((said == y).sum())

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


def _sums(server: State) -> GaussianSums:
    from kfl.algorithms.gaussian import Sums

    pairs, freedom, first, second = server["numbers"]
    import torch

    names = ("counts", "totals", "outer", "noise", "squares", "within", "signs")
    return Sums(
        **{name: server[name] for name in names}, pairs=pairs, freedom=freedom, sketches=torch.stack([first, second])
    )


@lru_cache(maxsize=1)
def _encoded() -> State:
    """The state of a device that has encoded its samples: one for all, since states are never changed."""
    import torch

    return {"encoded": torch.tensor(True)}


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
