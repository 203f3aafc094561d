"""Every joule, second, queue and battery of a finished run, recomputed: python studies/recompute_run.py runs/mine

Nothing of kfl is imported: the formulas are the paper's (section II-C, equations (21), (24)) and docs/schedule.md's;
inputs: docs/reference/run-folder.md. Prints the largest relative difference of each kind; exit status 1 above 1e-9.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

LIMIT, LN2, A = 1e-9, np.log(2), np.array
FACTS = ("cpu_hz", "flops_per_cycle", "power_coefficient", "max_power_w", "flops", "bits_up", "bits_down", "budget_j")
DRAWN = ("static_power_w", "circuit_power_w", "receive_power_w", "min_power_w", "tail_j", "min_cpu_hz")
ONCE = ("first_flops", "first_bits_down")  # a device's encoder, in the first round that it is chosen for
PRINTED = dict.fromkeys((*DRAWN, *ONCE), 0.0) | {"amplifier_efficiency": 1.0}  # what a printed cell leaves out
SUMS = ("compute_energy_j", "upload_energy_j", "time_s", "bits_up", "bits_down", "energy_j")
USES = ("devices_over_budget", "largest_use_of_budget", "mean_use_of_budget")
PARTS, LOGGED = ("computing", "static", "radiating", "circuits", "tail", "receiving"), [1, 3, 4, 5]
worst: dict[str, tuple[float, str]] = {}
np.seterr(divide="ignore", invalid="ignore")


def compare(kind: str, ours: Any, theirs: Any, where: str, scale: Any = 0.0) -> None:
    """Keep the largest difference of a kind, relative to the larger of the two numbers or to `scale`."""
    ours, theirs = A(ours, float), A(theirs, float)
    off = np.where(ours == theirs, 0.0, abs(ours - theirs) / np.maximum(np.maximum(abs(ours), abs(theirs)), scale))
    worst[kind] = max(worst.get(kind, (0.0, "")), (float(np.nan_to_num(off, nan=np.inf).max(initial=0.0)), where))


def play(log: dict[str, Any], device: dict[str, Any], queue_j: Any, config: dict[str, Any], real: bool) -> list[Any]:
    """Check a round. Returns the joules of each chosen device's parts, seconds, bits up, bits down."""
    here, chosen, cell = f"round {log['round']}", [device["place"][k] for k in log["devices"]], config["radio"]
    one, band_hz = {name: device[name][chosen] for name in device if name != "place"}, cell["bandwidth_hz"]
    share, gain, true_gain = A(log["share"]), A(log["gain"]), A(log["true_gain"] or log["gain"])
    bits, hz, noise = one["bits_up"], share * band_hz, 10 ** (cell["noise_dbm_per_hz"] / 10) / 1000
    clock_hz, cycles = A(log.get("clock_hz", one["cpu_hz"])), one["flops"] / one["flops_per_cycle"]
    left_s = cell["deadline_s"] - log["reserved_s"] - (work_s := cycles / clock_hz)
    send_s = np.where(hz > 0, log["upload_time_s"] if "clock_hz" in log else left_s, 0.0)  # whole devices may end early
    power_w = np.where(bits > 0, hz * noise / gain * np.expm1(bits * LN2 / (send_s * hz)), 0.0)
    carried = hz * np.log1p(power_w * true_gain / (hz * noise)) / LN2 * send_s
    blocks = share * (0 if cell["resource_blocks"] == "none" else cell["resource_blocks"])
    compare("times of devices", [work_s, send_s], [log["compute_time_s"], log["upload_time_s"]], here)
    compare("devices within the deadline", np.maximum(send_s, left_s * (hz > 0)), left_s * (hz > 0), here, work_s)
    compare("clock limits", np.clip(clock_hz, one["min_cpu_hz"], one["cpu_hz"]), clock_hz, here)
    compare("transmit power", power_w, log["power_w"], here)
    compare("power limits", np.clip(power_w, one["min_power_w"] * (bits > 0), one["max_power_w"]), power_w, here)
    compare("shares within the band", max(share.sum(), 1.0), 1.0, here)
    compare("whole resource blocks", blocks, np.rint(blocks), here)
    compare("queues before a round", queue_j[chosen], log["queue_j"], here, one["budget_j"] / config["rounds"])
    told, said = A([log[name] for name in SUMS[:2]]), A([log.get(f"{PARTS[i]}_j", 0 * share) for i in LOGGED])
    if real:  # devices report their energies, and seconds are real
        rest = [told[0] - said[0], said[0], told[1] - said[1:].sum(axis=0), *said[1:]]
        return [rest, *[log[name] for name in SUMS[2:-1]]]
    work = A([one["power_coefficient"] * cycles * clock_hz**2, one["static_power_w"] * work_s])
    tail_j, listen_j = np.where(bits > 0, one["tail_j"], 0.0), one["receive_power_w"] * log["reserved_s"]
    send = A([power_w * send_s / one["amplifier_efficiency"], one["circuit_power_w"] * send_s, tail_j, listen_j])
    faults = {entry["device"]: entry for entry in log["faults"]}
    fault = A([faults.get(k, {}).get("fault", "") for k in log["devices"]], str)
    downlink_w = np.inf if cell["downlink_power_dbm"] == "none" else 10 ** (cell["downlink_power_dbm"] / 10) / 1000
    heard = downlink_w * np.append(true_gain, gain.min(initial=np.inf)) / (band_hz * noise)
    hear_s = config["broadcast_bits"] * LN2 / (band_hz * np.log1p(heard))
    broadcast_s, deaf = hear_s[-1], hear_s[:-1] > hear_s[-1] * (1 + LIMIT)
    dry, idle = fault == "ran_dry", (fault == "drop_before") | deaf
    died, (work_j, send_j) = dry | (fault == "battery_empty"), (work.sum(axis=0), send.sum(axis=0))
    silent = died | idle | (fault == "drop_after")
    part_j = A([faults.get(k, {}).get("spent_fraction", 0.0) for k in log["devices"]]) * (work_j + send_j)
    sent_j = np.where(died, np.maximum(part_j - work_j, 0.0), np.where(silent, 0.0, send_j))
    did_j = np.where(died, np.minimum(part_j, work_j), np.where(idle, 0.0, work_j))
    weak = (bits > carried * (1 + LIMIT)) | np.isin(fault, ("drop_after", "late", "outage"))
    lost = (weak & (bits > 0) & ~died & ~idle & ~np.isin(log["devices"], log["diverged"])) | dry
    time_s = broadcast_s + (work_s + send_s).max(initial=0.0)
    parts = np.nan_to_num(np.concatenate([work * did_j / work_j, send * sent_j / send_j]))
    compare("energies", [did_j, sent_j, *parts[LOGGED]], [*told, *said], here)
    compare("missed, lost", [deaf, lost], [np.isin(log["devices"], log[name]) for name in ("missed", "lost")], here)
    compare("times of a round", [broadcast_s, time_s], [log["broadcast_s"], log["time_s"]], here)
    compare("time within the deadline", max(time_s, cell["deadline_s"]), cell["deadline_s"], here)
    return [parts, time_s, bits[~silent].sum(), one["bits_down"].sum()]


