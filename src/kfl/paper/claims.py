"""Every claim of the paper's text, what our runs say, and the verdict by the rule in `verdict`.

Claims about the size of uploads are counted from the models themselves; those about schedulers are in
`scheduler_claims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kfl.algorithms import ALGORITHMS
from kfl.core.text import percent
from kfl.engine.base import DeviceProfile
from kfl.models import fleet_from_name
from kfl.paper.figures import NEW_CLASS
from kfl.paper.results import Pair, Store, beyond, early, final, gap, judge_above, told
from kfl.paper.scheduler_claims import scheduler_claims
from kfl.paper.setting import COUNTS, DATASETS, EQUAL_WIDTH, NAMES, TITLES, Dataset, Scale
from kfl.paper.verdict import MARGIN, MISSING, SPEED_MARGIN, Claim, Finding, better, equal, together


def claims() -> list[Claim]:
    """All of them, in the order of the paper."""
    return [
        *upload_claims(),
        *learning_m2(),
        *(pattern_claim(2, models) for models in ("equal", "mixed")),
        *scheduler_claims(2),
        *learning_m3(),
        *(pattern_claim(3, models) for models in ("equal", "mixed")),
        *scheduler_claims(3),
        new_class_claim(),
    ]


Models = Literal["equal", "mixed"]
BASELINES = ("fedavg", "fedrep", "apfl")


def key(dataset: Dataset, classes: int, models: Models, name: str, count: int, care: str) -> str:
    """The key of a line of the learning comparisons."""
    return f"{dataset} m{classes} {models} {name} uniform{count} {care}"


def _versus(
    where: str,
    dataset: Dataset,
    classes: int,
    models: Models,
    rival: str,
    count: int,
    by: float,
    care: str,
    figure: str,
) -> Claim:
    def judge(store: Store, scale: Scale) -> Finding:
        ours, theirs = (key(dataset, classes, models, name, count, care) for name in ("kfl", rival))
        found = gap(store, scale, ours, theirs)
        return Finding.of(f"{told(found)}{beyond(found, by)}", better(found, MARGIN[dataset], by), [found])

    return Claim(
        where,
        f"KFL above {NAMES[rival]}, {TITLES[dataset]}, {count} devices per round ({models} models, {care})",
        f"{by:+.2f} points",
        f"kfl paper {figure}",
        judge,
    )


def _alike(where: str, dataset: Dataset, rival: str, count: int, care: str, figure: str) -> Claim:
    def judge(store: Store, scale: Scale) -> Finding:
        ours, theirs = (key(dataset, 2, "equal", name, count, care) for name in ("kfl", rival))
        found = gap(store, scale, ours, theirs)
        return Finding.of(told(found), equal(found, MARGIN[dataset]), [found])

    says = f"KFL similar to {NAMES[rival]}, {TITLES[dataset]}, {count} devices per round (equal models, {care})"
    return Claim(where, says, "similar", f"kfl paper {figure}", judge)


def _over_all(
    where: str,
    what: Literal["accuracy", "speed"],
    dataset: Dataset,
    classes: int,
    models: Models,
    rivals: Sequence[str],
    count: int,
    care: str,
    figure: str,
) -> Claim:
    measure, margin = (final, MARGIN[dataset]) if what == "accuracy" else (early, SPEED_MARGIN)

    ours = key(dataset, classes, models, "kfl", count, care)
    pairs = [Pair(NAMES[rival], ours, key(dataset, classes, models, rival, count, care), margin) for rival in rivals]
    names = ", ".join(NAMES[rival] for rival in rivals)
    verb = "more accurate than" if what == "accuracy" else "learns faster than"
    says = f"KFL {verb} {names}, {TITLES[dataset]}, {count} devices per round ({models} models, {care})"
    return Claim(where, says, "yes", f"kfl paper {figure}", judge_above(pairs, measure))


def learning_m2() -> list[Claim]:
    """Sections V-A and V-B, once with the paper's hyper-parameters and once after an equal search."""
    found = []
    for care in ("as set", "tuned"):
        found += [
            _versus("V-A, Fig. 2a", "mnist", 2, "equal", "fedrep", 10, 2.1, care, "fig2a"),
            _versus("V-A, Fig. 2a", "mnist", 2, "equal", "fedrep", 50, 0.96, care, "fig2a"),
            _versus("V-A, Fig. 2b", "cifar10", 2, "equal", "fedrep", 10, 6.65, care, "fig2b"),
            _alike("V-A, Fig. 2b", "cifar10", "fedrep", 50, care, "fig2b"),
        ]
        for dataset, figure in zip(DATASETS, ("fig2a", "fig2b"), strict=True):
            for count in COUNTS:
                where = f"V-A, Fig. {figure[3:]}"
                found.append(_over_all(where, "accuracy", dataset, 2, "equal", ("fedavg", "apfl"), count, care, figure))
                found.append(_over_all(where, "speed", dataset, 2, "equal", BASELINES, count, care, figure))
        found += [
            _versus("V-B, Fig. 3a", "mnist", 2, "mixed", "fedkd", 10, 0.61, care, "fig3a"),
            _versus("V-B, Fig. 3a", "mnist", 2, "mixed", "fedkd", 50, 0.59, care, "fig3a"),
            _versus("V-B, Fig. 3b", "cifar10", 2, "mixed", "fedkd", 10, 4.0, care, "fig3b"),
            _versus("V-B, Fig. 3b", "cifar10", 2, "mixed", "fedkd", 50, 9.35, care, "fig3b"),
        ]
        found += [_over_all("V-B", "speed", "mnist", 2, "mixed", ("fedkd",), count, care, "fig3a") for count in COUNTS]
    for dataset, figure in zip(DATASETS, ("fig3a", "fig3b"), strict=True):
        for count in COUNTS:
            found.append(
                _over_all("not in the paper", "accuracy", dataset, 2, "mixed", ("local",), count, "tuned", figure)
            )
    return found


