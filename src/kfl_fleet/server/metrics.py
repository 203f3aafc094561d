"""A fleet's rounds as numbers for Prometheus, and as sentences for logs and terminals.

Prometheus finds them on a port of 127.0.0.1, which only this machine can reach. Counters count the run and not the
process: a server that continues a run replays its history into them before they are served.

A fleet may have thousands of devices, and a series for each costs Prometheus memory for as long as it keeps data. So
series per device (`kfl_device_…`) exist only in fleets of at most `[fleet] metrics_devices` devices; the largest or
oldest of all devices is always there (`kfl_…_max_…`, `kfl_…_oldest_…`), and `kfl deploy status` names the device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kfl._version import __version__
from kfl.core.errors import MissingExtraError
from kfl.core.names import for_label
from kfl.core.refusals import CODES
from kfl.core.text import percent
from kfl_fleet.logs import warn
from kfl_fleet.messages.records import AnswerFacts, RoundFacts
from kfl_fleet.server.tally import INCIDENTS, WORKER, FleetTally, problems, timestamp
from kfl_fleet.settings import FleetSettings, ServerConfig

if TYPE_CHECKING:
    from kfl.experiment import Experiment
    from kfl.simulation import RoundLog

ROUND_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
ANSWER_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
HOST_VARIABLE = "KFL_METRICS_HOST"
"""Wins over the setting: an image's configuration is the same on every network."""
WEIGHT_CUTS = ("more_than_registered", "more_than_median", "weight_capped")
"""Why an upload weighs less than it says."""
MOST_CODES = 120
"""Different values of a label `code`; a code is ours, but a bug must not fill a Prometheus."""


