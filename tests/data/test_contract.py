"""What every named dataset promises. A new one joins by being registered in DATASETS."""

from __future__ import annotations

import numpy as np
import pytest

from kfl.cli.doctor import datasets
from kfl.core.errors import KflError
from kfl.data import DATASETS, load_dataset, resolve_data_dir
from kfl.models import fleet_from_name

every = pytest.mark.parametrize("source", DATASETS.values(), ids=DATASETS.keys())


def load(source):
    if not source.files(resolve_data_dir()):
        pytest.skip(f"{source.name} is not on this machine")
    return load_dataset(source.name)


@every
def test_it_says_what_it_is_and_how_to_get_it(source, tmp_path):
    assert DATASETS[source.name] is source and source.description
    assert source.get or source.by_hand(tmp_path), "users without the files need instructions"
    assert all(path.is_file() for path in source.files(tmp_path))


@every
def test_it_loads_as_itself_and_the_same_every_time(source):
    one, two = load(source), load(source)
    assert one.name == source.name and one.fingerprint() == two.fingerprint()
    assert set(np.unique(one.train_y)) == set(range(one.classes)), "every class has training samples"
    assert set(np.unique(one.test_y)) == set(range(one.classes)), "every class has test samples"


@every
def test_a_folder_without_its_files_is_one_sentence(source, tmp_path):
    if source.files(tmp_path):
        return
    with pytest.raises(KflError, match=source.get if source.get else "put "):
        load_dataset(source.name, tmp_path, tmp_path / "cache")


@every
def test_a_network_is_found_for_it(source):
    data = load(source)
    models = fleet_from_name("auto", (32, 48), 4, data.input_shape, data.classes, seed=0)
    assert models.profile(0).classes == data.classes


@every
def test_the_doctor_shows_its_own_files_and_how_to_get_them(source, tmp_path, monkeypatch):
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))
    for folder in (resolve_data_dir(), tmp_path):
        monkeypatch.setenv("KFL_DATA_DIR", str(folder))
        (finding,) = [finding for finding in datasets() if finding.name == source.name]
        files = source.files(folder)
        if files:
            assert finding.state == "ok" and str(files[0].parent) in finding.text
        else:
            assert finding.state == "absent"
            assert finding.advice == source.get or finding.advice == source.how_to_get(folder)
