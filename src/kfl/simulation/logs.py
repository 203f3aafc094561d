"""What happened in a run: one log per round, and the totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import Rejection
from kfl.core.columns import Column, Records, column_of
from kfl.core.errors import MissingExtraError
from kfl.core.lazy import import_object
from kfl.core.names import html_table
from kfl.core.text import bit_count, percent, quantity, several
from kfl.experiment.faults import NOT_TRAINED
from kfl.scheduling import Status
from kfl.scheduling.uplink import ENERGY_PARTS

Axis = Literal["rounds", "joules", "seconds", "bits"]
"""What accuracy is drawn against: rounds, or what all devices had spent by then."""
AXES: tuple[Axis, ...] = ("rounds", "joules", "seconds", "bits")
Numbers = tuple[float, ...] | Column
"""A number for each device of a round."""
Devices = tuple[int, ...] | Column
PER_DEVICE = ("share", "power_w", "compute_energy_j", "upload_energy_j")
RADIO = ("gain", "true_gain", "compute_time_s", "upload_time_s", "queue_j")
"""Per device too; empty without a radio and in runs of earlier versions."""
BATTERY = ("charge_j", "empty", "harvest_j")
"""Written only where there is something to write."""
WHOLE_DEVICE = ("clock_hz", "static_j", "circuits_j", "tail_j", "receiving_j")
"""Per device too; empty, and not written, where the energy model is the printed one."""
IF_ANY = ("clipped", "kept_out")
"""Written only where there is something to write, too."""
WHO = ("devices", "missed", "lost", "diverged", "empty")
"""Lists of devices."""
COLUMNS = (*WHO, *PER_DEVICE, *RADIO, *WHOLE_DEVICE, "charge_j", "harvest_j")
"""Fields with a number for each of many devices: where they are long, columns and not tuples."""
LONGEST_LINE = 1000
"""A field with more numbers than this is a column, in memory and in a run folder."""


def numbers_of(values: NDArray[Any]) -> tuple[Any, ...] | Column:
    """Return the numbers of a field: a tuple, or a column where there are many.

    Args:
        values: One for each device of a round.

    >>> numbers_of(np.array([1.0, 2.0])), len(numbers_of(np.zeros(5000)))
    ((1.0, 2.0), 5000)
    """
    return Column(values) if len(values) > LONGEST_LINE else tuple(values.tolist())


@dataclass(frozen=True)
class Incident:
    """Something that went wrong with a device in a round."""

    round: int
    kind: str
    """A fault's name, or missed, outage, refused, diverged."""
    device: int
    reason: str = ""
    """Why an upload was refused, in words."""


