"""The devices of a run, as a round meets them.

A `Fleet` can be observed and asked to learn. Everything above it exists once and does not know which fleet it plays
with: the round, the runner with its checkpoints, the summary, the history.

    SimulatedFleet   kfl.simulation.simulated_fleet   engine, channel and faults in this process
    FlowerFleet      kfl_fleet.server.fleet          messages to real machines, and answers that must be checked
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.experiment.availability import can_be_asked
from kfl.scheduling import Decision, Observation, Status
from kfl.scheduling.accounts import RoundInputs, observe

if TYPE_CHECKING:
    from kfl.algorithms import Upload
    from kfl.algorithms.base import Message
    from kfl.algorithms.sums import Sums
    from kfl.engine import Engine
    from kfl.experiment import Experiment
    from kfl.models import State
    from kfl.simulation.state import RunState
    from kfl.wireless import Cell, LinkState

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """What does not change from round to round, one entry per device. A device that has not joined yet has zeros."""

    samples: FloatArray
    """Training samples D_k."""
    test_samples: IntArray
    flops: FloatArray
    """Work of a round."""
    bits_up: FloatArray
    """Size of the upload, as the algorithm declares it."""
    bits_down: FloatArray
    """Size of the broadcast."""
    model_bits: FloatArray
    """Size of the whole model: what FedAvg would upload."""
    budget_j: FloatArray
    """Energy budget E_k for the whole run; infinite where there is none."""
    first_flops: FloatArray | None = None
    """Work that comes on top in a device's first round: encoding its samples. None for nothing."""
    first_bits_down: float = 0.0
    """What a device downloads before its first round: an encoder that is no formula."""
    class_counts: IntArray | None = None
    """Training samples of each class, (devices, classes); None where devices do not tell."""

    @cached_property
    def size(self) -> int:
        """The number of devices K."""
        return len(self.samples)


@dataclass(frozen=True, eq=False)
class Conditions:
    """What a round starts from."""

    observation: Observation
    """What the server knows, and the scheduler decides by."""
    link: LinkState | None
    """The channel with its true gains, by which uploads arrive or do not; None without a radio."""
    harvest_j: FloatArray | None = None
    """Joules that each device harvests during the round; None where nothing fills batteries."""


@dataclass(frozen=True, eq=False)
class Replies:
    """What came of a round's decision."""

    uploads: Sequence[Upload]
    """Those that arrived and may be aggregated."""
    usable: int
    """Devices that did what they were asked to, whether or not their algorithm uploads anything."""
    compute_energy_j: FloatArray
    """Really spent, one entry per device; 0 where it sat out."""
    upload_energy_j: FloatArray
    time_s: float
    """How long the round took: simulated seconds, or a real fleet's."""
    sent: Collection[int]
    """Devices that used the uplink, even if nothing arrived."""
    sent_bits: Mapping[int, float] = field(default_factory=dict)
    """Sizes of the uploads, counted from what they hold; of a device that is not here, what was declared counts."""
    broadcast_s: float | None = None
    """Part of `time_s` before the devices began; None where unknown."""
    sums: Sums | Status | None = None
    """Where uploads are added unseen: their sums, or why there are none. None where `uploads` count."""
    states: Mapping[int, State] = field(default_factory=dict)
    """New states of devices that trained; empty where devices keep their states themselves."""
    correct: Mapping[int, int] = field(default_factory=dict)
    """Right test predictions of devices that report them with their reply."""
    missed: Collection[int] = ()
    """Devices that the broadcast did not reach: they did nothing and spent nothing."""
    lost: Collection[int] = ()
    """Devices whose upload did not arrive."""
    rejected: Sequence[dict[str, Any]] = ()
    """Uploads that arrived and cannot be used."""
    faults: Sequence[dict[str, Any]] = ()
    clipped: Sequence[dict[str, Any]] = ()
    """Devices that count for less than they say, as `RoundLog.clipped` has them."""
    diverged: Collection[int] = ()
    """Devices whose training diverged; they keep the model they had."""