class Metrics:
    """Counters and gauges of one server; each has its own registry, so several may live in one process."""

    def __init__(self, config: ServerConfig) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
        except ImportError as problem:
            raise MissingExtraError("prometheus-client", "fleet", "Metrics of a fleet") from problem
        disable_created_metrics()  # when each counter began: a series more for every one, and not needed
        self.registry = CollectorRegistry()
        self.settings: FleetSettings = config.fleet
        own: dict[str, Any] = {"registry": self.registry}
        self._rounds_done = Gauge("kfl_rounds_done", "Rounds finished.", **own)
        self._rounds_planned = Gauge("kfl_rounds_planned", "Rounds the run will have.", **own)
        self._rounds = Counter(
            "kfl_rounds", "Rounds by outcome, the label code: ok, no_quorum, or why none was chosen.", ["code"], **own
        )
        self._last_round = Gauge(
            "kfl_last_round_timestamp_seconds",
            "When the last round ended; before the first one, when the server started.",
            **own,
        )
        self._round_s = Histogram("kfl_round_seconds", "Wall-clock time of a round.", buckets=ROUND_S, **own)
        self._answer_s = Histogram("kfl_answer_seconds", "Time from a message to its answer.", buckets=ANSWER_S, **own)
        self._received = Counter(
            "kfl_received_bytes", "Content of devices' answers, without Flower, HTTP and TLS.", **own
        )
        self._sent = Counter("kfl_sent_bytes", "Content of messages to devices, without Flower, HTTP and TLS.", **own)
        self._planned = Gauge("kfl_devices_planned", "Devices the fleet should have.", **own)
        self._seen = Gauge("kfl_devices_seen", "Devices that ever joined.", **own)
        self._there = Gauge("kfl_devices_available", "Devices online now.", **own)
        self._refused = Gauge("kfl_nodes_refused", "Nodes that have a valid key and could not join.", **own)
        self._accuracy = Gauge("kfl_accuracy_ratio", "Test accuracy over all devices, as they last reported it.", **own)
        self._chosen = Counter("kfl_chosen", "Times a device was chosen for a round.", **own)
        self._uploads = Counter("kfl_uploads", "Uploads used.", **own)
        self._rejected = Counter(
            "kfl_rejected", "Answers rejected, by the check they failed (label code).", ["code"], **own
        )
        self._incidents = Counter(
            "kfl_incidents",
            "Everything else that went wrong, by label code: late, gone, error, worker_died …",
            ["code"],
            **own,
        )
        self._clipped = Counter(
            "kfl_clipped", "Uploads that weighed less than they said, by reason (label code).", ["code"], **own
        )
        self._energy = Counter("kfl_energy_joules", "Energy spent by all devices.", **own)
        self._parts = Counter(
            "kfl_energy_by_part_joules",
            "Energy by where it went (label part), in cells that model whole devices.",
            ["part"],
            **own,
        )
        self._budget_max = Gauge(
            "kfl_budget_spent_max_ratio", "Largest share of its energy budget that a device has spent.", **own
        )
        self._oldest = Gauge(
            "kfl_last_answer_oldest_timestamp_seconds", "Last answer of the device that has been silent longest.", **own
        )
        self._unanswered_max = Gauge(
            "kfl_unanswered_max", "Most messages in a row that a device left unanswered.", **own
        )
        self._devices = _DeviceSeries(own) if config.experiment.devices <= config.fleet.metrics_devices else None
        self._codes: set[str] = set()
        info = Gauge(
            "kfl_fleet_info",
            "Always 1; its labels are version, algorithm and scheduler.",
            ["version", "algorithm", "scheduler"],
            **own,
        )
        self._describe(config.experiment, info)
        self._epsilon_max = self._privacy(Gauge, own, config)
        self.tally = FleetTally()

    def _describe(self, experiment: Experiment, info: Any) -> None:
        info.labels(__version__, for_label(experiment.algorithm.name), for_label(experiment.scheduler.name)).set(1)
        self._rounds_planned.set(experiment.rounds)
        self._planned.set(experiment.devices)
        self._last_round.set(time.time())
        # All that we know, from the start: a series that begins with 1 is no increase for Prometheus.
        for code in ("ok", "no_quorum"):
            self._rounds.labels(self._code(code))
        for code in WEIGHT_CUTS:
            self._clipped.labels(self._code(code))
        for code in CODES:
            self._rejected.labels(self._code(code))
        for code in (*INCIDENTS, *(code for code in CODES if code.startswith(WORKER))):
            self._incidents.labels(self._code(code))

    def _privacy(self, gauge: Any, own: dict[str, Any], config: ServerConfig) -> Any:
        """Only where uploads have noise: without it there is no ε, and 0 would be a promise."""
        if not getattr(config.experiment.algorithm, "noise_multiplier", 0.0):
            return None
        gauge("kfl_privacy_delta", "The δ for which ε is computed, where uploads have noise.", **own).set(
            config.fleet.privacy_delta
        )
        alert = config.fleet.privacy_alert_epsilon
        if alert is not None:
            gauge("kfl_privacy_alert_epsilon", "The ε that no device should reach: privacy_alert_epsilon.", **own).set(
                alert
            )
        return gauge("kfl_privacy_spent_max_epsilon", "Largest ε that a device has spent.", **own)

    def serve(self) -> int | None:
        """Serve them and return the port; None if none is asked for or it is taken: a fleet goes on without metrics."""
        from prometheus_client import start_http_server

        host, port = os.environ.get(HOST_VARIABLE) or self.settings.metrics_host, self.settings.metrics_port
        if port is None:
            return None
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as problem:
            warn("metrics_unavailable", f"No metrics on {host}:{port}: {problem.strerror or problem}.", port=port)
            return None
        return int(server.server_port)

    def fleet(self, seen: Collection[int], there: Collection[int], refused: int) -> None:
        """Who is there."""
        self._seen.set(len(seen))
        self._there.set(len(there))
        self._refused.set(refused)
        if self._devices is not None:
            for device in seen:
                self._devices.available.labels(str(device)).set(device in there)

    def round(self, entry: RoundLog, facts: RoundFacts) -> None:
        """What one round did, now or before this process began."""
        self.tally.add(entry, facts)
        ended = timestamp(facts.time)
        self._rounds_done.set(entry.round + 1)
        self._rounds.labels(self._code(entry.status.code)).inc()
        self._round_s.observe(entry.time_s)
        if ended is not None:
            self._last_round.set(ended)
        if entry.accuracy is not None:
            self._accuracy.set(entry.accuracy)
        self._chosen.inc(len(entry.devices))
        self._uploads.inc(len(entry.used))
        self._sent.inc(facts.sent_bytes)
        for part, each_j in entry.parts_j().items() if entry.clock_hz else ():
            self._parts.labels(for_label(part)).inc(max(sum(each_j), 0.0))  # a difference of two sums may round below 0
        self._count_energy(entry)
        self._count_answers(facts.answers)
        self._count_incidents(entry)

    def standing(self, budget_j: Mapping[int, float], epsilon: Mapping[int, float]) -> None:
        """What each device has spent of its energy, and of its privacy where uploads have noise."""
        spent_j = {device: one.energy_j for device, one in self.tally.devices.items()}
        ratios = {d: spent_j.get(d, 0.0) / budget for d, budget in budget_j.items() if 0 < budget < float("inf")}
        if ratios:
            self._budget_max.set(max(ratios.values()))
        if epsilon and self._epsilon_max is not None:
            self._epsilon_max.set(max(epsilon.values()))
        if self._devices is not None:
            for device, ratio in ratios.items():
                self._devices.budget.labels(str(device)).set(ratio)
            for device, spent in epsilon.items():
                self._devices.epsilon.labels(str(device)).set(spent)

    def _count_energy(self, entry: RoundLog) -> None:
        spent = zip(entry.devices, entry.compute_energy_j, entry.upload_energy_j, strict=True)
        for device, compute_j, upload_j in spent:
            self._energy.inc(compute_j + upload_j)
            if self._devices is not None:
                self._devices.energy.labels(str(device)).inc(compute_j + upload_j)

    def _count_answers(self, answers: Mapping[int, AnswerFacts]) -> None:
        for device, answer in answers.items():
            if answer.bytes is not None:
                self._answer_s.observe(answer.seconds)
                self._received.inc(answer.bytes)
            if self._devices is not None:
                one = self.tally.devices[device]
                self._devices.answer(str(device), answer, one.unanswered, timestamp(one.answer_time))
        self._unanswered_max.set(max((one.unanswered for one in self.tally.devices.values()), default=0))
        answered = [timestamp(one.answer_time) for one in self.tally.devices.values()]
        if times := [time_s for time_s in answered if time_s is not None]:
            self._oldest.set(min(times))

    def _count_incidents(self, entry: RoundLog) -> None:
        for refusal in entry.rejected:
            self._rejected.labels(self._code(refusal.get("code", "note"))).inc()
            if self._devices is not None:
                self._devices.rejected.labels(str(refusal["device"])).inc()
        for cut in entry.clipped:
            self._clipped.labels(self._code(str(cut.get("code", "note")))).inc()
        for problem in problems(entry):
            if problem.code == "rejected":
                continue
            self._incidents.labels(self._code(problem.code)).inc()
            if self._devices is not None:
                self._devices.incidents.labels(str(problem.device)).inc()

    def _code(self, code: str) -> str:
        code = for_label(code)
        if code not in self._codes and len(self._codes) >= MOST_CODES:
            return "other"
        self._codes.add(code)
        return code


