"""FedScale's device information as traces: when clients are available, how well they are connected.

    python examples/traces/fedscale.py availability client_behave_trace --devices 100 --seconds 172800 --out present.csv
    python examples/traces/fedscale.py capacity client_device_capacity --devices 100 --out gains.csv

Both files are in benchmark/dataset/data/device_info of https://github.com/SymbioticLab/FedScale: dictionaries of one
entry per client,

    client_behave_trace      {"active": [s, …], "inactive": [s, …], "finish_time": s, "duration": s, "model": name}
    client_device_capacity   {"computation": ms per sample, "communication": kbit/s}

They are pickles, and a pickle from elsewhere can run any program. So they are read by an unpickler that knows
dictionaries, lists, numbers and text, and refuses everything else before it is made. The same as JSON is read, too.

Device k is the k-th client of the file. A client is available from active[i] to inactive[i], over again every
finish_time seconds; as these differ from client to client, the trace is written out for as long as you ask. Of a
measured rate R the gain is what Shannon's formula makes of it for a radio you describe, g = (2^(R/B) − 1) N₀ B / p.
With --flops-per-sample, the work of a sample in the network whose latencies are in the file, `capacity` also writes
the clocks that give these latencies: kfl draws each device's from them.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kfl.core.files import atomic_file

Row = tuple[float, int, str]
"""Time in seconds, device, value."""


class PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, numbers and text; whatever would have to be imported is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Called for everything that is not plain."""
        raise pickle.UnpicklingError(
            f"it needs {module}.{name}, and only plain dictionaries, lists and numbers are read"
        )


def read_clients(path: Path) -> list[dict[str, Any]]:
    """The entries of a file, in its order."""
    try:
        with path.open("rb") as file:
            is_json = file.read(1) in (b"{", b"[")
            file.seek(0)
            found = json.load(file) if is_json else PlainUnpickler(file).load()
    except (OSError, ValueError, EOFError, pickle.UnpicklingError, IndexError, KeyError, AttributeError) as problem:
        raise SystemExit(
            f"{path} cannot be read: {problem}. It must be a pickle of a plain dictionary, or JSON."
        ) from None
    clients = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(clients, list) or not clients or not all(isinstance(client, dict) for client in clients):
        raise SystemExit(f"{path} must hold one entry for each client.")
    return clients


def first(clients: list[dict[str, Any]], devices: int | None, path: Path) -> list[dict[str, Any]]:
    """The first clients of a file."""
    if devices is not None and not 1 <= devices <= len(clients):
        raise SystemExit(
            f"--devices is {devices}, but must be between 1 and {len(clients)}: {path} has no more clients."
        )
    return clients[:devices]


def number(client: dict[str, Any], name: str, device: int) -> float:
    """A positive number of a client."""
    value = client.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SystemExit(f"{name} of client {device} is {value!r}, but must be a positive number.")
    return float(value)


# ── Availability ─────────────────────────────────────────────────────────────


def presence(client: dict[str, Any], device: int, seconds: float) -> Iterator[Row]:
    """When a client comes and goes, over again until the end."""
    period = number(client, "finish_time", device)
    starts, ends = client.get("active"), client.get("inactive")
    if not (isinstance(starts, list) and isinstance(ends, list) and len(starts) == len(ends)):
        raise SystemExit(f"active and inactive of client {device} must be lists of the same length.")
    if not all(isinstance(time, int | float) and 0 <= time < math.inf for time in [*starts, *ends]):
        raise SystemExit(f"active and inactive of client {device} must hold seconds, 0 or more.")
    spans = sorted((float(a), min(float(b), period)) for a, b in zip(starts, ends, strict=True))
    yield 0.0, device, "0"
    for cycle in itertools.count():
        for start, end in spans:
            if cycle * period + start >= seconds:
                break
            if end > start:
                yield cycle * period + start, device, "1"
                yield cycle * period + end, device, "0"
        if (cycle + 1) * period >= seconds:
            return


# ── Capacity ─────────────────────────────────────────────────────────────────


