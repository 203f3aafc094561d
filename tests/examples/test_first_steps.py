"""The notebook: valid, without outputs, and its cells run one after another as plain Python."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"


@pytest.fixture
def notebook():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def test_it_is_a_notebook_without_outputs(notebook):
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        common = {"id", "cell_type", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert set(cell) == common | {"execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
        else:
            assert (cell["cell_type"], set(cell)) == ("markdown", common)
    assert NOTEBOOK.stat().st_size < 14_000


def test_its_cells_run(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "svg")  # a picture without a window
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: plt.savefig("figure.svg"))
    names = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    plt.close("all")
    assert names["history"].accuracy > 0.5
    assert names["alone"].bits_up == 0
    assert {line["label"] for line in names["found"].records} == {"kfl", "smooth", "alone"}
    assert "The uplink dominates" in capsys.readouterr().out
    assert (tmp_path / "figure.svg").exists()
    assert (tmp_path / "runs" / "first-steps.html").read_text(encoding="utf-8").startswith("<!doctype html>")