@dataclass(frozen=True)
class RoundLog:
    """One round. Per-device values are in the order of `devices`, those that took part."""

    round: int
    """Counted from 0."""
    accuracy: float | None
    """Correct predictions over all test samples of all devices; None in rounds without a test."""
    devices: Devices
    share: Numbers
    power_w: Numbers
    compute_energy_j: Numbers
    upload_energy_j: Numbers
    time_s: float
    """Simulated duration: the broadcast, then the slowest device's computation and upload. A real fleet's is real."""
    bits_up: float
    """Counted from the uploads themselves; in runs of earlier versions, as the algorithm declared them."""
    bits_down: float
    objective: float | None
    lower_bound: float | None
    status: Status
    lost: Devices = ()
    """Devices whose upload did not arrive."""
    rejected: tuple[dict[str, Any], ...] = ()
    """Uploads the server refused: device, code and facts, as `kfl.algorithms.Rejection` reads them."""
    faults: tuple[dict[str, Any], ...] = ()
    """What went wrong with which device: device and fault."""
    diverged: Devices = ()
    """Devices whose training diverged to infinity; they keep the model they had."""
    gain: Numbers = ()
    """Channel gain that the server planned with. This and what follows is empty or None in earlier versions' runs."""
    true_gain: Numbers = ()
    """Channel gain that decided whether broadcast and upload arrived; empty where the server knew it."""
    compute_time_s: Numbers = ()
    """Seconds of local work."""
    upload_time_s: Numbers = ()
    """Seconds allotted to the upload."""
    queue_j: Numbers = ()
    """Virtual queue before the round."""
    reserved_s: float | None = None
    """Seconds taken off the deadline for the broadcast, before anyone was chosen."""
    broadcast_s: float | None = None
    """Seconds of the broadcast; None in a real fleet, which does not measure it."""
    missed: Devices = ()
    """Devices that the broadcast did not reach: they did nothing and spent nothing."""
    declared_bits_up: float | None = None
    """Bits that the algorithm declared and that times and energies were planned with; None where they were sent."""
    charge_j: Numbers = ()
    """Charge of the battery before the round. This and what follows is empty where devices have no batteries."""
    empty: Devices = ()
    """Devices that were there without the charge to take part."""
    harvest_j: Numbers = ()
    """What every device of the fleet harvested, whether or not it took part; empty where nothing is harvested."""
    clock_hz: Numbers = ()
    """Clock of each processor. This and what follows is empty where the energy model is the printed one."""
    static_j: Numbers = ()
    """Static power while computing; the rest of `compute_energy_j` is the work itself."""
    circuits_j: Numbers = ()
    """The radio's circuits while sending."""
    tail_j: Numbers = ()
    """Opening the connection, and keeping it after the last packet."""
    receiving_j: Numbers = ()
    """Listening to the broadcast; the rest of `upload_energy_j` is radiating."""
    kept_out: dict[str, int] = field(default_factory=dict)
    """How many devices took no part, by what kept them out: energy, band, deadline, away, or the scheduler's count."""
    clipped: tuple[dict[str, Any], ...] = ()
    """Devices of a real fleet that count for less than they say: device, code and facts, in words by
    `kfl.core.refusals.describe`. Their uploads were used."""

    def parts_j(self) -> dict[str, Numbers]:
        """Where each device's joules went, by the words of `kfl.scheduling.uplink.ENERGY_PARTS`.

        In the printed model all that the processor spends is computing, and all that the radio spends is radiating.
        """
        nothing = (0.0,) * len(self.devices)
        static, circuits, tail, receiving = (getattr(self, name) or nothing for name in WHOLE_DEVICE[1:])
        others = zip(self.upload_energy_j, circuits, tail, receiving, strict=True)
        return {
            "computing": tuple(max(all_j - one, 0.0) for all_j, one in zip(self.compute_energy_j, static, strict=True)),
            "static": static,
            "radiating": tuple(max(all_j - one - two - three, 0.0) for all_j, one, two, three in others),
            "circuits": circuits,
            "tail": tail,
            "receiving": receiving,
        }

    @property
    def energy_j(self) -> float:
        """Energy of all devices in this round."""
        return sum(self.compute_energy_j) + sum(self.upload_energy_j)

    @property
    def used(self) -> tuple[int, ...]:
        """Devices whose upload reached the server and was accepted."""
        missing = {*self.missed, *self.lost, *self.diverged, *(entry["device"] for entry in self.rejected)}
        missing |= {entry["device"] for entry in self.faults if entry.get("fault") in NOT_TRAINED}
        return tuple(device for device in self.devices if device not in missing)

    def incidents(self) -> list[Incident]:
        """What went wrong, at most one incident per device: refused before lost, a named fault before an outage."""
        found = {
            entry["device"]: Incident(self.round, str(entry.get("fault", "fault")), entry["device"])
            for entry in self.faults
        }
        found |= {device: Incident(self.round, "diverged", device) for device in self.diverged}
        found |= {device: Incident(self.round, "missed", device) for device in self.missed}
        found |= {device: Incident(self.round, "outage", device) for device in self.lost if device not in found}
        found |= {
            entry["device"]: Incident(self.round, "refused", entry["device"], Rejection.from_dict(entry).describe())
            for entry in self.rejected
        }
        return [found[device] for device in sorted(found)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON line."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        if self.declared_bits_up is None:
            del values["declared_bits_up"]
        written_if_any = (*BATTERY, *WHOLE_DEVICE, *IF_ANY)
        kept = {name: value for name, value in values.items() if value or name not in written_if_any}
        return {**kept, "status": self.status.to_dict()}

    @staticmethod
    def from_dict(values: Any, devices: int | None = None) -> RoundLog:
        """Read what `to_dict` wrote, in this version or an earlier one; ValueError for anything else.

        `devices` is the size of the fleet, where it is known. Numbers that JSON could not hold are NaN, or None where
        that is allowed; fields of a later version are ignored.
        """
        if not isinstance(values, dict) or type(values.get("round")) is not int or values["round"] < 0:
            raise ValueError("it is not a round")
        chosen = _devices(values, "devices", devices)
        read: dict[str, Any] = {name: _numbers(values, name, len(chosen)) for name in PER_DEVICE}
        read |= {
            name: _numbers(values, name, len(chosen))
            for name in (*RADIO, *WHOLE_DEVICE, "charge_j")
            if values.get(name)
        }
        if values.get("harvest_j"):
            fleet = len(values["harvest_j"]) if devices is None else devices
            read["harvest_j"] = _numbers(values, "harvest_j", fleet)
        read |= {name: _number(values.get(name)) for name in ("time_s", "bits_up", "bits_down")}
        perhaps = ("accuracy", "objective", "lower_bound", "reserved_s", "broadcast_s", "declared_bits_up")
        read |= {name: _number_or_none(values.get(name)) for name in perhaps}
        read |= {name: _devices(values, name, devices) for name in ("missed", "lost", "diverged", "empty")}
        read |= {name: _entries(values, name, devices) for name in ("rejected", "faults", "clipped")}
        out = values.get("kept_out") or {}
        if not isinstance(out, dict) or not all(type(count) is int and count >= 0 for count in out.values()):
            raise ValueError("kept_out holds no numbers of devices")
        read["kept_out"] = {str(reason): count for reason, count in out.items()}
        status = values.get("status", "ok")
        if not isinstance(status, dict | str):
            raise ValueError(f"{status!r} is not a status")
        try:
            parsed = Status.from_dict(status)
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"its status cannot be read: {problem}") from problem
        return RoundLog(round=values["round"], devices=chosen, status=parsed, **read)


