"""Sessions of the UCC 5G dataset as a trace of gains: one device for each file.

    python examples/traces/ucc_5g.py 5G-production-dataset/Download/Driving/*.csv --out gains.csv
    kfl run --devices 20 --gain-trace gains.csv --radio.fading.reference-power-dbm 12.2

The dataset: D. Raca, D. Leahy, C. J. Sreenan, J. J. Quinlan, "Beyond Throughput, the Next Generation: a 5G Dataset with
Channel and Context Metrics", MMSys 2020; https://github.com/uccmisl/5Gdataset. Its files are logs of a phone, one row
per second, with the columns Timestamp (2019.11.28_07.27.36), NetworkMode, RSRP in dBm, and many others; "-" is a value
that was not there. A session starts at time 0 with its first received power; rows without one are left out, so the
last one holds through a gap. `--max-gap` refuses a longer silence instead.

The powers are of the downlink. What the base station sent per resource element is not in the files: give it to kfl as
the reference power, from which gain = received − sent.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import math
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from kfl.core.files import atomic_file

Row = tuple[float, int, float]
"""Seconds, device, received power in dBm."""


def session(path: Path, device: int, column: str, mode: str | None) -> Iterator[Row]:
    """The received powers of one file."""
    start, last = None, -math.inf
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        wanted = {"Timestamp", column} | ({"NetworkMode"} if mode else set())
        missing = wanted - set(rows.fieldnames or ())
        if missing:
            raise SystemExit(
                f"{path} has no column {', '.join(sorted(missing))}: it must be a file of the UCC 5G dataset."
            )
        for row in rows:
            power_dbm = _power(row[column])
            if power_dbm is None or (mode is not None and row["NetworkMode"] != mode):
                continue
            try:
                now = datetime.strptime(row["Timestamp"], "%Y.%m.%d_%H.%M.%S")
            except ValueError:
                raise SystemExit(
                    f"Timestamp in line {rows.line_num} of {path} is {row['Timestamp']!r}, but must be a time such as "
                    "2019.11.28_07.27.36."
                ) from None
            start = start or now
            time_s = (now - start).total_seconds()
            if time_s < last:
                raise SystemExit(f"Line {rows.line_num} of {path} is earlier than the line before it.")
            last = time_s
            yield time_s, device, power_dbm
    if start is None:
        raise SystemExit(f"{path} has no value of {column}{f' in {mode} mode' if mode else ''}.")


def _power(word: str | None) -> float | None:
    """A power in dBm; None where there is none, or none that can be: chips report 0 and large numbers for unknown."""
    try:
        power_dbm = float(word or "")
    except ValueError:
        return None
    return power_dbm if -200 <= power_dbm < 0 else None


def refuse_gaps(rows: Iterator[Row], path: Path, longest_s: float) -> Iterator[Row]:
    """The same rows, if none is later than this after the one before."""
    before = 0.0
    for row in rows:
        if row[0] - before > longest_s:
            raise SystemExit(f"{path} has no value between {before:g} s and {row[0]:g} s, longer than --max-gap.")
        before = row[0]
        yield row


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert sessions."""
    parser = argparse.ArgumentParser(description="Sessions of the UCC 5G dataset as a trace of gains for kfl.")
    parser.add_argument("files", type=Path, nargs="+", help="sessions; the k-th is device k")
    parser.add_argument("--out", type=Path, required=True, help="trace to write")
    parser.add_argument("--column", default="RSRP", help="received power to take (default: RSRP)")
    parser.add_argument("--mode", help="only rows of this NetworkMode, such as 5G")
    parser.add_argument("--max-gap", type=float, default=math.inf, help="longest silence in seconds (default: any)")
    options = parser.parse_args(arguments)
    sessions = [
        refuse_gaps(session(path, device, options.column, options.mode), path, options.max_gap)
        for device, path in enumerate(options.files)
    ]
    count = 0
    try:
        with atomic_file(options.out) as file:
            file.write(b"time_s,device,rsrp_dbm\n")
            for time_s, device, power_dbm in heapq.merge(*sessions, key=lambda row: row[0]):
                file.write(f"{time_s!r},{device},{power_dbm!r}\n".encode())
                count += 1
    except OSError as problem:
        raise SystemExit(f"{problem.filename or options.out} cannot be used: {problem.strerror}.") from None
    print(f"{count} rows of {len(sessions)} devices in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
