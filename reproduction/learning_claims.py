"""The claims about learning: KFL against other algorithms, more devices per round, and when devices take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from reproduction.judging import Claim, Question
from reproduction.own_figures import NEW_CLASS
from reproduction.results import early, final, half_trained
from reproduction.setting import COUNTS, DATASETS, EQUAL_WORK, NAMES, TITLES, Dataset, Models
from reproduction.verdict import MARGIN, SPEED_MARGIN

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
    ours, theirs = (key(dataset, classes, models, name, count, care) for name in ("kfl", rival))
    return Claim(
        where,
        f"KFL above {NAMES[rival]}, {TITLES[dataset]}, {count} devices per round ({models} models, {care})",
        f"{by:+.2f} points",
        f"python -m reproduction figures {figure}",
        (Question(ours, theirs, MARGIN[dataset], by=by),),
    )


def _alike(where: str, dataset: Dataset, rival: str, count: int, care: str, figure: str) -> Claim:
    ours, theirs = (key(dataset, 2, "equal", name, count, care) for name in ("kfl", rival))
    says = f"KFL similar to {NAMES[rival]}, {TITLES[dataset]}, {count} devices per round (equal models, {care})"
    question = Question(ours, theirs, MARGIN[dataset], asks="equal")
    return Claim(where, says, "similar", f"python -m reproduction figures {figure}", (question,))


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
    asked = [
        Question(ours, key(dataset, classes, models, rival, count, care), margin, NAMES[rival], measure)
        for rival in rivals
    ]
    names = ", ".join(NAMES[rival] for rival in rivals)
    verb = "more accurate than" if what == "accuracy" else "learns faster than"
    says = f"KFL {verb} {names}, {TITLES[dataset]}, {count} devices per round ({models} models, {care})"
    return Claim(where, says, "yes", f"python -m reproduction figures {figure}", tuple(asked))


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
    return found


def _best_baseline(dataset: Dataset, count: int, by: float, care: str, figure: str) -> Claim:
    ours = key(dataset, 3, "equal", "kfl", count, care)
    asked = [
        Question(ours, key(dataset, 3, "equal", rival, count, care), MARGIN[dataset], NAMES[rival], by=by)
        for rival in BASELINES
    ]
    says = f"m = 3: KFL above the best baseline, {TITLES[dataset]}, {count} devices per round (equal models, {care})"
    paper = f"{by:+.2f} points" if by else "yes"
    return Claim("report III", says, paper, f"python -m reproduction figures {figure}", tuple(asked), against_best=True)


def learning_m3() -> list[Claim]:
    """The technical report's numbers for three classes per device."""
    found = []
    for care in ("as set", "tuned"):
        found += [
            _best_baseline("mnist", 10, 1.28, care, "fig2a-m3"),
            _best_baseline("mnist", 50, 1.54, care, "fig2a-m3"),
            _best_baseline("cifar10", 10, 0.0, care, "fig2b-m3"),
            _best_baseline("cifar10", 50, 0.0, care, "fig2b-m3"),
            _versus("report III", "mnist", 3, "mixed", "fedkd", 10, 0.87, care, "fig3a-m3"),
            _versus("report III", "mnist", 3, "mixed", "fedkd", 50, 1.08, care, "fig3a-m3"),
            _over_all("report III", "accuracy", "cifar10", 3, "mixed", ("fedkd",), 10, care, "fig3b-m3"),
            _over_all("report III", "accuracy", "cifar10", 3, "mixed", ("fedkd",), 50, care, "fig3b-m3"),
        ]
    return found


def more_data_claim(classes: int, models: Models) -> Claim:
    """The first half of Remark 1: 50 devices per round against 10."""
    letters = "2" if models == "equal" else "3"
    figures = " ".join(f"fig{letters}{letter}{_end(classes)}" for letter in "ab")
    asked = [
        Question(
            key(dataset, classes, models, "kfl", max(COUNTS), "as set"),
            key(dataset, classes, models, "kfl", min(COUNTS), "as set"),
            MARGIN[dataset],
            TITLES[dataset],
        )
        for dataset in DATASETS
    ]
    says = f"More data per round helps: KFL with 50 devices per round above 10 ({models} models, m = {classes})"
    note = "five times the training"
    return Claim("III-A, Remark 1", says, "yes", f"python -m reproduction figures {figures}", tuple(asked), note=note)


