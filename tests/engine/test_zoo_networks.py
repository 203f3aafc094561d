"""Every named network trains alike on every engine: one after another, on all cores, and stacked."""

import logging

import numpy as np
import pytest
import torch

from kfl.data import Dataset, partition
from kfl.engine import FeatureTargets, LocalData, RoundKey, Sgd, Supervised
from kfl.engine.plan import make_engine
from kfl.engine.stacked import StackedEngine
from kfl.models import fleet_from_name
from tests.reference.plain_engine import PlainEngine, class_means

CLASSES, DEVICES = 4, 6
SGD = Sgd(2, 0.05, 0.03, 0.9, batch_size=9)


def local_data(shape):
    draw = np.random.default_rng(100)
    y = np.arange(150) % CLASSES
    x = (0.4 * draw.normal(size=(150, *shape)) + 0.3 * y.reshape(-1, *[1] * len(shape))).astype(np.float32)
    data = Dataset.from_arrays(x, y, x[:60], y[:60])
    return LocalData(data, partition("iid", data.train_y, data.test_y, CLASSES, DEVICES, seed=100))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("resnet8-2,resnet18-2", (3, 8, 8)),
        ("mobilenet-2,transformer-4", (3, 9, 8)),
        ("sensor-2,sensor-3,transformer-4", (3, 30)),
    ],
)
def test_a_named_network_trains_alike_everywhere(model, shape, caplog):
    """In float64: in float32 a unit of a MobileNet that is zero but for rounding may be on or off, and its gradient is
    then another after a few steps."""
    caplog.set_level(logging.WARNING, logger="kfl")
    data = local_data(shape)
    models = fleet_from_name(model, None, DEVICES, shape, CLASSES, seed=100)
    plain = PlainEngine(data, models, "float64")
    targets = torch.randn(CLASSES, models.features, generator=torch.Generator().manual_seed(100), dtype=torch.float64)
    objective = Supervised(FeatureTargets(0.3, targets, torch.tensor([True, True, False, True])))
    first = [plain.initial(device, 100) for device in range(DEVICES)]
    wanted = plain.train(range(DEVICES), first, objective, SGD, RoundKey(100, 0))
    expected, counts = class_means(plain, range(DEVICES), wanted)
    for engine in (make_engine(data, models, precision="float64"), StackedEngine(data, models, "cpu", "float64")):
        found = engine.train(range(DEVICES), first, objective, SGD, RoundKey(100, 0))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
        means, numbers = class_means(engine, range(DEVICES), found)
        torch.testing.assert_close(means, expected, atol=1e-9, rtol=1e-9)
        assert torch.equal(numbers, counts)
    assert not caplog.records  # none is refused as one that cannot be stacked