def _devices(values: dict[str, Any], name: str, count: int | None) -> Devices:
    """A list of device indices."""
    found = values.get(name)
    found = () if found is None else found
    most = math.inf if count is None else count
    if isinstance(found, Column):
        fine = found.values.dtype.kind in "iu" and found.values.ndim == 1
        fine = fine and (not len(found) or (found.values.min() >= 0 and found.values.max() < most))
    else:
        fine = isinstance(found, list | tuple) and all(type(one) is int and 0 <= one < most for one in found)
    if not fine:
        raise ValueError(f"{name} names a device that is not one of {'the fleet' if count is None else count}")
    return found if isinstance(found, Column) else tuple(found)


def _entries(values: dict[str, Any], name: str, count: int | None) -> tuple[dict[str, Any], ...]:
    """A list of objects, each about a device."""
    found = values.get(name) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"{name} is not a list of objects")
    _devices({name: [entry.get("device") for entry in found]}, name, count)
    return tuple(found)


def _numbers(values: dict[str, Any], name: str, count: int) -> Numbers:
    found = values.get(name)
    if not isinstance(found, list | tuple | Column):
        raise ValueError(f"{name} is not a list of numbers")
    if len(found) != count:
        raise ValueError(f"{name} has {len(found)} values for {count} devices")
    if not isinstance(found, Column):
        return tuple(_number(value) for value in found)
    if found.values.dtype != np.float64 or found.values.ndim != 1:
        raise ValueError(f"{name} is not a column of numbers")
    return Column(np.where(np.abs(found.values) < 1e300, found.values, math.nan))