def pattern_claims(classes: int, models: Models) -> list[Claim]:
    """The second half of Remark 1, about the end of a run, and what section V says to confirm it, about speed."""
    command = f"python -m reproduction figures fig{2 if models == 'equal' else 3}c{_end(classes)}"
    fast, half, end = [], [], []
    for dataset in DATASETS:
        keys = {p: f"{dataset} m{classes} {models} kfl {p}10 as set" for p in ("descend", "uniform", "ascend")}
        for slower in ("uniform", "ascend"):
            pair = keys["descend"], keys[slower]
            label = f"{TITLES[dataset]} minus {slower}"
            fast.append(Question(*pair, SPEED_MARGIN, label, early))
            half.append(Question(*pair, MARGIN[dataset], label, half_trained))
            end.append(Question(*pair, MARGIN[dataset], label))
    setting = f"{models} models, m = {classes}"
    where = "V" if classes == 2 else "report III"
    says = f"Descend converges faster than uniform and ascend, both datasets ({setting})"
    note = "the first quarter of the rounds favors descend by construction: it has had more training by then"
    return [
        Claim("III-A, Remark 1", f"With a fixed total, early ends better ({setting})", "yes", command, tuple(end)),
        Claim(
            where,
            says,
            "yes",
            command,
            tuple(fast),
            beside=tuple(half),
            beside_when="after half of the training",
            note=note,
        ),
    ]


def new_class_claim() -> Claim:
    """Section II-A mentions it; no experiment of the paper tests it."""
    asked = [
        Question(
            NEW_CLASS[dataset].key("kfl"),
            NEW_CLASS[dataset].key(rival),
            MARGIN[dataset],
            f"{TITLES[dataset]} minus {NAMES[rival]}",
        )
        for dataset in DATASETS
        for rival in ("local", "self-knowledge", "fixed-knowledge")
    ]
    says = "Knowledge of others helps with a class just met (5 samples of it next to 50 others, tested on it alone)"
    return Claim("II-A", says, "said, not tested", "python -m reproduction figures sharing", tuple(asked))


def equal_work_questions() -> list[Claim]:
    """KFL against FedRep with as many steps as KFL's real work pays for."""
    return [
        Claim(
            "V-A" if classes == 2 else "report III",
            f"KFL above FedRep at equal work, {TITLES[dataset]}, m = {classes}, {count} devices per round",
            "not in the paper",
            f"python -m reproduction figures fig2{letter}{_end(classes)}",
            (
                Question(
                    key(dataset, classes, "equal", "kfl", count, "as set"),
                    key(dataset, classes, "equal", EQUAL_WORK, count, "as set"),
                    MARGIN[dataset],
                ),
            ),
            own=True,
        )
        for classes in (2, 3)
        for dataset, letter in zip(DATASETS, "ab", strict=True)
        for count in COUNTS
    ]


def local_only_questions() -> list[Claim]:
    """KFL against training alone, which the paper does not show: both after an equal search, mixed models."""
    found = []
    for classes in (2, 3):
        for dataset, letter in zip(DATASETS, "ab", strict=True):
            for count in COUNTS:
                claim = _over_all(
                    "V-B" if classes == 2 else "report III",
                    "accuracy",
                    dataset,
                    classes,
                    "mixed",
                    ("local",),
                    count,
                    "tuned",
                    f"fig3{letter}{_end(classes)}",
                )
                found.append(replace(claim, says=f"m = {classes}: {claim.says}", paper="not in the paper", own=True))
    return found


def _end(classes: int) -> str:
    return "" if classes == 2 else f"-m{classes}"
