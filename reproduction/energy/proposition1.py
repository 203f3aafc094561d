"""When an upload should use all the time left (the paper's Proposition 1), when not, and what it saves to know.

    python -m reproduction energy proposition1 [--out docs/results]

With circuits that draw p_c while the radio sends, the proposition holds exactly where p_c ≤ a θ G(c / (θ T_left)), with
a = B N₀ / (η h) and c = payload · ln 2 / B: in a channel below

    h* = B N₀ θ G(c / (θ T_left)) / (η p_c).

The figure draws this line over the share for every cell with a whole device, between the gain below which full power
does not reach the server and the gains that the devices of the cell have. Its last panel, and the tables, compare three
ways to do the same work: fastest clock and all the time left, fastest clock and the best upload time (closed form),
and the best clock as well. Nothing is trained; seed 100. Writes proposition1.png, .svg and .json, and presets.md, the
table of `docs/schedule.md`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from kfl.core.units import dbm_to_watt
from kfl.plots.style import new_figure, plain_axes, save
from kfl.scheduling._upload_formulas import log_marginal_saving
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.device_curve import DeviceCurve
from kfl.wireless import PRESETS, Cell, CellConfig
from kfl.wireless.costs import transmit_power, uplink_rate, upload_time

WORK_FLOP = 5 * 600 * 550_346  # the paper's MNIST device: 5 steps over 600 samples of the MLP
PAYLOADS = {"knowledge": 640 * 32, "CNN": 63_106 * 32, "MLP": 550_346 * 32}
CELLS = ("paper-mnist-modem", "5g-phone", "lte-m", "nb-iot", "wifi")
CLOCKS = ("paper-mnist", "paper-mnist-free-clock")
DEVICES, SEED, ROUND, SHARE = 200, 100, 3, 0.1
WAYS = ("all the time left", "best upload time", "best clock too")
PARTS = ("computing", "static", "radiating", "circuits")


def fastest_s(config: CellConfig, cpu_hz: FloatArray | float) -> FloatArray:
    """How long the work takes at the fastest clock."""
    return np.asarray(WORK_FLOP / config.flops_per_cycle / np.asarray(cpu_hz))


def curve_of(config: CellConfig, cpu_hz: FloatArray, gain: FloatArray, bits: float, *, free_clock: bool) -> DeviceCurve:
    """The devices of a cell, with their clock free (where the cell has a range) or fixed."""
    cycles = WORK_FLOP / config.flops_per_cycle
    fast = fastest_s(config, cpu_hz)
    return DeviceCurve.of(
        bandwidth_hz=config.bandwidth_hz,
        noise_w_per_hz=config.noise_w_per_hz,
        gain=gain,
        payload_bits=bits,
        max_power_w=config.max_power_w,
        min_power_w=_least_w(config),
        time_s=config.deadline_s,
        fastest_s=fast,
        slowest_s=np.full_like(fast, cycles / config.min_cpu_hz) if free_clock and config.min_cpu_hz else fast,
        work_j_s2=config.power_coefficient * cycles**3,
        static_power_w=config.static_power_w,
        circuit_power_w=config.circuit_power_w,
        amplifier_efficiency=config.amplifier_efficiency,
    )


def _least_w(config: CellConfig) -> float:
    return 0.0 if config.min_power_dbm is None else dbm_to_watt(config.min_power_dbm)


def longest_gain(config: CellConfig, share: FloatArray, bits: float, left_s: FloatArray | float) -> FloatArray:
    """h*: in weaker channels an upload should use all the time left, in stronger ones end earlier."""
    x = bits * np.log(2.0) / (config.bandwidth_hz * share * left_s)
    noise_w = config.bandwidth_hz * share * config.noise_w_per_hz
    return np.asarray(noise_w * np.exp(log_marginal_saving(x)) / (config.amplifier_efficiency * config.circuit_power_w))


def least_gain(config: CellConfig, share: FloatArray, bits: float, left_s: FloatArray | float) -> FloatArray:
    """In weaker channels full power for all the time left does not carry the payload."""
    unit = transmit_power(share, bits, left_s, 1.0, config.bandwidth_hz, config.noise_w_per_hz)
    return np.asarray(unit / config.max_power_w)


def ways(config: CellConfig, bits: float) -> dict[str, dict[str, FloatArray]]:
    """Joules by part of every device, done in three ways; NaN for those that cannot send."""
    cell = Cell.build(config, DEVICES, SEED)
    gain, share = cell.gains(ROUND).known_gain, np.full(DEVICES, SHARE)
    cycles = WORK_FLOP / config.flops_per_cycle
    left = config.deadline_s - fastest_s(config, cell.hardware.cpu_hz)
    able = (left > 0) & (least_gain(config, share, bits, np.maximum(left, 1e-9)) <= gain)

    def parts(compute_s: FloatArray, upload_s: FloatArray, power_w: FloatArray) -> dict[str, FloatArray]:
        values = (
            config.power_coefficient * cycles**3 / compute_s**2,
            config.static_power_w * compute_s,
            power_w * upload_s / config.amplifier_efficiency,
            config.circuit_power_w * upload_s,
        )
        return {name: np.where(able, joules, np.nan) for name, joules in zip(PARTS, values, strict=True)}

    band = (config.bandwidth_hz, config.noise_w_per_hz)
    slowest_s = upload_time(bits, uplink_rate(share, max(_least_w(config), 1e-30), gain, *band))
    long_s = np.minimum(left, slowest_s)  # the least power may end it earlier
    fixed = curve_of(config, cell.hardware.cpu_hz, gain, bits, free_clock=False)
    free = curve_of(config, cell.hardware.cpu_hz, gain, bits, free_clock=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (
            parts(fastest_s(config, cell.hardware.cpu_hz), long_s, transmit_power(share, bits, long_s, gain, *band)),
            parts(*fixed.operation(share)),
            parts(*free.operation(share)),
        )
    return dict(zip(WAYS, found, strict=True))


def measure() -> list[dict[str, Any]]:
    """One row per cell, payload and way: medians over the devices that can send."""
    rows = []
    for name in (*CLOCKS, *CELLS):
        config = PRESETS[name]
        once_j = config.connect_energy_j + config.tail_power_w * config.tail_s
        for payload, bits in PAYLOADS.items():
            for way, parts in ways(config, bits).items():
                total = np.sum(list(parts.values()), axis=0)
                able = np.isfinite(total)
                typical = {
                    part: float(np.median(joules[able])) if able.any() else None for part, joules in parts.items()
                }
                rows.append(
                    {
                        "cell": name,
                        "payload": payload,
                        "way": way,
                        "able": float(able.mean()),
                        "once_j": once_j,
                        **{f"{part}_j": value for part, value in typical.items()},
                        "device_j": float(np.median(total[able])) if able.any() else None,
                        "participation_j": float(np.median(total[able])) + once_j if able.any() else None,
                    }
                )
    return rows


def number(joules: float | None) -> str:
    """Two digits, and a dash for nothing."""
    if joules is None:
        return "none can send"
    if joules == 0:
        return "–"
    if joules >= 1e-3:
        return f"{joules:.2g}"
    digit, exponent = f"{joules:.0e}".split("e-")
    return f"{digit}·10⁻{str(int(exponent)).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def table(rows: list[dict[str, Any]]) -> str:
    """Where the joules of one participation go, with an upload of knowledge and the best clock."""
    lines = [
        "| cell | computing | static | radiating | circuits | tail | one participation | in budgets per round |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row["payload"] == "knowledge" and row["way"] == WAYS[2]:
            cells = [number(row[f"{part}_j"]) for part in PARTS] + [number(row["once_j"])]
            budget = PRESETS[row["cell"]].budget_j_per_round
            total = f"{row['participation_j']:.2g} J | {row['participation_j'] / budget:.1f}"
            lines.append(f"| `{row['cell']}` | {' | '.join(cells)} | {total} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    """Where the proposition holds, one panel per cell, and what the other ways save."""
    figure = new_figure("This study", figsize=(11.0, 7.0), layout="constrained")
    panels = figure.subplots(2, 3).ravel()
    share = np.logspace(-3, 0, 300)
    for panel, name in zip(panels, CELLS, strict=False):
        config = PRESETS[name]
        cell = Cell.build(config, DEVICES, SEED)
        gain_db = 10 * np.log10(cell.gains(ROUND).known_gain)
        low, high = np.quantile(gain_db, [0.05, 0.95])
        panel.axhspan(low, high, color="0.85", lw=0, label="90 % of the devices")
        left_s = float(config.deadline_s - np.median(fastest_s(config, cell.hardware.cpu_hz)))
        for payload, colour in (("knowledge", "#08306b"), ("CNN", "#b2182b"), ("MLP", "#7b3294")):
            reach = 10 * np.log10(least_gain(config, share, PAYLOADS[payload], left_s))
            longest = 10 * np.log10(longest_gain(config, share, PAYLOADS[payload], left_s))
            seen = np.isfinite(reach) & (reach < 50)
            panel.fill_between(
                share[seen], reach[seen], np.maximum(longest, reach)[seen], color=colour, alpha=0.25, lw=0
            )
            panel.plot(share[seen], longest[seen], color=colour, lw=2, label=f"h*, {payload}")
            panel.plot(share[seen], reach[seen], color=colour, lw=1.2, ls=":", label=f"{payload}: below, out of reach")
        panel.set_xscale("log")
        panel.set_xlim(share[0], 1)
        panel.set_ylim(low - 25, high + 20)
        panel.set_title(name, fontsize=10.5)
        panel.set_xlabel("share of the band")
        panel.set_ylabel("channel gain [dB]")
        plain_axes(panel)
    _savings(panels[-1], rows)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(
        "Use all the time left only in the tinted channels: above h* an upload should end earlier", fontsize=12
    )
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "svg"):
        save(figure, folder / f"proposition1.{ending}")


def _savings(panel: Any, rows: list[dict[str, Any]]) -> None:
    """Joules of computation and upload of knowledge, without connecting and tail, in three ways."""
    colours = ("#b2182b", "#ef8a62", "#08306b")
    for place, way in enumerate(WAYS):
        joules = [
            next(r["device_j"] for r in rows if (r["cell"], r["payload"], r["way"]) == (name, "knowledge", way))
            for name in CELLS
        ]
        positions = np.arange(len(CELLS)) + 0.27 * (place - 1)
        panel.bar(positions, joules, width=0.25, color=colours[place], label=way, hatch=("", "//", "")[place], lw=0)
    panel.set_yscale("log")
    panel.set_xticks(np.arange(len(CELLS)), [name.replace("paper-mnist-", "paper\n") for name in CELLS], fontsize=8.5)
    panel.set_ylabel("computation and upload of knowledge [J]")
    panel.set_title("what it saves (tail not included)", fontsize=10.5)
    panel.legend(frameon=False, fontsize=8.5)
    plain_axes(panel)
    panel.set_ylim(top=panel.get_ylim()[1] * 6)


def main() -> None:
    """Measure, draw, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    rows = measure()
    draw(rows, options.out)
    text = [json.dumps({k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}) for row in rows]
    (options.out / "proposition1.json").write_text("[\n" + ",\n".join(text) + "\n]\n")
    (options.out / "presets.md").write_text(table(rows))
    print(table(rows))
    print("| cell | payload | able | " + " | ".join(f"{way} [J]" for way in WAYS) + " |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in (*CLOCKS, *CELLS):
        for payload in PAYLOADS:
            three = [r for r in rows if (r["cell"], r["payload"]) == (name, payload)]
            values = " | ".join(number(r["device_j"]) for r in three)
            print(f"| `{name}` | {payload} | {three[0]['able']:.0%} | {values} |")


if __name__ == "__main__":
    main()
