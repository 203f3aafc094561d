"""A fleet's rounds as numbers for Prometheus, and as sentences for logs and terminals.

Prometheus finds them on a port of 127.0.0.1, which only this machine can reach.
"""

from __future__ import annotations

import logging
from typing import Any

from kfl.core.errors import MissingExtraError
from kfl.core.text import percent
from kfl.runfolder import RoundLog

log = logging.getLogger("kfl")

LOOPBACK = "127.0.0.1"


class Metrics:
    """Counters and gauges of one server; each has its own registry, so several may live in one process."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge
        except ImportError as problem:
            raise MissingExtraError("prometheus-client", "flower", "Metrics of a fleet") from problem
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self._round = Gauge("kfl_round", "Rounds that are done.", **own)
        self._seen = Gauge("kfl_devices_seen", "Devices that ever joined.", **own)
        self._there = Gauge("kfl_devices_available", "Devices that are there now.", **own)
        self._accuracy = Gauge("kfl_accuracy", "Right test predictions over all, as devices last reported.", **own)
        self._uploads = Counter("kfl_uploads", "Uploads that were used.", **own)
        self._late = Counter("kfl_late", "Chosen devices that did not answer in time.", **own)
        self._rejected = Counter("kfl_rejected", "Answers that were refused.", **own)
        self._energy = Counter("kfl_energy_joules", "Energy spent.", ["device"], **own)
        self._parts = Counter("kfl_energy_by_part_joules", "Where the energy of whole devices went.", ["part"], **own)
        self._seconds = Gauge("kfl_round_seconds", "Real time of the last round.", **own)

    def serve(self, port: int) -> int | None:
        """Serve them and return the port, or None if it is taken: a fleet goes on without metrics."""
        from prometheus_client import start_http_server

        try:
            server, _ = start_http_server(port, addr=LOOPBACK, registry=self.registry)
        except OSError as problem:
            log.warning("No metrics on port %d: %s.", port, problem.strerror or problem)
            return None
        return int(server.server_port)

    def fleet(self, seen: int, there: int) -> None:
        """How many devices there are."""
        self._seen.set(seen)
        self._there.set(there)

    def round(self, entry: RoundLog) -> None:
        """What one round did."""
        self._round.set(entry.round + 1)
        if entry.accuracy is not None:
            self._accuracy.set(entry.accuracy)
        self._uploads.inc(len(entry.used))
        self._late.inc(sum(fault["fault"] == "late" for fault in entry.faults))
        self._rejected.inc(len(entry.rejected))
        self._seconds.set(entry.time_s)
        for device, compute_j, upload_j in zip(
            entry.devices, entry.compute_energy_j, entry.upload_energy_j, strict=True
        ):
            self._energy.labels(str(device)).inc(compute_j + upload_j)
        for part, each_j in entry.parts_j().items() if entry.clock_hz else ():
            self._parts.labels(part).inc(max(sum(each_j), 0.0))  # a difference of two sums may round below 0


def round_sentence(entry: RoundLog, rounds: int) -> str:
    """One line about a round, for a person who watches.

    >>> from kfl.simulation import RoundLog
    >>> round_sentence(RoundLog(0, 0.5, (1, 2), (), (), (), (), 4.2, 0, 0, None, None, "ok", lost=(2,)), 3)
    'round 1 of 3: 2 chosen, 1 used, 1 lost, accuracy 50.0 %, 4.2 s'
    """
    parts = [f"{len(entry.devices)} chosen", f"{len(entry.used)} used"]
    parts += [f"{len(entry.missed)} not reached"] if entry.missed else []
    parts += [f"{len(entry.lost)} lost"] if entry.lost else []
    parts += [f"{len(entry.rejected)} refused"] if entry.rejected else []
    parts += [f"accuracy {percent(entry.accuracy, 1)}"] if entry.accuracy is not None else []
    return f"round {entry.round + 1} of {rounds}: {', '.join(parts)}, {entry.time_s:.1f} s"
