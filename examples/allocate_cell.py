"""Share the band of one cell among the devices of a CSV file, with the least transmit energy.

    python examples/allocate_cell.py [cell.csv [shares.csv]]

A row is a device: its channel gain, the bits it has to send, how long and with how much energy it computes first. The
lines with # are for the whole cell: band, noise, deadline, largest power. All devices of the file take part. To also
decide who should, use `kfl schedule cell.csv`.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from kfl.core.units import dbm_to_watt
from kfl.scheduling import Uplink, allocate, read_problem
from kfl.wireless.costs import transmit_power


def main(path: Path, result: Path | None = None) -> None:
    """Read the cell, allocate, write shares and powers, and say what an equal split would have cost."""
    cell = read_problem(path)
    upload_time_s = cell.deadline_s - cell.compute_time_s
    noise_w_per_hz = dbm_to_watt(cell.noise_dbm_per_hz)
    gain = cell.gain[0]  # the file's first round
    band = Uplink(
        bandwidth_hz=cell.bandwidth_hz,
        noise_w_per_hz=noise_w_per_hz,
        gain=gain,
        payload_bits=cell.payload_bits,
        time_s=upload_time_s,
        max_power_w=cell.max_power_w,
    )
    best = allocate(band)  # every joule counts the same
    if not best.feasible:
        sys.exit(str(best.status))
    print("device      share     power_w    energy_j")
    for name, share, power_w, energy_j in zip(cell.ids, best.share, best.power_w, best.energy_j, strict=True):
        print(f"{name:<10} {share:6.4f} {power_w:11.4g} {energy_j:11.4g}")
    if result is not None:
        with result.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["id", "share", "power_w", "energy_j"])
            table.writerows(zip(cell.ids, best.share, best.power_w, best.energy_j, strict=True))
    print(f"Together {best.energy_j.sum():.4g} J; optimality conditions hold to {best.residual:.1e}.")

    equal = np.full(cell.size, 1 / cell.size)
    power_w = transmit_power(equal, cell.payload_bits, upload_time_s, gain, cell.bandwidth_hz, noise_w_per_hz)
    late = int((power_w > cell.max_power_w).sum())
    sentence = f"Equal shares would cost {(power_w * upload_time_s).sum():.4g} J"
    print(f"{sentence}, and {late} devices could not send in time." if late else f"{sentence}.")


if __name__ == "__main__":
    paths = [Path(word) for word in sys.argv[1:3]] or [Path(__file__).with_name("cell.csv")]
    main(*paths)
