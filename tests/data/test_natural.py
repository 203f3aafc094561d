"""The natural split: each sample stays with the device that made it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfl
from kfl.cli.split_table import split_table
from kfl.core.errors import ConfigError, DataError
from kfl.data import Dataset, partition
from kfl.data.arrays import NOBODY, device_numbers
from kfl.experiment import DataSettings


def people(counts, classes: int = 3, seed: int = 0, **more) -> Dataset:
    """Samples that carry their owner's number; owners in a random order of rows."""
    draw = np.random.default_rng(seed)
    who = draw.permutation(np.repeat(np.arange(len(counts)) * 3 + 5, counts))
    x = np.stack([who, np.arange(len(who))], axis=1).astype(np.float32)
    return Dataset.from_arrays(x, np.arange(len(who)) % classes, train_device=who, classes=classes, **more)


def owner(data: Dataset, split: str, rows) -> set[str]:
    x = data.train_x if split == "train" else data.test_x
    return {str(int(one)) for one in x[rows, 0]}


@given(st.lists(st.integers(1, 12), min_size=2, max_size=9).filter(lambda n: max(n) > 1), st.integers(0, 5))
@settings(max_examples=60)
def test_every_sample_stays_with_whoever_made_it(counts, seed):
    data = people(counts, seed=seed)
    found = DataSettings(split="natural", devices=0).for_data(data).partition(data)
    assert found.devices == len(counts) and found.names == tuple(sorted(found.names, key=int))
    for device, name in enumerate(found.names):
        assert owner(data, "train", found.train[device]) == {name}
        assert owner(data, "test", found.test[device]) <= {name}
        held = counts[(int(name) - 5) // 3]
        assert len(found.train[device]) + len(found.test[device]) == held
        assert len(found.test[device]) == (min(max(round(held * 0.2), 1), held - 1) if held > 1 else 0)
    assert found.train_sizes.sum() == len(data.train_y) and found.test_sizes.sum() == len(data.test_y)
    assert np.array_equal(found.train_counts.sum(axis=1), found.train_sizes)


def test_fewer_devices_are_drawn_by_the_seed_and_keep_their_own():
    data = people([6] * 20)
    draws = [DataSettings(split="natural", devices=4, seed=seed).partition(data) for seed in (100, 100, 101)]
    assert draws[0].names == draws[1].names != draws[2].names
    assert len(set(draws[0].names)) == 4
    for device, name in enumerate(draws[2].names):
        assert owner(data, "train", draws[2].train[device]) == {name}
        assert owner(data, "test", draws[2].test[device]) == {name}
    with pytest.raises(ConfigError, match=r"devices is 21, but must be at most 20, .* or 0 for all"):
        DataSettings(split="natural", devices=21).partition(data)


def test_a_test_set_without_devices_follows_the_classes_of_each():
    who, y = np.repeat([1, 2], 30), np.repeat([0, 1], 30)  # one has only zeros, two only ones
    x = np.zeros((60, 2), dtype=np.float32)
    data = Dataset.from_arrays(x, y, x[:20], np.arange(20) % 2, train_device=who)
    found = DataSettings(split="natural", devices=2).partition(data)
    assert found.test_counts.tolist() == [[10, 0], [0, 10]]


def test_strangers_in_the_test_set_belong_to_nobody():
    x, y = np.zeros((6, 2), dtype=np.float32), np.arange(6) % 2
    data = Dataset.from_arrays(x, y, x[:4], y[:4], train_device=list("aabbcc"), test_device=list("axbz"))
    assert data.test_device.tolist() == [0, NOBODY, 1, NOBODY]
    for devices in (0, 2, 3):
        found = DataSettings(split="natural", devices=devices, seed=100).for_data(data).partition(data)
        assert found.test_sizes.sum() == len({"a", "b"} & set(found.names))


def test_it_composes_with_all_that_changes_a_split():
    data = people([30, 20, 10, 40], classes=4)
    natural = DataSettings(split="natural", devices=4)
    proxy = natural.proxy(data, 2)
    found = natural.partition(data, proxy)
    held = np.concatenate(found.train)
    assert len(proxy) == 8 and not set(proxy.tolist()) & set(held.tolist())
    for device, name in enumerate(found.names):
        assert owner(data, "train", found.train[device]) == {name}
    few = DataSettings(split="natural", devices=4, samples_per_device=5, tested_devices=2).partition(data)
    assert few.train_sizes.tolist() == [5] * 4 and (few.test_sizes > 0).sum() == 2 and few.names == found.names
    part = Dataset.from_arrays(
        np.zeros((40, 2)), np.arange(40) // 10, train_device=np.arange(40) // 20, test_fraction=0.5
    )
    new = DataSettings(split="natural", devices=2, new_class_samples=2).partition(part)
    assert (new.train_counts > 0).sum(axis=1).tolist() == [3, 3] and new.names == ("0", "1")


def test_data_without_devices_is_one_sentence():
    data = Dataset.from_arrays(np.eye(4), [0, 1, 0, 1])
    for devices in (0, 2):
        with pytest.raises(DataError, match="split is 'natural', but the data does not say whose each sample is"):
            DataSettings(split="natural", devices=devices).for_data(data).partition(data)
    with pytest.raises(DataError, match="train_device has 3 entries, but train_y has 4"):
        Dataset.from_arrays(np.eye(4), [0, 1, 0, 1], train_device=[1, 2, 3])
    with pytest.raises(DataError, match="train_device is missing"):
        Dataset.from_arrays(np.eye(4), [0, 1, 0, 1], np.eye(4), [0, 1, 0, 1], test_device=[1, 2, 3, 4])
    with pytest.raises(DataError, match=r"train_device has type int64, but test_device has <U1"):
        device_numbers([1, 2], ["a", "b"])
    with pytest.raises(DataError, match=r"train_device\[0\] is 2, but must be 0 … 1"):
        Dataset("a", np.eye(2, dtype=np.float32), np.array([0, 1]), np.eye(2, dtype=np.float32), np.array([0, 1]), 2,
                train_device=np.array([2, 0]), device_names=("a", "b"))  # fmt: skip


def test_other_splits_do_not_mind_devices_and_digests_do_not_change():
    data = people([30, 20, 10, 40], classes=4)
    plain = partition("iid", data.train_y, data.test_y, 4, 5, seed=0)
    found = DataSettings(split="iid", devices=5).partition(data)
    assert all(np.array_equal(a, b) for a, b in zip(plain.train, found.train, strict=True)) and found.names == ()
    assert data.fingerprint() != people([30, 20, 10, 40], classes=4, seed=1).fingerprint()


def test_the_table_shows_the_names():
    shown = split_table(DataSettings(split="natural", devices=3).partition(people([4, 5, 6])), width=100)
    assert [line.split()[0] for line in shown.splitlines()[5:]] == ["5", "8", "11"]


def test_an_experiment_asks_the_data_how_many_devices_there_are(tmp_path):
    experiment = kfl.Experiment(split="natural", devices=0, rounds=2, widths=(8,))
    data = people([12, 15, 9, 20])
    history = kfl.run(experiment, tmp_path / "run", dataset=data)
    assert [record["name"] for record in history.devices] == ["5", "8", "11", "14"]
    assert kfl.load_run(tmp_path / "run")[0].devices == 4
    again = kfl.run(experiment, tmp_path / "run", dataset=data)
    assert again.accuracy == history.accuracy, "the same run is recognized"
    (one,) = kfl.run_many([experiment], tmp_path / "many", dataset=data)
    assert one.accuracy == history.accuracy
    assert kfl.Experiment.from_table({"split": "natural"}).devices == 0
    assert kfl.Experiment.from_table({"split": "natural", "devices": 7}).devices == 7
    for split in ("natural", "iid"):
        with pytest.raises(ConfigError, match="devices is 0, but must be 1 or more"):
            kfl.Experiment(devices=0, split=split).validate()
