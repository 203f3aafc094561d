"""Knowledge-aided federated learning: Algorithm 1 and equations (1) to (9) of the paper.

Chen, Yi, Liu, Nallanathan: Knowledge-aided Federated Learning for Energy-limited Wireless Networks.

A device trains its own model on F_k + λ L_k, where L_k pulls the feature of each sample towards the global
knowledge Ω_c of its class, then uploads the mean feature of each of its classes. The server averages those means
weighted by how many samples stand behind each. Models never leave their device and may all be different.

Where the paper is silent: a class nobody has reported yet has no knowledge loss; a class nobody reports this
round keeps its last knowledge (`memory`); a class a device does not hold is uploaded with count 0 and ignored.

The paper charges q bits for each of the C · p numbers of Ω, up and down, though a device has means of the classes
that it holds and no others. `charge = "held"` charges what is sent: those means and one bit per class that says which
they are; down go all classes that are known, since a broadcast is one message for all.

Three options go beyond the paper's experiments. `bits_per_value`, the paper's q, is not only charged but happens:
knowledge is quantised on its way up and down (`kfl.algorithms.quantise`), and devices train on what arrives.
`clip_norm` and `noise_multiplier` make uploads differentially private (`kfl.algorithms.privacy`), noise first,
then quantisation. `aggregation` replaces the mean of equation (9) by a rule that a minority of poisoned reports
cannot move far (`kfl.algorithms.robust`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from kfl.algorithms.averaging import (
    KnowledgeSums,
    average_knowledge,
    empty_knowledge,
    knowledge_format,
    robust_knowledge,
)
from kfl.algorithms.base import BITS_PER_VALUE, Algorithm, PlotStyle, feature_flops, require, training_flops
from kfl.algorithms.privacy import add_noise
from kfl.algorithms.quantise import FULL_PRECISION_BITS, message_bits, quantise_rows
from kfl.algorithms.robust import Aggregation, check_rule
from kfl.algorithms.sums import Summation
from kfl.algorithms.uploads import Rejection, Upload, UploadFormat

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State

Charge = Literal["printed", "held"]
"""Whose bits are charged: the paper's C · p numbers, or the means of the classes that a device holds."""


