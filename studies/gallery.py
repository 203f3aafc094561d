"""The thumbnails of the gallery, docs/img/gallery/*.png: each from a short run of its example.

python -m studies.gallery        # about a minute on two cores
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kfl
from kfl.plots.style import new_figure, plain_axes, save
from kfl.scheduling import read_problem, schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = Path(__file__).parents[1] / "docs" / "img" / "gallery"
TEAL, ORANGE, GRAY = "#00796b", "#c25e00", "#7b8794"
SIZE_IN = (3.2, 2.0)


def example(name: str) -> Any:
    """Return a program of `examples/` as a module."""
    return importlib.import_module(f"examples.{name}")


def _panel(across: str, up: str) -> tuple[Figure, Axes]:
    figure = new_figure("Drawing the gallery", figsize=SIZE_IN, layout="constrained")
    axes = figure.add_subplot()
    plain_axes(axes, "none")
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(up, fontsize=8)
    axes.tick_params(labelsize=7)
    return figure, axes


def _lines(histories: dict[str, kfl.History], x: str = "rounds") -> Figure:
    figure, axes = _panel({"rounds": "rounds", "joules": "J spent"}[x], "accuracy, %")
    for (label, history), color in zip(histories.items(), (TEAL, ORANGE, GRAY), strict=False):
        tested = [log for log in history.rounds if log.accuracy is not None]
        spent, total = [], 0.0
        for log in history.rounds:
            total += log.energy_j
            spent += [total] if log.accuracy is not None else []
        along = spent if x == "joules" else [log.round + 1 for log in tested]
        axes.plot(along, [100 * (log.accuracy or 0.0) for log in tested], color=color, label=label)
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def first_steps(folder: Path) -> Figure:
    """A run with KFL and one alone."""
    setting = kfl.Experiment(devices=20, rounds=30)
    return _lines({"kfl": kfl.run(setting), "alone": kfl.run(replace(setting, algorithm=kfl.Local()))})


def own_algorithm(folder: Path) -> Figure:
    """The example's class, KFL and training alone."""
    setting = kfl.Experiment(devices=20, rounds=20, samples_per_device=40, widths=(16, 32), radio="none")
    own = example("own_algorithm").SharedHead()
    found = {"kfl": kfl.Kfl(), "shared head": own, "alone": kfl.Local()}
    return _lines({label: kfl.run(replace(setting, algorithm=algorithm)) for label, algorithm in found.items()})


def own_model_and_data(folder: Path) -> Figure:
    """Two signals of the example."""
    data = example("own_model_and_data").vibrations()
    figure, axes = _panel("time", "vibration")
    for fault, color in ((0, TEAL), (4, ORANGE)):
        signal = data.train_x[data.train_y == fault][0].reshape(-1)
        axes.plot(signal + 4 * (fault > 0), color=color)
    axes.set_yticks([])
    return figure


def natural_federation(folder: Path) -> Figure:
    """How many readings each person has of each activity."""
    path = folder / "wearables.npz"
    program = example("natural_federation")
    program.write_readings(path)
    experiment = kfl.Experiment(dataset=str(path), split="natural", devices=0)
    data = kfl.load_dataset(str(path))
    split = experiment.for_data(data).partition(data)
    figure, axes = _panel("person", "readings")
    bottom = 0.0 * split.train_counts[:, 0]
    for kind, color in zip(range(split.train_counts.shape[1]), (TEAL, ORANGE, GRAY, "#cbd2d9"), strict=True):
        axes.bar(range(len(bottom)), split.train_counts[:, kind], bottom=bottom, color=color)
        bottom = bottom + split.train_counts[:, kind]
    return figure


def own_scheduler(folder: Path) -> Figure:
    """How often each device takes part under two schedulers."""
    program = example("own_scheduler")
    figure, axes = _panel("device", "rounds")
    for offset, (scheduler, color) in enumerate(((program.BestChannel(), ORANGE), (kfl.Lyapunov(), TEAL))):
        run = kfl.run(
            kfl.Experiment(devices=20, rounds=25, widths=(32,), radio="nb-iot", hard_budget=True, scheduler=scheduler)
        )
        rounds = [record["rounds"] for record in run.devices]
        axes.bar([k + 0.4 * offset for k in range(20)], rounds, width=0.4, color=color, label=scheduler.name)
    axes.legend(fontsize=7, frameon=False)
    return figure


def compare_energy_budget(folder: Path) -> Figure:
    """Accuracy over joules of three methods."""
    program = example("compare_energy_budget")
    runs = {
        name: kfl.run(replace(program.experiment(name, 0), evaluate_every=2)) for name in ("kfl", "fedavg", "local")
    }
    return _lines(runs, "joules")


def allocate_cell(folder: Path) -> Figure:
    """The shares of the example's devices."""
    problem = read_problem(Path(__file__).parents[1] / "examples" / "cell.csv")
    first = schedule(problem, kfl.Dual()).rounds[0]
    figure, axes = _panel("device", "share of the band, %")
    axes.bar(range(len(first.share)), 100 * first.share, color=TEAL)
    return figure


EXAMPLES: dict[str, Callable[[Path], Figure]] = {
    one.__name__: one
    for one in (
        *(first_steps, own_algorithm, own_model_and_data, natural_federation),
        *(own_scheduler, compare_energy_budget, allocate_cell),
    )
}


PAGES = ("img/report", "img/playground", "img/report-compare", "results/common-encoder/common-encoder")
"""Pictures of the docs that the gallery shows smaller."""
WIDTH = 480


def main() -> None:
    """Draw all of them."""
    from PIL import Image

    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        with Image.open(PICTURES.parents[1] / f"{name}.png") as large:
            small = large.convert("RGB").resize((WIDTH, WIDTH * large.height // large.width), Image.Resampling.LANCZOS)
            small.quantize(64).save(PICTURES / f"{Path(name).name}.png", optimize=True)
    for name, draw in EXAMPLES.items():
        with tempfile.TemporaryDirectory() as folder:
            print(save(draw(Path(folder)), PICTURES / f"{name}.png"))


if __name__ == "__main__":
    main()
