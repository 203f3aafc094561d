"""Knowledge-aided federated learning: Algorithm 1 and equations (1) to (9) of the paper.

Chen, Yi, Liu, Nallanathan: Knowledge-aided Federated Learning for Energy-limited Wireless Networks.

A device trains its own model on F_k + λ L_k, where L_k pulls the feature of each sample toward the global
knowledge Ω_c of its class, then uploads the mean feature of each of its classes. The server averages those means
weighted by how many samples stand behind each. Models never leave their device and may all be different.

Where the paper is silent: a class no device has reported yet has no knowledge loss; a class no device reports this
round keeps its last knowledge (`memory`); a class a device does not hold is uploaded with count 0 and ignored.

The paper charges q bits for each of the C · p numbers of Ω, up and down, though a device has means of the classes
that it holds and no others. `charge = "held"` charges what is sent: those means and one bit per class that says which
they are; down go all classes that are known, since a broadcast is one message for all.

Three options go beyond the paper's experiments. `bits_per_value`, the paper's q, is not only charged but happens:
knowledge is quantized on its way up and down (`kfl.algorithms.quantize`), and devices train on what arrives.
`clip_norm` and `noise_multiplier` make uploads differentially private (`kfl.algorithms.privacy`), noise first,
then quantization. `aggregation` replaces the mean of equation (9) by a rule that a minority of poisoned reports
cannot move far (`kfl.algorithms.aggregation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from kfl.algorithms.aggregation import Aggregation
from kfl.algorithms.base import check_rule, require
from kfl.algorithms.privacy import add_noise
from kfl.algorithms.prototypes import PrototypeMethod, knowledge_format
from kfl.algorithms.quantize import quantize_rows
from kfl.algorithms.uploads import BITS_PER_VALUE, MOST_SAMPLES, ArrayFormat, Upload, UploadFormat

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import Engine, RoundKey
    from kfl.engine.base import ClassStatistics
    from kfl.models import State

Charge = Literal["printed", "held"]
"""Whose bits are charged: the paper's C · p numbers, or the means of the classes that a device holds."""


@dataclass(frozen=True)
class Kfl(PrototypeMethod):
    """Knowledge-aided federated learning: devices share the mean feature of each class, never weights.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Kfl(bits_per_value=8)))
    >>> history.summary["algorithm"]
    'kfl'
    """

    name: ClassVar[str] = "kfl"
    most: ClassVar[float] = MOST_SAMPLES
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("knowledge_weight", (0.01, 1 / 32, 0.1))

    knowledge_weight: float = 1 / 32
    """Weight λ of the knowledge loss ½‖h(x) − Ω_c‖². From 0.01 to 0.1 all work; 10 destroys learning."""
    memory: bool = True
    """Keep the last knowledge of a class that no device reports in a round."""
    bits_per_value: int = BITS_PER_VALUE
    """Bits of one number of knowledge on the air, the paper's q; below 32 the values really are quantized."""
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

    def twin(self) -> str:
        """Its pull, to means of the device's own features."""
        return "self-knowledge"

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

    def broadcast(self, server: State) -> Message:
        """The global knowledge Ω, and which classes it covers. The server keeps the exact values."""
        knowledge = quantize_rows(server["knowledge"], server["known"], self.bits_per_value)
        return {"knowledge": knowledge, "known": server["known"]}

    def pull_weight(self, engine: Engine) -> float:
        """λ itself."""
        return self.knowledge_weight

    def protect(self, device: int, own: ClassStatistics, key: RoundKey) -> Upload:
        """One device's knowledge as it arrives: with noise, then quantized, where asked for."""
        import torch

        means, counts = own.means, own.counts
        if self.noise_multiplier > 0 and self.clip_norm is not None:
            draw = torch.Generator().manual_seed(key.secret_seed("privacy noise", device))
            means, counts = add_noise(
                means, counts, self.clip_norm, self.noise_multiplier, draw, noise_counts=self.noise_counts
            )
        return Upload(device, {"means": self.quantized(device, means, counts > 0, key), "counts": counts})

    def upload_format(self, server: State) -> UploadFormat:
        """The mean feature of each class, and how many samples stand behind it.

        As in the paper, counts are not charged: they are sent once and never change. Noisy ones do, and as they hide
        which classes a device holds, all rows are sent with them.
        """
        return knowledge_format(
            server,
            2 * self.noise_multiplier if self.noise_counts else 0.0,
            bits=self.grid_bits,
            held_rows=self.charge == "held" and not self.noise_counts,
        )

    def broadcast_format(self, server: State) -> UploadFormat:
        """A row for every class; where only held classes are charged, also the bits that say which are known."""
        knowledge, classes = server["knowledge"], len(server["known"])
        known = {"known": ArrayFormat((classes,), "bool")} if self.charge == "held" else {}
        return {"knowledge": ArrayFormat(tuple(knowledge.shape), bits=self.grid_bits), **known}
