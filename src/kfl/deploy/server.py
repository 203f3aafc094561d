"""The server app that Flower runs: `kfl.deploy.server:app`.

Its configuration in the Flower run: `config`, the path of the server's TOML file (`kfl.deploy.settings`), and `folder`,
its run folder. A new Flower run with the same folder goes on with the round after the last one that was finished.

The run folder is the simulator's (config.toml, rounds.jsonl, state/, server.npz, summary.json), with two more files:

    fleet.json      the run's name, who is in the fleet, who was refused, where the metrics are
    fleet.jsonl     one line per round: real times, bytes, how long each device took
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError, KflError, RunFolderError
from kfl.deploy.channel import Measurements, read_gains
from kfl.deploy.courier import Courier
from kfl.deploy.flower import Context, Grid, ServerApp
from kfl.deploy.metrics import Metrics
from kfl.deploy.roster import Roster, check_fits
from kfl.deploy.rounds import RoundResult, play_round
from kfl.deploy.sentences import round_sentence
from kfl.deploy.settings import ServerConfig
from kfl.deploy.site import FleetSite, build_site, server_engine
from kfl.engine import Engine
from kfl.runfolder import History, RoundLog, RunFolder, RunReader, RunState, describe_environment, totals
from kfl.simulation.energy import energy_facts
from kfl.simulation.runner import refuse_divergence

log = logging.getLogger("kfl")
app = ServerApp()

WAIT_S = 1.0
"""Between two looks for devices when too few are there."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the fleet from where it is to its last round."""
    logging.basicConfig(level=logging.INFO, format="kfl: %(message)s")
    paths = {name: str(context.run_config.get(name) or "") for name in ("config", "folder")}
    for name, path in paths.items():
        if not path:
            raise ConfigError(name, path, "a path in the configuration of the Flower run (flwr run -c)")
    serve(grid, ServerConfig.load(Path(paths["config"])), Path(paths["folder"]))


def serve(grid: Grid, config: ServerConfig, folder: Path) -> None:
    """Run a fleet into a run folder; a finished one is left as it is."""
    config.validate()
    experiment = config.experiment
    target = RunFolder(folder)
    with target.locked():
        if target.prepare(experiment) == "finished":
            log.info("The run in %s is finished.", folder.name)
            return
        target.write_environment(_environment(config))
        server = FleetServer(config, target, Courier(grid, config.fleet.poll_s))
        server.start()
        while server.state.round < experiment.rounds:
            server.step()
        server.finish()