@dataclass(frozen=True)
class Kfl(Algorithm):
    """Knowledge-aided federated learning: devices share the mean feature of each class, never weights.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Kfl(bits_per_value=8)))
    >>> history.summary["algorithm"]
    'kfl'
    """

    name: ClassVar[str] = "kfl"
    style: ClassVar[PlotStyle | None] = PlotStyle("#0b3d91", width=2.4)
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("knowledge_weight", (0.01, 1 / 32, 0.1))

    knowledge_weight: float = 1 / 32
    """Weight λ of the knowledge loss ½‖h(x) − Ω_c‖². From 0.01 to 0.1 all work; 10 destroys learning."""
    memory: bool = True
    """Keep the last knowledge of a class that nobody reports in a round."""
    bits_per_value: int = BITS_PER_VALUE
    """Bits of one number of knowledge on the air, the paper's q; below 32 the values really are quantised."""
    clip_norm: float | None = None
    """Largest norm of one sample's feature in the uploaded means; none for no limit. Needed for noise."""
    noise_multiplier: float = 0.0
    """Gaussian noise on uploads, relative to what one sample can change; 0 for none, 1 is strong."""
    noise_counts: bool = False
    """Add noise to the counts per class too, which otherwise tell what classes a device holds."""
    aggregation: Aggregation = "mean"
    """How the server combines reports: the paper's mean, or against poisoned ones clip, median or trimmed."""
    trim: float = 0.25
    """Share of the reports of a class that trimmed leaves out at either end, coordinate by coordinate."""
    charge: Charge = "printed"
    """Bits of an upload: a value for every class and feature, as the paper prints, or only for the classes held."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        inf, weight, clip, noise = float("inf"), self.knowledge_weight, self.clip_norm, self.noise_multiplier
        require(0 <= weight < inf, "knowledge_weight", weight, "0 or more")
        require(1 <= self.bits_per_value <= 32, "bits_per_value", self.bits_per_value, "from 1 to 32")
        require(clip is None or 0 < clip < inf, "clip_norm", clip, "a number above 0, or none")
        require(0 <= noise < inf, "noise_multiplier", noise, "0 or more")
        require(noise == 0 or clip is not None, "clip_norm", clip, "set when noise_multiplier is above 0")
        check_rule(self.aggregation, self.trim)
        charges = get_args(Charge)
        require(self.charge in charges, "charge", self.charge, f"one of {', '.join(charges)}")
        require(not self.noise_counts or noise > 0, "noise_counts", True, "off when noise_multiplier is 0")

    def server_init(self, engine: Engine, seed: int) -> State:
        """No knowledge of any class."""
        return empty_knowledge(engine.classes, engine.features)

    def broadcast(self, server: State) -> Message:
        """The global knowledge Ω, and which classes it covers. The server keeps the exact values."""
        knowledge = quantise_rows(server["knowledge"], server["known"], self.bits_per_value)
        return {"knowledge": knowledge, "known": server["known"]}

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on F + λL, equations (7) and (8), then the mean feature of each class, equation (4)."""
        from kfl.engine import FeatureTargets, Supervised

        pull = FeatureTargets(self.knowledge_weight, message["knowledge"], message["known"])
        trained = engine.train(devices, states, Supervised(pull), self.sgd(), key)
        # To the server's CPU, all at once: every copy from a GPU waits for all the work queued before it.
        means, counts = (values.cpu() for values in engine.class_means(devices, trained, self.clip_norm))
        uploads = [
            self._upload(device, mean, count, key) for device, mean, count in zip(devices, means, counts, strict=True)
        ]
        return trained, uploads

    def _upload(self, device: int, means: Tensor, counts: Tensor, key: RoundKey) -> Upload:
        """One device's knowledge as it arrives: with noise, then quantised, where asked for."""
        import torch

        if self.noise_multiplier == 0 and self.bits_per_value == FULL_PRECISION_BITS:
            return Upload(device, {"means": means, "counts": counts})
        if self.noise_multiplier > 0 and self.clip_norm is not None:
            draw = torch.Generator().manual_seed(key.secret_seed("privacy noise", device))
            means, counts = add_noise(
                means, counts, self.clip_norm, self.noise_multiplier, draw, noise_counts=self.noise_counts
            )
        draw = torch.Generator().manual_seed(key.torch_seed("quantisation", device))
        means = quantise_rows(means, counts > 0, self.bits_per_value, draw)
        return Upload(device, {"means": means, "counts": counts})

    def upload_format(self, server: State) -> UploadFormat:
        """The mean feature of each class, and how many samples stand behind it."""
        return knowledge_format(
            server,
            2 * self.noise_multiplier if self.noise_counts else 0.0,
            bits=None if self.bits_per_value == FULL_PRECISION_BITS else self.bits_per_value,
            held=self._only_held,
        )

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """Equation (9): Ω_c = Σ_k D_{k,c} Ω_{k,c} / Σ_k D_{k,c} over the devices that reported, or a robust rule."""
        if self.aggregation != "mean":
            return robust_knowledge(server, uploads, self.aggregation, trim=self.trim, memory=self.memory)
        return average_knowledge(server, uploads, memory=self.memory)

    def summation(self) -> Summation | None:
        """The two sums of equation (9); none with a robust rule, which compares reports."""
        return KnowledgeSums(self.memory) if self.aggregation == "mean" else None

    def class_vectors(self, server: State) -> tuple[Tensor, Tensor] | None:
        """The knowledge Ω."""
        return server["knowledge"], server["known"]

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps, and the pass that reads the features for the knowledge."""
        return training_flops(self.local_steps, profile) + feature_flops(profile)

    def bits(self, profile: DeviceProfile) -> tuple[float, float]:
        """Knowledge is p numbers for each class, up and down.

        As in the paper, counts are not charged: they are sent once and never change. Noisy ones do.
        """
        model = profile.model
        bits = message_bits(model.features * model.classes, self.bits_per_value)
        counts = model.classes * BITS_PER_VALUE if self.noise_counts else 0
        if self.charge == "printed":
            return bits + counts, bits
        down = bits + model.classes
        if not self._only_held:
            return bits + counts, down
        held = model.classes if profile.held_classes is None else profile.held_classes
        return message_bits(model.features * held, self.bits_per_value) + model.classes, down

    @property
    def _only_held(self) -> bool:
        """Whether only the means of held classes are sent. Noisy counts hide which these are by reporting all."""
        return self.charge == "held" and not self.noise_counts
