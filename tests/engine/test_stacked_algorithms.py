"""Every registered algorithm learns the same on the stacked engine as one device after another."""

import numpy as np
import pytest
import torch

from kfl.algorithms import ALGORITHMS
from kfl.data import Dataset, partition
from kfl.engine import LocalData, RoundKey
from kfl.engine.stacked import StackedEngine
from kfl.models import fleet_from_name
from tests.reference.algorithms import small
from tests.reference.plain_engine import PlainEngine

torch.set_num_threads(1)
COHORTS = [[0, 3, 5], [4, 1, 0], [], [2, 5, 3, 0]]


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    y = np.arange(240) % 4
    x = (0.5 * draw.normal(size=(240, 8)) + draw.normal(size=(4, 8))[y]).astype(np.float32)
    dataset = Dataset.from_arrays(x[20:], y[20:])
    split = partition("dirichlet", dataset.train_y, dataset.test_y, 4, 6, 0)
    return LocalData(dataset, split, proxy=np.arange(12))


def play(algorithm, engine):
    server, states, means = algorithm.server_init(engine, 0), {}, []
    for number, cohort in enumerate(COHORTS):
        before = [states.get(k) or algorithm.device_init(engine, k, 0) for k in cohort]
        message = engine.place(algorithm.broadcast(server))
        after, uploads = algorithm.local_update(message, cohort, before, engine, RoundKey(0, number))
        server, rejected = algorithm.aggregate(server, uploads, engine=engine, key=RoundKey(0, number))
        assert not rejected
        states.update(zip(cohort, after, strict=True))
        devices = sorted(states)
        means.append(algorithm.correct(server, devices, [states[device] for device in devices], engine))
    return server, states, means


@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_learns_the_same(name, batch_size, data):
    algorithm = small(name, batch_size=batch_size, local_steps=3)
    widths = (9,) if algorithm.needs_equal_models else (6, 9)
    models = algorithm.device_models(fleet_from_name("mlp", widths, 6, (8,), 4, seed=0))
    # In float32 a hundred small steps pile up rounding to 3e-5.
    server, states, right = play(algorithm, PlainEngine(data, models, "float64"))
    found_server, found, found_right = play(algorithm, StackedEngine(data, models, "cpu", "float64"))
    assert found_right == right and list(found) == list(states)
    for one, other in [(found_server, server), *((found[device], states[device]) for device in states)]:
        assert list(one) == list(other)
        for key in other:
            torch.testing.assert_close(one[key], other[key], atol=1e-6, rtol=1e-6)