def _number(value: Any) -> float:
    """A finite number; NaN for null and for what is too large to add up."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value) if abs(value) < 1e300 else math.nan


def _number_or_none(value: Any) -> float | None:
    number = _number(value)
    return None if math.isnan(number) else number


@dataclass(frozen=True, repr=False)
class History:
    """A run: every round so far, and once it is finished the totals and what each device did and can.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=2, widths=(8,)))
    >>> len(history.rounds), 0 <= history.accuracy <= 1, len(history.devices)
    (2, True, 10)
    >>> history  # doctest: +ELLIPSIS
    <History of kfl: 2 rounds, accuracy ... %, 10 devices, ...J, 410 kbit up>
    """

    rounds: tuple[RoundLog, ...]
    summary: dict[str, Any] = field(default_factory=dict)
    """Totals; empty while the run is not finished."""
    devices: tuple[dict[str, Any], ...] | Records = ()
    """One record per device: rounds, energy, budget, accuracy, model, samples."""
    folder: str | None = None

    def __repr__(self) -> str:
        name = f" of {self.summary['algorithm']}" if "algorithm" in self.summary else ""
        accuracy = next((log.accuracy for log in reversed(self.rounds) if log.accuracy is not None), None)
        facts = [several(len(self.rounds), "round"), f"accuracy {percent(accuracy)}"]
        facts += [several(len(self.devices), "device")] if self.devices else ["not finished"]
        facts += [quantity(self.energy_j, "J"), f"{bit_count(self.bits_up)} up"]
        where = "" if self.folder is None else f", in {self.folder}"
        return f"<History{name}: {', '.join(facts)}{where}>"

    def _repr_html_(self) -> str:
        """The same as a table in a notebook."""
        facts = {"rounds": f"{len(self.rounds):,}", "devices": f"{len(self.devices):,}"}
        if any(log.accuracy is not None for log in self.rounds):
            facts["accuracy"] = percent(self.accuracy)
        if self.devices:
            facts["worst tenth"] = percent(self.worst_tenth)
        facts |= {"uploaded": bit_count(self.bits_up), "energy": quantity(self.energy_j, "J")}
        facts |= {"time in the cell": quantity(sum(log.time_s for log in self.rounds), "s")}
        title = str(self.summary.get("algorithm", "run"))
        return html_table(
            {name: [value] for name, value in facts.items()},
            title if self.folder is None else f"{title}, {self.folder}",
        )

    @property
    def accuracy(self) -> float:
        """Accuracy after the last round."""
        return next(log.accuracy for log in reversed(self.rounds) if log.accuracy is not None)

    @property
    def worst_tenth(self) -> float:
        """Mean accuracy of the worst tenth of the devices that have test samples."""
        values = sorted(value for value in column_of(self.devices, "accuracy") if value is not None)
        part = values[: max(1, len(values) // 10)]
        return float(sum(part) / len(part))

    @property
    def energy_j(self) -> float:
        """Energy of all devices over all rounds."""
        return sum(log.energy_j for log in self.rounds)

    @property
    def bits_up(self) -> float:
        """Bits uploaded by all devices over all rounds."""
        return sum(log.bits_up for log in self.rounds)

    def curve(self, x: Axis | None = None) -> tuple[list[float], list[float]]:
        """Accuracy after each round with a test, for a plot.

        Args:
            x: what all devices had spent by then: rounds, joules, seconds in the cell, or uploaded bits. None for the
                number of the round, from 0.

        Returns:
            The horizontal and the vertical coordinates.
        """
        at = [log.round for log in self.rounds] if x is None else spent_by_round(self.rounds, x)
        tested = [(place, log.accuracy) for place, log in zip(at, self.rounds, strict=True) if log.accuracy is not None]
        return [place for place, _ in tested], [accuracy for _, accuracy in tested]

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per round, by its number from 0: what was reached and what it took.

        >>> import kfl
        >>> frame = kfl.run(kfl.Experiment(devices=10, rounds=2, widths=8)).to_pandas()
        >>> len(frame), frame.index.name, list(frame.columns[:4])
        (2, 'round', ['accuracy', 'devices', 'energy_j', 'compute_energy_j'])
        """
        try:
            from pandas import DataFrame
        except ImportError as problem:
            raise MissingExtraError("pandas", "pandas", "History.to_pandas") from problem
        rows = [
            {
                "round": log.round,
                "accuracy": math.nan if log.accuracy is None else log.accuracy,
                "devices": len(log.devices),
                "energy_j": log.energy_j,
                "compute_energy_j": sum(log.compute_energy_j),
                "upload_energy_j": sum(log.upload_energy_j),
                "time_s": log.time_s,
                "bits_up": log.bits_up,
                "bits_down": log.bits_down,
                "lost": len(log.lost),
                "rejected": len(log.rejected),
            }
            for log in self.rounds
        ]
        return DataFrame(rows).set_index("round") if rows else DataFrame()

    def plot(self, x: Axis = "rounds", axes: Any = None) -> Any:
        """Draw accuracy against rounds, or against what all devices have spent so far, with Matplotlib.

        Args:
            x: rounds, joules, seconds in the cell, or uploaded bits.
            axes: Matplotlib axes to draw into, such as those of another run; None for a new figure.

        Returns the axes: `history.plot().figure.savefig("run.png")`.
        """
        # Plots are a layer above this one and know histories; what draws them is found by name.
        return import_object("kfl.plots:plot_history")(self, x, axes)


