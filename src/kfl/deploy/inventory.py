"""What the server knows about its devices: the numbers a round needs, from the devices' own profiles.

What a profile leaves open comes from the experiment's cell, drawn from the seed as in the simulator. With profiles that
leave all hardware open, and the simulated channel, all numbers are exactly the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kfl.core.errors import ConfigError
from kfl.deploy.profile import Profile
from kfl.experiment import Experiment
from kfl.simulation.fleet import DeviceTable, FloatArray
from kfl.wireless import Cell, LinkState

if TYPE_CHECKING:
    from torch import nn

    from kfl.engine import Engine


@dataclass(frozen=True, eq=False)
class Inventory:
    """One entry per device; a device that has not joined yet has no samples and is never available."""

    cell: Cell | None
    """With the devices' own hardware; None where uploads are free."""
    table: DeviceTable

    @staticmethod
    def build(experiment: Experiment, profiles: Mapping[int, Profile]) -> Inventory:
        """The devices whose profiles are known."""
        count, config = experiment.devices, experiment.cell_config
        cell = None if config is None else Cell.build(config, count, experiment.seed)
        budget_j = np.full(count, np.inf) if cell is None else cell.budget_j(experiment.rounds)
        costs = {
            device: experiment.algorithm.cost(profile.for_engine(), real_work=experiment.real_work)
            for device, profile in profiles.items()
        }

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
            cell = replace(
                cell,
                cpu_hz=known(lambda _, p: p.cpu_hz, cell.cpu_hz),
                flops_per_cycle=known(lambda _, p: p.flops_per_cycle, cell.flops_per_cycle),
                power_coefficient=known(lambda _, p: p.power_coefficient, cell.power_coefficient),
                max_power_w=known(lambda _, p: p.max_power_w, cell.max_power_w),
                min_cpu_hz=known(lambda _, p: p.min_cpu_hz, cell.min_cpu_hz),
                static_power_w=known(lambda _, p: p.static_power_w, cell.static_power_w),
                circuit_power_w=known(lambda _, p: p.circuit_power_w, cell.circuit_power_w),
                amplifier_efficiency=known(lambda _, p: p.amplifier_efficiency, cell.amplifier_efficiency),
                min_power_w=known(lambda _, p: p.min_power_w, cell.min_power_w),
                tail_j=known(lambda _, p: p.tail_j, cell.tail_j),
                receive_power_w=known(lambda _, p: p.receive_power_w, cell.receive_power_w),
            )
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

    def with_gains(self, link: LinkState, gains: FloatArray) -> LinkState:
        """The cell's link state with measured gains, NaN where unknown.

        Unknown gains are 0 in the result: such a device cannot be reached.
        """
        assert self.cell is not None  # there is a link state
        known = np.where(np.isfinite(gains), gains, 0.0)
        reserved_s = self.cell.broadcast_time(known, known > 0, float(self.table.bits_down.max()))
        return replace(
            link,
            gain=known,
            true_gain=known,
            upload_time_s=self.cell.config.deadline_s - reserved_s - link.compute_time_s,
            reserved_s=reserved_s,
        )


def server_engine(experiment: Experiment, profile: Profile) -> Engine:
    """An engine for the server, which has no data: it knows sizes, and the first weights of a common model.

    An algorithm that averages weights needs the devices' network by name (`model` with one width). For all
    others a stand-in of the right sizes does, which nobody ever trains.
    """
    from kfl.deploy.device import DeviceSetup
    from kfl.deploy.worker import one_device_engine
    from kfl.models import fleet_from_name

    shape, classes = profile.input_shape, profile.classes
    builder: Callable[[], nn.Module]
    if experiment.algorithm.needs_equal_models:
        fleet = fleet_from_name(experiment.model, experiment.widths, 1, shape, classes, experiment.seed)
        if fleet.profiles[0].parameters != profile.parameters:
            raise ConfigError(
                "model",
                experiment.model,
                f"the network that devices have, with {profile.parameters} parameters and not "
                f"{fleet.profiles[0].parameters}: {experiment.algorithm.name} averages weights",
            )
        builder = fleet.builders[0]
    else:
        builder = _stand_in(shape, profile.features, classes)
    nothing = np.zeros((classes, *shape), dtype=np.float32)
    setup = DeviceSetup(builder, nothing, np.arange(classes), nothing, np.arange(classes), classes=classes)
    return one_device_engine(setup, 0, experiment.algorithm)


def _stand_in(shape: tuple[int, ...], features: int, classes: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torch import nn

        from kfl.models import SplitModel

        body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), features), nn.ReLU())
        return SplitModel(body, nn.Linear(features, classes))

    return build