class Fleet(ABC):
    """Devices that can be asked to learn: simulated ones, or real ones behind Flower."""

    experiment: Experiment
    engine: Engine
    """What the server itself computes with: its first state, and aggregation."""
    cell: Cell | None
    """The radio; None for uploads that are free and instant."""
    table: DeviceTable
    evaluate_every: int = 1
    """Rounds between two evaluations."""
    quorum: float = 0.0
    """Share of the chosen devices that must be usable; with fewer, the round leaves the server as it was."""
    foreseeable: bool = False
    """Whether its rounds follow from seed and round alone, so that they can be decided before they are played."""
    stops_on_divergence: bool = False
    """Whether a run in which most devices diverge ends with an error, or goes on with a warning."""

    @property
    def harvests(self) -> bool:
        """Whether anything fills the batteries of the devices."""
        return self.cell is not None and self.cell.config.source.fills

    def assemble(self) -> None:
        """Wait for the devices, before the first round."""

    def restore(self, state: RunState) -> RunState:
        """A checkpoint's state, made ready to go on with."""
        return state

    def gather(self, state: RunState) -> RunState:
        """Wait until a round can start; the state with devices that joined since the last one counted in."""
        return state

    @abstractmethod
    def available(self, state: RunState, link: LinkState | None) -> BoolArray:
        """Which devices can be asked in this round."""

    def link_state(self, state: RunState) -> LinkState | None:
        """The channel of this round; None without a radio."""
        if self.cell is None:
            return None
        table, flops = self.table, self.table.flops
        broadcast_bits = float(table.bits_down.max())
        if table.first_flops is not None:
            flops = flops + np.where(state.accounts.participation_count == 0, table.first_flops, 0.0)
        return self.cell.link_state(state.round, flops, table.bits_up, state.fading, broadcast_bits=broadcast_bits)

    def observe(self, state: RunState) -> Conditions:
        """Gains, costs, batteries, and who is there."""
        link, table, experiment = self.link_state(state), self.table, self.experiment
        available = self.available(state, link) & can_be_asked(experiment, state.round)
        worth = experiment.algorithm.worth(state.server, table.samples, table.class_counts)
        inputs = RoundInputs(
            seed=experiment.seed,
            samples=table.samples if worth is None else worth,
            available=available if worth is None else available & (worth > 0),
            uplink=None if link is None else link.uplink,
            compute_energy_j=np.zeros(table.size) if link is None else link.compute_energy_j,
            harvest_j=self.cell.harvest_j(state.round) if self.cell is not None and self.harvests else None,
        )
        seen = observe(state.accounts, inputs, budget_j=table.budget_j, hard_budget=experiment.hard_budget)
        return Conditions(seen, link, inputs.harvest_j)

    @abstractmethod
    def exchange(self, state: RunState, conditions: Conditions, decision: Decision, message: Message) -> Replies:
        """Send the message to the chosen devices, let them learn, and collect what comes back."""

    def broadcast(self, conditions: Conditions, decision: Decision) -> tuple[float, Decision]:
        """Simulated seconds of the broadcast, and the decision without the devices that miss it."""
        if conditions.link is None or self.cell is None or not decision.chosen.any():
            return 0.0, decision
        bits = float(self.table.bits_down.max())
        time_s, missed = self.cell.broadcast(conditions.link, decision.chosen, bits)
        return time_s, replace(decision, chosen=decision.chosen & ~missed)

    @abstractmethod
    def evaluate(self, state: RunState, devices: Collection[int]) -> IntArray:
        """Right test predictions of every device, where those of `devices` may have changed since the last time."""

    @abstractmethod
    def describe_devices(self) -> Iterable[dict[str, Any]]:
        """For each device its number, model, parameters, samples and classes."""

    def device_columns(self) -> dict[str, NDArray[Any]] | None:
        """What `describe_devices` says, as columns of `kfl.core.columns.Records`; None where there are few devices."""
        return None


def finite(states: Sequence[State]) -> list[bool]:
    """Whether every number of each state is finite; from a GPU, read back at once."""
    import torch

    arrays = [[value for value in state.values() if value.is_floating_point()] for state in states]
    flat = [value for row in arrays for value in row]
    if not flat:
        return [True] * len(states)
    if all(value.device.type == "cpu" for value in flat):
        # A number that is not finite makes the sum so too, and a sum is the quickest pass. It may also overflow.
        fine = [bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all()) for value in flat]
    else:
        # One fused call for all arrays of all devices: on a GPU hundreds of small ones take longer than training.
        largest = [norm.to(flat[0].dtype) for norm in torch._foreach_norm(flat, float("inf"))]
        fine = torch.isfinite(torch.stack(largest)).tolist()
    ends = list(itertools.accumulate(len(row) for row in arrays))
    return [all(fine[end - len(row) : end]) for row, end in zip(arrays, ends, strict=True)]
