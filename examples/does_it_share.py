"""Does uploading help? Three methods next to twins that upload nothing, on the embedded digits, in about a minute.

    python examples/does_it_share.py [folder]

Every device has twenty images of two digits. `kfl` uploads class means, `shared-stem` small updates of its first
layers, `lg-fedavg` a head. `local` trains alone, `self-knowledge` pulls features to the device's own class means, and
`fixed-knowledge` to random points that every device can draw from the seed. None of the three uploads anything: what a
method is above its own twin came from what others sent, and above the best twin it is worth having.
`kfl compare --twins` does the same with every method.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import kfl
from kfl.comparison.entries import algorithm_named

METHODS = ("kfl", "shared-stem", "lg-fedavg-head", "local", "self-knowledge", "fixed-knowledge")
DIGITS = kfl.Experiment(
    dataset="mnist-5k",
    devices=30,
    rounds=30,
    samples_per_device=20,
    distinct_classes=True,
    model="cnn",  # networks that begin alike, in three widths
    widths=(32, 48, 64),
    scheduler=kfl.Uniform(count=6),
    evaluate_every=6,
)


def main(folder: Path) -> None:
    """Run what is not finished in `folder`, then print the table and what it says."""
    entries = {label: replace(DIGITS, algorithm=algorithm_named(label, DIGITS.algorithm)) for label in METHODS}
    print(kfl.compare(entries, range(5), folder, twins=True))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/does-it-share"))
