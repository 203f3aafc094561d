"""Presets against their page: no figure without a word about where it comes from."""

import dataclasses
import re
from pathlib import Path

import pytest

from kfl.wireless import PRESETS, CellConfig

PAGE = Path("docs/presets.md").read_text()
AS_PRINTED = {"paper-mnist", "paper-cifar10"}


def section(name: str) -> str:
    """The part of the page under the heading that names a preset."""
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    found = [part for part in parts if name in [word.strip() for word in part.partition("\n")[0].split(",")]]
    assert len(found) == 1, f"{name} has {len(found)} sections"
    return found[0]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_figure_has_its_source(name: str) -> None:
    """Each field that differs from the default is named in the section of its preset."""
    own, default = PRESETS[name], CellConfig()
    changed = [f.name for f in dataclasses.fields(own) if getattr(own, f.name) != getattr(default, f.name)]
    if name not in AS_PRINTED:
        assert changed and not [field for field in changed if f"`{field}`" not in section(name)]


def test_the_papers_cells_are_as_printed() -> None:
    assert PRESETS["paper-mnist"] == CellConfig(budget_j_per_round=0.1, deadline_s=1.0)
    assert PRESETS["paper-cifar10"] == CellConfig(budget_j_per_round=0.5, deadline_s=2.0)
    for data in ("mnist", "cifar10"):
        free, printed = PRESETS[f"paper-{data}-free-clock"], PRESETS[f"paper-{data}"]
        assert dataclasses.replace(free, min_cpu_hz=None) == printed
        assert PRESETS[f"paper-{data}-modem"].budget_j_per_round == printed.budget_j_per_round


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_papers_work_fits_every_deadline(name: str) -> None:
    """5 steps over 600 samples of the MLP, at the slowest of the fastest clocks."""
    cell = PRESETS[name]
    assert 5 * 600 * 550_346 / cell.flops_per_cycle / min(cell.cpu_frequencies_hz) < 0.7 * cell.deadline_s