def _best_baseline(dataset: Dataset, count: int, by: float | None, care: str, figure: str) -> Claim:
    def judge(store: Store, scale: Scale) -> Finding:
        rivals = {name: store.seeds(key(dataset, 3, "equal", name, count, care), scale) for name in BASELINES}
        ranked = {name: float(np.mean([final(row) for row in rows.values()])) for name, rows in rivals.items() if rows}
        if not ranked:
            return MISSING
        best = max(ranked, key=lambda name: ranked[name])
        ours, theirs = (key(dataset, 3, "equal", name, count, care) for name in ("kfl", best))
        found = gap(store, scale, ours, theirs)
        size = "" if by is None else beyond(found, by)
        told_with = f"{told(found)} over {NAMES[best]}{size}"
        return Finding.of(told_with, better(found, MARGIN[dataset], by or 0.0), [found])

    says = f"m = 3: KFL above the best baseline, {TITLES[dataset]}, {count} devices per round (equal models, {care})"
    paper = "yes" if by is None else f"{by:+.2f} points"
    return Claim("report III", says, paper, f"kfl paper {figure}", judge)


def learning_m3() -> list[Claim]:
    """The technical report's numbers for three classes per device."""
    found = []
    for care in ("as set", "tuned"):
        found += [
            _best_baseline("mnist", 10, 1.28, care, "fig2a-m3"),
            _best_baseline("mnist", 50, 1.54, care, "fig2a-m3"),
            _best_baseline("cifar10", 10, None, care, "fig2b-m3"),
            _best_baseline("cifar10", 50, None, care, "fig2b-m3"),
            _versus("report III", "mnist", 3, "mixed", "fedkd", 10, 0.87, care, "fig3a-m3"),
            _versus("report III", "mnist", 3, "mixed", "fedkd", 50, 1.08, care, "fig3a-m3"),
            _over_all("report III", "accuracy", "cifar10", 3, "mixed", ("fedkd",), 10, care, "fig3b-m3"),
            _over_all("report III", "accuracy", "cifar10", 3, "mixed", ("fedkd",), 50, care, "fig3b-m3"),
        ]
    return found


