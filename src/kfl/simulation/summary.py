"""The account of a run: totals, the energy of every device and its budget, and what each device did and can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.columns import Records
from kfl.experiment.faults import RAN_DRY
from kfl.simulation.logs import RoundLog, totals
from kfl.simulation.rehearsal import least_energy, random_devices

if TYPE_CHECKING:
    from kfl.scheduling.accounts import Batteries
    from kfl.simulation.fleet import Fleet
    from kfl.simulation.state import RunState

FloatArray = NDArray[np.float64]


def summarise(fleet: Fleet, state: RunState, logs: Sequence[RoundLog], wall_s: float) -> dict[str, Any]:
    """Totals of a run, and what FedAvg would have uploaded with the same devices in the same rounds."""
    accuracies = [log.accuracy for log in logs if log.accuracy is not None]
    found = {"random_devices": random_devices(fleet, logs), "least_energy_j": least_energy(fleet, state, logs)}
    return {
        "algorithm": fleet.experiment.algorithm.name,
        "accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "rounds": len(logs),
        **totals(logs),
        "fedavg_bits_up": float(sum(fleet.table.model_bits[list(log.devices)].sum() for log in logs)),
        "rejected_uploads": sum(len(log.rejected) for log in logs),
        "missed_broadcasts": sum(len(log.missed) for log in logs),
        "lost_uploads": sum(len(log.lost) for log in logs),
        "faults": sum(len(log.faults) for log in logs),
        "diverged": sum(len(log.diverged) for log in logs),
        **energy_facts(fleet, logs),
        **battery_facts(state, logs),
        **({"remark": remark} if (remark := fleet.experiment.algorithm.remark(state.server)) else {}),
        **{name: value for name, value in found.items() if value is not None},
        "wall_s": round(wall_s, 3),
    }


def device_records(fleet: Fleet, state: RunState) -> tuple[dict[str, Any], ...] | Records:
    """What each device is, did, and can at the end."""
    columns = fleet.device_columns()
    if columns is not None:
        return _as_columns(fleet, state, columns)
    records, table, cell = [], fleet.table, fleet.cell
    for facts in fleet.describe_devices():
        device = facts["device"]
        tests = int(table.test_samples[device])
        records.append(
            {
                **facts,
                **({} if cell is None else cell.describe(device)),
                "flops": float(table.flops[device]),
                **({} if table.first_flops is None else {"first_flops": float(table.first_flops[device])}),
                "bits_up": float(table.bits_up[device]),
                "bits_down": float(table.bits_down[device]),
                **({"first_bits_down": table.first_bits_down} if table.first_bits_down else {}),
                "rounds": int(state.accounts.participation_count[device]),
                "compute_energy_j": float(state.accounts.compute_j[device]),
                "upload_energy_j": float(state.accounts.upload_j[device]),
                "budget_j": float(table.budget_j[device]),
                "queue_j": float(state.accounts.scheduler.queue_j[device]),
                **battery_record(state.accounts.batteries, device),
                "accuracy": int(state.correct[device]) / tests if tests else None,
                "test_samples": tests,
            }
        )
    return tuple(records)


def _as_columns(fleet: Fleet, state: RunState, columns: dict[str, NDArray[Any]]) -> Records:
    """The same for a large fleet, field by field."""
    table, accounts, tests = fleet.table, state.accounts, fleet.table.test_samples
    accuracy = np.divide(state.correct, tests, out=np.full(table.size, np.nan), where=tests > 0)
    found = {
        **columns,
        **({} if fleet.cell is None else fleet.cell.columns()),
        "flops": table.flops,
        **({} if table.first_flops is None else {"first_flops": table.first_flops}),
        "bits_up": table.bits_up,
        "bits_down": table.bits_down,
        **({"first_bits_down": np.full(table.size, table.first_bits_down)} if table.first_bits_down else {}),
        "rounds": accounts.participation_count,
        "compute_energy_j": accounts.compute_j,
        "upload_energy_j": accounts.upload_j,
        "budget_j": table.budget_j,
        "queue_j": accounts.scheduler.queue_j,
        **battery_columns(accounts.batteries),
        "accuracy": accuracy,
        "test_samples": tests,
    }
    # One number for all devices is stored as one for each.
    whole = {name: values if values.ndim else np.full(table.size, values) for name, values in found.items()}
    return Records(whole)


def energy_facts(fleet: Fleet, logs: Sequence[RoundLog]) -> dict[str, Any]:
    """How much of the budgets was used, and who is over its own; empty without a radio or a budget."""
    budget_j = fleet.table.budget_j
    if fleet.cell is None or fleet.harvests:
        return {}
    spent_j = np.zeros(len(budget_j))
    for log in logs:
        spent_j[list(log.devices)] += np.add(log.compute_energy_j, log.upload_energy_j)
    with np.errstate(over="ignore"):  # of a budget next to nothing, the use is infinite
        used = spent_j / budget_j
    return {
        "devices_over_budget": int((used > 1 + 1e-9).sum()),
        "largest_use_of_budget": float(used.max()),
        "mean_use_of_budget": float(used.mean()),
    }


def battery_facts(state: RunState, logs: Sequence[RoundLog]) -> dict[str, Any]:
    """What all devices harvested and wasted, and who was without charge; empty without batteries."""
    batteries = state.accounts.batteries
    if batteries is None:
        return {}
    faults = [entry for log in logs for entry in log.faults]
    return {
        "batteries": {
            "charge_j": float(batteries.charge_j.sum()),
            "harvested_j": float(batteries.harvested_j.sum()),
            "wasted_j": float(batteries.wasted_j.sum()),
            "empty_rounds": int(batteries.empty_rounds.sum()),
            "devices_ever_empty": int((batteries.empty_rounds > 0).sum()),
            "ran_dry": sum(entry.get("fault") == RAN_DRY for entry in faults),
        }
    }


def battery_record(batteries: Batteries | None, device: int) -> dict[str, Any]:
    """The battery of one device at the end; empty without one."""
    return {name: values[device].item() for name, values in battery_columns(batteries).items()}


def battery_columns(batteries: Batteries | None) -> dict[str, NDArray[Any]]:
    """The batteries of all devices at the end, field by field; empty without."""
    if batteries is None:
        return {}
    return {name: getattr(batteries, name) for name in ("charge_j", "harvested_j", "wasted_j", "empty_rounds")}
