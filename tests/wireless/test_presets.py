"""Presets: every figure has its source, in code and in the reference; the paper's cells are as printed."""

import dataclasses
import hashlib
import re
import runpy
from pathlib import Path

import pytest

from kfl.scheduling.uplink import LARGEST_POWER_W
from kfl.wireless import PRESETS, CellConfig
from kfl.wireless.presets import PRESET_SOURCES

DOCS = Path(__file__).parents[2] / "docs"
generate = runpy.run_path(str(DOCS / "generated.py"))["on_page_markdown"]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_figure_has_its_source(name: str) -> None:
    """Words of its own, or the name of a field next to it that has them."""
    figures = PRESET_SOURCES[name].figures
    own, default = PRESETS[name], CellConfig()
    changed = {f.name for f in dataclasses.fields(own) if getattr(own, f.name) != getattr(default, f.name)}
    assert changed <= set(figures)
    for field, figure in figures.items():
        assert len(figure.source) >= len("our choice"), field
        for other in re.findall(r"`(\w+)`", figure.source):
            assert other in figures and other != field, (field, other)
        for address in re.findall(r"\]\((.*?)\)", figure.source + figure.remark):
            assert re.fullmatch(r"https?://\S+", address), (field, address)


def test_the_reference_shows_every_figure_with_its_source() -> None:
    page = generate((DOCS / "reference" / "wireless.md").read_text(encoding="utf-8"))
    sections = {part.partition("\n")[0]: part for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:]}
    for name, preset in PRESET_SOURCES.items():
        for field, figure in preset.figures.items():
            assert re.search(rf"^\| `{field}` \| [^|]+ \| {re.escape(figure.source)} \|", sections[name], re.MULTILINE)
    assert "| `cpu_frequencies_hz` | 1.4784, 1.728, 1.9008, 2.208 GHz |" in sections["5g-phone"]
    assert "| `power_coefficient` | 3.7·10⁻²⁷ |" in sections["nb-iot"]
    assert "| `min_power_dbm` | −40 dBm |" in sections["lte-m"]


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


FIGURES = {
    "paper-mnist-modem": "73d360aa",
    "paper-cifar10-modem": "aaa8fe53",
    "small-cell": "98499d94",
    "nb-iot": "2350a8e0",
    "lte-m": "a13735e2",
    "5g-phone": "a366f698",
    "wifi": "a9ed9a92",
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_are_those_that_results_were_published_with(name: str) -> None:
    """Results name their preset: another figure needs another name, or the results anew and a new digest here."""
    own, default = PRESETS[name], CellConfig()
    fields = sorted((f.name, getattr(own, f.name)) for f in dataclasses.fields(own))
    changed = [(field, value) for field, value in fields if value != getattr(default, field)]
    assert hashlib.blake2b(repr(changed).encode(), digest_size=4).hexdigest() == FIGURES[name], changed


def test_the_default_cell_is_the_papers() -> None:
    """Its figures, and nothing that it does not have: a file that leaves a field out means this."""
    default = CellConfig()
    assert default.cpu_frequencies_hz == (0.85e9, 1.12e9, 1.2e9, 1.3e9)
    assert (default.bandwidth_hz, default.noise_dbm_per_hz, default.max_power_dbm) == (5e6, -174.0, 30.0)
    assert (default.radius_m, default.min_distance_m) == (500.0, 1.0)
    assert (default.reference_gain_db, default.path_loss_exponent) == (-30.0, 2.0)
    assert (default.deadline_s, default.budget_j_per_round) == (1.0, 0.1)
    assert (default.flops_per_cycle, default.power_coefficient) == (4.0, 1e-27)
    assert default.printed_model
    for field in ("fading_correlation", "channel_error", "channel_margin_db", "shadowing_db"):
        assert getattr(default, field) == 0, field
    for field in ("downlink_power_dbm", "resource_blocks", "round_period_s", "battery_capacity_j"):
        assert getattr(default, field) is None, field
    assert (default.initial_charge, default.shadowing_distance_m) == (1.0, 50.0)
    assert (default.channel.name, default.source.name, default.movement.name) == ("rayleigh", "none", "none")


def test_no_preset_has_a_power_that_is_questioned() -> None:
    """A phone has 0.2 W; more than 10 W in a file is probably another unit."""
    assert max(cell.max_power_w for cell in PRESETS.values()) <= 1.0 + 1e-9 < LARGEST_POWER_W == 10.0