def spent_by_round(rounds: Sequence[RoundLog], x: Axis) -> list[float]:
    """What all devices had spent after each round: rounds, joules, seconds in the cell, or uploaded bits."""
    each = {
        "rounds": lambda log: 1.0,
        "joules": lambda log: log.energy_j,
        "seconds": lambda log: log.time_s,
        "bits": lambda log: log.bits_up,
    }[x]
    return list(accumulate(map(each, rounds)))


def diverged_sentence(diverged: float, participations: float) -> str:
    """What to say first of a run in which the training of some devices diverged; empty of any other.

    >>> diverged_sentence(3, 40)
    'Training diverged in 3 of 40 participations: those devices kept the model they had, and sent nothing. Lower \
--algorithm.learning-rate.'
    """
    if not diverged:
        return ""
    return (
        f"Training diverged in {diverged:,.0f} of {participations:,.0f} participations: those devices kept the model "
        "they had, and sent nothing. Lower --algorithm.learning-rate."
    )


def totals(rounds: Sequence[RoundLog]) -> dict[str, Any]:
    """Sums over all rounds; where the energy model is not the printed one, also the energy breakdown."""
    whole = any(log.clock_hz for log in rounds)
    return {
        "energy_j": sum(log.energy_j for log in rounds),
        "compute_energy_j": sum(sum(log.compute_energy_j) for log in rounds),
        "upload_energy_j": sum(sum(log.upload_energy_j) for log in rounds),
        "time_s": sum(log.time_s for log in rounds),
        "bits_up": sum(log.bits_up for log in rounds),
        **_declared(rounds),
        "bits_down": sum(log.bits_down for log in rounds),
        "uploads": sum(len(log.devices) for log in rounds),
        **({"energy_by_part_j": energy_by_part_j(rounds)} if whole else {}),
    }


def _declared(rounds: Sequence[RoundLog]) -> dict[str, float]:
    """Bits that were declared, where others were sent."""
    if all(log.declared_bits_up is None for log in rounds):
        return {}
    each = [log.bits_up if log.declared_bits_up is None else log.declared_bits_up for log in rounds]
    return {"declared_bits_up": sum(each)}


def energy_by_part_j(rounds: Sequence[RoundLog]) -> dict[str, float]:
    """Where the joules of all devices went over all rounds."""
    parts = [log.parts_j() for log in rounds]
    return {name: sum(sum(one[name]) for one in parts) for name in ENERGY_PARTS}
