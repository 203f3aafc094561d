"""What a dataset accepts, how it reads, and how it is found by name."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from kfl.core.errors import ConfigError, DataError
from kfl.data import DATASETS, Dataset, load_dataset, resolve_data_dir
from kfl.data.storage import resolve_cache_dir

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 4


def test_inputs_are_scaled_and_standardised_only_when_read() -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 4), dtype=np.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    data = Dataset.from_arrays(x, [0, 1] * 3, x, [1, 0] * 3, scale=1 / 255, mean=mean, std=std)
    assert data.train_x.dtype == np.uint8 and data.input_shape == (3, 4, 4)
    got = data.inputs("train", [4, 1])
    channel = (1, 3, 1, 1)
    expected = (x[[4, 1]] / 255.0 - np.reshape(mean, channel)) / np.reshape(std, channel)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert data.labels("test", np.array([0, 1])).tolist() == [1, 0]
    assert data.labels("test").dtype == torch.int64


def test_reading_never_hands_out_the_storage() -> None:
    data = Dataset.from_arrays(X, Y, X, Y)
    data.inputs("train")[:] = -1
    data.inputs("train", np.arange(20))[:] = -1
    data.labels("train")[:] = 3
    assert np.array_equal(data.train_x, X) and np.array_equal(data.train_y, Y)


def test_no_indices_at_all_is_an_empty_batch() -> None:
    data = Dataset.from_arrays(X, Y)
    assert data.inputs("train", []).shape == (0, 3) and data.labels("train", []).shape == (0,)


def test_the_test_set_takes_the_same_fraction_of_every_class() -> None:
    y = np.repeat([0, 1, 2], [50, 30, 20])
    x = np.arange(100.0)[:, None]
    data = Dataset.from_arrays(x, y, test_fraction=0.2, seed=1)
    assert np.bincount(data.test_y).tolist() == [10, 6, 4]
    together = np.concatenate([data.train_x, data.test_x])[:, 0]
    assert np.array_equal(np.sort(together), np.arange(100.0))
    again = Dataset.from_arrays(x, y, test_fraction=0.2, seed=1)
    other = Dataset.from_arrays(x, y, test_fraction=0.2, seed=2)
    assert data.fingerprint() == again.fingerprint() != other.fingerprint()


def test_whole_numbers_in_any_type_are_labels() -> None:
    for y in (Y.astype(np.uint8), Y.astype(float), Y.tolist()):
        data = Dataset.from_arrays(X, y)
        assert data.train_y.dtype == np.int64 and data.classes == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((X, Y[:-1]), "train_x has 20 samples, but train_y has 19"),
        ((X, Y, X, Y[:3]), "test_x has 20 samples, but test_y has 3"),
        ((X, np.where(np.arange(20) == 7, -3, Y)), r"\[\d+\] is -3, but labels must be 0 … 3"),
        ((X, Y + 0.5), r"train_y\[0\] is 0.5, but labels must be integers"),
        ((X, np.where(np.arange(20) == 2, np.nan, Y)), r"train_y\[2\] is nan"),
        ((X, Y * 1j), "labels must be integers"),
        ((X, np.eye(4)[Y]), "one label per sample"),
        ((np.where(X == 30, np.nan, X), Y, X, Y), r"train_x\[10\] holds NaN"),
        ((X, Y, np.where(X == 30, np.inf, X), Y), r"test_x\[10\] holds NaN or infinity"),
        ((X[:0], Y[:0], X, Y), "The train set is empty"),
        ((X, Y, X[:0], Y[:0]), "The test set is empty"),
        ((X[:1], Y[:1]), "1 sample cannot be split"),
        ((X, Y, X), "test_y is missing"),
        ((X, Y, X[:, :2], Y), "one test sample has"),
        ((X[:, 0], Y), "train_x has shape"),
        (([[1, 2], [3]], [0, 1]), "samples differ in shape"),
        (([["a"], ["b"]], [0, 1]), "must hold numbers"),
    ],
)
def test_arrays_that_are_no_dataset(arguments, sentence) -> None:
    with pytest.raises(DataError, match=sentence):
        Dataset.from_arrays(*arguments)


def test_given_classes_bound_the_labels() -> None:
    with pytest.raises(DataError, match=r"train_y\[2\] is 2, but labels must be 0 … 1"):
        Dataset.from_arrays(X, Y, X, Y, classes=2)
    assert Dataset.from_arrays(X, Y, classes=9).classes == 9


@pytest.mark.parametrize("change", [{"mean": (0.0,)}, {"std": (1.0, 1.0)}, {"std": (1.0, 0.0, 1.0)}])
def test_standardisation_that_does_not_fit(change) -> None:
    with pytest.raises(DataError, match=next(iter(change))):
        Dataset.from_arrays(X, Y, **change)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_fractions_that_cannot_work(fraction) -> None:
    with pytest.raises(ConfigError, match="test_fraction"):
        Dataset.from_arrays(X, Y, test_fraction=fraction)


def test_split_names_are_checked() -> None:
    with pytest.raises(ConfigError, match="'train' or 'test'"):
        Dataset.from_arrays(X, Y).inputs("validation", [0])


def test_from_torch_reads_pairs() -> None:
    data = Dataset.from_torch(TensorDataset(torch.tensor(X), torch.tensor(Y)), name="t", test_fraction=0.25)
    assert data.name == "t" and len(data.train_y) == 15 and data.classes == 4
    rows = {tuple(row) for row in np.concatenate([data.train_x, data.test_x]).tolist()}
    assert rows == {tuple(row) for row in X.tolist()}
    both = Dataset.from_torch(
        TensorDataset(torch.tensor(X), torch.tensor(Y)), TensorDataset(torch.tensor(X), torch.tensor(Y))
    )
    assert np.array_equal(both.test_x, X)


def test_from_torch_refuses_what_is_not_pairs() -> None:
    with pytest.raises(DataError, match=r"Sample 0 of the train dataset is not a pair"):
        Dataset.from_torch(TensorDataset(torch.tensor(X)))


def test_fingerprints_tell_contents_apart() -> None:
    base = Dataset.from_arrays(X, Y, X, Y)
    changed_x, changed_y = X.copy(), Y.copy()
    changed_x[3, 0] += 1
    changed_y[5] = (changed_y[5] + 1) % 4
    prints = [
        base.fingerprint(),
        Dataset.from_arrays(changed_x, Y, X, Y).fingerprint(),
        Dataset.from_arrays(X, changed_y, X, Y).fingerprint(),
        Dataset.from_arrays(X, Y, X, Y, scale=2.0).fingerprint(),
    ]
    assert len(set(prints)) == 4
    assert Dataset.from_arrays(X, Y, X, Y, name="renamed").fingerprint() == prints[0]


OWN = """
import numpy as np
from kfl.data import Dataset

