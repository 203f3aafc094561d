"""Does uploading help? Methods that upload something, and the twins next to them that upload nothing.

A twin does the same on the same devices and seeds, and uploads nothing: whatever is above the best twin came from what
the others sent.
"""

from __future__ import annotations

from kfl.algorithms import (
    Algorithm,
    FederatedDistillation,
    FedGh,
    FedMrl,
    FedProto,
    FedTgp,
    FixedKnowledge,
    Kfl,
    LgFedAvg,
    Local,
    LocalClassifier,
    SelfKnowledge,
    SharedStem,
)

TWINS: dict[str, Algorithm] = {
    "local": Local(),
    "self-knowledge": SelfKnowledge(),
    "fixed-knowledge": FixedKnowledge(),
    "simplex": FixedKnowledge(targets="simplex"),
}
"""They upload nothing: training alone, and pulls of the features to one's own class means, to random points, and to the
corners of a simplex."""
ENCODED_TWINS: dict[str, Algorithm] = {
    "own-kernel": LocalClassifier(),
    "own-ridge": LocalClassifier(kind="ridge"),
    "own-lda": LocalClassifier(kind="lda"),
}
"""Twins of a method that needs an encoder: what a device can make of the same encoder's numbers alone."""
UPLOADING: dict[str, Algorithm] = {
    "kfl": Kfl(),
    "shared-stem": SharedStem(),
    "lg-fedavg-stem": LgFedAvg(share="stem"),
    "lg-fedavg-head": LgFedAvg(share="head"),
    "fd": FederatedDistillation(),
    "fedproto": FedProto(),
    "fedtgp": FedTgp(),
    "fedgh": FedGh(),
    "fedgh-released": FedGh(head="as-released"),
    "fedmrl": FedMrl(),
}
"""Methods that upload something and run on different networks, by the label they have in tables."""
UNLIMITED = 10**12
"""A budget in bits that any stem fits."""
BITS: dict[str, Algorithm] = {
    f"shared-stem-{bits}": SharedStem(bits_per_value=bits, budget_bits=UNLIMITED) for bits in (1, 2, 8, 32)
}
"""The shared stem with fewer and more bits per value, whatever an upload then takes."""
METHODS: dict[str, Algorithm] = {**UPLOADING, **BITS, **TWINS, **ENCODED_TWINS}
"""Everything that has a label of its own."""


def is_twin(algorithm: Algorithm) -> bool:
    """Whether a device that runs it uploads nothing."""
    return not algorithm.sends()
