"""Uploads with one thing wrong: refused with a reason, or used; the server never breaks and never raises."""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch

import kfl
from kfl.algorithms import ALGORITHMS, CommonKnowledge, FedKd, Kfl, Upload
from kfl.engine import LocalData, RoundKey
from kfl.engine.plan import make_engine
from kfl.simulation import build_world
from tests.reference.algorithms import small
from tests.reference.toy import toy_data

CASES = 150
VALUES = (math.nan, math.inf, -math.inf, 3.5e38, 1e-45, -1.0, 0.0, 1e300)
PROXY = {"fedkd": {"proxy_per_class": 5}}
TYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64)


@pytest.fixture(scope="module")
def world():
    data = toy_data(240, (5,), noise=1.0)
    return build_world(kfl.Experiment(devices=5, widths=(6,), algorithm=FedKd(proxy_per_class=5)), dataset=data)


def spoil(upload: Upload, draw: random.Random) -> Upload:
    """The upload with one mutation of one of its arrays."""
    arrays = dict(upload.arrays)
    name = draw.choice(sorted(arrays))
    value = arrays[name].clone()
    way = draw.randrange(11)
    if way == 0:
        flat = value.double().flatten()
        flat[draw.randrange(len(flat))] = draw.choice(VALUES)
        arrays[name] = flat.reshape(value.shape)
    elif way == 1:
        arrays[name] = value.double() * draw.choice((1e308, -1e30, 1e-320, 2.0**60))
    elif way == 2:
        arrays[name] = value.to(draw.choice(TYPES))
    elif way == 3:
        arrays[name] = value.flatten()[: draw.randrange(value.numel() + 1)]
    elif way == 4:
        arrays[name] = draw.choice(
            (value[None], value.squeeze(), value.reshape(-1), value.T if value.dim() == 2 else value)
        )
    elif way == 5:
        del arrays[name]
    elif way == 6:
        arrays[name + "x"] = arrays.pop(name)
    elif way == 7:
        arrays[name] = draw.choice((None, 3, "a", [1.0], np.ones(3), value.tolist()))
    elif way == 8:
        raw = bytearray(value.contiguous().numpy().tobytes())
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        arrays[name] = torch.frombuffer(raw, dtype=value.dtype).reshape(value.shape)
    elif way == 9:
        arrays[name] = draw.choice((value.to_sparse(), value.to("meta")))
    else:
        arrays["more"] = torch.full((3,), math.nan)
    return Upload(upload.device, arrays)


@pytest.mark.parametrize(
    "algorithm",
    [
        *(small(name, **PROXY.get(name, {})) for name in ALGORITHMS),
        *(Kfl(aggregation=rule) for rule in ("clip", "median", "trimmed")),
    ],
    ids=lambda algorithm: f"{algorithm.name}-{getattr(algorithm, 'aggregation', '')}",
)
def test_one_upload_with_one_mutation(world, algorithm, judged):
    data = LocalData(world.dataset, world.partition, world.experiment.proxy(world.dataset, 5))
    engine = make_engine(data, algorithm.device_models(world.models))
    server = algorithm.server_init(engine, 0)
    devices = [0, 1, 2]
    states = [algorithm.device_init(engine, device, 0) for device in devices]
    _, uploads = algorithm.local_update(algorithm.broadcast(server), devices, states, engine, RoundKey(0, 0))
    if not uploads:
        return
    aggregate = partial(algorithm.aggregate, engine=engine, key=RoundKey(0, 0))
    server, _ = aggregate(server, uploads)
    draw = random.Random(10)
    refused = 0
    rows = isinstance(algorithm, CommonKnowledge)  # it keeps the rows that devices sent, which may be more or fewer
    for _ in range(CASES):
        spoiled = spoil(uploads[1], draw)
        after, rejected = judged(lambda spoiled=spoiled: aggregate(server, [uploads[0], spoiled, uploads[2]]))
        assert [r.device for r in rejected] in ([], [1]) and all(r.describe() for r in rejected)
        refused += len(rejected)
        for name, value in after.items():
            assert value.shape[rows:] == server[name].shape[rows:] and value.dtype == server[name].dtype
            assert not value.is_floating_point() or torch.isfinite(value).all()
        alone, rejected = judged(lambda spoiled=spoiled: aggregate(server, [spoiled]))
        if rejected:
            assert all(torch.equal(alone[name], server[name]) for name in server)
    assert CASES / 4 < refused < CASES
