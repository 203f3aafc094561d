"""Four pictures: accuracy against total bits, devices that have reported, joules, and ε."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.algorithms.privacy import gaussian_epsilon
from kfl.comparison.statistics import spread
from kfl.plots.style import new_figure, plain_axes, save
from studies.common_encoder.run import CURVES, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "cifar10-m2-all": "2 classes, 500 samples",
    "cifar10-m5-all": "5 classes, 500 samples",
    "cifar10-m5-50": "5 classes, 50 samples",
}
COLORS = {"cifar10-m2-all": "#00805a", "cifar10-m5-all": "#0b3d91", "cifar10-m5-50": "#c1272d"}
STORED = Path("docs/results/sharing/results.jsonl.gz")
"""Runs of KFL and others over 200 rounds in the same cell, on the paper's CNN."""
OTHERS = {"kfl": "o", "shared-stem": "s"}
DELTA = 1e-5
Lines = Sequence[Mapping[str, object]]


def draw(out: Path) -> Path:
    """Draw what `curves` played."""
    lines = read(out / CURVES)
    figure = new_figure("The pictures of the study", figsize=(10, 7.2), layout="constrained")
    (bits, reports), (joules, noise) = figure.subplots(2, 2)
    for name, color in COLORS.items():
        mine = [line for line in lines if line["condition"] == name]
        if not mine:
            continue
        title = TITLES[name]
        points = means(mine, "bits", lambda line: (_number(line, "bits"),))
        _frontier(bits, [(x, y) for (x,), y in points.items()], color, title)
        for worth, dashes in (("what is missing", "-"), ("samples", "--")):
            chosen = [line for line in mine if line.get("worth") == worth]
            found = means(chosen, "reports", lambda line: (_number(line, "reports"),))
            label = f"{title}, {'by what is missing' if dashes == '-' else 'in any order'}"
            reports.plot([x for (x,) in found], list(found.values()), dashes, color=color, label=label)
        played = [line for line in mine if line["curve"] == "rounds"]
        energy = means(played, "rounds", lambda line: (_number(line, "round"),), "energy_j", 1.0)
        accuracy = means(played, "rounds", lambda line: (_number(line, "round"),))
        joules.plot(list(energy.values()), list(accuracy.values()), color=color, label=f"{title}, one upload")
        for other, marker in OTHERS.items():
            if found_point := _stored(name.removesuffix("-all"), other):
                joules.plot(*found_point, marker, color=color, label=f"{title}, {other}, 200 rounds")
        noisy = means(mine, "noise", lambda line: (_number(line, "noise"),))
        epsilons = {gaussian_epsilon(z, DELTA): y for (z,), y in noisy.items() if z > 0}
        noise.plot(list(epsilons), list(epsilons.values()), ".-", color=color, label=title)
        noise.axhline(noisy[0.0,], color=color, linewidth=0.8, linestyle=":")
    for axes, label, scale in (
        (bits, "bits of a device in all", "log"),
        (reports, "devices that have reported, of 100", "log"),
        (joules, "joules of all devices", "log"),
        (noise, f"ε of one report (δ = {DELTA:g}); dotted: no noise", "log"),
    ):
        plain_axes(axes)
        axes.set(xlabel=label, ylabel="accuracy, %", xscale=scale)
        axes.legend(fontsize=7, frameon=False)
    bits.axvline(20_480, color="#999999", linewidth=0.8)
    figure.suptitle("Common knowledge on CIFAR-10, 100 devices, mean over seeds", fontsize=11)
    return save(figure, out / "common-encoder.png")


def _number(line: Mapping[str, object], name: str) -> float:
    return float(str(line[name]))


def means(
    lines: Iterable[Mapping[str, object]],
    curve: str,
    key: Callable[[Mapping[str, object]], tuple[float, ...]],
    value: str = "accuracy",
    factor: float = 100.0,
) -> dict[tuple[float, ...], float]:
    """Mean over seeds of each point of a curve, in order."""
    found: dict[tuple[float, ...], list[float]] = {}
    for line in lines:
        if line["curve"] == curve:
            found.setdefault(key(line), []).append(factor * _number(line, value))
    return {place: spread(found[place]).mean for place in sorted(found)}


def _frontier(axes: Axes, points: Sequence[tuple[float, float]], color: str, label: str) -> None:
    """All settings as dots, and a line through those that nothing smaller beats."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not best or y > best[-1][1]:
            best.append((x, y))
    axes.plot(*zip(*points, strict=True), ".", color=color, alpha=0.4)
    axes.plot(*zip(*best, strict=True), color=color, label=label)


def _stored(condition: str, algorithm: str) -> tuple[float, float] | None:
    """Joules and accuracy of a method in the study of `docs/sharing.md`, after the search."""
    with gzip.open(STORED, "rt") as file:
        runs = [json.loads(line) for line in file]
    found = [run for run in runs if run.get("run", "").startswith(f"{condition}, {algorithm}, searched, seed ")]
    if not found:
        return None
    return spread([run["energy_j"] for run in found]).mean, 100 * spread([run["accuracy"] for run in found]).mean
