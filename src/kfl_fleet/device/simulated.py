"""Devices that hold exactly what the simulator's devices hold: for `kfl deploy up`, and to compare the two.

The device's config is that of the experiment (any field that `kfl run --config` takes), or has the path of such a file
under `experiment`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfl_fleet.setup import DeviceSetup


def device(partition: int, config: Mapping[str, Any]) -> DeviceSetup:
    """Device number `partition` of the experiment in `config`: its part of the data and its network."""
    from kfl.core.errors import ConfigError
    from kfl.data import load_dataset
    from kfl.encoders import AUTO, NONE, make_encoder
    from kfl.models import fleet_from_name
    from kfl_fleet.settings import ServerConfig

    own = dict(config)
    file = own.pop("experiment", None)
    experiment = (ServerConfig.load(Path(file)) if file else ServerConfig.from_table(own)).experiment
    if not 0 <= partition < experiment.devices:
        raise ConfigError("partition-id", partition, f"from 0 to {experiment.devices - 1}")
    data = load_dataset(experiment.dataset)
    split = experiment.partition(data)
    encoder = NONE if experiment.encoder == AUTO else experiment.encoder
    shape = data.input_shape if encoder == NONE else (make_encoder(encoder).size(data.input_shape),)
    named = ("linear", None) if experiment.algorithm.needs_encoder else (experiment.model, experiment.widths)
    fleet = fleet_from_name(*named, experiment.devices, shape, data.classes, experiment.seed)
    mine, tested = split.train[partition], split.test[partition]
    return DeviceSetup(
        model=fleet.builders[int(fleet.architecture[partition])],
        train_x=data.train_x[mine],
        train_y=data.train_y[mine],
        test_x=data.test_x[tested],
        test_y=data.test_y[tested],
        classes=data.classes,
        scale=data.scale,
        mean=data.mean,
        std=data.std,
        encoder=encoder,
        name=data.name,
        model_name=fleet.names[int(fleet.architecture[partition])],
    )