def whole(folder: Path, line: str) -> dict[str, Any]:
    """A round, with the columns that are next to it where devices are many."""
    log = json.loads(line)
    beside = np.load(folder / f"columns/round-{log['round']:06d}.npz") if "columns" in log else {}
    return {**log, **{name: beside[name].tolist() for name in beside}}


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The record of each device, without its words where devices are many."""
    if (folder / "devices.json").exists():
        return list(json.loads((folder / "devices.json").read_text()))
    found = np.load(folder / "devices.npz")
    columns = {name: found[name].tolist() for name in found if f"{name}.words" not in found and "words" not in name}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def main(folder: Path) -> int:
    """Check a run, and print the largest difference of each kind."""
    config, lines = tomllib.loads((folder / "config.toml").read_text()), (folder / "rounds.jsonl").read_text()
    records, summary = records_of(folder), json.loads((folder / "summary.json").read_text())
    if config["radio"] == "none" or lines.count('"gain"') != lines.count("\n"):
        sys.exit(f"{folder} has no radio, or is of a version that kept no gains.")
    records = [{**PRINTED, "min_cpu_hz": one["cpu_hz"], **one} for one in records]
    facts = {n: A([np.inf if one[n] is None else one[n] for one in records]) for n in (*FACTS, *PRINTED)}
    device: dict[str, Any] = {**facts, "place": {one["device"]: position for position, one in enumerate(records)}}
    parts_j, total = np.zeros((6, len(records))), np.zeros(3)
    budget_j, real = device["budget_j"], (folder / "fleet.json").exists()
    full_j = float(str(config["radio"].get("battery_capacity_j", "none")).replace("none", "inf"))
    charge_j = full_j * config["radio"].get("initial_charge", 1.0) + np.zeros(len(records))
    queue_j = full_j - charge_j if '"harvest_j"' in lines else np.zeros(len(records))
    config["broadcast_bits"], chosen_before = device["bits_down"].max(), np.zeros(len(records))
    for log in (whole(folder, line) for line in lines.splitlines()):
        for name, once in zip(("flops", "bits_down"), ONCE, strict=True):  # of this round
            device[name] = facts[name] + np.where(chosen_before == 0, facts[once], 0.0)
        now_j, chosen = np.zeros_like(parts_j), [device["place"][k] for k in log["devices"]]
        chosen_before[chosen] += 1
        now_j[:, chosen], *rest = play(log, device, queue_j, config, real)
        compare("charge of batteries", charge_j[chosen], log.get("charge_j", charge_j[chosen]), f"round {log['round']}")
        parts_j, total = parts_j + now_j, total + A(rest)
        queue_j = np.maximum(queue_j + now_j.sum(axis=0) - log.get("harvest_j", budget_j / config["rounds"]), 0.0)
        charge_j = np.minimum(np.maximum(charge_j - now_j.sum(axis=0), 0.0) + log.get("harvest_j", 0.0), full_j)
        if config["hard_budget"] and "harvest_j" not in log:
            compare("hard budgets", np.maximum(parts_j.sum(axis=0) / budget_j, 1.0), 1.0, f"round {log['round']}")
    spent_j = A([parts_j[:2].sum(axis=0), parts_j[2:].sum(axis=0)])
    used, by_part = spent_j.sum(axis=0) / budget_j, dict(zip(PARTS, parts_j.sum(axis=1), strict=True))
    uses = [(used > 1 + LIMIT).sum(), used.max(), used.mean()]
    compare("totals", [*spent_j.sum(axis=1), *total, spent_j.sum()], [summary[n] for n in SUMS], "summary.json")
    compare("budgets", uses, [summary.get(n, own) for n, own in zip(USES, uses, strict=True)], "summary.json")
    said = [summary.get("energy_by_part_j", by_part)[name] for name in PARTS]
    compare("totals by part", parts_j.sum(axis=1), said, "summary.json", spent_j.sum())
    compare("energy of each device", spent_j, [[one[name] for one in records] for name in SUMS[:2]], "devices.json")
    compare("last queues", queue_j, [one["queue_j"] for one in records], "devices.json", budget_j / config["rounds"])
    print("\n".join(f"{off:8.1e}  {kind} ({where})" for kind, (off, where) in worst.items()))
    return int(max(worst.values())[0] > LIMIT)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) if len(sys.argv) == 2 and Path(sys.argv[1], "summary.json").exists() else __doc__)
