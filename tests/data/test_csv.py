"""CSV files as datasets, and labels that are words."""

import numpy as np
import pytest

import kfl
from kfl.cli.main import main
from kfl.data import load_dataset

ROWS = [("1.5,2,walk,ann"), ("0.5,3,sit,bob"), ("2.5,4,walk,ann"), ("-1,5e-1,run,bob")] * 6


def write(folder, text, name="readings.csv"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))


def test_a_header_a_label_column_and_a_device_column(tmp_path):
    path = write(tmp_path, "\n".join(["speed,turn,label,person_id", *ROWS]))
    data = load_dataset(path)
    assert data.class_names == ("run", "sit", "walk") and data.device_names == ("ann", "bob")
    assert data.input_shape == (2,) and len(data.train_y) + len(data.test_y) == 24
    row = int(np.flatnonzero(data.train_y == 0)[0])
    np.testing.assert_array_equal(data.train_x[row], [-1, 0.5])
    assert data.train_device[row] == 1
    again = load_dataset(path)  # from the cache
    assert again.class_names == data.class_names and again.fingerprint() == data.fingerprint()


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_named_columns_and_a_test_file(tmp_path, delimiter):
    rows = [f"{index},{index % 3},a{index % 2}" for index in range(30)]
    for name in ("train.csv", "test.csv"):
        write(tmp_path / "set", "\ufeff" + "\n".join(["height,kind,place", *rows]).replace(",", delimiter), name)
    data = load_dataset(f"{tmp_path / 'set'},y=kind,device=place")
    assert (data.classes, data.device_names, data.input_shape) == (3, ("a0", "a1"), (1,))
    assert len(data.train_y) == len(data.test_y) == 30 and data.class_names == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,label\n1,0\nx,1\n", "line 3: a is 'x', but inputs must be numbers"),
        ("a,label\n1,0\n2\n", "line 3 has 1 cells, but the header 2"),
        ("a,label\n1,\n", "line 2: label is empty"),
        (",a,label\n0,1,0\n", "pandas writes: leave it out"),
        ("1,2,0\n3,4,1\n", "its first line must name the columns"),
        ("a,b\n1,0\n", "no labels by the name y or label or the like"),
        ("label\n1\n", "no columns of inputs next to label"),
        ("a,a,label\n1,2,0\n", "two columns by the name a"),
        ("a,label\n", "a header and no rows"),
        ('a,label\n"1,0\n', "cannot be read as CSV"),
        ("a,label\n" + "nan,0\n" * 9, "holds NaN or infinity"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, text, said, capsys):
    path = write(tmp_path, text)
    assert main(["run", "--dataset", path, "--devices", "2", "--out", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err
    assert said in shown and "Traceback" not in shown


def test_words_of_labels_are_kept_where_classes_are_shown(tmp_path, capsys):
    path = write(tmp_path, "\n".join(["speed,turn,activity_label,person_id", *ROWS]))
    assert main(["data", "show", "--dataset", path, "--split", "natural"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["device"])
    assert head.split() == ["device", "run", "sit", "walk", "train", "test"]
    words = ["--dataset", path, "--split", "natural", "--rounds", "2", "--radio", "none", "--model", "linear"]
    assert main(["run", *words, "--scheduler.count", "2", "--out", str(tmp_path / "run")]) == 0
    from kfl.report import build_report
    from kfl.runfolder import RunReader

    assert RunReader(tmp_path / "run").environment()["dataset"]["class_names"] == ["run", "sit", "walk"]
    page = build_report([tmp_path / "run"]).read_text()
    assert '"names":["run","sit","walk"]' in page


def test_arrays_may_have_words_for_labels():
    data = kfl.Dataset.from_arrays(np.arange(40.0)[:, None], np.array(["b", "a", "c", "a"] * 10))
    assert data.class_names == ("a", "b", "c") and data.classes == 3
    both = kfl.Dataset.from_arrays(np.eye(3), ["x", "y", "x"], np.eye(3), ["y", "z", "z"])
    assert both.test_y.tolist() == [1, 2, 2] and both.class_names == ("x", "y", "z")