def gain(rate_bit_per_s: float, bandwidth_hz: float, power_dbm: float, noise_dbm_per_hz: float) -> float:
    """The channel gain at which Shannon's formula gives this rate."""
    noise_over_power = 10 ** ((noise_dbm_per_hz - power_dbm) / 10) * bandwidth_hz
    return math.expm1(rate_bit_per_s / bandwidth_hz * math.log(2)) * noise_over_power


def gains(clients: Sequence[dict[str, Any]], options: argparse.Namespace) -> Iterator[Row]:
    """The gain of each client, once."""
    for device, client in enumerate(clients):
        rate = 1000 * number(client, "communication", device)
        try:
            found = gain(rate, options.bandwidth_hz, options.power_dbm, options.noise_dbm_per_hz)
        except OverflowError:
            found = math.inf
        if not found <= 1:
            raise SystemExit(
                f"Client {device} sends {rate:g} bit/s, for which no channel is good enough at "
                f"{options.power_dbm:g} dBm over {options.bandwidth_hz:g} Hz; give a larger --bandwidth-hz."
            )
        yield 0.0, device, repr(found)


def clocks(clients: Sequence[dict[str, Any]], flops_per_sample: float, flops_per_cycle: float) -> str:
    """A config file with the clocks that give each client's latency."""
    cycles = flops_per_sample / flops_per_cycle
    hertz = [cycles / (number(client, "computation", device) / 1000) for device, client in enumerate(clients)]
    lines = [f"flops_per_cycle = {flops_per_cycle!r}", f"cpu_frequencies_hz = {hertz!r}"]
    return "\n".join(["[radio]", *lines, ""])


# ── The program ──────────────────────────────────────────────────────────────


def write(path: Path, column: str, rows: Iterator[Row]) -> int:
    """Write a trace; the number of its rows."""
    count = 0
    with atomic_file(path) as file:
        file.write(f"time_s,device,{column}\n".encode())
        for time_s, device, value in rows:
            file.write(f"{time_s!r},{device},{value}\n".encode())
            count += 1
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file."""
    parser = argparse.ArgumentParser(description="FedScale's device information as traces for kfl.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("availability", "client_behave_trace"), ("capacity", "client_device_capacity")):
        command = commands.add_parser(name, help=f"convert {about}")
        command.add_argument("file", type=Path, help=f"{about}, a pickle or JSON")
        command.add_argument("--devices", type=int, help="convert the first so many clients (default: all)")
        command.add_argument("--out", type=Path, required=True, help="trace to write")
    commands.choices["availability"].add_argument("--seconds", type=float, required=True, help="length of the trace")
    capacity = commands.choices["capacity"]
    capacity.add_argument(
        "--bandwidth-hz", type=float, default=20e6, help="band of the measured rates (default: 20 MHz)"
    )
    capacity.add_argument("--power-dbm", type=float, default=23.0, help="power of the sender (default: 23 dBm)")
    capacity.add_argument("--noise-dbm-per-hz", type=float, default=-174.0, help="noise density (default: -174)")
    capacity.add_argument("--flops-per-sample", type=float, help="work behind the latencies; needed for --clocks")
    capacity.add_argument("--flops-per-cycle", type=float, default=4.0, help="of the processors (default: 4)")
    capacity.add_argument("--clocks", type=Path, help="config file to write with the clocks of the devices")
    options = parser.parse_args(arguments)
    clients = first(read_clients(options.file), options.devices, options.file)
    if options.command == "availability":
        walks = (presence(client, device, options.seconds) for device, client in enumerate(clients))
        rows: Iterator[Row] = heapq.merge(*walks, key=lambda row: row[0])
        count = write(options.out, "available", rows)
    else:
        if (options.clocks is None) != (options.flops_per_sample is None):
            parser.error("--clocks and --flops-per-sample belong together")
        count = write(options.out, "gain", gains(clients, options))
        if options.clocks is not None:
            options.clocks.write_text(clocks(clients, options.flops_per_sample, options.flops_per_cycle))
    print(f"{count} rows of {len(clients)} devices in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