@dataclass
class FleetServer:
    """A fleet's server between two rounds: its state is a checkpoint, the roster, and the history."""

    config: ServerConfig
    target: RunFolder
    courier: Courier
    state: RunState = field(init=False)
    site: FleetSite = field(init=False)
    engine: Engine = field(init=False)
    """Trains on the server, where the algorithm does; it has no data of its own."""
    logs: list[RoundLog] = field(default_factory=list)
    gains: dict[int, float] = field(default_factory=dict)
    """What devices last reported of their channel."""

    def __post_init__(self) -> None:
        fleet, path = self.config.fleet, self.target.path
        self.metrics = Metrics()
        self.port = None if fleet.metrics_port is None else self.metrics.serve(fleet.metrics_port)
        self.measured: Measurements | None = None if fleet.gains is None else read_gains(Path(fleet.gains))
        before = _read_fleet(path)
        self.roster = Roster(self.config, run_name(before))
        self.roster.restore(before)
        identity = blake2b(self.config.experiment.identity().encode(), digest_size=16).hexdigest()
        self.checkpoints = self.target.checkpoints(identity, interval_s=0.0)
        self.started = time.monotonic()
        self._sync()

    def start(self) -> None:
        """Wait for the fleet, then take up the last checkpoint or begin before round 0."""
        self._gather()
        kept = self.checkpoints.read(self.target.whole_rounds(), self.target.history_sum)
        self.logs = list(self.target.rewind(0 if kept is None else kept.round))
        profiles = {device: member.profile for device, member in self.roster.members.items()}
        self.site = build_site(self.config.experiment, profiles)
        self.engine = server_engine(self.config.experiment, next(iter(profiles.values())))
        if kept is None:
            self.state = self._begin()
            return
        check_fits(kept.server, next(iter(profiles.values())))
        self.state = kept
        log.info("The run goes on with round %d.", kept.round)

    def _begin(self) -> RunState:
        experiment, count = self.config.experiment, self.config.experiment.devices
        correct = np.zeros(count, dtype=np.int64)
        for device, member in self.roster.members.items():
            correct[device] = member.profile.correct
        return RunState(
            round=0,
            server=experiment.algorithm.server_init(self.engine, experiment.seed),
            devices={},
            scheduler=experiment.scheduler.init(self.site.budget_j, experiment.rounds),
            compute_energy_j=np.zeros(count),
            upload_energy_j=np.zeros(count),
            taken=np.zeros(count, dtype=np.int64),
            correct=correct,
            fading=None,
        )

    def _gather(self) -> None:
        """Before the first round: wait for all devices, or after a while for as many as are needed."""
        end = time.monotonic() + self.config.fleet.join_deadline_s
        while True:
            nodes = self._nodes()
            here = len(self.roster.present(nodes))
            if here >= self.config.experiment.devices:
                return
            if here >= self.config.fleet.min_devices and time.monotonic() >= end:
                log.info("%d of %d devices are here; the run begins.", here, self.config.experiment.devices)
                return
            time.sleep(WAIT_S)

    def _nodes(self) -> dict[int, str]:
        """The nodes that are there; those not seen before are asked what they have."""
        nodes = self.courier.nodes()
        refused = dict(self.roster.refused)
        joined = self.roster.muster(self.courier, nodes)
        if joined or self.roster.refused != refused:
            self._sync()
        if joined:
            self._welcome(joined)
        self.metrics.fleet(len(self.roster.members), len(self.roster.present(nodes)))
        return nodes

    def _welcome(self, joined: list[int]) -> None:
        """Count late joiners in: their samples, their budget per round, and how well their model does."""
        if not hasattr(self, "state"):
            return
        profiles = {device: member.profile for device, member in self.roster.members.items()}
        self.site = build_site(self.config.experiment, profiles)
        scheduler, correct = self.state.scheduler, self.state.correct.copy()
        correct[joined] = [profiles[device].correct for device in joined]
        allowance = self.site.budget_j / max(scheduler.horizon, 1)
        self.state = replace(self.state, scheduler=replace(scheduler, allowance_j=allowance), correct=correct)

    def step(self) -> None:
        """Play one round, once enough devices are there, and make it last."""
        nodes = self._nodes()
        complained = time.monotonic()
        while len(self.roster.present(nodes)) < self.config.fleet.min_devices:
            if time.monotonic() - complained > 60:
                complained = time.monotonic()
                log.warning("Round %d waits: too few devices are here.", self.state.round)
            time.sleep(WAIT_S)
            nodes = self._nodes()
        played = play_round(self.roster, self.site, self.engine, self.courier, self.state, nodes, self._gains())
        self._keep(played)
        try:
            refuse_divergence(self.logs)
        except KflError as problem:  # the simulator stops here; a fleet's server leaves that to the people who run it
            log.warning("%s", problem)
        for device in played.verdicts.changed:
            self.roster.forget(device)
        self.gains |= played.verdicts.gains
        if self.state.round < self.config.experiment.rounds:
            time.sleep(self.config.fleet.pause_s)

    def _gains(self) -> NDArray[np.float64] | None:
        """Channel gains of the next round; None for the simulated channel."""
        count, kind = self.config.experiment.devices, self.config.fleet.channel
        if self.measured is not None:
            return self.measured.at(self.state.round, count)
        if kind == "simulated":
            return None
        gains = np.full(count, np.nan)
        for device, member in self.roster.members.items():
            gain = self.gains.get(device, member.profile.gain)
            gains[device] = np.nan if gain is None else gain
        return gains

    def _keep(self, played: RoundResult) -> None:
        """History first, then the checkpoint that counts on it; a kill in between repeats the round."""
        began = time.perf_counter()
        self.target.append(played.entry)
        self.checkpoints.write(played.state, self.target.sync())
        self.state = played.state
        self.logs.append(played.entry)
        self.metrics.round(played.entry)
        self.target.append_fleet({**played.facts, "keep_s": time.perf_counter() - began})
        log.info("%s", round_sentence(played.entry, self.config.experiment.rounds))

    def _sync(self) -> None:
        self.target.write_fleet({"run": self.roster.run, "metrics_port": self.port, **self.roster.table()})

    def finish(self) -> None:
        """Close the books as the simulator does; the devices' models stay with the devices."""
        history = History(tuple(self.logs), self._summary(), self._records(), str(self.target.path))
        self.target.finish(history, self.state.server)
        self._sync()
        log.info("The run is finished after %d rounds.", self.state.round)

    def _summary(self) -> dict[str, Any]:
        logs = self.logs
        accuracies = [entry.accuracy for entry in logs if entry.accuracy is not None]
        return {
            "algorithm": self.config.experiment.algorithm.name,
            "accuracy": accuracies[-1] if accuracies else None,
            "best_accuracy": max(accuracies) if accuracies else None,
            "rounds": len(logs),
            **totals(logs),
            "fedavg_bits_up": float(sum(self.site.model_bits[list(entry.devices)].sum() for entry in logs)),
            "rejected_uploads": sum(len(entry.rejected) for entry in logs),
            "lost_uploads": sum(len(entry.lost) for entry in logs),
            "faults": sum(len(entry.faults) for entry in logs),
            "diverged": sum(len(entry.diverged) for entry in logs),
            **energy_facts(self.site, logs),
            "wall_s": round(time.monotonic() - self.started, 3),
        }

    def _records(self) -> tuple[dict[str, Any], ...]:
        records = []
        for device, member in sorted(self.roster.members.items()):
            profile, tests = member.profile, member.profile.test_samples
            records.append(
                {
                    "device": device,
                    "model": profile.model,
                    "parameters": profile.parameters,
                    "samples": profile.samples,
                    "classes": [c for c, count in enumerate(profile.samples_per_class) if count],
                    "rounds": int(self.state.taken[device]),
                    "compute_energy_j": float(self.state.compute_energy_j[device]),
                    "upload_energy_j": float(self.state.upload_energy_j[device]),
                    "budget_j": float(self.site.budget_j[device]),
                    "queue_j": float(self.state.scheduler.queue_j[device]),
                    "accuracy": int(self.state.correct[device]) / tests if tests else None,
                    "test_samples": tests,
                }
            )
        return tuple(records)


def run_name(fleet: Mapping[str, Any]) -> str:
    """The name of a run, by which devices know their models: made once, kept in the run folder's fleet.json."""
    name = fleet.get("run")
    return name if isinstance(name, str) and name else uuid.uuid4().hex


def _read_fleet(folder: Path) -> Mapping[str, Any]:
    try:
        return RunReader(folder).fleet()
    except RunFolderError:
        return {}


def _environment(config: ServerConfig) -> dict[str, Any]:
    return {
        **describe_environment(),
        "command": [],  # Flower's, with its tokens in it
        "process": os.getpid(),
        "dataset": {"name": "fleet", "note": "Each device of a real fleet has its own data."},
        "given_as_objects": ["dataset", "models"],  # by the devices
        "fleet": config.to_table()["fleet"],
    }


__all__ = ["FleetServer", "app", "run_name", "serve"]
