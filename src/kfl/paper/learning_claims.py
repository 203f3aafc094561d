"""The claims about learning: KFL against other algorithms, and when devices take part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kfl.paper.claim import Claim, Finding
from kfl.paper.measures import NOT_RUN, beyond, early, final, gap, told
from kfl.paper.setting import COUNTS, DATASETS, NAMES, TITLES, Dataset, Scale
from kfl.paper.sharing import NEW_CLASS
from kfl.paper.store import Store
from kfl.paper.verdict import MARGIN, SPEED_MARGIN, better, equal, together

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
        return Finding(f"{told(found)}{beyond(found, by)}", better(found, MARGIN[dataset], by))

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
        return Finding(told(found), equal(found, MARGIN[dataset]))

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

    def judge(store: Store, scale: Scale) -> Finding:
        ours = key(dataset, classes, models, "kfl", count, care)
        gaps = {r: gap(store, scale, ours, key(dataset, classes, models, r, count, care), measure) for r in rivals}
        said = "; ".join(f"{NAMES[rival]} {told(found)}" for rival, found in gaps.items())
        return Finding(said, together([better(found, margin) for found in gaps.values()]))

    names = ", ".join(NAMES[rival] for rival in rivals)
    verb = "more accurate than" if what == "accuracy" else "learns faster than"
    says = f"KFL {verb} {names}, {TITLES[dataset]}, {count} devices per round ({models} models, {care})"
    return Claim(where, says, "yes", f"kfl paper {figure}", judge)


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
                place = f"V-A, Fig. {figure[3:]}"
                found.append(_over_all(place, "accuracy", dataset, 2, "equal", ("fedavg", "apfl"), count, care, figure))
                found.append(_over_all(place, "speed", dataset, 2, "equal", BASELINES, count, care, figure))
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
            return Finding(NOT_RUN, "cannot be judged")
        best = max(ranked, key=lambda name: ranked[name])
        found = gap(
            store, scale, key(dataset, 3, "equal", "kfl", count, care), key(dataset, 3, "equal", best, count, care)
        )
        size = "" if by is None else beyond(found, by)
        return Finding(f"{told(found)} over {NAMES[best]}{size}", better(found, MARGIN[dataset], by or 0.0))

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
        said, verdicts = [], []
        for dataset in DATASETS:
            keys = {p: f"{dataset} m{classes} {models} kfl {p}10 as set" for p in ("descend", "uniform", "ascend")}
            for faster, slower in (("descend", "uniform"), ("uniform", "ascend")):
                found = gap(store, scale, keys[faster], keys[slower], early)
                said.append(f"{TITLES[dataset]} {faster} − {slower} {told(found)}")
                verdicts.append(better(found, SPEED_MARGIN))
            end = gap(store, scale, keys["descend"], keys["ascend"])
            said.append(f"at the end, descend − ascend {told(end)}")
        return Finding("; ".join(said), together(verdicts))

    where = "V, Remark 1" if classes == 2 else "report III"
    says = f"Descend learns fastest and ascend slowest, both datasets ({models} models, m = {classes})"
    return Claim(where, says, "yes", f"kfl paper {figure}", judge)


def new_class_claim() -> Claim:
    """Section II-A mentions it; no experiment of the paper tests it."""

    def judge(store: Store, scale: Scale) -> Finding:
        said, verdicts = [], []
        for dataset in DATASETS:
            condition = NEW_CLASS[dataset]
            for rival in ("local", "self-knowledge", "fixed-knowledge"):
                found = gap(store, scale, condition.key("kfl"), condition.key(rival))
                said.append(f"{TITLES[dataset]} minus {NAMES[rival]} {told(found)}")
                verdicts.append(better(found, MARGIN[dataset]))
        return Finding("; ".join(said), together(verdicts))

    says = "Knowledge of others helps with a class just met (5 samples of it beside 50 others, tested on it alone)"
    return Claim("II-A", says, "said, not tested", "kfl paper sharing", judge)