def pattern_claim(classes: int, models: Models) -> Claim:
    """Remark 1 as the experiments are said to confirm it."""
    figure = ("fig2c" if models == "equal" else "fig3c") + ("" if classes == 2 else "-m3")

    def judge(store: Store, scale: Scale) -> Finding:
        parts, verdicts, gaps = [], [], []
        for dataset in DATASETS:
            keys = {p: f"{dataset} m{classes} {models} kfl {p}10 as set" for p in ("descend", "uniform", "ascend")}
            for faster, slower in (("descend", "uniform"), ("uniform", "ascend")):
                found = gap(store, scale, keys[faster], keys[slower], early)
                parts.append(f"{TITLES[dataset]} {faster} − {slower} {told(found)}")
                verdicts.append(better(found, SPEED_MARGIN))
                gaps.append(found)
            end = gap(store, scale, keys["descend"], keys["ascend"])
            parts.append(f"at the end, descend − ascend {told(end)}")
            gaps.append(end)
        return Finding.of("; ".join(parts), together(verdicts), gaps)

    where = "V, Remark 1" if classes == 2 else "report III"
    says = f"Descend learns fastest and ascend slowest, both datasets ({models} models, m = {classes})"
    return Claim(where, says, "yes", f"kfl paper {figure}", judge)


def new_class_claim() -> Claim:
    """Section II-A mentions it; no experiment of the paper tests it."""
    pairs = [
        Pair(
            f"{TITLES[dataset]} minus {NAMES[rival]}",
            NEW_CLASS[dataset].key("kfl"),
            NEW_CLASS[dataset].key(rival),
            MARGIN[dataset],
        )
        for dataset in DATASETS
        for rival in ("local", "self-knowledge", "fixed-knowledge")
    ]
    says = "Knowledge of others helps with a class just met (5 samples of it beside 50 others, tested on it alone)"
    return Claim("II-A", says, "said, not tested", "kfl paper sharing", judge_above(pairs))


NETWORKS: dict[Dataset, tuple[str, tuple[int, ...]]] = {"mnist": ("mlp", (1, 28, 28)), "cifar10": ("cnn", (3, 32, 32))}
UPLOAD_COMMAND = "kfl paper claims"


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
    found = [_uploads("V-A", "KFL uploads 640 numbers per round", "640", f"{kfl:.0f}", kfl == 640)]
    shares: tuple[tuple[str, Dataset, float], ...] = (
        ("fedavg", "mnist", 0.12),
        ("fedrep", "mnist", 0.12),
        ("fedavg", "cifar10", 1.01),
    )
    for rival, dataset, share in shares:
        theirs = numbers_uploaded(rival, dataset)
        ours = kfl / theirs
        says = f"KFL uploads {share} % of what {NAMES[rival]} does, {TITLES[dataset]}"
        found.append(
            _uploads("V-A", says, f"{share} %", f"{percent(ours, 3)} of {theirs:,.0f}", round(100 * ours, 2) == share)
        )
    fedkd = numbers_uploaded("fedkd", "cifar10")
    saved = 1 - kfl / fedkd
    found.append(
        _uploads(
            "V-B",
            "FedKD uploads 5,000 numbers, KFL saves 87 % of that",
            "87 %",
            f"{percent(saved, 1)} of {fedkd:.0f}",
            fedkd == 5000 and round(100 * saved) == 87,
        )
    )
    least = min(1 - kfl / numbers_uploaded("fedavg", dataset) for dataset in NETWORKS)
    found.append(
        _uploads("VI", "KFL saves 99 % of the communication load", "99 %", f"{percent(least)} or more", least >= 0.9895)
    )
    return found


def _uploads(where: str, says: str, paper: str, ours: str, holds: bool) -> Claim:
    return Claim(
        where, says, paper, UPLOAD_COMMAND, lambda store, scale: Finding(ours, "holds" if holds else "does not hold")
    )
