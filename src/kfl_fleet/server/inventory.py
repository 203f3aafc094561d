"""What the server knows about its devices: the numbers a round needs, from the devices' own profiles.

What a profile leaves open comes from the experiment's cell, drawn from the seed as in the simulator. With profiles that
leave all hardware open, and the simulated channel, all numbers are exactly the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from kfl.core.errors import ConfigError
from kfl.experiment import Experiment
from kfl.simulation.fleet import DeviceTable, FloatArray
from kfl.wireless import Cell, Hardware, LinkState
from kfl_fleet.messages.profile import Profile
from kfl_fleet.server.claim_limits import Belief

if TYPE_CHECKING:
    from torch import nn

    from kfl.engine import Engine
    from kfl.models import FleetModels, ModelProfile, SharedLayers, State


@dataclass(frozen=True, eq=False)
class Inventory:
    """One entry per device; a device that has not joined yet has no samples and is never available."""

    cell: Cell | None
    """With the devices' own hardware; None where uploads are free."""
    table: DeviceTable

    @staticmethod
    def build(
        experiment: Experiment,
        profiles: Mapping[int, Profile],
        server: State,
        shared: SharedLayers | None = None,
        network: ModelProfile | None = None,
    ) -> Inventory:
        """The devices whose profiles are known.

        `server` is the server's first state, which decides the sizes of messages. If the server knows, `shared` are
        the layers that all their networks share, and `network` is one of these.
        """
        count, config = experiment.devices, experiment.cell_config
        cell = None if config is None else Cell.build(config, count, experiment.seed)
        budget_j = np.full(count, np.inf) if cell is None else cell.budget_j(experiment.rounds)
        known_to = [profile.for_engine(shared, network) for profile in profiles.values()]
        found = experiment.algorithm.costs(known_to, server, real_work=experiment.real_work)
        costs = dict(zip(profiles, found, strict=True))

        def known(value: Callable[[int, Profile], float | None], otherwise: FloatArray) -> FloatArray:
            """The profiles' values, and the given ones where a profile has none."""
            result = otherwise.copy()
            for device, profile in profiles.items():
                own = value(device, profile)
                if own is not None:
                    result[device] = own
            return result

        def own_bits(profile: Profile) -> float:
            """Size of the device's own network, without what the algorithm put around it."""
            return 32.0 * (profile.parameters - experiment.algorithm.added_parameters(profile.for_engine()))

        none = np.zeros(count)
        if cell is not None:
            own = {one.name: known(_of_profile(one.name), getattr(cell.hardware, one.name)) for one in fields(Hardware)}
            cell = replace(cell, hardware=Hardware(**own))
        return Inventory(
            cell=cell,
            table=DeviceTable(
                samples=known(lambda _, p: float(p.samples), none),
                test_samples=known(lambda _, p: float(p.test_samples), none).astype(np.int64),
                flops=known(lambda d, _: costs[d].flops, none),
                bits_up=known(lambda d, _: costs[d].bits_up, none),
                bits_down=known(lambda d, _: costs[d].bits_down, none),
                model_bits=known(lambda _, p: own_bits(p), none),
                budget_j=known(lambda _, p: p.budget_j, budget_j),
            ),
        )

    def as_believed(self, beliefs: Mapping[int, Belief]) -> Inventory:
        """The same with samples as far as they are believed; what they cost is as the devices say."""
        samples, tests = self.table.samples.copy(), self.table.test_samples.copy()
        for device, belief in beliefs.items():
            samples[device], tests[device] = belief.samples, belief.test_samples
        return replace(self, table=replace(self.table, samples=samples, test_samples=tests))

    def with_masks(self, up_bits: float, down_bits: float) -> Inventory:
        """The same where uploads are added under masks: their size, and what comes down besides the broadcast."""
        joined = self.table.samples > 0
        table = replace(
            self.table,
            bits_up=np.where(joined, up_bits, 0.0),
            bits_down=np.where(joined, self.table.bits_down + down_bits, 0.0),
        )
        return replace(self, table=table)

    def with_gains(self, link: LinkState, gains: FloatArray) -> LinkState:
        """The cell's link state with measured gains, NaN where unknown.

        Unknown gains are 0 in the result: such a device cannot be reached.
        """
        assert self.cell is not None  # there is a link state
        known = np.where(np.isfinite(gains), gains, 0.0)
        return self.cell.with_gains(link, known, float(self.table.bits_down.max()))


def _of_profile(name: str) -> Callable[[int, Profile], float | None]:
    """A number of a device's hardware; None where its profile has none."""

    def value(device: int, profile: Profile) -> float | None:
        found: float | None = getattr(profile, name)
        return found

    return value


def server_engine(experiment: Experiment, profile: Profile) -> Engine:
    """An engine for the server, which has no data: it knows sizes, and the first weights of common layers.

    An algorithm whose server holds layers of the devices' networks needs these by name (`model` and its widths). For
    all others a stand-in of the right sizes does, which no device ever trains; its head is one linear layer.
    """
    from kfl.data import Dataset, Partition
    from kfl.data.dataset import View
    from kfl.encoders import ENCODERS, check_encoder, make_encoder
    from kfl.engine import LocalData
    from kfl.engine.plan import make_engine

    shape, classes = profile.input_shape, profile.classes
    models = experiment.algorithm.device_models(_server_models(experiment, profile))
    experiment.algorithm.check_models(models)
    nothing, labels = np.zeros((classes, *shape), dtype=np.float32), np.arange(classes)
    data = Dataset.from_arrays(nothing, labels, nothing, labels, classes=classes)
    if check_encoder(experiment.encoder)[0] in ENCODERS:
        name = experiment.encoder
        data = replace(data, view=View(name, 0.0, 0.0, make_encoder(name).whitened))
    count = len(models.architecture)
    rows, counts = (labels,) * count, np.ones((count, classes), dtype=np.int64)
    return make_engine(LocalData(data, Partition(rows, rows, counts, counts)), models)


def _server_models(experiment: Experiment, profile: Profile) -> FleetModels:
    """The networks that the experiment names, drawn as in the simulator, or a stand-in where the server needs none."""
    from kfl.models import FleetModels, fleet_from_name, inspect_model

    algorithm, shape, classes = experiment.algorithm, profile.input_shape, profile.classes
    if not (algorithm.needs_equal_models or algorithm.server_needs_models):
        build = _stand_in(shape, profile.features, classes)
        one = np.zeros(1, dtype=np.int64)
        return FleetModels((build,), one, (inspect_model(build(), shape, classes),), (None,), ("stand-in",))
    fleet = fleet_from_name(experiment.model, experiment.widths, experiment.devices, shape, classes, experiment.seed)
    sizes = [known.parameters for known in fleet.profiles]
    if profile.parameters not in sizes:
        raise ConfigError(
            "model",
            experiment.model,
            f"the network that devices have, with {profile.parameters} parameters and not "
            f"{' or '.join(map(str, sizes))}: {algorithm.name} averages weights",
        )
    return fleet


def _stand_in(shape: tuple[int, ...], features: int, classes: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torch import nn

        from kfl.models import SplitModel

        body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), features), nn.ReLU())
        return SplitModel(body, nn.Linear(features, classes))

    return build