class _DeviceSeries:
    """Nine series for each device."""

    def __init__(self, own: dict[str, Any]) -> None:
        from prometheus_client import Counter, Gauge

        labels = ["device"]
        self.available = Gauge("kfl_device_available", "1 while the device is online, else 0.", labels, **own)
        self.answered = Gauge("kfl_device_last_answer_timestamp_seconds", "When it last answered.", labels, **own)
        self.seconds = Gauge("kfl_device_answer_seconds", "How long its last answer took.", labels, **own)
        self.unanswered = Gauge("kfl_device_unanswered", "Messages since its last answer.", labels, **own)
        self.energy = Counter("kfl_device_energy_joules", "Energy it has spent.", labels, **own)
        self.budget = Gauge(
            "kfl_device_budget_spent_ratio", "Share of its energy budget that it has spent.", labels, **own
        )
        self.rejected = Counter("kfl_device_rejected", "Its answers that were rejected.", labels, **own)
        self.incidents = Counter("kfl_device_incidents", "Everything else that went wrong with it.", labels, **own)
        self.epsilon = Gauge(
            "kfl_device_privacy_epsilon", "ε that its uploads have spent, where they have noise.", labels, **own
        )

    def answer(self, device: str, answer: AnswerFacts, unanswered: int, answered: float | None) -> None:
        """What became of one message."""
        self.unanswered.labels(device).set(unanswered)
        self.rejected.labels(device)  # from the start, as above
        self.incidents.labels(device)
        if answer.bytes is not None:
            self.seconds.labels(device).set(answer.seconds)
        if answered is not None:
            self.answered.labels(device).set(answered)


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
    parts += [f"{len({cut['device'] for cut in entry.clipped})} clipped"] if entry.clipped else []
    parts += [f"accuracy {percent(entry.accuracy, 1)}"] if entry.accuracy is not None else []
    return f"round {entry.round + 1} of {rounds}: {', '.join(parts)}, {entry.time_s:.1f} s"