def good(): return Dataset.from_arrays(np.ones((10, 2)), np.arange(10) % 2, name="own")
def bad(): return 3
thing = 4
"""


def test_your_own_dataset_by_address(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own_dataset.py").write_text(OWN)
    (tmp_path / "broken_dataset.py").write_text("def (")
    (tmp_path / "needy_dataset.py").write_text("import no_such_package_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_dataset("own_dataset:good").name == "own"
    for address, sentence in [
        ("own_dataset:bad", "returned int"),
        ("own_dataset:thing", "not callable"),
        ("own_dataset:absent", "no attribute 'absent'"),
        ("no_such_module:x", "cannot be imported: No module named 'no_such_module'"),
        ("broken_dataset:x", "cannot be imported"),
        ("needy_dataset:x", "No module named 'no_such_package_at_all'"),
        (":x", "cannot be imported"),
        ("own_dataset:", "no attribute"),
    ]:
        with pytest.raises(DataError, match=sentence):
            load_dataset(address)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"cifar-10.*mnist-5k, mnist, cifar10.*did you mean cifar10"):
        load_dataset("cifar-10")


def test_every_registered_dataset_has_one_line_of_help() -> None:
    for source in DATASETS.values():
        assert source.description and "\n" not in source.description


def test_folders_come_from_argument_then_environment_then_home(tmp_path: Path, monkeypatch) -> None:
    for resolve, own, xdg, below in (
        (resolve_data_dir, "KFL_DATA_DIR", "XDG_DATA_HOME", ".local/share/kfl"),
        (resolve_cache_dir, "KFL_CACHE_DIR", "XDG_CACHE_HOME", ".cache/kfl"),
    ):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv(own, "own")
        monkeypatch.setenv(xdg, "xdg")
        assert resolve(Path("given")) == Path("given")
        assert resolve(None) == Path("own")
        monkeypatch.delenv(own)
        assert resolve(None) == Path("xdg/kfl")
        monkeypatch.delenv(xdg)
        assert resolve(None) == tmp_path / below


def test_importing_the_room_brings_no_heavy_library() -> None:
    heavy = ("torch", "sklearn", "PIL", "pyarrow", "matplotlib")
    code = f"import sys, kfl.data; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
