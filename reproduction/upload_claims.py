"""The claims about what devices send and which models they may have: counted from the models themselves."""

from __future__ import annotations

import numpy as np

from kfl.algorithms import ALGORITHMS
from kfl.core.text import percent
from kfl.data import Dataset as Samples
from kfl.experiment import Experiment
from kfl.models import PAPER_WIDTHS
from kfl.simulation.world import build_world
from reproduction.judging import Claim, Finding
from reproduction.setting import DATASETS, EQUAL_WIDTH, NAMES, TITLES, Dataset

NETWORKS: dict[Dataset, tuple[str, tuple[int, ...]]] = {"mnist": ("mlp", (1, 28, 28)), "cifar10": ("cnn", (3, 32, 32))}


def numbers_uploaded(name: str, dataset: Dataset, width: int | None = None) -> float:
    """Numbers that a device sends in one round.

    >>> numbers_uploaded("kfl", "mnist"), numbers_uploaded("fedavg", "cifar10")
    (640.0, 63106.0)
    """
    kind, shape = NETWORKS[dataset]
    labels = np.arange(600) % 10  # no pixel matters, only how many numbers go over the air
    images = np.zeros((len(labels), *shape), dtype=np.uint8)
    experiment = Experiment(
        devices=1,
        model=kind,
        widths=(width or EQUAL_WIDTH[dataset],),
        radio=None,
        split="iid",
        algorithm=ALGORITHMS[name](),
    )
    world = build_world(experiment, dataset=Samples.from_arrays(images, labels, images[:10], labels[:10], classes=10))
    return float(world.table.bits_up[0]) / 32


def upload_claims() -> list[Claim]:
    """What the paper says about them."""
    return [*_framework(), *_sizes()]


def _framework() -> list[Claim]:
    """Section II-B: lighter than weights, and open to every architecture."""
    parts = [
        numbers_uploaded("kfl", dataset, width) / numbers_uploaded("fedavg", dataset, width)
        for dataset in DATASETS
        for width in PAPER_WIDTHS
    ]
    sent = {numbers_uploaded("kfl", dataset, width) for dataset in DATASETS for width in PAPER_WIDTHS}
    refuse = [NAMES[name] for name in ("fedavg", "fedrep", "apfl") if ALGORITHMS[name].needs_equal_models]
    open_to_all = len(sent) == 1 and not ALGORITHMS["kfl"].needs_equal_models
    return [
        _counted(
            "II-B",
            "Knowledge is much lighter than the weights, for every network of section V",
            "yes",
            f"{percent(min(parts))} to {percent(max(parts))} of them",
            max(parts) < 0.02,
        ),
        _counted(
            "II-B, VI",
            "Devices with different architectures can learn together, which averaging weights does not allow",
            "yes",
            f"KFL sends {min(sent):.0f} numbers whatever the width; {', '.join(refuse)} need equal models",
            open_to_all and len(refuse) == 3,
        ),
    ]


def _sizes() -> list[Claim]:
    """The numbers of sections V and VI, and the abstract's."""
    kfl = numbers_uploaded("kfl", "mnist")
    found = [_counted("V-A", "KFL uploads 640 numbers per round", "640", f"{kfl:.0f}", kfl == 640)]
    shares: tuple[tuple[str, Dataset, float], ...] = (
        ("fedavg", "mnist", 0.12),
        ("fedrep", "mnist", 0.12),
        ("fedavg", "cifar10", 1.01),
    )
    for rival, dataset, share in shares:
        theirs = numbers_uploaded(rival, dataset)
        ours = kfl / theirs
        says = f"KFL uploads {share} % of what {NAMES[rival]} does, {TITLES[dataset]}"
        words = f"{percent(ours, 3)} of {theirs:,.0f}"
        found.append(_counted("V-A", says, f"{share} %", words, round(100 * ours, 2) == share))
    fedkd = numbers_uploaded("fedkd", "cifar10")
    saved = 1 - kfl / fedkd
    found.append(
        _counted(
            "V-B",
            "FedKD uploads 5,000 numbers, KFL saves 87 % of that",
            "87 %",
            f"{percent(saved, 1)} of {fedkd:.0f}",
            fedkd == 5000 and round(100 * saved) == 87,
        )
    )
    savings = {dataset: 1 - kfl / numbers_uploaded("fedavg", dataset) for dataset in NETWORKS}
    words = ", ".join(f"{TITLES[dataset]} {percent(saving)}" for dataset, saving in savings.items())
    over = {saving > 0.99 for saving in savings.values()}
    holds = over.pop() if len(over) == 1 else None
    found.append(_counted("abstract", "KFL saves over 99 % of the communication", "over 99 %", words, holds))
    found.append(
        _counted("VI", "KFL saves 99 % of the communication load", "99 %", words, min(savings.values()) >= 0.9895)
    )
    return found


def _counted(where: str, says: str, paper: str, ours: str, holds: bool | None) -> Claim:
    found = Finding.counted(ours, holds)
    return Claim(where, says, paper, "python -m reproduction claims", fact=lambda store, scale: found)
