"""The claims about the size of uploads, counted from the models themselves."""

from __future__ import annotations

from kfl.algorithms import ALGORITHMS
from kfl.engine.base import DeviceProfile
from kfl.models import fleet_from_name
from kfl.paper.claim import Claim, Finding
from kfl.paper.setting import EQUAL_WIDTH, NAMES, TITLES, Dataset

NETWORKS: dict[Dataset, tuple[str, tuple[int, ...]]] = {"mnist": ("mlp", (1, 28, 28)), "cifar10": ("cnn", (3, 32, 32))}
COMMAND = "kfl paper claims"


def numbers_uploaded(name: str, dataset: Dataset) -> float:
    """Numbers that a device sends in one round.

    >>> numbers_uploaded("kfl", "mnist"), numbers_uploaded("fedavg", "cifar10")
    (640.0, 63106.0)
    """
    kind, shape = NETWORKS[dataset]
    profile = fleet_from_name(kind, (EQUAL_WIDTH[dataset],), 1, shape, 10, seed=0).profile(0)
    return ALGORITHMS[name]().cost(DeviceProfile(profile, 600), real_work=False).bits_up / 32


def upload_claims() -> list[Claim]:
    """What the paper says about them."""
    kfl = numbers_uploaded("kfl", "mnist")
    found = [_claim("V-A", "KFL uploads 640 numbers per round", "640", f"{kfl:.0f}", kfl == 640)]
    shares: tuple[tuple[str, Dataset, float], ...] = (
        ("fedavg", "mnist", 0.12),
        ("fedrep", "mnist", 0.12),
        ("fedavg", "cifar10", 1.01),
    )
    for rival, dataset, share in shares:
        theirs = numbers_uploaded(rival, dataset)
        percent = 100 * kfl / theirs
        says = f"KFL uploads {share} % of what {NAMES[rival]} does, {TITLES[dataset]}"
        found.append(_claim("V-A", says, f"{share} %", f"{percent:.3f} % of {theirs:,.0f}", round(percent, 2) == share))
    fedkd = numbers_uploaded("fedkd", "cifar10")
    saved = 100 * (1 - kfl / fedkd)
    found.append(
        _claim(
            "V-B",
            "FedKD uploads 5,000 numbers, KFL saves 87 % of that",
            "87 %",
            f"{saved:.1f} % of {fedkd:.0f}",
            fedkd == 5000 and round(saved) == 87,
        )
    )
    least = min(100 * (1 - kfl / numbers_uploaded("fedavg", dataset)) for dataset in NETWORKS)
    found.append(
        _claim("VI", "KFL saves 99 % of the communication load", "99 %", f"{least:.2f} % or more", least >= 98.95)
    )
    return found


def _claim(where: str, says: str, paper: str, ours: str, holds: bool) -> Claim:
    return Claim(where, says, paper, COMMAND, lambda store, scale: Finding(ours, "holds" if holds else "does not hold"))
