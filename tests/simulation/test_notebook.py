"""What results are in a notebook: tables, frames and figures of runs, comparisons and schedules."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

import kfl
from kfl.scheduling import read_problem, schedule

SETTING = kfl.Experiment(devices=6, rounds=2, widths=8, samples_per_device=20, scheduler="all")
DEVICES = [
    {
        "id": f"<b>{k}</b>",
        "gain": (k + 1) * 1e-11,
        "payload_bits": 20000,
        "compute_time_s": 0.1,
        "compute_energy_j": 0.1 * (k + 1),
    }
    for k in range(3)
]
CELL = json.dumps({"bandwidth_hz": 1e6, "deadline_s": 5, "samples": 9, "budget_j": 99, "devices": DEVICES}, indent=1)


class Cells(HTMLParser):
    """The cells of all tables; anything but the tags of a table fails."""

    def __init__(self, text):
        super().__init__()
        self.cells = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert tag in {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"} and not attrs

    def handle_data(self, data):
        self.cells.append(data)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    entries = {"kfl": SETTING, "<i>me</i>": SETTING}
    return kfl.compare(entries, seeds=[0], folder=tmp_path_factory.mktemp("compared"))


def test_a_run_and_a_comparison_are_tables(found):
    history = kfl.run(SETTING)
    cells = Cells(history._repr_html_()).cells
    assert cells[cells.index("accuracy") - 2] == "rounds" and f"{history.accuracy:.2%}".replace("%", "") in str(cells)
    cells = Cells(found._repr_html_()).cells
    assert "<i>me</i>" in cells and "kfl" in cells  # names are text
    assert found.to_pandas()["accuracy"].tolist() == [record["accuracy"] for record in found.records]


def test_a_schedule_is_a_table_a_frame_and_a_figure():
    result = schedule(read_problem(CELL))
    assert "<b>0</b>" in Cells(result._repr_html_()).cells
    frame = result.to_pandas()
    assert len(frame) == result.participation_count.sum() and set(frame["round"]) == {0}
    spent = frame.groupby("device")[["compute_energy_j", "upload_energy_j"]].sum()
    np.testing.assert_allclose(spent["upload_energy_j"].to_numpy(), result.upload_energy_j)
    axes = result.plot()
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights, [*result.compute_energy_j, *result.upload_energy_j])
